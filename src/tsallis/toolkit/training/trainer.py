"""Training loop for any number of processes. A resumed run gives exactly the results of an uninterrupted run."""

from __future__ import annotations

import contextlib
import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from tsallis.analysis.score_names import TEACHER_FORCED, TEXT_SCORES, rank_score
from tsallis.errors import InputError
from tsallis.search import Result, SearchOptions
from tsallis.toolkit.config import Settings
from tsallis.toolkit.data.corpus import Corpus
from tsallis.toolkit.data.image_store import ImageStore
from tsallis.toolkit.data.io import remove_leftovers
from tsallis.toolkit.evaluation.provenance import environment
from tsallis.toolkit.evaluation.search_results import accuracy, search_batches
from tsallis.toolkit.evaluation.teacher_forcing import TeacherForcedScores, teacher_forced_sums
from tsallis.toolkit.training.checkpoint import Checkpoints, find_nonfinite
from tsallis.toolkit.training.distributed import CommonError, World
from tsallis.toolkit.training.engine import BatchStats, Engine
from tsallis.toolkit.training.file_names import BOARD, CHECKPOINTS, INDEX, LOCK, LOG, TIMING, TRAINING
from tsallis.toolkit.training.lock import Lock, writing
from tsallis.toolkit.training.log import Log
from tsallis.toolkit.training.schedules import make_schedule
from tsallis.toolkit.training.schema import Position, TrainingRecord, check_record
from tsallis.toolkit.training.teacher import Teacher
from tsallis.toolkit.training.tensorboard import open_board, require_tensorboard, write_scalars

WATCH_EVERY = 25  # number of updates between measurements of accuracy and sparsity for the display
VALIDATION_BATCH = 128  # batch size on the development set


@dataclass(frozen=True)
class Progress:
    """Values for a progress display, after an update or a validation.

    Args:
        position: Position of the run.
        updates: Number of updates per epoch.
        loss: Mean loss per symbol over the epoch so far.
        speed: Target symbols per second, over the last updates.
        accuracy: Share of target symbols that are predicted correctly, in a recent batch.
        supported: Mean number of symbols with a non-zero probability per step, in a recent batch.
        num_attended: Mean number of attended positions per step, in a recent batch.
        validation: Results of the validation by name; None after an update.
    """

    position: Position
    updates: int
    loss: float
    speed: float
    accuracy: float | None = None
    supported: float | None = None
    num_attended: float | None = None
    validation: dict[str, Any] | None = None


Watch = Callable[[Progress], None]
Measure = Callable[[Sequence[Result]], dict[str, float]]


class Trainer:
    """Training of one model in a run folder, from the start or from the last checkpoint.

    Args:
        model: Model with its initial parameters, which must be equal on all processes.
        train: Training data.
        dev: Development data, used for validation.
        folder: Run folder, which all processes must share.
        settings: Settings of the training.
        watch: Function that the first process calls after every update and validation.
        measure: Function that computes scores from search results and returns them by name. Search runs on all or the
            first rows of `dev`. The first score selects the best checkpoint, unless the settings select another score.
            "accuracy" is the share of outputs that equal the target. With None, validation does not search: the scores
            are those of :data:`tsallis.analysis.score_names.TEXT_SCORES`, and the loss selects the best checkpoint.
        world: Rank of this process and number of processes.
        lock: Lock on the folder, held by the first process. It is checked before every write.
        init: Origin of the initial parameters, for the log.
        stop: Function that returns whether this process must stop. If it returns True, all processes finish the current
            update and its validation, if one is due. Then they save a checkpoint, set :attr:`stopped` to True, and
            stop.
        teacher: Distributions that are the targets of the training, see :func:`read_teacher`.

    Raises:
        ValueError: If `measure` is neither "accuracy", a function nor None, or if the settings have an `output_alpha`
            and the output of the model is not entmax.

    Example:
        >>> import tempfile
        >>> from tsallis.models import RNNSeq2Seq
        >>> data = Corpus([[4, 5], [5, 4], [4]], [[5], [4], [5, 4]])
        >>> model = RNNSeq2Seq(6, 6, d_model=8, layers=1)
        >>> trainer = Trainer(model, data, data, Path(tempfile.mkdtemp()), Settings(epochs=2))
        >>> trainer.run()
        >>> trainer.position.epoch, trainer.checkpoints.index().finished
        (2, True)
    """

    def __init__(
        self,
        model: Any,
        train: Corpus,
        dev: Corpus,
        folder: Path,
        settings: Settings,
        *,
        watch: Watch = lambda progress: None,
        measure: Measure | Literal["accuracy"] | None = "accuracy",
        world: World | None = None,
        lock: Lock | None = None,
        init: Mapping[str, Any] | None = None,
        stop: Callable[[], bool] = lambda: False,
        teacher: Teacher | None = None,
    ) -> None:
        if settings.output_alpha is not None and model.output.transform != "entmax":
            raise ValueError(f"output_alpha needs an output of entmax, got {model.output.transform}")
        if not (measure is None or measure == "accuracy" or callable(measure)):
            raise ValueError(f'measure must be "accuracy", a function or None, got {measure!r}')
        self.model = model
        self.train = train
        self.dev = dev
        self.folder = folder
        self.settings = settings
        self.watch = watch
        self.measure = (lambda results: {"accuracy": accuracy(results, dev)}) if measure == "accuracy" else measure
        self.world = world or World()
        self.lock = lock
        self.init = init
        self.stop = stop
        self.stopped = False
        self.teacher = teacher

        self.engine = Engine(model, settings, self.world)
        self.plan = settings.plan(train.lengths())
        self.schedule = make_schedule(settings)
        self.checkpoints = Checkpoints(folder / CHECKPOINTS, settings.keep, lock)
        self.log = Log(folder / LOG, lock)
        self.timing = Log(folder / TIMING, lock)
        self.board: Any = None  # TensorBoard writer, on the first process only
        self.position = Position()
        self.loaded = False  # whether `load` was called
        self.log_position: int | None = None  # size of the log in the loaded checkpoint; None for a new run
        self.data = f"{train.digest()} {dev.digest()}{f' {teacher.digest}' if teacher else ''}"
        self.batch_stats: BatchStats | None = None
        # Loss of this process that `_flush` has not yet added to the position.
        self.pending = torch.zeros((), dtype=torch.float64, device=self.world.device)
        self.began = time.perf_counter()  # time of the last flush
        self.num_symbols = 0  # number of symbols since the last flush
        self.speed = 0.0  # moving average of symbols per second
        self.elapsed = 0.0  # duration of this epoch's updates in seconds

    def run(self) -> None:
        """Train to the end, from the last checkpoint or from the start.

        Raises:
            InputError: If a checkpoint is damaged or was trained on other data, or if the loss is not finite.
        """
        if not self.loaded:
            self.load()
        self._open()
        try:
            while not (self._is_finished() or self.stopped):
                self._epoch()
        finally:
            if self.board is not None:
                with self._writing_board():
                    self.board.close()

    def _is_finished(self) -> bool:
        position, settings = self.position, self.settings
        return (
            position.epoch >= settings.epochs
            or (settings.updates is not None and position.step >= settings.updates)
            or (settings.patience is not None and position.stale >= settings.patience)
        )

    def load(self) -> None:
        """Check the run folder and load its last checkpoint, if it has one. Nothing is written.

        Raises:
            InputError: If the folder or checkpoint is damaged, or was trained on other data.
        """
        self.loaded = True
        self.world.on_main(self._check_folder)
        self.world.check_folder(self.folder)
        store = getattr(self.model, "image_store", None)
        texts = self.data  # all that a run of an earlier version has recorded
        if isinstance(store, ImageStore):
            with self.world.share_errors():
                self.data += f" {store.digest()}"
        if self.world.broadcast(self.checkpoints.index().last if self.world.main else None) is not None:
            with self.world.share_errors():
                state, parameters = self._load_checkpoint({self.data, texts})
            self.engine.load(parameters, dict(state.optimizer))
            self.schedule.restore(dict(state.schedule))
            self.position = state.position.model_copy()
            # The number of batches per update depends on the number of processes: convert the count of updates.
            self.position.update = self.position.update * state.processes // self.world.size
            self.log_position = state.log
        self.world.on_main(self._check_logs)

    def _open(self) -> None:
        """Prepare the run folder for writing: remove temporary files, and start the logs or cut them back."""
        model_values = _model_values(self.engine.unsharded_model()) if self.log_position is None else {}

        def write() -> None:
            self.checkpoints.open()
            with writing(self.folder, self.lock):
                remove_leftovers(self.folder, (LOCK,))
            if self.log_position is None:
                self.log.rewind(0)
                self.timing.rewind(0)
                init = {"init": dict(self.init)} if self.init else {}
                self.log.write(
                    "start", parameters=sum(p.numel() for p in self.model.parameters()), **init, **model_values
                )
            else:
                self._rewind(self.log_position)
                self.checkpoints.record_finished(self._is_finished())
            if self.settings.tensorboard and not self._is_finished():
                self.board = open_board(self.folder / BOARD, self.position.step)

        self.world.on_main(write)

    def _check_folder(self) -> None:
        self.checkpoints.check()
        begun = (self.checkpoints.folder / INDEX).exists()
        if not begun and self.log.position and any(event["event"] != "start" for event in self.log.events()):
            raise InputError(
                f"{self.log.path}: has events of a training, but {self.checkpoints.folder / INDEX} is "
                "missing; restore the missing file, or choose another folder"
            )

    def _check_logs(self) -> None:
        """Check that the logs can be cut back to the checkpoint and that TensorBoard can be used."""
        self.log.check(self.log_position or 0)
        if self.log_position is None:
            self.timing.check(0)
        else:
            self.timing.position_of(self.position.step)
        if self.settings.tensorboard:
            require_tensorboard(self.folder / BOARD)

    def _rewind(self, position: int) -> None:
        self.log.rewind(position)
        self.timing.rewind_to_step(self.position.step)
        last = next(reversed(self.timing.events()), {"event": "epoch"})
        self.elapsed = 0.0 if last["event"] == "epoch" else float(last.get("seconds", 0.0))

    def _load_checkpoint(self, data: set[str]) -> tuple[TrainingRecord, dict[str, Tensor]]:
        """Load the last checkpoint and check that it belongs to this run and to one of these digests of the data."""
        path = f"{self.checkpoints.folder / str(self.checkpoints.index().last)}/{TRAINING}"
        state = check_record(self.checkpoints.load_training("last"), TrainingRecord, path)
        if state.data not in data:
            raise InputError(
                f"{self.checkpoints.folder}: the data has changed since the run was started; restore the data or "
                "choose another folder"
            )
        parameters = self.checkpoints.load_model("last", self.model)
        try:
            self.engine.check(parameters, dict(state.optimizer))
        except InputError as error:
            raise InputError(f"{path}: belongs to another run: {error}") from error
        if state.schedule.model_fields_set != self.schedule.state().keys():
            raise InputError(f"{path}: belongs to another run: its schedule is not {self.settings.schedule}")
        return state, parameters

    def _save(self, metrics: dict[str, Any] | None = None) -> None:
        """Save a checkpoint, with the metrics of a validation if there was one."""
        model, optimizer = self.engine.state()
        self.world.on_main(lambda: self._write(model, optimizer, metrics))

    def _write(self, model: dict[str, Tensor], optimizer: dict[str, Any], metrics: dict[str, Any] | None) -> None:
        if (name := find_nonfinite(model)) is not None:  # do not replace a checkpoint with finite weights
            raise InputError(f"the weights {name} are not finite after update {self._describe_divergence()}")
        training: dict[str, Any] = {
            "optimizer": optimizer,
            "schedule": self.schedule.state(),
            "position": self.position.model_dump(),
            "processes": self.world.size,
            "log": self.log.position,
            "data": self.data,
        }
        facts = {"step": self.position.step, "epoch": self.position.epoch, "metrics": metrics or {}}
        best = metrics is not None and self.position.stale == 0
        self.checkpoints.save(model, training, facts, best, self._is_finished(), metrics is not None)

    def _describe_divergence(self) -> str:
        """Return the number of the last update and the likely cause of its failure."""
        step = self.position.step
        rate = self.schedule.rate(step - 1)
        return f"{step}: the training has diverged (learning rate {rate:g}; try a lower one)"

    def _epoch(self) -> None:
        """Run the remaining updates of the epoch."""
        position, settings = self.position, self.settings
        windows = self.plan.updates(position.epoch, settings.accumulate, self.world.size)
        if position.update >= len(windows):
            problem = f"the last checkpoint is at update {position.update} of an epoch with only {len(windows)} updates"
            raise CommonError(f"{self.checkpoints.folder}: {problem}")
        self._start_clock()
        while position.update < len(windows):
            self._update(windows[position.update])
            if self.world.main:
                self._show(self._progress(len(windows)))
            if position.update == len(windows):
                self._end_of_epoch(len(windows))
                return
            if self._is_due(position.step, settings.validate_updates) or self._at_limit():
                self._validate_if_due("validation", len(windows))
                if self._is_finished() or self.stopped:
                    return
                continue
            self.stopped = self.engine.stop
            if self.stopped or position.step % settings.checkpoint_every == 0:
                self._flush()
                self.world.on_main(lambda: self._write_timing("checkpoint"))
                self._save()
                self._start_clock()
            if self.stopped:
                return

    def _writing_board(self) -> contextlib.AbstractContextManager[None]:
        return writing(self.folder / BOARD, self.lock)

    def _show(self, progress: Progress) -> None:
        self.watch(progress)
        if self.board is not None and self.position.step % WATCH_EVERY == 1:  # statistics were recorded in this update
            values = {name: getattr(progress, name) for name in ("accuracy", "supported", "num_attended")}
            batch_values = {f"batch_{name}": value for name, value in values.items()}
            with self._writing_board():
                write_scalars(self.board, self.position.step, batch_values)

    @staticmethod
    def _is_due(count: int, every: int | None) -> bool:
        return every is not None and count % every == 0

    def _at_limit(self) -> bool:
        return self.settings.updates is not None and self.position.step >= self.settings.updates

    def _update(self, window: list[list[list[int]]]) -> None:
        """Run one update from the batches of every process."""
        position = self.position
        # Random numbers depend only on the step and the rank, so checkpoints need no generator state.
        torch.manual_seed(_seed(self.settings.seed, position.step, self.world.rank))
        collect_stats = position.step % WATCH_EVERY == 0
        count = max(len(batches) for batches in window)
        batches = [self.train.batch(rows, position.epoch) for rows in window[self.world.rank] or window[0][:1]]
        soft = None if self.teacher is None else [self.teacher.targets(batch) for batch in batches]
        self.model.train()
        rate = self.schedule.rate(position.step)
        num_rank_batches = len(window[self.world.rank])
        with self._annealed_alpha():
            symbols, loss = self.engine.update(batches, num_rank_batches, count, rate, collect_stats, self.stop(), soft)
        if collect_stats:
            self.batch_stats = self.engine.objective.batch_stats
        self.pending += loss
        self.num_symbols += symbols
        position.symbols += symbols
        position.update += 1
        position.step += 1
        if self.world.device.type == "cpu" or collect_stats:
            self._flush()

    @contextlib.contextmanager
    def _annealed_alpha(self) -> Iterator[None]:
        """Set the output's alpha to that of this update; validations and checkpoints use the alpha of the model."""
        output, annealed, updates = self.model.output, self.settings.output_alpha, self.settings.updates
        model_alpha = output.alpha
        if annealed is not None and updates is not None:
            output.alpha = annealed.at(self.position.step, updates, model_alpha)
        try:
            yield
        finally:
            output.alpha = model_alpha

    def _flush(self) -> None:
        """Add the pending loss to the position, check that the loss is finite, and measure the speed."""
        position = self.position
        if not self.num_symbols:
            return
        (loss,) = self.world.sum(self.pending.item())
        self.pending.zero_()
        position.loss += loss
        if not math.isfinite(position.loss):
            raise CommonError(f"the loss is {position.loss} after update {self._describe_divergence()}")
        now = time.perf_counter()
        speed = self.num_symbols / max(now - self.began, 1e-9)
        self.speed = 0.9 * self.speed + 0.1 * speed if self.speed else speed
        self.elapsed += now - self.began
        self.began, self.num_symbols = now, 0

    def _start_clock(self) -> None:
        self.began, self.num_symbols = time.perf_counter(), 0

    def _progress(self, updates: int, validation: dict[str, Any] | None = None) -> Progress:
        position, stats = self.position, self.batch_stats
        loss = position.loss / max(position.symbols, 1)
        names = ("accuracy", "supported", "num_attended")
        shares = {} if stats is None else {n: float(getattr(stats, n) / stats.symbols.clamp(min=1)) for n in names}
        return Progress(position.model_copy(), updates, loss, self.speed, **shares, validation=validation)

    def _end_of_epoch(self, updates: int) -> None:
        position, settings = self.position, self.settings
        position.epoch += 1
        last = position.epoch == settings.epochs or self._at_limit()
        every_epochs = settings.validate_every if settings.validate_updates is None else None
        due = last or self._is_due(position.epoch, every_epochs)
        due = due or self._is_due(position.step, settings.validate_updates)
        self._validate_if_due("epoch", updates, due)

    def _validate_if_due(self, event: str, updates: int, due: bool = True) -> None:
        """Validate if `due`, log the position of the run, and save a checkpoint."""
        position = self.position
        self._flush()
        rate = self.schedule.rate(position.step)
        metrics = self._validate() if due else None
        loss = position.loss / max(position.symbols, 1)
        where = {"epoch": position.epoch, "step": position.step}

        def log() -> None:
            self.log.write(event, **where, loss=loss, learning_rate=rate, **(metrics or {}))
            if self.board is not None:
                with self._writing_board():
                    write_scalars(self.board, position.step, {"loss": loss, "learning_rate": rate, **(metrics or {})})
                    self.board.flush()
            self._write_timing(event)

        self.world.on_main(log)
        progress = self._progress(updates, metrics)
        if event == "epoch":
            position.update = 0
            position.loss = 0.0
            position.symbols = 0
            self.elapsed = 0.0
        self._save(metrics)
        if self.world.main:
            self.watch(progress)
        # Validation is slow: a signal may have arrived since the update.
        self.stopped = (self.engine.stop or self.world.sum(self.stop())[0] > 0) and not self._is_finished()
        self._start_clock()

    def _write_timing(self, event: str) -> None:
        """Log two sums over this epoch's updates: duration and number of symbols. A resumed run continues both sums."""
        where = {"epoch": self.position.epoch, "step": self.position.step}
        self.timing.write(event, **where, seconds=self.elapsed, symbols=self.position.symbols, **environment())

    def _validate(self) -> dict[str, Any]:
        """Compute loss and scores of the development set. All processes share the work and return the same values."""
        model: Any = self.engine.unsharded_model()
        world, settings = self.world, self.settings
        batches = self.dev.batches(VALIDATION_BATCH)
        alphas = model.alphas() if hasattr(model, "alphas") else {}
        densities = {kind: torch.zeros(values.shape, dtype=torch.float64) for kind, values in alphas.items()}
        sums = world.sum(*teacher_forced_sums(model, batches[world.rank :: world.size], densities))
        teacher_forced = TeacherForcedScores.of(sums)
        if math.isnan(teacher_forced.loss):
            raise CommonError(f"the validation loss is nan after update {self._describe_divergence()}")
        for kind, values in densities.items():
            shared = torch.tensor(world.sum(*values.flatten().tolist()), dtype=torch.float64)
            densities[kind] = shared.reshape(values.shape) / max(sums[-1], 1)
        if self.measure is None:
            scores = {name: getattr(teacher_forced, name) for name in TEXT_SCORES}
        else:
            scores = self._search(model, self.measure)
        teacher_forced_values = {name: getattr(teacher_forced, name) for name in TEACHER_FORCED}
        select = settings.select or ("loss" if self.measure is None else next(iter(scores)))
        self._update_best(rank_score(select, {**teacher_forced_values, **scores}[select]), teacher_forced.loss)
        return {
            "dev_loss": teacher_forced.loss,
            **{f"dev_{name}": value for name, value in {**scores, **teacher_forced_values}.items()},
            "select": select,
            "output_support": teacher_forced.output_support,
            "attention_support": teacher_forced.attention_support,
            "logit_norm": teacher_forced.logit_norm,
            **({} if math.isnan(teacher_forced.threshold) else {"output_threshold": teacher_forced.threshold}),
            **_model_values(model),
            **{f"density_{kind}": values.tolist() for kind, values in densities.items()},
        }

    def _search(self, model: Any, measure: Measure) -> dict[str, float]:
        """Search for outputs of the development set and compute their scores; all processes return the same values."""
        world, settings = self.world, self.settings
        rows = min(settings.validation_rows or len(self.dev), len(self.dev))
        searched = self.dev.batches(VALIDATION_BATCH, rows)[world.rank :: world.size]
        options = SearchOptions(beam_size=settings.validation_beam, end_rule=settings.validation_end_rule)
        with world.share_errors():
            try:
                results_by_row = search_batches(model, searched, options)
            except ValueError as error:
                if "NaN" not in str(error):
                    raise
                raise InputError(f"{error} after update {self._describe_divergence()}") from error
        parts = world.gather(results_by_row)
        results = [result for _, result in sorted((i, r) for part in parts for i, r in part.items())]
        return world.broadcast(measure(results) if world.main else None)

    def _update_best(self, score: float, loss: float) -> None:
        """Compare a score with the best score so far (larger is better). If they are equal, compare the losses."""
        position = self.position
        best = (score, -loss) > (position.best_score, -position.best_loss)
        self.schedule.after_validation(loss, best)
        if best:
            position.best_score = score
            position.best_loss = loss
            position.stale = 0
        else:
            position.stale += 1


def _seed(seed: int, step: int, rank: int) -> int:
    """Return a seed that depends on step and rank; neighbouring steps and ranks get unrelated seeds."""
    return int.from_bytes(hashlib.sha256(f"{seed} {step} {rank}".encode()).digest()[:8], "little") >> 1


def _model_values(model: Any) -> dict[str, Any]:
    """Return values of the model for the log: the threshold of alpha-ReLU, and alphas by kind of attention."""
    threshold: dict[str, Any] = {"tau": model.output.tau} if model.output.transform == "alpha_relu" else {}
    alphas = model.alphas() if hasattr(model, "alphas") else {}
    return {**threshold, **{f"alpha_{kind}": values.tolist() for kind, values in alphas.items()}}
