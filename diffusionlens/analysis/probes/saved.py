"""Trained heads in a file, to be scored on other data without training."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from diffusionlens.analysis.probes.heads import LayerHeads
from diffusionlens.analysis.probes.run import ModelProbe, ProbeSettings
from diffusionlens.data.sample import PictureSource
from diffusionlens.errors import InputError, in_short
from diffusionlens.models.own_format import write_tensors

_FORMAT = 1


@dataclass(frozen=True)
class SavedHeads:
    """Heads of one model: (layer, seed) -> heads of one rate. `facts` says what they are of: task, kinds, outputs, width,
    batch_norm, digest of the model, classes, training data, learning rates."""

    heads: dict[tuple[int, int], LayerHeads]
    facts: dict[str, Any]

    def of_layer(self, layer: int) -> tuple[dict[tuple[int, int], LayerHeads], dict[str, float]]:
        """A layer's heads, one a seed, and the learning rate of every kind."""
        taken = {unit: own for unit, own in self.heads.items() if unit[0] == layer}
        return taken, dict(self.facts["learning_rates"].get(str(layer), {}))


def save_heads(heads: Mapping[tuple[int, int], LayerHeads], facts: Mapping[str, Any], path: Path) -> None:
    """Writes heads as safetensors; their facts are in its metadata."""
    tensors = {
        f"{layer}/{seed}/{name}": value.clone()
        for (layer, seed), own in heads.items()
        for name, value in own.state().items()
        if value.numel()
    }
    about = dict(facts) | {"format": _FORMAT, "units": sorted([layer, seed] for layer, seed in heads)}
    write_tensors(tensors, path, {"diffusionlens_probe": json.dumps(about)})


def read_heads(path: Path, device: torch.device) -> SavedHeads:
    """Reads what `save_heads` has written.

    Raises:
        InputError: the file is missing or holds something else.
    """
    if not path.is_file():
        raise InputError(
            f"--heads {path} does not exist; wanted a file heads/MODEL.safetensors of a probe with --save-heads"
        )
    try:
        with safe_open(path, framework="pt") as file:
            facts = json.loads((file.metadata() or {}).get("diffusionlens_probe", "null"))
            if not isinstance(facts, dict) or facts.get("format") != _FORMAT:
                raise InputError(f"--heads {path} holds no heads of a probe; wanted a file that --save-heads made")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dict)
        heads = {}
        for layer, seed in facts["units"]:
            own = LayerHeads(
                facts["kinds"], facts["width"], facts["outputs"], 1, 0, batch_norm=facts["batch_norm"], device=device
            )
            start = f"{layer}/{seed}/"
            state = {name: tensors.get(start + name, value) for name, value in own.state().items()}
            for name, value in own.state().items():
                if state[name].shape != value.shape or (value.numel() and start + name not in tensors):
                    raise InputError(f"--heads {path} is damaged: {start}{name} is missing or of another shape")
            own.load(state)
            heads[int(layer), int(seed)] = own
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"--heads {path} can't be read ({in_short(error)})") from None
    return SavedHeads(heads, facts)


def check_heads(
    saved: SavedHeads, task: str, outputs: int, classes: list[str], digest: str, label: str, path: Path
) -> None:
    """Refuses heads of another task, model or set of classes.

    Raises:
        InputError: says which of them.
    """
    facts = saved.facts
    depth = task == "depth"  # whose data sets have no masks, or masks of anything
    if facts["task"] != task:
        raise InputError(f"--heads {path} is of {facts['task']}, not of {task}")
    if facts["digest"] != digest:
        raise InputError(
            f"--heads {path} was trained on tokens of '{facts['model']}', and {label} has other weights or another size"
        )
    if facts["outputs"] != outputs or (not depth and facts["classes"] != classes):
        raise InputError(f"--heads {path} knows {len(facts['classes'])} classes that are not those of this data")


def take_heads(
    path: Path,
    run: ModelProbe,
    task: Any,
    test: PictureSource,
    settings: ProbeSettings,
    digest: str,
    device: torch.device,
) -> tuple[SavedHeads, tuple[str, ...]]:
    """The heads of a file for `run`, whose layers become those that the file has, and their token kinds.

    Raises:
        InputError: they are of something else, or of none of the layers.
    """
    saved = read_heads(path, device)
    check_heads(saved, task.name, task.outputs, list(test.mask_classes), digest, run.backbone.label, path)
    run.layers = tuple(layer for layer in run.layers if any(own == layer for own, _ in saved.heads))
    if not run.layers:
        raise InputError(f"--heads {path} has no head of the layers {settings.layers}")
    return saved, tuple(saved.facts["kinds"])
