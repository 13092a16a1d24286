"""Answers to questions about images under discrete, continuous or combined attention: one model, one accuracy.

Questions are lines of `image<TAB>question<TAB>answer`, plain or packed by xz or gzip; images the rows of an array
(`.npy`, `.npy.xz`: an image's name is its number), or JPEG and PNG files in a folder or a `.tar`, which need Pillow.
A tenth of the training images and all questions about them are taken out as the dev split. Modular co-attention reads
both, attention makes one vector of the image, and after some epochs the best one, by the dev split, is tested.

    python examples/visual.py --data data/easy-vqa --train-questions train_questions.tsv --train-images \\
        train_images.npy --test-questions test_questions.tsv --test-images test_images.npy \\
        --attention continuous --density 2 --out result.json

Writes what came out as JSON, also to the standard output; progress goes to the standard error. `--looks` adds what the
model looks at in some images, for figures.
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

TESTED = 128  # questions of a batch without gradients
OUTLINE = 2.0  # standard deviations of the ellipse that is drawn for a density without an end


class Data(NamedTuple):
    """Everything in numbers, and the questions themselves."""

    train: Corpus
    dev: Corpus
    test: Corpus
    images: ImageStore
    texts: dict[str, list[Question]]  # of dev and test, to count by the kind of answer
    vocab: Vocabulary
    answers: list[str]


class Scores(NamedTuple):
    """A model on a split."""

    accuracy: float  # of all questions: an answer that training never saw can't be right
    kinds: dict[str, dict[str, float]]  # by kind of answer: how many questions, and accuracy
    density: float  # share of the grid's cells with a weight or a mass above zero, mean over the questions


def load(options: argparse.Namespace) -> Data:
    """The splits."""
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
    """The file or folder an option names, packed or not; the test's images are by default those of train."""
    file = getattr(options, name) or options.train_images
    path = options.data / file
    return path if path.is_dir() else find_packed(path) or path


def label_numbers(batch: Batch) -> Tensor:
    """The class of each row, as models number them; -100 where it is not a known one."""
    symbols = batch.tgt_out[:, 0]
    return torch.where(symbols < FIRST, IGNORE_INDEX, symbols - FIRST)


def ready(batch: Batch, store: ImageStore, options: argparse.Namespace) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What a model takes, where it is; images are all the same where the model shall not see them."""
    images = store(batch.src[:, 0])
    images = torch.zeros_like(images) if options.blind else images
    parts = (images, batch.src[:, 1:], batch.src_lengths - 1, label_numbers(batch))
    images, src, lengths, labels = (part.to(options.device) for part in parts)
    return images, src, lengths, labels


def train(model: VisualAnswerer, data: Data, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Some epochs of Adam; the model of the best one, and what each of them gave."""
    plan = BatchPlan(data.train.lengths(), options.batch_size, seed=options.seed)
    updates = min(options.epochs * len(plan), options.updates or sys.maxsize)
    decay = {"weight_decay": options.weight_decay}
    optimizer = torch.optim.AdamW(model.parameters(), options.learning_rate, fused=True, **decay)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / options.warmup, 1) * (1 - step / updates)
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
            if bool((labels < 0).all()):  # rare answers alone
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
    """The type of an answer (Martins et al. 2020, table 2)."""
    if answer.lower() in ("yes", "no"):
        return "yes/no"
    return "number" if answer.isdecimal() else "other"


@torch.no_grad()
def test(model: VisualAnswerer, data: Data, split: str, options: argparse.Namespace) -> Scores:
    """Accuracy, also by kind of answer, and sparsity."""
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
    """What the model looks at for some questions of the test, chosen by the seed."""
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
    """Of the only density of a batch: where it is; (x, y) from 0 to 1, x to the right and y down."""
    support = density.support
    bounded = isinstance(support, Ellipse)
    outline = support if bounded else Ellipse(density.mean, OUTLINE * torch.linalg.cholesky(density.covariance))
    return {
        "mean": density.mean[0].tolist(),
        "covariance": density.covariance[0].tolist(),
        "outline": "support" if bounded else f"{OUTLINE:g} standard deviations",
        "boundary": outline.boundary()[0].tolist(),
    }


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Everything from the files to the result."""
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
    """A model for the images as they are: pictures through convolutions, features through a linear layer."""
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


def number_or_name(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--data", type=Path, default=Path("."), help="folder the other names are in")
    add("--train-questions", required=True, help="file of image<TAB>question<TAB>answer; .xz or .gz may be left out")
    add("--train-images", required=True, help=".npy, .npy.xz, .tar or a folder")
    add("--test-questions", required=True)
    add("--test-images", help="default: the training images")
    add("--size", type=int, nargs=2, metavar=("HEIGHT", "WIDTH"), help="that photographs are brought to")
    add("--share", type=float, default=0.1, help="of the training images that is taken out as the dev split")
    add("--split-seed", type=int, default=0, help="decides which")
    add("--rows", type=int, help="of train, at most: for a quick try")
    add("--cut", type=int, default=24, help="words of a question that are read")
    add("--min-count", type=int, default=1, help="of a word in train; rarer ones are unknown")
    add("--answers", type=int, help="the most frequent ones are known; default: all of train")
    add("--blind", action="store_true", help="all images black: what questions alone tell")
    add("--attention", choices=("discrete", "continuous", "combined"), default="discrete")
    add("--transform", type=number_or_name, default="softmax", help="softmax, sparsemax, entmax or an alpha")
    add("--density", type=number_or_name, help="in place of the one that goes with the transform; 2: sparsemax's")
    add("--num-basis", type=int, default=100, help="basis functions, a square number")
    add("--basis", choices=("image", "image-paper"), default="image", help="image-paper: as narrow as in the paper")
    add("--matching", choices=("covariance", "scale"), default="covariance", help="covariance: as in the paper")
    add("--ridge", type=float, default=0.1, help="penalty of the ridge regression")
    add("--d-model", type=int, default=64)
    add("--heads", type=int, default=4)
    add("--layers", type=int, default=1)
    add("--stages", type=int, default=3, help="convolutions, each of which halves height and width")
    add("--dropout", type=float, default=0.1)
    add("--epochs", type=int, default=3)
    add("--updates", type=int, help="at most")
    add("--batch-size", type=int, default=64)
    add("--learning-rate", type=float, default=1e-3)
    add("--warmup", type=int, default=100, help="updates")
    add("--weight-decay", type=float, default=0.01)
    add("--label-smoothing", type=float, default=0.0)
    add("--clip", type=float, default=1.0)
    add("--seed", type=int, default=1)
    add("--device", default="cpu")
    add("--looks", type=int, default=0, help="questions of the test whose attention is kept in the result")
    add("--out", type=Path, help="file for the result")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    try:
        result = json.dumps(run(options), indent=1)
    except (InputError, ValueError) as error:
        print(f"visual: {error}", file=sys.stderr)
        return 2
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(result + "\n", encoding="utf-8")
    print(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
