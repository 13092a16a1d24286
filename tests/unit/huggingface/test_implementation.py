"""Tests of switching the attention function of a model to the sparse one, and of restoring it in every case."""

from __future__ import annotations

import copy
from typing import Any

import pytest

pytest.importorskip("transformers")  # before the imports that need it

import torch
import transformers as tf

from tiny_transformers import BY_NAME, GROUPED, SEQ2SEQ, SMALL, SPECIAL, TEXT, build, fill, inputs
from tsallis.huggingface import DensityMeter, alphas, densify, find_obstacles, set_alpha, sparsify

BATCH = inputs(BY_NAME["bert"])
CONFIG = tf.BertConfig(**SMALL, **TEXT)
VISION = {**SMALL, "image_size": 8, "patch_size": 4}


def clip() -> Any:
    return tf.CLIPModel(tf.CLIPConfig(text_config={**SMALL, **TEXT}, vision_config=VISION, projection_dim=8)).eval()


def encoder_alone() -> Any:
    """Return an encoder whose configuration also describes a decoder, which is not built."""
    part = {**GROUPED, "head_dim": 4, "attn_logit_softcapping": None}
    config = tf.T5GemmaConfig(encoder=part, decoder=part, is_encoder_decoder=False)
    return fill(lambda: tf.T5GemmaEncoderModel(config))


def moshi() -> Any:
    """Return a model whose configuration has a part without an attention function."""
    return tf.MoshiModel(tf.MoshiConfig(**SMALL | {"ffn_dim": 24}, vocab_size=40)).eval()


@pytest.mark.parametrize("name", ["sdpa", "eager"])
def test_sparsify_overrides_a_changed_attention_function(name: str) -> None:
    model = build("bert")
    before = model(**BATCH).logits
    sparse = sparsify(model, 2.0)(**BATCH).logits
    model.set_attn_implementation(name)
    torch.testing.assert_close(model(**BATCH).logits, before, rtol=1e-5, atol=1e-5)
    assert torch.equal(sparsify(model, 2.0)(**BATCH).logits, sparse)
    assert densify(model).config._attn_implementation == name


def test_sparsify_overrides_a_single_changed_part() -> None:
    model = sparsify(clip(), 2.0)
    model.set_attn_implementation({"vision_config": "sdpa"})
    sparsify(model, 2.0)
    assert {model.text_model.config._attn_implementation, model.vision_model.config._attn_implementation} == {"tsallis"}


def test_a_meter_warns_if_no_sparse_attention_ran() -> None:
    model = sparsify(build("bert"), 2.0)
    model.set_attn_implementation("sdpa")
    with pytest.warns(UserWarning, match="no sparse attention ran in the block"), DensityMeter(model):
        model(**BATCH)
    with pytest.raises(RuntimeError, match="of its own"), DensityMeter(model):
        raise RuntimeError("of its own")


def test_models_with_a_shared_config_stay_independent(tmp_path: Any) -> None:
    config = copy.deepcopy(CONFIG)
    teacher, student = (fill(lambda: tf.BertModel(config)) for _ in range(2))
    before = teacher(**BATCH).last_hidden_state
    sparsify(student, 2.0)
    assert teacher.config is config and config._attn_implementation == "sdpa" and not hasattr(config, "tsallis")
    teacher.save_pretrained(tmp_path)
    assert "tsallis" not in (tmp_path / "config.json").read_text()
    sparsify(teacher, 1.25)
    densify(student)
    assert len(alphas(teacher)) == 2 and not torch.equal(teacher(**BATCH).last_hidden_state, before)
    assert torch.equal(densify(teacher)(**BATCH).last_hidden_state, before)


def test_model_built_from_a_sparse_config_gets_its_own_config() -> None:
    sparse = sparsify(build("bert"), 2.0)
    other = fill(lambda: tf.BertForMaskedLM(sparse.config))
    sparsify(other, 1.5, layers=0)
    assert len(sparse.config.tsallis) == 2 and len(other.config.tsallis) == 1
    assert densify(other).config._attn_implementation == "sdpa"
    assert sparse.config._attn_implementation == "tsallis"


@pytest.mark.parametrize("make", [clip, lambda: build("t5"), lambda: build("bert")])
def test_modules_still_share_configs_after_sparsify(make: Any) -> None:
    model = make()
    before = [id(x) for module in model.modules() for x in vars(module).values() if isinstance(x, tf.PreTrainedConfig)]
    sparsify(model)
    after = [id(x) for module in model.modules() for x in vars(module).values() if isinstance(x, tf.PreTrainedConfig)]
    assert not {*before} & {*after} and len(before) == len(after)
    assert len({*zip(before, after, strict=True)}) == len({*before}) == len({*after})
    if isinstance(model, tf.CLIPModel):
        assert model.text_model.config is model.config.text_config


@pytest.mark.filterwarnings("ignore:.*has attentions that do not use")
@pytest.mark.parametrize("make", [encoder_alone, moshi])
def test_unbuilt_config_parts_are_ignored(make: Any) -> None:
    model = make()
    before = model.config._attn_implementation
    if all(find_obstacles(model).values()):
        pytest.skip(f"needs transformers: that let the attention of {type(model).__name__} be replaced")
    assert densify(sparsify(model)).config._attn_implementation == before and not alphas(model)


def test_densify_restores_the_function_of_each_part() -> None:
    model = clip()
    model.set_attn_implementation({"text_config": "eager"})
    densify(sparsify(sparsify(model, layers="vision*"), 2.0))
    configs = (model.config, model.text_model.config, model.vision_model.config)
    assert [config._attn_implementation for config in configs] == ["sdpa", "eager", "sdpa"]


def test_failed_sparsify_leaves_the_model_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    model, config = clip(), None
    config = model.config
    monkeypatch.setattr(type(model.vision_model), "_can_set_attn_implementation", classmethod(lambda cls: False))
    with pytest.raises(ValueError, match=r"does not support replacing the attention function of vision_model\."):
        sparsify(model)
    assert model.config is config and config._attn_implementation == "sdpa"
    assert config.text_config._attn_implementation == "sdpa" and not alphas(model)
    assert len(alphas(sparsify(model, layers="text_model.*"))) == 2  # the text model alone can be made sparse


def test_densify_accepts_compiled_and_peft_models() -> None:
    model = build("bert")
    before = model(**BATCH).logits
    compiled = torch.compile(sparsify(model, 2.0), backend="eager")
    assert densify(compiled) is compiled and torch.equal(model(**BATCH).logits, before)
    assert sparsify(compiled, 2.0) is compiled and len(alphas(model)) == 2
    peft = pytest.importorskip("peft")
    adapter = peft.get_peft_model(densify(model), peft.LoraConfig(target_modules=["query"]))
    assert sparsify(adapter, 1.5) is adapter and len(alphas(adapter)) == 2
    assert adapter.config is model.config
    densify(adapter)
    assert not alphas(adapter) and torch.equal(model(**BATCH).logits, before)


def test_submodules_can_be_sparsified_separately() -> None:
    model = build("bert")
    before = model(**BATCH).logits
    sparsify(model.bert, 2.0)
    assert len(alphas(model)) == 2 and not torch.equal(model(**BATCH).logits, before)
    assert torch.equal(densify(model)(**BATCH).logits, before)
    sparsify(model.bert, 2.0, layers=0)
    sparsify(model, 1.5, layers=1)  # now the whole model
    assert model.config.tsallis.keys() == model.bert.config.tsallis.keys() | {"encoder.layer.1.attention.self"}
    assert torch.equal(densify(model)(**BATCH).logits, before)


def test_submodules_of_a_sparse_model_are_rejected() -> None:
    model = sparsify(fill(lambda: tf.BartForConditionalGeneration(tf.BartConfig(**SEQ2SEQ, **TEXT))), 1.5)
    for change in (sparsify, densify):
        with pytest.raises(ValueError, match="BartModel is part of a sparsified model: call"):
            change(model.model)
    set_alpha(model.model, 2.0)
    assert all(x == 2.0 for x in alphas(model).values())


def test_configs_that_request_attentions_are_rejected() -> None:
    """Transformers saves such a configuration only with eager attention, so a checkpoint in training would fail."""
    config = tf.BertConfig(**SMALL, **TEXT, output_attentions=True, attn_implementation="eager")
    model = tf.BertModel(config)
    with pytest.raises(ValueError, match=r"config\.output_attentions must be False, got True.* to calls of the model"):
        sparsify(model)
    assert model.config is config and model(**BATCH).attentions is not None
    config.output_attentions = False
    assert sparsify(model)(**BATCH, output_attentions=True).attentions is not None


def test_whisper_rejects_token_timestamps_and_stays_sparse() -> None:
    """For such timestamps, `generate` of Transformers sets softmax attention, also for all later calls."""
    config = tf.WhisperConfig(**SEQ2SEQ, **SPECIAL, vocab_size=1700, num_mel_bins=8, max_source_positions=20)
    model = fill(lambda: tf.WhisperForConditionalGeneration(config))
    settings = {"no_timestamps_token_id": 100, "alignment_heads": [[0, 0]], "is_multilingual": False}
    vars(model.generation_config).update(**settings, **SPECIAL, decoder_start_token_id=1, suppress_tokens=None)
    sound, timestamps = torch.randn(1, 8, 40), {"return_token_timestamps": True, "return_timestamps": True}
    sparsify(sparsify(model, 1.5), 2.0)
    expected = model.generate(sound, max_new_tokens=4)
    for sparse in (model, copy.deepcopy(model)):
        with pytest.raises(ValueError, match=r"leave out return_token_timestamps .* or call densify first"):
            sparse.generate(sound, max_new_tokens=4, **timestamps)
        assert torch.equal(sparse.generate(sound, max_new_tokens=4), expected)
        with DensityMeter(sparse) as meter:
            sparse.generate(sound, max_new_tokens=4)
        assert meter.densities().keys() == alphas(sparse).keys()
    assert "token_timestamps" in densify(model).generate(sound, max_new_tokens=4, **timestamps)
