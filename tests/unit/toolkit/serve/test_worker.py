"""The queue of a server: requests that share a batch, requests that are dropped, and the end of work."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from typing import Any

import pytest
import torch

from tsallis.errors import InputError
from tsallis.models import TransformerSeq2Seq
from tsallis.search import beam_search
from tsallis.toolkit.serve.limits import Limits, Refusal
from tsallis.toolkit.serve.worker import Cancellation, Check, InterruptibleModel, Job, Worker


class Gate:
    """A job that records its batches and blocks until the gate is open."""

    def __init__(self) -> None:
        self.open, self.entered, self.batches = threading.Event(), threading.Event(), list[list[Any]]()

    def work(self, requests: Sequence[Any], check: Check) -> list[Any]:
        self.batches.append(list(requests))
        self.entered.set()
        while not self.open.wait(0.005):
            check()
        if "bad" in requests:
            raise InputError("a bad request")
        return [f"answer to {request}" for request in requests]


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open.set()


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker(Limits(sources=4, seconds=20))
    yield worker
    worker.close()


def hold(worker: Worker, gate: Gate) -> Job:
    job = worker.submit(gate.work, None, "first")
    assert gate.entered.wait(10)
    return job


def test_waiting_requests_with_equal_keys_share_a_batch(worker: Worker, gate: Gate) -> None:
    first = hold(worker, gate)
    keys = ("x", "y", "x", None, "x")
    jobs = [worker.submit(gate.work, key, number, size=2) for number, key in enumerate(keys)]
    gate.open.set()
    assert [job.answer.result(10) for job in jobs] == [f"answer to {number}" for number in range(5)]
    assert first.answer.result(10) == "answer to first"
    assert gate.batches == [["first"], [0, 2], [1], [3], [4]]  # a batch has room for two requests of size 2


def test_a_bad_request_does_not_fail_its_batch(worker: Worker, gate: Gate) -> None:
    hold(worker, gate)
    jobs = [worker.submit(gate.work, "x", request) for request in ("good", "bad", "fine")]
    gate.open.set()
    assert [jobs[i].answer.result(10) for i in (0, 2)] == ["answer to good", "answer to fine"]
    with pytest.raises(InputError, match="a bad request"):
        jobs[1].answer.result(10)


def test_cancelled_jobs_are_dropped_or_interrupted(worker: Worker, gate: Gate) -> None:
    first = hold(worker, gate)
    waiting, last = worker.submit(gate.work, None, "waiting"), worker.submit(gate.work, None, "last")
    waiting.cancel()
    first.cancel()  # its work ends at the next check, although the gate is closed
    with pytest.raises(Cancellation):
        first.answer.result(10)
    with pytest.raises(CancelledError):
        waiting.answer.result(10)
    gate.open.set()
    assert last.answer.result(10) == "answer to last" and ["waiting"] not in gate.batches


def test_cancelling_one_job_keeps_the_rest_of_its_batch(worker: Worker, gate: Gate) -> None:
    hold(worker, gate)
    jobs = [worker.submit(gate.work, "x", number) for number in range(2)]
    gate.open.set()
    jobs[0].cancel()
    assert jobs[1].answer.result(10) == "answer to 1"


def test_jobs_over_the_time_limit_raise(gate: Gate) -> None:
    worker = Worker(Limits(seconds=0.05))
    with pytest.raises(Refusal, match="the computation took more than") as refusal:
        worker.submit(gate.work, None, 0).answer.result(10)
    assert refusal.value.status == 503
    worker.close()


def test_closing_the_worker_rejects_all_jobs(worker: Worker, gate: Gate) -> None:
    jobs = [hold(worker, gate), worker.submit(gate.work, None, "waiting")]
    worker.close()
    for job in jobs:
        with pytest.raises(Refusal, match="being shut down"):
            job.answer.result(10)
    with pytest.raises(Refusal, match="being shut down"):
        worker.submit(gate.work, None, "late")


def test_beam_search_of_an_interruptible_model_can_be_cancelled() -> None:
    torch.manual_seed(0)
    model = TransformerSeq2Seq(20, 15, d_model=8, heads=2, encoder_layers=1, decoder_layers=1, d_ff=8).eval()
    checks = []

    def check() -> None:
        checks.append(True)
        if len(checks) == 3:
            raise Cancellation("enough")

    with pytest.raises(Cancellation, match="enough"):
        beam_search(InterruptibleModel(model, check), torch.tensor([[4, 5, 6]]), torch.tensor([3]), min_length=10)
