"""One comparison of kernels with PyTorch's operations in float64: its tensors, its results, and the worst of these."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from tsallis.ops.dtypes import exact_products
from tsallis.ops.protocol import AttentionKernels
from tsallis.ops.registry import load, load_attention

VALUE, GRADIENT = 2e-5, 2e-4  # the largest errors in float32, relative to the largest number or to 1
PRODUCT = 2e-3  # what products with the 10 bits of TF32 may add, if PyTorch's setting allows them


class Result(NamedTuple):
    """The error of a kernel and its limit, or the message of a failure."""

    kernel: str
    error: float
    limit: float
    message: str = ""

    @property
    def agrees(self) -> bool:
        """Whether the kernel computed what PyTorch's operations do."""
        return not self.message and self.error <= self.limit


class Trial:
    """The kernels on a device with a dtype, and how far they were from the truth so far."""

    def __init__(self, backend: str, device: torch.device, dtype: torch.dtype) -> None:
        self.backend = backend
        self.kernels = load(backend)
        self.device = device
        self.dtype = dtype
        self.results: list[Result] = []
        self._kernel = ""
        self._generator = torch.Generator().manual_seed(0)

    @property
    def attention(self) -> AttentionKernels:
        """The backend's attention, which is a file of its own."""
        return load_attention(self.backend)

    @property
    def processors(self) -> int:
        """The multiprocessors of a GPU: rows are divided among programs where they are fewer than half of them."""
        return torch.cuda.get_device_properties(self.device).multi_processor_count if self.device.type == "cuda" else 2

    @property
    def result(self) -> Result:
        """The first that went wrong, or else the one that came closest to its limit."""
        wrong = [each for each in self.results if not each.agrees]
        return wrong[0] if wrong else max(self.results, key=lambda each: each.error / each.limit)

    @contextlib.contextmanager
    def kernel(self, name: str) -> Iterator[None]:
        """Name what a block computes, and note an exception there as a result."""
        self._kernel = name
        try:
            yield
        except Exception as error:
            message = f"{type(error).__name__}: {' '.join(str(error).split())}"
            self.results.append(Result(name, math.inf, 0.0, message[:300]))

    def normal(self, *shape: int, scale: float = 1.0) -> Tensor:
        """Return normal numbers that the dtype holds, in float64 on the CPU."""
        x = torch.randn(shape, generator=self._generator, dtype=torch.float32) * scale
        return x.to(self.dtype).double()

    def integers(self, limit: int, *shape: int) -> Tensor:
        """Return integers from 0 on, on the CPU."""
        return torch.randint(limit, shape, generator=self._generator)

    def put(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Return a copy of a tensor of :meth:`normal` as the kernels take it: on the device, in the dtype."""
        return x.to(self.device, dtype or self.dtype, copy=True)

    def compare(self, name: str, actual: Tensor, expected: Tensor, limit: float, rounding: float = 2.0) -> None:
        """Note the error that exceeds its limit most, or comes closest to it.

        Args:
            name: what was computed.
            actual: by the kernel, on any device.
            expected: in float64 on the CPU.
            limit: of errors in float32, relative to the largest number or to 1; a thousandth in float64.
            rounding: how many steps of half precision a number may be away beside that.
        """
        name = f"{self._kernel}, {name}"
        if actual.shape != expected.shape:
            message = f"shape {tuple(actual.shape)} instead of {tuple(expected.shape)}"
            self.results.append(Result(name, math.inf, limit, message))
            return
        limit *= 1e-3 if self.dtype == torch.float64 else 1
        error = (actual.detach().to("cpu", torch.float64) - expected).abs().nan_to_num(math.inf, math.inf).flatten()
        size = expected.abs().flatten()
        limits = limit * size.max().clamp(min=1) + rounding * self.step * size
        worst = (error / limits).argmax()
        self.results.append(Result(name, error[worst].item(), limits[worst].item()))

    @property
    def step(self) -> float:
        """The distance of the numbers next to 1 in half precision; 0 for other dtypes."""
        return 0.0 if self.dtype in (torch.float32, torch.float64) else torch.finfo(self.dtype).eps

    def sum_limit(self, limit: float) -> float:
        """Return the limit of sums of products, whose terms are rounded, relative to the largest number or to 1."""
        exact = self.dtype != torch.float32 or exact_products()
        return limit + (0.0 if exact else PRODUCT) + 2 * self.step
