"""The adapter by which `tsallis.analysis` records sparsified Transformers models; needs the extra `toolkit`, too."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tsallis.analysis import AttentionLayer, Text
from tsallis.integrations.huggingface.alphas import alpha_modules
from tsallis.integrations.huggingface.modules import attention_kind, count_heads, layer_number


class TransformersReader:
    """The adapter of a sparsified Transformers model, for :func:`tsallis.analysis.record`.

    Batches are what the model is called with: `input_ids`, an `attention_mask` with padding behind, `decoder_input_ids`
    where there is a decoder besides, and `index`, the numbers of the sentences, if they are not 0, 1, 2 and so on.
    Keys outside a sliding window count as visible.

    Args:
        model: sparsified by :func:`sparsify`.
        tokenizer: of the model; its method `convert_ids_to_tokens` spells the pieces.

    Raises:
        ValueError: a model without sparse attention.

    Example:
        >>> from tsallis.analysis import density, record
        >>> def densities(model, tokenizer, texts):
        ...     batch = tokenizer(texts, padding=True, return_tensors="pt")
        ...     return density(record(TransformersReader(model, tokenizer), [batch]))
    """

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model, self.tokenizer = model, tokenizer
        self._modules = dict(alpha_modules(model))
        if not self._modules:
            raise ValueError(f"{type(model).__name__} has no sparse attention: call sparsify first")
        self._seq2seq = bool(getattr(model.config, "is_encoder_decoder", False))
        self.layers = tuple(self._layer(name, alpha) for name, alpha in self._modules.items())

    def _layer(self, name: str, alpha_module: nn.Module) -> AttentionLayer:
        attention = self.model.get_submodule(name)
        alphas = torch.as_tensor(alpha_module()).detach().expand(count_heads(attention)).tolist()
        kind = "cross"
        if attention_kind(name) == "self":
            decodes = "decoder" in name.split(".") if self._seq2seq else getattr(attention, "is_causal", False)
            kind = "decoder" if decodes else "encoder"
        return AttentionLayer(kind, layer_number(name) or 0, tuple(alphas), causal=kind == "decoder")

    def texts(self, batch: Mapping[str, Any]) -> list[Text]:
        """Return the pieces of each sentence.

        Raises:
            ValueError: padding before a sentence.
        """
        own = self._pieces(batch["input_ids"], batch.get("attention_mask"))
        nothing: list[tuple[str, ...]] = [()] * len(own)
        sources, targets = own, nothing
        if self._seq2seq:
            targets = self._pieces(batch["decoder_input_ids"], batch.get("decoder_attention_mask"))
        elif all(layer.kind == "decoder" for layer in self.layers):
            sources, targets = nothing, own
        index = [int(number) for number in batch.get("index", range(len(own)))]
        return [Text(*row) for row in zip(index, sources, targets, strict=True)]

    def _pieces(self, ids: Tensor, mask: Tensor | None) -> list[tuple[str, ...]]:
        lengths = [ids.shape[1]] * len(ids) if mask is None else mask.sum(1).tolist()
        if mask is not None and not torch.equal(mask, mask.sort(1, descending=True).values):
            raise ValueError("padding must lie behind the sentences: tokenize with padding_side='right'")
        rows = zip(ids.tolist(), lengths, strict=True)
        return [tuple(map(self._spell, self.tokenizer.convert_ids_to_tokens(row[:length]))) for row, length in rows]

    def _spell(self, token: str) -> str:
        """Return a piece that begins with `▁` if it begins a word, in whichever way the tokenizer marks words."""
        if self._marks_continuations:
            return token.removeprefix("##") if token.startswith("##") else f"▁{token}"
        return f"▁{token[1:]}" if token.startswith("Ġ") else token

    @functools.cached_property
    def _marks_continuations(self) -> bool:
        return any(token.startswith("##") for token in self.tokenizer.get_vocab())

    @torch.no_grad()
    def run(self, batch: Mapping[str, Any], receive: Callable[[int, Tensor], None]) -> None:
        """Run a batch and hand over the weights of each attention as they are computed."""
        device = next(self.model.parameters()).device
        inputs = {name: x.to(device) for name, x in batch.items() if name != "index"}
        training = self.model.training
        try:
            self.model.eval()
            for number, module in enumerate(self._modules.values()):
                module.receive = functools.partial(receive, number)
            self.model(**inputs)
        finally:
            self.model.train(training)
            for module in self._modules.values():
                module.receive = None
