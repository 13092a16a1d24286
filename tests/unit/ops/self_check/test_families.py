"""What a family's comparison notices: every function made wrong, in every result and by any fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import stand_in
from tsallis.ops import cpu
from tsallis.ops.protocol import OPERATIONS
from tsallis.ops.self_check.survey import FAMILIES, families_of, measure
from tsallis.ops.sparse_rows import CsrRows

pytestmark = pytest.mark.usefixtures("device")
CPU = torch.device("cpu")
Fault = Callable[[Any], Any]


def of(index: int, change: Callable[[Tensor], Tensor]) -> Fault:
    """Return a fault of one of several results."""

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
    ("maps", "entmax", larger, "probabilities"),
    ("maps", "entmax", lambda p: torch.where(p > 0.5, torch.nan, p), "probabilities"),
    ("maps", "entmax", lambda p: p[..., :-1], "shape"),
    ("maps", "entmax", broken, "RuntimeError: an illegal memory access"),
    ("maps", "entmax_gradient", of(0, larger), "gradient of the scores"),
    ("maps", "entmax_gradient", of(1, lambda x: -x), "gradient of alpha"),
    ("losses", "entmax_loss", of(0, first_off), "losses"),
    ("losses", "entmax_loss", of(2, larger), "gradient of alpha"),
    ("losses", "entmax_loss_gradient", lambda x: x.roll(1, -1), "gradient of the scores"),
    ("losses", "support_sizes", lambda x: (x - 1).clamp(min=0), ""),
    ("losses", "support", of(1, larger), "support"),
    ("losses", "support", of(0, lambda x: x.roll(1)), "support"),
    ("alpha-ReLU", "alpha_relu_loss", of(0, lambda x: x + 0.01), "losses"),
    ("alpha-ReLU", "alpha_relu_loss_gradient", larger, "gradient of the scores"),
    ("alpha-ReLU", "alpha_relu_support", of(1, larger), "support"),
    ("output layer", "spmm", of(0, first_off), "sums"),
    ("output layer", "spmm", of(1, larger), "sums of the values"),
    ("output layer", "transpose", lambda x: CsrRows(x.offsets, x.column, x.value.neg()), "values by class"),
    ("attention", "attention", of(0, first_off), "output"),
    ("attention", "attention", of(1, lambda x: x * 2 + 5), "sizes of supports"),
    ("attention", "attention", broken, "attention of few keys RuntimeError: an illegal memory access"),
    *(
        ("attention", "attention_gradient", of(index, larger), f"gradient of {name}")
        for index, name in enumerate(("query", "key", "value", "alphas", "mask"))
    ),
]


@pytest.mark.parametrize(("family", "function", "fault", "words"), FAULTS)
def test_every_fault_is_noticed(family: str, function: str, fault: Fault, words: str) -> None:
    stand_in.FAULTS[function] = fault
    result = measure("stand-in", CPU, torch.float32, family)
    assert not result.agrees
    assert words in f"{result.kernel} {result.message}"


def test_functions_of_every_family_have_a_fault() -> None:
    tested = {function for _, function, *_ in FAULTS}
    assert {function for family in FAMILIES for function in OPERATIONS[family]} <= tested


@pytest.mark.parametrize("dtype", stand_in.DTYPES, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_right_agrees(family: str, dtype: torch.dtype) -> None:
    result = measure("stand-in", CPU, dtype, family)
    assert result.agrees, result
    assert result.error > 0  # something was compared


@pytest.mark.skipif(not cpu.status().available, reason=f"needs kernel: {cpu.status().reason}")
@pytest.mark.parametrize("dtype", cpu.CAPABILITIES.dtypes, ids=str)
def test_the_compiled_kernels_agree(dtype: torch.dtype) -> None:
    families = families_of("cpu", dtype)
    assert set(FAMILIES) - set(families) <= {"attention"}
    for family in families:
        result = measure("cpu", CPU, dtype, family)
        assert result.agrees, (family, result)


def test_lists_of_alpha_relu_in_one_pass_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    def alpha_relu_one_pass(hidden: Tensor, *_: Any) -> tuple[Tensor, CsrRows]:
        offsets = torch.zeros(len(hidden) + 1, dtype=torch.long)
        return hidden.new_zeros(len(hidden)), CsrRows(offsets, offsets[:0].int(), hidden.new_zeros(0))

    monkeypatch.setattr(stand_in, "alpha_relu_one_pass", alpha_relu_one_pass, raising=False)
    can = stand_in.CAPABILITIES._replace(operations=(*stand_in.OPERATIONS, "one pass"))
    monkeypatch.setattr(stand_in, "CAPABILITIES", can)
    result = measure("stand-in", CPU, torch.float32, "output layer")
    assert not result.agrees and "in one pass, losses" in result.kernel
