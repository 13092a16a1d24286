"""Check the arguments of searches: options, sources, targets and prefixes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from tsallis.errors import check_integer, check_real, describe
from tsallis.nn import OutputLayer
from tsallis.search.options import OPTIONS, PENALTY
from tsallis.symbols import BOS, EOS, IGNORE_INDEX, PAD

LARGEST_SIZE = 2**53  # maximum size of a beam, list or length; kernels count in 64 bits
LARGEST_SEED = 2**64 - 1
OPTIONAL = ("n_best", "min_length", "max_length")  # sizes that may be None


def check_at_least_one(**sizes: Any) -> None:
    """Raise unless every size is an integer of at least 1; the sizes in `OPTIONAL` may be None.

    Raises:
        TypeError: An argument is not an integer.
        ValueError: A size is below 1 or above 2**53.
    """
    for name, value in sizes.items():
        if (value is not None or name not in OPTIONAL) and check_integer(name, value, 1) > LARGEST_SIZE:
            raise ValueError(f"{name} must be at most {LARGEST_SIZE}, got {describe(value)}")


def check_limits(min_length: Any, max_length: Any, length_penalty: Any) -> None:
    """Raise unless lengths and length penalty are valid.

    Raises:
        TypeError: An argument is not a number.
        ValueError: A number is out of range, or the lengths contradict each other.
    """
    check_at_least_one(max_length=max_length)
    check_at_least_one(min_length=check_integer("min_length", min_length, 0) or None)
    if max_length is not None and min_length > max_length:
        raise ValueError(f"min_length must be at most max_length {max_length}, got {min_length}")
    check_real("length_penalty", length_penalty, 0, PENALTY)


def check_goal(mass: Any, normalized: bool, **limits: Any) -> None:
    """Raise unless `mass` and other limits of a search are in range.

    Raises:
        TypeError: An argument is not a number.
        ValueError: A number is out of range, or `mass` is used with outputs that don't sum to 1.
    """
    for name, value in {"mass": mass, **limits}.items():
        info = OPTIONS[name]
        if value is not None:
            check_real(name, value, info.minimum, info.maximum, inside=info.inside)
    if mass is not None and not normalized:
        raise ValueError(f"mass {mass:g} needs a model whose probabilities sum to 1; those of alpha-ReLU do not")


def check_seeds(seeds: Any, sources: int) -> list[int]:
    """Return one seed per source.

    Raises:
        TypeError: The argument is not a sequence of integers.
        ValueError: The number of seeds is wrong, or a seed is negative or needs more than 64 bits.
    """
    if not is_sequence(seeds):
        raise TypeError(f"seeds must be a sequence with one integer for each source, got {describe(seeds)}")
    numbers = [check_integer("a seed", seed, 0) for seed in seeds]
    if len(numbers) != sources:
        raise ValueError(f"seeds must have one seed per source, got {len(numbers)} seeds for {sources} sources")
    if (largest := max(numbers, default=0)) > LARGEST_SEED:
        raise ValueError(f"a seed must be at most {LARGEST_SEED}, got {describe(largest)}")
    return numbers


def check_prefix(tokens: Any, name: str) -> tuple[int, ...]:
    """Return the symbols of a prefix.

    Raises:
        TypeError: The argument is not a sequence of integers.
        ValueError: A symbol is padding, start, end or negative.
    """
    if not is_sequence(tokens):
        raise TypeError(f"{name} must be a sequence of symbols, got {describe(tokens)}")
    symbols = tuple(check_integer(f"a symbol of {name}", token, -LARGEST_SIZE, LARGEST_SIZE) for token in tokens)
    if any(token in (PAD, BOS, EOS) for token in symbols):
        raise ValueError(
            f"{name} must not contain the symbols {PAD} (padding), {BOS} (start) or {EOS} (end), got {list(symbols)}"
        )
    if (smallest := min(symbols, default=0)) < 0:
        raise ValueError(f"a symbol of {name} must be at least 0, got {smallest}")
    return symbols


def check_sources(model: Any, src: Any, src_lengths: Any) -> list[int]:
    """Return the lengths of a batch of sources.

    Raises:
        TypeError: An argument is not a tensor, or the lengths are not integers.
        ValueError: Shapes don't match, a length exceeds the width, or a symbol is not in the vocabulary.
    """
    for name, value in (("src", src), ("src_lengths", src_lengths)):
        if not isinstance(value, Tensor):
            raise TypeError(f"{name} must be a tensor, got {describe(value)}")
    if src_lengths.is_floating_point() or src_lengths.is_complex() or src_lengths.dtype == torch.bool:
        raise TypeError(f"src_lengths must be a tensor of integers, got {_dtype(src_lengths)}")
    if src.dim() < 2 or src_lengths.shape != src.shape[:1]:
        shapes = f"{list(src.shape)} and {list(src_lengths.shape)}"
        raise ValueError(f"src must have shape [batch, src] and src_lengths [batch], got {shapes}")
    lengths: list[int] = src_lengths.tolist()
    if lengths and not 0 <= min(lengths) <= max(lengths) <= src.shape[1]:
        raise ValueError(f"src_lengths must be from 0 to {src.shape[1]}, the width of src, got {describe(lengths)}")
    for member in getattr(model, "models", (model,)):
        table = getattr(member, "src_embedding", None) or getattr(member, "embedding", None)
        if (size := getattr(table, "num_embeddings", None)) is not None:
            size += len(getattr(member.output, "unknown", ()))  # add symbols that can only be copied from the source
            _check_symbols("src", src, size)
    return lengths


def check_targets(model: Any, src: Tensor, tgt_in: Any, tgt_out: Any) -> tuple[Tensor, Tensor]:
    """Return the targets of a batch of sources as int64.

    Raises:
        TypeError: An argument is not a tensor of integers.
        ValueError: Shapes don't match, or a symbol is not in the vocabulary.
    """
    for name, value in (("tgt_in", tgt_in), ("tgt_out", tgt_out)):
        if not isinstance(value, Tensor):
            raise TypeError(f"{name} must be a tensor, got {describe(value)}")
    if tgt_in.shape != tgt_out.shape or tgt_in.dim() != 2 or len(tgt_in) != len(src):
        raise ValueError(
            f"tgt_in and tgt_out must both have shape [{len(src)}, tgt], "
            f"got {list(tgt_in.shape)} and {list(tgt_out.shape)}"
        )
    for member in getattr(model, "models", (model,)):
        # Other outputs, such as those of a classifier, may have symbols without a row in the matrix.
        size = member.output.d_vocab if isinstance(member.output, OutputLayer) else None
        _check_symbols("tgt_in", tgt_in, size)
        _check_symbols("tgt_out", tgt_out.masked_fill(tgt_out == IGNORE_INDEX, 0), size)
    return tgt_in.long(), tgt_out.long()


def is_sequence(value: Any) -> bool:
    """Return whether a value is iterable, but not a string; a tensor without dimensions is not iterable."""
    return isinstance(value, Iterable) and not isinstance(value, str) and getattr(value, "ndim", 1) > 0


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _check_symbols(name: str, symbols: Tensor, size: int | None) -> None:
    if symbols.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"{name} must be a tensor of int64 or int32, got {_dtype(symbols)}")
    if not symbols.numel():
        return
    smallest, largest = (int(value) for value in symbols.aminmax())
    if smallest < 0 or (size is not None and largest >= size):
        span = "at least 0" if size is None else f"from 0 to {size - 1}"
        raise ValueError(f"symbols of {name} must be {span}, got {smallest if smallest < 0 else largest}")
