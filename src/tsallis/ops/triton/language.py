"""Import Triton if it is installed, and define arithmetic that all kernels share.

Thresholds are relative to the row's largest score: `p = exp_alpha(score - top - threshold)` with
`exp_alpha(x) = [1 + eps x]_+^{1/eps}` and `eps = alpha - 1`. At alpha = 1, the threshold is the logsumexp of
`score - top`, without a special case.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tsallis.ops.alphas import Alpha, extremes
from tsallis.ops.dtypes import exact_products

_MISSING = ""
if TYPE_CHECKING:
    import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
    import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
else:
    try:
        import triton
        import triton.language as tl
    except Exception as error:  # a broken Triton must not break the import of this module
        triton = tl = None
        _MISSING = f"Triton can't be imported: {error}"

__all__ = [  # includes `tl`, because no other file imports Triton
    "ANY_ALPHA",
    "THREE_HALVES",
    "TINY_EPS",
    "TWO",
    "Alpha",
    "alpha_curvature",
    "alpha_curvature_at",
    "available",
    "constant",
    "entmax_weights",
    "entropy_slope",
    "interpreted",
    "kernel",
    "log1p",
    "mode",
    "newton_step",
    "plain",
    "precision",
    "processors",
    "run",
    "tl",
]

TINY_EPS = 1e-10  # used if alpha - 1 is 0, because log1p(TINY_EPS x) / TINY_EPS equals x up to rounding


def constant(value: Any) -> Any:
    """Wrap a global constant so that kernels can read it."""
    return value if tl is None else tl.constexpr(value)


def plain(number: Any) -> int:
    """Return a global constant as a Python integer."""
    return int(getattr(number, "value", number))


ANY_ALPHA, THREE_HALVES, TWO = constant(0), constant(1), constant(2)  # modes of alpha; only ANY_ALPHA needs powers


def kernel(*changing: str) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that compiles a kernel once for all values of the `changing` arguments."""

    def decorate(function: Callable[..., Any]) -> Any:
        if triton is None:
            return function
        names = function.__code__.co_varnames[: function.__code__.co_argcount]
        return triton.jit(function, do_not_specialize=[name for name in changing if name in names])

    return decorate


def available() -> tuple[bool, str]:
    """Return whether Triton's kernels can be used, and the reason."""
    if triton is None:
        return False, _MISSING
    if interpreted():
        return True, "Triton's interpreter"
    if not torch.cuda.is_available():
        return False, "no GPU that PyTorch can use, and TRITON_INTERPRET=1 was not set before the import"
    return True, f"Triton {triton.__version__} on {torch.cuda.get_device_name()}"


def interpreted() -> bool:
    """Return whether Triton's interpreter runs the kernels, as set at import."""
    return not isinstance(log1p, triton.JITFunction)


def run(kernel: Any, grid: tuple[int, ...], where: Tensor, **arguments: Any) -> None:
    """Launch a kernel on the device of `where`."""
    with torch.cuda.device_of(where):
        kernel[grid](**arguments)


@functools.cache
def processors(device: torch.device) -> int:
    """Return the number of multiprocessors of a GPU, or 2 for the interpreter."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


def mode(alpha: Alpha) -> int:
    """Return the kernel mode for alpha, a number or a tensor."""
    least, most = extremes(alpha) if isinstance(alpha, Tensor) else (alpha, alpha)
    if not most <= 2:
        raise NotImplementedError(f"the Triton kernels need alphas from 1 to 2, got {most:g}")
    modes = {1.5: THREE_HALVES, 2.0: TWO}
    return plain(modes.get(least, ANY_ALPHA) if least == most else ANY_ALPHA)


def precision(dtype: torch.dtype) -> str:
    """Return the precision of float32 products that PyTorch's setting allows; tf32x3 is nearly exact."""
    if dtype != torch.float32:
        return "tf32"  # unused for other dtypes
    return "tf32x3" if exact_products() else "tf32"


@kernel()
def log1p(y: tl.tensor) -> Any:
    """Return `log(1 + y)`, accurate for small y: the rounding error of 1 + y cancels in the quotient."""
    u = 1.0 + y
    d = u - 1.0
    return tl.where(d == 0.0, y, tl.log(u) * (y / tl.where(d == 0.0, 1.0, d)))


@kernel()
def entmax_weights(x: tl.tensor, eps: tl.tensor, MODE: tl.constexpr) -> Any:
    """Return weights `p` and `p^(2 - alpha)` of scores minus threshold: 0 outside the support; NaN stays NaN."""
    y = eps * x
    outside = y <= -1.0
    if MODE == TWO:
        p = tl.where(outside, 0.0, 1.0 + y)
        w = tl.where(outside, 0.0, 1.0)
    elif MODE == THREE_HALVES:
        w = tl.where(outside, 0.0, 1.0 + y)
        p = w * w
    else:
        y = tl.where(outside, 0.0, y)
        p = tl.where(outside, 0.0, tl.exp(log1p(y) / eps))
        w = p / (1.0 + y)
    return p, w


@kernel()
def newton_step(threshold: tl.tensor, mass: tl.tensor, slope: tl.tensor, eps: tl.tensor, MODE: tl.constexpr) -> Any:
    """Return the threshold after a Newton step on the norm; the step never overshoots the exact threshold."""
    positive = mass > 0.0
    F = tl.where(positive, mass, 1.0)
    G = tl.where(positive, slope, 1.0)
    if MODE == TWO:
        step = (F - 1.0) / G
    elif MODE == THREE_HALVES:
        step = 2.0 * (F - tl.sqrt(F)) / G
    else:  # the step is F (1 - F^-eps) / (eps G), or log F at alpha = 1
        log_mass = log1p(F - 1.0)
        t = eps * log_mass
        series = 1.0 - t * (0.5 - t * (1.0 / 6.0 - t * (1.0 / 24.0 - t / 120.0)))
        near = tl.abs(t) < 0.1
        step = F * log_mass * tl.where(near, series, (1.0 - tl.exp(-t)) / tl.where(near, 1.0, t)) / G
    return tl.where(positive, threshold + step, threshold)


@kernel()
def alpha_curvature(x: tl.tensor, p: tl.tensor, w: tl.tensor, eps: tl.tensor) -> Any:
    """Return -dp/d alpha at a fixed threshold: `p log^2 p phi(eps log p)`, `phi(t) = (e^-t - 1 + t) / t^2`."""
    return alpha_curvature_at(log1p(tl.where(p == 0.0, 0.0, eps * x)), p, w, eps)


@kernel()
def alpha_curvature_at(t: tl.tensor, p: tl.tensor, w: tl.tensor, eps: tl.tensor) -> Any:
    """Return `alpha_curvature`, given `t = eps log p`, or `t = 0` outside the support."""
    near_zero = tl.abs(t) < 0.3
    series = 1.0 / 120.0 - t * (1.0 / 720.0 - t * (1.0 / 5040.0 - t / 40320.0))
    series = 0.5 - t * (1.0 / 6.0 - t * (1.0 / 24.0 - t * series))
    # Use p e^-t = p / (1 + y) = w, because e^-t alone may overflow.
    far = (w - p + p * t) / (eps * eps)
    return tl.where(near_zero, p * (t / eps) * (t / eps) * series, far)


@kernel()
def entropy_slope(x: tl.tensor, p: tl.tensor, eps: tl.tensor) -> Any:
    """Return the entropy's slope in alpha per entry: `p log^2 p ((t - 1) e^t + 1) / t^2` with `t = eps log p`."""
    y = tl.where(p == 0.0, 0.0, eps * x)
    t = log1p(y)
    near_zero = tl.abs(t) < 0.3
    series = 1.0 / 30.0 + t * (1.0 / 144.0 + t * (1.0 / 840.0 + t * (1.0 / 5760.0 + t / 45360.0)))
    series = 0.5 + t * (1.0 / 3.0 + t * (1.0 / 8.0 + t * series))
    far = p * (t + t * y - y) / (eps * eps)  # e^t is 1 + y
    return tl.where(near_zero, p * (t / eps) * (t / eps) * series, far)
