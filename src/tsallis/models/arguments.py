"""Record the arguments of a model, so that a saved run can create the model again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def constructor_arguments(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of an `__init__` from its `locals()`; call this before `__init__` sets local variables.

    >>> class Model:
    ...     def __init__(self, d_model, layers=2):
    ...         super().__init__()
    ...         self.arguments = constructor_arguments(locals())
    >>> Model(8).arguments
    {'d_model': 8, 'layers': 2}
    """
    return {name: value for name, value in variables.items() if name not in ("self", "__class__")}


def untrained_copy(model: Any) -> Any:
    """Return a new model with the same arguments; both models share the attributes in `model.shared`."""
    copy = type(model)(**model.arguments)
    for name in getattr(model, "shared", ()):
        setattr(copy, name, getattr(model, name))
    if unknown := getattr(getattr(model, "output", None), "unknown", ()):  # copied symbols outside the vocabulary
        copy.output.unknown = unknown
    return copy
