"""The ways PyTorch follows an operation besides running it: compile, record, transform, batch or differentiate it.

Kernels are called by pointer. Whoever follows PyTorch's operations (a compiler, a dispatch mode, a transformation of
`torch.func`) does not see such a call, and must meet an operator or PyTorch's own operations instead.
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
    """Tell whether torch.func is at work: tensors may be wrappers that can't be looked into or changed in place."""
    return torch._C._are_functorch_transforms_active()


def modes_active() -> bool:
    """Tell whether a dispatch mode follows the operators that are called: `make_fx`, fake tensors, a mode of a user."""
    return torch._C._len_torch_dispatch_stack() > 0


def jit_tracing() -> bool:
    """Return whether torch.jit.trace records operations, for itself or for the older ONNX exporter."""
    return torch._C._get_tracing_state() is not None


def check_recordable() -> None:
    """Raise if torch.jit.trace meets a transform of torch.func or forward mode.

    PyTorch itself can't read a shape there, and loses tangents without an error.

    Raises:
        NotImplementedError: torch.jit.trace records, and one of them is active.
    """
    if torch._C._get_tracing_state() is not None and (transforms_active() or forward_mode()):
        raise _not_recordable("torch.jit.trace", "torch.func (grad, jvp, vmap and others)")


def _not_recordable(recorder: str, transforms: str) -> NotImplementedError:
    return NotImplementedError(
        f"{recorder} can't record tsallis inside {transforms} or forward-mode AD: "
        "record with torch.fx.experimental.proxy_tensor.make_fx, or record the function without the transform"
    )


def recording() -> bool:
    """Return whether operations become a graph: by torch.compile, torch.export or torch.jit.trace."""
    return torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None


def graph_outlives_values() -> bool:
    """Return whether a graph is recorded that serves other inputs later: by torch.jit.trace, torch.export, make_fx."""
    proxies = torch._C._get_dispatch_mode(_MODES.PROXY) is not None
    return jit_tracing() or torch.compiler.is_exporting() or proxies


def varies(number: float) -> bool:
    """Return whether a number is an input of a compiled graph: a compiler would make a graph for each of its values.

    Whoever computes with tensors only, turns such a number into one (:func:`as_input`).
    """
    if not torch.compiler.is_compiling():
        return False
    from torch.fx.experimental.symbolic_shapes import has_static_value

    return not has_static_value(number)


def as_input(number: float, like: Tensor) -> Tensor:
    """Return a number that varies as a tensor without dimensions, on the device of another tensor."""
    return torch.ones((), dtype=compute_dtype(like.dtype), device=like.device) * number


def tracing_active() -> bool:
    """Tell whether anyone follows PyTorch's operations: a compiler, a dispatch mode, torch.func or forward mode."""
    return recording() or transforms_active() or modes_active() or forward_mode()


@contextlib.contextmanager
def outside_tracers() -> Iterator[None]:
    """Compute plain tensors, whoever follows PyTorch's operations: what a cache keeps must not be theirs."""
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
    """Return a tensor that autograd can save for backward: a copy of one that was made in inference mode."""
    copied = not torch.compiler.is_compiling() and x.is_inference() and torch.is_grad_enabled()
    return x.clone() if copied else x


def physical(x: Tensor) -> Tensor:
    """Return the tensor beneath the wrappers of torch.func, detached: of `vmap` all of the batch, in front."""
    wrappers = torch._C._functorch
    while wrappers.is_functorch_wrapped_tensor(x):
        dim = wrappers.maybe_get_bdim(x) if wrappers.is_batchedtensor(x) else 0
        x = wrappers.get_unwrapped(x)
        x = x.movedim(dim, 0) if dim else x
    return x.detach()


def check_wrapped_alpha(alpha: Alpha, positive: bool = False) -> None:
    """Check alphas that torch.func has wrapped, where their numbers can be looked at all the same.

    Raises:
        ValueError: an alpha below 1, or with `positive` not above 0, or not finite.
    """
    if isinstance(alpha, Tensor):
        if recording() or modes_active():
            return
        alpha = physical(alpha)
        if without_numbers(alpha):
            return
    check_alpha(alpha, positive)


def positive_alphas(alpha: Tensor) -> Tensor:
    """Return alphas that are checked to be positive and finite: now, or by an operator each time a graph runs."""
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
    """Tell whether a kernel that is called by pointer would go unnoticed, or would find no numbers."""
    return modes_active() or without_numbers(x)


def without_numbers(x: Tensor) -> bool:
    """Tell whether a tensor has a shape alone: on the device "meta", or a fake one."""
    return x.is_meta or isinstance(x, FakeTensor)


def functionalized() -> bool:
    """Tell whether `torch.func.functionalize` is at work, which takes operators and no `autograd.Function`.

    Raises:
        NotImplementedError: derivatives inside it, which an operator does not have there.
    """
    if not (transforms_active() and _transformed_by(_KINDS.Functionalize)):
        return False
    if forward_mode() or _differentiated():
        raise NotImplementedError(
            "no derivatives inside torch.func.functionalize: trace them first, as in functionalize(make_fx(grad(f))(x))"
        )
    return True


def _transformed_by(*kinds: Any) -> bool:
    return any(level.key() in kinds for level in torch._C._functorch.get_interpreter_stack() or [])


@constant
def _differentiated() -> bool:
    """Tell whether a transformation of torch.func takes derivatives."""
    return _transformed_by(_KINDS.Grad, _KINDS.Jvp)


def compiling() -> bool:
    """Return whether a graph is recorded, in which an operator has to stand for the call of a kernel.

    An operator has no derivatives inside torch.func, and none in forward mode: they would be zero without a word.
    torch.compile leaves such a part out of the graph.

    Raises:
        NotImplementedError: torch.export records such a derivative.
    """
    if not recording():
        return False
    if not (forward_mode() or _differentiated()):
        return True
    if torch.compiler.is_exporting():
        raise _not_recordable("torch.export", "derivatives by torch.func")
    torch._dynamo.graph_break("tsallis inside torch.func or forward mode is not compiled")
    return False


def exporting_to_onnx() -> bool:
    """Tell whether `torch.onnx.export` is at work, which knows PyTorch's operations and no operator of ours."""
    return recording() and torch.onnx.is_in_onnx_export()


def traced() -> bool:
    """Return whether numbers can't be looked at: in a graph, in torch.func or under a tracing mode."""
    if recording() or transforms_active():
        return True
    return modes_active() and any(torch._C._get_dispatch_mode(key) is not None for key in _TRACERS)


def forward_mode() -> bool:
    """Tell whether tensors may carry tangents."""
    return forward_ad._current_level >= 0


def differentiated(x: Tensor, alpha: Alpha) -> bool:
    """Tell whether derivatives in a tensor or in alpha may be asked for: if not, no Function is needed."""
    if forward_ad._current_level >= 0:
        return True
    requires_grad = x.requires_grad or (type(alpha) is not float and isinstance(alpha, Tensor) and alpha.requires_grad)
    return requires_grad and torch.is_grad_enabled()


def differentiable(grad: Tensor, pointers: bool = True) -> bool:
    """Tell whether a backward pass must be made of operations that can be differentiated and batched once more.

    With `pointers` the other way to compute it calls kernels, which no dispatch mode sees; without, it is made of
    PyTorch's operations too, in place, which only a tracer cannot follow.
    """
    return (
        torch.is_grad_enabled()
        or transforms_active()
        or (modes_active() if pointers else traced())
        or forward_mode()
        or without_numbers(grad)
        or torch._C._functorch.is_legacy_batchedtensor(grad)
    )
