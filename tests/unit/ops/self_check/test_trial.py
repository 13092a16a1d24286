"""How numbers are compared, and which result stands for all."""

from __future__ import annotations

import math

import pytest
import torch

from tsallis.ops.self_check.trial import Result, Trial


def trial(dtype: torch.dtype = torch.float32) -> Trial:
    return Trial("eager", torch.device("cpu"), dtype)


def compare(actual: list[float], expected: list[float], dtype: torch.dtype = torch.float32, **options: float) -> Result:
    run = trial(dtype)
    with run.kernel("map"):
        run.compare("values", torch.tensor(actual), torch.tensor(expected, dtype=torch.float64), 1e-3, **options)
    return run.result


def test_errors_are_relative_to_the_largest_number_or_to_one() -> None:
    assert compare([0.5, 0.1], [0.5, 0.1009]).agrees
    assert not compare([0.5, 0.1], [0.5, 0.1011]).agrees
    assert compare([100.0, 0.05], [100.0, 0.1]).agrees
    result = compare([0.5, 0.3], [0.5, 0.1])
    assert result.kernel == "map, values" and result.error == pytest.approx(0.2) and result.limit == 1e-3


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_is_wrong(bad: float) -> None:
    assert compare([0.5, bad], [0.5, 0.5]).error > 1e300
    assert not compare([0.5, bad], [0.5, 0.5]).agrees


def test_half_precision_may_be_some_steps_away() -> None:
    step = torch.finfo(torch.bfloat16).eps
    assert not compare([0.5 + step / 2], [0.5]).agrees
    assert compare([0.5 + step / 2], [0.5], torch.bfloat16).agrees
    assert not compare([0.5 + 2 * step], [0.5], torch.bfloat16).agrees
    assert not compare([0.5 + step / 2], [0.5], torch.bfloat16, rounding=0).agrees


def test_float64_has_smaller_limits() -> None:
    run = trial(torch.float64)
    right = torch.tensor([0.5], dtype=torch.float64)
    run.compare("values", right + 1e-5, right, 1e-3)
    assert not run.result.agrees


def test_products_in_fewer_bits_have_a_larger_limit() -> None:
    assert trial().sum_limit(1e-4) == 1e-4
    try:
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        assert trial().sum_limit(1e-4) == pytest.approx(2.1e-3)
        assert trial(torch.float16).sum_limit(1e-4) == pytest.approx(1e-4 + 2 * 2**-10)
        torch.set_float32_matmul_precision("highest")
        assert trial().sum_limit(1e-4) == 1e-4
        torch.set_float32_matmul_precision("high")  # PyTorch's older setting
        assert trial().sum_limit(1e-4) == pytest.approx(2.1e-3)
    finally:
        torch.set_float32_matmul_precision("highest")


def test_the_first_that_is_wrong_stands_for_all_else_the_one_next_to_its_limit() -> None:
    run = trial()
    run.results = [Result("a", 0.1, 1.0), Result("b", 0.4, 2.0)]
    assert run.result.kernel == "b"
    run.results += [Result("c", 3.0, 2.0), Result("d", 9.0, 1.0)]
    assert run.result.kernel == "c"


def test_an_exception_is_a_result() -> None:
    run = trial()
    with run.kernel("map"):
        raise ValueError("no such\n instruction")
    with run.kernel("loss"):
        run.compare("values", torch.zeros(2), torch.zeros(3, dtype=torch.float64), 1.0)
    assert [each.message for each in run.results] == ["ValueError: no such instruction", "shape (2,) instead of (3,)"]
    assert not any(each.agrees for each in run.results)
