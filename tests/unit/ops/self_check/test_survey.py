"""Every comparison that a machine allows, and who is left out."""

from __future__ import annotations

import json

import pytest
import torch

import stand_in
import tsallis
from tsallis.ops import registry
from tsallis.ops.self_check import guard, memory
from tsallis.ops.self_check.families import FAMILIES
from tsallis.ops.self_check.survey import devices, survey


@pytest.fixture(autouse=True)
def _one_backend(device: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "BACKENDS", {name: registry.BACKENDS[name] for name in ("eager", "stand-in")})


def test_every_family_in_every_dtype_is_compared_and_remembered() -> None:
    stand_in.FAULTS["alpha_relu_loss"] = lambda result: (result[0] + 1, result[1])
    rows = list(survey())
    names = {str(dtype).removeprefix("torch.") for dtype in stand_in.DTYPES}
    assert {(row.family, row.dtype) for row in rows} == {(family, dtype) for family in FAMILIES for dtype in names}
    assert {row.family for row in rows if not row.result.agrees} == {"alpha-ReLU"}
    assert all(row.kind == stand_in.KIND and row.seconds > 0 for row in rows)
    assert memory.load(stand_in.KIND) == {(row.family, f"torch.{row.dtype}"): row.result for row in rows}


def test_what_is_wrong_no_more_is_right_afterwards() -> None:
    stand_in.FAULTS["entmax"] = lambda p: p + 1
    list(survey())
    stand_in.FAULTS.clear()
    list(survey())
    assert tsallis.sparsemax(torch.tensor([0.0, 5.0])).tolist() == [0.0, 1.0]  # and no warning


def test_the_command_prints_a_line_for_each_and_its_status_tells(capsys: pytest.CaptureFixture[str]) -> None:
    typer = pytest.importorskip("typer")
    from tsallis.toolkit.cli.info import info

    info(check=True)
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("stand-in") for line in lines) == len(FAMILIES) * len(stand_in.DTYPES)
    assert json.loads(lines[-1]) == stand_in.KIND and not any("WRONG" in line for line in lines)
    stand_in.FAULTS["entmax"] = lambda p: p + 1
    with pytest.raises(typer.Exit) as leave:
        info(check=True)
    assert leave.value.exit_code == 1
    lines = capsys.readouterr().out.splitlines()
    assert sum("WRONG: entmax of short rows" in line for line in lines) == len(stand_in.DTYPES)


def test_only_the_backend_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with tsallis.backend("eager"):
        assert list(survey()) == []
    monkeypatch.setattr(stand_in, "status", lambda: stand_in.Status(False, "off"))
    assert list(survey()) == []


def test_a_device_of_every_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = [{"device": "A"}, {"device": "B"}, {"device": "A"}]
    monkeypatch.setitem(registry.BACKENDS, "stand-in", registry.Entry("stand_in", ("cuda",), True))
    assert devices("stand-in") == [torch.device("cpu")]
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "device_count", lambda: 3)
        patch.setattr(guard, "kind_of", lambda name, device: kinds[device.index])
        assert sorted(device.index for device in devices("stand-in")) == [0, 1]
