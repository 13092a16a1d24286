"""`tsallis info --check` detects every kind of fault in every result of every function of a backend."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import stand_in
import tsallis
from tsallis.ops import choice, cpu, registry
from tsallis.ops.protocol import OPERATIONS
from tsallis.ops.sparse_rows import CsrRows
from tsallis.toolkit.cli import self_check
from tsallis.toolkit.cli.self_check import FAMILIES, Row, measure, survey

CPU = torch.device("cpu")
Fault = Callable[[Any], Any]


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace all backends except the eager one by a stand-in without faults."""
    monkeypatch.delenv(choice.VARIABLE, raising=False)
    entries = {"eager": registry.BACKENDS["eager"], "stand-in": registry.Entry("stand_in", ("cpu",))}
    monkeypatch.setattr(registry, "BACKENDS", entries)
    monkeypatch.setattr(choice, "BACKENDS", entries)
    monkeypatch.setattr(choice, "_AUTO", {"cpu": ("stand-in",)})
    monkeypatch.setattr(stand_in, "FAULTS", {})


def check(family: str, dtype: torch.dtype = torch.float32) -> Row:
    return measure("stand-in", CPU, dtype, family)


def of(index: int, change: Callable[[Tensor], Tensor]) -> Fault:
    def fault(results: Any) -> Any:
        entries = list(results)
        if entries[index] is not None:
            entries[index] = change(entries[index])
        return type(results)(*entries) if hasattr(results, "_fields") else tuple(entries)

    return fault


def larger(x: Tensor) -> Tensor:
    return x * 1.01


def first_off(x: Tensor) -> Tensor:
    x = x.clone()
    x.view(-1)[0] += 0.1
    return x


def broken(x: Tensor) -> Tensor:
    raise RuntimeError("an illegal memory access was encountered")


FAULTS: list[tuple[str, str, Fault, str]] = [
    ("maps", "entmax", larger, "output"),
    ("maps", "entmax", lambda p: torch.where(p > 0.5, torch.nan, p), "output"),
    ("maps", "entmax", lambda p: p[..., :-1], "RuntimeError"),
    ("maps", "entmax", broken, "RuntimeError: an illegal memory access"),
    ("maps", "entmax_gradient", of(0, larger), "gradient of scores"),
    ("maps", "entmax_gradient", of(1, lambda x: -x), "gradient of alpha"),
    ("losses", "entmax_loss", of(0, first_off), "output"),
    ("losses", "entmax_loss", of(2, larger), "gradient of alpha"),
    ("losses", "entmax_loss_gradient", lambda x: x.roll(1, -1), "gradient of scores"),
    ("alpha-ReLU", "alpha_relu_loss", of(0, lambda x: x + 0.01), "output"),
    ("alpha-ReLU", "alpha_relu_loss_gradient", larger, "gradient of scores"),
    ("output layer", "support_sizes", lambda x: (x - 1).clamp(min=0), ""),
    ("output layer", "support", of(1, larger), "linear_entmax_loss"),
    ("output layer", "support", of(0, lambda x: x.roll(1)), "linear_entmax_loss"),
    ("output layer", "alpha_relu_support", of(1, larger), "linear_alpha_relu_loss"),
    ("output layer", "spmm", of(0, first_off), "gradient of"),
    ("output layer", "transpose", lambda x: CsrRows(x.offsets, x.column, x.value.neg()), "gradient of"),
    ("attention", "attention", of(0, first_off), "output"),
    ("attention", "attention", of(1, lambda x: x * 2 + 5), "support"),
    ("attention", "attention", broken, "attention, few keys RuntimeError: an illegal memory access"),
    *(
        ("attention", "attention_gradient", of(index, larger), f"gradient of {name}")
        for index, name in enumerate(("query", "key", "value", "alpha", "attn_mask", "slopes"))
    ),
]


@pytest.mark.parametrize(("family", "function", "fault", "words"), FAULTS)
def test_every_fault_is_noticed(family: str, function: str, fault: Fault, words: str) -> None:
    stand_in.FAULTS[function] = fault
    row = check(family)
    assert not row.agrees
    assert words in f"{row.case} {row.message}"


def test_faults_cover_the_functions_of_every_family() -> None:
    tested = {function for _, function, *_ in FAULTS}
    assert {function for family in FAMILIES for function in OPERATIONS[family]} <= tested


@pytest.mark.parametrize("dtype", stand_in.DTYPES, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_correct_backend_passes(family: str, dtype: torch.dtype) -> None:
    row = check(family, dtype)
    assert row.agrees, row
    assert row.error > 0  # something was compared


def test_a_backend_is_checked_only_within_its_alpha_range(monkeypatch: pytest.MonkeyPatch) -> None:
    alphas: list[float] = []

    def entmax(scores: Tensor, alpha: Any, dim: int = -1) -> Tensor:
        alphas.extend(torch.as_tensor(alpha).flatten().tolist())
        return registry.load("eager").entmax(scores, alpha, dim)

    monkeypatch.setattr(stand_in, "CAPABILITIES", stand_in.CAPABILITIES._replace(alphas=(1.5, 3.0)))
    monkeypatch.setattr(stand_in, "entmax", entmax)
    assert check("maps").agrees
    assert (min(alphas), max(alphas)) == (1.5, 3.0)


@pytest.mark.skipif(not cpu.status().available, reason=f"needs kernel: {cpu.status().reason}")
def test_compiled_cpu_kernels_match_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.BACKENDS, "cpu", registry.Entry("tsallis.ops.cpu", ("cpu",)))
    with tsallis.backend("cpu"):
        rows = list(survey())
    assert [row for row in rows if not row.agrees] == []
    assert {row.family for row in rows} == set(FAMILIES)
    assert {row.dtype for row in rows} == {str(dtype).removeprefix("torch.") for dtype in cpu.CAPABILITIES.dtypes}


def test_every_family_is_compared_in_every_dtype() -> None:
    stand_in.FAULTS["alpha_relu_loss"] = lambda result: (result[0] + 1, result[1])
    rows = list(survey())
    names = {str(dtype).removeprefix("torch.") for dtype in stand_in.DTYPES}
    assert {(row.family, row.dtype) for row in rows} == {(family, dtype) for family in FAMILIES for dtype in names}
    assert {row.family for row in rows if not row.agrees} == {"alpha-ReLU", "output layer"}
    assert all(row.device == "cpu" and row.seconds > 0 for row in rows)


@pytest.mark.parametrize("as_json", [False, True])
def test_the_command_reports_a_wrong_backend_and_exits_with_1(
    as_json: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    typer = pytest.importorskip("typer")
    from tsallis.toolkit.cli.info import info

    monkeypatch.setattr(self_check, "FAMILIES", {"maps": FAMILIES["maps"]})

    def wrong() -> list[bool]:
        lines = capsys.readouterr().out.splitlines()
        if as_json:
            return [not json.loads(line, parse_constant=pytest.fail)["agrees"] for line in lines if "agrees" in line]
        return ["WRONG: entmax of " in line for line in lines if line.startswith("stand-in")]

    info(check=True, as_json=as_json)
    assert wrong() == [False] * len(stand_in.DTYPES)
    for fault in (lambda p: p + 1, lambda p: p / 0):
        stand_in.FAULTS["entmax"] = fault
        with pytest.raises(typer.Exit) as leave:
            info(check=True, as_json=as_json)
        assert leave.value.exit_code == 1 and sum(wrong()) == len(stand_in.DTYPES)


def test_only_a_requested_and_available_backend_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    with tsallis.backend("eager"):
        assert list(survey()) == []
    monkeypatch.setattr(stand_in, "status", lambda: stand_in.Status(False, "off"))
    assert list(survey()) == []


def test_one_gpu_of_each_kind_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.BACKENDS, "stand-in", registry.Entry("stand_in", ("cuda",)))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert self_check._devices("stand-in") == []
    with tsallis.backend("stand-in"):
        assert self_check._devices("stand-in") == [torch.device("cpu")]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "ABA"[index])
    assert sorted(device.index for device in self_check._devices("stand-in")) == [1, 2]
