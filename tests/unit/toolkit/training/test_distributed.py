"""Distributed training with a single process. tests/integration/distributed tests several processes."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tsallis.errors import InputError
from tsallis.toolkit.training.distributed import CommonError, World, _is_lost, init_distributed
from tsallis.toolkit.training.termination import STATUS, note_termination


def test_a_single_process_has_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with init_distributed("cpu") as world:
        assert (world.rank, world.size, world.main, world.device) == (0, 1, True, torch.device("cpu"))
        assert not dist.is_initialized()
        assert world.sum(1, 2.5) == (1.0, 2.5) and world.broadcast("x") == "x" and world.gather("x") == ["x"]
        world.check_folder(Path("nowhere"))  # does nothing: no other process uses the folder


def test_errors_of_a_single_process_are_raised_unchanged() -> None:
    mistake = InputError("config.yaml: wrong")
    with pytest.raises(InputError) as caught, World().share_errors():
        raise mistake
    assert caught.value is mistake


def test_missing_devices_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="got 'cuda'"), init_distributed("cuda"):
        pass
    with init_distributed("auto") as world:
        assert world.device == torch.device("cpu")
    with pytest.raises(InputError, match="device must be cpu, cuda or auto, got 'tpu'"), init_distributed("tpu"):
        pass


def test_more_processes_than_gpus_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for name, value in (("WORLD_SIZE", "4"), ("LOCAL_WORLD_SIZE", "4"), ("LOCAL_RANK", "0")):
        monkeypatch.setenv(name, value)
    # Processes with a GPU raise the error as well: otherwise they would wait for the others.
    with pytest.raises(CommonError, match="4 processes on a machine with 2 GPUs"), init_distributed("cuda"):
        pass


def test_is_lost_recognizes_connection_errors() -> None:
    assert _is_lost(RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:3"))
    assert _is_lost(RuntimeError("Connection reset by peer")) and _is_lost(dist.DistBackendError("NCCL error"))
    assert not _is_lost(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


def test_sigterm_is_noted_and_the_handler_restored() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with note_termination() as is_terminated:
        assert not is_terminated()
        signal.raise_signal(signal.SIGTERM)
        assert is_terminated()
    assert signal.getsignal(signal.SIGTERM) is before and STATUS == 143


def test_note_termination_does_nothing_in_other_threads() -> None:
    noted: list[bool] = []

    def work() -> None:
        with note_termination() as is_terminated:
            noted.append(is_terminated())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert noted == [False]


@pytest.mark.parametrize(("size", "message"), [("2", "is 2, but RANK is not set"), ("two", "must be a whole number")])
def test_variables_that_torchrun_did_not_set_raise(monkeypatch: pytest.MonkeyPatch, size: str, message: str) -> None:
    monkeypatch.setenv("WORLD_SIZE", size)
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(InputError, match=f"WORLD_SIZE {message}"), init_distributed("cpu"):
        pass
