"""The settings of a training."""

from __future__ import annotations

from dataclasses import dataclass, fields

from torch import Tensor

from tsallis.data.batching import BatchPlan
from tsallis.training.engine import EngineSettings
from tsallis.training.schedules import Schedule, make_schedule


@dataclass(frozen=True)
class Settings(EngineSettings):
    """The settings of a training.

    Args:
        clip: largest norm of the gradient.
        label_smoothing: share of the target spread over all symbols, from 0 to 1.
        optimizer: "adam" or "adamw".
        betas: of either.
        weight_decay: of matrices alone: biases, norms and alphas keep their size. With "adam" it is a part of the
            gradient, an l2 penalty; with "adamw" it is taken off beside it, times the learning rate.
        alpha_lr_scale: factor of the learning rate for learned alphas.
        precision: "float32" or "bfloat16".
        strategy: "ddp" or "fsdp", where there are several processes.
        compile: whether the model is compiled.
        epochs: at most.
        updates: at most; None: as many as `epochs` have.
        batch_size: rows a batch.
        max_tokens: padded symbols a batch, of the longer side; in place of `batch_size`.
        bucket: batches among which rows are sorted by length.
        sort_by: the length they are sorted by, "total" or "target", see :class:`tsallis.data.batching.BatchPlan`.
        learning_rate: the largest one.
        schedule: of the learning rate, one of :mod:`tsallis.training.schedules`.
        warmup: updates, for "inverse-square-root" and "linear".
        plateau_patience: validations without a better score before "plateau" lowers the rate.
        plateau_factor: of the rate then.
        lowest_learning_rate: of "plateau".
        accumulate: batches an update and process; the loss is divided once, by the symbols of all of them.
        validate_every: epochs between validations.
        validate_updates: updates between validations, in place of epochs.
        validation_beam: size of the beam that validation searches with.
        validation_competing_ends: whether its outputs must end among the beam's best continuations, see
            :func:`tsallis.search.beam_search`.
        validation_rows: rows of the development set that are searched, the first ones; None: all. The loss is of all.
        select: the score of the development set that decides which checkpoint is best, by its name; None: the first
            one that the measure returns.
        patience: validations without a better score before the run ends.
        checkpoint_every: updates between checkpoints; there is one at every validation, too.
        keep: validated checkpoints kept, to be averaged.
        tensorboard: whether what the log says is also written for TensorBoard (extra `tensorboard`).
        seed: of the order of batches and of dropout.

    Example:
        >>> settings = Settings(epochs=3, batch_size=8, clip=1.0)
        >>> settings.of_engine().clip, settings.schedule
        (1.0, 'halve-on-worse')
    """

    epochs: int = 20
    updates: int | None = None
    batch_size: int = 64
    max_tokens: int | None = None
    bucket: int = 40
    sort_by: str = "total"
    learning_rate: float = 1e-3
    schedule: str = "halve-on-worse"
    warmup: int = 4000
    plateau_patience: int = 2
    plateau_factor: float = 0.5
    lowest_learning_rate: float = 0.0
    accumulate: int = 1
    validate_every: int = 1
    validate_updates: int | None = None
    validation_beam: int = 1
    validation_competing_ends: bool = False
    validation_rows: int | None = None
    select: str | None = None
    patience: int | None = None
    checkpoint_every: int = 500
    keep: int = 1
    tensorboard: bool = False
    seed: int = 1

    def plan(self, lengths: Tensor) -> BatchPlan:
        """Return the rows of all batches, for rows of some lengths."""
        return BatchPlan(lengths, self.batch_size, self.max_tokens, self.seed, self.bucket, self.sort_by)

    def make_schedule(self) -> Schedule:
        """Return the schedule of the learning rate."""
        plateau = (self.plateau_patience, self.plateau_factor, self.lowest_learning_rate)
        return make_schedule(self.schedule, self.learning_rate, self.warmup, self.updates, *plateau)

    def of_engine(self) -> EngineSettings:
        """Return the settings of one update."""
        return EngineSettings(**{f.name: getattr(self, f.name) for f in fields(EngineSettings)})
