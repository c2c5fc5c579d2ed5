"""A loaded ViT with what the diagnostics must know about it: token layout, preprocessing, where it came from."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from diffusionlens.errors import InputError
from diffusionlens.models.positions import PositionRule, refuse_uneven, resize_positions

_POSITION_TABLES = ("pos_embed", "relative_position_bias_table")  # what timm resizes when the picture's size changes


@dataclass(frozen=True)
class Preprocessing:
    """How the model's pictures were prepared: channel mean and std (0..1 scale) and PIL interpolation name."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    interpolation: str = "bicubic"

    def visible(self, image: Tensor) -> NDArray[np.uint8]:
        """A normalised picture [3,H,W] as people see it: the normalisation taken back, [H,W,3]."""
        mean, std = (torch.tensor(values)[:, None, None] for values in (self.mean, self.std))
        plain = ((image.cpu() * std + mean).clamp(0, 1) * 255).round().byte()
        return plain.permute(1, 2, 0).numpy()


@dataclass(frozen=True)
class Origin:
    """Where a model came from, as the manifest states it. `sha256` is of the weights file; `family` the naming of its keys;
    `branch` the network taken from a training file ("teacher"); `epoch` and `step` how far it was trained, as far as that is
    known; `recipe` what it was trained by, resolved, where the file says it; `dropped` the keys left out, and why."""

    spec: str
    family: str
    architecture: str
    sha256: str | None = None
    branch: str | None = None
    epoch: int | None = None
    step: int | None = None
    attention: str = "softmax"
    untrained: bool = False
    dropped: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    recipe: Mapping[str, Any] = field(default_factory=dict)

    def manifest(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Tokens:
    """The tokens of one layer by kind: `cls` [B,D] or None, `registers` [B,R,D], `patches` [B,h,w,D]."""

    cls: Tensor | None
    registers: Tensor
    patches: Tensor

    @property
    def flat_patches(self) -> Tensor:
        """The patches as [B,h*w,D], row by row."""
        return self.patches.flatten(1, 2)


@dataclass
class Backbone:
    """A timm ViT and the facts about it that timm does not state in one place.

    `blocks` are the transformer blocks in order, `norm` the final norm or None, `patch_size` (ph, pw) in
    pixels, `has_cls` and `registers` the prefix tokens in their order: CLS, registers, patches.
    """

    label: str
    model: nn.Module
    blocks: Sequence[nn.Module]
    norm: nn.Module | None
    patch_size: tuple[int, int]
    width: int
    heads: int
    has_cls: bool
    registers: int
    native_size: tuple[int, int]
    preprocessing: Preprocessing
    origin: Origin
    position_rule: PositionRule = "timm"
    size: tuple[int, int] = (0, 0)
    parameters: int = 0
    _native_tables: dict[str, Tensor] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.model.eval().requires_grad_(False)
        self.size = self.size if self.size != (0, 0) else self.native_size
        self.parameters = sum(parameter.numel() for parameter in self.model.parameters())  # at the native size
        for name, parameter in self.model.named_parameters():
            if name.rpartition(".")[2] in _POSITION_TABLES:
                self._native_tables.setdefault(name, parameter.detach().clone())

    @property
    def depth(self) -> int:
        return len(self.blocks)

    @property
    def prefix(self) -> int:
        """Number of tokens before the first patch."""
        return int(self.has_cls) + self.registers

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches at the present size."""
        return self.size[0] // self.patch_size[0], self.size[1] // self.patch_size[1]

    def default_size(self) -> tuple[int, int]:
        """224 x 224, or the native size where that is smaller, brought down to a multiple of the patch size."""
        return (
            max(min(224, self.native_size[0]) // self.patch_size[0], 1) * self.patch_size[0],
            max(min(224, self.native_size[1]) // self.patch_size[1], 1) * self.patch_size[1],
        )

    def set_size(self, size: tuple[int, int]) -> None:
        """Makes the model take pictures of `size` (H, W), positions resized by the rule of its family.

        Raises:
            InputError: the patch size does not divide `size`, or the model takes only its native size.
        """
        refuse_uneven(f"size {size[0]}x{size[1]}", size, self.patch_size, self.label)
        if size == self.size:
            return
        if not hasattr(self.model, "set_input_size"):
            raise InputError(
                f"{self.label} ({self.origin.architecture}) takes only {self.native_size[0]}x{self.native_size[1]}; "
                f"leave out --size or give that"
            )
        device = next(self.model.parameters()).device
        self.model.cpu()  # where every interpolation exists; some devices have no bicubic one
        try:
            self._resize(size)
        finally:
            self.model.to(device)

    def _resize(self, size: tuple[int, int]) -> None:
        if self.size != self.native_size:  # tables are resized from the native ones, never from resized ones
            self._set_input_size(self.native_size)
            for name, table in self._native_tables.items():
                self._set_table(name, table)
        self._set_input_size(size)
        self.size = size
        if (native := self._native_tables.get("pos_embed")) is not None:
            native_grid = (self.native_size[0] // self.patch_size[0], self.native_size[1] // self.patch_size[1])
            self._set_table("pos_embed", resize_positions(native, native_grid, self.grid, self.position_rule))

    def scale_table(self, name: str, factor: float) -> None:
        """Multiplies a position table, and the native one that other sizes are made from."""
        self._set_table(name, self.model.get_parameter(name).detach() * factor)
        self._native_tables[name] = self._native_tables[name] * factor

    def _set_input_size(self, size: tuple[int, int]) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of SciPy and torch, about the speed of timm's own resizing
            self.model.set_input_size(img_size=size)  # type: ignore[operator]

    def _set_table(self, name: str, table: Tensor) -> None:
        place, _, parameter = name.rpartition(".")
        device = next(self.model.parameters()).device
        setattr(self.model.get_submodule(place), parameter, nn.Parameter(table.to(device), requires_grad=False))

    def split(self, tokens: Tensor) -> Tokens:
        """[B,N,D] tokens in the model's order, told apart by kind."""
        cls = tokens[:, 0] if self.has_cls else None
        registers = tokens[:, int(self.has_cls) : self.prefix]
        height, width = self.grid
        patches = tokens[:, self.prefix :].unflatten(1, (height, width))
        return Tokens(cls, registers, patches)

    def normed(self, tokens: Tensor) -> Tensor:
        """The tokens through the model's final norm, in float32; unchanged where there is none."""
        return tokens if self.norm is None else self.norm(tokens.float())

    def first_norm(self, layer: int) -> nn.Module | None:
        """The norm in front of the attention of block `layer` (1..depth), or None for a post-norm block."""
        block = self.blocks[layer - 1]
        if "Post" in type(block).__name__:
            return None
        norm = getattr(block, "norm1", None)
        return norm if isinstance(norm, nn.Module) and not isinstance(norm, nn.Identity) else None

    def describe(self) -> dict[str, Any]:
        """Everything that `check` prints and the manifest keeps."""
        return {
            **self.origin.manifest(),
            "size": list(self.size),
            "native_size": list(self.native_size),
            "grid": list(self.grid),
            "patch_size": list(self.patch_size),
            "depth": self.depth,
            "width": self.width,
            "heads": self.heads,
            "cls": self.has_cls,
            "registers": self.registers,
            "final_norm": self.norm is not None,
            "positions": self.position_rule,
            "preprocessing": asdict(self.preprocessing),
            "parameters": self.parameters,
        }

    def to(self, device: torch.device) -> "Backbone":
        self.model.to(device)
        return self
