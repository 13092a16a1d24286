"""Calibrate Transformers to a given number of attended positions, and compare with top-k softmax.

    python benchmarks/attended.py inflection TRAIN DEV TEST --out FILE.csv    # files of SIGMORPHON 2018, task 1
    python benchmarks/attended.py sentences TRAIN DEV TEST --out FILE.csv     # lines: label<TAB>text
    python benchmarks/attended.py sentences TRAIN DEV TEST --encoder FOLDER   # fine-tune this encoder
    python benchmarks/attended.py translation RUNS --out FILE.csv    # runs of `tsallis train`: RUNS-entmax-s1, ...

Models are calibrated on DEV and evaluated on TEST. New rows are appended; models that already have a row are skipped.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from common import Row, announce, machine, table
from torch import Tensor

import tsallis.huggingface.attention
import tsallis.nn.multihead_attention
from tsallis.functional.attention import AttentionOutput, attend
from tsallis.models import TransformerSeq2Seq, calibrate_attended
from tsallis.models.modes import eval_mode
from tsallis.search import SearchOptions
from tsallis.toolkit.config import Settings
from tsallis.toolkit.data import Vocabulary
from tsallis.toolkit.data.corpus import Corpus
from tsallis.toolkit.evaluation.teacher_forcing import row_hits
from tsallis.toolkit.inference import open_run
from tsallis.toolkit.tasks.registry import run_config
from tsallis.toolkit.tasks.scoring import evaluate_outputs
from tsallis.toolkit.tasks.strings import encode_examples, read_strings
from tsallis.toolkit.training import Trainer

ATTENTION = {"softmax": 1.0, "entmax": 1.5, "sparsemax": 2.0}
DEV = 250  # number of lines for the calibration


@contextlib.contextmanager
def top_k(count: int) -> Iterator[None]:
    """Replace attention by a variant that keeps the `count` largest weights of each query and renormalizes them."""

    def sparse(query: Tensor, key: Tensor, value: Tensor, *rest: Any, **options: Any) -> AttentionOutput:
        weights = attend(query, key, value, *rest, **{**options, "need_weights": True}).weights
        smallest = weights.topk(min(count, weights.shape[-1]), -1).values[..., -1:]
        weights = weights * (weights >= smallest)
        weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-30)
        return AttentionOutput(weights @ value, weights, weights)

    modules = tsallis.nn.multihead_attention, tsallis.huggingface.attention
    for module in modules:
        module.attend = sparse
    try:
        with tsallis.backend("eager"):  # compiled searches do not call `attend`
            yield
    finally:
        for module in modules:
            module.attend = attend


class Inflection:
    """An encoder-decoder that inflects lemmas."""

    updates = 600

    def __init__(self, train: Path, dev: Path, test: Path) -> None:
        train, dev, test = (read_strings(path) for path in (train, dev, test))
        src = Vocabulary.build(example.src_tokens() for example in train)
        tgt = Vocabulary.build(example.tgt_tokens() for example in train)
        self.sizes = {"src_vocab": len(src), "tgt_vocab": len(tgt)}
        self.train, self.dev, self.test = (encode_examples(part, src, tgt) for part in (train, dev[:DEV], test))

    def fit(self, attention: str, seed: int) -> Any:
        torch.manual_seed(seed)
        sizes = {"d_model": 64, "heads": 4, "layers": 2, "d_ff": 128, "dropout": 0.1, "norm": "pre"}
        model = TransformerSeq2Seq(**self.sizes, **sizes, attention=attention)
        options = {"epochs": 10**6, "updates": self.updates, "validate_updates": self.updates, "batch_size": 32}
        rates = {"schedule": "linear", "warmup": self.updates // 10, "learning_rate": 2e-3, "checkpoint_every": 10**6}
        settings = Settings(**options, **rates, seed=seed, validation_rows=1)
        with tempfile.TemporaryDirectory() as folder:
            Trainer(model, self.train, self.dev, Path(folder), settings).run()
        return model.eval()

    def calibrate(self, model: Any, attended: float) -> float:
        return calibrate_attended(model, list(self.dev.batches(100)), attended)

    def judge(self, model: Any) -> Row:
        """Return scores with teacher forcing; a form is correct if greedy search finds it."""
        with eval_mode(model):
            hits = list(row_hits(model, self.test.batches(100)).values())
        right = sum(found == total for found, total in hits) / len(hits)
        symbols = sum(found for found, _ in hits) / sum(total for _, total in hits)
        return {"accuracy": right, "symbol_accuracy": symbols, "reached": mean_attended(model, self.test)}


@torch.no_grad()
def mean_attended(model: Any, corpus: Corpus) -> float:
    """Return the mean number of attended positions per query, with teacher forcing."""
    sums = torch.zeros(3, dtype=torch.float64)
    with eval_mode(model):
        for batch in corpus.batches(100):
            model(batch.src, batch.src_lengths, batch.tgt_in)
            sums += model.count_attended(batch.tgt_in)
    return float(sums[0] / sums[2])


class Translation:
    """Translation models that `tsallis train` has trained. The column `accuracy` is BLEU / 100."""

    updates = 0

    def __init__(self, runs: Path) -> None:
        self.runs = runs

    def fit(self, attention: str, seed: int) -> Any:
        """Load a model; `judge` and `calibrate` use the data of its run."""
        folder = self.runs.with_name(f"{self.runs.name}-{attention}-s{seed}")
        self.opened, config = open_run(folder, device="cpu"), run_config(folder)
        self.dev, self.test = (self.opened.task.split(self.opened.run, config.data, name) for name in ("dev", "test"))
        self.search = SearchOptions().with_defaults(config.search.options)
        return self.opened.run.model

    def calibrate(self, model: Any, attended: float) -> float:
        return calibrate_attended(model, list(self.dev.corpus.batches(100, DEV)), attended)

    def judge(self, model: Any) -> Row:
        report, _ = evaluate_outputs(self.opened.task, self.opened.run, self.test, self.search)
        scores = {"accuracy": report["bleu"] / 100, "symbol_accuracy": report["symbol_accuracy"]}
        return {**scores, "reached": mean_attended(model, self.test.corpus)}


class Sentences:
    """A Hugging Face encoder that classifies sentences, trained from random parameters."""

    updates = 400
    learning_rate = 1e-3

    def __init__(self, train: Path, dev: Path, test: Path) -> None:
        parts = [
            [line.split("\t") for line in path.read_text(encoding="utf-8").split("\n") if line]
            for path in (train, dev, test)
        ]
        parts[1] = parts[1][:DEV]
        encode = self._encoding([text for _, text in parts[0]])
        labels = {label: i for i, label in enumerate(sorted({label for label, _ in parts[0]}))}
        self.labels = len(labels)
        self.train, self.dev, self.test = (
            [{"input_ids": encode(text)[:60], "labels": labels[label]} for label, text in part] for part in parts
        )

    def _encoding(self, texts: Sequence[str]) -> Callable[[str], list[int]]:
        """Number the words that occur more than once; 0 is padding, and 1 stands for all other words."""
        counts = Counter(word for text in texts for word in text.split())
        known = {word: 2 + i for i, (word, count) in enumerate(counts.most_common()) if count > 1}
        self.size = 2 + len(known)
        return lambda text: [known.get(word, 1) for word in text.split()]

    def _model(self) -> Any:
        import transformers as tf

        sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 128}
        config = tf.BertConfig(vocab_size=self.size, num_labels=self.labels, **sizes)
        return tf.BertForSequenceClassification(config)

    @staticmethod
    def _batch(rows: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        ids = [torch.tensor(row["input_ids"]) for row in rows]
        ids = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
        labels = torch.tensor([row["labels"] for row in rows])
        return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": labels}

    def _batches(self, rows: Sequence[dict[str, Any]]) -> list[dict[str, Tensor]]:
        return [self._batch(rows[i : i + 100]) for i in range(0, len(rows), 100)]

    def fit(self, attention: str, seed: int) -> Any:
        import transformers as tf

        from tsallis.huggingface import sparsify

        torch.manual_seed(seed)
        model = self._model()
        sparsify(model, ATTENTION[attention])
        with tempfile.TemporaryDirectory() as folder:
            options = {
                "max_steps": self.updates,
                "per_device_train_batch_size": 32,
                "learning_rate": self.learning_rate,
                "seed": seed,
            }
            quiet = {"report_to": [], "save_strategy": "no", "disable_tqdm": True, "use_cpu": True}
            arguments = tf.TrainingArguments(folder, **options, **quiet, warmup_steps=self.updates // 10)
            data = {"train_dataset": self.train, "data_collator": self._batch}
            tf.Trainer(model, arguments, **data).train()
        return model.eval()

    def calibrate(self, model: Any, attended: float) -> float:
        from tsallis.huggingface import calibrate_attended

        return calibrate_attended(model, self._batches(self.dev), attended)

    @torch.no_grad()
    def judge(self, model: Any) -> Row:
        from tsallis.huggingface import DensityMeter

        right = 0
        with eval_mode(model), DensityMeter(model) as meter:
            for batch in self._batches(self.test):
                right += int((model(**batch).logits.argmax(-1) == batch["labels"]).sum())
        sums = meter.sums(meter.densities())
        return {"accuracy": right / len(self.test), "symbol_accuracy": "", "reached": float(sums[0] / sums[2])}


class Encoder(Sentences):
    """A pretrained Hugging Face encoder that is fine-tuned to classify sentences."""

    updates = 200
    learning_rate = 5e-5

    def __init__(self, folder: Path, *files: Path) -> None:
        self.folder = folder
        super().__init__(*files)

    def _encoding(self, texts: Sequence[str]) -> Callable[[str], list[int]]:
        import transformers as tf

        tokenizer = tf.AutoTokenizer.from_pretrained(self.folder)
        return lambda text: tokenizer(text)["input_ids"]

    def _model(self) -> Any:
        import transformers as tf

        return tf.AutoModelForSequenceClassification.from_pretrained(self.folder, num_labels=self.labels)


class Table:
    """The rows of a CSV file, which is rewritten whenever a row is added."""

    def __init__(self, path: Path | None, facts: Row) -> None:
        self.path, self.facts, self.rows = path, facts, []
        if path is not None and path.exists():
            with path.open(newline="", encoding="utf-8") as stream:
                self.rows = list(csv.DictReader(stream))

    def has(self, **facts: Any) -> bool:
        return any(all(str(row[name]) == str(x) for name, x in facts.items()) for row in self.rows)

    def add(self, seed: int, method: str, target: Any, scores: Row, seconds: float) -> None:
        row = {"seed": seed, "method": method, "attended": target, **scores}
        row = {**self.facts, **row, "seconds": seconds, **machine()}
        self.rows.append({name: f"{x:.4g}" if isinstance(x, float) else x for name, x in row.items()})
        print(table(self.rows[-1:], list(row)[:6]).splitlines()[-1], file=sys.stderr, flush=True)
        if self.path is not None:
            with self.path.open("w", newline="", encoding="utf-8") as stream:
                writer = csv.DictWriter(stream, list(self.rows[0]))
                writer.writeheader()
                writer.writerows(self.rows)


def run_seed(task: Any, seed: int, targets: Sequence[int], out: Table) -> None:
    """Train and evaluate all models of a seed."""
    name = out.facts["task"]
    for attention in ("entmax", "softmax", "sparsemax"):
        if out.has(task=name, seed=seed, method=attention):
            continue
        start = time.process_time()
        model = task.fit(attention, seed)
        seconds = time.process_time() - start
        out.add(seed, attention, "", task.judge(model), seconds)
        for target in targets:
            if attention == "softmax":
                with top_k(target):
                    out.add(seed, "top-k of softmax", target, task.judge(model), 0.0)
            else:
                task.calibrate(model, target)
                out.add(seed, f"{attention}, calibrated", target, task.judge(model), 0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tasks = {"inflection": Inflection, "sentences": Sentences, "translation": Translation}
    parser.add_argument("task", choices=tasks)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="training, development and test data")
    parser.add_argument("--targets", type=int, nargs="+", default=[4, 2, 8])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--updates", type=int)
    parser.add_argument("--encoder", type=Path, help="folder of a pretrained encoder, for sentences")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    announce()
    if len(options.files) != (count := 1 if options.task == "translation" else 3):
        parser.error(f"expected {count} FILE, got {len(options.files)}")
    if options.encoder is not None and options.task != "sentences":
        parser.error(f"--encoder needs the task sentences, got {options.task}")
    if options.encoder is None:
        name, task = options.task, tasks[options.task](*options.files)
    else:
        name, task = f"{options.files[0].parent.name}, pretrained", Encoder(options.encoder, *options.files)
    task.updates = options.updates or task.updates
    out = Table(options.out, {"task": name, "updates": task.updates})
    for seed in options.seeds:
        run_seed(task, seed, options.targets, out)
    print(table(out.rows, ["task", "seed", "method", "attended", "accuracy", "reached"]))


if __name__ == "__main__":
    main()
