"""Images by name: rows of an array, or photographs in a folder or an archive."""

from __future__ import annotations

import lzma
import math
import os
import struct
import tarfile
import tokenize
import unicodedata
import warnings
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path, PurePath, PurePosixPath
from typing import IO, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tsallis.errors import InputError, describe, memory_for
from tsallis.toolkit.data.io import PLAUSIBLE, check_file, input_errors, open_file, read_bytes

ARRAYS = (".npy", ".npy.xz")
PHOTOS = (".jpg", ".jpeg", ".png")
MAX_PIXELS = 1 << 26  # maximum number of pixels of a resized photograph
MAX_BYTES = 1 << 28  # maximum size of a photograph's file
MAX_PACKED = 8_000  # maximum compression ratio of xz
LONGEST_HEADER = 10_000  # maximum bytes of an array header; NumPy has the same limit
BAD_HEADER = (ValueError, TypeError, SyntaxError, OverflowError, RecursionError, tokenize.TokenError, struct.error)
Load = Callable[[], bytes]


def open_pictures(path: Path | str, size: tuple[int, int] | None = None) -> Pictures:
    """Open images in an array file, a folder or a tar archive.

    Args:
        path: Array file (`.npy` or `.npy.xz`), or a folder or `.tar` archive with JPEG and PNG files. An array contains
            uint8 pixels [images, height, width, 3] or floating-point features [images, height, width, size]; the name
            of an image is its row number. In a folder or archive, the name of an image is its path, with or without the
            file ending.
        size: Height and width to which photographs are resized. By default, all photographs must have the same size.

    Raises:
        InputError: If the path is missing, empty or damaged, if an array has a wrong shape, dtype or size or contains
            Python objects, or if Pillow is missing.
    """
    path = Path(path)
    if size is not None and math.prod(size) > MAX_PIXELS:
        raise InputError(f"{path}: size must have at most {MAX_PIXELS} pixels, got {describe(size)}")
    if os.path.isdir(path):
        return Photos(_folder_loaders(path), str(path), size)
    if path.name.endswith(".tar"):
        return Photos(_tar_loaders(path), str(path), size)
    if path.name.endswith(ARRAYS):
        return ArrayPictures(_load_array(path), str(path), size)
    if not os.path.exists(path):
        raise InputError(f"{path}: no such file or folder")
    raise InputError(f"{path}: expected {', '.join(ARRAYS)}, .tar or a folder of images")


class ArrayPictures:
    """Images in the rows of an array, named "0", "1" and so on.

    Args:
        array: Array [images, height, width, channels], uint8 or floating point.
        source: Name of the file, for errors.
        size: Expected height and width.

    Raises:
        InputError: If the shape, dtype or size is wrong.

    >>> pictures = ArrayPictures(np.zeros((3, 4, 5, 3), np.uint8))
    >>> pictures.batch(["2", "0"]).shape, "3" in pictures
    (torch.Size([2, 4, 5, 3]), False)
    """

    def __init__(self, array: NDArray[Any], source: str = "images", size: tuple[int, int] | None = None) -> None:
        if array.ndim != 4 or not array.size:
            raise InputError(f"{source}: expected shape [images, height, width, channels], found {list(array.shape)}")
        is_uint8 = array.dtype == np.uint8
        if not is_uint8 and array.dtype.kind != "f":
            raise InputError(f"{source}: expected dtype uint8 or a floating-point dtype, found {array.dtype}")
        if is_uint8 and array.shape[-1] != 3:
            raise InputError(f"{source}: expected pictures with 3 channels, found {array.shape[-1]}")
        height, width, channels = array.shape[1:]
        if size is not None and tuple(size) != (height, width):
            raise InputError(
                f"{source}: arrays are not resized: size must be {height} x {width}, got {size[0]} x {size[1]}"
            )
        self.array = array
        self.source = source
        self.shape = (height, width, channels)  # for features, `channels` is the size of a feature vector

    def __len__(self) -> int:
        return len(self.array)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._row(name) is not None

    def _row(self, name: str) -> int | None:
        if not (name.isascii() and name.isdigit()) or len(name) > 18:
            return None
        return row if (row := int(name)) < len(self.array) else None

    def batch(self, names: Sequence[str]) -> Tensor:
        """Return images [batch, height, width, channels]: pictures as uint8, features as float32."""
        rows = []
        for name in names:
            row = self._row(name)
            if row is None:
                last = len(self) - 1
                raise InputError(f"{self.source}: expected an image number from 0 to {last}, found {describe(name)}")
            rows.append(row)
        images = self.array[rows]  # a copy, even if the file is mapped into memory
        if images.dtype == np.uint8:
            return torch.from_numpy(images)
        images = images.astype(np.float32, copy=False)
        if not (finite := np.isfinite(images).all((1, 2, 3))).all():
            raise InputError(f"{self.source}: image {names[int(finite.argmin())]} contains NaN or infinity")
        return torch.from_numpy(images)


class Photos:
    """Collection of JPEG and PNG files. Each file is read on first use, resized if necessary, and kept in memory.

    Args:
        files: For each path, a function that returns the content of the file.
        source: Name of the folder or archive, for errors.
        size: Height and width. By default, all images must have the size of the first one.

    Raises:
        InputError: If there are no images, or the first one can't be read.
    """

    def __init__(self, files: dict[str, Load], source: str, size: tuple[int, int] | None = None) -> None:
        if not files:
            raise InputError(f"{source}: expected images ({', '.join(PHOTOS)}), found none")
        self.source, self.size = source, size
        self._files = files
        self._paths: dict[str, list[str]] = {}
        for path in files:
            for name in {_name_key(path), _name_key(str(PurePosixPath(path).with_suffix("")))}:
                self._paths.setdefault(name, []).append(path)
        self._images: dict[str, NDArray[np.uint8]] = {}
        image_size = size or self._read(next(iter(files))).shape[:2]
        self.shape: tuple[int, int, int] = (image_size[0], image_size[1], 3)

    def __len__(self) -> int:
        return len(self._files)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and _name_key(name) in self._paths

    def batch(self, names: Sequence[str]) -> Tensor:
        """Return images [batch, height, width, 3] as uint8."""
        return torch.from_numpy(np.stack([self._picture(name) for name in names]))

    def _picture(self, name: str) -> NDArray[np.uint8]:
        paths = self._paths.get(_name_key(name))
        if paths is None:
            raise InputError(f"{self.source}: image {describe(name)} does not exist")
        if len(paths) > 1:
            raise InputError(
                f"{self.source}: several images have the name {describe(name)}: "
                f"{', '.join(sorted(paths)[:4])}; add the ending"
            )
        if paths[0] not in self._images:
            self._images[paths[0]] = self._read(paths[0])
        image = self._images[paths[0]]
        if image.shape != self.shape:
            found, expected = (f"{shape[0]} x {shape[1]}" for shape in (image.shape, self.shape))
            raise InputError(
                f"{self.source}: {paths[0]} has {found} pixels, but the first image has {expected}; "
                "set size to resize all images"
            )
        return image

    def _read(self, path: str) -> NDArray[np.uint8]:
        with memory_for(f"{self.source}: {path}"):
            return decode_picture(self._files[path](), f"{self.source}: {path}", self.size)


def _name_key(name: str) -> str:
    return unicodedata.normalize("NFC", name)  # macOS decomposes file names


Pictures = ArrayPictures | Photos  # a collection of images that have names and equal sizes


def require_pillow(source: str) -> None:
    """Raise an InputError that begins with `source` if Pillow is missing."""
    try:
        import PIL  # noqa: F401
    except ImportError as error:
        raise InputError(f"{source}: JPEG and PNG files need Pillow: pip install 'tsallis[vision]'") from error


def decode_picture(content: bytes, source: str, size: tuple[int, int] | None = None) -> NDArray[np.uint8]:
    """Return the pixels [height, width, 3] of a JPEG or PNG file on white, resized if `size` is given.

    Raises:
        InputError: If the file is damaged or has another format, or Pillow is missing. The message begins with
            `source`.
    """
    require_pillow(source)
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with Image.open(BytesIO(content), formats=("JPEG", "PNG")) as opened:
            image = _to_rgb(ImageOps.exif_transpose(opened))
    except UnidentifiedImageError as error:
        raise InputError(f"{source} can't be read as an image: it is not a JPEG or PNG file") from error
    except (OSError, *BAD_HEADER, Image.DecompressionBombError) as error:
        raise InputError(f"{source} can't be read as an image: {error}") from error
    if size is not None and image.size != size[::-1]:
        image = image.resize(size[::-1], Image.Resampling.BICUBIC)
    return np.array(image, np.uint8)


def _to_rgb(image: Any) -> Any:
    """Return an image in 8-bit RGB on white. Pillow's conversion clips 16-bit values and ignores transparency."""
    from PIL import Image

    if image.mode.startswith("I"):  # 16-bit grey
        values = np.array(image)
        values[values == image.info.get("transparency", -1)] = 65535
        return Image.fromarray((values >> 8).astype(np.uint8)).convert("RGB")
    if "A" not in image.getbands() and "transparency" not in image.info:
        return image.convert("RGB")
    layer = image.convert("RGBA")
    result = Image.new("RGB", image.size, "white")
    result.paste(layer, mask=layer)
    return result


def _is_photo(path: PurePath) -> bool:
    # macOS saves metadata of a.jpg as ._a.jpg
    return path.suffix.lower() in PHOTOS and not path.name.startswith("._")


def _folder_loaders(folder: Path) -> dict[str, Load]:
    paths = sorted(path for path in folder.rglob("*") if _is_photo(path) and path.is_file())

    def load(path: Path) -> Load:
        return lambda: read_bytes(path, MAX_BYTES)

    return {path.relative_to(folder).as_posix(): load(path) for path in paths}


def _tar_loaders(path: Path) -> dict[str, Load]:
    """Return a loading function for each image name in an uncompressed tar archive. The archive stays open."""
    check_file(path)
    try:
        archive = tarfile.open(path, "r:")  # noqa: SIM115
        members = [m for m in archive if m.isreg() and _is_photo(PurePosixPath(m.name))]
    except (tarfile.TarError, ValueError, OverflowError, RecursionError, EOFError) as error:
        raise InputError(f"{path}: not a tar archive, or a damaged one: {error}") from error

    def load(member: tarfile.TarInfo) -> Load:
        def content() -> bytes:
            if member.size > MAX_BYTES:
                raise InputError(f"{path}: {member.name}: expected at most {MAX_BYTES} bytes, found {member.size}")
            return cast("IO[bytes]", archive.extractfile(member)).read()

        return content

    return {str(PurePosixPath(member.name)): load(member) for member in members}


def _load_array(path: Path) -> NDArray[Any]:
    """Load an array without Python objects. An uncompressed file is mapped into memory."""
    with open_file(path) as stream, input_errors(path), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy warns about headers written by Python 2
        size = os.fstat(stream.fileno()).st_size
        try:
            if path.suffix == ".xz":
                with lzma.open(stream) as unpacked:
                    _check_header(unpacked, size)
                    loaded: NDArray[Any] = np.load(unpacked, allow_pickle=False)
            else:
                _check_header(stream, size)
                loaded = np.load(path, mmap_mode="r", allow_pickle=False)
        except (*BAD_HEADER, EOFError) as error:
            raise InputError(f"{path}: not an array file: {error}") from error
    return loaded


def _check_header(stream: Any, size: int) -> None:
    """Raise if a file of `size` bytes is too small for the array that its header describes.

    The check is needed because NumPy allocates memory for header and array before it reads them.
    """
    header = BytesIO(stream.read(LONGEST_HEADER))
    version = np.lib.format.read_magic(header)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read_header(header)
    if math.prod(shape) * dtype.itemsize > max(PLAUSIBLE, MAX_PACKED * size):
        raise ValueError(f"{size} bytes are too few for an array {list(shape)} of {dtype}")
    stream.seek(0)
