"""Depth data sets whose splits are lists of 'picture depth ...' lines."""

from collections.abc import Sequence
from pathlib import Path

from diffusionlens.data.readers.depth_values import DepthValues
from diffusionlens.data.readers.layout import first_existing
from diffusionlens.data.readers.pairs import PairedPictures
from diffusionlens.data.readers.splits import chosen_split, given_list, listed_pairs, read_list
from diffusionlens.spec import Spec

DEFAULT_SPLIT = "test"


def split_lists(root: Path, names: Sequence[str]) -> dict[str, Path]:
    """Split -> its list in `root`; `names` are the stems of the files with {} for the split, the first counts most."""
    found: dict[str, Path] = {}
    for name in names:
        before, after = name.split("{}")
        for path in sorted(root.glob(f"{before}*{after}.txt")):
            split = path.stem.removeprefix(before).removesuffix(after)
            if split in ("train", "val", "test"):
                found.setdefault(split, path)
    return found


def listed_depth(
    spec: Spec,
    root: Path,
    names: Sequence[str],
    reading: DepthValues,
    picture_bases: Sequence[str],
    depth_bases: Sequence[str],
) -> PairedPictures:
    """The pictures of `?list=`, or of the list of `?split=`.

    Args:
        names: as in `split_lists`.
        picture_bases, depth_bases: folders below `root`, with {} for the split, that the lists' paths may start from.

    Raises:
        InputError: no such list or split, or nothing of it exists.
    """
    listing = given_list(spec, root)
    if listing is None:
        lists = split_lists(root, names)
        if not lists:
            first_existing(
                root, [f"{name.format(DEFAULT_SPLIT)}.txt" for name in names], "list of pictures and depth maps"
            )
        split = chosen_split(spec, lists, DEFAULT_SPLIT, root)
        listing = lists[split]
        label = split
    else:
        split, label = spec.query.get("split", DEFAULT_SPLIT), listing.stem
    bases = [[root / base.format(split) for base in given] for given in (picture_bases, depth_bases)]
    pairs, skipped = listed_pairs(read_list(listing), bases[0], bases[1], "depth map")
    return PairedPictures(spec, label, pairs, skipped, reading, listing)
