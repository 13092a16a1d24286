"""Every comparison that a machine allows, and the command that prints them."""

from __future__ import annotations

import json

import pytest
import torch

import stand_in
import tsallis
from tsallis.ops import registry
from tsallis.ops.self_check import survey as module
from tsallis.ops.self_check.survey import FAMILIES, survey


@pytest.fixture(autouse=True)
def _one_backend(device: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "BACKENDS", {name: registry.BACKENDS[name] for name in ("eager", "stand-in")})


def test_every_family_is_compared_in_every_dtype() -> None:
    stand_in.FAULTS["alpha_relu_loss"] = lambda result: (result[0] + 1, result[1])
    rows = list(survey())
    names = {str(dtype).removeprefix("torch.") for dtype in stand_in.DTYPES}
    assert {(row.family, row.dtype) for row in rows} == {(family, dtype) for family in FAMILIES for dtype in names}
    assert {row.family for row in rows if not row.result.agrees} == {"alpha-ReLU"}
    assert all(row.device == "cpu" and row.seconds > 0 for row in rows)


@pytest.mark.parametrize("as_json", [False, True])
def test_the_command_reports_a_wrong_kernel_and_exits_with_1(as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    typer = pytest.importorskip("typer")
    from tsallis.toolkit.cli.info import info

    def wrong() -> list[bool]:
        lines = capsys.readouterr().out.splitlines()
        if as_json:
            return [not json.loads(line, parse_constant=pytest.fail)["agrees"] for line in lines if "agrees" in line]
        return ["WRONG: entmax of short rows" in line for line in lines if line.startswith("stand-in")]

    info(check=True, as_json=as_json)
    assert wrong() == [False] * len(FAMILIES) * len(stand_in.DTYPES)
    stand_in.FAULTS["entmax"] = lambda p: p + 1
    with pytest.raises(typer.Exit) as leave:
        info(check=True, as_json=as_json)
    assert leave.value.exit_code == 1 and sum(wrong()) == len(stand_in.DTYPES)
    stand_in.FAULTS["entmax"] = lambda p: p / 0
    with pytest.raises(typer.Exit):
        info(check=True, as_json=as_json)
    assert sum(wrong()) == len(stand_in.DTYPES)


def test_only_a_requested_and_available_backend_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    with tsallis.backend("eager"):
        assert list(survey()) == []
    monkeypatch.setattr(stand_in, "status", lambda: stand_in.Status(False, "off"))
    assert list(survey()) == []


def test_one_gpu_of_each_kind_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.BACKENDS, "stand-in", registry.Entry("stand_in", ("cuda",)))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert module._devices("stand-in") == []
    with tsallis.backend("stand-in"):
        assert module._devices("stand-in") == [torch.device("cpu")]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "ABA"[index])
    assert sorted(device.index for device in module._devices("stand-in")) == [1, 2]
