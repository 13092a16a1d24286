"""The training loop: resumable at every step, to the bit."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tsallis.data.batching import IGNORED, Batch, BatchPlan
from tsallis.data.corpus import Corpus
from tsallis.errors import InputError
from tsallis.metrics import accuracy, forced, search_corpus
from tsallis.models import RNNSeq2Seq
from tsallis.training.checkpoint import Checkpoints
from tsallis.training.log import Log
from tsallis.training.schedules import make_schedule

WATCH_EVERY = 25  # updates between two looks at supports for the progress display


@dataclass(frozen=True)
class Settings:
    """How to train."""

    epochs: int
    batch_size: int = 64
    learning_rate: float = 1e-3
    schedule: str = "halve-on-worse"
    warmup: int = 4000  # updates, for "inverse-square-root"
    clip: float = 5.0  # largest norm of the gradient
    accumulate: int = 1  # batches an update; the loss is divided once, by the symbols of all of them
    validate_every: int = 1  # epochs
    validation_beam: int = 1
    patience: int | None = None  # validations without a better accuracy before the run ends
    checkpoint_every: int = 500  # updates; and at every validation
    seed: int = 1


@dataclass
class Position:
    """Where a run stands."""

    epoch: int = 0
    update: int = 0  # of the epoch
    step: int = 0  # updates in all
    loss: float = 0.0  # sums over the epoch so far
    symbols: int = 0
    best_accuracy: float = -1.0
    best_loss: float = float("inf")
    stale: int = 0  # validations since the best one


@dataclass(frozen=True)
class Progress:
    """What a display may show after an update or a validation."""

    position: Position
    updates: int  # an epoch
    loss: float  # a symbol, over the epoch so far
    accuracy: float | None = None  # share of symbols that are the most probable; looked at now and then
    supported: float | None = None  # symbols a step
    attended: float | None = None  # positions a step
    validation: dict[str, float] | None = None


Watch = Callable[[Progress], None]


class Trainer:
    """Trains one model in one run folder.

    Args:
        model: with parameters in their initial state.
        train: training data.
        dev: data to validate on.
        folder: of the run.
        settings: how to train.
        watch: called after every update and validation.
    """

    def __init__(
        self, model: RNNSeq2Seq, train: Corpus, dev: Corpus, folder: Path, settings: Settings, watch: Watch
    ) -> None:
        self.model, self.train, self.dev, self.settings, self.watch = model, train, dev, settings, watch
        self.plan = BatchPlan(train.lengths(), settings.batch_size, settings.seed)
        self.optimizer = torch.optim.Adam(model.parameters(), settings.learning_rate)
        self.schedule = make_schedule(settings.schedule, settings.learning_rate, settings.warmup)
        self.checkpoints = Checkpoints(folder / "checkpoints")
        self.log = Log(folder / "log.jsonl")
        self.position = Position()
        self.data = _digest(train, dev)
        self.accuracy: float | None = None
        self.supported: float | None = None
        self.attended: float | None = None

    def run(self) -> None:
        """From the last checkpoint, or from the start, to the end.

        Raises:
            InputError: a damaged checkpoint, one that was trained on other data, or a loss that is no number.
        """
        self._resume()
        while not self._finished():
            self._epoch()
            self._end_of_epoch()

    def _finished(self) -> bool:
        patience = self.settings.patience
        return self.position.epoch >= self.settings.epochs or (patience is not None and self.position.stale >= patience)

    def _resume(self) -> None:
        if not self.checkpoints.index():
            self.log.rewind(0)
            return
        state = self.checkpoints.load_training("last")
        if state.get("data") != self.data:
            raise InputError(f"{self.checkpoints.folder}: the data has changed since the run was started")
        self.model.load_state_dict(self.checkpoints.load_model("last"))
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.restore(state["schedule"])
        self.position = Position(**state["position"])
        torch.set_rng_state(state["random"])
        self.log.rewind(state["log"])
        self.checkpoints.sweep()

    def _save(self, best: bool = False, metrics: dict[str, float] | None = None) -> None:
        training: dict[str, Any] = {
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state(),
            "position": asdict(self.position),
            "random": torch.get_rng_state(),
            "log": self.log.position,
            "data": self.data,
        }
        facts = {"step": self.position.step, "epoch": self.position.epoch, "metrics": metrics or {}}
        self.checkpoints.save(self.model.state_dict(), training, facts, best, self._finished())

    def _updates(self) -> list[list[list[int]]]:
        """The batches of this epoch, `accumulate` for each update."""
        batches, width = self.plan.epoch(self.position.epoch), self.settings.accumulate
        return [batches[i : i + width] for i in range(0, len(batches), width)]

    def _epoch(self) -> None:
        self.model.train()
        updates = self._updates()
        for window in updates[self.position.update :]:
            self._update([self.train.batch(rows) for rows in window])
            self.watch(self._progress(len(updates)))
            if self.position.step % self.settings.checkpoint_every == 0 and self.position.update < len(updates):
                self._save()

    def _update(self, window: list[Batch]) -> None:
        position = self.position
        symbols = sum(batch.tokens for batch in window)
        self.optimizer.zero_grad()
        for batch in window:
            decoded = self.model(batch.src, batch.src_lengths, batch.tgt_in)
            loss = self.model.output.loss(decoded.hidden, batch.tgt_out, reduction="sum")
            (loss / symbols).backward()
            position.loss += loss.item()
            if position.step % WATCH_EVERY == 0:
                self._look(decoded.hidden, decoded.attention, batch)
        if not math.isfinite(position.loss):
            raise InputError(
                f"the loss of update {position.step + 1} is {position.loss}: the training has diverged "
                f"(learning rate {self.schedule.rate(position.step):g}; a lower one may help)"
            )
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip)
        for group in self.optimizer.param_groups:
            group["lr"] = self.schedule.rate(position.step)
        self.optimizer.step()
        position.symbols += symbols
        position.update += 1
        position.step += 1

    @torch.no_grad()
    def _look(self, hidden: Tensor, attention: Tensor, batch: Batch) -> None:
        counted = batch.tgt_out != IGNORED
        probs = self.model.output.probs(self.model.output.scores(hidden[counted]))
        self.accuracy = float((probs.argmax(-1) == batch.tgt_out[counted]).double().mean())
        self.supported = float((probs > 0).sum(-1).double().mean())
        self.attended = float((attention[counted] > 0).sum(-1).double().mean())

    def _progress(self, updates: int, validation: dict[str, float] | None = None) -> Progress:
        loss = self.position.loss / max(self.position.symbols, 1)
        return Progress(self.position, updates, loss, self.accuracy, self.supported, self.attended, validation)

    def _end_of_epoch(self) -> None:
        position = self.position
        updates = position.update
        position.epoch += 1
        rate = self.schedule.rate(position.step)
        due = position.epoch % self.settings.validate_every == 0 or position.epoch == self.settings.epochs
        metrics = self._validate() if due else None
        loss = position.loss / max(position.symbols, 1)
        self.log.write(
            "epoch",
            epoch=position.epoch,
            step=position.step,
            loss=loss,
            learning_rate=rate,
            **(metrics or {}),
        )
        progress = self._progress(updates, metrics)
        position.update, position.loss, position.symbols = 0, 0.0, 0
        self._save(best=metrics is not None and position.stale == 0, metrics=metrics)
        self.watch(progress)

    def _validate(self) -> dict[str, float]:
        given = forced(self.model, self.dev)
        results = search_corpus(self.model, self.dev, self.settings.validation_beam)
        found = accuracy(results, self.dev)
        position = self.position
        self.schedule.after_validation(given.loss)
        if (found, -given.loss) > (position.best_accuracy, -position.best_loss):
            position.best_accuracy, position.best_loss, position.stale = found, given.loss, 0
        else:
            position.stale += 1
        return {
            "dev_loss": given.loss,
            "dev_accuracy": found,
            "dev_gold_in_support": given.gold_in_support,
            "output_support": given.output_support,
            "attention_support": given.attention_support,
        }


def _digest(*corpora: Corpus) -> str:
    """A hash of all symbols: a run goes on with the data it began with, or not at all."""
    digest = hashlib.sha256()
    for corpus in corpora:
        for row in zip(corpus.src, corpus.tgt, strict=True):
            digest.update(json.dumps(row).encode())
    return digest.hexdigest()
