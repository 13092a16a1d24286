"""Detect compilers, tracers, dispatch modes and function transforms.

Kernels are called by pointer, and tracers, dispatch modes and transforms of `torch.func` can't see such calls. While
one of these is active, an operator or PyTorch's operations must be called instead.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad

from tsallis.ops.alphas import Alpha, check_alpha
from tsallis.ops.dtypes import compute_dtype
from tsallis.ops.tracing import constant, operator

_MODES = torch._C._TorchDispatchModeKey
_KINDS = torch._C._functorch.TransformType
_TRACERS = (_MODES.PROXY, _MODES.FAKE, _MODES.FUNCTIONAL)


def transforms_active() -> bool:
    """Return whether torch.func is active: tensors may be wrappers that can't be read or changed in place."""
    return torch._C._are_functorch_transforms_active()


def modes_active() -> bool:
    """Return whether a dispatch mode is active: `make_fx`, fake tensors or a user's mode."""
    return torch._C._len_torch_dispatch_stack() > 0


def jit_tracing() -> bool:
    """Return whether torch.jit.trace or the older ONNX exporter records operations."""
    return torch._C._get_tracing_state() is not None


def check_recordable() -> None:
    """Raise if torch.jit.trace is combined with a transform of torch.func or forward mode.

    In this combination, PyTorch can't read shapes, and loses tangents without an error.

    Raises:
        NotImplementedError: torch.jit.trace is active together with a transform or forward mode.
    """
    if torch._C._get_tracing_state() is not None and (transforms_active() or forward_mode()):
        raise _recording_error("torch.jit.trace", "torch.func (grad, jvp, vmap and others)")


def _recording_error(recorder: str, transforms: str) -> NotImplementedError:
    return NotImplementedError(
        f"{recorder} can't record tsallis inside {transforms} or forward-mode AD. "
        "Record with torch.fx.experimental.proxy_tensor.make_fx, or record the function without the transform."
    )


def recording() -> bool:
    """Return whether torch.compile, torch.export or torch.jit.trace records a graph."""
    return torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None


def graph_outlives_values() -> bool:
    """Return whether a graph is recorded for later inputs: by torch.jit.trace, torch.export or make_fx."""
    proxies = torch._C._get_dispatch_mode(_MODES.PROXY) is not None
    return jit_tracing() or torch.compiler.is_exporting() or proxies


def varies(number: float) -> bool:
    """Return whether a number is an input of a compiled graph.

    Convert it to a tensor (:func:`as_input`); otherwise each value would be compiled again.
    """
    if not torch.compiler.is_compiling():
        return False
    from torch.fx.experimental.symbolic_shapes import has_static_value

    return not has_static_value(number)


def as_input(number: float, like: Tensor) -> Tensor:
    """Return a number as a tensor without dimensions on the device of `like`."""
    return torch.ones((), dtype=compute_dtype(like.dtype), device=like.device) * number


def tracing_active() -> bool:
    """Return whether a compiler, a dispatch mode, torch.func or forward mode is active."""
    return recording() or transforms_active() or modes_active() or forward_mode()


@contextlib.contextmanager
def outside_tracers() -> Iterator[None]:
    """Suspend tracers and transforms, so that caches which outlive them hold plain tensors."""
    with contextlib.ExitStack() as stack:
        if modes_active():
            stack.enter_context(torch.utils._python_dispatch._disable_current_modes())
        if transforms_active():
            from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

            stack.enter_context(temporarily_clear_interpreter_stack())
        if state := torch._C._get_tracing_state():
            set_state = torch._C._set_tracing_state  # type: ignore[attr-defined]
            set_state(None)
            stack.callback(set_state, state)
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        yield


def savable(x: Tensor) -> Tensor:
    """Return a tensor that autograd can save: inference-mode tensors are copied."""
    copied = not torch.compiler.is_compiling() and x.is_inference() and torch.is_grad_enabled()
    return x.clone() if copied else x


def writable(x: Tensor) -> bool:
    """Return whether PyTorch allows writing to a tensor: an inference tensor can change only in inference mode."""
    compiling = torch.compiler.is_compiling()  # a graph can't ask
    return compiling or not x.is_inference() or torch.is_inference_mode_enabled()


def physical(x: Tensor) -> Tensor:
    """Return the detached tensor inside the wrappers of torch.func; the batch dimension of `vmap` comes first."""
    wrappers = torch._C._functorch
    while wrappers.is_functorch_wrapped_tensor(x):
        dim = wrappers.maybe_get_bdim(x) if wrappers.is_batchedtensor(x) else 0
        x = wrappers.get_unwrapped(x)
        x = x.movedim(dim, 0) if dim else x
    return x.detach()


def check_wrapped_alpha(alpha: Alpha, positive: bool = False) -> None:
    """Check alphas that torch.func has wrapped, if their numbers can be read.

    Raises:
        ValueError: An alpha is not finite, or is below 1 (with `positive`: is not above 0).
    """
    if isinstance(alpha, Tensor):
        if recording() or modes_active():
            return
        alpha = physical(alpha)
        if without_numbers(alpha):
            return
    check_alpha(alpha, positive)


def positive_alphas(alpha: Tensor) -> Tensor:
    """Check that alphas are positive and finite, now or each time a recorded graph runs."""
    if (recording() or modes_active()) and not (transforms_active() or forward_mode() or exporting_to_onnx()):
        return cast(Tensor, _positive_alphas(alpha))
    check_wrapped_alpha(alpha, positive=True)
    return alpha


def _checked_copy(alpha: Tensor) -> Tensor:
    check_alpha(alpha, positive=True)
    return alpha.clone()


_positive_alphas = operator(
    "positive_alphas",
    "(Tensor alpha) -> Tensor",
    _checked_copy,
    torch.empty_like,
    lambda ctx, inputs, output: None,
    lambda ctx, grad: grad,
)


def operators_only(x: Tensor) -> bool:
    """Return whether an operator must be called, because a kernel call would not be recorded or would find no data."""
    return modes_active() or without_numbers(x)


def without_numbers(x: Tensor) -> bool:
    """Return whether a tensor has no data: it is on the device "meta", or fake."""
    return x.is_meta or isinstance(x, FakeTensor)


def functionalized() -> bool:
    """Return whether `torch.func.functionalize` is active, which supports no `autograd.Function`.

    Raises:
        NotImplementedError: Derivatives are taken inside `functionalize`, where operators have no derivatives.
    """
    if not (transforms_active() and _transformed_by(_KINDS.Functionalize)):
        return False
    if forward_mode() or _differentiated():
        raise NotImplementedError(
            "derivatives inside torch.func.functionalize are not supported: trace the derivative first, as in "
            "functionalize(make_fx(grad(f))(x))"
        )
    return True


def _transformed_by(*kinds: Any) -> bool:
    return any(level.key() in kinds for level in torch._C._functorch.get_interpreter_stack() or [])


@constant
def _differentiated() -> bool:
    """Return whether a transform of torch.func takes derivatives."""
    return _transformed_by(_KINDS.Grad, _KINDS.Jvp)


def compiling() -> bool:
    """Return whether a graph is recorded, so that kernels must be called through an operator.

    Inside torch.func or in forward mode, the derivatives of operators would silently be zero. torch.compile leaves such
    code out of the graph.

    Raises:
        NotImplementedError: torch.export would record such a derivative.
    """
    if not recording():
        return False
    if not (forward_mode() or _differentiated()):
        return True
    if torch.compiler.is_exporting():
        raise _recording_error("torch.export", "derivatives by torch.func")
    torch._dynamo.graph_break("tsallis inside torch.func or forward mode is not compiled")
    return False


def exporting_to_onnx() -> bool:
    """Return whether `torch.onnx.export` is active, which supports only PyTorch's operators."""
    return recording() and torch.onnx.is_in_onnx_export()


def traced() -> bool:
    """Return whether numbers can't be read: in a graph, in torch.func or under a tracing mode."""
    if recording() or transforms_active():
        return True
    return modes_active() and any(torch._C._get_dispatch_mode(key) is not None for key in _TRACERS)


def forward_mode() -> bool:
    """Return whether tensors may carry tangents."""
    return forward_ad._current_level >= 0


def differentiated(x: Tensor, alpha: Alpha) -> bool:
    """Return whether a tensor or alpha may need derivatives; if not, autograd can be skipped."""
    if forward_ad._current_level >= 0:
        return True
    requires_grad = x.requires_grad or (type(alpha) is not float and isinstance(alpha, Tensor) and alpha.requires_grad)
    return requires_grad and torch.is_grad_enabled()


def differentiable(grad: Tensor, pointers: bool = True) -> bool:
    """Return whether backward must use operations that can be differentiated and batched again.

    With `pointers`, the alternative calls kernels, which dispatch modes can't see. Without `pointers`, the alternative
    uses in-place operations of PyTorch, which only tracers can't record.
    """
    return (
        torch.is_grad_enabled()
        or transforms_active()
        or (modes_active() if pointers else traced())
        or forward_mode()
        or without_numbers(grad)
        or torch._C._functorch.is_legacy_batchedtensor(grad)
    )
