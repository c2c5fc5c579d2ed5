"""`sunrgbd`: SUN RGB-D in its own folders, one a frame, with bit-rotated depth."""

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from diffusionlens.conditions import refuse_shortage
from diffusionlens.data.open_picture import SUFFIXES
from diffusionlens.data.readers.depth_values import DepthValues
from diffusionlens.data.readers.layout import inside, refuse_folder, root_of
from diffusionlens.data.readers.pairs import Pair, PairedPictures
from diffusionlens.data.readers.splits import chosen, chosen_split, given_list, read_list
from diffusionlens.data.subset import COUNT_OPTION
from diffusionlens.errors import InputError
from diffusionlens.spec import Spec, check_query

_QUERY = {
    "split": "all, or train or test where there is a list of them; default test where there is one, else all",
    "list": "file whose lines begin with a frame's picture, in place of the split's own",
    "depth": "raw (folder depth, default) or bfx (depth_bfx: holes filled)",
} | COUNT_OPTION

_LISTS = {"train": ["train.txt"], "test": ["test.txt", "SUNRGBD_val_splits.txt"]}
_FOLDERS = {"raw": "depth", "bfx": "depth_bfx"}

# read3dPoints.m of the toolbox: millimetres, bits rotated by three, what lies beyond 8 m brought to 8 m.
_DEPTH = DepthValues(per_metre=1000, rotated=True, limit=8.0)


def sunrgbd(spec: Spec) -> PairedPictures:
    """Indoor frames with depth in metres, at most 8; no reading is NaN. A frame is a folder with `image` and `depth`.

    Splits: `all` frames below ROOT; `test` from test.txt or SUNRGBD_val_splits.txt (the 5,050 frames that depth models are
    compared on); `train` from train.txt.

    Raises:
        InputError: another layout, split or option.
    """
    check_query(spec, _QUERY)
    root = root_of(spec)
    depth = _FOLDERS[chosen(spec, "depth", list(_FOLDERS))]
    base = root / "SUNRGBD" if (root / "SUNRGBD").is_dir() else root
    listing = given_list(spec, root)
    if listing is not None:
        split, frames = listing.stem, _listed(listing)
    else:
        lists = _lists(root)
        split = chosen_split(spec, ["all", *lists], "test" if "test" in lists else "all", root)
        listing = lists.get(split, base)
        frames = list(_frames_below(base)) if split == "all" else _listed(listing)
    if not frames:
        raise InputError(f"{listing} has no frame of SUN RGB-D: wanted folders with the folders image and {depth}")
    pairs: list[Pair] = []
    skipped: list[tuple[str, str]] = []
    for frame in frames:
        picture, depth_map = _only_file(base, frame, "image"), _only_file(base, frame, depth)
        if picture is None or depth_map is None:
            missing = "image" if picture is None else depth
            skipped.append((f"{frame}/{missing}", "wanted one file in this folder of the frame"))
        else:
            pairs.append(Pair(f"{frame}/image/{picture.name}", picture, depth_map))
    return PairedPictures(spec, split, pairs, skipped, _DEPTH, listing)


def _lists(root: Path) -> dict[str, Path]:
    """Split -> the file that lists its frames."""
    found = {split: [root / name for name in names if (root / name).is_file()] for split, names in _LISTS.items()}
    return {split: paths[0] for split, paths in found.items() if paths}


def _listed(path: Path) -> list[str]:
    """Frames of a list, as paths below the folder SUNRGBD; lines begin with a picture, FRAME/image/FILE."""
    return [_below_sunrgbd(str(PurePosixPath(line[0]).parent.parent)) for line in read_list(path)]


def _below_sunrgbd(frame: str) -> str:
    """Lists start from the folder above SUNRGBD or from their author's machine (/n/fs/sun3d/data/SUNRGBD/...)."""
    return frame.rpartition("SUNRGBD/")[2].strip("/")


def _frames_below(folder: Path) -> Iterator[str]:
    """Every folder with a folder `image` and one of depth, sorted, as paths below `folder`."""
    for place, folders, _ in os.walk(folder, onerror=refuse_folder):
        if "image" in folders and not set(_FOLDERS.values()).isdisjoint(folders):
            folders.clear()
            yield Path(place).relative_to(folder).as_posix()
        folders.sort()


def _only_file(base: Path, frame: str, part: str) -> Path | None:
    """The one picture file of a frame's folder `part`; None when there is another number, or `frame` leads out."""
    folder = inside(base, f"{frame}/{part}")
    try:
        files = [path for path in folder.iterdir() if _is_picture(path)] if folder is not None else []
    except OSError as error:
        refuse_shortage(error, f"{folder} can't be looked into")
        return None
    return files[0] if len(files) == 1 else None


def _is_picture(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
