"""Tests of Hugging Face models calibrated to attend to a given number of keys per query."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")  # before the imports that need it

import torch
from torch import Tensor

from tiny_transformers import BY_NAME, build, inputs
from tsallis.huggingface import (
    DensityMeter,
    calibrate_attended,
    densify,
    from_pretrained,
    sparsify,
)
from tsallis.huggingface.alphas import ScaledAlpha

BATCH = inputs(BY_NAME["bert"])
NAMES = ["bert", "gpt2", "mistral", "bart", "t5"]


def scales(model: Any) -> list[float]:
    return [float(x.scale) for x in model.modules() if isinstance(x, ScaledAlpha)]


def naive_mean(model: Any, batch: dict[str, Tensor], decoder: Tensor | None) -> float:
    """Return the mean number of attended keys per query, from all attention weights, without padding."""
    with torch.no_grad():
        output = model(**batch, output_attentions=True)
    source = batch["attention_mask"].bool()
    parts = [(output.encoder_attentions, source), (output.decoder_attentions, decoder)] if decoder is not None else []
    parts += [(output.cross_attentions, decoder)] if decoder is not None else [(output.attentions, source)]
    counts = [(w > 0).sum(-1).transpose(1, 2)[active] for weights, active in parts for w in weights]
    return float(torch.cat(counts).double().mean())


@pytest.mark.parametrize("attended", [1.3, 2.5])
@pytest.mark.parametrize("name", NAMES)
def test_calibrated_mean_matches_target_without_padding(name: str, attended: float, tmp_path: Path) -> None:
    batch, model, decoder = inputs(BY_NAME[name]), sparsify(build(name), 1.5), None
    if BY_NAME[name].kind == "seq2seq":
        batch["decoder_input_ids"][1, 3:] = 0
        decoder = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    assert calibrate_attended(model, [batch], 1.5) == pytest.approx(1.5, rel=0.03)
    reached = calibrate_attended(model, [batch], attended)
    assert naive_mean(model, batch, decoder) == pytest.approx(reached, rel=1e-6)
    assert reached == pytest.approx(attended, rel=0.03)
    assert len(set(scales(model))) == 1 and scales(model)[0] != 1
    model.save_pretrained(tmp_path)
    loaded = from_pretrained(type(model), tmp_path)
    assert scales(loaded) == scales(model)
    with torch.no_grad():
        assert torch.equal(loaded.eval()(**batch)[0], model(**batch)[0])
        assert not torch.equal(densify(loaded)(**batch)[0], model(**batch)[0])


def test_decoder_attention_mask_excludes_padding() -> None:
    batch, model = inputs(BY_NAME["bart"]), sparsify(build("bart"), 1.5)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])
    with torch.no_grad(), DensityMeter(model) as meter:
        model(**batch, decoder_attention_mask=mask)
    queries = [float(meter.sums([name])[2]) / 4 for name in meter.densities()]
    assert sorted(queries) == [7, 7, 7, 7, 11, 11]  # per head: encoder 7 + 4, decoder 5 + 2


def test_scales_stay_in_float32_in_half_precision() -> None:
    model, batch = sparsify(build("llama")), inputs(BY_NAME["llama"])
    calibrate_attended(model, [batch], 2)
    before = scales(model)
    assert scales(model.to(torch.bfloat16)) == before
    assert {x.scale.dtype for x in model.modules() if isinstance(x, ScaledAlpha)} == {torch.float32}
    assert model(**batch)[0].dtype == torch.bfloat16


def test_offloaded_models_are_calibrated() -> None:
    accelerate = pytest.importorskip("accelerate")
    models = [sparsify(build("bert"), 1.5) for _ in range(2)]
    accelerate.cpu_offload(models[1], execution_device="cpu")
    first, second = (calibrate_attended(model, [BATCH], 2) for model in models)
    assert first == second


def test_impossible_settings_are_rejected() -> None:
    for wrong in (0, -1, 0.5, float("nan")):
        with pytest.raises(ValueError, match=f"attended must be at least 1 and finite, got {wrong}"):
            calibrate_attended(sparsify(build("bert")), [], wrong)
    with pytest.raises(ValueError, match="learned"):
        calibrate_attended(sparsify(build("bert"), "learned"), [], 2)
    for alpha in (1.0, [1.5] * 4):
        with pytest.raises(ValueError, match="alpha must be one number above 1 to set attended, got "):
            calibrate_attended(sparsify(build("bert"), alpha), [], 2)
    with pytest.raises(ValueError, match="sparsify first"):
        calibrate_attended(build("bert"), [], 2)
    peft = pytest.importorskip("peft")
    adapter = peft.get_peft_model(sparsify(build("bert")), peft.LoraConfig(r=2, target_modules=["query"]))
    with_own_adapter = sparsify(build("bert"))
    with_own_adapter.add_adapter(peft.LoraConfig(r=2, target_modules=["query"]))
    for wrong in (adapter, with_own_adapter):
        with pytest.raises(ValueError, match="be saved with an adapter: call calibrate_attended before"):
            calibrate_attended(wrong, [], 2)
    model, batch = sparsify(build("bert")), inputs(BY_NAME["bert"])
    settings = model.config.to_dict()
    with pytest.raises(ValueError, match=r"at most [0-9.]+, the mean number of visible keys, got 7"):
        calibrate_attended(model, [batch], 7)
    with pytest.raises(ValueError, match="batches must be readable several times, such as a list, got a generator"):
        calibrate_attended(model, (each for each in [batch]), 2)
    for wrong in (batch, [batch["input_ids"]]):
        with pytest.raises(TypeError, match=r"batches must be mappings of model inputs, got (str|Tensor)"):
            calibrate_attended(model, wrong, 2)
    assert model.config.to_dict() == settings
    assert not any(isinstance(part, ScaledAlpha) for part in model.modules())


def test_calibrated_models_support_offloaded_buffers() -> None:
    accelerate = pytest.importorskip("accelerate")
    model, batch = sparsify(build("bert")), inputs(BY_NAME["bert"])
    calibrate_attended(model, [batch], 2)
    with torch.no_grad():
        expected = model(**batch).logits
        accelerate.cpu_offload(model, execution_device="cpu", offload_buffers=True)
        torch.testing.assert_close(model(**batch).logits, expected)
