"""Define the interface of a backend: its functions and its capabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from tsallis.ops.alphas import Alpha
from tsallis.ops.arguments import AttentionArgs, AttentionGradients, BestSymbols, RecurrentWeights, StackWeights
from tsallis.ops.sparse_rows import CsrRows

# The functions of each operation. A backend defines all functions of an operation, or none of them.
OPERATIONS: dict[str, tuple[str, ...]] = {
    "maps": ("entmax", "entmax_gradient"),
    "losses": ("entmax_loss", "entmax_loss_gradient"),
    "alpha-ReLU": ("alpha_relu_loss", "alpha_relu_loss_gradient"),
    # Supports are read from the statistics of the losses, so a backend with an output layer must define both losses.
    "output layer": ("support_sizes", "support", "alpha_relu_support", "spmm", "transpose"),
    "one pass": ("alpha_relu_one_pass",),  # an output layer of alpha-ReLU that needs no buffer of scores
    "search": ("best_symbols", "log_entmax"),
    "dropout": ("drop",),
    # Each of these operations is a file in the backend's folder: `attention.py` for `AttentionKernels`, and so on.
    "attention": (),
    "screening": (),
    "transformer": (),
    "recurrent": (),
    "beams": (),
}


class Capabilities(NamedTuple):
    """Operations that a backend supports; all other calls go to `eager`."""

    operations: tuple[str, ...]  # keys of `OPERATIONS`
    dtypes: tuple[torch.dtype, ...]
    alphas: tuple[float, float] = (1.0, 2.0)  # the smallest and the largest alpha
    any_dim: bool = False  # whether entmax works along any dimension of contiguous scores, not only the last
    row_statistics: bool = True  # whether losses save a few numbers per row for backward, not whole rows
    asynchronous: bool = False  # whether calls return before the results are computed, so that reading a number waits
    # Other dtypes are upcast before the call.
    attention_dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.float64)
    largest_head: float = math.inf  # largest size of a query, key or value in attention
    largest_batch: float = math.inf  # largest batch size and number of heads in attention


class Status(NamedTuple):
    """Whether a backend can be used, and the reason in one line."""

    available: bool
    reason: str


class Backend(Protocol):
    """A backend: a module that computes some operations on tensors that the callers have checked.

    Interface:
        CAPABILITIES: The operations, dtypes and alphas that the backend supports.
        The functions of each operation in `CAPABILITIES.operations`, see `OPERATIONS`. No other functions are called.
        status, usable, on_device: Whether the backend can be used. Default: always, on the CPU.

    Tensors are contiguous, not empty, on one device, and of a dtype in `CAPABILITIES.dtypes`. Alphas lie within
    `CAPABILITIES.alphas`. All other calls go to `eager`. Scores of -inf get probability 0. A row with only -inf returns
    zeros and has zero gradients. A row with a NaN returns NaN. Half precision is computed in float32, and results have
    the dtype of the input. Backends compute first-order gradients; `ops/autograd` computes all other derivatives.
    """

    CAPABILITIES: Capabilities

    def status(self) -> Status:
        """Return whether the backend can be used, and the reason."""

    def usable(self) -> bool:
        """Return whether the backend can be used now; warn once if it can't."""

    def on_device(self, kind: str) -> bool:
        """Return whether the backend computes tensors on a type of device such as "cpu" or "cuda"."""

    # Entmax. Scores are contiguous, in one of the dtypes. Alpha is a number, or a tensor [rows, 1] in float64 for
    # float64 scores and in float32 otherwise.

    def entmax(self, scores: Tensor, alpha: Alpha, dim: int = -1) -> Tensor:
        """Return probabilities along a dimension, which is -1 or at least 0."""

    def entmax_gradient(
        self, probs: Tensor, grad: Tensor, alpha: Alpha, need_alpha: bool, dim: int = -1
    ) -> tuple[Tensor, Tensor | None]:
        """Return the gradient of the scores, and the gradient of alpha [rows, 1] if `need_alpha`."""

    # Losses. Scores are [rows, classes]. Targets are classes [rows]; negative targets are ignored. Only the backend
    # reads the statistics, which are a tensor or a tuple of tensors and numbers.

    def entmax_loss(
        self, scores: Tensor, target: Tensor, alpha: Alpha, need_alpha: bool, save_support: bool = False
    ) -> tuple[Tensor, Any, Tensor | None]:
        """Return three values: losses [rows]; statistics; and dL/d alpha [rows, 1] or None.

        With `save_support`, the statistics may include supports, and only :meth:`entmax_loss_gradient` can read them.
        """

    def entmax_loss_gradient(
        self, scores: Tensor, target: Tensor, alpha: Alpha, stats: Any, grad: Tensor, out: Tensor | None = None
    ) -> Tensor:
        """Return the gradient of the scores from the gradients of the losses [rows]; `out` may be `scores`."""

    def alpha_relu_loss(self, scores: Tensor, target: Tensor, alpha: float, tau: float) -> tuple[Tensor, Any]:
        """Return two values: alpha-ReLU losses [rows] for a constant threshold; and statistics."""

    def alpha_relu_loss_gradient(
        self, scores: Tensor, target: Tensor, alpha: float, stats: Any, grad: Tensor, out: Tensor | None = None
    ) -> Tensor:
        """Return the gradient of the scores for the alpha-ReLU loss."""

    # Output layer and loss in one operation: supports as sparse rows, and products of sparse rows with tables.

    def support_sizes(self, scores: Tensor, alpha: Alpha, stats: Any, target: Tensor) -> Tensor:
        """Return the support size of each row [rows], int64; 0 for ignored targets."""

    def support(
        self, scores: Tensor, alpha: Alpha, stats: Any, offsets: Tensor, size: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return classes (int32) and probabilities of each row's support; `size` is the last offset or None."""

    def alpha_relu_support(
        self, scores: Tensor, alpha: float, stats: Any, offsets: Tensor, size: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return classes (int32) and alpha-ReLU values of each row's support."""

    def spmm(
        self,
        lists: CsrRows,
        table: Tensor,
        *,
        scale: Tensor | None = None,
        minus: Tensor | None = None,
        need_total: bool = False,
        onto: Tensor | None = None,
        factor: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return `out[r] = scale[r] (sum_k value[k] table[column[k]] - table[minus[r]])`, and each row's sum of values.

        Rows with a negative `minus` subtract nothing. With `onto`, add the result to `factor[0] * onto` in place.
        """

    def transpose(self, lists: CsrRows, classes: int, weight: Tensor, target: Tensor) -> CsrRows:
        """Return one list per class: (row, value * weight[row]) per value, and (row, -weight[row]) per target."""

    # Output layer of alpha-ReLU in one pass.

    def alpha_relu_one_pass(
        self,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        alpha: float,
        tau: float,
        share: float,
    ) -> tuple[Tensor, CsrRows] | None:
        """Return alpha-ReLU losses and supports without a buffer of scores, or None if unsupported."""

    # Dropout from a seed.

    def drop(self, x: Tensor, keep_prob: float, seed: int, out: Tensor) -> Tensor:
        """Apply dropout with a seed below 2**64; equal seeds drop the same entries, and `out` may be `x`."""

    # Search for the most probable outputs.

    def best_symbols(
        self, scores: Tensor, alpha: float, tau: float | None, count: int, end: int, only: Tensor | None = None
    ) -> BestSymbols:
        """Return the most probable symbols of each row of scores [rows, symbols].

        Args:
            scores: Scores; -inf for excluded symbols.
            alpha: Alpha of entmax or alpha-ReLU.
            tau: Threshold of alpha-ReLU; None: use entmax.
            count: Number of symbols, at most the size of the vocabulary.
            end: End symbol, whose log-probability is returned separately.
            only: Symbol to which each row is restricted [rows]. Negative values and None allow all symbols.
        """

    def log_entmax(self, scores: Tensor, alpha: float) -> Tensor:
        """Return the log-probabilities of rows of scores [rows, symbols] in float64; -inf outside the support."""


class AttentionKernels(Protocol):
    """Attention kernels of a backend, in the file `attention.py` or the package `attention` of its folder."""

    SavedForBackward: type[Any]  # NamedTuple of tensors; includes the results `output` and `support`

    def attention(self, args: AttentionArgs, needs_grad: bool) -> tuple[Tensor, Tensor, Any]:
        """Return the output, the number of keys per query, and the data for backward if `needs_grad`."""

    def attention_gradient(
        self, args: AttentionArgs, saved: Any, grad: Tensor, needs: Sequence[bool]
    ) -> AttentionGradients:
        """Return at least the gradients that `needs` marks."""

    def drop_factors(self, args: AttentionArgs) -> Tensor:
        """Return the factors by which dropout multiplies all weights [batch, heads, queries, keys]."""

    def resolve(self, args: AttentionArgs) -> AttentionArgs:
        """Return an operator's arguments in the form that kernels take; check values that a tracer could not read."""

    def allocate(self, args: AttentionArgs, output: Tensor, support: Tensor, needs_grad: bool) -> Any:
        """Allocate the data that backward needs for these results."""


class ScreeningKernels(Protocol):
    """Attention that scans keys in 8 bits, in the file `screening.py` of a backend's folder."""

    MIN_KEYS: int  # with fewer keys a scan saves nothing
    ScreenedRows: type[Any]  # keys in 8 bits; has `attend`, `lists`, `weights` and `select`

    def screens(self, args: AttentionArgs) -> bool:
        """Return whether a scan may be faster than the dense kernel, and computes the same."""


class TransformerKernels(Protocol):
    """Transformer kernels of a backend, in the file `transformer.py` of its folder."""

    CompiledEncoder: type[Any]  # constructed from StackWeights; has the method `encode`
    CompiledDecoder: type[Any]  # constructed from StackWeights and OutputWeights; has `project` and `step`

    def computes(self, weights: StackWeights) -> bool:
        """Return whether the kernels support layers of these sizes and alphas."""


class RecurrentKernels(Protocol):
    """Kernels of recurrent decoders, in the file `recurrent.py` of a backend's folder."""

    CompiledDecoder: type[Any]  # constructed from RecurrentWeights and OutputWeights; has `start` and `step`

    def computes(self, weights: RecurrentWeights) -> bool:
        """Return whether the kernels support this alpha."""


class BeamKernels(Protocol):
    """Beam management of a backend, in the file `beams.py` of its folder."""

    Beams: type[Any]  # constructed from BeamLimits per source, BeamOptions and the first token
