"""Tests that decoder inputs made from labels are those that Transformers makes."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("transformers")  # before the imports that need it

import torch
import transformers as tf

from tiny_transformers import SEQ2SEQ, TEXT, build, fill
from tsallis.huggingface.text_batches import decoder_inputs

LABELS = torch.tensor([[5, 6, 7, 2], [8, 2, -100, -100]])
SHIFTED = [[1, 5, 6, 7], [1, 8, 2, 0]]


def m2m() -> Any:
    return fill(lambda: tf.M2M100ForConditionalGeneration(tf.M2M100Config(**SEQ2SEQ, **TEXT)))


@pytest.mark.parametrize("make", [m2m, lambda: build("bart"), lambda: build("t5")])
def test_labels_are_shifted_after_the_start_token(make: Any) -> None:
    assert decoder_inputs(make(), LABELS).tolist() == SHIFTED and LABELS[1, 2] == -100


def test_start_token_comes_from_generation_config_or_raises() -> None:
    model = m2m()
    model.config.decoder_start_token_id = None
    model.generation_config.decoder_start_token_id = 1
    assert decoder_inputs(model, LABELS).tolist() == SHIFTED
    model.generation_config.decoder_start_token_id = None
    with pytest.raises(ValueError, match="M2M100ForConditionalGeneration has no decoder_start_token_id"):
        decoder_inputs(model, LABELS)
