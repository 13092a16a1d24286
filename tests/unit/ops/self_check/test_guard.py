"""What "auto" computes with on a device that must be checked first: kernels that agree, else PyTorch's operations."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import stand_in
import tsallis
from tsallis.nn import OutputLayer
from tsallis.ops import protocol
from tsallis.ops.self_check import evidence, guard, memory
from tsallis.ops.self_check.families import measure
from tsallis.ops.self_check.trial import Result
from unit.ops.self_check.conftest import forget

pytestmark = pytest.mark.usefixtures("device")
Y = torch.tensor([1, 2, 0])


@pytest.fixture(autouse=True)
def checks(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, torch.dtype]]:
    """Families and dtypes that were compared."""
    pairs: list[tuple[str, torch.dtype]] = []

    def count(name: str, device: torch.device, dtype: torch.dtype, family: str) -> Result:
        pairs.append((family, dtype))
        result = measure(name, device, dtype, family)
        stand_in.CALLS.clear()
        return result

    monkeypatch.setattr(guard, "measure", count)
    return pairs


def scores(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape or (3, 9)).to(dtype).requires_grad_()


def attention(query: Tensor) -> Tensor:
    return tsallis.entmax_attention(query, query, query)  # type: ignore[return-value]


# How users call each family, the functions that compute it, and one of them.
USES: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...], str]] = {
    "maps": (tsallis.entmax15, (3, 9), "entmax"),
    "losses": (lambda z: tsallis.entmax_loss(z, Y), (3, 9), "entmax_loss_gradient"),
    "alpha-ReLU": (lambda z: tsallis.alpha_relu_loss(z, Y), (3, 9), "alpha_relu_loss"),
    "output layer": (lambda h: tsallis.linear_entmax_loss(h, torch.ones(7, 9).triu(), Y), (3, 9), "transpose"),
    "attention": (attention, (1, 2, 5, 4), "attention_gradient"),
}


def off(result: Any) -> Any:
    """Add to the first tensor of a result."""
    if isinstance(result, Tensor):
        return result + 0.05
    entries = list(result)
    index = 2 if hasattr(result, "offsets") else 0
    entries[index] = entries[index] + 0.05
    return type(result)(*entries) if hasattr(result, "_fields") else tuple(entries)


def run(family: str, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return a result and its gradient."""
    weight = USES[family][0](x)
    (gradient,) = torch.autograd.grad(weight.square().sum(), x)
    return weight, gradient


@pytest.mark.parametrize("family", USES)
def test_kernels_that_agree_are_used_and_checked_once(family: str, checks: list[Any], cache: Path) -> None:
    x = scores(*USES[family][1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(family, x)
        own = [each for each in checks if each[0] == family]
        stand_in.CALLS.clear()
        run(family, x)
    assert own == [(family, torch.float32)] and len(checks) == len(set(checks))
    assert stand_in.CALLS and set(stand_in.CALLS) <= set(dir(stand_in)) | {"attention", "attention_gradient"}
    assert len(list(cache.iterdir())) == 1


@pytest.mark.parametrize("fault", [off, lambda _: 1 / 0], ids=["wrong", "an exception"])
@pytest.mark.parametrize("family", USES)
def test_kernels_that_are_wrong_are_left_to_operations_with_one_warning(
    family: str, fault: Callable[[Any], Any], checks: list[Any]
) -> None:
    x = scores(*USES[family][1])
    weight = torch.randn(7, 9, requires_grad=True)
    uses = dict(USES)
    if family == "output layer":  # the transposition is of gradients of the weight
        uses[family] = (lambda h: tsallis.linear_entmax_loss(h, weight, Y), (3, 9), "transpose")
    function = uses[family][0]

    def both() -> list[Tensor]:
        result = function(x)
        needs = [x, weight] if family == "output layer" else [x]
        return [result, *torch.autograd.grad(result.square().sum(), needs)]

    with tsallis.backend("eager"):
        right = both()
    stand_in.FAULTS[uses[family][2]] = fault
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter("always")
        results = [both() for _ in range(3)]
    for result in results:
        for mine, theirs in zip(result, right, strict=True):
            torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=1e-5)
    (message,) = (str(each.message) for each in records)
    assert f"tsallis computes {family} in float32 on Stand-in 1000 with PyTorch's operations" in message
    assert ("ZeroDivisionError" if fault is not off else "error ") in message
    assert "driver 7.5" in message and "Please report" in message and "tsallis info --check" in message
    assert checks.count((family, torch.float32)) == 1
    stand_in.CALLS.clear()
    both()
    assert uses[family][2] not in stand_in.CALLS


def test_a_fault_in_one_family_or_dtype_leaves_the_others_alone() -> None:
    stand_in.FAULTS["entmax"] = lambda p: p + 0.05 if p.dtype == torch.bfloat16 else p
    with pytest.warns(UserWarning, match="computes maps in bfloat16") as records:
        for dtype in stand_in.DTYPES:
            run("maps", scores(dtype=dtype))
            run("losses", scores(dtype=dtype))
    assert len(records) == 1
    stand_in.CALLS.clear()
    assert tsallis.sparsemax(scores(dtype=torch.bfloat16)).dtype == torch.bfloat16
    assert not stand_in.CALLS
    tsallis.sparsemax(scores())
    assert stand_in.CALLS == ["entmax"]


def test_what_was_measured_is_remembered_by_the_next_process(checks: list[Any]) -> None:
    stand_in.FAULTS["entmax_loss"] = off
    with pytest.warns(UserWarning, match="computes losses"):
        run("losses", scores())
    run("maps", scores())
    assert len(checks) == 2
    forget()
    with pytest.warns(UserWarning, match="computes losses") as records:
        run("losses", scores())
    run("maps", scores())
    assert len(records) == 1 and len(checks) == 2


def test_an_exception_is_forgotten_by_the_next_process(checks: list[Any]) -> None:
    stand_in.FAULTS["entmax"] = lambda _: 1 / 0
    with pytest.warns(UserWarning, match=r"fail there .* The next process tries again"):
        run("maps", scores())
    run("maps", scores())
    assert len(checks) == 1
    stand_in.FAULTS.clear()
    forget()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run("maps", scores())
    assert len(checks) == 2


def test_another_kind_of_device_is_checked_anew(checks: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    run("maps", scores())
    for name in stand_in.KIND:
        forget()
        monkeypatch.setattr(stand_in, "KIND", {**stand_in.KIND, name: "another"})
        run("maps", scores())
    assert len(checks) == 1 + len(stand_in.KIND)


def test_a_broken_file_is_written_anew(checks: list[Any]) -> None:
    run("maps", scores())
    path = memory.file_of(stand_in.KIND)
    whole = path.read_text()
    path.write_text(whole[:50])
    forget()
    run("maps", scores())
    assert len(checks) == 2 and path.read_text() == whole


def test_without_a_cache_folder_every_process_checks(checks: list[Any], cache: Path) -> None:
    cache.parent.write_text("a file in the folder's place")
    for _ in range(2):
        run("maps", scores())
        run("maps", scores())
        forget()
    assert len(checks) == 2


def test_the_environment_switches_it_off_or_asks_for_it(checks: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in.FAULTS["entmax"] = off
    monkeypatch.setenv(guard.VARIABLE, "0")
    assert tsallis.sparsemax(torch.tensor([0.0, 5.0])).tolist() == pytest.approx([0.05, 1.05])
    stand_in.FAULTS.clear()
    monkeypatch.setenv(guard.VARIABLE, "force")
    for number in (1, 2):
        forget()
        run("maps", scores())
        run("maps", scores())
        assert len(checks) == number
    forget()
    monkeypatch.setenv(guard.VARIABLE, "maybe")
    with pytest.raises(ValueError, match="TSALLIS_SELF_CHECK must be 0, 1 or force, got 'maybe'"):
        tsallis.sparsemax(torch.zeros(2))


def test_who_asks_for_the_kernels_by_name_gets_them(checks: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in.FAULTS["entmax"] = off
    with tsallis.backend("stand-in"):
        tsallis.sparsemax(scores())
        attention(scores(1, 2, 5, 4))
    assert stand_in.CALLS == ["entmax", "attention"] and not checks


def test_where_there_is_evidence_nothing_is_checked(checks: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert evidence.EVIDENCE == ()  # no result of a GPU is committed
    monkeypatch.setattr(evidence, "EVIDENCE", ({"device": "Stand-in 1000", "sources": "abc"}, {}))
    run("maps", scores())
    attention(scores(1, 2, 5, 4))
    assert not checks and stand_in.CALLS
    assert not evidence.has_evidence({**stand_in.KIND, "sources": "abd"})
    assert not evidence.has_evidence({})


def test_threads_that_come_at_once_wait_for_one_check(checks: list[Any]) -> None:
    results: list[Tensor] = []
    x = scores()
    threads = [threading.Thread(target=lambda: results.append(tsallis.entmax15(x))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(checks) == 1 and all(torch.equal(results[0], each) for each in results[1:]) and len(results) == 4


@pytest.mark.parametrize("fault", [False, True])
def test_the_first_call_may_be_traced(fault: bool, checks: list[Any]) -> None:
    stand_in.FAULTS.update({"attention": off, "entmax": off} if fault else {})

    @torch.compile(backend="aot_eager", fullgraph=True)
    def function(x: Tensor) -> Tensor:
        return tsallis.entmax15(attention(x))

    torch._dynamo.reset()
    x = scores(1, 2, 5, 4)
    with tsallis.backend("eager"):
        right = tsallis.entmax15(attention(x))
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter("always")
        actual = function(x)
        function(x)
    torch.testing.assert_close(actual, right)
    torch.testing.assert_close(*(torch.autograd.grad(y.square().sum(), x)[0] for y in (actual, right)))
    assert sum("tsallis computes" in str(each.message) for each in records) == 2 * fault
    assert sorted(family for family, _ in checks) == ["attention", "maps"]
    stand_in.CALLS.clear()
    function(x)
    assert ([] if fault else ["attention", "entmax"]) == stand_in.CALLS


def test_the_first_call_may_be_transformed_or_in_a_backward_pass(checks: list[Any]) -> None:
    x = scores()
    with tsallis.backend("eager"):
        right = torch.func.vmap(torch.func.grad(lambda z: tsallis.entmax15(z)[0]))(x)
        expected = torch.autograd.grad(tsallis.entmax_loss(x, Y), x)[0]
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(lambda z: tsallis.entmax15(z)[0]))(x), right)

    class Late(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, z: Tensor) -> Tensor:
            ctx.save_for_backward(z)
            return z.sum()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            with torch.enable_grad():
                z = ctx.saved_tensors[0].detach().requires_grad_()
                return torch.autograd.grad(tsallis.entmax_loss(z, Y), z)[0] * grad

    (gradient,) = torch.autograd.grad(Late.apply(x), x)
    torch.testing.assert_close(gradient, expected)
    with torch.inference_mode():
        tsallis.alpha_relu_loss(x, Y)
    y = checkpoint(lambda h: attention(h).sum(), scores(1, 2, 5, 4), use_reentrant=False)
    y.backward()
    assert {"maps", "losses", "alpha-ReLU", "attention"} == {family for family, _ in checks}


@pytest.mark.parametrize("reason", ["capture", "memory"])
@pytest.mark.parametrize("family", USES)
def test_where_nothing_can_be_compared_now_the_kernels_compute_and_it_is_made_up_for(
    family: str, reason: str, checks: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = scores(*USES[family][1])
    with tsallis.backend("eager"):
        right = run(family, x)
    with monkeypatch.context() as patch:
        if reason == "capture":
            patch.setattr(guard, "_capturing", lambda _: True)
        else:

            def full(*_: Any) -> None:
                raise torch.OutOfMemoryError("CUDA out of memory")

            patch.setattr(guard, "measure", full)
        result = USES[family][0](x)
    assert stand_in.CALLS and not checks
    # Decided between the passes: statistics of the kernels go back to them.
    stand_in.FAULTS["entmax_loss" if family == "output layer" else USES[family][2]] = off
    with pytest.warns(UserWarning, match="tsallis computes"):
        run(family, x)
    stand_in.FAULTS.clear()
    (gradient,) = torch.autograd.grad(result.square().sum(), x)
    torch.testing.assert_close((result, gradient), right)


def test_it_has_everything_that_a_backend_has() -> None:
    mixed = guard.backend_for("stand-in", scores())
    assert type(mixed) is guard.MixedBackend
    names = {name for operation in mixed.CAPABILITIES.operations for name in protocol.OPERATIONS[operation]}
    names |= {"CAPABILITIES", "status", "usable", "on_device"}
    assert {name for name in names if not hasattr(mixed, name)} == set()


def test_the_best_symbols_of_a_search_need_no_kernel() -> None:
    layer, x = OutputLayer(9, 20, alpha=1.5), torch.randn(3, 20)
    with tsallis.backend("eager"):
        right = layer.best_symbols(x, 4, 2)
    stand_in.FAULTS["entmax"] = off
    torch.testing.assert_close(layer.best_symbols(x, 4, 2), right)


def test_a_call_afterwards_costs_no_function_of_the_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    run("maps", scores())
    attention(scores(1, 2, 5, 4))

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("something is decided again")

    with monkeypatch.context() as patch:
        for name in ("agrees", "check", "recall", "kind_of", "mode", "_new_backend"):
            patch.setattr(guard, name, refuse)
        run("maps", scores())
        attention(scores(1, 2, 5, 4))
