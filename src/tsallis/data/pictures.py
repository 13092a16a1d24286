"""Images by their names: rows of one array, or photographs in a folder or an archive."""

from __future__ import annotations

import io
import lzma
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tsallis.data.reading import read_bytes
from tsallis.errors import InputError

ARRAYS = (".npy", ".npy.xz")
PHOTOS = (".jpg", ".jpeg", ".png")
Load = Callable[[], bytes]


class BadPicture(InputError):
    """A file that is no image, or a damaged one."""


class Pictures(Protocol):
    """Images of one size, by their names."""

    shape: tuple[int, int, int]  # height, width and channels, or size of the features

    def __len__(self) -> int: ...

    def __contains__(self, name: object) -> bool: ...

    def batch(self, names: Sequence[str]) -> Tensor:
        """[batch, height, width, channels]: pictures as uint8, features as float32.

        Raises:
            InputError: a name that is unknown, or an image that can't be read.
        """
        ...


def open_pictures(path: Path | str, size: tuple[int, int] | None = None) -> Pictures:
    """Images from an array file, a folder or a tar archive.

    Args:
        path: `.npy` or `.npy.xz` of numbers [images, height, width, 3] as uint8, or of features [images, height, width,
            size] in floating point: an image's name is its row's number. Or a folder, or a `.tar`, of JPEG and PNG
            files: an image's name is its path in there, with or without the ending.
        size: height and width that photographs are brought to; by default they must have one size.

    Raises:
        InputError: what is missing, empty or damaged, an array of another shape or dtype or of objects, an array with
            another `size`, photographs without Pillow.
    """
    path = Path(path)
    if size is not None and (len(size) != 2 or min(size) < 1):
        raise ValueError(f"size must be a height and a width of at least 1, got {size}")
    if path.is_dir():
        return Photos(_in_folder(path), str(path), size)
    if path.name.endswith(".tar"):
        return Photos(_in_tar(path), str(path), size)
    if path.name.endswith(ARRAYS):
        return ArrayPictures(_array(path), str(path), size)
    if not path.exists():
        raise InputError(f"{path}: no such file or folder")
    raise InputError(f"{path}: expected {', '.join(ARRAYS)}, .tar or a folder of images")


class ArrayPictures:
    """Images that are the rows of an array, named "0", "1" and so on.

    Args:
        array: [images, height, width, channels], uint8 or floating point.
        place: where it is from, for errors.
        size: height and width that it should have.

    Raises:
        InputError: another shape or dtype.

    >>> pictures = ArrayPictures(np.zeros((3, 4, 5, 3), np.uint8))
    >>> pictures.batch(["2", "0"]).shape, "3" in pictures
    (torch.Size([2, 4, 5, 3]), False)
    """

    def __init__(self, array: NDArray[Any], place: str = "images", size: tuple[int, int] | None = None) -> None:
        if array.ndim != 4 or not array.size:
            raise InputError(f"{place}: expected an array [images, height, width, channels], found {list(array.shape)}")
        pictures = array.dtype == np.uint8
        if not pictures and array.dtype.kind != "f":
            raise InputError(f"{place}: expected pictures of uint8, or features in floating point, found {array.dtype}")
        if pictures and array.shape[-1] != 3:
            raise InputError(f"{place}: expected pictures with 3 channels, found {array.shape[-1]}")
        height, width, channels = array.shape[1:]
        if size is not None and tuple(size) != (height, width):
            raise InputError(f"{place}: images of {height} x {width} stay so, {size[0]} x {size[1]} was asked for")
        self.array, self.place, self.shape = array, place, (height, width, channels)

    def __len__(self) -> int:
        return len(self.array)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._row(name) is not None

    def _row(self, name: str) -> int | None:
        if not (name.isascii() and name.isdigit()) or len(name) > 18:
            return None
        return row if (row := int(name)) < len(self.array) else None

    def batch(self, names: Sequence[str]) -> Tensor:
        """[batch, height, width, channels], as uint8 or float32."""
        rows = []
        for name in names:
            row = self._row(name)
            if row is None:
                raise InputError(f"{self.place}: images are numbered from 0 to {len(self) - 1}, there is no {name!r}")
            rows.append(row)
        found = self.array[rows]  # a copy, also of what is mapped
        return torch.from_numpy(found if found.dtype == np.uint8 else found.astype(np.float32, copy=False))


class Photos:
    """JPEG and PNG files, read when they are first asked for, and kept at the size they are brought to.

    Args:
        files: what each path gives when it is read.
        place: where they are from, for errors.
        size: height and width; by default the first one's, which all must have.

    Raises:
        InputError: no images, or a first one that can't be read.
    """

    def __init__(self, files: dict[str, Load], place: str, size: tuple[int, int] | None = None) -> None:
        if not files:
            raise InputError(f"{place}: no images in it, expected {', '.join(PHOTOS)}")
        self.place, self.size = place, size
        self._files = files
        self._paths: dict[str, list[str]] = {}
        for path in files:
            for name in {path, str(PurePosixPath(path).with_suffix(""))}:
                self._paths.setdefault(name, []).append(path)
        self._kept: dict[str, NDArray[np.uint8]] = {}
        first = size or self._read(next(iter(files))).shape[:2]
        self.shape: tuple[int, int, int] = (first[0], first[1], 3)

    def __len__(self) -> int:
        return len(self._files)

    def __contains__(self, name: object) -> bool:
        return name in self._paths

    def batch(self, names: Sequence[str]) -> Tensor:
        """[batch, height, width, 3] as uint8."""
        return torch.from_numpy(np.stack([self._picture(name) for name in names]))

    def _picture(self, name: str) -> NDArray[np.uint8]:
        paths = self._paths.get(name)
        if paths is None:
            raise InputError(f"{self.place}: there is no image {name!r}")
        if len(paths) > 1:
            raise InputError(f"{self.place}: image {name!r} may be any of {', '.join(sorted(paths))}")
        if paths[0] not in self._kept:
            self._kept[paths[0]] = self._read(paths[0])
        found = self._kept[paths[0]]
        if found.shape != self.shape:
            wanted = f"{self.shape[0]} x {self.shape[1]}"
            raise InputError(
                f"{self.place}: {paths[0]} has {found.shape[0]} x {found.shape[1]} pixels and not {wanted} as the "
                f"first one; give a size"
            )
        return found

    def _read(self, path: str) -> NDArray[np.uint8]:
        return decode_picture(self._files[path](), f"{self.place}: {path}", self.size)


def decode_picture(content: bytes, place: str, size: tuple[int, int] | None = None) -> NDArray[np.uint8]:
    """The pixels [height, width, 3] of a JPEG or PNG file, brought to a size if one is given.

    Raises:
        BadPicture: not such a file, or a damaged one; `place` is what it is called.
        InputError: without Pillow.
    """
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise InputError(f"{place}: JPEG and PNG files need Pillow: pip install 'tsallis[vision]'") from error
    try:
        with Image.open(io.BytesIO(content), formats=("JPEG", "PNG")) as opened:
            image = ImageOps.exif_transpose(opened).convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise BadPicture(f"{place} can't be read as an image: {error}") from error
    if size is not None and image.size != size[::-1]:
        image = image.resize(size[::-1], Image.Resampling.BICUBIC)
    return np.array(image, np.uint8)


def _in_folder(folder: Path) -> dict[str, Load]:
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in PHOTOS and path.is_file())

    def load(path: Path) -> Load:
        return lambda: read_bytes(path)

    return {path.relative_to(folder).as_posix(): load(path) for path in found}


def _in_tar(path: Path) -> dict[str, Load]:
    """Where files lie in an archive that is not packed; nothing is unpacked."""

    def load(offset: int, size: int) -> Load:
        def read() -> bytes:
            try:
                with path.open("rb") as stream:
                    stream.seek(offset)
                    return stream.read(size)
            except OSError as error:
                raise InputError(f"{path}: can't be read: {error.strerror or error}") from error

        return read

    try:
        with tarfile.open(path, "r:") as archive:
            members = [m for m in archive if m.isreg() and not m.issparse() and m.name.lower().endswith(PHOTOS)]
    except tarfile.TarError as error:
        raise InputError(f"{path}: not a tar archive, or a damaged one: {error}") from error
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror or error}") from error
    return {str(PurePosixPath(m.name)): load(m.offset_data, m.size) for m in members}


def _array(path: Path) -> NDArray[Any]:
    """Mapped into memory where it is not packed; never objects."""
    try:
        if path.suffix != ".xz":
            return np.lib.format.open_memmap(path, mode="r")  # refuses objects
        with lzma.open(path, "rb") as stream:
            found: NDArray[Any] = np.lib.format.read_array(stream, allow_pickle=False)
            return found
    except (lzma.LZMAError, EOFError) as error:
        raise InputError(f"{path}: can't be unpacked as .xz: {error}") from error
    except ValueError as error:
        raise InputError(f"{path}: not an array file: {error}") from error
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror or error}") from error
