"""Run a model in evaluation mode."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import nn


def _all_modules(model: Any) -> list[nn.Module]:
    """Return all modules of a model; shared modules may occur twice. Direct access to dictionaries saves time."""
    modules = [model] if isinstance(model, nn.Module) else []
    for module in modules:
        modules += [part for part in module.__dict__["_modules"].values() if part is not None]
    return modules


@contextlib.contextmanager
def eval_mode(model: Any) -> Iterator[None]:
    """Switch all parts of a model to eval mode inside the context, and restore their modes."""
    training = [m for m in _all_modules(model) if m.training]
    if training:
        model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
