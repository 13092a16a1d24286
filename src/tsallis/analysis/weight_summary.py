"""Summarize given attention weights of any model for a report."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping

from torch import Tensor

from tsallis.analysis.attention_summary import SENTENCES, summarize_reader
from tsallis.analysis.head_roles import EXAMPLES
from tsallis.analysis.summary_records import RunSummary
from tsallis.analysis.weight_inputs import (
    Layers,
    Pieces,
    Tokens,
    attends_ahead,
    check_values,
    read_tokens,
    split_layers,
)
from tsallis.analysis.weights import SIDES, AttentionLayer, Text


def summarize_weights(
    attention: Layers | None = None,
    tokens: Tokens | None = None,
    *,
    encoder_attention: Layers | None = None,
    decoder_attention: Layers | None = None,
    cross_attention: Layers | None = None,
    encoder_tokens: Tokens | None = None,
    decoder_tokens: Tokens | None = None,
    causal: bool | None = None,
    tolerance: float = 0.01,
    name: str = "model",
    corpus: str = "the texts",
    sentences: int = SENTENCES,
    examples: int = EXAMPLES,
) -> RunSummary:
    """Summarize the heads of any model for a report, from its attention weights.

    The model itself is not needed. The names of arguments are those of bertviz. Pass `attention` and `tokens` for an
    encoder or a decoder. For an encoder-decoder, pass any of the other attentions with their tokens. Only weights that
    are exactly zero count as zeros.

    Args:
        attention: One tensor [sentences, heads, queries, keys] per layer, or None for a layer that is left out. A
            tensor may be larger than the longest sentence. Padding may have any values. It is taken to follow the
            tokens, or to precede them if more rows then sum to 1.
        tokens: Strings of one sentence, or a sequence of strings per sentence. A word starts with `▁` or `Ġ`, or its
            continuations start with `##`; without such marks each token is a word.
        encoder_attention, decoder_attention: Self-attention of the encoder, and of the decoder.
        cross_attention: Attention of the decoder's queries to the encoder's keys.
        encoder_tokens, decoder_tokens: Tokens that the encoder and the decoder read, including the decoder's start. In
            cross-attention the page labels each query with the token that it predicts, and the last with `</s>`.
        causal: Whether queries of `attention` or `decoder_attention` can't see later keys; None: causal if no weight is
            on a later key. Causal `attention` counts as that of a decoder.
        tolerance: Maximum difference between the sum of a row and 1, from 0 to 1. Rows of zeros are always allowed. Use
            1 for weights that need not sum to 1, for example because of an attention sink.
        name: Name of the model in the report.
        corpus: Name of the texts in the report.
        sentences: Number of sentences that the page shows with all heads.
        examples: Number of sentences that show the role of a head.

    Returns:
        Summary for `tsallis.report.build_page`. Its alphas are NaN, and the page omits them.

    Raises:
        TypeError: Tokens are not strings, or weights are not floating-point tensors.
        ValueError: Attention or its tokens are missing, or a shape does not match the tokens. Or weights are negative,
            not finite, on a later key in spite of `causal`, or don't sum to 1.

    Example:
        >>> import torch
        >>> weights = torch.tensor([[0.5, 0.5, 0], [1, 0, 0], [0, 1, 0]])[None, None]  # one sentence, one head
        >>> summarize_weights([weights], ["we", "saw", "it"]).heads[0].title
        'encoder layer 1 head 1 attends to the previous token with confidence 1.00, density 44 %'
    """
    kinds = {"encoder": encoder_attention, "decoder": decoder_attention, "cross": cross_attention}
    reader = _WeightsReader(attention, tokens, kinds, encoder_tokens, decoder_tokens, causal, tolerance)
    return summarize_reader(
        reader, reader.batches, ("", None), name=name, corpus=corpus, sentences=sentences, examples=examples
    )


def _read_sides(kinds: Collection[str], source: Tokens | None, target: Tokens | None) -> dict[str, Pieces]:
    """Return the pieces of each side that these kinds need; check that sides have equal numbers of sentences."""
    arguments = {"source": ("encoder_tokens", source), "target": ("decoder_tokens", target)}
    needs = {side for kind in kinds for side in SIDES[kind]}
    texts = {side: read_tokens(*argument) for side, argument in arguments.items() if side in needs}
    counts = [len(pieces) for pieces in texts.values()]
    if len({*counts}) > 1:
        raise ValueError(
            f"encoder_tokens and decoder_tokens must have the same number of sentences, got {counts[0]} and {counts[1]}"
        )
    return texts


class _WeightsReader:
    """Adapter of given weights, whose batches are the numbers of sentences."""

    def __init__(
        self,
        attention: Layers | None,
        tokens: Tokens | None,
        kinds: Mapping[str, Layers | None],
        encoder_tokens: Tokens | None,
        decoder_tokens: Tokens | None,
        causal: bool | None,
        tolerance: float,
    ) -> None:
        """Check the arguments of :func:`summarize_weights`."""
        if not 0 <= tolerance <= 1:
            raise ValueError(f"tolerance must be from 0 to 1, got {tolerance}")
        attentions = {kind: layers for kind, layers in kinds.items() if layers is not None}
        if (attention is None) == (not attentions):
            arguments = [*(["attention"] if attentions else []), *(f"{kind}_attention" for kind in attentions)]
            raise ValueError(
                "pass either attention, or at least one of encoder_attention, decoder_attention and cross_attention, "
                f"got {' and '.join(arguments) or 'none of them'}"
            )
        if attention is not None:
            pieces = read_tokens("tokens", tokens)
            layers = split_layers("attention", attention, pieces, pieces, tolerance)
            causal = not attends_ahead(layers) if causal is None else causal
            kind = "decoder" if causal else "encoder"
            layers_by_kind, texts = {kind: layers}, {SIDES[kind][0]: pieces}
        else:
            texts = _read_sides(attentions, encoder_tokens, decoder_tokens)
            layers_by_kind = {}
            for kind, tensors in attentions.items():
                queries, keys = (texts[side] for side in SIDES[kind])
                layers_by_kind[kind] = split_layers(f"{kind}_attention", tensors, queries, keys, tolerance)
            causal = not attends_ahead(layers_by_kind.get("decoder", ())) if causal is None else causal
        for kind, layers in layers_by_kind.items():
            check_values(layers, causal and kind == "decoder", tolerance)
        self._texts = texts
        self.batches = range(min(len(pieces) for pieces in texts.values()))
        self._weights = [layer.sentences for layers in layers_by_kind.values() for layer in layers]
        self.layers = tuple(
            AttentionLayer(kind, layer.number, (math.nan,) * layer.heads, causal=causal and kind == "decoder")
            for kind, layers in layers_by_kind.items()
            for layer in layers
        )

    def texts(self, batch: int) -> list[Text]:
        """Return the pieces of the sentence."""
        source, target = (self._texts[side][batch] if side in self._texts else () for side in ("source", "target"))
        return [Text(batch, source, target)]

    def run(self, batch: int, receive: Callable[[int, Tensor], None]) -> None:
        """Pass the weights of each layer to `receive`."""
        for number, sentences in enumerate(self._weights):
            receive(number, sentences[batch][None])
