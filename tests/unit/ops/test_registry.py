"""Tests that every registered backend has the functions that it lists, with the parameters of the protocol."""

from __future__ import annotations

import importlib
import inspect
from types import SimpleNamespace
from typing import Any

import pytest

from tsallis.ops import eager, registry
from tsallis.ops.protocol import OPERATIONS, Backend
from tsallis.ops.registry import BACKENDS, Entry


def parameters(function: Any) -> dict[str, tuple[Any, Any]]:
    return {x.name: (x.kind, x.default) for x in inspect.signature(function).parameters.values() if x.name != "self"}


@pytest.mark.parametrize("name", BACKENDS)
def test_functions_have_the_parameters_of_the_protocol(name: str) -> None:
    backend = registry.load(name)
    functions = ["status", "usable", "on_device"]
    functions += [function for each in backend.CAPABILITIES.operations for function in OPERATIONS[each]]
    for function in functions:
        expected, actual = parameters(getattr(Backend, function)), parameters(getattr(backend, function))
        added = [default for parameter, (_, default) in actual.items() if parameter not in expected]
        assert inspect.Parameter.empty not in added, function
        assert {parameter: actual[parameter] for parameter in expected} == expected, function
        assert list(actual)[: len(expected)] == list(expected), function


@pytest.mark.parametrize("name", BACKENDS)
def test_operations_without_functions_are_modules(name: str) -> None:
    for operation in registry.load(name).CAPABILITIES.operations:
        if not OPERATIONS[operation]:
            importlib.import_module(f"{BACKENDS[name].module}.{operation}")


def test_every_function_of_the_protocol_belongs_to_one_operation() -> None:
    functions = [function for each in OPERATIONS.values() for function in each]
    named = {name for name, value in vars(Backend).items() if inspect.isfunction(value) and not name.startswith("_")}
    assert sorted([*functions, "status", "usable", "on_device"]) == sorted(named)


INVALID = [
    (("maps", "losses"), "operation 'losses' needs a function entmax_loss"),
    (("maps", "map"), "operations must be among maps, .*, got 'map'"),
    (("maps", "output layer"), "'output layer' needs 'losses' and 'alpha-ReLU'"),
]


@pytest.mark.parametrize(("operations", "words"), INVALID)
def test_invalid_operation_lists_raise(
    operations: tuple[str, ...], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    can = eager.CAPABILITIES._replace(operations=operations)
    module = SimpleNamespace(CAPABILITIES=can, entmax=eager.entmax, entmax_gradient=eager.entmax_gradient)
    monkeypatch.setitem(BACKENDS, "toy", Entry("toy", ()))
    monkeypatch.setattr(importlib, "import_module", lambda _: module)
    with pytest.raises(TypeError, match=f"backend 'toy': .*{words}"):
        registry.load("toy")
