"""Tests of selecting attention modules, and of rejecting models."""

from __future__ import annotations

import warnings

import pytest

pytest.importorskip("transformers")  # before the imports that need it

import transformers as tf
from torch import nn

from tiny_transformers import GROUPED, SEQ2SEQ, SMALL, TEXT, build
from tsallis.huggingface import sparsify
from tsallis.huggingface.modules import choose_attentions, count_heads

SELF, CROSS = "model.decoder.layers.{}.self_attn", "model.decoder.layers.{}.encoder_attn"


def test_layers_accept_numbers_and_patterns() -> None:
    model = build("bart")
    first = {name.format(0) for name in ("model.encoder.layers.{}.self_attn", SELF, CROSS)}
    assert set(choose_attentions(model, 0)) == set(choose_attentions(model, [0])) == first
    assert set(choose_attentions(model, "*.decoder.*")) == {name.format(i) for name in (SELF, CROSS) for i in (0, 1)}
    assert set(choose_attentions(model, [CROSS.format(1), 0])) == first | {CROSS.format(1)}


@pytest.mark.parametrize("name", ["bart", "marian", "t5"])
def test_kind_selects_self_or_cross_attention(name: str) -> None:
    model = build(name)
    cross, own = choose_attentions(model, kind="cross"), choose_attentions(model, kind="self")
    assert (len(cross), len(own)) == (2, 4)
    assert all("decoder" in module for module in cross)
    assert cross.keys() | own.keys() == choose_attentions(model).keys()


def test_t5_layer_numbers_are_block_numbers() -> None:
    assert list(choose_attentions(build("t5"), 1, "cross")) == ["decoder.block.1.layer.1.EncDecAttention"]


UNMATCHED = [
    ({"layers": 2}, r"layers must match one of bert\.encoder\.layer\.0\.attention\.self, .*, got 2"),
    ({"layers": ["*.0.*", "*.7.*"]}, r"layers must match .*, got '\*\.7\.\*'"),
    ({"kind": "cross"}, "kind 'cross' matches none of the attentions bert"),
    ({"kind": "global"}, "kind must be 'self', 'cross' or None, got 'global'"),
]


@pytest.mark.parametrize(("options", "message"), UNMATCHED)
def test_unmatched_layers_and_kinds_raise(options: dict, message: str) -> None:
    model = build("bert")
    with pytest.raises(ValueError, match=message):
        sparsify(model, 1.5, **options)
    assert model.config._attn_implementation == "sdpa"


def test_models_with_only_custom_attention_raise() -> None:
    model = tf.DebertaV2Model(tf.DebertaV2Config(**SMALL, **TEXT))
    with pytest.raises(ValueError, match="attention of DebertaV2Model: none of it uses"):
        sparsify(model)


def bigbird() -> tf.BigBirdPegasusModel:
    """Return a model whose encoder has a custom attention implementation."""
    return tf.BigBirdPegasusModel(tf.BigBirdPegasusConfig(**SEQ2SEQ, **TEXT))


def test_unchanged_attentions_are_named_in_a_warning() -> None:
    names = [f"encoder.layers.{i}.self_attn.self" for i in (0, 1)]
    with pytest.warns(UserWarning, match=f"Model stay unchanged.*: {', '.join(names)}$") as log:
        sparsify(bigbird())
    assert log[0].filename == __file__
    with pytest.warns(UserWarning, match=f"stay unchanged.*: {names[1]}$"):
        sparsify(bigbird(), {1: 2.0})


@pytest.mark.parametrize("options", [{"layers": "decoder.*"}, {"kind": "cross"}])
def test_unselected_attentions_do_not_warn(options: dict) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sparsify(bigbird(), 1.5, **options)


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "bart", "t5"])
def test_supported_models_do_not_warn(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sparsify(build(name))


def test_soft_caps_and_attention_sinks_raise() -> None:
    capped = tf.Gemma2ForCausalLM(tf.Gemma2Config(**GROUPED, head_dim=4))
    with pytest.raises(ValueError, match=r"layers\.0\.self_attn uses a soft cap of the scores \(50"):
        sparsify(capped)
    layers = {"num_local_experts": 2, "num_experts_per_tok": 1, "head_dim": 4}
    sinks = tf.GptOssForCausalLM(tf.GptOssConfig(**GROUPED, **layers))
    with pytest.raises(ValueError, match=r"layers\.0\.self_attn has attention sinks"):
        sparsify(sinks)
    sinks.model.layers[0].self_attn.sinks = None
    with pytest.raises(ValueError, match=r"layers\.1\.self_attn has attention sinks.*pass a part of the model"):
        sparsify(sinks, layers=0)
    assert sinks.config._attn_implementation not in ("tsallis", "tsallis_full_masks")


def test_modules_without_a_head_count_raise() -> None:
    with pytest.raises(ValueError, match="Linear has no number of heads: it must have one of num_heads"):
        count_heads(nn.Linear(2, 2))
