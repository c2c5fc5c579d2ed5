"""A plain ViT's architecture: read from its weights, written into our own files, built as a timm model."""

from functools import partial
from math import isqrt
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from timm.layers import SwiGLUPacked
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from diffusionlens.errors import InputError
from diffusionlens.models.positions import refuse_uneven
from diffusionlens.spec import is_whole

_HEAD_WIDTH = 64

_Count = Annotated[int, Field(gt=0, le=2**20)]


class Architecture(BaseModel):
    """What makes two plain ViTs different. `positions_of_prefix`: the position table starts with entries for the prefix
    tokens. `rotary`: DINOv3's rotary positions instead of a table. `epsilon`: of the LayerNorms; None for torch's 1e-5 in CLIP's
    models, which have a norm in front of the blocks, and in DINOv3, and for timm's 1e-6 in all others."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    grid: tuple[_Count, _Count]
    patch_size: tuple[_Count, _Count]
    width: _Count
    depth: _Count
    heads: _Count
    hidden: _Count
    has_cls: bool = True
    registers: int = Field(default=0, ge=0, le=2**20)
    positions_of_prefix: bool = True
    rotary: bool = False
    layer_scale: bool = False
    swiglu: bool = False
    qkv_bias: bool = True
    proj_bias: bool = True
    qk_norm: bool = False
    norm_before_blocks: bool = False
    final_norm: bool = True
    fc_norm: bool = False
    epsilon: float | None = Field(default=None, gt=0)

    @property
    def norm_epsilon(self) -> float:
        if self.epsilon is not None:
            return self.epsilon
        return 1e-5 if self.norm_before_blocks or self.rotary else 1e-6

    def describe(self) -> str:
        """For people: "ViT, 12 blocks, width 384, 6 heads, patch 16"."""
        patch = (
            str(self.patch_size[0]) if self.patch_size[0] == self.patch_size[1] else "{}x{}".format(*self.patch_size)
        )
        extras = [f"{self.registers} registers"] if self.registers else []
        extras += ["LayerScale"] if self.layer_scale else []
        extras += ["SwiGLU"] if self.swiglu else []
        extras += ["rotary positions"] if self.rotary else []
        extras += [] if self.has_cls else ["no CLS"]
        return ", ".join(
            [f"ViT, {self.depth} blocks", f"width {self.width}", f"{self.heads} heads", f"patch {patch}", *extras]
        )


def read_architecture(
    state: dict[str, Tensor],
    heads: int | None,
    size: tuple[int, int] | None,
    *,
    rotary: bool = False,
    epsilon: float | None = None,
    way_out: str,
    file: str,
) -> tuple[Architecture, list[str]]:
    """The architecture that weights under timm's names belong to, and what had to be assumed.

    Args:
        heads: given by the user, or None for one head per 64 dimensions.
        size: picture size (H, W) of the position table where it is not square.
        way_out: what to do when the weights are not those of a plain ViT.

    Raises:
        InputError: a fact can't be read from the weights and was not given.
    """
    notes = []
    _check_ranks(state, way_out, file)
    projection = state["patch_embed.proj.weight"]
    hidden_in, hidden_out = _mlp_shapes(state, way_out, file)
    width, patch = projection.shape[0], (projection.shape[2], projection.shape[3])
    if projection.shape[1] != 3:
        raise InputError(f"{file} takes pictures of {projection.shape[1]} channels; only RGB models (3) are measured")
    if heads is None:
        if width % _HEAD_WIDTH:
            raise InputError(f"{file}: the number of heads can't be read from weights of width {width}; add ?heads=N")
        heads = width // _HEAD_WIDTH
        notes.append(f"{heads} heads assumed ({_HEAD_WIDTH} dimensions a head); say ?heads=N if that is wrong")
    if heads < 1 or width % heads:
        raise InputError(f"{file}: {heads} heads do not divide the width {width}; give the right ?heads=N")
    registers = state["reg_token"].shape[1] if "reg_token" in state else 0
    has_cls = "cls_token" in state
    prefix = int(has_cls) + registers
    grid, with_prefix = (16, 16), False
    if not rotary:
        if "pos_embed" not in state:
            raise InputError(f"{file} has no position table (pos_embed), as a plain ViT has; {way_out}")
        grid, with_prefix = _grid(state["pos_embed"].shape[1], prefix, patch, size, file)
    try:
        architecture = Architecture(
            grid=grid,
            patch_size=patch,
            width=width,
            depth=_depth(state, file),
            heads=heads,
            hidden=hidden_out,
            has_cls=has_cls,
            registers=registers,
            positions_of_prefix=with_prefix,
            rotary=rotary,
            layer_scale=any(key in state for key in ("blocks.0.ls1.gamma", "blocks.0.gamma_1")),
            swiglu="blocks.0.mlp.fc1_g.weight" in state or hidden_in != hidden_out,
            qkv_bias=any(key in state for key in ("blocks.0.attn.qkv.bias", "blocks.0.attn.q_bias")),
            proj_bias="blocks.0.attn.proj.bias" in state,
            qk_norm="blocks.0.attn.q_norm.weight" in state,
            norm_before_blocks="norm_pre.weight" in state,
            final_norm="norm.weight" in state,
            fc_norm="fc_norm.weight" in state,
            epsilon=epsilon,
        )
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise InputError(f"{file}: its weights would make a ViT whose {where} is beyond any ViT's; {way_out}") from None
    return architecture, notes


# Dimensions of the weights that the architecture is read from.
_RANKS = {
    "patch_embed.proj.weight": 4,
    "cls_token": 3,
    "reg_token": 3,
    "pos_embed": 3,
    "blocks.0.mlp.fc1.weight": 2,
    "blocks.0.mlp.fc1_g.weight": 2,
    "blocks.0.mlp.fc2.weight": 2,
}


def _check_ranks(state: dict[str, Tensor], way_out: str, file: str) -> None:
    for key, rank in _RANKS.items():
        if key in state and state[key].dim() != rank:
            raise InputError(
                f"{file}: {key} has {state[key].dim()} dimensions {tuple(state[key].shape)}, wanted {rank} as in a plain ViT; "
                f"{way_out}"
            )


def _depth(state: dict[str, Tensor], file: str) -> int:
    """The number of blocks, which are numbered from 0 without a gap."""
    numbers = set()
    for key in state:
        if key.startswith("blocks."):
            number = key.split(".")[1]
            if not is_whole(number):
                raise InputError(
                    f"{file} has the weight '{key}'; wanted numbered blocks, as blocks.0: this is no plain ViT"
                )
            numbers.add(int(number))
    missing = next((number for number in range(len(numbers)) if number not in numbers), None)
    if missing is not None:
        raise InputError(
            f"{file} has {len(numbers)} blocks up to number {max(numbers)}, and no block {missing}; give all"
        )
    return len(numbers)


def _mlp_shapes(state: dict[str, Tensor], way_out: str, file: str) -> tuple[int, int]:
    """Inputs of the second layer of the MLP, and outputs of the first: they differ for a packed SwiGLU."""
    if "blocks.0.mlp.fc1_g.weight" in state:
        outputs = state["blocks.0.mlp.fc1_g.weight"].shape[0]
        return outputs, outputs
    for key in ("blocks.0.mlp.fc1.weight", "blocks.0.mlp.fc2.weight"):
        if key not in state:
            raise InputError(f"{file} lacks the weight '{key}' of a plain ViT; {way_out}")
    return state["blocks.0.mlp.fc2.weight"].shape[1], state["blocks.0.mlp.fc1.weight"].shape[0]


def _grid(
    entries: int, prefix: int, patch: tuple[int, int], size: tuple[int, int] | None, file: str
) -> tuple[tuple[int, int], bool]:
    """The grid of a position table with `entries` entries, and whether the prefix tokens have entries too."""
    if size is not None:
        refuse_uneven(f"?img_size={size[0]}x{size[1]}", size, patch, f"the patches of {file}")
        grid = (size[0] // patch[0], size[1] // patch[1])
        for with_prefix in (True, False):
            if entries - prefix * with_prefix == grid[0] * grid[1]:
                return grid, with_prefix and prefix > 0
        raise InputError(
            f"{file}: a picture of {size[0]}x{size[1]} has {grid[0]}x{grid[1]} patches, the table {entries}"
        )
    for with_prefix in (True, False):
        patches = entries - prefix * with_prefix
        if patches > 0 and isqrt(patches) ** 2 == patches:
            return (isqrt(patches), isqrt(patches)), with_prefix and prefix > 0
    raise InputError(f"{file}: its position table has {entries} entries, which is no square grid; add ?img_size=HxW")


def build(architecture: Architecture) -> nn.Module:
    """A timm model of this architecture, its weights random: whoever calls loads all of them."""
    return _build_rotary(architecture) if architecture.rotary else _build_plain(architecture)


def _common(architecture: Architecture) -> dict[str, Any]:
    grid, patch = architecture.grid, architecture.patch_size
    return {
        "img_size": (grid[0] * patch[0], grid[1] * patch[1]),
        "patch_size": patch,
        "embed_dim": architecture.width,
        "depth": architecture.depth,
        "num_heads": architecture.heads,
        "mlp_ratio": (architecture.hidden + 0.5)
        / architecture.width,  # timm rounds down what a quotient may fall short of
        "qkv_bias": architecture.qkv_bias,
        "init_values": 1e-5 if architecture.layer_scale else None,
        "num_classes": 0,
        "class_token": architecture.has_cls,
    }


def _build_plain(architecture: Architecture) -> nn.Module:
    swiglu: dict[str, Any] = {"mlp_layer": SwiGLUPacked, "act_layer": nn.SiLU} if architecture.swiglu else {}
    return VisionTransformer(
        **_common(architecture),
        **swiglu,
        global_pool="avg" if architecture.fc_norm else ("token" if architecture.has_cls else ""),
        reg_tokens=architecture.registers,
        no_embed_class=not architecture.positions_of_prefix,
        qk_norm=architecture.qk_norm,
        proj_bias=architecture.proj_bias,
        pre_norm=architecture.norm_before_blocks,
        final_norm=architecture.final_norm or architecture.fc_norm,
        fc_norm=architecture.fc_norm,
        norm_layer=partial(nn.LayerNorm, eps=architecture.norm_epsilon),
    )


def _build_rotary(architecture: Architecture) -> nn.Module:
    """DINOv3: timm keeps it as an EVA with rotary positions over normalised coordinates."""
    return Eva(
        **_common(architecture),
        num_reg_tokens=architecture.registers,
        swiglu_mlp=architecture.swiglu,
        use_rot_pos_emb=True,
        use_abs_pos_emb=False,
        rope_type="dinov3",
        rope_temperature=100,
        rope_rotate_half=True,
        use_fc_norm=False,
        global_pool="token",
        norm_layer=partial(nn.LayerNorm, eps=architecture.norm_epsilon),
    )
