"""Measure how sparse the attentions of a model are while it runs."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from tsallis.functional.attention import count_support
from tsallis.huggingface.alphas import alpha_modules, unwrap
from tsallis.huggingface.modules import Kind, attention_kind
from tsallis.huggingface.text_batches import first_setting
from tsallis.nn.attention_masks import VisibleKeys, sum_support


class DensityMeter:
    """Context manager that measures the densities of a sparsified model over the forward passes inside it.

    It stores no weights. Padding queries are skipped, except those that `generate` of a model without an encoder
    appends to finished sequences. Compiled models run uncompiled inside the context. The meter
    warns if no sparse attention ran.

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
        base: Any = unwrap(model)
        self._decoder = base.get_decoder() if base.config.is_encoder_decoder else None
        decoder_names = {name for name, module in model.named_modules() if module is self._decoder}
        self._counts = {
            name: _Counts(
                attention_kind(name), any(name.startswith(f"{decoder_name}.") for decoder_name in decoder_names)
            )
            for name in self._modules
        }
        self._padding = first_setting("pad_token_id", base.config)
        self._stance: Any = None
        self._hook: Any = None

    def __enter__(self) -> DensityMeter:
        if "torch._dynamo" in sys.modules:  # if it is not imported, nothing is compiled; importing it is slow
            self._stance = torch.compiler.set_stance("force_eager")
        self.attach()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.detach()
        if self._stance is not None:
            self._stance.__exit__(kind, error, trace)
            self._stance = None
        if error is None and not any(counts.passes for counts in self._counts.values()):
            warnings.warn(
                "no sparse attention ran in the block: call the model in the block. If another attention function was "
                "set after sparsify, call sparsify again first.",
                stacklevel=2,
            )

    def attach(self) -> None:
        """Start counting; compiled models are not counted."""
        for name, module in self._modules.items():
            module.meters = (*module.meters, self._counts[name])
        if self._decoder is not None:
            self._hook = self._decoder.register_forward_pre_hook(self._note_padding, with_kwargs=True)

    def detach(self) -> None:
        """Stop counting."""
        for name, module in self._modules.items():
            module.meters = tuple(x for x in module.meters if x is not self._counts[name])
        if self._hook is not None:
            self._hook.remove()

    def _note_padding(self, decoder: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note which queries of the decoder are padding, from its mask or its tokens; the first token is never."""
        active, tokens = kwargs.get("attention_mask"), kwargs.get("input_ids")
        if active is None and tokens is not None and self._padding is not None:
            active = tokens != self._padding
            cache = kwargs.get("past_key_values")
            if cache is None or not cache.get_seq_length():
                active[:, 0] = True  # some models start with the padding token
        for counts in self._counts.values():
            counts.decoder_queries = active if counts.in_decoder else None

    def sums(self, names: Iterable[str]) -> Tensor:
        """Return sums over the queries of some attentions [3]: attended keys, visible keys, number of queries."""
        return torch.stack([self._counts[name].sums.sum(1).cpu() for name in names]).sum(0)

    def densities(self) -> dict[str, Tensor]:
        """Return the share of visible keys with non-zero weight [heads], for every attention that ran."""
        return {name: counts.density() for name, counts in self._counts.items() if counts.passes}


class _Counts:
    """Sums per head over all forward passes."""

    def __init__(self, kind: Kind, in_decoder: bool) -> None:
        self.kind, self.in_decoder = kind, in_decoder
        self.decoder_queries: Tensor | None = None  # mask of the decoder's queries without padding [batch, queries]
        self.passes = 0
        self.sums = torch.zeros(3, 1, dtype=torch.float64)  # attended keys, visible keys, queries with a visible key

    def add(self, record: Tensor, mask: Tensor | None, causal: bool, queries: int, keys: int) -> None:
        """Add a pass; `record` contains the numbers of attended keys [batch, heads, queries], or all weights."""
        support = count_support(record)
        visible = VisibleKeys(mask, None, causal, queries, keys).count_keys(support.device)
        active = None
        if (decoder_queries := self.decoder_queries) is not None and decoder_queries.shape == support[:, 0].shape:
            active = decoder_queries.unsqueeze(1) > 0
        elif self.kind == "self" and mask is not None and queries == keys and queries > 1:
            allowed = mask if mask.dtype == torch.bool else mask > -torch.inf
            # Ignore queries at positions that no query can see: they are padding.
            active = allowed.any(-2).expand(-1, -1, queries)
        sums = sum_support(support, visible, active)
        self.sums = self.sums.to(sums.device) + sums
        self.passes += 1

    def density(self) -> Tensor:
        return (self.sums[0] / self.sums[1].clamp(min=1)).float()
