"""Building a model whose every weight comes from a file, checked before memory is spent on it."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from diffusionlens.errors import InputError, in_short, some
from diffusionlens.models.variant import Variant

_MOST_COMPUTED = 2**31  # bytes of what is not learned: rotary angles, indices of relative positions

_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def outline(variant: Variant) -> nn.Module:
    """The model without memory for its weights (on torch's meta device), to look at before building it.

    Raises:
        InputError: there is no such model.
    """
    try:
        with torch.device("meta"):
            return variant.build()
    except InputError:
        raise
    except Exception as error:  # timm's layers raise of every kind when numbers do not go together
        reason = in_short(error)
        raise InputError(f"there is no {variant.describe()} ({reason}); give the right ?heads=N") from None


def fill(variant: Variant, state: Mapping[str, Any], file: str, way_out: str) -> nn.Module:
    """Builds the model with all weights from `state`, whose tensors are copied one at a time.

    Args:
        way_out: what to do when the weights are of another model.

    Raises:
        InputError: a weight is missing, superfluous, of another shape or kind, or not finite.
    """
    check_tensors(state, file)
    _check_claims(variant, state, file)
    wanted = outline(variant)
    computed = sum(buffer.numel() * buffer.element_size() for buffer in wanted.buffers())
    if computed > _MOST_COMPUTED:
        raise InputError(
            f"{file}: tables of {computed / 1e9:.0f} GB would be computed for {variant.describe()}; no such ViT exists"
        )
    _check_shapes(wanted.state_dict(), state, file, way_out)
    for key, value in state.items():
        if not torch.isfinite(value.float()).all():
            raise InputError(f"{file}: {key} has values that are NaN or infinite in float32; the checkpoint is damaged")
    with torch.random.fork_rng(devices=[]):  # the caller's random numbers are left alone
        model = variant.build()
    model.load_state_dict(state, strict=True)
    return model


def _check_claims(variant: Variant, state: Mapping[str, Any], file: str) -> None:
    """A file that says of itself what it is may claim anything; every block is built, so that their number comes first."""
    depth = variant.options.get("depth") if variant.architecture is None else variant.architecture.depth
    if isinstance(depth, int) and depth > len(state):
        raise InputError(f"{file} says that it has {depth} blocks, and holds {len(state)} weights; it is damaged")


def check_tensors(state: Mapping[str, Any], file: str) -> None:
    """Refuses what is not dense, real, floating-point numbers that the file really holds, naming the key.

    Raises:
        InputError: as said.
    """
    for key, value in state.items():
        if kind := _oddity(value):
            raise InputError(f"{file}: {key} is {kind}; wanted dense weights in float32, float16, bfloat16 or float64")


def _oddity(value: Tensor) -> str:
    """What keeps a tensor from being plain weights; nothing for plain ones. Rounded to eight bits or less, weights have
    scales elsewhere, without which they are other numbers."""
    if type(value) not in (Tensor, nn.Parameter) or value.is_nested:
        return f"a tensor of the kind {type(value).__name__}"
    if value.layout != torch.strided:
        return f"sparse ({str(value.layout).removeprefix('torch.')})"
    if value.is_quantized or value.dtype not in _FLOATS:
        return f"of the type {str(value.dtype).removeprefix('torch.')}"
    if value.is_meta:
        return "a name without numbers (on the meta device)"
    if value.numel() == 0:
        return f"empty {tuple(value.shape)}"
    if value.numel() * value.element_size() > value.untyped_storage().nbytes():
        return f"a few numbers repeated to {tuple(value.shape)}"
    return ""


def _check_shapes(own: Mapping[str, Tensor], state: Mapping[str, Tensor], file: str, way_out: str) -> None:
    missing = sorted(set(own) - set(state))
    if missing:
        raise InputError(
            f"{file} lacks {len(missing)} weights of the backbone ({some(missing)}); it would stay random there, so it "
            f"is not loaded: {way_out}"
        )
    extra = sorted(set(state) - set(own))
    if extra:
        raise InputError(f"{file} has {len(extra)} weights that this ViT does not ({some(extra)}): {way_out}")
    for key, value in state.items():
        if value.shape != own[key].shape:
            wanted, got = tuple(own[key].shape), tuple(value.shape)
            raise InputError(
                f"{file}: {key} has the shape {got}, wanted {wanted}; {_other_size(key, got, wanted)}{way_out}"
            )


def _other_size(key: str, got: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    """Position tables differ with the size of the pictures, everything else with the model."""
    if key == "pos_embed" and len(got) == len(wanted) == 3 and got[::2] == wanted[::2]:
        return "if it is of pictures of another size, add ?img_size=HxW; else "
    return "the file mixes two models or is of another one: "
