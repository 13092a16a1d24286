"""Store of images by number, so that a row of symbols can start with the number of an image."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor

from tsallis.errors import InputError, describe
from tsallis.toolkit.data.images import Pictures, open_pictures


class ImageStore:
    """Store of images from any number of files. All images have the same size, and each image has a number.

    Args:
        check: Function that raises a ValueError or TypeError if a model can't read images.

    Example:
        >>> import numpy as np
        >>> from tsallis.toolkit.data.images import ArrayPictures
        >>> pictures = ArrayPictures(np.zeros((3, 4, 5, 3), np.uint8))
        >>> store = ImageStore()
        >>> store.add((pictures, name) for name in ("2", "0", "2"))
        [0, 1, 0]
        >>> store(torch.tensor([1, 0, 0, 1])).shape
        torch.Size([4, 4, 5, 3])
    """

    def __init__(self, check: Callable[[Tensor], object] | None = None) -> None:
        self._check = check
        self._numbers: dict[tuple[int, str], int] = {}
        self._images: list[tuple[Pictures, str]] = []
        self._opened: dict[tuple[str, tuple[int, int] | None], Pictures] = {}

    def __len__(self) -> int:
        return len(self._images)

    def open(self, path: Path | str, size: tuple[int, int] | None = None) -> Pictures:
        """Open pictures with :func:`~tsallis.toolkit.data.images.open_pictures`, once for each path and size."""
        key = (str(path), size)
        if key not in self._opened:
            self._opened[key] = open_pictures(path, size)
        return self._opened[key]

    def add(self, images: Iterable[tuple[Pictures, str]]) -> list[int]:
        """Add images and return their numbers. A new image gets the next number; a stored image keeps its number.

        Raises:
            InputError: If an image differs in size from the images in the store, or the model can't read it.
        """
        return [self._add_image(pictures, name) for pictures, name in images]

    def _add_image(self, pictures: Pictures, name: str) -> int:
        key = (id(pictures), name)  # the store keeps pictures alive, so their ids stay unique
        if key not in self._numbers:
            if self._check is not None and not self._images:
                image = pictures.batch([name])
                try:
                    self._check(image)
                except (TypeError, ValueError) as error:
                    raise InputError(f"{pictures.source}: {error}") from error
            shape = self._images[0][0].shape if self._images else pictures.shape
            if pictures.shape != shape:
                raise InputError(
                    f"image {describe(name)} must have the size of the other images, {_format_size(shape)}, "
                    f"got {_format_size(pictures.shape)}"
                )
            self._numbers[key] = len(self._images)
            self._images.append((pictures, name))
        return self._numbers[key]

    def digest(self) -> str:
        """Return a hash of the images in the order of their numbers.

        Raises:
            InputError: If an image can't be read.
        """
        digest = hashlib.sha256()
        for number in range(len(self)):  # one at a time, because an array file may not fit into memory
            image = self(torch.tensor([number])).numpy()
            digest.update(f"{image.shape} {image.dtype}".encode() + image.tobytes())
        return digest.hexdigest()

    def __call__(self, numbers: Tensor) -> Tensor:
        """Return the images [batch, height, width, channels] with the given numbers [batch].

        Raises:
            InputError: If an image can't be read.
        """
        images = (self._images[number] for number in numbers.tolist())
        return torch.cat([pictures.batch([name]) for pictures, name in images])


def _format_size(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
