"""Tests of saving and loading sparsified models: alphas are restored, or an error reports that they are missing."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")  # before the imports that need it

import torch
import transformers as tf
from safetensors.torch import load_file, save_file

from tiny_transformers import BY_NAME, SMALL, TEXT, build, fill, inputs
from tsallis.huggingface import FixedAlpha, LearnedAlpha, alphas, from_pretrained, set_alpha, sparsify

FIRST, SECOND = (f"bert.encoder.layer.{i}.attention.self" for i in (0, 1))


def test_saved_alphas_are_restored(tmp_path: Path) -> None:
    model = sparsify(build("bert"), {0: 1.0, 1: "learned"})
    set_alpha(model, 1.7)
    model.save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())["tsallis"]
    assert settings == {"encoder.layer.0.attention.self": "fixed", "encoder.layer.1.attention.self": [1.0, 2.0]}
    loaded = from_pretrained(tf.BertForMaskedLM, tmp_path)
    modules = [loaded.get_submodule(f"{name}.tsallis_alpha") for name in (FIRST, SECOND)]
    assert [type(x) for x in modules] == [FixedAlpha, LearnedAlpha]
    assert modules[0]() == pytest.approx(1.7) and torch.equal(alphas(loaded)[FIRST], alphas(model)[FIRST])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_per_head_alphas_are_restored(dtype: torch.dtype, tmp_path: Path) -> None:
    model = sparsify(build("bert"), {0: [1.1, 1.3, 1.7, 2.0]})
    model.to(dtype).save_pretrained(tmp_path)
    loaded = from_pretrained(tf.BertForMaskedLM, tmp_path, dtype=dtype)
    assert loaded.dtype == dtype and list(alphas(loaded)) == [FIRST]
    assert torch.equal(alphas(loaded)[FIRST], torch.tensor([1.1, 1.3, 1.7, 2.0]))


def test_plain_loading_reports_alphas_and_dense_models_raise(tmp_path: Path) -> None:
    sparsify(build("bert"), 1.5).save_pretrained(tmp_path / "sparse")
    dense, info = tf.BertForMaskedLM.from_pretrained(tmp_path / "sparse", output_loading_info=True)
    assert {f"{name}.tsallis_alpha.value" for name in (FIRST, SECOND)} == set(info["unexpected_keys"])
    dense.save_pretrained(tmp_path / "dense")
    with pytest.raises(ValueError, match=rf"has no weights for {FIRST}\.tsallis_alpha\.value"):
        from_pretrained(tf.BertForMaskedLM, tmp_path / "dense")
    build("bert").save_pretrained(tmp_path / "other")
    assert alphas(from_pretrained(tf.BertForMaskedLM, tmp_path / "sparse", config=str(tmp_path / "sparse")))
    with pytest.raises(ValueError, match="was saved without the settings of sparsify"):
        from_pretrained(tf.AutoModel, tmp_path / "other")


@pytest.mark.parametrize("alpha", [1.5, [1.1, 1.3, 1.7, 2.0], "learned"])
def test_sparse_models_load_dense_state_dicts(alpha: Any) -> None:
    model, dense = sparsify(build("bert"), alpha), build("bert").state_dict()
    before, names = alphas(model), set(dense)
    model.load_state_dict(dense)
    assert all(torch.equal(before[name], x) for name, x in alphas(model).items()) and set(dense) == names
    other = sparsify(build("bert"), alpha)
    set_alpha(model, 1.25) if alpha != "learned" else None
    other.load_state_dict(model.state_dict())
    assert all(torch.equal(alphas(model)[name], x) for name, x in alphas(other).items())
    with pytest.raises(RuntimeError, match="tsallis_alpha"):
        build("bert").load_state_dict(model.state_dict())


def test_sharded_models_load_with_another_head(tmp_path: Path) -> None:
    model = sparsify(build("bert"), "learned", initial=1.4, high=1.6)
    model.save_pretrained(tmp_path, max_shard_size="5KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    loaded, info = from_pretrained(
        tf.AutoModelForSequenceClassification, tmp_path, num_labels=3, output_loading_info=True
    )
    assert type(loaded) is tf.BertForSequenceClassification and loaded.config.num_labels == 3
    assert not [name for name in info["missing_keys"] if "alpha" in name]
    torch.testing.assert_close(alphas(loaded)[FIRST], torch.full((4,), 1.4))
    assert type(copy.deepcopy(loaded)) is tf.BertForSequenceClassification


def test_invalid_saved_settings_raise(tmp_path: Path) -> None:
    model = sparsify(build("bert"), 1.5)
    for settings, message in (
        ({"elsewhere": "fixed"}, "BertForMaskedLM has none of the attentions that .* list: elsewhere"),
        ({"encoder.layer.0.attention.self": "drawn"}, f"the alphas of {FIRST} must be .* got 'drawn'"),
    ):
        model.config.tsallis = settings
        model.save_pretrained(tmp_path)
        with pytest.raises(ValueError, match=message):
            from_pretrained(tf.BertForMaskedLM, tmp_path)


def test_loading_a_model_with_only_a_sparse_part_raises(tmp_path: Path) -> None:
    parts = [tf.BertConfig(**SMALL, **TEXT), tf.BertConfig(**SMALL, **TEXT, is_decoder=True, add_cross_attention=True)]
    config = tf.EncoderDecoderConfig.from_encoder_decoder_configs(*parts)
    model = fill(lambda: tf.EncoderDecoderModel(config))
    sparsify(model.encoder, 1.5)
    model.save_pretrained(tmp_path / "part")
    with pytest.raises(ValueError, match="saved without the settings of sparsify"):
        from_pretrained(tf.EncoderDecoderModel, tmp_path / "part")
    sparsify(model, 1.5)
    model.save_pretrained(tmp_path / "whole")
    assert len(alphas(from_pretrained(tf.EncoderDecoderModel, tmp_path / "whole"))) == 6


def test_alphas_missing_from_the_config_raise(tmp_path: Path) -> None:
    model = sparsify(build("bert"), 1.5)
    del model.config.tsallis["encoder.layer.1.attention.self"]
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=f"has alphas of {SECOND}, but the model has no sparse"):
        from_pretrained(tf.BertForMaskedLM, tmp_path)
    sparsify(model, 1.5).save_pretrained(tmp_path)
    loaded = from_pretrained(tf.BertModel, tmp_path, num_hidden_layers=1)
    assert list(alphas(loaded)) == ["encoder.layer.0.attention.self"]


def test_loaded_alphas_come_from_the_weights(tmp_path: Path) -> None:
    batch, model = inputs(BY_NAME["bert"]), sparsify(build("bert"), 1.5)
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights[f"{SECOND}.tsallis_alpha.value"] = torch.tensor(2.0)
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    sparsify(model, 2.0, layers=1)
    assert torch.equal(from_pretrained(tf.BertForMaskedLM, tmp_path)(**batch).logits, model(**batch).logits)


@pytest.mark.parametrize("renamed", ["layer.", "layer.1."])
def test_renamed_attentions_raise(renamed: str, tmp_path: Path) -> None:
    """Alphas are not lost silently if another version of Transformers used other names."""

    def rename(table: dict[str, Any]) -> dict[str, Any]:
        old = {name: name.replace("attention.self", "attention.old") for name in table if renamed in name}
        return {old.get(name, name) if name in settings or "tsallis" in name else name: x for name, x in table.items()}

    model = sparsify(build("bert"), 1.5)
    settings = model.config.tsallis
    model.config.tsallis = rename(settings)
    model.save_pretrained(tmp_path)
    save_file(rename(load_file(tmp_path / "model.safetensors")), tmp_path / "model.safetensors", {"format": "pt"})
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"transformers_version": "5.0.0"}))
    with pytest.raises(ValueError, match=r"Transformers has renamed them since version 5\.0\.0"):
        from_pretrained(tf.BertForMaskedLM, tmp_path)


def test_classes_of_parts_raise(tmp_path: Path) -> None:
    towers = {"text_config": SMALL | TEXT, "vision_config": SMALL | {"image_size": 16, "patch_size": 8}}
    sparsify(tf.CLIPModel(tf.CLIPConfig(**towers)), 1.5).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="CLIPTextModel is only a part of the clip model"):
        from_pretrained(tf.CLIPTextModel, tmp_path)
