"""Student and teacher: a backbone and a head that take views of several sizes; the teacher is the student's moving average."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from diffusionlens.errors import InputError
from diffusionlens.models.positions import PositionRule, resize_positions


class MultiCropNetwork(nn.Module):
    """Views of a batch to scores of the prototypes, from the CLS token.

    Consecutive views of one size pass through the backbone together, and all features through the head at once. The
    position table is resized for each size by `positions`: DINO's own rule, since timm's would be another network
    (see `diffusionlens.models.positions`). State dict names are DINO's: `backbone.*` and `head.*`.

    Args:
        backbone: a timm ViT with a CLS token; it loses its classifier and takes pictures of any size from now on.
        head: from [N,D] to [N,K].

    Raises:
        InputError: the backbone has no CLS token.
    """

    def __init__(self, backbone: nn.Module, head: nn.Module, positions: PositionRule = "dino") -> None:
        super().__init__()
        if getattr(backbone, "cls_token", None) is None:
            raise InputError(f"{type(backbone).__name__} has no CLS token, which DINO trains; choose a ViT with one")
        backbone.reset_classifier(0, "token")  # type: ignore[operator]
        _take_any_size(backbone)
        self.backbone, self.head, self.positions = backbone, head, positions

    def forward(self, views: Sequence[Tensor]) -> Tensor:
        """[V*B,K], view by view, of V views, each [B,3,H,W]."""
        together = [torch.cat(list(group)) for _, group in groupby(views, key=lambda view: view.shape[-2:])]
        return self.head(torch.cat([self.features(pictures) for pictures in together]))

    def features(self, pictures: Tensor) -> Tensor:
        """The normed CLS token [B,D] of pictures [B,3,H,W].

        Raises:
            ValueError: the patch size does not divide the pictures.
        """
        embed: Any = self.backbone.patch_embed
        rows, columns = (length // patch for length, patch in zip(pictures.shape[-2:], embed.patch_size, strict=True))
        if pictures.shape[-2:] != (rows * embed.patch_size[0], columns * embed.patch_size[1]):
            raise ValueError(f"views of {tuple(pictures.shape[-2:])} are no whole patches of {embed.patch_size}")
        table = getattr(self.backbone, "pos_embed", None)
        if table is None or (rows, columns) == embed.grid_size:
            return self.backbone(pictures)
        # timm adds the table as it is; so it is handed one of the right size, for this pass only. Gradients reach the
        # parameter through the resizing.
        resized = resize_positions(table, embed.grid_size, (rows, columns), self.positions)
        return functional_call(self.backbone, {"pos_embed": resized}, (pictures,))


def _take_any_size(backbone: Any) -> None:
    """Neither refuse pictures of another size than the native one, nor resize positions by timm's own rule for them."""
    backbone.patch_embed.strict_img_size = False
    if getattr(backbone, "dynamic_img_size", False):
        backbone.dynamic_img_size, backbone.patch_embed.flatten = False, True


def make_teacher(student: MultiCropNetwork, backbone: nn.Module, head: nn.Module) -> MultiCropNetwork:
    """A teacher from newly built parts: the student's weights in storage of its own, no gradients, evaluation mode.

    Raises:
        ValueError: the parts share storage with the student, or drop paths.
    """
    teacher = MultiCropNetwork(backbone, head, student.positions)
    teacher.load_state_dict(student.state_dict())
    teacher.requires_grad_(False).eval()
    if any(getattr(module, "drop_prob", None) for module in teacher.modules()):
        raise ValueError("the teacher's backbone drops paths; build it with drop_path_rate=0")
    shared = _storages(student) & _storages(teacher)
    if shared:
        raise ValueError("student and teacher share storage; build the teacher's parts anew")
    return teacher


def _storages(network: nn.Module) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in network.state_dict().values() if tensor.numel()}


@torch.no_grad()
def update_teacher(student: nn.Module, teacher: nn.Module, momentum: float) -> None:
    """Moves every parameter of the teacher to momentum x its own + (1 - momentum) x the student's; buffers are copied.

    Call it after the optimiser's step, with networks of the same make.
    """
    own: list[Tensor] = list(teacher.parameters())
    torch._foreach_lerp_(own, list[Tensor](student.parameters()), 1 - momentum)
    if buffers := list(teacher.buffers()):
        torch._foreach_copy_(buffers, list(student.buffers()))
