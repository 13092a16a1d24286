"""Recordings of sparsified Transformers models: the weights that the models hand out themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers")  # before what imports it

import torch
from torch import nn

from tiny_transformers import BY_NAME, build, inputs
from tsallis.analysis import density, record
from tsallis.integrations.huggingface import DensityMeter, sparsify
from tsallis.integrations.huggingface.recording import TransformersReader


class WordPieces:
    """A tokenizer that marks what goes on with a word; even numbers do."""

    def get_vocab(self) -> dict[str, int]:
        return {"1": 1, "##2": 2}

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return [f"{'' if number % 2 else '##'}{number}" for number in ids]


KINDS = {"bert": ["encoder"] * 2, "llama": ["decoder"] * 2, "t5": ["encoder"] * 2 + ["decoder", "cross"] * 2}


@pytest.mark.parametrize("name", KINDS)
def test_a_recording_has_the_weights_of_the_model(name: str) -> None:
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


def test_densities_are_those_of_the_meter() -> None:
    batch = {name: x[1:] for name, x in inputs(BY_NAME["bert"]).items()}  # the padded sentence
    model = sparsify(build("bert"), 1.5)
    with torch.no_grad(), DensityMeter(model) as meter:
        model(**batch)
    measured = density(record(TransformersReader(model, WordPieces()), [batch]))
    ours = [head.density for head in measured.heads]
    np.testing.assert_allclose(ours, torch.cat(list(meter.densities().values())).numpy(), atol=1e-6)


def test_what_cannot_be_recorded_is_refused() -> None:
    with pytest.raises(ValueError, match="Linear has no sparse attention"):
        TransformersReader(nn.Linear(2, 2), WordPieces())
    reader = TransformersReader(sparsify(build("llama"), 1.5), WordPieces())
    with pytest.raises(ValueError, match="padding must lie behind the sentences"):
        reader.texts(inputs(BY_NAME["llama"], "left"))
