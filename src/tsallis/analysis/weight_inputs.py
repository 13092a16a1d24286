"""Check attention weights and tokens from a caller, and split them by layer and sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tsallis.analysis.spelling import spell_tokens
from tsallis.errors import describe

Layers = Sequence[Tensor | None]  # [sentences, heads, queries, keys] per layer; None for a layer that is left out
Tokens = Sequence[str] | Sequence[Sequence[str]]  # tokens of one sentence, or of each sentence
Pieces = list[tuple[str, ...]]  # pieces of each sentence


class LayerWeights(NamedTuple):
    """Attention weights of one layer for all sentences."""

    name: str  # name of the tensor in errors, such as "attention[1]"
    number: int
    sentences: list[Tensor]  # [heads, queries, keys] per sentence, without padding

    @property
    def heads(self) -> int:
        """Return the number of heads."""
        return len(self.sentences[0])


def read_tokens(argument: str, tokens: Tokens | None) -> Pieces:
    """Return the pieces of each sentence.

    Args:
        argument: Name of the argument in errors.
        tokens: Tokens of one sentence, or of each sentence.

    Raises:
        TypeError: A token is not a string.
        ValueError: There are no tokens, or a sentence has none.
    """
    if tokens is None:
        raise ValueError(f"{argument} must be given, got None")
    if not _is_sequence(tokens):
        raise TypeError(f"{argument} must be a sequence of strings, got {describe(tokens)}")
    sentences: Sequence[Any] = [tokens] if all(isinstance(token, str) for token in tokens) else tokens
    for number, sentence in enumerate(sentences):
        invalid = [token for token in sentence if not isinstance(token, str)] if _is_sequence(sentence) else [sentence]
        if invalid:
            raise TypeError(
                f"{argument} must be a list of strings, or one list of strings per sentence, got {describe(invalid[0])}"
            )
        if not sentence:
            raise ValueError(f"{argument} must have at least one token per sentence, got none in sentence {number}")
    return spell_tokens(sentences)


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def split_layers(
    argument: str, attention: Any, queries: Pieces, keys: Pieces, tolerance: float = 0.01
) -> list[LayerWeights]:
    """Return the weights of each layer without padding; layers that are None are left out.

    Args:
        argument: Name of the argument in errors.
        attention: One tensor or None per layer.
        queries, keys: Pieces of each sentence.
        tolerance: Maximum difference between the sum of a row and 1.

    Raises:
        TypeError: A layer is not a floating-point tensor.
        ValueError: A shape does not match the tokens, or there are no layers.
    """
    if not _is_sequence(attention):
        raise TypeError(f"{argument} must be a sequence with one tensor per layer, got {_describe(attention)}")
    sizes = [(len(q), len(k)) for q, k in zip(queries, keys, strict=True)]
    layers = []
    for number, tensor in enumerate(attention):
        if tensor is not None:
            name = f"{argument}[{number}]"
            _check_shape(name, tensor, sizes)
            rows = [_remove_padding(tensor[row].detach(), *size, tolerance) for row, size in enumerate(sizes)]
            layers.append(LayerWeights(name, number, rows))
    if not layers:
        raise ValueError(
            f"{argument} must have the weights of at least one layer, got {describe(attention)}; "
            "Transformers models return weights with attn_implementation='eager' and output_attentions=True"
        )
    return layers


def _remove_padding(weights: Tensor, queries: int, keys: int, tolerance: float) -> Tensor:
    """Return the weights [heads, queries, keys] of a sentence without its padding, which may have any values.

    Padding is before or after the tokens, for queries and keys separately. The choice with the most rows that sum to 1
    wins.
    """

    def count_valid_rows(part: Tensor) -> int:
        sums = part.to(torch.promote_types(part.dtype, torch.float32)).sum(-1)
        return int((((sums - 1).abs() <= tolerance) & (part >= 0).all(-1)).sum())

    padding = weights.shape[1] - queries, weights.shape[2] - keys
    starts = dict.fromkeys([(0, 0), padding, (0, padding[1]), (padding[0], 0)])
    return max((weights[:, q : q + queries, k : k + keys] for q, k in starts), key=count_valid_rows)


def _check_shape(name: str, tensor: Any, sizes: Sequence[tuple[int, int]]) -> None:
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
        raise TypeError(f"{name} must be a floating-point tensor or None, got {_describe(tensor)}")
    queries, keys = (max(side) for side in zip(*sizes, strict=True))
    shape = list(tensor.shape)
    if len(shape) != 4 or shape[0] != len(sizes) or 0 in shape or shape[2] < queries or shape[3] < keys:
        tokens = f"{queries} {'token' if queries == 1 else 'tokens'} for queries and {keys} for keys"
        longest = "the sentence has" if len(sizes) == 1 else "the longest sentences have"
        raise ValueError(
            f"{name} must have shape [{len(sizes)}, heads, {queries}, {keys}] or a larger shape with padding, "
            f"got {shape}; {longest} {tokens}"
        )


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of {str(value.dtype).removeprefix('torch.')} with shape {list(value.shape)}"
    return describe(value) if value is None or isinstance(value, str | int | float) else type(value).__name__


def attends_ahead(layers: Sequence[LayerWeights]) -> bool:
    """Return whether any query of self-attention has a weight on a later key."""
    return any(bool(weights.triu(1).any()) for layer in layers for weights in layer.sentences)


def check_values(layers: Sequence[LayerWeights], causal: bool, tolerance: float) -> None:
    """Check that weights are at least 0, and that the weights of each query sum to 1 or are all 0.

    Args:
        layers: Weights of each layer.
        causal: Whether weights on later keys must be 0.
        tolerance: Maximum difference between a sum and 1.

    Raises:
        ValueError: A weight or a sum is wrong; the error names the first wrong value.
    """
    for layer in layers:
        for row, weights in enumerate(layer.sentences):
            _check_row(f"{layer.name}[{row}, ", weights, causal, tolerance)


def _check_row(place: str, weights: Tensor, causal: bool, tolerance: float) -> None:
    values = weights.to(torch.promote_types(weights.dtype, torch.float32))
    for index in _first_index(~((values >= 0) & values.isfinite())):
        raise ValueError(f"{place}{_format_index(index)} must be finite and at least 0, got {values[index].item():g}")
    for index in _first_index(values.triu(1) > 0) if causal else ():
        raise ValueError(
            f"{place}{_format_index(index)} must be 0 for a key after the query, got {values[index].item():g}; "
            "pass causal=False if queries attend to later keys"
        )
    sums = values.sum(-1)  # [heads, queries]
    for index in _first_index(((sums - 1).abs() > tolerance) & (sums > 0)):
        raise ValueError(
            f"{place}{_format_index(index)} must sum to 1 within {tolerance:g} over {values.shape[-1]} keys, got "
            f"{sums[index].item():.4g}: record the weights after model.eval(), and pass all tokens except padding"
        )


def _first_index(faults: Tensor) -> list[tuple[int, ...]]:
    """Return a list with the index of the first True, or an empty list."""
    return [tuple(index) for index in faults.nonzero()[:1].tolist()]


def _format_index(index: tuple[int, ...]) -> str:
    return f"{', '.join(map(str, index))}]"
