"""The file of results: what is written is read, what is broken is ignored, and nothing of it is executed."""

from __future__ import annotations

import json
import math
import threading
from pathlib import Path

import pytest

from tsallis.ops.self_check import memory
from tsallis.ops.self_check.trial import Result

KIND = {"device": "Stand-in 1000", "driver": "7.5"}
RESULTS = {
    ("maps", "torch.float32"): Result("entmax", 1e-7, 1e-5),
    ("losses", "torch.float16"): Result("entmax_loss", math.inf, 1e-5, "RuntimeError: no"),
}


def test_what_is_stored_is_loaded(cache: Path) -> None:
    assert memory.load(KIND) == {}
    assert memory.store(KIND, RESULTS)
    assert memory.load(KIND) == RESULTS
    more = {("maps", "torch.float32"): Result("entmax", 2e-7, 1e-5), ("attention", "torch.float32"): Result("a", 0, 1)}
    memory.store(KIND, more)
    assert memory.load(KIND) == {**RESULTS, **more}
    assert [path.name for path in cache.iterdir()] == [f"{memory.digest(KIND)}.json"]


def test_another_kind_has_another_file() -> None:
    memory.store(KIND, RESULTS)
    for name in KIND:
        assert memory.load({**KIND, name: "other"}) == {}


def test_a_file_that_says_another_kind_is_ignored() -> None:
    memory.store(KIND, RESULTS)
    other = {**KIND, "driver": "8"}
    memory.file_of(KIND).rename(memory.file_of(other))
    assert memory.load(other) == {}


def damage(content: str) -> list[bytes]:
    good = json.loads(content)
    entry = good["results"][0]
    wrong = [
        {**good, "version": memory.VERSION + 1},
        {**good, "results": [{**entry, "error": "0"}]},
        {**good, "results": [{**entry, "error": True}]},
        {**good, "results": [{**entry, "kernel": 3}]},
        {**good, "results": [{**entry, "family": None}]},
        {**good, "results": [entry, 7]},
        {**good, "results": 7},
        {**good, "kind": [1]},
        [],
        7,
        None,
    ]
    files = [json.dumps(each).encode() for each in wrong]
    return [*files, b"", content[:40].encode(), b"\xff\xfe\0", b"[" * 100_000, content.encode()[:-1], b"NaN"]


def test_what_is_broken_is_ignored_and_replaced() -> None:
    memory.store(KIND, RESULTS)
    path = memory.file_of(KIND)
    content = path.read_text()
    for bad in damage(content):
        path.write_bytes(bad)
        assert memory.load(KIND) == {}, bad[:60]
        assert memory.store(KIND, RESULTS)
        assert path.read_text() == content


def test_a_folder_that_cannot_be_written_is_no_error(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.parent.write_text("a file in the folder's place")
    assert not memory.store(KIND, RESULTS)
    assert memory.load(KIND) == {}

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(memory, "user_cache", homeless)
    assert not memory.store(KIND, RESULTS)
    assert memory.load(KIND) == {}


def test_a_disk_that_is_full_leaves_the_old_file(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory.store(KIND, RESULTS)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(json, "dump", full)
        assert not memory.store(KIND, {("attention", "torch.float32"): Result("a", 0, 1)})
    assert memory.load(KIND) == RESULTS
    assert len(list(cache.iterdir())) == 1


def test_writers_and_readers_at_once_never_meet_half_a_file() -> None:
    memory.store(KIND, RESULTS)
    losses: list[object] = []

    def work(number: int) -> None:
        for step in range(60):
            memory.store(KIND, {(f"family {number}", "torch.float32"): Result("k" * step * 50, 0, 1)})
            if not RESULTS.items() <= memory.load(KIND).items():
                losses.append(step)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not losses
