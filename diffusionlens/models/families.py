"""Every naming of ViT weights that is known, brought to timm's names. One converter a family."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from diffusionlens.errors import InputError
from diffusionlens.models.positions import PositionRule

State = dict[str, Tensor]
BRANCHES = ("teacher", "student")

# Names that torch's own wrappers put into a path; never part of a model's naming.
_WRAPPERS = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
_CONTAINERS = ("state_dict", "model_state_dict", "model", "module", "backbone", "encoder")
_ANCHORS = ("patch_embed.proj.weight", "embeddings.patch_embeddings.projection.weight")


@dataclass
class Weights:
    """A backbone's weights under timm's names, and what was learned while looking for them."""

    state: State
    family: str = ""
    rule: PositionRule = "timm"
    branch: str | None = None
    epoch: int | None = None
    dropped: list[tuple[str, str]] = field(default_factory=list)
    rotary: bool = False
    half_mean: bool = False


def find_backbone(content: Mapping[str, Any], wanted_branch: str | None, file: str) -> Weights:
    """Takes the backbone out of whatever a training script saved around it, and converts its names.

    Args:
        content: what the file holds.
        wanted_branch: "teacher", "student", or None for the teacher where there is one.

    Raises:
        InputError: no backbone, several of them, or not the wanted branch.
    """
    found = Weights({})
    tensors = _take_out(content, wanted_branch, found, file)
    for family in FAMILIES:
        if family.recognises(found.state):
            found.family, found.rule = family.name, family.rule
            family.convert(found)
            return found
    raise InputError(
        f"{file}: the names of its weights are of no known family (first ones: {', '.join(list(tensors)[:4])}); known: "
        + ", ".join(family.name for family in FAMILIES)
    )


def find_timm(content: Mapping[str, Any], wanted_branch: str | None, own_keys: set[str], file: str) -> Weights:
    """Takes out the weights of a timm model whose keys are `own_keys`, its names as they are; heads are dropped.

    Raises:
        InputError: as `find_backbone`.
    """
    found = Weights({}, family="timm")
    _take_out(content, wanted_branch, found, file)
    _drop(
        found,
        {rf"(?!({'|'.join(map(re.escape, sorted(own_keys)))})$){head}": reason for head, reason in _HEADS.items()},
    )
    return found


def _take_out(content: Mapping[str, Any], branch: str | None, found: Weights, file: str) -> State:
    """Fills `found.state` with the backbone's weights under their own names; returns all tensors."""
    tensors = _unwrap(content, branch, found, file)
    tensors = {_without_wrappers(key): value for key, value in tensors.items()}
    prefix = _prefix(tensors, branch, found, file)
    for key, value in tensors.items():
        if not key.startswith(prefix):
            found.dropped.append((key, "outside the backbone"))
        else:
            found.state[key[len(prefix) :]] = value
    return tensors


def _unwrap(content: Mapping[str, Any], branch: str | None, found: Weights, file: str) -> State:
    """Goes down through `teacher`, `state_dict`, ... to the dictionary of tensors."""
    epoch = content.get("epoch")
    if isinstance(epoch, int):
        found.epoch = epoch
    nested = [key for key, value in content.items() if isinstance(value, Mapping) and _has_anchor(value)]
    branches = [name for name in BRANCHES if name in nested]
    if branches:
        chosen = branch or branches[0]
        if chosen not in branches:
            raise InputError(f"{file} has no branch '{branch}'; it has {', '.join(branches)}")
        found.branch = chosen
    elif nested:
        chosen = next((key for key in _CONTAINERS if key in nested), nested[0])
        if len(nested) > 1 and chosen not in _CONTAINERS:
            raise InputError(f"{file} holds several networks ({', '.join(nested)}); save the one that is meant alone")
    else:
        if not _has_anchor(content):
            some = ", ".join(map(str, list(content)[:4])) or "nothing"
            raise InputError(f"{file} holds no ViT backbone: no '{_ANCHORS[0]}' among its entries ({some}, ...)")
        if strange := next(
            (key for key, value in content.items() if isinstance(value, Tensor) and type(key) is not str), None
        ):
            raise InputError(
                f"{file} has a weight under the key {strange!r}, which is no name; save a model's state_dict()"
            )
        return {key: value for key, value in content.items() if isinstance(value, Tensor)}
    for key in content:
        if key != chosen and key != "epoch":
            found.dropped.append((str(key), "not the chosen network" if key in nested else "training state"))
    return _unwrap(content[chosen], branch, found, file)


def _has_anchor(content: Mapping[str, Any]) -> bool:
    return any(
        str(key).endswith(_ANCHORS) if isinstance(value, Tensor) else isinstance(value, Mapping) and _has_anchor(value)
        for key, value in content.items()
    )


def _without_wrappers(key: str) -> str:
    parts = [part for part in key.split(".") if part not in _WRAPPERS]
    while len(parts) > 1 and parts[0] == "module":
        parts.pop(0)
    return ".".join(parts)


def _prefix(tensors: State, branch: str | None, found: Weights, file: str) -> str:
    """What stands before the backbone's own names ("backbone.", "teacher.backbone.", "dinov2.", ...)."""
    prefixes = {key[: -len(anchor)] for key in tensors for anchor in _ANCHORS if key.endswith(anchor)}
    if len(prefixes) > 1 or branch:
        of_branch = {name: [prefix for prefix in prefixes if prefix.split(".")[0] == name] for name in BRANCHES}
        name = branch or ("teacher" if of_branch["teacher"] else "student")
        if len(of_branch[name]) == 1:
            found.branch = name
            return of_branch[name][0]
        if branch and found.branch != branch:
            raise InputError(f"{file} has no branch '{branch}'; leave out ?branch, it holds one network")
    if len(prefixes) != 1:
        raise InputError(
            f"{file} holds several networks ({', '.join(sorted(prefixes))}); save the one that is meant alone"
        )
    return prefixes.pop()


# --- the families --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Family:
    """`recognises` looks at the backbone's own names; `convert` brings them to timm's, in place."""

    name: str
    rule: PositionRule
    recognises: Callable[[State], bool]
    convert: Callable[[Weights], None]


def _drop(found: Weights, reasons: Mapping[str, str]) -> None:
    """Takes out keys that match a pattern of `reasons`, and lists them."""
    for key in list(found.state):
        for pattern, reason in reasons.items():
            if re.match(pattern, key):
                del found.state[key]
                found.dropped.append((key, reason))
                break


def _rename(found: Weights, rules: Mapping[str, str]) -> None:
    """Applies every (pattern, replacement) to the start of every key, in order."""
    renamed = {}
    for key, value in found.state.items():
        for pattern, replacement in rules.items():
            key = re.sub(f"^{pattern}", replacement, key)
        renamed[key] = value
    found.state = renamed


_HEADS = {
    r"(head|head_dist|fc|linear|projector|predictor|pre_logits|classifier|dino_head|ibot_head)\.": "head",
    r"attn_pool\.": "pooling head",
}


def _convert_timm(found: Weights) -> None:
    _drop(found, _HEADS | {r"mask_token$": "used in pretraining only"})
    if "dist_token" in found.state:  # DeiT's distillation token: a second prefix token with a position of its own
        found.state["reg_token"] = found.state.pop("dist_token")


def _convert_dinov2(found: Weights) -> None:
    _drop(found, _HEADS | {r"mask_token$": "used in pretraining only"})
    # Training files chunk the blocks for FSDP: blocks.CHUNK.N.*
    _rename(found, {r"blocks\.\d+\.(\d+\.)": r"blocks.\1", r"register_tokens$": "reg_token"})
    _rename(found, {r"(blocks\.\d+\.mlp)\.w12\.": r"\1.fc1.", r"(blocks\.\d+\.mlp)\.w3\.": r"\1.fc2."})
    if "reg_token" in found.state:
        found.rule = "timm"
        _fold_cls_position(found.state)


def _fold_cls_position(state: State) -> None:
    """With registers, timm gives positions to patches alone: the CLS token takes its own along."""
    if "pos_embed" in state and "cls_token" in state:
        state["cls_token"] = state["cls_token"] + state["pos_embed"][:, :1]
        state["pos_embed"] = state["pos_embed"][:, 1:]


def _convert_dinov3(found: Weights) -> None:
    found.rotary = True
    _drop(
        found,
        _HEADS
        | {
            r"mask_token$": "used in pretraining only",
            r"rope_embed\.": "computed, not learned",
            r"blocks\.\d+\.attn\.qkv\.bias_mask$": "says that keys have no bias",
            r"(local_cls_norm|cls_norm)\.": "used in pretraining only",
        },
    )
    _rename(
        found,
        {
            r"blocks\.\d+\.(\d+\.)": r"blocks.\1",
            r"storage_tokens$": "reg_token",
            r"(blocks\.\d+)\.ls1\.gamma$": r"\1.gamma_1",
            r"(blocks\.\d+)\.ls2\.gamma$": r"\1.gamma_2",
            r"(blocks\.\d+\.mlp)\.w1\.": r"\1.fc1_g.",
            r"(blocks\.\d+\.mlp)\.w2\.": r"\1.fc1_x.",
            r"(blocks\.\d+\.mlp)\.w3\.": r"\1.fc2.",
        },
    )
    for key in [key for key in found.state if key.endswith("attn.qkv.bias")]:
        query, _, value = found.state.pop(key).chunk(3)
        found.state[key.replace("qkv.bias", "q_bias")] = query
        found.state[key.replace("qkv.bias", "v_bias")] = value


def _fuse_qkv(found: Weights, stem: str) -> None:
    """query, key, value projections -> one, as timm has them."""
    for key in [key for key in found.state if re.search(rf"{stem}\.query\.(weight|bias)$", key)]:
        parts = [found.state.pop(key.replace(".query.", f".{name}.")) for name in ("query", "key", "value")]
        found.state[re.sub(rf"{stem}\.query\.", "attn.qkv.", key)] = torch.cat(parts)


_HF_EMBEDDINGS = {
    r"embeddings\.patch_embeddings\.projection\.": "patch_embed.proj.",
    r"embeddings\.cls_token$": "cls_token",
    r"embeddings\.position_embeddings$": "pos_embed",
    r"encoder\.layer\.": "blocks.",
    r"layernorm\.": "norm.",
}
_HF_DROPPED = _HEADS | {r"embeddings\.mask_token$": "used in pretraining only", r"pooler\.": "pooling head"}


def _convert_hf_dinov2(found: Weights) -> None:
    _drop(found, _HF_DROPPED)
    _rename(found, _HF_EMBEDDINGS | {r"embeddings\.register_tokens$": "reg_token"})
    _fuse_qkv(found, r"attention\.attention")
    _rename(
        found,
        {
            r"(blocks\.\d+)\.attention\.output\.dense\.": r"\1.attn.proj.",
            r"(blocks\.\d+)\.layer_scale1\.lambda1$": r"\1.ls1.gamma",
            r"(blocks\.\d+)\.layer_scale2\.lambda1$": r"\1.ls2.gamma",
            r"(blocks\.\d+\.mlp)\.weights_in\.": r"\1.fc1.",
            r"(blocks\.\d+\.mlp)\.weights_out\.": r"\1.fc2.",
        },
    )
    if "reg_token" in found.state:
        found.rule = "timm"
        _fold_cls_position(found.state)


def _convert_hf_vit(found: Weights) -> None:
    found.half_mean = True
    _drop(found, _HF_DROPPED)
    _rename(found, _HF_EMBEDDINGS)
    _fuse_qkv(found, r"attention\.attention")
    _rename(
        found,
        {
            r"(blocks\.\d+)\.attention\.output\.dense\.": r"\1.attn.proj.",
            r"(blocks\.\d+)\.intermediate\.dense\.": r"\1.mlp.fc1.",
            r"(blocks\.\d+)\.output\.dense\.": r"\1.mlp.fc2.",
            r"(blocks\.\d+)\.layernorm_before\.": r"\1.norm1.",
            r"(blocks\.\d+)\.layernorm_after\.": r"\1.norm2.",
        },
    )


def _is_dinov2(state: State) -> bool:
    scaled = any(key.endswith(".ls1.gamma") for key in state)
    chunked = any(re.match(r"blocks\.\d+\.\d+\.", key) for key in state)
    return "register_tokens" in state or chunked or (scaled and "reg_token" not in state and "cls_token" in state)


# The first that recognises the names wins: the narrower ones stand first.
FAMILIES = (
    Family("Hugging Face DINOv2", "bicubic", lambda s: any(".layer_scale1." in k for k in s), _convert_hf_dinov2),
    Family("Hugging Face ViT", "bicubic", lambda s: any(".layernorm_before." in k for k in s), _convert_hf_vit),
    Family("DINOv3", "timm", lambda s: "storage_tokens" in s or any("rope_embed" in k for k in s), _convert_dinov3),
    Family("DINOv2", "dino", _is_dinov2, _convert_dinov2),
    Family("timm with registers", "timm", lambda s: "reg_token" in s, _convert_timm),
    Family("DINO or timm", "dino", lambda s: "cls_token" in s, _convert_timm),
    Family("timm without CLS", "timm", lambda s: "patch_embed.proj.weight" in s, _convert_timm),
)
