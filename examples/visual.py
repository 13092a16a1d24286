"""Train and test visual question answering with discrete, continuous or combined attention.

Questions are lines of `image<TAB>question<TAB>answer`, plain or compressed by xz or gzip. Images are the rows of an
array (`.npy` or `.npy.xz`, where the name of an image is its row number), or JPEG and PNG files in a folder or a
`.tar`, which require Pillow. A tenth of the training images and all questions about them are held out as the dev split.
A modular co-attention network encodes both inputs, and attention reduces the image to one vector. After training, the
epoch with the best dev accuracy is tested.

    python examples/visual.py --data data/easy-vqa --train-questions train_questions.tsv --train-images \\
        train_images.npy --test-questions test_questions.tsv --test-images test_images.npy \\
        --attention continuous --density 2 --out result.json

The result is printed to the standard output as JSON and written to `--out`; progress goes to the standard error.
`--looks` adds the attention of the model to some test images, for figures.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from option_types import number_or_name, positive_int, usable_device
from torch import Tensor

import tsallis
from tsallis.continuous import Density, Ellipse
from tsallis.errors import InputError
from tsallis.models.batch import Batch
from tsallis.models.vqa import VisualAnswerer
from tsallis.symbols import FIRST, IGNORE_INDEX
from tsallis.toolkit.data.batching import BatchPlan
from tsallis.toolkit.data.corpus import Corpus
from tsallis.toolkit.data.image_store import ImageStore
from tsallis.toolkit.data.images import open_pictures
from tsallis.toolkit.data.io import find_packed
from tsallis.toolkit.data.splits import hold_out
from tsallis.toolkit.data.vocabulary import Vocabulary
from tsallis.toolkit.evaluation.provenance import command_line, environment
from tsallis.toolkit.tasks.types import Vocabularies
from tsallis.toolkit.tasks.vqa import (
    ImageQuestion,
    Question,
    Visual,
    answer_names,
    question_words,
    read_questions,
)

TESTED = 128  # batch size for evaluation, in questions
OUTLINE = 2.0  # size of the ellipse drawn for an unbounded density, in standard deviations


class Data(NamedTuple):
    """The encoded splits, the images, the dev and test questions, and the vocabulary of words and answers."""

    train: Corpus
    dev: Corpus
    test: Corpus
    images: ImageStore
    texts: dict[str, list[Question]]  # original questions by split, for the accuracy by kind of answer
    vocab: Vocabulary
    answers: list[str]


class Scores(NamedTuple):
    """The scores of a model on a split."""

    accuracy: float  # over all questions; questions with unknown answers count as errors
    kinds: dict[str, dict[str, float]]  # number of questions and accuracy by kind of answer
    density: float  # mean share of grid cells with non-zero weight or mass


def load(options: argparse.Namespace) -> Data:
    """Load and encode the splits."""
    size = None if options.size is None else tuple(options.size)
    pictures = {name: open_pictures(find_path(options, f"{name}_images"), size) for name in ("train", "test")}
    texts = {name: read_questions(find_path(options, f"{name}_questions"), pictures[name]) for name in pictures}
    texts["train"], texts["dev"] = hold_out(
        texts["train"], options.share, options.split_seed, group=lambda question: question.image
    )
    if not texts["train"] or not texts["dev"]:
        raise InputError(f"{options.train_questions}: too few images to take {options.share:g} of them out")
    if options.rows is not None:
        texts["train"] = texts["train"][: options.rows]
    answers = answer_names(texts["train"], options.answers)
    vocab = Vocabulary.build((question_words(q.question) for q in texts["train"]), options.min_count)
    store, task = ImageStore(), Visual(max_length=options.cut)
    vocabularies = Vocabularies(vocab, Vocabulary(answers), store)
    of = {"train": pictures["train"], "dev": pictures["train"], "test": pictures["test"]}
    parts = [task.encode([ImageQuestion(q, of[name]) for q in texts[name]], vocabularies).corpus for name in of]
    return Data(*parts, store, texts, vocab, answers)


def find_path(options: argparse.Namespace, name: str) -> Path:
    """Return the file or folder of an option; the default of the test images is the training images."""
    file = getattr(options, name) or options.train_images
    path = options.data / file
    return path if path.is_dir() else find_packed(path) or path


def label_numbers(batch: Batch) -> Tensor:
    """Return the class index of each row, or -100 if the answer is unknown."""
    symbols = batch.tgt_out[:, 0]
    return torch.where(symbols < FIRST, IGNORE_INDEX, symbols - FIRST)


def ready(batch: Batch, store: ImageStore, options: argparse.Namespace) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return images, questions, lengths and labels on the model's device; `--blind` replaces images by zeros."""
    images = store(batch.src[:, 0])
    images = torch.zeros_like(images) if options.blind else images
    parts = (images, batch.src[:, 1:], batch.src_lengths - 1, label_numbers(batch))
    images, src, lengths, labels = (part.to(options.device) for part in parts)
    return images, src, lengths, labels


def train(model: VisualAnswerer, data: Data, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Train with AdamW, load the weights of the best epoch, and return the history of all epochs."""
    plan = BatchPlan(data.train.lengths(), options.batch_size, seed=options.seed)
    updates = options.epochs * len(plan)
    if options.updates is not None:
        updates = min(updates, options.updates)
    decay = {"weight_decay": options.weight_decay}
    optimizer = torch.optim.AdamW(model.parameters(), options.learning_rate, fused=True, **decay)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / max(options.warmup, 1), 1) * (1 - step / updates)
    )
    history: list[dict[str, Any]] = []
    best: tuple[float, dict[str, Tensor]] = (-1.0, {})
    step = 0
    for epoch in range(options.epochs):
        total, count, began = 0.0, 0, time.perf_counter()
        model.train()
        for rows in plan.epoch(epoch):
            if step == updates:
                break
            images, src, lengths, labels = ready(data.train.batch(rows), data.images, options)
            if bool((labels < 0).all()):  # all answers are unknown
                continue
            loss = model.loss(images, src, lengths, labels, label_smoothing=options.label_smoothing)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), options.clip)
            optimizer.step()
            schedule.step()
            step += 1
            total, count = total + loss.item() * len(rows), count + len(rows)
            if step % 50 == 0:
                pace = (time.perf_counter() - began) / count * 1e3
                print(f"update {step}/{updates}: loss {total / count:.4f}, {pace:.2f} ms a question", file=sys.stderr)
        if not count:
            break
        scores = test(model, data, "dev", options)
        seconds = time.perf_counter() - began
        history.append({"epoch": epoch + 1, "loss": total / count, "seconds": seconds, "dev": scores._asdict()})
        print(f"epoch {epoch + 1}: dev accuracy {scores.accuracy:.4f}, {seconds:.0f} s", file=sys.stderr)
        if scores.accuracy > best[0]:
            best = scores.accuracy, copy.deepcopy(model.state_dict())
    model.load_state_dict(best[1])
    return history


def answer_kind(answer: str) -> str:
    """Return the kind of an answer (Martins et al. 2020, table 2)."""
    if answer.lower() in ("yes", "no"):
        return "yes/no"
    return "number" if answer.isdecimal() else "other"


@torch.no_grad()
def test(model: VisualAnswerer, data: Data, split: str, options: argparse.Namespace) -> Scores:
    """Compute accuracy, accuracy by kind of answer, and attention density."""
    model.eval()
    right: dict[str, list[bool]] = {}
    num_attended = 0.0
    corpus: Corpus = getattr(data, split)
    for batch in corpus.batches(TESTED):
        images, src, lengths, labels = ready(batch, data.images, options)
        hidden, attention = model.read(images, src, lengths)
        num_attended += float((attention.masses > 0).double().mean((1, 2)).sum())
        for i, hit in zip(batch.index, (model.output(hidden).argmax(-1) == labels).tolist(), strict=True):
            right.setdefault(answer_kind(data.texts[split][i].answer), []).append(hit)
    kinds = {kind: {"questions": len(hits), "accuracy": sum(hits) / len(hits)} for kind, hits in sorted(right.items())}
    every = [hit for hits in right.values() for hit in hits]
    return Scores(sum(every) / len(every), kinds, num_attended / len(every))


@torch.no_grad()
def looks(model: VisualAnswerer, data: Data, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the attention of the model for some test questions, chosen by the seed."""
    generator = torch.Generator().manual_seed(options.seed)
    for i in torch.randperm(len(data.test), generator=generator)[: options.looks].tolist():
        images, src, lengths, _ = ready(data.test.batch([i]), data.images, options)
        hidden, attention = model.read(images, src, lengths)
        question = data.texts["test"][i]
        yield {
            **question._asdict(),
            "answered": data.answers[int(model.output(hidden).argmax())],
            "weights": attention.weights[0].tolist(),
            "masses": attention.masses[0].tolist(),
            **({} if attention.density is None else drawn(attention.density)),
        }


def drawn(density: Density) -> dict[str, Any]:
    """Return position and outline of the density of a batch of one, as (x, y) from 0 to 1; x is right, y is down."""
    support = density.support
    bounded = isinstance(support, Ellipse) and support.bounded
    outline = support if bounded else Ellipse(density.mean, OUTLINE * torch.linalg.cholesky(density.covariance))
    return {
        "mean": density.mean[0].tolist(),
        "covariance": density.covariance[0].tolist(),
        "outline": "support" if bounded else f"{OUTLINE:g} standard deviations",
        "boundary": outline.boundary()[0].tolist(),
    }


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Load the data, train and test a model, and return the result."""
    began = time.perf_counter()
    data = load(options)
    counts = {name: len(getattr(data, name)) for name in ("train", "dev", "test")}
    print(f"{counts} questions, {len(data.vocab)} symbols, {len(data.answers)} answers", file=sys.stderr)
    torch.manual_seed(options.seed)
    model = build(options, data).to(options.device)
    history = train(model, data, options)
    scores = test(model, data, "test", options)
    inputs = {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()}
    return {
        "accuracy": scores.accuracy,
        "kinds": scores.kinds,
        "attended": scores.density,
        "dev_accuracy": max(epoch["dev"]["accuracy"] for epoch in history),
        "known_answers": sum(q.answer in set(data.answers) for q in data.texts["test"]) / counts["test"],
        "questions": counts,
        "parameters": sum(p.numel() for p in model.parameters()),
        "seconds": time.perf_counter() - began,
        "epochs": history,
        "looks": list(looks(model, data, options)),
        "model": model.arguments,
        "options": inputs,
        "command": command_line(),
        "date": datetime.date.today().isoformat(),
        "origin": {"tsallis": tsallis.__version__, **environment()},
    }


def build(options: argparse.Namespace, data: Data) -> VisualAnswerer:
    """Create a model: convolutions read raw images, a linear layer reads precomputed features."""
    one = data.images(torch.zeros(1, dtype=torch.long))  # [1, height, width, channels]
    image = "features" if one.is_floating_point() else "cnn"
    return VisualAnswerer(
        len(data.vocab),
        len(data.answers),
        d_model=options.d_model,
        heads=options.heads,
        layers=options.layers,
        dropout=options.dropout,
        image=image,
        d_image=one.shape[3],
        stages=options.stages,
        attention=options.attention,
        transform=options.transform,
        num_basis=options.num_basis,
        basis=options.basis,
        matching=options.matching,
        density=options.density,
        ridge=options.ridge,
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--data", type=Path, default=Path("."), help="folder of the other files")
    add("--train-questions", required=True, help="file of image<TAB>question<TAB>answer; .xz or .gz may be omitted")
    add("--train-images", required=True, help="training images: .npy, .npy.xz, .tar or a folder")
    add("--test-questions", required=True)
    add("--test-images", help="test images (default: the training images)")
    add("--size", type=positive_int, nargs=2, metavar=("HEIGHT", "WIDTH"), help="new size of the photographs")
    add("--share", type=float, default=0.1, help="share of the training images to hold out as the dev split")
    add("--split-seed", type=int, default=0, help="random seed of the held-out split")
    add("--rows", type=positive_int, help="maximum number of training questions, for quick tests")
    add("--cut", type=positive_int, default=24, help="number of words per question to read")
    add(
        "--min-count",
        type=positive_int,
        default=1,
        help="minimum frequency of a word in train; rarer words are unknown",
    )
    add("--answers", type=positive_int, help="number of known answers, the most frequent first (default: all)")
    add("--blind", action="store_true", help="replace images by zeros, to test with questions only")
    add("--attention", choices=("discrete", "continuous", "combined"), default="discrete")
    add("--transform", type=number_or_name, default="softmax", help="function: softmax, sparsemax, entmax or an alpha")
    add("--density", type=number_or_name, help="density to use instead of the transform's; 2: sparsemax's")
    add("--num-basis", type=positive_int, default=100, help="number of basis functions, a square number")
    add("--basis", choices=("image", "image-paper"), default="image", help="image-paper: narrow, as in the paper")
    add("--matching", choices=("covariance", "scale"), default="covariance", help="the paper uses covariance")
    add("--ridge", type=float, default=0.1, help="penalty of the ridge regression")
    add("--d-model", type=positive_int, default=64)
    add("--heads", type=positive_int, default=4)
    add("--layers", type=int, default=1)
    add("--stages", type=int, default=3, help="number of convolutions; each halves height and width")
    add("--dropout", type=float, default=0.1)
    add("--epochs", type=positive_int, default=3)
    add("--updates", type=positive_int, help="maximum number of updates")
    add("--batch-size", type=positive_int, default=64)
    add("--learning-rate", type=float, default=1e-3)
    add("--warmup", type=int, default=100, help="number of warmup updates")
    add("--weight-decay", type=float, default=0.01)
    add("--label-smoothing", type=float, default=0.0)
    add("--clip", type=float, default=1.0)
    add("--seed", type=int, default=1)
    add("--device", type=usable_device, default="cpu")
    add("--looks", type=int, default=0, help="number of test questions whose attention is saved")
    add("--out", type=Path, help="output file (JSON)")
    options = parser.parse_args()
    if options.out is not None and options.out.is_dir():
        parser.error(f"--out must be a file, got the folder {options.out}")
    return options


def main() -> int:
    options = arguments()
    try:
        if options.out is not None:  # fail before training
            options.out.parent.mkdir(parents=True, exist_ok=True)
        result = json.dumps(run(options), indent=1)
        print(result)
        if options.out is not None:
            options.out.write_text(result + "\n", encoding="utf-8")
    except (InputError, OSError, ValueError) as error:
        print(f"visual: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
