"""Measure how sparse the attentions of a model are while it runs."""

from __future__ import annotations

import sys
import warnings
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from tsallis.functional.attention import count_support
from tsallis.huggingface.alphas import alpha_modules
from tsallis.huggingface.modules import Kind, attention_kind
from tsallis.nn.attention_masks import VisibleKeys, sum_support


class DensityMeter:
    """Context manager that measures the densities of a sparsified model over the forward passes inside it.

    It stores no weights. In self-attention, padding queries are skipped. Compiled models run uncompiled inside the
    context. The meter warns if no sparse attention ran.

    Args:
        model: Model that :func:`sparsify` has changed.

    Raises:
        ValueError: The model has no sparse attention.

    Example:
        >>> import torch
        >>> from transformers import BertConfig, BertModel
        >>> from tsallis.huggingface import sparsify
        >>> config = BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8)
        >>> model = sparsify(BertModel(config), 1.0)
        >>> with DensityMeter(model) as meter:
        ...     _ = model(torch.tensor([[5, 6, 7]]))
        >>> meter.densities()
        {'encoder.layer.0.attention.self': tensor([1., 1.])}
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules = dict(alpha_modules(model))
        if not self._modules:
            raise ValueError(f"{type(model).__name__} has no sparse attention: call sparsify first")
        self._counts = {name: _Counts(attention_kind(name)) for name in self._modules}
        self._stance: Any = None

    def __enter__(self) -> DensityMeter:
        if "torch._dynamo" in sys.modules:  # if it is not imported, nothing is compiled; importing it is slow
            self._stance = torch.compiler.set_stance("force_eager")
        for name, module in self._modules.items():
            module.meter = self._counts[name]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for module in self._modules.values():
            module.meter = None
        if self._stance is not None:
            self._stance.__exit__(kind, error, trace)
            self._stance = None
        if error is None and not any(counts.passes for counts in self._counts.values()):
            warnings.warn(
                "no sparse attention ran in the block: call the model in the block. If another attention function was "
                "set after sparsify, call sparsify again first.",
                stacklevel=2,
            )

    def densities(self) -> dict[str, Tensor]:
        """Return the share of visible keys with non-zero weight [heads], for every attention that ran."""
        return {name: counts.density() for name, counts in self._counts.items() if counts.passes}


class _Counts:
    """Sums per head over all forward passes."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.passes = 0
        self._sums = torch.zeros(3, 1, dtype=torch.float64)  # attended keys, visible keys, queries with a visible key

    def add(self, record: Tensor, mask: Tensor | None, causal: bool, queries: int, keys: int) -> None:
        """Add a pass; `record` contains the numbers of attended keys [batch, heads, queries], or all weights."""
        support = count_support(record)
        visible = VisibleKeys(mask, None, causal, queries, keys).count_keys(support.device)
        active = None
        if self.kind == "self" and mask is not None and queries == keys and queries > 1:
            allowed = mask if mask.dtype == torch.bool else mask > -torch.inf
            # Ignore queries at positions that no query can see: they are padding.
            active = allowed.any(-2).expand(-1, -1, queries)
        sums = sum_support(support, visible, active)
        self._sums = self._sums.to(sums.device) + sums
        self.passes += 1

    def density(self) -> Tensor:
        return (self._sums[0] / self._sums[1].clamp(min=1)).float()
