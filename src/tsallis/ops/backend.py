"""Which backend computes: the protocol that every backend fulfils, and the only place that chooses among them.

A backend is a module, a folder of `ops`, with the attributes of :class:`Backend`. `BACKENDS` lists them; none is
imported before it is needed. What the first choice does not compute is left to `eager`, which computes everything.
"""

from __future__ import annotations

import functools
import importlib
import math
import os
from collections.abc import Sequence
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor

from tsallis.ops.alphas import Alpha, check_alpha, extremes
from tsallis.ops.arguments import AttentionArgs, AttentionGradients, BestSymbols, StackWeights
from tsallis.ops.sparse_rows import CsrRows
from tsallis.ops.tracing import constant
from tsallis.ops.transforms import operators_only, recording, without_numbers

VARIABLE = "TSALLIS_BACKEND"
_PLAIN = (Tensor, torch.nn.Parameter)


class Capabilities(NamedTuple):
    """The operations that a backend computes, and how; all others go to `eager`."""

    dtypes: tuple[torch.dtype, ...]
    largest_alpha: float  # the smallest is 1
    any_dim: bool = False  # maps take rows along any dimension of contiguous scores; else along the last alone
    row_statistics: bool = True  # what a loss saves for its gradient is a few numbers a row; else whole rows
    asynchronous: bool = False  # results are there before they are computed, and reading a number waits for it
    seeded_dropout: bool = False  # there is `drop(x, keep_prob, seed, out)`, see `tsallis.ops.cpu`
    attention_dtypes: tuple[torch.dtype, ...] = (
        torch.float32,
        torch.float64,
    )  # others are upcast before; none: no attention
    largest_head: float = math.inf  # the most numbers that a query, key or value of attention may have
    largest_batch: float = math.inf  # the most batch elements and the most heads of attention
    transformer: bool = False  # there is a file `transformer`
    beams: bool = False  # there is a file `beams`


class Status(Protocol):
    """The answer whether a backend can be used here, and the reason."""

    @property
    def available(self) -> bool: ...

    @property
    def reason(self) -> str: ...


class Backend(Protocol):
    """The operations of a backend, for rows of tensors that the callers have checked."""

    CAPABILITIES: Capabilities

    def status(self) -> Status:
        """Tell whether the backend can be used here, and why or why not, in one line."""

    def usable(self) -> bool:
        """Tell whether the backend can be used, as it is about to be; it may warn, once, where it can't."""

    def on_device(self, kind: str) -> bool:
        """Tell whether tensors on a type of devices can be computed; asked before the tensors are looked at."""

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
        """Return losses and supports of alpha-ReLU in one pass without any buffer of scores; None where it can't."""

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


class Entry(NamedTuple):
    """A line of the table of backends."""

    module: str
    devices: tuple[str, ...]  # the types of devices on which "auto" means this backend; of several the first usable one
    self_check: bool = False  # whether "auto" means only what agrees with PyTorch's operations; after all without one


LARGEST_BEAMS = 1 << 20  # prefixes of all sources that there is memory for from the start
BACKENDS = {
    "eager": Entry("tsallis.ops.eager", ()),
    "cpu": Entry("tsallis.ops.cpu", ("cpu",)),
    "triton": Entry("tsallis.ops.triton", ("cuda",), self_check=True),
}
NAMES = ("auto", *BACKENDS)


def _by_device(self_check: bool) -> dict[str, tuple[str, ...]]:
    entries = {name: entry for name, entry in BACKENDS.items() if entry.self_check == self_check}
    kinds = {kind for entry in BACKENDS.values() for kind in entry.devices}
    return {kind: tuple(name for name, entry in entries.items() if kind in entry.devices) for kind in kinds}


_UNCHECKED, _SELF_CHECKED = _by_device(False), _by_device(True)
_CHECK_FIRST = frozenset(name for name, entry in BACKENDS.items() if entry.self_check)
_request: ContextVar[str | None] = ContextVar("tsallis_backend", default=None)


class backend:
    """The choice of a backend for the calls inside a `with` block: `"eager"`, `"cpu"`, `"triton"` or `"auto"`.

    `"auto"` is the default, and what the environment variable `TSALLIS_BACKEND` overrules: the compiled kernels for
    tensors on the CPU where they were built, Triton's for float32, bfloat16 and float16 on a GPU where Triton works,
    plain PyTorch operations for everything else. `"cpu"` (the compiled kernels) and `"triton"` are errors where these
    are missing; what they don't compute (alpha above 2 or below 1, budgets) stays with PyTorch's operations. The
    backend of a forward pass computes its gradients, too; second derivatives are always PyTorch's operations.

    Args:
        name: one of the four names.

    Raises:
        ValueError: an unknown backend.
        RuntimeError: `"cpu"` where there are no compiled kernels, `"triton"` where Triton can't be used; it says why.

    Example:
        >>> import tsallis
        >>> with tsallis.backend("eager"):
        ...     tsallis.sparsemax(torch.tensor([1.0, 0.5, -1.0]))
        tensor([0.7500, 0.2500, 0.0000])
    """

    def __init__(self, name: str) -> None:
        self.name = _check(name, "backend")
        self._tokens: list[Token[str | None]] = []

    def __enter__(self) -> backend:
        self._tokens.append(_request.set(self.name))
        return self

    def __exit__(self, *_: object) -> None:
        _request.reset(self._tokens.pop())


def _check(name: str, what: str) -> str:
    if name not in NAMES:
        raise ValueError(f"{what} must be one of {', '.join(NAMES)}, got {name!r}")
    if name != "auto" and not load(name).status().available:
        raise RuntimeError(f"{what} {name!r} can't be used: {load(name).status().reason}")
    return name


@functools.cache
def load(name: str) -> Backend:
    """Return a backend by its name; Triton's is imported here, and only here."""
    return cast(Backend, importlib.import_module(BACKENDS[name].module))


@functools.cache
def load_attention(name: str) -> AttentionKernels:
    """Return a backend's attention by the backend's name."""
    return cast(AttentionKernels, importlib.import_module(f"{BACKENDS[name].module}.attention"))


def load_transformer(kind: str) -> TransformerKernels | None:
    """Return the Transformer of the backend for a type of devices; None where that one has none."""
    for name in _candidates(kind):
        if load(name).CAPABILITIES.transformer and _usable(name):
            return cast(TransformerKernels, importlib.import_module(f"{BACKENDS[name].module}.transformer"))
    return None


def load_beams(prefixes: int) -> BeamKernels:
    """Return the bookkeeping of beams of so many prefixes, which is done on the CPU wherever the model is."""
    # A backend that was asked for by name may have no beams, and need not compute on a CPU at all.
    name = request()
    names = _UNCHECKED.get("cpu", ()) if name == "auto" else (name,)
    for candidate in names if prefixes <= LARGEST_BEAMS else ():
        if load(candidate).CAPABILITIES.beams and _usable(candidate):
            return cast(BeamKernels, importlib.import_module(f"{BACKENDS[candidate].module}.beams"))
    return cast(BeamKernels, importlib.import_module("tsallis.ops.eager.beams"))


def request() -> str:
    """Return the backend's name that the innermost `backend` block asks for, else the environment, else `auto`."""
    name = _request.get()
    return name if name is not None else _check(os.environ.get(VARIABLE) or "auto", VARIABLE)


def choose(alpha: Alpha, *tensors: Tensor) -> Backend:
    """Return the backend that computes these tensors, and check the alphas: their only check.

    For callers that have the numbers at hand; :func:`choose_direct` is for those that may not.

    Raises:
        ValueError: an alpha that is not positive and finite.
        RuntimeError: the backend that was asked for by name does not compute on such devices.
    """
    name, kind = request(), tensors[0].device.type
    auto = name == "auto"
    for candidate in _UNCHECKED.get(kind, ()) if auto else (name,):
        choice = load(candidate)
        if (auto or choice.on_device(kind)) and _suits(choice.CAPABILITIES, alpha, tensors) and choice.usable():
            return choice
    for candidate in _SELF_CHECKED.get(kind, ()) if auto else ():
        choice = load(candidate)
        if _suits(choice.CAPABILITIES, alpha, tensors) and choice.usable():
            return cast(Backend, _guard().backend_for(candidate, tensors[0]))
    check_alpha(alpha, positive=True)
    return load("eager")


@functools.cache
def _guard() -> Any:
    """Return what compares kernels with PyTorch's operations, which nothing on a CPU needs."""
    return importlib.import_module("tsallis.ops.self_check.guard")


def _suits(capabilities: Capabilities, alpha: Alpha, tensors: tuple[Tensor, ...]) -> bool:
    for x in tensors:
        if type(x) not in _PLAIN or x.dtype not in capabilities.dtypes or x.numel() == 0:
            return False
    if len(tensors) > 1 and any(x.device != tensors[0].device for x in tensors):
        return False
    if isinstance(alpha, float):
        return 1 <= alpha <= capabilities.largest_alpha
    least, most = extremes(alpha)
    return 1 <= least <= most <= capabilities.largest_alpha


def choose_direct(alpha: Alpha, *tensors: Tensor) -> Backend | None:
    """Return the backend to call at once; None where a compiler, a mode or a transformation follows the operations.

    There, and for a tensor that has a shape alone, an operator has to be called, whose body asks :func:`choose` when it
    runs.
    """
    # Each of these is one call: of small tensors every one counts.
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return None
    x = tensors[0]
    if (
        torch._C._get_tracing_state()
        or torch._C._len_torch_dispatch_stack()
        or x.is_meta
        or (type(x) not in _PLAIN and without_numbers(x))
    ):
        return None
    return choose(alpha, *tensors)


def choose_attention(query: Tensor, key: Tensor, value: Tensor, bounds: tuple[float, float] | None) -> str:
    """Return the name of the backend that computes attention over [batch, heads, length, size], also for a tracer.

    It may be called anywhere: dtypes, sizes and the device are all that is looked at. Whether the backend is called
    directly or by its operator is the caller's to decide, as are `torch.func` and forward mode, where the way by all
    weights is the only one. Tensors of another dtype than the backend's `attention_dtypes` are upcast by the caller.

    Args:
        query, key, value: tensors of one dtype and device.
        bounds: the least and the largest alpha (`extremes`), already checked; None where no one can look at alphas
            now: the operator's body then checks them.
    """
    if not (query.numel() and key.numel() and value.numel()) or not _readable(query, key, value):
        return "eager"
    head, batch = max(query.shape[-1], value.shape[-1]), max(query.shape[0], query.shape[1])
    for name in _candidates(query.device.type):
        can = capabilities(name)
        fits = bool(can.attention_dtypes) and query.dtype in can.dtypes
        fits = fits and head <= can.largest_head and batch <= can.largest_batch
        if not (fits and (bounds is None or bounds[1] <= can.largest_alpha) and _usable(name)):
            continue
        if name not in _CHECK_FIRST or _attention_agrees(name, query.device, query.dtype):
            return name
    return "eager"


def _readable(*tensors: Tensor) -> bool:
    """Tell whether kernels may read tensors by their pointers, or an operator is called in the place of kernels."""
    if all(type(x) in _PLAIN for x in tensors):
        return True
    return recording() or operators_only(tensors[0])


# What does not depend on tensors is a constant to a tracer, which need not follow how it comes about.


@constant
def _candidates(kind: str) -> tuple[str, ...]:
    """Return the names of backends for a type of devices, before anything else is known."""
    name = request()
    names = _UNCHECKED.get(kind, ()) + _SELF_CHECKED.get(kind, ()) if name == "auto" else (name,)
    return tuple(name for name in names if load(name).on_device(kind))


@constant
def capabilities(name: str) -> Capabilities:
    """Return what a backend computes and how."""
    return load(name).CAPABILITIES


@constant
def _usable(name: str) -> bool:
    return load(name).usable()


@constant
def _attention_agrees(name: str, device: torch.device, dtype: torch.dtype) -> bool:
    return request() != "auto" or bool(_guard().attention_agrees(name, device, dtype))


def explain() -> str:
    """Tell which backend computes tensors on the CPU, and why, in one line."""
    return _explain("cpu")


def explain_gpu() -> str:
    """Tell which backend computes tensors on a GPU, and why, in one line; without a GPU nothing is imported."""
    return _explain("cuda") if torch.cuda.is_available() else "none (PyTorch finds no GPU)"


def _explain(kind: str) -> str:
    name = request()
    if name == "eager":
        return "eager (asked for)"
    for candidate in _UNCHECKED[kind] + _SELF_CHECKED[kind] if name == "auto" else (name,):
        status = load(candidate).status()
        try:
            if status.available and load(candidate).on_device(kind):
                return f"{candidate} ({status.reason})"
        except RuntimeError as error:
            return f"none ({error})"
        reason = status.reason if not status.available else f"{name} was asked for"
    return f"eager ({reason})"


if TYPE_CHECKING:  # that every backend fulfils the protocol
    from tsallis.ops import cpu, eager, triton

    _BACKENDS: tuple[Backend, ...] = (eager, cpu, triton)
