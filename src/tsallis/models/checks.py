"""Checks of arguments that several models share."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from tsallis.models.protocol import DecoderOutput

ATTENDING = ("discrete", "continuous", "combined")


def check_counts(src_lengths: Tensor, width: int, shortest: int = 1) -> None:
    """Refuse counts of symbols that don't fit rows of a width; there is at least one row.

    Raises:
        ValueError: counts below the shortest or above the width of `src`.
    """
    counts = src_lengths.tolist()
    if not shortest <= min(counts) <= max(counts) <= width:
        raise ValueError(f"src_lengths must be from {shortest} to {width}, the width of src, got {counts}")


def check_last_pass(recorded: Sequence[int] | None, decoded: DecoderOutput) -> None:
    """Refuse to speak of a pass by the record of another one.

    Args:
        recorded: rows and steps of the model's last pass; None: it was compiled, or there was none.
        decoded: the result of the pass that is asked for.

    Raises:
        RuntimeError: there is no record, or one of another shape.
    """
    if recorded is None:
        raise RuntimeError("attended positions are recorded by passes that are not compiled, and there was none")
    rows, steps = decoded.hidden.shape[:2]
    if tuple(recorded) != (rows, steps):
        raise RuntimeError(
            f"attended positions are those of the model's last pass, of {recorded[0]} rows and {recorded[1]} steps; "
            f"asked for one of {rows} and {steps}"
        )


def check_attending(layers: int, dropout: float, attention: str, density: str | float | None) -> None:
    """Refuse arguments of a model whose attention is discrete, continuous or both.

    Raises:
        ValueError: sizes that are too small, an attention that is unknown, a density where there is none.
    """
    if layers < 1:
        raise ValueError(f"layers must be at least 1, got {layers}")
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must be at least 0 and below 1, got {dropout}")
    if attention not in ATTENDING:
        raise ValueError(f"attention must be one of {', '.join(ATTENDING)}, got {attention!r}")
    if density is not None and attention == "discrete":
        raise ValueError(f"discrete attention has no density, got {density!r}")
