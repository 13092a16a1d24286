"""Images by number, so that a question about one is a row of numbers: the image's, and then those of the words."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from tsallis.data.images import Pictures, open_pictures
from tsallis.data.visual import Question
from tsallis.errors import InputError, describe


class ImageQuestion(NamedTuple):
    """A question and where its image is."""

    question: Question
    pictures: Pictures


class ImageStore:
    """Images of one size from any number of places, a number each.

    Example:
        >>> import numpy as np
        >>> from tsallis.data.images import ArrayPictures
        >>> pictures = ArrayPictures(np.zeros((3, 4, 5, 3), np.uint8))
        >>> image_store = ImageStore()
        >>> image_store.add([ImageQuestion(Question(name, "what is it?"), pictures) for name in ("2", "0", "2")])
        [0, 1, 0]
        >>> image_store(torch.tensor([1, 0, 0, 1])).shape
        torch.Size([4, 4, 5, 3])
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, str], int] = {}
        self._places: list[tuple[Pictures, str]] = []
        self._opened: dict[tuple[str, tuple[int, int] | None], Pictures] = {}

    def __len__(self) -> int:
        return len(self._places)

    def open(self, path: Path | str, size: tuple[int, int] | None = None) -> Pictures:
        """Open pictures with :func:`~tsallis.data.images.open_pictures`, once for each path and size."""
        key = (str(path), size)
        if key not in self._opened:
            self._opened[key] = open_pictures(path, size)
        return self._opened[key]

    def add(self, questions: Iterable[ImageQuestion]) -> list[int]:
        """Return the number of each question's image; one that has none yet gets the next.

        Raises:
            InputError: an image of another size than those in the store.
        """
        return [self._number(pictures, question.image) for question, pictures in questions]

    def _number(self, pictures: Pictures, name: str) -> int:
        key = (id(pictures), name)  # which are kept, so that no other ones have their id
        if key not in self._numbers:
            shape = self._places[0][0].shape if self._places else pictures.shape
            if pictures.shape != shape:
                raise InputError(f"image {describe(name)} is {_size(pictures.shape)}, the others are {_size(shape)}")
            self._numbers[key] = len(self._places)
            self._places.append((pictures, name))
        return self._numbers[key]

    def __call__(self, numbers: Tensor) -> Tensor:
        """Images [batch, height, width, channels] of numbers [batch].

        Raises:
            InputError: an image that can't be read.
        """
        rows: dict[int, tuple[Pictures, list[int], list[str]]] = {}
        for row, number in enumerate(numbers.tolist()):
            pictures, name = self._places[number]
            _, places, names = rows.setdefault(id(pictures), (pictures, [], []))
            places.append(row)
            names.append(name)
        parts = [(places, pictures.batch(names)) for pictures, places, names in rows.values()]
        if len(parts) == 1:
            return parts[0][1]
        order = torch.tensor([row for places, _ in parts for row in places])
        return torch.cat([images for _, images in parts])[order.argsort()]


def _size(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
