"""`open_data`: a DATA string to its pictures."""

from collections.abc import Callable
from difflib import get_close_matches

from diffusionlens.conditions import unreadable
from diffusionlens.data.readers.ade20k import ade20k
from diffusionlens.data.readers.camvid import camvid
from diffusionlens.data.readers.cityscapes import cityscapes
from diffusionlens.data.readers.coco import Coco
from diffusionlens.data.readers.folder import Folder
from diffusionlens.data.readers.imagenet import ImageNet
from diffusionlens.data.readers.kitti import kitti
from diffusionlens.data.readers.nyuv2 import nyuv2
from diffusionlens.data.readers.sunrgbd import sunrgbd
from diffusionlens.data.readers.tiny_imagenet import TinyImageNet
from diffusionlens.data.readers.voc import Voc
from diffusionlens.data.sample import PictureSource
from diffusionlens.data.scenes.source import Scenes
from diffusionlens.data.subset import limited
from diffusionlens.errors import InputError
from diffusionlens.spec import Spec, parse_spec

READERS: dict[str, Callable[[Spec], PictureSource]] = {
    "voc": Voc,
    "coco": Coco,
    "imagenet": ImageNet,
    "tiny-imagenet": TinyImageNet,
    "ade20k": ade20k,
    "cityscapes": cityscapes,
    "camvid": camvid,
    "nyuv2": nyuv2,
    "sunrgbd": sunrgbd,
    "kitti": kitti,
    "folder": Folder,
    "scenes": Scenes.from_spec,
}


def open_data(text: str, option: str = "DATA") -> PictureSource:
    """Opens `[label=]KIND:ROOT[?key=value]`: finds the files and reads the lists, not the pictures. `option` is what gave it,
    for the message.

    Raises:
        InputError: an unknown kind or option, or a root in another layout (says which files were looked for); a folder or
            list can't be read.
    """
    spec = parse_spec(text, option, "[label=]KIND:ROOT, for example voc:ROOT or scenes:?n=64")
    known = ", ".join(f"{kind}:" for kind in READERS)
    if not spec.kind:
        raise InputError(
            f"'{text}' does not say how the pictures are laid out; wanted KIND:ROOT, with KIND one of {known}"
        )
    if spec.kind not in READERS:
        near = get_close_matches(spec.kind, READERS, n=1)
        hint = f"; did you mean {near[0]}:?" if near else ""
        raise InputError(f"'{spec.kind}:' is no kind of data (known: {known}){hint}")
    try:
        source = READERS[spec.kind](spec)
    except OSError as error:  # of a folder or list that is there and may not be looked into
        raise unreadable(error, error.filename or spec.rest, f"the pictures of '{spec.text}'") from None
    return source if isinstance(source, Scenes) else limited(source, spec)  # scenes make as many as ?n= says
