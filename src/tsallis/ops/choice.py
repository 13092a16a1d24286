"""Choose the backend of each call; only this module makes this choice.

The `eager` backend computes everything that the preferred backend does not support.
"""

from __future__ import annotations

import os
from contextvars import ContextVar, Token
from types import ModuleType
from typing import cast

import torch
from torch import Tensor

from tsallis.errors import InputError
from tsallis.ops.alphas import Alpha, capturing, check_alpha, extremes
from tsallis.ops.protocol import Backend, BeamKernels, RecurrentKernels, ScreeningKernels, TransformerKernels
from tsallis.ops.registry import BACKENDS, capabilities, load, load_file
from tsallis.ops.tracing import constant
from tsallis.ops.transforms import operators_only, recording, without_numbers

VARIABLE = "TSALLIS_BACKEND"
_TENSOR_TYPES = (Tensor, torch.nn.Parameter)
LARGEST_BEAMS = 1 << 20  # maximum number of prefixes for compiled beams, which allocate their memory at the start


# Backends that "auto" tries on each type of device, in the order of `BACKENDS`.
_AUTO = {
    kind: tuple(name for name, entry in BACKENDS.items() if kind in entry.devices)
    for kind in {kind for entry in BACKENDS.values() for kind in entry.devices}
}
_request: ContextVar[str | None] = ContextVar("tsallis_backend", default=None)


class backend:
    """Context manager that selects the backend of calls: `"auto"`, `"eager"`, `"cpu"` or `"triton"`.

    The default, `"auto"`, uses compiled kernels (`"cpu"`) for tensors on the CPU, and Triton's kernels for float32,
    bfloat16 and float16 on a GPU. If these kernels are missing, it uses PyTorch's operations (`"eager"`). The
    environment variable `TSALLIS_BACKEND` sets another default. If the selected backend does not support an operation,
    a dtype or an alpha, `"eager"` computes the call. The backend of a forward pass also computes its gradients;
    PyTorch's operations compute second derivatives.

    Args:
        name: `"auto"` or the name of a backend.

    Raises:
        ValueError: The backend is unknown.
        RuntimeError: The backend can't be used here; the message explains why.

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


def _check(name: str, label: str) -> str:
    if name != "auto" and name not in BACKENDS:
        raise ValueError(f"{label} must be one of {', '.join(('auto', *BACKENDS))}, got {name!r}")
    if name != "auto" and not load(name).status().available:
        raise RuntimeError(f"{label} {name!r} can't be used: {load(name).status().reason}")
    return name


def choose_transformer(kind: str) -> TransformerKernels | None:
    """Return the Transformer kernels for a type of device, or None if the backend has none."""
    return cast("TransformerKernels | None", _choose_file("transformer", kind))


def choose_recurrent(kind: str) -> RecurrentKernels | None:
    """Return the kernels of recurrent decoders for a type of device, or None if the backend has none."""
    return cast("RecurrentKernels | None", _choose_file("recurrent", kind))


def choose_screening(kind: str) -> ScreeningKernels | None:
    """Return the kernels that scan keys in 8 bits on a type of device, or None if the backend has none."""
    return cast("ScreeningKernels | None", _choose_file("screening", kind))


def _choose_file(operation: str, kind: str) -> ModuleType | None:
    """Return the backend's file with an operation, or None."""
    for name in _candidates(kind):
        if (file := load_file(name, operation)) and _usable(name):
            return cast(ModuleType, file)
    return None


def choose_beams(prefixes: int) -> BeamKernels:
    """Return the kernels that manage beams of this many prefixes; the kernels run on the CPU."""
    # A backend that was selected by name may have no beams, or may not support CPUs.
    name = request()
    names = _AUTO.get("cpu", ()) if name == "auto" else (name,)
    for candidate in names if prefixes <= LARGEST_BEAMS else ():
        if (file := load_file(candidate, "beams")) and _usable(candidate):
            return cast(BeamKernels, file)
    return cast(BeamKernels, load_file("eager", "beams"))


def request() -> str:
    """Return the name set by the innermost `backend` block, or else by the environment; the default is `auto`.

    Raises:
        InputError: The environment names an unknown or unavailable backend.
    """
    name = _request.get()
    if name is not None:
        return name
    try:
        return _check(os.environ.get(VARIABLE) or "auto", VARIABLE)
    except (ValueError, RuntimeError) as error:
        raise InputError(str(error)) from error


def choose(operation: str, alpha: Alpha, *tensors: Tensor, positive: bool = True) -> Backend:
    """Return the backend that computes an operation on these tensors, and check the alphas.

    The tensors must contain data; :func:`choose_direct` also accepts traced tensors. Only `eager` supports alphas below
    1, and only with `positive`. While a CUDA graph is captured, a tensor of alphas is not checked.

    Raises:
        ValueError: An alpha is not positive, not finite, or below 1 without `positive`.
        RuntimeError: The selected backend does not support the device.
    """
    name, kind = request(), tensors[0].device.type
    auto = name == "auto"
    for candidate in _AUTO.get(kind, ()) if auto else (name,):
        choice = load(candidate)
        if (auto or choice.on_device(kind)) and _suits(choice, operation, alpha, tensors) and choice.usable():
            return choice
    check_alpha(alpha, positive)
    return load("eager")


def _suits(backend: Backend, operation: str, alpha: Alpha, tensors: tuple[Tensor, ...]) -> bool:
    can = backend.CAPABILITIES
    if operation not in can.operations:
        return False
    for x in tensors:
        if type(x) not in _TENSOR_TYPES or x.dtype not in can.dtypes or x.numel() == 0:
            return False
    if len(tensors) > 1 and any(x.device != tensors[0].device for x in tensors):
        return False
    smallest, largest = can.alphas
    if isinstance(alpha, float):
        return smallest <= alpha <= largest
    if capturing(alpha):
        return True
    least, most = extremes(alpha)
    return smallest <= least <= most <= largest


def choose_direct(operation: str, alpha: Alpha, *tensors: Tensor) -> Backend | None:
    """Return the backend to call directly, or None if an operator must be called.

    An operator is needed under compilers, tracers, transforms of torch.func and dispatch modes, and for tensors without
    data. The operator calls :func:`choose` when it runs.
    """
    # Avoid function calls here: each one is measurable on small tensors.
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return None
    x = tensors[0]
    if (
        torch._C._get_tracing_state()
        or torch._C._len_torch_dispatch_stack()
        or x.is_meta
        or (type(x) not in _TENSOR_TYPES and without_numbers(x))
    ):
        return None
    return choose(operation, alpha, *tensors)


def choose_attention(query: Tensor, key: Tensor, value: Tensor, bounds: tuple[float, float] | None) -> str:
    """Return the name of the backend that computes attention over [batch, heads, length, size], even while tracing.

    Only dtypes, sizes and the device are read. The caller decides whether to call the backend directly or through its
    operator. The caller also handles `torch.func` and forward mode, which compute all weights, and upcasts tensors
    whose dtype is not in the backend's `attention_dtypes`.

    Args:
        query, key, value: Tensors of one dtype and device.
        bounds: Smallest and largest alpha, already checked; None if alphas can't be read now. The operator then checks
            them when it runs.
    """
    if not (query.numel() and key.numel() and value.numel()) or not _readable(query, key, value):
        return "eager"
    head, batch = max(query.shape[-1], value.shape[-1]), max(query.shape[0], query.shape[1])
    for name in _candidates(query.device.type):
        can = capabilities(name)
        fits = "attention" in can.operations and query.dtype in can.dtypes
        fits = fits and head <= can.largest_head and batch <= can.largest_batch
        fits = fits and (bounds is None or can.alphas[0] <= bounds[0] <= bounds[1] <= can.alphas[1])
        if fits and _usable(name):
            return name
    return "eager"


def _readable(*tensors: Tensor) -> bool:
    """Return whether kernels can compute these tensors, directly or through an operator."""
    if all(type(x) in _TENSOR_TYPES for x in tensors):
        return True
    return recording() or operators_only(tensors[0])


# Tracers may treat the results of the functions below as constants, because the results do not depend on tensors.


@constant
def _candidates(kind: str) -> tuple[str, ...]:
    """Return the names of the backends to try for a type of device."""
    name = request()
    names = _AUTO.get(kind, ()) if name == "auto" else (name,)
    return tuple(name for name in names if load(name).on_device(kind))


@constant
def _usable(name: str) -> bool:
    return load(name).usable()


def explain() -> str:
    """Describe in one line which backend is used on the CPU, and why."""
    return _explain("cpu")


def explain_gpu() -> str:
    """Describe in one line which backend is used on a GPU, and why."""
    return _explain("cuda") if torch.cuda.is_available() else "none (PyTorch finds no GPU)"


def _explain(kind: str) -> str:
    name = request()
    if name == "eager":
        return "eager (requested)"
    for candidate in _AUTO[kind] if name == "auto" else (name,):
        status = load(candidate).status()
        try:
            if status.available and load(candidate).on_device(kind):
                return f"{candidate} ({status.reason})"
        except RuntimeError as error:
            return f"none ({error})"
        reason = status.reason if not status.available else f"{name} was requested"
    return f"eager ({reason})"
