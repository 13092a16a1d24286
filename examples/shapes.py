"""Drawings of several shapes and questions about them that only the right place answers: made by rules, from a seed.

An image of 32 x 32 pixels holds three to six circles, squares, triangles and crosses in six colours, in the cells of a
4 x 4 grid. The questions of an image are of up to five kinds: the colour of the only shape of its kind, the shape of
the only thing of its colour, the colour of what is alone in a corner, how many shapes of a kind there are, and whether
one thing is left of, right of, above or below another. Colours, shapes, corners and sides are drawn uniformly, so that
the question alone tells little.

    python examples/shapes.py --out data/shapes --train 5000 --test 1000

Writes train.tsv and test.tsv, lines of `image<TAB>question<TAB>answer`, and train.npy and test.npy, an image at a time:
for examples/visual.py, and for `tsallis train` with `images: {train: train.npy, test: test.npy}`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tsallis.toolkit.datasets.split_mix import Random

SIDE, CELL, RADIUS, JITTER = 32, 8, 3.0, 1
COLOURS = {
    "red": (230, 40, 40),
    "green": (40, 190, 60),
    "blue": (50, 80, 240),
    "yellow": (240, 220, 40),
    "purple": (170, 60, 210),
    "white": (245, 245, 245),
}
SHAPES = ("circle", "square", "triangle", "cross")
CORNERS = {"top left": (0, 0), "top right": (0, 1), "bottom left": (1, 0), "bottom right": (1, 1)}
SIDES = {"left of": (0, -1), "right of": (0, 1), "above": (-1, 0), "below": (1, 0)}
FEWEST, MOST = 3, 6  # shapes of an image
BACKGROUND = 70  # the lightest grey behind them


class Thing(NamedTuple):
    """A coloured shape in a cell of the grid."""

    shape: str
    colour: str
    row: int
    column: int

    @property
    def name(self) -> str:
        """Its name in a question."""
        return f"{self.colour} {self.shape}"


def draw_things(random: Random) -> list[Thing]:
    """Choose the shapes of an image."""
    cells = [divmod(cell, SIDE // CELL) for cell in range((SIDE // CELL) ** 2)]
    random.shuffle(cells)
    count = random.between(FEWEST, MOST)
    return [Thing(random.choice(SHAPES), random.choice([*COLOURS]), *cell) for cell in cells[:count]]


def render(things: list[Thing], random: Random) -> NDArray[Any]:
    """Return an image [32, 32, 3] as uint8."""
    image = np.full((SIDE, SIDE, 3), random.between(0, BACKGROUND), np.uint8)
    y, x = np.mgrid[:SIDE, :SIDE] + 0.5
    for thing in things:
        down = y - (thing.row + 0.5) * CELL - random.between(-JITTER, JITTER)
        right = x - (thing.column + 0.5) * CELL - random.between(-JITTER, JITTER)
        image[mask(thing.shape, down, right)] = COLOURS[thing.colour]
    return image


def mask(shape: str, down: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:
    """Tell for each pixel, by its distances from a shape's centre, whether it is inside."""
    if shape == "circle":
        inside: NDArray[Any] = down**2 + right**2 <= RADIUS**2
        return inside
    near = np.maximum(abs(down), abs(right)) <= RADIUS
    if shape == "square":
        return near
    if shape == "triangle":
        return near & (abs(right) <= (down + RADIUS) / 2)
    return near & (np.minimum(abs(down), abs(right)) <= 1)


def questions(things: list[Thing], random: Random) -> Iterator[tuple[str, str]]:
    """Yield a question of each kind that the image answers, with its answer."""
    if single := [t for t in things if sum(other.shape == t.shape for other in things) == 1]:
        thing = random.choice(single)
        yield f"what colour is the {thing.shape}", thing.colour
    if single := [t for t in things if sum(other.colour == t.colour for other in things) == 1]:
        thing = random.choice(single)
        yield f"what shape is {thing.colour}", thing.shape
    corners = {name: [t for t in things if corner(t) == place] for name, place in CORNERS.items()}
    if alone := [name for name, inside in corners.items() if len(inside) == 1]:
        name = random.choice(alone)
        yield f"what colour is at the {name}", corners[name][0].colour
    shape = random.choice(SHAPES)
    yield f"how many shapes are a {shape}", str(sum(t.shape == shape for t in things))
    unique = [t for t in things if sum(other.name == t.name for other in things) == 1]
    if pairs := [*permutations(unique, 2)]:
        yield compare(*random.choice(pairs), random)


def corner(thing: Thing) -> tuple[int, int]:
    """Return the quarter of the image that a shape lies in."""
    half = SIDE // CELL // 2
    return thing.row // half, thing.column // half


def compare(one: Thing, other: Thing, random: Random) -> tuple[str, str]:
    """Return a question about the sides of two things on which they differ, and its answer."""
    down, right = one.row - other.row, one.column - other.column
    names = [name for name, (rows, columns) in SIDES.items() if (rows and down) or (columns and right)]
    name = random.choice(names)
    rows, columns = SIDES[name]
    return f"is the {one.name} {name} the {other.name}", "yes" if down * rows + right * columns > 0 else "no"


def write_split(folder: Path, name: str, count: int, random: Random) -> int:
    """Write the images and the questions of a split; return how many questions there are."""
    array = np.lib.format.open_memmap(folder / f"{name}.npy", "w+", np.uint8, (count, SIDE, SIDE, 3))
    total = 0
    with (folder / f"{name}.tsv").open("w", encoding="utf-8", newline="\n") as file:
        for number in range(count):
            things = draw_things(random)
            array[number] = render(things, random)
            for question, answer in questions(things, random):
                file.write(f"{number}\t{question}\t{answer}\n")
                total += 1
    array.flush()
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for images and questions")
    parser.add_argument("--train", type=int, default=5000, help="images of train, of which a part is held out for dev")
    parser.add_argument("--test", type=int, default=1000, help="images of test")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for i, name in enumerate(("train", "test")):  # a seed each: more images of one change none of the other
        total = write_split(options.out, name, getattr(options, name), Random(2 * options.seed + i))
        print(f"{options.out / name}: {getattr(options, name)} images, {total} questions")


if __name__ == "__main__":
    main()
