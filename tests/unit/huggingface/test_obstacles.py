"""Tests of reporting obstacles to sparse attention without changing the model."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

pytest.importorskip("transformers")  # before the imports that need it

import torch
import transformers as tf
from torch import nn

from tiny_transformers import GROUPED, SEQ2SEQ, SMALL, TEXT, build, fill
from tsallis.huggingface import alphas, find_obstacles, sparsify
from tsallis.nn import sparsify_module


@pytest.mark.parametrize("name", ["bert", "bart"])
def test_only_attentions_without_obstacles_become_sparse(name: str) -> None:
    model = build(name)
    before = model.config
    obstacles = find_obstacles(model)
    assert set(obstacles.values()) == {""} and model.config is before and not alphas(model)
    assert set(alphas(sparsify(model))) == {*obstacles} == {*find_obstacles(model)}


def test_custom_attentions_are_reported() -> None:
    model = tf.BigBirdPegasusModel(tf.BigBirdPegasusConfig(**SEQ2SEQ, **TEXT))
    obstacles = find_obstacles(model)
    own = [name for name, obstacle in obstacles.items() if "does not use Transformers' AttentionInterface" in obstacle]
    assert own == [f"encoder.layers.{i}.self_attn.self" for i in (0, 1)]
    with pytest.warns(UserWarning, match="stay unchanged"):
        assert set(alphas(sparsify(model))) == {*obstacles} - {*own}


def test_sparsify_module_resolves_pytorch_attention_obstacles() -> None:
    model = fill(lambda: tf.SiglipVisionModel(tf.SiglipVisionConfig(**SMALL, image_size=8, patch_size=4)))
    pixels = torch.randn(2, 3, 8, 8)
    before = model(pixel_values=pixels).pooler_output
    *obstacles, last = find_obstacles(model).values()
    assert obstacles == ["", ""]
    assert last == "is a torch.nn.MultiheadAttention: replace it with tsallis.nn.sparsify_module"
    sparsify_module(model, 1.0, names="*head.attention")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sparsify(model, 1.0)
    torch.testing.assert_close(model(pixel_values=pixels).pooler_output, before, rtol=1e-4, atol=1e-4)
    assert list(find_obstacles(model).values()) == ["", ""]


def test_soft_caps_and_unsupported_models_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    capped = find_obstacles(tf.Gemma2Model(tf.Gemma2Config(**GROUPED, head_dim=4)))
    assert set(capped.values()) == {"uses a soft cap of the scores (50.0), which entmax attention does not support"}
    deberta = find_obstacles(tf.DebertaV2Model(tf.DebertaV2Config(**SMALL, **TEXT)))
    assert len(deberta) == 2 and all(deberta.values())
    monkeypatch.setattr(tf.BertForMaskedLM, "_can_set_attn_implementation", classmethod(lambda cls: False))
    reasons = set(find_obstacles(build("bert")).values())
    assert reasons == {"belongs to BertForMaskedLM, whose attention function Transformers can't replace"}
    with pytest.raises(TypeError, match="must be a Transformers model, got Linear"):
        find_obstacles(nn.Linear(2, 2))


def test_configs_outside_the_model_config_raise(tmp_path: Path) -> None:
    tf.BertModel(tf.BertConfig(**SMALL, **TEXT)).save_pretrained(tmp_path / "bert")
    model = tf.EncoderDecoderModel.from_encoder_decoder_pretrained(*[str(tmp_path / "bert")] * 2)
    with pytest.raises(ValueError, match="outside the model's configuration: save the model and load it again"):
        sparsify(model, 1.5)
    model.save_pretrained(tmp_path / "both")
    sparsify(tf.EncoderDecoderModel.from_pretrained(tmp_path / "both"), 1.5)
