"""Compute operations with compiled CPU kernels, loaded with ctypes and called with pointers.

The library is not linked against torch, so one binary works with every torch version. It uses torch's OpenMP threads,
because two runtimes in a process would wait for each other. It chooses the instruction set when it is loaded. If the
library is missing or was built from other sources, `status()` gives the reason, and the `eager` backend computes
everything.

Callers pass contiguous tensors on the CPU, in float64, float32, bfloat16 or float16. Kernels compute half precision in
float32 and store results in the dtype of the input.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
import warnings
from ctypes import POINTER, c_char_p, c_int, c_int32, c_int64, c_void_p
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tsallis.ops.alphas import Alpha
from tsallis.ops.arguments import BestSymbols
from tsallis.ops.cpu.build import LEFT_OUT, NO_KERNEL, source_hash
from tsallis.ops.cpu.structs import CALLS, Layout, Rank, sizes
from tsallis.ops.cpu.structs import STATS as STATS
from tsallis.ops.dtypes import compute_dtype
from tsallis.ops.eager.log_probs import largest_distinct, log_probs
from tsallis.ops.eager.ranking import best_symbols as best_symbols_in_float64
from tsallis.ops.protocol import Capabilities
from tsallis.ops.sparse_rows import CsrRows

DROP_ROW = 4096  # default number of dropout factors that one thread computes at once
SUPPORT_LIST_CLASSES = 1024  # smallest number of classes for which a loss saves small supports
CAPABILITIES = Capabilities(
    operations=(
        "maps",
        "losses",
        "alpha-ReLU",
        "output layer",
        "search",
        "dropout",
        "attention",
        "screening",
        "transformer",
        "recurrent",
        "beams",
    ),
    dtypes=(torch.float32, torch.float64, torch.bfloat16, torch.float16),
    any_dim=True,
)
STORAGE = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}


class Status(NamedTuple):
    """State of the compiled kernels: whether they can be used, the reason, and the loaded build."""

    available: bool
    reason: str
    instructions: str = ""
    path: str = ""
    left_out: bool = False  # whether the user chose to install the package without the kernel


@functools.cache
def _load() -> tuple[Any, Status]:
    path = Path(os.environ.get("TSALLIS_KERNEL_PATH") or Path(__file__).with_name("_kernel.so"))
    if not path.exists():
        return None, _missing_status(path.with_name(NO_KERNEL))
    try:
        library = ctypes.CDLL(str(path))
        library.tsallis_source.restype = library.tsallis_isa.restype = c_char_p
        library.tsallis_size.argtypes, library.tsallis_size.restype = [c_char_p], c_int64
        source = library.tsallis_source().decode()
    except (OSError, AttributeError) as error:
        return None, Status(False, f"{path.name} can't be loaded: {error}", path=str(path))
    if source not in ("", source_hash()):
        return None, Status(False, f"{path.name} is older than its sources: reinstall tsallis", path=str(path))
    for name, size in sizes().items():
        actual = library.tsallis_size(name.encode())
        if actual != size:
            reason = f"{path.name} was compiled with size {actual} for {name!r}, expected {size}: reinstall tsallis"
            return None, Status(False, reason, path=str(path))
    for name, call in CALLS.items():
        function = getattr(library, f"tsallis_{name}")
        function.argtypes, function.restype = [POINTER(call), c_int], None
    library.tsallis_transpose.argtypes = [c_int32, c_int64, c_int64, *(c_void_p,) * 8]
    library.tsallis_transpose.restype = None
    library.tsallis_set_parallel.argtypes = [c_void_p, c_void_p]
    threads = _share_threads(library)
    instructions = library.tsallis_isa().decode()
    return library, Status(True, f"compiled kernels, {instructions}, {threads}", instructions, str(path))


def _missing_status(note: Path) -> Status:
    """Return a status for a missing library, with the reason from the build's note if there is one."""
    try:
        reason = note.read_text(encoding="utf-8").strip()
    except OSError:
        return Status(False, "not compiled: reinstall tsallis with a C++ compiler (g++ or clang++)")
    return Status(False, reason, left_out=reason.startswith(LEFT_OUT))


@functools.cache
def warn_if_missing() -> None:
    """Warn once that PyTorch's operations replace the kernels, unless the user chose this at installation."""
    state = status()
    if not state.available and not state.left_out:
        warnings.warn(
            f"tsallis runs several times slower on the CPU, because it can't use its compiled kernels: "
            f"{state.reason}. To use PyTorch's operations without this warning, set TSALLIS_BACKEND=eager.",
            stacklevel=2,
        )


def _share_threads(library: Any) -> str:
    """Pass torch's OpenMP runtime to the kernels; return a description of the threads they use."""
    try:
        process = ctypes.CDLL(None)
        parallel, number = (ctypes.cast(f, c_void_p) for f in (process.GOMP_parallel, process.omp_get_thread_num))
    except (AttributeError, OSError, TypeError):
        return "threads of their own"
    library.tsallis_set_parallel(parallel, number)
    return "torch's OpenMP threads"


def status() -> Status:
    """Return whether the compiled kernels can be used, and the reason."""
    return _load()[1]


def usable() -> bool:
    """Return whether the compiled kernels can be used; warn once if they are missing."""
    available = status().available
    if not available:
        warn_if_missing()
    return available


def _layout(x: Tensor, alpha: Alpha, dim: int = -1) -> Layout:
    """Return the layout of rows along `dim`, with their alphas [rows, 1] in the compute dtype."""
    d = x.shape[dim]
    inner = 1 if dim == -1 else math.prod(x.shape[dim + 1 :])
    number, pointer = (alpha, None) if isinstance(alpha, float) else (0.0, alpha.data_ptr())
    return Layout(STORAGE[x.dtype], x.numel() // d, d, inner, number, pointer)


def pointers(*tensors: Tensor | None) -> tuple[int | None, ...]:
    """Return the addresses of tensors."""
    return tuple([None if x is None else x.data_ptr() for x in tensors])


def run(name: str, *fields: Any, **keywords: Any) -> None:
    """Call a kernel with the fields of its structure, on torch's number of threads."""
    getattr(_load()[0], f"tsallis_{name}")(CALLS[name](*fields, **keywords), torch.get_num_threads())


def entmax(scores: Tensor, alpha: Alpha, dim: int = -1) -> Tensor:
    """Return probabilities along `dim`. `alpha` is a float or a tensor [rows, 1], from 1 to 2."""
    probs = torch.empty_like(scores)
    run("map", _layout(scores, alpha, dim), scores.data_ptr(), probs.data_ptr())
    return probs


def entmax_gradient(
    probs: Tensor, grad: Tensor, alpha: Alpha, need_alpha: bool, dim: int = -1
) -> tuple[Tensor, Tensor | None]:
    """Return the gradient of the scores, and the gradient of alpha [rows, 1] or None."""
    scores_grad = torch.empty_like(probs)
    layout = _layout(probs, alpha, dim)
    alpha_grad = torch.empty(layout.rows, 1, dtype=compute_dtype(probs.dtype), device="cpu") if need_alpha else None
    run("map_gradient", layout, *pointers(probs, grad, scores_grad, alpha_grad))
    return scores_grad, alpha_grad


def entmax_loss(
    scores: Tensor, target: Tensor, alpha: Alpha, need_alpha: bool, save_support: bool = False
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return three values: losses [rows] for class targets [rows]; statistics [rows, STATS]; and dL/d alpha [rows, 1].

    Negative targets are ignored. With `save_support` the statistics may be wider and hold small supports, which
    :func:`entmax_loss_gradient` reads instead of the scores.
    """
    wide = compute_dtype(scores.dtype)
    rows = len(scores)
    width = STATS + (_support_width(scores) if save_support else 0)
    loss, stats = torch.empty(rows, dtype=wide, device="cpu"), torch.empty(rows, width, dtype=wide, device="cpu")
    alpha_grad = torch.empty(rows, 1, dtype=wide, device="cpu") if need_alpha else None
    run("loss", _layout(scores, alpha), *pointers(scores, target, loss, stats, alpha_grad), width)
    return loss, stats, alpha_grad


def _support_width(scores: Tensor) -> int:
    """Return how many numbers per row a list needs if it has room for 1/64 of the classes."""
    capacity = 16 + scores.shape[-1] // 64 // 16 * 16 if scores.shape[-1] >= SUPPORT_LIST_CLASSES else 0
    return 1 + capacity + capacity * 4 // compute_dtype(scores.dtype).itemsize if capacity else 0


def _loss_gradient(
    scores: Tensor, target: Tensor, alpha: Alpha, stats: Tensor, grad: Tensor, out: Tensor | None = None, *, relu: bool
) -> Tensor:
    """Return the gradient of the scores from the gradients of the losses [rows]; `out` may be `scores`."""
    scores_grad = torch.empty_like(scores) if out is None else out
    tensors = pointers(scores, target, stats, grad, scores_grad)
    run("loss_gradient", _layout(scores, alpha), *tensors, stats.shape[1], relu)
    return scores_grad


entmax_loss_gradient = functools.partial(_loss_gradient, relu=False)
alpha_relu_loss_gradient = functools.partial(_loss_gradient, relu=True)


def alpha_relu_loss(scores: Tensor, target: Tensor, alpha: float, tau: float) -> tuple[Tensor, Tensor]:
    """Return two values: alpha-ReLU losses [rows] for a constant threshold; and statistics [rows, STATS]."""
    wide = compute_dtype(scores.dtype)
    loss = torch.empty(len(scores), dtype=wide, device="cpu")
    stats = torch.empty(len(scores), STATS, dtype=wide, device="cpu")
    run("relu_loss", _layout(scores, alpha), *pointers(scores, target), tau, *pointers(loss, stats))
    return loss, stats


def support_sizes(scores: Tensor, alpha: Alpha, stats: Tensor, target: Tensor) -> Tensor:
    """Return the support size of each row [rows]; 0 for ignored targets."""
    return stats[:, STATS - 1].masked_fill_(target < 0, 0).long()


def _support(
    scores: Tensor, alpha: Alpha, stats: Tensor, offsets: Tensor, size: int | None = None, *, relu: bool
) -> tuple[Tensor, Tensor]:
    """Return classes (int32) and values of all supports in one list; row r starts at offsets[r]."""
    size = int(offsets[-1]) if size is None else size
    index = torch.empty(size, dtype=torch.int32, device="cpu")
    value = torch.empty(size, dtype=stats.dtype, device="cpu")
    run("support", _layout(scores, alpha), *pointers(scores, stats, offsets, index, value), relu)
    return index, value


support = functools.partial(_support, relu=False)
alpha_relu_support = functools.partial(_support, relu=True)


def transpose(lists: CsrRows, classes: int, weight: Tensor, target: Tensor) -> CsrRows:
    """Return one list per class: (row, value * weight[row]) per value, and (row, -weight[row]) per target.

    Rows with a negative target get no -weight entry.
    """
    count = int((target >= 0).sum())
    offsets = torch.empty(classes + 1, dtype=torch.long, device="cpu")
    index = torch.empty(len(lists.column) + count, dtype=torch.int32, device="cpu")
    value = torch.empty(len(index), dtype=lists.value.dtype, device="cpu")
    tensors = pointers(*lists, weight, target, offsets, index, value)
    _load()[0].tsallis_transpose(STORAGE[value.dtype], len(target), classes, *tensors)
    return CsrRows(offsets, index, value)


def spmm(
    lists: CsrRows,
    table: Tensor,
    *,
    scale: Tensor | None = None,
    minus: Tensor | None = None,
    need_total: bool = False,
    onto: Tensor | None = None,
    factor: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Return `out[r] = scale[r] (sum_k value[k] table[column[k]] - table[minus[r]])`, and each row's sum of values."""
    rows, m = len(lists.offsets) - 1, table.shape[1]
    out = torch.empty(rows, m, dtype=table.dtype, device="cpu")
    total = torch.empty(rows, dtype=lists.value.dtype, device="cpu") if need_total else None
    run("gather", STORAGE[table.dtype], rows, m, *pointers(*lists, scale, minus, table, out, total))
    if onto is not None and factor is not None:
        return onto.mul_(factor[0]).add_(out), total
    return out, total


def drop(x: Tensor, keep_prob: float, seed: int, out: Tensor, d: int = DROP_ROW) -> Tensor:
    """Apply dropout with a seed below 2**64 to float32 or float64; equal seeds drop the same entries.

    Each draw depends on the entry's row and column, with `d` entries per row. `out` may be `x`.
    """
    run("drop", STORAGE[x.dtype], x.numel(), d, seed, keep_prob, x.data_ptr(), out.data_ptr())
    return out


def best_symbols(
    scores: Tensor, alpha: float, tau: float | None, count: int, end: int, only: Tensor | None = None
) -> BestSymbols:
    """Return the most probable symbols of each row of scores [rows, symbols]."""
    if scores.dtype == torch.float64:
        return best_symbols_in_float64(scores, alpha, tau, count, end, only)
    fields = rank_fields(scores.shape[1], alpha, tau, scores.dtype)
    scores = scores.float()
    rows, symbols = scores.shape
    best = allocate_best(rows, min(count, symbols))
    point_to(fields, best, end, only)
    fields.scores = scores.data_ptr()
    call_kernel("rank", fields)
    return best


def log_entmax(scores: Tensor, alpha: float) -> Tensor:
    """Return the log-probabilities of rows of scores [rows, symbols] in float64; -inf outside the support."""
    if scores.dtype == torch.float64 or alpha == 1:  # the kernel sums softmax's exponentials in float32
        wide = scores.double()
        return log_probs(wide, entmax(wide, alpha), alpha)
    fields = rank_fields(scores.shape[1], alpha, None)
    scores = scores.float()
    best = allocate_best(len(scores), 1)
    point_to(fields, best, end=-1, only=None)
    result = torch.full(scores.shape, torch.nan, dtype=torch.float64, device="cpu")  # the kernel skips rows with a NaN
    fields.scores, fields.log_probs = scores.data_ptr(), result.data_ptr()
    call_kernel("rank", fields)
    return result


def call_kernel(name: str, arguments: ctypes.Structure, threads: int | None = None) -> None:
    """Call a kernel with its structure of arguments."""
    getattr(_load()[0], f"tsallis_{name}")(arguments, torch.get_num_threads() if threads is None else threads)


def allocate_best(rows: int, count: int) -> BestSymbols:
    """Allocate memory for the best `count` symbols of each row."""
    return BestSymbols(
        torch.empty(rows, count, dtype=torch.float64, device="cpu"),
        torch.empty(rows, count, dtype=torch.int64, device="cpu"),
        torch.empty(rows, dtype=torch.float64, device="cpu"),
        torch.empty(rows, dtype=torch.int64, device="cpu"),
        torch.empty(rows, dtype=torch.float64, device="cpu"),
    )


def rank_fields(symbols: int, alpha: float, tau: float | None, dtype: torch.dtype = torch.float32) -> Rank:
    """Return a structure that requests the most probable symbols of rows of scores."""
    fields = {"relu": tau is not None, "alpha": alpha, "tau": tau or 0.0, "distinct": largest_distinct(dtype)}
    return Rank(d=symbols, stride=symbols, **fields)


def point_to(call: Rank, best: BestSymbols, end: int, only: Tensor | None) -> None:
    """Write the options, and pointers to the results, into a structure."""
    call.rows, call.count = best.log_probs.shape
    call.end = end
    call.only = None if only is None else only.data_ptr()
    call.best, call.symbols = best.log_probs.data_ptr(), best.symbols.data_ptr()
    call.ends, call.mass, call.support = best.ends.data_ptr(), best.mass.data_ptr(), best.support.data_ptr()
