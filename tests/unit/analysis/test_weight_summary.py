"""Summaries of given weights equal those of a recording of the model, and errors name the wrong value."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from analysis_samples import SRC, TGT, corpus, transformer
from tsallis.analysis import RunSummary, read_model, record, summarize_attention, summarize_weights
from tsallis.report.page import build_page

PIECES = ["▁we", "▁saw", "it", "?"]


def softmax(*shape: int, causal: bool = False, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return random weights [sentences, heads, queries, keys]; their seed depends on the shape."""
    scores = 2 * torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)
    if causal:
        scores.masked_fill_(torch.ones(shape[-2:], dtype=torch.bool).triu(1), -math.inf)
    return scores.softmax(-1).to(dtype)


def names(summary: RunSummary) -> list[str]:
    return [f"{layer.name}{', causal' if layer.causal else ''}" for layer in summary.layers]


def test_summary_matches_recorded_model() -> None:
    """Use batches with padding at the end, and a model with exact zeros."""
    torch.manual_seed(1)
    model, data = transformer().eval(), corpus(5)
    reader, batches = read_model(model, SRC, TGT), list(data.batches(5))
    summary = summarize_attention(model, reader, batches, name="a", corpus="b")
    sentences = sorted(record(reader, batches), key=lambda sentence: sentence.text.index)
    kinds: dict[str, Any] = {"encoder": [], "decoder": [], "cross": []}
    for number, layer in enumerate(reader.layers):
        rows = [torch.from_numpy(sentence.weights[number].dense()) for sentence in sentences]
        sizes = [max(row.shape[side] for row in rows) for side in (1, 2)]
        padded = torch.full((len(rows), layer.heads, *sizes), 0.125, dtype=torch.float64)
        for row, own in enumerate(rows):
            padded[row, :, : own.shape[1], : own.shape[2]] = own
        kinds[layer.kind].append(padded)
    ours = summarize_weights(
        encoder_tokens=[list(sentence.text.source) for sentence in sentences],
        decoder_tokens=[list(sentence.text.target) for sentence in sentences],
        **{f"{kind}_attention": layers for kind, layers in kinds.items()},
    )
    assert names(ours) == names(summary) and ours.corpus.src_symbols == summary.corpus.src_symbols
    assert any(head.density < 1 for head in ours.heads)
    for one, other in zip(ours.heads, summary.heads, strict=True):
        assert one.density == pytest.approx(other.density) and one.role == other.role and math.isnan(one.alpha)
        assert one.title == other.title.replace(f"alpha {other.alpha:.2f}, ", "")
        assert [example.text for example in one.examples] == [example.text for example in other.examples]
    for ours_of, theirs_of in zip(ours.sentences, summary.sentences, strict=True):
        assert ours_of.text == theirs_of.text
        for weights, reference in zip(ours_of.weights, theirs_of.weights, strict=True):
            np.testing.assert_array_equal(weights.dense(), reference.dense())


def test_causal_attention_is_detected_as_decoder() -> None:
    for causal, kind in ((False, "encoder"), (True, "decoder")):
        summary = summarize_weights([softmax(1, 2, 4, 4, causal=causal)], PIECES)
        assert names(summary) == [f"{kind} layer 1{', causal' if causal else ''}"]
        assert [head.density for head in summary.heads] == [1.0, 1.0]
        text = summary.sentences[0].text
        assert (text.source, text.target) == ((), tuple(PIECES))[:: 1 if causal else -1]
    summary = summarize_weights([softmax(1, 2, 4, 4, causal=True)], PIECES, causal=False)
    assert names(summary) == ["encoder layer 1"] and summary.heads[0].density == 10 / 16
    summary = summarize_weights(decoder_attention=[softmax(1, 2, 4, 4)], decoder_tokens=PIECES)
    assert names(summary) == ["decoder layer 1"]


def test_one_noncausal_layer_makes_all_layers_noncausal() -> None:
    layers = [softmax(1, 2, 4, 4, causal=True), softmax(1, 2, 4, 4)]
    assert names(summarize_weights(layers, PIECES)) == ["encoder layer 1", "encoder layer 2"]


def test_omitted_layers_do_not_change_layer_numbers() -> None:
    summary = summarize_weights([None, softmax(1, 2, 4, 4), None, softmax(1, 3, 4, 4)], PIECES, name="mine")
    assert names(summary) == ["encoder layer 2", "encoder layer 4"] and summary.name == "mine"
    assert [head.layer for head in summary.heads] == [1, 1, 3, 3, 3]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_dtype_preserves_weights_and_zeros(dtype: torch.dtype) -> None:
    weights = softmax(1, 2, 4, 4, dtype=dtype)
    weights[0, 0, 1] = torch.tensor([0, 1, 0, 0])
    weights[0, 1, 2] = 0  # a query that sees no key
    weights.requires_grad_()
    summary = summarize_weights([weights], PIECES)
    assert [head.density for head in summary.heads] == [13 / 16, 12 / 16]
    values = summary.sentences[0].weights[0].dense()
    np.testing.assert_array_equal(values, weights[0].detach().float().numpy().astype(np.float64))


def test_weights_below_float32_range_count_as_nonzero() -> None:
    weights = torch.tensor([[1.0, 1e-60], [1e-60, 1.0]], dtype=torch.float64)[None, None]
    assert summarize_weights([weights], ["a", "b"]).heads[0].density == 1


def test_tolerance_sets_allowed_deviation_of_sums() -> None:
    sink = 0.6 * softmax(1, 2, 4, 4)
    with pytest.raises(ValueError, match=r"must sum to 1 within 0\.01"):
        summarize_weights([sink], PIECES)
    assert summarize_weights([sink], PIECES, tolerance=1).heads[0].density == 1


def test_sentences_argument_limits_shown_sentences() -> None:
    summary = summarize_weights([softmax(9, 2, 4, 4)], [PIECES] * 9, sentences=2)
    assert summary.corpus.sentences == 9 and len(summary.sentences) == 2
    with pytest.raises(ValueError, match="sentences must be at least 1, got 0"):
        summarize_weights([softmax(9, 2, 4, 4)], [PIECES] * 9, sentences=0)


def test_tokenizer_marks_are_normalized() -> None:
    for tokens, pieces in (
        (["[CLS]", "play", "##ing", "[SEP]"], ("[CLS]", "▁play", "ing", "[SEP]")),
        (["The", "Ġcaf", "Ã©", "Ċ"], ("The", "▁caf", "é", r"\n")),
        (PIECES, tuple(PIECES)),
        (["a", "##", "b", "c"], ("a", "##", "b", "c")),
        (["<s>", "ä½łå¥½", "ä¸ĸ", "çķ"], ("<s>", "你好", "世", r"\xe7\x95")),  # cut inside a character
        (["Ġorġ", "qal", "é", "!"], ("Ġorġ", "qal", "é", "!")),
        (["Ġorġ", "qal", "li", "le"], ("Ġorġ", "qal", "li", "le")),
        (["c", "a", "f", "é"], ("c", "a", "f", "é")),
    ):
        summary = summarize_weights([softmax(1, 1, 4, 4)], tokens)
        assert summary.sentences[0].text.source == pieces


ONE, TOKENS = softmax(1, 1, 4, 4), {"tokens": PIECES}
SHAPE = r"must have shape \[1, heads, 4, 4\] .* got"


INVALID = [
    ({}, "pass either attention, or at least one of encoder_attention, .* got none of them"),
    ({**TOKENS, "attention": [ONE], "cross_attention": [ONE]}, "got attention and cross_attention"),
    ({"attention": [ONE]}, "tokens must be given, got None"),
    ({"cross_attention": [ONE], "decoder_tokens": PIECES}, "encoder_tokens must be given, got None"),
    ({"cross_attention": [], "decoder_tokens": [PIECES], "encoder_tokens": [PIECES] * 2}, "encoder.* 2 and 1"),
    ({"attention": [ONE], "tokens": []}, "tokens must have at least one token per sentence"),
    ({"attention": [softmax(2, 1, 4, 4)], "tokens": [PIECES, []]}, "token per sentence, got none in sentence 1"),
    ({**TOKENS, "attention": []}, r"attention must have the weights of at least one layer, got \[\]"),
    ({**TOKENS, "attention": (None, None)}, r"got \(None, None\); .* attn_implementation='eager'"),
    ({**TOKENS, "attention": [softmax(1, 2, 5, 5)]}, r"\[0\]\[0, 0, 0\] must sum to 1 within 0\.01 over 4 keys"),
    ({**TOKENS, "attention": [softmax(1, 2, 3, 4)]}, rf"attention\[0\] {SHAPE} \[1, 2, 3, 4\]"),
    ({**TOKENS, "attention": [softmax(4, 4)]}, r"attention\[0\] must have shape .* got \[4, 4\]"),
    (
        {"cross_attention": [softmax(1, 1, 4, 2)], "decoder_tokens": ["<s>", "a"], "encoder_tokens": PIECES},
        r"cross_attention\[0\] must have shape \[1, heads, 2, 4\] .* 2 tokens for queries and 4 for keys",
    ),
    (
        {**TOKENS, "attention": [softmax(1, 2, 4, 4, causal=True), softmax(1, 2, 4, 4)], "causal": True},
        r"attention\[1\]\[0, 0, 0, 1\] must be 0 for a key after the query, got 0\.\d+",
    ),
    ({**TOKENS, "attention": [ONE], "tolerance": 2}, "tolerance must be from 0 to 1, got 2"),
]


@pytest.mark.parametrize(("arguments", "message"), INVALID)
def test_invalid_arguments_raise(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        summarize_weights(**arguments)
    assert "\n" not in str(raised.value)


INVALID_WEIGHTS = [
    ((1, 0, 2, 3), -0.25, r"attention\[0\]\[1, 0, 2, 3\] must be finite and at least 0, got -0.25"),
    ((0, 1, 2, 3), math.nan, r"attention\[0\]\[0, 1, 2, 3\] must be finite and at least 0, got nan"),
    ((0, 0, 0, 0), math.inf, r"attention\[0\]\[0, 0, 0, 0\] must be finite and at least 0, got inf"),
    ((0, 1, 3), 0.3, r"attention\[0\]\[0, 1, 3\] must sum to 1 within 0.01 over 4 keys, got 1.2"),
    ((1, 1, 1, 3), 0.5, None),  # a key after the end of the second sentence
    ((1, 1, 3), -1.0, None),  # a query after its end
]


@pytest.mark.parametrize(("index", "value", "message"), INVALID_WEIGHTS)
def test_invalid_weights_outside_padding_raise(index: tuple[int, ...], value: float, message: str | None) -> None:
    weights = softmax(2, 2, 4, 4)
    weights[1, ..., 3] = 0
    weights /= weights.sum(-1, keepdim=True)
    weights[index] = value
    tokens = [PIECES, PIECES[:3]]
    if message is None:
        assert summarize_weights([weights], tokens).heads[0].density == 1
        return
    if index[0] == 1:  # the value belongs to the second sentence
        tokens = [PIECES, PIECES]
    with pytest.raises(ValueError, match=message):
        summarize_weights([weights], tokens)


def pad(weights: Tensor, size: int, *, before: tuple[bool, bool], value: float) -> Tensor:
    """Return weights [heads, queries, keys] padded with one value; `before`: padding precedes queries, and keys."""
    padded = torch.full((1, len(weights), size, size), value)
    rows, columns = (
        slice(size - n, size) if front else slice(n) for n, front in zip(weights.shape[1:], before, strict=True)
    )
    padded[0, :, rows] = 0  # queries of the sentence don't see padding
    padded[0, :, rows, columns] = weights
    return padded


@pytest.mark.parametrize("value", [0.0, 0.125, 1.0, math.nan, math.inf, -1.0])
@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_padding_of_any_length_and_side_is_ignored(value: float, before: bool, causal: bool) -> None:
    """The values in the padding never count."""
    sizes, tokens = (4, 2, 3), [PIECES, PIECES[:2], PIECES[:3]]
    weights = [softmax(2, n, n, causal=causal) for n in sizes]
    batch = torch.cat([pad(w, 7, before=(before, before), value=value) for w in weights])
    least = torch.cat([pad(w, 4, before=(False, False), value=0.0) for w in weights])
    summary, shortest = summarize_weights([batch], tokens), summarize_weights([least], tokens)
    assert names(summary) == [f"{'decoder' if causal else 'encoder'} layer 1{', causal' * causal}"]
    assert [head.title for head in summary.heads] == [head.title for head in shortest.heads]
    for sentence, expected in zip(summary.sentences, weights, strict=True):
        np.testing.assert_array_equal(sentence.weights[0].dense(), expected)


@pytest.mark.parametrize("before", [(False, False), (True, False), (False, True), (True, True)])
def test_cross_attention_padding_is_ignored_per_side(before: tuple[bool, bool]) -> None:
    sides = {"decoder_tokens": [["<s>", "a"], ["<s>"]], "encoder_tokens": [PIECES, PIECES[:3]]}
    weights = [softmax(2, 2, 4), softmax(2, 1, 3)]
    batch = torch.cat([pad(w, 9, before=before, value=math.nan) for w in weights])
    padded = summarize_weights(cross_attention=[batch], **sides)
    for sentence, expected in zip(padded.sentences, weights, strict=True):
        np.testing.assert_array_equal(sentence.weights[0].dense(), expected)


def test_weight_on_padding_raises() -> None:
    with pytest.raises(ValueError, match=r"attention\[0\]\[1, 0, 0\] must sum to 1 .* over 3 keys"):
        summarize_weights([softmax(2, 1, 4, 4)], [PIECES, PIECES[:3]])


WRONG_TYPES = [
    ([softmax(1, 1, 4, 4)], "we saw it ?", "tokens must be a sequence of strings, got 'we saw it"),
    ([softmax(1, 1, 4, 4)], [1, 2, 3, 4], "tokens must be a list of strings, .* got 1"),
    ([softmax(1, 1, 4, 4)], ["a", ["b"]], "tokens must be a list of strings, .* got 'a'"),
    ([softmax(1, 1, 4, 4)], torch.tensor([1, 2, 3, 4]), "tokens must be a sequence of strings"),
    (softmax(1, 1, 4, 4), PIECES, r"attention must be a sequence .* got a tensor of float32 with shape \[1, 1, 4"),
    ([softmax(1, 1, 4, 4).numpy()], PIECES, r"attention\[0\] must be a floating-point tensor or None, got ndarray"),
    ([torch.ones(1, 1, 4, 4, dtype=torch.long)], PIECES, r"attention\[0\] must be a floating-point .* int64"),
    ([[softmax(1, 1, 4, 4)]], PIECES, r"attention\[0\] must be a floating-point tensor or None, got list"),
]


@pytest.mark.parametrize(("attention", "tokens", "message"), WRONG_TYPES)
def test_wrong_types_raise(attention: Any, tokens: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        summarize_weights(attention, tokens)


def test_page_has_null_alpha_and_parameters() -> None:
    page = build_page([summarize_weights([softmax(1, 2, 4, 4)], PIECES)])
    assert "<title>model</title>" in page and '"alpha":null' in page and '"parameters":null' in page
