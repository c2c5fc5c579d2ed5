"""`nyuv2`: NYU Depth v2 as PNGs with lists, in the layout of BTS."""

from diffusionlens.data.readers.depth_values import DepthValues
from diffusionlens.data.readers.layout import root_of
from diffusionlens.data.readers.listed_depth import listed_depth
from diffusionlens.data.readers.pairs import PairedPictures
from diffusionlens.data.subset import COUNT_OPTION
from diffusionlens.spec import Spec, check_query

_QUERY = {
    "split": "train or test, default test",
    "list": "file of 'picture depth focal' lines, in place of the split's own",
} | COUNT_OPTION

_LISTS = ["{}", "nyu_{}", "nyudepthv2_{}_files_with_gt"]
_BASES = ["", "{}", "sync", "official_splits/{}", "nyu_depth_v2/sync", "nyu_depth_v2/official_splits/{}"]
_MILLIMETRES = DepthValues(per_metre=1000)


def nyuv2(spec: Spec) -> PairedPictures:
    """Indoor pictures with depth in metres; 0 and 65535 are no reading. The focal length in the lists is not used.

    Lists: SPLIT.txt, nyu_SPLIT.txt or nyudepthv2_SPLIT_files_with_gt.txt; their paths start from ROOT, from ROOT/SPLIT, or
    where BTS keeps them (sync, official_splits/test).

    Raises:
        InputError: another layout, split or option.
    """
    check_query(spec, _QUERY)
    return listed_depth(spec, root_of(spec), _LISTS, _MILLIMETRES, _BASES, _BASES)
