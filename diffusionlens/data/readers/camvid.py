"""`camvid`: CamVid street scenes, as 11 classes (SegNet's layout) or as the 32 colours they were drawn in."""

import csv
import re
from pathlib import Path

from diffusionlens.conditions import unreadable
from diffusionlens.data.readers.layout import first_existing, root_of
from diffusionlens.data.readers.mask_values import ColourValues, IndexValues, in_order
from diffusionlens.data.readers.pairs import PairedPictures
from diffusionlens.data.readers.splits import chosen_split, listed_pairs, pairs_by_name, read_list
from diffusionlens.data.sample import IGNORE
from diffusionlens.data.subset import COUNT_OPTION
from diffusionlens.errors import InputError
from diffusionlens.spec import Spec, check_query

CLASSES = (
    "Sky",
    "Building",
    "Pole",
    "Road",
    "Pavement",
    "Tree",
    "SignSymbol",
    "Fence",
    "Car",
    "Pedestrian",
    "Bicyclist",
)
"""SegNet's 11 classes; stored value 11 is its "Unlabelled"."""

COLOURS = {
    "Animal": (64, 128, 64),
    "Archway": (192, 0, 128),
    "Bicyclist": (0, 128, 192),
    "Bridge": (0, 128, 64),
    "Building": (128, 0, 0),
    "Car": (64, 0, 128),
    "CartLuggagePram": (64, 0, 192),
    "Child": (192, 128, 64),
    "Column_Pole": (192, 192, 128),
    "Fence": (64, 64, 128),
    "LaneMkgsDriv": (128, 0, 192),
    "LaneMkgsNonDriv": (192, 0, 64),
    "Misc_Text": (128, 128, 64),
    "MotorcycleScooter": (192, 0, 192),
    "OtherMoving": (128, 64, 64),
    "ParkingBlock": (64, 192, 128),
    "Pedestrian": (64, 64, 0),
    "Road": (128, 64, 128),
    "RoadShoulder": (128, 128, 192),
    "Sidewalk": (0, 0, 192),
    "SignSymbol": (192, 128, 128),
    "Sky": (128, 128, 128),
    "SUVPickupTruck": (64, 128, 192),
    "TrafficCone": (0, 0, 64),
    "TrafficLight": (0, 64, 64),
    "Train": (192, 64, 128),
    "Tree": (128, 128, 0),
    "Truck_Bus": (192, 128, 192),
    "Tunnel": (64, 0, 64),
    "VegetationMisc": (192, 192, 0),
    "Void": (0, 0, 0),
    "Wall": (64, 192, 0),
}
"""The 32 classes of CamVid's own label_colors.txt; Void belongs to no class."""

_QUERY = {"split": "train, val or test, default test; all where the layout has no splits"} | COUNT_OPTION

_LAYOUTS = ["trainannot", "train_labels", "LabeledApproved_full"]


def camvid(spec: Spec) -> PairedPictures:
    """CamVid pictures with masks, in one of three layouts:

    - SegNet's: SPLIT, SPLITannot, lists SPLIT.txt where there are some. Index masks of 11 classes; 11 is ignored.
    - SPLIT, SPLIT_labels with NAME_L.png in colours (class_dict.csv where there is one): 31 classes, Void ignored.
    - CamVid's own: 701_StillsRaw_full, LabeledApproved_full with NAME_L.png in colours (label_colors.txt): the split `all`.

    Raises:
        InputError: another layout, split or option.
    """
    check_query(spec, _QUERY)
    first = first_existing(
        root_of(spec), [*_LAYOUTS, "testannot", "valannot", "test_labels", "val_labels"], "CamVid masks"
    )
    root = first.parent
    if first.name == "LabeledApproved_full":
        split = chosen_split(spec, ["all"], "all", root)
        return _coloured(spec, split, root / "701_StillsRaw_full", first)
    suffix = "annot" if first.name.endswith("annot") else "_labels"
    present = [folder.name.removesuffix(suffix) for folder in root.glob(f"*{suffix}") if folder.is_dir()]
    split = chosen_split(spec, present, "test", root)
    annotations = root / f"{split}{suffix}"
    if suffix == "_labels":
        return _coloured(spec, split, root / split, annotations)
    listing = root / f"{split}.txt"
    if listing.is_file():
        # SegNet's own lists begin with the folder of their author's machine.
        lines = [[field.removeprefix("/SegNet/CamVid/") for field in line] for line in read_list(listing)]
        pairs, skipped = listed_pairs(lines, [root], [root], "mask")
    else:
        pairs, skipped = pairs_by_name(root / split, annotations, ("", ""), "mask")
    reading = IndexValues(in_order(len(CLASSES), len(CLASSES)), "0..11 or 255")
    return PairedPictures(spec, split, pairs, skipped, reading, annotations, CLASSES)


def _coloured(spec: Spec, split: str, pictures: Path, annotations: Path) -> PairedPictures:
    colours = _colours(annotations.parent)
    names = [name for name in colours if name != "Void"]
    classes = {red + 256 * green + 65536 * blue: name for name, (red, green, blue) in colours.items()}
    numbers = {code: IGNORE if name == "Void" else names.index(name) for code, name in classes.items()}
    pairs, skipped = pairs_by_name(pictures, annotations, ("", "_L"), "mask")
    return PairedPictures(spec, split, pairs, skipped, ColourValues(numbers), annotations, names)


def _colours(root: Path) -> dict[str, tuple[int, int, int]]:
    """Class name -> colour from class_dict.csv (name,r,g,b) or label_colors.txt ("r g b name"), else CamVid's own.

    Raises:
        InputError: the file is there and not of that form, or gives a name or colour twice.
    """
    path = next((root / name for name in ("class_dict.csv", "label_colors.txt") if (root / name).is_file()), None)
    if path is None:
        return COLOURS
    try:
        lines = path.read_text(encoding="utf-8-sig", errors="replace").splitlines()
        table = list(csv.reader(lines)) if path.suffix == ".csv" else []
    except OSError as error:
        raise unreadable(error, path, "a table of colours") from None
    except csv.Error as error:
        raise InputError(f"{path} is no table of colours ({error}); wanted name,r,g,b") from None
    if path.suffix == ".csv":
        rows = [[*row[1:4], row[0]] for row in table[1:] if len(row) >= 4]
    else:
        rows = [re.split(r"\s+", line.strip(), maxsplit=3) for line in lines if line.strip()]
    colours: dict[str, tuple[int, int, int]] = {}
    for row in rows:
        digits = [value.strip() for value in row[:3]]
        if len(row) != 4 or not all(
            value.isascii() and value.isdigit() and len(value) < 4 and int(value) < 256 for value in digits
        ):
            raise InputError(f"{path}: '{' '.join(row)[:60]}' is no name with a colour of 0..255 each")
        colour = (int(digits[0]), int(digits[1]), int(digits[2]))
        if row[3].strip() in colours or colour in colours.values():
            raise InputError(f"{path} gives the name or colour of '{' '.join(row)[:60]}' twice")
        colours[row[3].strip()] = colour
    if len(set(colours) - {"Void"}) == 0:
        raise InputError(f"{path} names no class; wanted names with their colours")
    return colours
