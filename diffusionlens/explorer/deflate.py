"""Bytes to the fewer of two kinds of zlib bytes, which every browser unpacks."""

import zlib

_LEVEL = 6  # 9 takes ten times as long for a twentieth


def deflate(raw: bytes) -> bytes:
    """Deflated with repetitions sought, or, where that is shorter (noise of few values), by a Huffman code alone."""
    plain = zlib.compressobj(_LEVEL, strategy=zlib.Z_HUFFMAN_ONLY)
    return min(zlib.compress(raw, _LEVEL), plain.compress(raw) + plain.flush(), key=len)
