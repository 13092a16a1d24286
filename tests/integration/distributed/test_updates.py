"""Two processes make the same updates as one, with every strategy."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from integration.distributed.conftest import Launch
from integration.distributed.parts import DEV, KINDS, SETTINGS, model, plain
from integration.distributed.updates import updated
from tsallis.toolkit.evaluation.teacher_forcing import teacher_forced_scores
from tsallis.toolkit.training.distributed import World
from tsallis.toolkit.training.engine import Engine

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    """Return the results of one process: after its first updates, and after repeating them."""
    actual: dict[str, Any] = {}
    for kind in KINDS:
        engine = Engine(model(kind), SETTINGS, World())
        sums = updated(engine, World())
        parameters, optimizer = plain(engine.state()[0]), plain(engine.state()[1])
        metrics = asdict(teacher_forced_scores(engine.unsharded_model(), DEV, 4))
        updated(engine, World())
        result = {"sums": sums, "model": parameters, "optimizer": optimizer, "forced": metrics}
        actual[kind] = {**result, "later": plain(engine.state()[0])}
    return actual


@pytest.fixture(scope="module")
def two_processes(alone: dict[str, Any], launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("updates")
    stored, out, request = folder / "stored.pt", folder / "out.pt", folder / "asked.json"
    states = {kind: {name: result[name] for name in ("model", "optimizer")} for kind, result in alone.items()}
    torch.save(states, stored)
    request.write_text(json.dumps({"stored": str(stored), "out": str(out)}))
    launch(Path(__file__).with_name("updates.py"), request)
    result: dict[str, Any] = torch.load(out, weights_only=True)
    return result


def assert_same(result: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert list(result) == list(expected)
    for name, value in expected.items():
        torch.testing.assert_close(result[name], value, atol=1e-8, rtol=1e-7, msg=name)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_processes_match_one_process(
    alone: dict[str, Any], two_processes: dict[str, Any], kind: str, strategy: str
) -> None:
    """Parameters, losses, optimizer and metrics must agree; states of one process load on two, and vice versa."""
    result, expected = two_processes[f"{kind}, {strategy}"], alone[kind]
    for (symbols, loss), (expected_symbols, expected_loss) in zip(result["sums"], expected["sums"], strict=True):
        assert symbols == expected_symbols and loss == pytest.approx(expected_loss, rel=1e-8)
    assert_same(result["model"], expected["model"])
    optimizer = result["optimizer"]
    assert optimizer["state"].keys() == expected["optimizer"]["state"].keys()
    assert optimizer["param_groups"] == expected["optimizer"]["param_groups"]
    for name, moments in expected["optimizer"]["state"].items():
        assert_same(optimizer["state"][name], moments)
    assert result["forced"] == pytest.approx(expected["forced"], rel=1e-6)
    assert_same(two_processes[f"{kind}, {strategy}, from one"]["model"], expected["later"])
    engine = Engine(model(kind), SETTINGS, World())
    engine.load(result["model"], optimizer)
    updated(engine, World())
    assert_same(engine.state()[0], expected["later"])
