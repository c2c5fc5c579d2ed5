"""CorLoc: a picture is localised when the one box proposed meets any object's box with an IoU of a half."""

import torch
from torch import Tensor
from torchvision.ops import box_iou

LEAST_IOU = 0.5


def in_pixels(box: tuple[int, int, int, int], patch: tuple[int, int]) -> Tensor:
    """A box in patches (rows from, columns from, rows to, columns to) as XYXY pixels, [4]."""
    top, left, bottom, right = box
    return torch.tensor([left * patch[1], top * patch[0], right * patch[1], bottom * patch[0]], dtype=torch.float32)


def localised(box: Tensor, truth: Tensor) -> bool:
    """Whether `box` [4] has an IoU of at least a half with any of `truth` [K,4]."""
    return bool(len(truth)) and bool((box_iou(box[None], truth.as_subclass(Tensor)) >= LEAST_IOU).any())
