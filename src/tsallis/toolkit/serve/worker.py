"""The thread that runs models, with a queue that batches compatible requests."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from tsallis.errors import memory_for
from tsallis.toolkit.serve.limits import Limits, Refusal

Check = Callable[[], None]  # function that raises if the work must stop
Work = Callable[[Sequence[Any], Check], Sequence[Any]]  # function that returns one answer or error per request


class Cancellation(Exception):
    """Error that stops work when all its jobs are cancelled."""


class InterruptibleModel:
    """Model wrapper that calls `check` before each step. `check` can raise an error to stop a search.

    Args:
        model: Model with the decoder protocol.
        check: Function called before each step.

    Example:
        >>> from tsallis.models import RNNSeq2Seq
        >>> from tsallis.search import beam_search
        >>> import torch
        >>> def check(): raise Cancellation("enough")
        >>> model = InterruptibleModel(RNNSeq2Seq(20, 15, d_model=8), check)
        >>> beam_search(model, torch.tensor([[4, 5]]), torch.tensor([2]))
        Traceback (most recent call last):
        tsallis.toolkit.serve.worker.Cancellation: enough
    """

    def __init__(self, model: Any, check: Check) -> None:
        self._model, self._check = model, check

    def __getattr__(self, name: str) -> Any:
        if name == "run_beams":  # hide this method, because it runs all steps in one call, without checks
            raise AttributeError(name)
        value = getattr(self._model, name)
        if name not in ("step", "step_best"):
            return value

        def step(*arguments: Any, **options: Any) -> Any:
            self._check()
            return value(*arguments, **options)

        return step


@dataclass(eq=False)
class Job:
    """Request in the queue, with a future for its answer.

    Args:
        work: Function that answers requests.
        key: Jobs with equal keys can be answered together; a job with key None is answered alone.
        request: Argument of `work`.
        size: Number of sources.
    """

    work: Work
    key: Hashable
    request: Any
    size: int
    answer: Future[Any] = field(default_factory=Future)
    cancelled: bool = False

    def cancel(self) -> None:
        """Cancel the job: drop it if it is waiting, else stop its work at the next step."""
        self.cancelled = True
        self.answer.cancel()


class Worker:
    """Queue of jobs with a single thread that answers them.

    Args:
        limits: Limits, which set the batch size and the time per batch.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._loop, name="models", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Return the number of waiting jobs."""
        return len(self._jobs)

    def submit(self, work: Work, key: Hashable, request: Any, size: int = 1) -> Job:
        """Add a job to the queue.

        Raises:
            Refusal: If the server is shutting down.
        """
        job = Job(work, key, request, size)
        with self._changed:
            if self._closed:
                raise Refusal(503, "the server is being shut down")
            self._jobs.append(job)
            self._changed.notify()
        return job

    def close(self, seconds: float = 5.0) -> None:
        """Stop the worker, and wait at most `seconds` until its thread ends."""
        self.stop()
        self._thread.join(seconds)

    def stop(self) -> None:
        """Reject waiting and new jobs, and stop the current work at its next step."""
        with self._changed:
            self._closed = True
            jobs = list(self._jobs)
            self._jobs.clear()
            self._changed.notify()
        for job in jobs:
            if job.answer.set_running_or_notify_cancel():
                job.answer.set_exception(Refusal(503, "the server is being shut down"))

    def _loop(self) -> None:
        while batch := self._next():
            self._answer(batch)

    def _next(self) -> list[Job]:
        """Wait for a job and return it with compatible jobs, or an empty list when the server stops."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._closed)
                if self._closed:
                    return []
                batch = [self._jobs.popleft()]
                size = batch[0].size
                for job in list(self._jobs) if batch[0].key is not None else ():
                    if job.key == batch[0].key and size + job.size <= self.limits.sources:
                        batch.append(job)
                        size += job.size
                        self._jobs.remove(job)
            batch = [job for job in batch if job.answer.set_running_or_notify_cancel()]  # drop cancelled jobs
            if batch:
                return batch

    def _answer(self, batch: list[Job]) -> None:
        """Answer jobs together. If that fails, answer each job alone, so that one bad job can't break the others."""
        try:
            answers = self._work(batch)
        except Exception as error:
            if len(batch) > 1 and not isinstance(error, Cancellation):
                for job in batch:
                    self._answer([job])
                return
            answers = [error] * len(batch)
        for job, answer in zip(batch, answers, strict=True):
            if isinstance(answer, Exception):
                job.answer.set_exception(answer)
            else:
                job.answer.set_result(answer)

    def _work(self, batch: list[Job]) -> Sequence[Any]:
        deadline = time.monotonic() + self.limits.seconds

        def check() -> None:
            if self._closed:
                raise Refusal(503, "the server is being shut down")
            if all(job.cancelled for job in batch):
                raise Cancellation
            if time.monotonic() > deadline:
                raise Refusal(
                    503, f"the computation took more than {self.limits.seconds:g} seconds, the limit of the server"
                )

        check()
        with memory_for("the search"):
            return batch[0].work([job.request for job in batch], check)
