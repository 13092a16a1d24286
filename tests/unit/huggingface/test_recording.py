"""Tests that recordings of sparsified Transformers models hold the weights that the models return."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers")  # before the imports that need it

import torch
from torch import nn

from tiny_transformers import BY_NAME, VOCABULARY, build, inputs, word_tokenizer
from tsallis.analysis import RunSummary, density, head_roles, record
from tsallis.errors import InputError
from tsallis.huggingface import DensityMeter, sparsify
from tsallis.huggingface.recording import TransformersReader, summarize_texts
from tsallis.report import show
from tsallis.report.page import build_page


class WordPieces:
    """A tokenizer that marks even ids as continuations of a word."""

    def get_vocab(self) -> dict[str, int]:
        return {"1": 1, "##2": 2}

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return [f"{'' if number % 2 else '##'}{number}" for number in ids]


KINDS = {"bert": ["encoder"] * 2, "llama": ["decoder"] * 2, "t5": ["encoder"] * 2 + ["decoder", "cross"] * 2}


@pytest.mark.parametrize("name", KINDS)
def test_recorded_weights_match_returned_attentions(name: str) -> None:
    batch, model = inputs(BY_NAME[name]), sparsify(build(name), "learned", initial=1.5)
    reader = TransformersReader(model.train(), WordPieces())
    sentences = list(record(reader, [batch]))
    assert model.training and [layer.kind for layer in reader.layers] == KINDS[name]
    assert all(layer.alphas == pytest.approx([1.5] * 4) for layer in reader.layers)
    with torch.no_grad():
        output: Any = model.eval()(**batch, output_attentions=True)
    if name == "t5":
        pairs = zip(output.decoder_attentions, output.cross_attentions, strict=True)
        weights = [*output.encoder_attentions, *(x for pair in pairs for x in pair)]
    else:
        weights = list(output.attentions)
    for row, (sentence, length) in enumerate(zip(sentences, (7, 4), strict=True)):
        assert len(sentence.text.target if name == "llama" else sentence.text.source) == length
        for layer, ours, theirs in zip(reader.layers, sentence.weights, weights, strict=True):
            queries, keys = (len(side) for side in sentence.text.sides(layer.kind))
            np.testing.assert_allclose(ours.dense(), theirs[row, :, :queries, :keys].numpy(), atol=1e-6)


def test_words_are_marked_and_sentences_numbered() -> None:
    batch, model = inputs(BY_NAME["bert"]), sparsify(build("bert"), 1.5)
    batch["input_ids"][1, :4] = torch.tensor([5, 6, 7, 8])
    sentences = list(record(TransformersReader(model, WordPieces()), [{**batch, "index": [8, 3]}]))
    assert [sentence.text.index for sentence in sentences] == [8, 3]
    assert sentences[1].text.source == ("▁5", "6", "▁7", "8")


def test_densities_match_density_meter() -> None:
    batch = {name: x[1:] for name, x in inputs(BY_NAME["bert"]).items()}  # the padded sentence
    model = sparsify(build("bert"), 1.5)
    with torch.no_grad(), DensityMeter(model) as meter:
        model(**batch)
    measured = density(record(TransformersReader(model, WordPieces()), [batch]))
    ours = [head.density for head in measured.heads]
    np.testing.assert_allclose(ours, torch.cat(list(meter.densities().values())).numpy(), atol=1e-6)


def test_dense_modules_and_left_padding_raise() -> None:
    with pytest.raises(ValueError, match="Linear has no sparse attention"):
        TransformersReader(nn.Linear(2, 2), WordPieces())
    reader = TransformersReader(sparsify(build("llama"), 1.5), WordPieces())
    with pytest.raises(ValueError, match="padding must come after the tokens"):
        reader.texts(inputs(BY_NAME["llama"], "left"))


def test_models_with_a_prompt_or_nan_weights_raise() -> None:
    peft = pytest.importorskip("peft")
    batch, model = inputs(BY_NAME["llama"]), sparsify(build("llama"), 1.5)
    reader = TransformersReader(model, WordPieces())
    with torch.no_grad():
        model.model.layers[0].self_attn.q_proj.weight.fill_(torch.nan)
    with pytest.raises(ValueError, match="weights must be numbers, got NaN"):
        list(record(reader, [batch]))
    prompt = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    tuned = peft.get_peft_model(sparsify(build("llama"), 1.5), prompt)
    with pytest.raises(ValueError, match=r"learns a prompt \(PEFT\)"):
        TransformersReader(tuned, WordPieces())
    with pytest.raises(ValueError, match=r"learns a prompt \(PEFT\)"):
        show(tuned, batch, WordPieces())


def test_labels_provide_decoder_inputs() -> None:
    batch, reader = inputs(BY_NAME["t5"]), TransformersReader(sparsify(build("t5"), 1.5), WordPieces())
    sources = {name: batch[name] for name in ("input_ids", "attention_mask")}
    with pytest.raises(ValueError, match="decoder_input_ids or labels, got input_ids, attention_mask"):
        list(record(reader, [sources]))
    labels = torch.tensor([[5, 6, 7, 1], [8, 1, -100, -100]])
    start = reader.model.config.decoder_start_token_id
    targets = torch.tensor([[start, 5, 6, 7], [start, 8, 0, 0]]), (labels != -100).long()
    explicit = {**sources, "decoder_input_ids": targets[0], "decoder_attention_mask": targets[1]}
    for ours, theirs in zip(record(reader, [{**sources, "labels": labels}]), record(reader, [explicit]), strict=True):
        assert ours.text == theirs.text and len(ours.text.target) in (4, 2)
        assert all((x.dense() == y.dense()).all() for x, y in zip(ours.weights, theirs.weights, strict=True))


TEXTS = ["w5 w6 ##7 w8 w9 w10", "w5 w8", "w9 w6 w5 ##7 w8 w9 w11"]


def tokenizer() -> Any:
    """Return a word tokenizer with BERT's start and end tokens."""
    names = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", *(f"w{i}" if i != 7 else "##7" for i in range(4, VOCABULARY))]
    special = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"}
    return word_tokenizer(names, **special)


def test_start_and_end_tokens_are_not_words() -> None:
    batch = dict(tokenizer()(TEXTS, padding=True, return_tensors="pt"))
    reader = TransformersReader(sparsify(build("bert"), 1.5), tokenizer())
    assert reader.texts(batch)[0].source == ("[CLS]", "▁w5", "▁w6", "7", "▁w8", "▁w9", "▁w10", "[SEP]")
    scores = head_roles(record(reader, [batch])).heads[0].scores
    assert scores["start"] is not None and scores["end"] is not None


def test_summarize_texts_matches_recording() -> None:
    """Check the summary of more texts than fit in one batch. The page shows heads and no outputs."""
    texts, model = TEXTS * 15, sparsify(build("bert"), "learned", initial=1.5)
    summary = summarize_texts(model, tokenizer(), texts[:40], sentences=5)
    assert (summary.name, summary.corpus.sentences, len(summary.sentences)) == ("BertForMaskedLM", 40, 5)
    batch = dict(tokenizer()(texts[:40], padding=True, return_tensors="pt"))
    reader = TransformersReader(model, tokenizer())
    heads = density(record(reader, [batch])).heads
    assert [head.density for head in summary.heads] == pytest.approx([head.density for head in heads], abs=1e-6)
    sentences = {sentence.text.index: sentence for sentence in record(reader, [batch])}
    for shown in summary.sentences:
        assert shown.text == sentences[shown.text.index].text
        for ours, theirs in zip(shown.weights, sentences[shown.text.index].weights, strict=True):
            np.testing.assert_allclose(ours.dense(), theirs.dense(), atol=1e-6)
    page = build_page([summary])
    assert '"outputs":null' in page and "<title>BertForMaskedLM</title>" in page


def test_offloaded_models_are_recorded() -> None:
    accelerate = pytest.importorskip("accelerate")
    models = [sparsify(build("bert"), 1.5) for _ in range(2)]
    accelerate.cpu_offload(models[1], execution_device="cpu")
    first, second = (density(record(TransformersReader(x, WordPieces()), [inputs(BY_NAME["bert"])])) for x in models)
    assert first == second


@pytest.mark.parametrize("name", ["llama", "marian", "t5"])
def test_summaries_do_not_depend_on_padding(name: str) -> None:
    """Check that padding does not change the weights of a pair."""
    targets = None if name == "llama" else ["w6 w7", "w9 w10 w11 w12", "w5"]
    model = sparsify(build(name), 1.5)

    def summarize(rows: slice) -> RunSummary:
        return summarize_texts(model, tokenizer(), TEXTS[rows], targets and targets[rows])

    together, alone = summarize(slice(None)), summarize(slice(1, 2))
    assert [layer.kind for layer in together.layers] == KINDS["t5" if name == "marian" else name]
    ours, theirs = together.sentences[1], alone.sentences[0]
    assert (ours.text.source, ours.text.target) == (theirs.text.source, theirs.text.target)
    assert len(ours.text.target) == (4 if name == "llama" else 6)  # includes the start and end tokens
    for one, other in zip(ours.weights, theirs.weights, strict=True):
        np.testing.assert_allclose(one.dense(), other.dense(), atol=1e-5)


def test_invalid_texts_and_targets_raise() -> None:
    with pytest.raises(InputError, match="BertForMaskedLM needs no targets for 3 texts, got 3"):
        summarize_texts(sparsify(build("bert")), tokenizer(), TEXTS, TEXTS)
    with pytest.raises(InputError, match="MarianMTModel needs 3 targets for 3 texts, got 2"):
        summarize_texts(sparsify(build("marian")), tokenizer(), TEXTS, TEXTS[:2])
    with pytest.raises(InputError, match="the texts must contain at least one sentence"):
        summarize_texts(sparsify(build("bert")), tokenizer(), [])
    with pytest.raises(InputError, match="texts must be a list, got the string 'a b'"):
        summarize_texts(sparsify(build("bert")), tokenizer(), "a b")
