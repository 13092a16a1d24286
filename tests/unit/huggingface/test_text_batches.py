"""Tests of batches of texts: padding at the end, truncation to the model's maximum length, and all model inputs."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("transformers")  # before the imports that need it

import transformers as tf

from tiny_transformers import BY_NAME, SEQ2SEQ, SMALL, TEXT, VOCABULARY, build, fill, inputs, word_tokenizer
from tsallis.errors import InputError
from tsallis.huggingface import sparsify
from tsallis.huggingface.recording import TransformersReader, summarize_texts
from tsallis.huggingface.text_batches import text_batches

TEXTS = ["w5 w6 w7", "w8"]


def tokenizer(**special: str) -> Any:
    """Return a word tokenizer that supports pairs of texts and has no maximum length."""
    return word_tokenizer([f"w{i}" for i in range(VOCABULARY)], **special)


def whisper() -> Any:
    sizes = {**SEQ2SEQ, **TEXT, "num_mel_bins": 8, "max_source_positions": 30, "max_target_positions": 40}
    return fill(lambda: tf.WhisperForConditionalGeneration(tf.WhisperConfig(**sizes)))


def test_tokenizers_without_a_pad_token_are_padded() -> None:
    (batch,) = text_batches(build("llama"), tokenizer(), TEXTS, None)
    assert batch["input_ids"].tolist() == [[1, 5, 6, 7, 2], [1, 8, 2, 0, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]
    summary = summarize_texts(sparsify(build("gpt2"), 1.5), tokenizer(), TEXTS * 20)
    assert summary.corpus.sentences == 40 and summary.sentences[1].text.target == ("w1", "w8", "w2")


def test_texts_are_truncated_to_the_maximum_length() -> None:
    long = ["w5 " * 100]
    for name, most in (("bert", 64), ("roberta", 63), ("llama", 64), ("bart", 64)):
        model = build(name)
        targets = long if name == "bart" else None
        (batch,) = text_batches(model, tokenizer(), long, targets)
        assert batch["input_ids"].shape == (1, most)
        if targets:
            assert batch["decoder_input_ids"].shape == (1, most)
        model(**{key: x for key, x in batch.items() if key != "index"})
    (batch,) = text_batches(build("t5"), tokenizer(), long, long)
    assert batch["input_ids"].shape == (1, 102)  # T5 has no maximum length
    (batch,) = text_batches(build("bert"), tokenizer(model_max_length=9), long, None)
    assert batch["input_ids"].shape == (1, 9)


def test_text_pairs_keep_token_type_ids() -> None:
    pairs = [("w5 w6", "w7"), ("w8", "w9")]
    words = tokenizer(pad_token="w0")
    words.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    (batch,) = text_batches(build("bert"), words, pairs, None)
    assert batch["token_type_ids"].tolist() == [[0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 1, 0]]
    (batch,) = text_batches(build("llama"), words, pairs, None)
    assert "token_type_ids" not in batch


@pytest.mark.parametrize(
    "make",
    [
        lambda: tf.M2M100ForConditionalGeneration(tf.M2M100Config(**SEQ2SEQ, **TEXT)),
        lambda: tf.BlenderbotForConditionalGeneration(tf.BlenderbotConfig(**SEQ2SEQ, **TEXT)),
    ],
)
def test_decoder_inputs_are_made_if_models_do_not_shift(make: Any) -> None:
    model = sparsify(fill(make), 1.5)
    summary = summarize_texts(model, tokenizer(), TEXTS, ["w9", "w10 w11"])
    assert [sentence.text.target for sentence in summary.sentences] == [("w1", "w1", "w9"), ("w1", "w1", "w10", "w11")]


def test_models_without_input_ids_raise() -> None:
    vit = sparsify(tf.ViTModel(tf.ViTConfig(**SMALL, image_size=8, patch_size=4)), 1.5)
    with pytest.raises(InputError, match="ViTModel must read input_ids, got pixel_values"):
        summarize_texts(vit, tokenizer(), TEXTS)
    with pytest.raises(InputError, match="WhisperForConditionalGeneration must read input_ids, got input_features"):
        summarize_texts(sparsify(whisper(), 1.5), tokenizer(), TEXTS, TEXTS)
    with pytest.raises(ValueError, match="a batch must have input_ids, got pixel_values"):
        TransformersReader(vit, tokenizer()).texts({"pixel_values": inputs(BY_NAME["bert"])["input_ids"]})
