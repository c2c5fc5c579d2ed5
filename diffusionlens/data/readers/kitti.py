"""`kitti`: KITTI with LiDAR depth, by Eigen-split lists or in the object benchmark's folders."""

from diffusionlens.data.readers.depth_values import DepthValues
from diffusionlens.data.readers.layout import first_existing, root_of
from diffusionlens.data.readers.listed_depth import listed_depth, split_lists
from diffusionlens.data.readers.pairs import PairedPictures
from diffusionlens.data.readers.splits import chosen_split, pairs_by_name
from diffusionlens.data.subset import COUNT_OPTION
from diffusionlens.spec import Spec, check_query

_QUERY = {
    "split": "train, val or test of the lists, default test; training or testing of the object benchmark, default training",
    "list": "file of 'picture depth focal' lines, in place of the split's own",
} | COUNT_OPTION

_LISTS = ["eigen_{}_files_with_gt", "kitti_eigen_{}", "{}"]
_PICTURES = ["", "input", "raw", "raw_data", "kitti_raw"]
_DEPTH = ["", "gt_depth", *(f"data_depth_annotated{split}" for split in ("", "/train", "/val"))]
_OBJECT_DEPTH = ("proj_depth/groundtruth/image_02", "proj_depth/velodyne_raw/image_02")

_METRES_256 = DepthValues(per_metre=256)


def kitti(spec: Spec) -> PairedPictures:
    """Street pictures with sparse depth in metres: 0, most of a picture, is no reading.

    - Lists eigen_SPLIT_files_with_gt.txt, kitti_eigen_SPLIT.txt or SPLIT.txt; pictures from ROOT, ROOT/input, ROOT/raw,
      ROOT/raw_data or ROOT/kitti_raw, depth from ROOT, ROOT/gt_depth or ROOT/data_depth_annotated (and its train, val).
    - Otherwise SPLIT/image_2 with SPLIT/proj_depth/{groundtruth or velodyne_raw}/image_02.

    Raises:
        InputError: another layout, split or option.
    """
    check_query(spec, _QUERY)
    root = root_of(spec)
    if "list" in spec.query or split_lists(root, _LISTS):
        return listed_depth(spec, root, _LISTS, _METRES_256, _PICTURES, _DEPTH)
    present = [folder.name for folder in root.iterdir() if (folder / "image_2").is_dir()]
    if not present:
        wanted = [f"{name.format('test')}.txt" for name in _LISTS]
        first_existing(root, [*wanted, "training/image_2"], "KITTI list or folder")
    split = chosen_split(spec, present, "training", root)
    depth = first_existing(root / split, _OBJECT_DEPTH, "depth of the left camera")
    pairs, skipped = pairs_by_name(root / split / "image_2", depth, ("", ""), "depth map")
    return PairedPictures(spec, split, pairs, skipped, _METRES_256, depth)
