"""Compare each backend with PyTorch's operations in float64, for `tsallis info --check`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

import tsallis
from tsallis.ops import choice, registry
from tsallis.ops.protocol import Capabilities

Case = tuple[str, Callable[..., Any], dict[str, Any]]  # name, function, arguments; float arguments also need gradients


class Row(NamedTuple):
    """Largest error of a backend in a family of functions, for one dtype on one device."""

    backend: str
    device: str
    dtype: str
    family: str
    case: str
    error: float
    limit: float
    message: str
    seconds: float  # duration, including the time to compile

    @property
    def agrees(self) -> bool:
        """Whether the backend's results agree with those of PyTorch's operations."""
        return not self.message and self.error <= self.limit


def _alphas(can: Capabilities) -> Tensor:
    return torch.linspace(can.alphas[0], min(can.alphas[1], 4.0), 5)


def _rows(can: Capabilities, long_alpha_index: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield short rows, many rows that exceed a GPU's on-chip memory, and one row that several programs share."""
    alphas = _alphas(can)
    scores = 2 * torch.randn(6, 65)
    scores[5] = -math.inf  # a row with all scores masked
    yield "rows with an alpha each", {"scores": scores, "alpha": alphas[[0, 1, 2, 3, 4, 4]].unsqueeze(-1)}
    num_long_rows = torch.cuda.get_device_properties(0).multi_processor_count if torch.cuda.is_available() else 2
    shapes = {"short rows": (3, 1000), "long rows": (num_long_rows, 8200), "parts of a long row": (1, 8200)}
    for (name, shape), alpha in zip(shapes.items(), alphas[[2, long_alpha_index, 1]].tolist(), strict=True):
        yield name, {"scores": (2 * torch.randn(shape)).index_fill_(1, torch.tensor(3), -math.inf), "alpha": alpha}


def _maps(can: Capabilities) -> Iterator[Case]:
    # At alpha 2, the gradient jumps if a score equals the threshold, which is common in half precision.
    for name, arguments in _rows(can, long_alpha_index=3):
        yield f"entmax of {name}", tsallis.entmax, arguments


def _losses(can: Capabilities) -> Iterator[Case]:
    for name, arguments in _rows(can, long_alpha_index=4):
        target = torch.arange(len(arguments["scores"])) % 3
        target[1:2] = -100
        arguments |= {"target": target, "reduction": "none"}
        yield f"entmax_loss of {name}", tsallis.entmax_loss, arguments


def _alpha_relu(can: Capabilities) -> Iterator[Case]:
    target = torch.tensor([5, 2999, 0, 70, -100])
    for alpha in _alphas(can)[1:3].tolist():
        arguments = {"scores": torch.randn(5, 3000), "target": target, "alpha": alpha, "tau": 0.75, "reduction": "none"}
        yield f"alpha_relu_loss with alpha {alpha:g}", tsallis.alpha_relu_loss, arguments


def _output_layer(can: Capabilities) -> Iterator[Case]:
    target = torch.arange(20) * 30
    target[1] = -100
    arguments: dict[str, Any] = {"target": target, "alpha": _alphas(can)[2].item(), "reduction": "none"}
    arguments |= {"hidden": torch.randn(20, 48), "weight": torch.randn(700, 48) / 2, "bias": torch.randn(700) / 8}
    yield "linear_entmax_loss", tsallis.linear_entmax_loss, arguments
    yield "linear_alpha_relu_loss", tsallis.linear_alpha_relu_loss, {**arguments, "tau": 5.0}


def _attention(can: Capabilities) -> Iterator[Case]:
    """Yield three kinds of attention: few keys; so many keys that kernels select blocks; decoding."""
    alphas, few, many = _alphas(can), 37, 1100
    head = int(min(256, can.largest_head))
    pair, slopes = {"alpha": alphas[1:3]}, {"slopes": torch.tensor([0.25, 0.0078125]), "query_offset": many - 40}
    mask, lengths = torch.randn(1, 4, 9, few), torch.tensor([few, 20])
    shapes: dict[str, tuple[tuple[int, int, int, int, int], dict[str, Any]]] = {
        "few keys": ((2, 4, 9, few, 32), {"alpha": alphas[:4], "attn_mask": mask, "key_lengths": lengths}),
        "many keys": ((1, 2, 40, many, 32), {**pair, "is_causal": True}),
        "wide heads": ((1, 2, 40, many, 128), {"attn_mask": torch.randn(many)}),
        "the widest heads": ((1, 2, 40, many, head), pair),
        "slopes": ((1, 2, 40, many, 32), {**slopes, "is_causal": True}),
        "decoding": ((2, 4, 1, many, 128), {"alpha": alphas[:4], "attn_mask": torch.arange(many) % 2 == 0}),
        "decoding with slopes": ((2, 2, 1, many, 32), slopes),
    }
    for name, ((batch, heads, queries, keys, size), options) in shapes.items():
        key, value = torch.randn(2, batch, heads // 2, keys, size)
        arguments = {"query": 2 * torch.randn(batch, heads, queries, size), "key": key, "value": value}
        arguments |= {"alpha": alphas[2].item(), "enable_gqa": True, "return_support": True, **options}
        yield f"attention, {name}", tsallis.entmax_attention, arguments


FAMILIES: dict[str, Callable[[Capabilities], Iterator[Case]]] = {
    "maps": _maps,
    "losses": _losses,
    "alpha-ReLU": _alpha_relu,
    "output layer": _output_layer,
    "attention": _attention,
}


def survey() -> Iterator[Row]:
    """Compare the requested backend, or every backend, with PyTorch's operations."""
    for name in registry.BACKENDS:
        for device in _devices(name):
            can = registry.capabilities(name)
            for dtype in can.dtypes:
                for family in FAMILIES:
                    if family in can.operations and (family != "attention" or dtype in can.attention_dtypes):
                        yield measure(name, device, dtype, family)


def _devices(name: str) -> list[torch.device]:
    """Return the devices on which to compare a backend: the CPU, or one GPU of each kind."""
    request = choice.request()
    if name == "eager" or request not in ("auto", name):
        return []
    has_gpu, for_gpu = torch.cuda.is_available(), "cuda" in registry.BACKENDS[name].devices
    if request == "auto" and for_gpu and not has_gpu:  # skip Triton's interpreter, which is slow
        return []
    if not registry.load(name).status().available:
        return []
    if not (for_gpu and has_gpu):
        return [torch.device("cpu")]
    kinds = {torch.cuda.get_device_name(i): torch.device("cuda", i) for i in range(torch.cuda.device_count())}
    return list(kinds.values())


def measure(backend: str, device: torch.device, dtype: torch.dtype, family: str) -> Row:
    """Compare the results and gradients of a family; return the largest error, relative to max(1, largest value)."""
    start, name, message = time.perf_counter(), family, ""
    limit = 1e-7 if dtype == torch.float64 else max(2e-4, 4 * torch.finfo(dtype).eps)
    errors = {family: 0.0}
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            cases = list(FAMILIES[family](registry.capabilities(backend)))
        for name, function, arguments in cases:
            with tsallis.backend("eager"):
                references = _results(function, arguments, dtype, torch.float64, torch.device("cpu"))
            with tsallis.backend(backend):
                results = _results(function, arguments, dtype, dtype, device)
            for result_name, expected in references.items():
                error = (results[result_name] - expected).abs().nan_to_num(math.inf, math.inf).max()
                errors[f"{name}, {result_name}"] = (error / expected.abs().max().clamp(min=1)).item()
    except Exception as error:
        errors, message = {name: math.inf}, f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
    worst = max(errors, key=lambda case: errors[case])
    where = (backend, str(device), str(dtype).removeprefix("torch."), family)
    return Row(*where, worst, errors[worst], limit, message, time.perf_counter() - start)


def _results(
    function: Callable[..., Any],
    arguments: dict[str, Any],
    input_dtype: torch.dtype,
    dtype: torch.dtype,
    device: torch.device,
) -> dict[str, Tensor]:
    """Return the results of a function and the gradients of its arguments, as float64 on the CPU."""
    arguments = {name: x.to(device) if isinstance(x, Tensor) else x for name, x in arguments.items()}
    inputs = {name: x for name, x in arguments.items() if isinstance(x, Tensor) and x.is_floating_point()}
    inputs = {name: x.to(input_dtype).to(dtype).requires_grad_() for name, x in inputs.items()}
    decoding = "query" in inputs and inputs["query"].shape[-2] == 1
    with torch.set_grad_enabled(not decoding):
        results = function(**{**arguments, **inputs})
    results = dict(zip(("output", "support"), results if isinstance(results, tuple) else (results,), strict=False))
    if not decoding:
        output = results["output"]
        grad = (torch.arange(output.numel(), device=device) % 7 - 3).view_as(output).to(dtype)
        gradients = torch.autograd.grad(output, list(inputs.values()), grad)
        results |= {f"gradient of {name}": x for name, x in zip(inputs, gradients, strict=True)}
    return {name: x.detach().to("cpu", torch.float64) for name, x in results.items()}
