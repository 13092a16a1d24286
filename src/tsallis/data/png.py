"""PNG images, as they come in data sets of drawings: decoded without an imaging library."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SIGNATURE = b"\x89PNG\r\n\x1a\n"
CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # of a kind: grey, RGB, palette, grey and alpha, RGB and alpha
DEPTHS = {0: (1, 2, 4, 8), 2: (8,), 3: (1, 2, 4, 8), 4: (8,), 6: (8,)}
LARGEST = 1 << 12  # pixels a side


class BadImage(ValueError):
    """Not an image that can be decoded here."""


def decode_png(content: bytes) -> NDArray[np.uint8]:
    """The pixels [height, width, 3] of a PNG file of up to 8 bits a channel, not interlaced, nowhere transparent.

    After the PNG specification (W3C, third edition), sections 9 (filters) and 11 (chunks).

    Raises:
        BadImage: another kind of file, or a damaged one.

    >>> import struct, zlib
    >>> def chunk(name, data):
    ...     return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    >>> head, rows = struct.pack(">2I5B", 2, 1, 8, 2, 0, 0, 0), zlib.compress(bytes([0, 9, 8, 7, 6, 5, 4]))
    >>> decode_png(SIGNATURE + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")).tolist()
    [[[9, 8, 7], [6, 5, 4]]]
    """
    import numpy as np

    chunks: dict[bytes, bytes] = {}
    for name, data in _chunks(content):
        chunks[name] = chunks.get(name, b"") + data
    if len(head := chunks.get(b"IHDR", b"")) != 13 or b"IDAT" not in chunks:
        raise BadImage("a PNG file without a header or pixels")
    width, height, depth, kind, _, _, interlaced = struct.unpack(">2I5B", head)
    if depth not in DEPTHS.get(kind, ()) or interlaced or not 0 < width <= LARGEST or not 0 < height <= LARGEST:
        raise BadImage(f"a PNG file of a kind that isn't read here: {width} x {height}, {depth} bits, type {kind}")
    stride = (width * CHANNELS[kind] * depth + 7) // 8
    step = max(1, CHANNELS[kind] * depth // 8)
    pixels = _unfilter(_inflate(chunks[b"IDAT"], height * (stride + 1)), stride, step)  # [height, stride]
    if depth < 8:
        bits = np.unpackbits(pixels, axis=1).reshape(height, -1, depth)
        pixels = np.packbits(bits, axis=2).reshape(height, -1)[:, :width] >> (8 - depth)
    return _colours(pixels.reshape(height, width, -1), kind, depth, chunks)


def _chunks(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    if not content.startswith(SIGNATURE):
        raise BadImage("not a PNG file")
    place = len(SIGNATURE)
    while place < len(content):
        size, name = struct.unpack(">I4s", content[place : place + 8].ljust(8, b"\0"))
        data = content[place + 8 : place + 8 + size]
        if content[place + 8 + size : place + 12 + size] != struct.pack(">I", zlib.crc32(name + data)):
            raise BadImage("a damaged PNG file")
        yield name, data
        if name == b"IEND":
            return
        place += 12 + size
    raise BadImage("a PNG file that breaks off")


def _inflate(packed: bytes, size: int) -> bytes:
    try:
        found = zlib.decompressobj().decompress(packed, size + 1)
    except zlib.error as error:
        raise BadImage(f"a damaged PNG file: {error}") from error
    if len(found) != size:
        raise BadImage(f"a PNG file with {'more' if len(found) > size else 'fewer'} pixels than its header says")
    return found


def _unfilter(content: bytes, stride: int, step: int) -> NDArray[np.uint8]:
    """[height, stride]: each byte was stored as its difference from neighbours, `step` to the left and above."""
    import numpy as np

    stored = np.frombuffer(content, np.uint8).reshape(-1, stride + 1)
    rows = np.zeros((len(stored), stride), np.uint8)
    above = np.zeros(stride, np.uint8)
    for number, row in enumerate(stored[:, 1:]):
        method = int(stored[number, 0])
        if method == 1:
            row = np.add.accumulate(row.reshape(-1, step), axis=0, dtype=np.uint8).reshape(-1)
        elif method == 2:
            row = row + above
        elif method in (3, 4):
            row = np.frombuffer(_byte_by_byte(method, bytearray(row), bytes(above), step), np.uint8)
        elif method > 4:
            raise BadImage(f"a damaged PNG file: there is no filter {method}")
        rows[number] = above = row
    return rows


def _byte_by_byte(method: int, row: bytearray, above: bytes, step: int) -> bytearray:
    for i, up in enumerate(above):
        left, corner = (row[i - step], above[i - step]) if i >= step else (0, 0)
        if method == 3:
            predicted = (left + up) // 2
        else:
            # Paeth: the neighbour nearest to left + up - corner, the first of them in this order.
            far_left, far_up, far_corner = abs(up - corner), abs(left - corner), abs(left + up - 2 * corner)
            if far_left <= far_up and far_left <= far_corner:
                predicted = left
            else:
                predicted = up if far_up <= far_corner else corner
        row[i] = (row[i] + predicted) & 255
    return row


def _colours(pixels: NDArray[np.uint8], kind: int, depth: int, chunks: dict[bytes, bytes]) -> NDArray[np.uint8]:
    """[height, width, 3] of [height, width, channels]."""
    import numpy as np

    if b"tRNS" in chunks or (kind in (4, 6) and pixels[..., -1].min() < 255):
        raise BadImage("a PNG file that is transparent in places")
    if kind == 3:
        palette = np.frombuffer(chunks.get(b"PLTE", b""), np.uint8)
        if palette.size % 3 or int(pixels.max()) >= palette.size // 3:
            raise BadImage("a PNG file with colours that aren't in its palette")
        return palette.reshape(-1, 3)[pixels[..., 0]]
    if kind in (0, 4):
        grey: NDArray[Any] = pixels[..., :1] * (255 // (2**depth - 1))
        return np.repeat(grey.astype(np.uint8), 3, axis=2)
    return np.ascontiguousarray(pixels[..., :3])
