"""Check arguments that several models share."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from tsallis.errors import check_integer, check_one_of
from tsallis.functional.rows import check_integers
from tsallis.models.protocol import DecoderOutput
from tsallis.ops.transforms import traced

ATTENDING = ("discrete", "continuous", "combined")
OUTPUTS = ("softmax", "sparsemax", "entmax")


def check_counts(src: Tensor, src_lengths: Tensor, shortest: int = 1) -> Tensor:
    """Return the counts of symbols [batch] in the rows of `src` [batch, src] as int64; a traced pass checks no values.

    Raises:
        TypeError: The counts are not integers.
        ValueError: There is not one count per row, or a count is below the minimum or above the width of `src`.
    """
    check_integers(src_lengths, "src_lengths")
    if not traced():
        counts, (batch, width) = src_lengths.tolist(), src.shape[:2]
        if src_lengths.shape != (batch,):
            raise ValueError(f"src_lengths must have the shape ({batch},), got {tuple(src_lengths.shape)}")
        if counts and not shortest <= min(counts) <= max(counts) <= width:
            raise ValueError(f"src_lengths must be from {shortest} to {width}, the width of src, got {counts}")
    return src_lengths.long()


def check_last_pass(recorded: Sequence[int] | None, decoded: DecoderOutput) -> None:
    """Raise if the recorded pass did not compute `decoded`.

    Args:
        recorded: Rows and steps of the model's last pass; None: the pass was compiled, or there was no pass.
        decoded: Result of the requested pass.

    Raises:
        RuntimeError: There is no record, or its shape differs.
    """
    if recorded is None:
        raise RuntimeError("no attended positions are recorded: run the model without torch.compile first")
    rows, steps = decoded.hidden.shape[:2]
    if tuple(recorded) != (rows, steps):
        raise RuntimeError(
            "attended positions are stored only for the last pass of the model. The last pass had "
            f"{recorded[0]} rows and {recorded[1]} steps, but the requested pass has {rows} rows and {steps} steps."
        )


def check_attending(layers: int, dropout: float, attention: str, density: str | float | None, output: str) -> None:
    """Raise if arguments of a model with discrete or continuous attention are invalid.

    Raises:
        ValueError: A size is too small, the attention or output is unknown, or a density is given for discrete
            attention.
    """
    check_integer("layers", layers, 1)
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must be at least 0 and below 1, got {dropout}")
    check_one_of("attention", attention, ATTENDING)
    check_one_of("output", output, OUTPUTS)
    if density is not None and attention == "discrete":
        raise ValueError(f"density must be None with discrete attention, got {density!r}")
