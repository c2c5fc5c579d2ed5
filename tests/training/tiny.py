"""A recipe that trains in a moment: what the tests of the loop share."""

from pathlib import Path
from typing import Any

import torch

from diffusionlens.training.checkpoints.checkpoint import load_checkpoint

ROOT = Path(__file__).parents[2]
DATA = "scenes:?n=40&size=32"
TINY = [
    "model.options={patch_size: 8, embed_dim: 32, depth: 2, num_heads: 2}",
    "model.drop_path=0.2",
    "crops.global_size=24",
    "crops.local_size=16",
    "head.out_dim=64",
    "head.hidden=32",
    "head.bottleneck=16",
    "batch_size=16",
    "length=6 steps",
    "optimizer.freeze_last_layer=1 steps",
    "optimizer.warmup=2 steps",
    "run.log_every=1",
    "run.device=cpu",
    "checkpoint.save=3 steps",
    "checkpoint.every=3 steps",
    "checkpoint.keep=null",
]


def tiny(*settings: str) -> list[str]:
    """TINY with `settings` in place of its own for the same key."""
    keys = [setting.partition("=")[0] for setting in settings]
    return [setting for setting in TINY if setting.partition("=")[0] not in keys] + list(settings)


def weights(run: Path, name: str = "last") -> dict[str, torch.Tensor]:
    """Every tensor of a checkpoint that training goes on from, by a flat name; the random states too."""
    content = load_checkpoint(run / "checkpoints" / f"{name}.pt")
    found: dict[str, torch.Tensor] = {}

    def walk(value: Any, name: str) -> None:
        if isinstance(value, torch.Tensor):
            found[name] = value
        elif isinstance(value, dict):
            for key, below in value.items():
                walk(below, f"{name}.{key}")
        elif isinstance(value, list | tuple):
            for place, below in enumerate(value):
                walk(below, f"{name}.{place}")

    walk(content, "")
    return found


def largest_difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], *parts: str) -> float:
    """Over the tensors of these parts of a checkpoint, all without any; both must have the same ones."""
    names = [name for name in one if not parts or name.split(".")[1] in parts]
    assert names
    assert names == [name for name in other if not parts or name.split(".")[1] in parts]
    return max(float((one[name].double() - other[name].double()).abs().max()) for name in names if one[name].numel())


def without_key_biases(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A bias of the keys adds the same to every score of a query, so that its true gradient is 0; Adam makes steps of full
    length of what rounding leaves of it. Two computations of the same thing differ there and nowhere else."""
    return {
        name: torch.cat(value.chunk(3)[::2]) if name.endswith("qkv.bias") else value for name, value in tensors.items()
    }
