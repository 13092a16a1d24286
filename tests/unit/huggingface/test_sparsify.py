"""Tests of making attention sparse, changing it and making it dense again."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")  # before the imports that need it

import torch
import transformers as tf
from torch import nn

from tiny_transformers import BY_NAME, SMALL, TEXT, alpha_parameters, build, inputs
from tsallis.huggingface import alphas, densify, from_pretrained, set_alpha, sparsify

FIRST, SECOND = (f"bert.encoder.layer.{i}.attention.self" for i in (0, 1))


def test_mapping_leaves_other_layers_dense() -> None:
    batch = inputs(BY_NAME["bert"])
    model = sparsify(build("bert"), {1: "learned"}, initial=1.5)
    assert list(alphas(model)) == [SECOND]
    weights = model(**batch, output_attentions=True).attentions
    assert (weights[0][0] > 0).all() and (weights[1][0] == 0).any()
    torch.testing.assert_close(model(**batch).logits, model(**batch, output_attentions=True).logits)


def test_second_call_changes_only_selected_layers() -> None:
    model = sparsify(build("bert"), 1.5)
    sparsify(model, {"*.layer.1.*": "learned"}, initial=1.25)
    assert torch.equal(alphas(model)[FIRST], torch.tensor(1.5))
    torch.testing.assert_close(alphas(model)[SECOND], torch.full((4,), 1.25))
    assert list(model.config.tsallis.values()) == ["fixed", [1.0, 2.0]]


INVALID = [
    (0.5, {}, "alpha must be finite and at least 1, got 0.5"),
    ("learnt", {}, "alpha must be a number or 'learned', got 'learnt'"),
    ("learned", {"initial": 1.0}, "initial must be above 1 and below 2, got 1"),
    ({0: 1.5}, {"layers": 0}, "pass either layers or a mapping"),
    ({5: 1.5}, {}, "layers must match .*, got 5"),
    ({}, {}, "alpha must name at least one layer, got {}"),
    (1.5, {"layers": []}, f"layers must name at least one of {FIRST}, {SECOND}, got none"),
    ([1.5, 2.0], {}, f"alpha must have 4 numbers, one per head of {FIRST}, got 2"),
    ([], {}, "alpha must have one number per head, got none"),
    ([1.0, 1.5, 2.0, 0.5], {}, "alpha must be finite and at least 1, got 0.5"),
]


@pytest.mark.parametrize(("alpha", "options", "message"), INVALID)
def test_invalid_alphas_raise_and_change_nothing(alpha: Any, options: dict[str, Any], message: str) -> None:
    model = build("bert")
    with pytest.raises(ValueError, match=message):
        sparsify(model, alpha, **options)
    assert model.config._attn_implementation == "sdpa" and not alphas(model)


def test_per_head_alphas_match_single_alphas() -> None:
    batch, model = inputs(BY_NAME["bert"]), build("bert")
    for alpha in ([1.0, 1.25, 1.5, 2.0], torch.tensor([1.0, 1.25, 1.5, 2.0]), {FIRST: [1.0, 1.25, 1.5, 2.0]}):
        weights = sparsify(model, alpha)(**batch, output_attentions=True).attentions[0]
        for head, number in enumerate((1.0, 1.25, 1.5, 2.0)):
            alone = sparsify(build("bert"), number)(**batch, output_attentions=True).attentions[0]
            torch.testing.assert_close(weights[:, head], alone[:, head])


def test_learned_alphas_start_random_or_at_initial() -> None:
    model = build("bert")
    drawn = torch.cat([alphas(sparsify(model, "learned"))[FIRST] for _ in range(5)])
    assert len(drawn.unique()) == len(drawn) and drawn.min() < 1.4 and drawn.max() > 1.6
    near = alphas(sparsify(build("bert"), "learned", initial=1.1))[FIRST]
    torch.testing.assert_close(near, torch.full_like(near, 1.1))


def test_learned_alphas_can_be_fixed() -> None:
    batch, model = inputs(BY_NAME["bert"]), sparsify(build("bert"), {0: "learned", 1: 1.25}, initial=1.5)
    with torch.no_grad():
        alpha_parameters(model)[0].normal_()
        before, values = model(**batch).logits, alphas(model)
        sparsify(model, values)
        assert not alpha_parameters(model) and torch.equal(model(**batch).logits, before)
    assert all(torch.equal(values[name], x) for name, x in alphas(model).items())
    set_alpha(model, 2.0)
    assert torch.equal(alphas(model)[FIRST], torch.full((4,), 2.0)) and alphas(model)[SECOND] == 2


def test_unsupported_modules_raise() -> None:
    with pytest.raises(TypeError, match="model must be a Transformers model, got Linear"):
        sparsify(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="BertForMaskedLM has no sparse attention"):
        densify(build("bert"))
    with pytest.raises(ValueError, match="Linear has no attention with a fixed alpha"):
        set_alpha(nn.Linear(2, 2), 1.5)


def test_models_with_two_configs_can_be_sparsified() -> None:
    text, vision = {**SMALL, **TEXT}, {**SMALL, "image_size": 8, "patch_size": 4}
    config = tf.CLIPConfig(text_config=text, vision_config=vision, projection_dim=8)
    model = tf.CLIPModel(config).eval()
    batch = {"input_ids": torch.tensor([[5, 6, 2]]), "pixel_values": torch.randn(1, 3, 8, 8)}
    before = model(**batch).logits_per_image
    sparsify(model, 1.0, layers="text_model.*")
    assert len(alphas(model)) == 2
    torch.testing.assert_close(model(**batch).logits_per_image, before)
    sparsify(model, 2.0)
    assert len(alphas(model)) == 4
    assert torch.equal(densify(model)(**batch).logits_per_image, before)


def test_deepcopies_are_independent() -> None:
    model = sparsify(build("bert"), 1.5)
    other = copy.deepcopy(model)
    set_alpha(other, 2.0)
    assert all(x == 1.5 for x in alphas(model).values())
    assert model.config is not other.config
    sparsify(other, "learned")
    assert list(model.config.tsallis.values()) == ["fixed"] * 2


class Wrapper(nn.Module):
    """A wrapper that holds its model like DistributedDataParallel."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


def compiled(model: nn.Module) -> Any:
    return torch.compile(model, backend="eager")


@pytest.mark.parametrize("wrap", [compiled, Wrapper, lambda model: Wrapper(compiled(Wrapper(model)))])
def test_wrapped_models_save_alphas_under_unwrapped_names(wrap: Any, tmp_path: Path) -> None:
    model = sparsify(build("bert"), "learned")
    sparsify(wrap(model), {name: torch.tensor(1.5) for name in alphas(wrap(model))})
    set_alpha(wrap(model), 2.0)
    model.save_pretrained(tmp_path)
    loaded = from_pretrained(tf.BertForMaskedLM, tmp_path)
    assert alphas(loaded) == alphas(model) == {FIRST: torch.tensor(2.0), SECOND: torch.tensor(2.0)}


def test_compiled_parts_keep_alpha_names_in_the_config(tmp_path: Path) -> None:
    model = sparsify(build("bert"), 1.5)
    model.bert.encoder = torch.compile(model.bert.encoder, backend="eager")
    set_alpha(model, 1.25)
    assert list(model.config.tsallis) == ["encoder.layer.0.attention.self", "encoder.layer.1.attention.self"]


@pytest.mark.slow
def test_a_pickled_model_runs_in_another_process(tmp_path: Path) -> None:
    model = sparsify(build("bert"), "learned").eval()
    torch.save((model, inputs(BY_NAME["bert"])), tmp_path / "model.pt")
    script = (
        "import sys, torch\n"
        "model, batch = torch.load(sys.argv[1], weights_only=False)\n"
        "torch.save(model(**batch).logits.detach(), sys.argv[2])\n"
    )
    subprocess.run([sys.executable, "-c", script, tmp_path / "model.pt", tmp_path / "logits.pt"], check=True)
    expected = model(**inputs(BY_NAME["bert"])).logits
    torch.testing.assert_close(torch.load(tmp_path / "logits.pt"), expected.detach())


@pytest.mark.parametrize("alpha", [1.5, "learned"])
def test_alphas_of_quantized_and_offloaded_attentions_have_values(alpha: Any) -> None:
    batch = inputs(BY_NAME["bert"])
    quantized = torch.ao.quantization.quantize_dynamic(build("bert"), {nn.Linear})
    models = [sparsify(quantized, alpha)]
    accelerate = pytest.importorskip("accelerate")
    offloaded = build("bert")
    accelerate.cpu_offload(offloaded, execution_device="cpu")
    models.append(sparsify(offloaded, alpha))
    for model in models:
        if alpha == 1.5:
            set_alpha(model, 1.25)
            assert all((value == 1.25).all() for value in alphas(model).values())
        assert all(not value.is_meta and ((value >= 1) & (value <= 2)).all() for value in alphas(model).values())
        assert model(**batch).logits.isfinite().all()
