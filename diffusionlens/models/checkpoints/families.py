"""Every naming of ViT weights that is known, brought to timm's names. One converter a family."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from diffusionlens.errors import InputError
from diffusionlens.models.backbone import Preprocessing
from diffusionlens.models.checkpoints.loading import check_tensors
from diffusionlens.models.checkpoints.normalization import CLIP, HALF, IMAGENET
from diffusionlens.models.checkpoints.unwrap import State, Unwrapped, unwrap
from diffusionlens.models.positions import PositionRule

_ANCHORS = ("patch_embed.proj.weight", "embeddings.patch_embeddings.projection.weight", "conv_proj.weight")


@dataclass
class Weights(Unwrapped):
    """A backbone's weights under timm's names, and what its family says that the weights do not.

    `epsilon` is that of the LayerNorms where it is neither timm's nor torch's, `rotary` says that positions are DINOv3's.
    """

    family: str = ""
    rule: PositionRule = "timm"
    rotary: bool = False
    preprocessing: Preprocessing = IMAGENET
    epsilon: float | None = None
    file: str = ""


def find_backbone(content: Mapping[Any, Any], wanted_branch: str | None, file: str) -> Weights:
    """Takes the backbone out of what a file holds, and converts its names.

    Args:
        content: what the file holds.
        wanted_branch: "teacher", "student", or None for the teacher where there is one.

    Raises:
        InputError: no backbone, several of them, not the wanted branch, or weights that can't be converted.
    """
    found = Weights(**vars(unwrap(content, wanted_branch, _ANCHORS, file)), file=file)
    names = list(found.state)
    family = next((family for family in FAMILIES if family.recognises(found.state)), None)
    if family is None:
        raise InputError(
            f"{file}: the names of its weights are of no known family (first ones: {', '.join(names[:4])}); known: "
            + ", ".join(family.name for family in FAMILIES)
        )
    found.family, found.rule = family.name, family.rule
    _drop(found, family.dropped)
    check_tensors(found.state, file)
    try:
        family.convert(found)
    except KeyError as error:
        raise InputError(f"{file} lacks the weight {error} of {family.name}; give the whole checkpoint") from None
    except (IndexError, ValueError, RuntimeError):  # parts that can't be joined or split
        raise InputError(
            f"{file}: its weights have names of {family.name} and other shapes; the file is damaged"
        ) from None
    return found


def find_timm(content: Mapping[Any, Any], wanted_branch: str | None, own: State, file: str) -> Weights:
    """Takes out the weights of a timm model whose own state is `own`; names stay, heads that it lacks are dropped.

    Raises:
        InputError: as `find_backbone`.
    """
    anchor = _ANCHORS[0] if _ANCHORS[0] in own else max(own, key=len)
    found = Weights(**vars(unwrap(content, wanted_branch, [anchor], file)), family="timm")
    unknown = Weights({key: value for key, value in found.state.items() if key not in own})
    _drop(unknown, _HEADS | _COMPUTED | _PRETRAINING)
    found.state = {key: value for key, value in found.state.items() if key in own or key in unknown.state}
    found.dropped += unknown.dropped
    check_tensors(found.state, file)
    return found


# --- the families --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Family:
    """`recognises` looks at the backbone's own names; `convert` brings what is left without `dropped` (pattern of a name
    -> why) to timm's, in place."""

    name: str
    rule: PositionRule
    recognises: Callable[[State], bool]
    dropped: Mapping[str, str]
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
        if key in renamed:
            raise InputError(
                f"{found.file} has the weight '{key}' twice, under names of two trainings; save one network"
            )
        renamed[key] = value
    found.state = renamed


_HEADS = {
    r"(head|head_dist|fc|linear|projector|predictor|pre_logits|classifier|dino_head|ibot_head)\.": "head",
    r"attn_pool\.": "pooling head",
}
# Mask tokens (iBOT calls its own masked_embed), and the decoder of masked autoencoders.
_PRETRAINING = {r"(mask_token|masked_embed)$|decoder(_pos_embed$|_\w+\.|\.)": "used in pretraining only"}
_NOT_FOR_TOKENS = _HEADS | _PRETRAINING
_COMPUTED = {r"(.*\.)?(relative_position_index$|rope\.)": "computed, not learned"}


def _convert_timm(found: Weights) -> None:
    if "norm_pre.weight" in found.state:  # CLIP
        found.preprocessing = CLIP
    elif any(key.startswith("attn_pool.") for key, _ in found.dropped):  # SigLIP
        found.preprocessing = HALF
    if "dist_token" in found.state:  # DeiT's distillation token: a second prefix token with a position of its own
        found.state["reg_token"] = found.state.pop("dist_token")


def _convert_dinov2(found: Weights) -> None:
    # Training files chunk the blocks for FSDP: blocks.CHUNK.N.*
    _rename(found, {r"blocks\.\d+\.(\d+\.)": r"blocks.\1", r"register_tokens$": "reg_token"})
    _rename(found, {r"(blocks\.\d+\.mlp)\.w12\.": r"\1.fc1.", r"(blocks\.\d+\.mlp)\.w3\.": r"\1.fc2."})
    if "reg_token" in found.state:
        found.rule = "timm"
        _fold_cls_position(found.state)


def _fold_cls_position(state: State) -> None:
    """With registers, timm gives positions to patches alone: the CLS token takes its own along."""
    if "pos_embed" in state and "cls_token" in state:
        place = state["pos_embed"][:, :1]
        _refuse_unequal(place, state["cls_token"])  # a sum would stretch one to the other
        state["cls_token"] = state["cls_token"] + place
        state["pos_embed"] = state["pos_embed"][:, 1:]


def _refuse_unequal(*parts: Tensor) -> None:
    if len({part.shape for part in parts}) > 1:
        raise ValueError("unequal shapes")


_DINOV3_DROPPED = _NOT_FOR_TOKENS | {
    r"rope_embed\.": "computed, not learned",
    r"blocks\.\d+\.attn\.qkv\.bias_mask$": "says that keys have no bias",
    r"(local_cls_norm|cls_norm)\.": "used in pretraining only",
}


def _convert_dinov3(found: Weights) -> None:
    found.rotary = True
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
        _refuse_unequal(*parts)  # 96 + 32 + 64 rows would be as many as three times 64
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
    found.preprocessing, found.epsilon = HALF, 1e-12
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


_TORCHVISION_DROPPED = {r"heads\.": "head"}


def _convert_torchvision(found: Weights) -> None:
    _rename(
        found,
        {
            r"conv_proj\.": "patch_embed.proj.",
            r"class_token$": "cls_token",
            r"encoder\.pos_embedding$": "pos_embed",
            r"encoder\.ln\.": "norm.",
            r"encoder\.layers\.encoder_layer_(\d+)\.": r"blocks.\1.",
            r"(blocks\.\d+)\.ln_(\d)\.": r"\1.norm\2.",
            r"(blocks\.\d+)\.self_attention\.in_proj_": r"\1.attn.qkv.",
            r"(blocks\.\d+)\.self_attention\.out_proj\.": r"\1.attn.proj.",
            r"(blocks\.\d+\.mlp)\.(?:0|linear_1)\.": r"\1.fc1.",
            r"(blocks\.\d+\.mlp)\.(?:3|linear_2)\.": r"\1.fc2.",
        },
    )


def _is_dinov2(state: State) -> bool:
    scaled = any(key.endswith(".ls1.gamma") for key in state)
    chunked = any(re.match(r"blocks\.\d+\.\d+\.", key) for key in state)
    return "register_tokens" in state or chunked or (scaled and "reg_token" not in state and "cls_token" in state)


# The first that recognises the names wins: the narrower ones stand first.
FAMILIES = (
    Family(
        "Hugging Face DINOv2",
        "bicubic",
        lambda s: any(".layer_scale1." in k for k in s),
        _HF_DROPPED,
        _convert_hf_dinov2,
    ),
    Family(
        "Hugging Face ViT", "bicubic", lambda s: any(".layernorm_before." in k for k in s), _HF_DROPPED, _convert_hf_vit
    ),
    Family(
        "torchvision", "bicubic", lambda s: "encoder.pos_embedding" in s, _TORCHVISION_DROPPED, _convert_torchvision
    ),
    Family(
        "DINOv3",
        "timm",
        lambda s: "storage_tokens" in s or any("rope_embed" in k for k in s),
        _DINOV3_DROPPED,
        _convert_dinov3,
    ),
    Family("DINOv2", "dino", _is_dinov2, _NOT_FOR_TOKENS, _convert_dinov2),
    Family("timm with registers", "timm", lambda s: "reg_token" in s, _NOT_FOR_TOKENS, _convert_timm),
    Family("DINO or timm", "dino", lambda s: "cls_token" in s, _NOT_FOR_TOKENS, _convert_timm),
    Family("timm without CLS", "timm", lambda s: "patch_embed.proj.weight" in s, _NOT_FOR_TOKENS, _convert_timm),
)
