"""Data: pictures with their boxes, masks, depth and labels, from many layouts to one form."""

from diffusionlens.data.open_data import open_data
from diffusionlens.data.sample import Batch, Picture, PictureSource, Sample, UnreadablePicture
from diffusionlens.data.transforms.fit import FitTransform

__all__ = ["Batch", "FitTransform", "Picture", "PictureSource", "Sample", "UnreadablePicture", "open_data"]
