"""What a data set is, as a digest: its names, and the content of some of its pictures."""

import hashlib
from collections.abc import Sequence

from diffusionlens.data.sample import PictureSource

_LOOKED_AT = 16  # pictures whose content is part of the digest; all names are


def content_of(source: PictureSource, indices: Sequence[int]) -> bytes:
    """Names of the pictures `indices`, and pixels, label, mask and depth of sixteen of them, evenly spaced; a change in another
    picture is not noticed."""
    digest = hashlib.sha256()
    for index in indices:
        digest.update(f"{index} {source.name(index)}\n".encode("utf-8", "surrogateescape"))
    for index in indices[:: max(1, len(indices) // _LOOKED_AT)]:
        digest.update(_picture(source, index))
    return digest.digest()


def _picture(source: PictureSource, index: int) -> bytes:
    try:
        picture = source.open(index)
    except Exception as error:  # whatever it is, measuring will say it
        return repr(error).encode("utf-8", "surrogateescape")
    parts = [picture.image.tobytes(), repr(picture.label).encode(), picture.boxes.numpy().tobytes()]
    parts += [value.numpy().tobytes() for value in (picture.mask, picture.depth) if value is not None]
    return hashlib.sha256(b"".join(parts)).digest()
