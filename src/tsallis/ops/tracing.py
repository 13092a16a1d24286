"""Mark functions for torch.compile without importing its tracer, which alone takes a second and 75 MB."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")


def constant(function: Callable[P, T]) -> Callable[P, T]:
    """Let a tracer call a function and take its result as known: `torch.compiler.assume_constant_result`.

    That decorator sets this mark too, and a test compares them; but it imports the tracer before anyone compiles.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def untraced(function: Callable[P, T]) -> Callable[P, T]:
    """Keep a function, and what it calls, out of a tracer's graphs: `torch.compiler.disable`, at the first trace."""

    hidden: list[Callable[P, T]] = []

    @constant
    def hide() -> None:
        if not hidden:
            hidden.append(torch.compiler.disable(function))

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if not torch.compiler.is_compiling():
            return function(*args, **kwargs)
        hide()
        return hidden[0](*args, **kwargs)

    return call
