"""The interface of a backend: its functions, and the description of what it computes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from tsallis.ops.alphas import Alpha
from tsallis.ops.arguments import AttentionArgs, AttentionGradients, BestSymbols, StackWeights
from tsallis.ops.sparse_rows import CsrRows

# The functions of each operation. A backend defines all functions of an operation, or none of them.
OPERATIONS: dict[str, tuple[str, ...]] = {
    "maps": ("entmax", "entmax_gradient"),
    "losses": ("entmax_loss", "entmax_loss_gradient"),
    "alpha-ReLU": ("alpha_relu_loss", "alpha_relu_loss_gradient"),
    # The supports read statistics of the losses: a backend with an output layer also computes both losses.
    "output layer": ("support_sizes", "support", "alpha_relu_support", "spmm", "transpose"),
    "one pass": ("alpha_relu_one_pass",),  # an output layer of alpha-ReLU that needs no buffer of scores
    "search": ("best_symbols",),
    "dropout": ("drop",),
    # Each of these is a file of the backend's folder: `attention.py` for `AttentionKernels`, and so on.
    "attention": (),
    "transformer": (),
    "beams": (),
}


class Capabilities(NamedTuple):
    """The operations that a backend computes, and how; all other calls go to `eager`."""

    operations: tuple[str, ...]  # keys of `OPERATIONS`
    dtypes: tuple[torch.dtype, ...]
    alphas: tuple[float, float] = (1.0, 2.0)  # the smallest and the largest alpha
    any_dim: bool = False  # maps take rows along any dimension of contiguous scores; else along the last alone
    row_statistics: bool = True  # what a loss saves for its gradient is a few numbers a row; else whole rows
    asynchronous: bool = False  # results are there before they are computed, and reading a number waits for it
    attention_dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.float64)  # others are upcast before
    largest_head: float = math.inf  # the most numbers that a query, key or value of attention may have
    largest_batch: float = math.inf  # the most batch elements and the most heads of attention


class Status(NamedTuple):
    """Whether a backend can be used here, and the reason in one line."""

    available: bool
    reason: str


class Backend(Protocol):
    """A backend: a module that computes some operations on tensors that the callers have checked.

    Interface:
        CAPABILITIES: The operations that the backend computes, and for which dtypes and alphas.
        The functions of each operation in `CAPABILITIES.operations`, see `OPERATIONS`. No others are called.
        status, usable, on_device: Whether it can be used. Without them it can always be used, on the CPU.

    Tensors are contiguous, not empty, on one device, and of a dtype in `CAPABILITIES.dtypes`. Alphas lie within
    `CAPABILITIES.alphas`. All other calls go to `eager`. Scores of -inf take no part; a row in which nothing takes
    part is all zeros, with zero gradients; a row with a NaN is all NaN. Half precision is computed in float32 and
    returned in its own dtype. Gradients are of the first order: `ops/autograd` computes all others.
    """

    CAPABILITIES: Capabilities

    def status(self) -> Status:
        """Return whether the backend can be used here, and why or why not."""

    def usable(self) -> bool:
        """Return whether the backend can be used now; it may warn, once, if it can't."""

    def on_device(self, kind: str) -> bool:
        """Return whether the backend computes tensors on a type of device such as "cpu" or "cuda"."""

    # Maps: scores are contiguous, in one of the dtypes; alpha is a number, or [rows, 1] in float64 for float64 scores
    # and float32 for all others.

    def entmax(self, scores: Tensor, alpha: Alpha, dim: int = -1) -> Tensor:
        """Return probabilities along a dimension, -1 or one from 0, of scores of any shape."""

    def entmax_gradient(
        self, probs: Tensor, grad: Tensor, alpha: Alpha, need_alpha: bool, dim: int = -1
    ) -> tuple[Tensor, Tensor | None]:
        """Return gradients of the scores, and of alpha [rows, 1] if it is needed."""

    # Losses: scores [rows, classes], target [rows] with classes, negative for none. Statistics are a tensor, or a tuple
    # of tensors and numbers, for the backend alone to read.

    def entmax_loss(
        self, scores: Tensor, target: Tensor, alpha: Alpha, need_alpha: bool, save_support: bool = False
    ) -> tuple[Tensor, Any, Tensor | None]:
        """Return losses [rows], statistics, and dL/d alpha [rows, 1].

        With `save_support` the statistics may be wider and hold supports; only :meth:`entmax_loss_gradient` reads such.
        """

    def entmax_loss_gradient(
        self, scores: Tensor, target: Tensor, alpha: Alpha, stats: Any, grad: Tensor, out: Tensor | None = None
    ) -> Tensor:
        """Return the gradient of the scores for one of the losses [rows]; `out` may be the scores, and be ignored."""

    def alpha_relu_loss(self, scores: Tensor, target: Tensor, alpha: float, tau: float) -> tuple[Tensor, Any]:
        """Return losses [rows] of alpha-ReLU with a constant threshold, and statistics."""

    def alpha_relu_loss_gradient(
        self, scores: Tensor, target: Tensor, alpha: float, stats: Any, grad: Tensor, out: Tensor | None = None
    ) -> Tensor:
        """Return the gradient of the scores of alpha-ReLU's loss."""

    # The output layer and its loss in one: supports as sparse rows, and sums over them.

    def support_sizes(self, scores: Tensor, alpha: Alpha, stats: Any, target: Tensor) -> Tensor:
        """Return the size of each row's support [rows], int64; 0 where there is no target."""

    def support(
        self, scores: Tensor, alpha: Alpha, stats: Any, offsets: Tensor, size: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return classes (int32) and probabilities of each row's support; `size` is the last offset, if known."""

    def alpha_relu_support(
        self, scores: Tensor, alpha: float, stats: Any, offsets: Tensor, size: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the same for the values of alpha-ReLU."""

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
        """Return `out[r] = scale[r] (sum_k value[k] table[column[k]] - table[minus[r]])`, and sums of the values.

        A negative `minus` names no row. With `onto`, which is changed, `factor[0] onto + out`.
        """

    def transpose(self, lists: CsrRows, classes: int, weight: Tensor, target: Tensor) -> CsrRows:
        """Return the rows' lists by class, each value times its row's weight, with -weight where the target is."""

    # One pass.

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
        """Return losses and supports of alpha-ReLU without a buffer of scores; None where that is not possible."""

    # Dropout.

    def drop(self, x: Tensor, keep_prob: float, seed: int, out: Tensor) -> Tensor:
        """Apply dropout by a seed below 2**64, the same at every call; `out` may be `x`."""

    # Search.

    def best_symbols(
        self, scores: Tensor, alpha: float, tau: float | None, count: int, end: int, only: Tensor | None = None
    ) -> BestSymbols:
        """Return the best of each row of scores [rows, symbols] by entmax, or by alpha-ReLU with a threshold.

        Args:
            scores: -inf for symbols that can't come.
            alpha: of the map.
            tau: alpha-ReLU's threshold; None: the map is entmax.
            count: how many symbols, at most all of them.
            end: the symbol that is no prefix's, whose log-probability is returned apart.
            only: [rows], the symbol that alone is of interest, negative for all; None: all are in every row.
        """


class AttentionKernels(Protocol):
    """A backend's attention, which is the file `attention` of its folder."""

    SavedForBackward: type[Any]  # a NamedTuple of tensors; `output` and `support` among them are the pass's results

    def attention(self, args: AttentionArgs, needs_grad: bool) -> tuple[Tensor, Tensor, Any]:
        """Return the output, how many keys each query attends to, and what backward needs, if there will be one."""

    def attention_gradient(
        self, args: AttentionArgs, saved: Any, grad: Tensor, needs: Sequence[bool]
    ) -> AttentionGradients:
        """Return those gradients of the arguments that are needed; it may return more."""

    def drop_factors(self, args: AttentionArgs) -> Tensor:
        """Return what dropout multiplies all weights with [batch, heads, queries, keys]."""

    def resolve(self, args: AttentionArgs) -> AttentionArgs:
        """Return an operator's arguments as kernels take them; check the numbers that a tracer could not look at."""

    def allocate(self, args: AttentionArgs, output: Tensor, support: Tensor, needs_grad: bool) -> Any:
        """Allocate what backward needs of a pass with these results."""


class TransformerKernels(Protocol):
    """A backend's Transformer, which is the file `transformer` of its folder."""

    CompiledEncoder: type[Any]  # made of StackWeights; it has the method `encode`
    CompiledDecoder: type[Any]  # made of StackWeights and OutputWeights; it has the methods `project` and `step`

    def computes(self, weights: StackWeights) -> bool:
        """Tell whether the kernels know a stack of layers of these sizes and alphas."""


class BeamKernels(Protocol):
    """A backend's bookkeeping of beam searches, which is the file `beams` of its folder."""

    Beams: type[Any]  # made of the BeamLimits of all sources, BeamOptions and the first token, see the eager one
