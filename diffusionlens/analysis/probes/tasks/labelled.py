"""What the pictures must have for heads to learn, and to be scored: something labelled, at a size that the crop fits."""

from collections.abc import Iterable, Sequence

from diffusionlens.analysis.probes.heads.training import DenseTask, Scored
from diffusionlens.analysis.probes.settings.recipe import Recipe
from diffusionlens.analysis.probes.tasks.depth import Depth, crop_window
from diffusionlens.data.sample import Picture, PictureSource, UnreadablePicture
from diffusionlens.errors import InputError


def nothing_to_learn(task: Scored, label: str) -> InputError:
    """That no training picture has a label."""
    what = "class of the data set (255 counts nowhere)"
    if isinstance(task, Depth):
        what = f"depth above {task.bounds[0]:g} and up to {task.bounds[1]:g} m"
    return InputError(f"{label} has nothing to learn from: no pixel of its pictures has a {what}; give other --train")


def some_labelled(task: DenseTask, source: PictureSource, indices: Iterable[int]) -> bool:
    """Whether one of the pictures has something labelled; they are opened until one has."""
    for index in indices:
        picture = _opened(source, index)
        target = None if picture is None else picture.mask if picture.mask is not None else picture.depth
        if target is not None and task.labelled(target):
            return True
    return False


def usable(source: PictureSource, most: int) -> int:
    """How many pictures can be opened and have a mask or a depth map, counted up to `most`."""
    found = 0
    for index in range(len(source)):
        picture = _opened(source, index)
        found += picture is not None and (picture.mask is not None or picture.depth is not None)
        if found == most:
            break
    return found


def refuse_other_sizes(task: Scored, recipe: Recipe, test: PictureSource, train: PictureSource | None) -> None:
    """Looks at the first readable picture of every data set that is scored.

    Raises:
        InputError: the crop is of pictures of another size.
    """
    if not isinstance(task, Depth) or task.crop != "eigen" or getattr(recipe, "border", "") == "kb":
        return
    for source in (test, train):
        if source is None or (source is train and len(recipe.rates) == 1):
            continue
        opened = (_opened(source, index) for index in range(len(source)))
        depth = next((one.depth for one in opened if one is not None and one.depth is not None), None)
        if depth is not None:
            refuse_sizes(task, [(depth.shape[0], depth.shape[1])])


def refuse_sizes(task: Scored, sizes: Iterable[Sequence[int]]) -> None:
    """The same of sizes (H, W) that are known."""
    if isinstance(task, Depth):
        for height, width in dict.fromkeys((size[0], size[1]) for size in sizes):
            crop_window(task.crop, (height, width))


def _opened(source: PictureSource, index: int) -> Picture | None:
    try:
        return source.open(index)
    except UnreadablePicture:
        return None
