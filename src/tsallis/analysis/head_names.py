"""Name single heads by kind, layer and number, such as `encoder.1.2`."""

from __future__ import annotations

from collections.abc import Sequence

from tsallis.analysis.weights import AttentionLayer
from tsallis.errors import InputError, describe

Head = tuple[AttentionLayer, int]  # layer, and number of the head in this layer, from 0


def head_name(layer: AttentionLayer, head: int) -> str:
    """Return the name of a head.

    >>> head_name(AttentionLayer("encoder", 0, (1.5, 1.5)), 1)
    'encoder.1.2'
    """
    return f"{layer.kind}.{layer.layer + 1}.{head + 1}"


def choose_heads(layers: Sequence[AttentionLayer], names: str) -> list[Head]:
    """Return the heads with the given names, each once.

    Args:
        layers: Attention modules of a model.
        names: "all", or names such as "encoder.1.2,cross.3.1", in which layers and heads count from 1.

    Raises:
        InputError: The model does not have a named head.

    Example:
        >>> layers = [AttentionLayer("encoder", 0, (1.0, 1.5)), AttentionLayer("cross", 0, (2.0, 2.0))]
        >>> [head_name(*head) for head in choose_heads(layers, "cross.1.2,encoder.1.1")]
        ['cross.1.2', 'encoder.1.1']
    """
    known = {head_name(layer, head): (layer, head) for layer in layers for head in range(layer.heads)}
    if names == "all":
        return [*known.values()]
    missing = next((name for name in names.split(",") if name not in known), None)
    if missing is not None:
        first, last = next(iter(known)), next(reversed(known))
        raise InputError(f"heads must be all or names from {first} to {last}, got {describe(missing)}")
    return [known[name] for name in dict.fromkeys(names.split(","))]
