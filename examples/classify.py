"""Train and test a document classifier with discrete, continuous or combined attention.

The data folder contains the splits train, test and optionally dev, as lines of `label<TAB>text`, plain or compressed by
xz or gzip. Columns between the label and the text are ignored. If there is no dev split, a tenth of the training
documents is held out. A bidirectional LSTM reads the first words of each document, and attention reduces its states to
one vector. After training, the epoch with the best dev accuracy is tested.

    python examples/classify.py --data data/imdb --attention continuous --transform sparsemax --out result.json

The result is printed to the standard output as JSON and written to `--out`; progress goes to the standard error. With
the default sizes, training on the 25,000 reviews of IMDB takes a few minutes on one CPU core.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from option_types import number_or_name, positive_int, usable_device
from torch import Tensor

import tsallis
from tsallis.errors import InputError
from tsallis.models import BiLSTMClassifier
from tsallis.models.batch import Batch
from tsallis.symbols import FIRST, IGNORE_INDEX
from tsallis.toolkit.data.batching import BatchPlan
from tsallis.toolkit.data.corpus import Corpus
from tsallis.toolkit.data.splits import hold_out
from tsallis.toolkit.data.vocabulary import Vocabulary
from tsallis.toolkit.data.word_vectors import read_word_vectors
from tsallis.toolkit.evaluation.provenance import command_line, environment
from tsallis.toolkit.tasks.classification import (
    Classification,
    LabelledText,
    find_split,
    label_names,
    read_labelled,
    words,
)
from tsallis.toolkit.tasks.types import Vocabularies
from tsallis.toolkit.training import reuse_memory

TESTED = 256  # batch size for evaluation, in documents
LOOKED = 8  # attention density is measured in every n-th test batch


class Data(NamedTuple):
    """The encoded splits of a folder, with the vocabulary and the class names."""

    train: Corpus
    dev: Corpus
    test: Corpus
    vocab: Vocabulary
    labels: list[str]


class Scores(NamedTuple):
    """The scores of a model on a split."""

    accuracy: float
    loss: float
    density: float  # mean share of words with non-zero weight, over some of the documents


def load(options: argparse.Namespace) -> Data:
    """Load and encode the splits of a folder."""
    examples = {name: read(options.data, getattr(options, name)) for name in ("train", "dev", "test")}
    train, dev, test = examples["train"], examples["dev"], examples["test"]
    if train is None or test is None:
        raise InputError(f"{options.data}: needs the splits {options.train} and {options.test}")
    if dev is None:
        train, dev = hold_out(
            train, options.share, options.split_seed, group=lambda e: e.text, stratify=lambda e: e.label
        )
        if not train or not dev:
            raise InputError(
                f"{options.data}: too few documents to take {options.share:g} of them out of {options.train}"
            )
    if options.rows is not None:  # take every n-th document: the file may be sorted by class
        train = train[:: max(1, len(train) // options.rows)][: options.rows]
    labels = label_names(train)
    vocab = Vocabulary.build((words(example.text) for example in train), options.min_count)
    task, vocabularies = Classification(options.cut), Vocabularies(vocab, Vocabulary(labels))
    parts = (task.encode(part, vocabularies).corpus for part in (train, dev, test))
    return Data(*parts, vocab, labels)


def read(folder: Path, name: str) -> list[LabelledText] | None:
    path = find_split(folder, name)
    return None if path is None else read_labelled(path)


@torch.no_grad()
def set_embeddings(model: BiLSTMClassifier, data: Data, options: argparse.Namespace) -> None:
    """Copy the vectors of the file into the embeddings of their words."""
    if options.word_vectors is None:
        return
    symbols = {data.vocab.name(number): number for number in range(FIRST, len(data.vocab))}
    vectors = read_word_vectors(options.word_vectors, symbols, options.words)
    model.embedding.weight[list(vectors.numbers)] = vectors.matrix
    model.embedding.weight.requires_grad_(not options.freeze)
    print(f"vectors of {len(vectors.numbers)} of {len(symbols)} words", file=sys.stderr)


def label_numbers(batch: Batch) -> Tensor:
    """Return the class index of each row, or -100 if training has no such class."""
    symbols = batch.tgt_out[:, 0]
    return torch.where(symbols < FIRST, IGNORE_INDEX, symbols - FIRST)


def train(model: BiLSTMClassifier, data: Data, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Train with Adam, load the weights of the best epoch, and return the history of all epochs."""
    plan = BatchPlan(data.train.lengths(), options.batch_size, seed=options.seed)
    updates = options.epochs * len(plan)
    if options.updates is not None:
        updates = min(updates, options.updates)
    device = torch.device(options.device)
    decay = {"weight_decay": options.weight_decay}
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(parameters, options.learning_rate, fused=True, **decay)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / updates)
    history: list[dict[str, Any]] = []
    best: tuple[float, dict[str, Tensor]] = (-1.0, {})
    step = 0
    for epoch in range(options.epochs):
        total, count, began = 0.0, 0, time.perf_counter()
        model.train()
        for rows in plan.epoch(epoch):
            if step == updates:
                break
            batch = data.train.batch(rows)
            with torch.autocast(device.type, torch.bfloat16, enabled=options.precision == "bfloat16"):
                loss = model.loss(batch.src.to(device), batch.src_lengths.to(device), label_numbers(batch).to(device))
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, options.clip)
            optimizer.step()
            schedule.step()
            step += 1
            total, count = total + loss.item() * len(rows), count + len(rows)
            if step % 50 == 0:
                pace = (time.perf_counter() - began) / count * 1e3
                print(f"update {step}/{updates}: loss {total / count:.4f}, {pace:.2f} ms a document", file=sys.stderr)
        if not count:
            break
        result = test(model, data.dev.batches(TESTED), device)
        seconds = time.perf_counter() - began
        history.append({"epoch": epoch + 1, "loss": total / count, "seconds": seconds, "dev": result._asdict()})
        print(f"epoch {epoch + 1}: dev accuracy {result.accuracy:.4f}, {seconds:.0f} s", file=sys.stderr)
        if result.accuracy > best[0]:
            best = result.accuracy, copy.deepcopy(model.state_dict())
    model.load_state_dict(best[1])
    return history


@torch.no_grad()
def test(model: BiLSTMClassifier, batches: Iterable[Batch], device: torch.device) -> Scores:
    """Compute accuracy, loss and attention density."""
    model.eval()
    right = loss = num_attended = attention = count = 0.0
    for number, batch in enumerate(batches):
        src, lengths, labels = batch.src.to(device), batch.src_lengths.to(device), label_numbers(batch).to(device)
        scores = model(src, lengths)
        right += float((scores.argmax(-1) == labels).sum())
        loss += float(model.output.loss_of_scores(scores, labels, reduction="sum"))
        count += len(labels)
        if number % LOOKED == 0:
            num_attended += float(((model.attention(src, lengths).masses > 0).sum(-1) / lengths).sum())
            attention += len(labels)
    return Scores(right / count, loss / count, num_attended / attention)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Load the data, train and test a model, and return the result."""
    began = time.perf_counter()
    reuse_memory()
    data = load(options)
    print(f"{len(data.train)} documents, {len(data.vocab)} symbols, {len(data.labels)} classes", file=sys.stderr)
    torch.manual_seed(options.seed)
    model = BiLSTMClassifier(
        len(data.vocab),
        len(data.labels),
        d_model=options.d_model,
        layers=options.layers,
        dropout=options.dropout,
        attention=options.attention,
        transform=options.transform,
        num_basis=options.num_basis,
        matching=options.matching,
        density=options.density,
        d_embedding=options.d_embedding,
    )
    set_embeddings(model, data, options)
    model.to(options.device)
    history = train(model, data, options)
    result = test(model, data.test.batches(TESTED), torch.device(options.device))
    outside = {name for name, _ in model.embedding.named_parameters(prefix="embedding")}
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    inputs = {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()}
    return {
        "accuracy": result.accuracy,
        "loss": result.loss,
        "attended": result.density,
        "dev_accuracy": max(epoch["dev"]["accuracy"] for epoch in history),
        "documents": {name: len(getattr(data, name)) for name in ("train", "dev", "test")},
        "parameters": sum(sizes.values()),
        "parameters_without_embeddings": sum(n for name, n in sizes.items() if name not in outside),
        "seconds": time.perf_counter() - began,
        "epochs": history,
        "model": model.arguments,
        "options": inputs,
        "command": command_line(),
        "date": datetime.date.today().isoformat(),
        "origin": {"tsallis": tsallis.__version__, **environment()},
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--data", type=Path, required=True, help="folder with the splits")
    for name in ("train", "dev", "test"):
        add(f"--{name}", default=name, help=f"file of the {name} split, without .tsv, .xz or .gz")
    add("--share", type=float, default=0.1, help="share of train to hold out if there is no dev split")
    add("--split-seed", type=int, default=0, help="random seed of the held-out split")
    add("--rows", type=positive_int, help="maximum number of training documents, for quick tests")
    add("--cut", type=positive_int, default=256, help="number of words per document to read")
    add(
        "--min-count",
        type=positive_int,
        default=5,
        help="minimum frequency of a word in train; rarer words are unknown",
    )
    add("--attention", choices=("discrete", "continuous", "combined"), default="discrete")
    add("--transform", type=number_or_name, default="softmax", help="function: softmax, sparsemax, entmax or an alpha")
    add("--num-basis", type=positive_int, default=64, help="number of basis functions")
    add("--matching", choices=("scale", "covariance"), default="scale", help="the paper uses scale")
    add("--density", type=number_or_name, help="density to use instead of the transform's: laplace, triangular")
    add("--d-model", type=positive_int, default=128)
    add("--d-embedding", type=positive_int, help="size of the embeddings (default: d-model)")
    add("--word-vectors", type=Path, help="text or .safetensors file of word vectors of size d-embedding")
    add("--words", type=Path, help="file with the word of each row of a .safetensors matrix")
    add("--freeze", action="store_true", help="do not train the embeddings")
    add("--layers", type=int, default=1)
    add("--dropout", type=float, default=0.3)
    add("--epochs", type=positive_int, default=3)
    add("--updates", type=positive_int, help="maximum number of updates")
    add("--batch-size", type=positive_int, default=64)
    add("--learning-rate", type=float, default=2e-3)
    add("--weight-decay", type=float, default=0.0)
    add("--clip", type=float, default=1.0)
    add("--precision", choices=("float32", "bfloat16"), default="float32", help="precision of products in training")
    add("--seed", type=int, default=1)
    add("--device", type=usable_device, default="cpu")
    add("--out", type=Path, help="output file (JSON)")
    options = parser.parse_args()
    if options.words is not None and options.word_vectors is None:
        parser.error(f"--words requires --word-vectors, got only --words {options.words}")
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
        print(f"classify: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
