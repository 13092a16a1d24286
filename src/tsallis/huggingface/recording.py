"""Record sparsified Transformers models for `tsallis.analysis` and reports."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tsallis.analysis import AttentionLayer, RunSummary, Text
from tsallis.analysis.attention_summary import SENTENCES, summarize_attention
from tsallis.analysis.head_roles import EXAMPLES
from tsallis.analysis.spelling import Spelling
from tsallis.errors import InputError
from tsallis.huggingface.alphas import alpha_modules
from tsallis.huggingface.modules import attention_kind, count_heads, layer_number, learns_prompt
from tsallis.huggingface.offloading import input_device
from tsallis.huggingface.text_batches import add_decoder_inputs, text_batches
from tsallis.models.modes import eval_mode
from tsallis.symbols import IGNORE_INDEX

__all__ = ["TransformersReader", "summarize_texts"]


def summarize_texts(
    model: Any,
    tokenizer: Any,
    texts: Sequence[str | tuple[str, str]],
    targets: Sequence[str] | None = None,
    *,
    name: str = "",
    corpus: str = "the texts",
    sentences: int = SENTENCES,
    examples: int = EXAMPLES,
) -> RunSummary:
    """Summarize the heads of a sparsified model on texts, for a report page.

    Args:
        model: Model that :func:`sparsify` has changed.
        tokenizer: Tokenizer of the model.
        texts: Texts or pairs of texts to read.
        targets: Target texts of an encoder-decoder; None for other models.
        name: Name of the model in the report; default: its class name.
        corpus: Name of the texts.
        sentences: Number of texts that the page shows with all weights.
        examples: Number of texts that show the role of a head.

    Returns:
        The summary, for `tsallis.report.build_page`.

    Raises:
        InputError: There are no texts, `texts` is a string, the number of targets differs, targets are missing, or the
            model reads no texts.
        ValueError: The model has no sparse attention.

    Example:
        >>> from tsallis.report import build_page
        >>> def report(model, tokenizer, texts):
        ...     return build_page([summarize_texts(model, tokenizer, texts)])
    """
    if isinstance(texts, str):
        raise InputError(f"texts must be a list, got the string {texts!r}")
    reader = TransformersReader(model, tokenizer)
    if reader.seq2seq != (targets is not None) or len(texts) != len(texts if targets is None else targets):
        needs = f"{len(texts)} targets" if reader.seq2seq else "no targets"
        got = "none" if targets is None else f"{len(targets)} targets"
        raise InputError(f"{type(model).__name__} needs {needs} for {len(texts)} texts, got {got}")
    batches = list(text_batches(model, tokenizer, texts, targets))
    name = name or type(model).__name__
    return summarize_attention(model, reader, batches, name=name, corpus=corpus, sentences=sentences, examples=examples)


class TransformersReader:
    """Adapter of a sparsified Transformers model for :func:`tsallis.analysis.record`.

    Batches are the inputs of the model: `input_ids`, an `attention_mask` with padding at the end, and
    `decoder_input_ids` or `labels` for an encoder-decoder. The optional `index` contains the numbers of the sentences
    (default: 0, 1, 2, ...). Keys outside a sliding window count as visible.

    Args:
        model: Model that :func:`sparsify` has changed.
        tokenizer: Tokenizer of the model, with the method `convert_ids_to_tokens`.

    Raises:
        ValueError: The model has no sparse attention, or an adapter that learns a prompt.

    Example:
        >>> from tsallis.analysis import density, record
        >>> def densities(model, tokenizer, texts):
        ...     batch = tokenizer(texts, padding=True, return_tensors="pt")
        ...     return density(record(TransformersReader(model, tokenizer), [batch]))
    """

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model, self.tokenizer = model, tokenizer
        self._spelling = Spelling(tokenizer)
        self._modules = dict(alpha_modules(model))
        if not self._modules:
            raise ValueError(f"{type(model).__name__} has no sparse attention: call sparsify first")
        if learns_prompt(model):
            raise ValueError(
                f"{type(model).__name__} learns a prompt (PEFT), which has no tokens: it can't be recorded"
            )
        self.seq2seq = bool(getattr(model.config, "is_encoder_decoder", False))
        self.layers = tuple(self._layer(name, alpha) for name, alpha in self._modules.items())

    def _layer(self, name: str, alpha_module: nn.Module) -> AttentionLayer:
        attention = self.model.get_submodule(name)
        alphas = torch.as_tensor(alpha_module()).detach().expand(count_heads(attention)).tolist()
        kind = "cross"
        if attention_kind(name) == "self":
            decodes = "decoder" in name.split(".") if self.seq2seq else getattr(attention, "is_causal", False)
            kind = "decoder" if decodes else "encoder"
        return AttentionLayer(kind, layer_number(name) or 0, tuple(alphas), causal=kind == "decoder")

    def texts(self, batch: Mapping[str, Any]) -> list[Text]:
        """Return the pieces of each sentence.

        Raises:
            ValueError: The batch has no texts, or padding before a sentence.
        """
        if "input_ids" not in batch:
            raise ValueError(f"a batch must have input_ids, got {', '.join(batch)}")
        batch = self._with_targets(batch)
        pieces = self._pieces(batch["input_ids"], batch.get("attention_mask"))
        empty: list[tuple[str, ...]] = [()] * len(pieces)
        sources, targets = pieces, empty
        if self.seq2seq:
            targets = self._pieces(batch["decoder_input_ids"], batch.get("decoder_attention_mask"))
        elif all(layer.kind == "decoder" for layer in self.layers):
            sources, targets = empty, pieces
        index = [int(number) for number in batch.get("index", range(len(pieces)))]
        return [Text(*row) for row in zip(index, sources, targets, strict=True)]

    def _with_targets(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return a batch that has the inputs of the decoder if the model is an encoder-decoder."""
        inputs = dict(batch)
        if self.seq2seq and "decoder_input_ids" not in inputs:
            if "labels" not in inputs:
                raise ValueError(f"a batch must have decoder_input_ids or labels, got {', '.join(batch)}")
            add_decoder_inputs(self.model, inputs, inputs["labels"])
            inputs["decoder_attention_mask"] = (inputs["labels"] != IGNORE_INDEX).long()
        return inputs

    def _pieces(self, ids: Tensor, mask: Tensor | None) -> list[tuple[str, ...]]:
        lengths = [ids.shape[1]] * len(ids) if mask is None else mask.sum(1).tolist()
        if mask is not None and not torch.equal(mask, mask.sort(1, descending=True).values):
            raise ValueError("padding must come after the tokens: call the tokenizer with padding_side='right'")
        rows = zip(ids.tolist(), lengths, strict=True)
        return [self._spelling.spell(row[:length]) for row, length in rows]

    @torch.no_grad()
    def run(self, batch: Mapping[str, Any], receive: Callable[[int, Tensor], None]) -> None:
        """Run a batch, and pass the weights of each attention to `receive` when they are computed."""
        device = input_device(self.model)
        inputs = {name: x.to(device) for name, x in self._with_targets(batch).items() if name != "index"}
        try:
            for number, module in enumerate(self._modules.values()):
                module.receive = functools.partial(receive, number)
            with eval_mode(self.model):
                self.model(**inputs)
        finally:
            for module in self._modules.values():
                module.receive = None
