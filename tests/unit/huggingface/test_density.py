"""Tests that densities of sparsified models match the attention weights that the models return."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers")  # before the imports that need it

import torch
import transformers as tf
from torch import nn

from tiny_transformers import BY_NAME, SMALL, TEXT, build, fill, inputs
from tsallis.huggingface import DensityMeter, alphas, sparsify


@pytest.mark.parametrize("name", ["bert", "mistral", "t5"])
def test_densities_match_attention_weights(name: str) -> None:
    batch, model = inputs(BY_NAME[name]), sparsify(build(name), "learned", initial=1.5)
    with torch.no_grad(), DensityMeter(model) as meter:
        model(**batch)
    with torch.no_grad():
        output = model(**batch, output_attentions=True)
    weights = output.encoder_attentions if name == "t5" else output.attentions
    active = batch["attention_mask"].bool()
    visible = active[:, None, None, :] & active[:, None, :, None]
    if name == "mistral":
        visible = visible & (torch.ones(7, 7).tril() - torch.ones(7, 7).tril(-4)).bool()
    visible = visible.expand(2, 4, 7, 7)
    for weight, density in zip(weights, meter.densities().values(), strict=False):
        attended = ((weight > 0) & visible).sum((0, 2, 3))
        torch.testing.assert_close(density, attended / visible.sum((0, 2, 3)))
        assert 0 < density.min() < 1


@pytest.mark.parametrize("length", [5, 7])
@pytest.mark.parametrize("name", ["bart", "t5"])
def test_cross_attention_density_counts_every_query(name: str, length: int) -> None:
    """Check that no query counts as padding, even if the target is as long as its source."""
    batch, model = inputs(BY_NAME[name]), sparsify(build(name), 1.5, kind="cross")
    batch["decoder_input_ids"] = torch.randint(3, 40, (2, length))
    with torch.no_grad(), DensityMeter(model) as meter:
        weights = model(**batch, output_attentions=True).cross_attentions
    visible = batch["attention_mask"].bool()[:, None, None, :].expand(2, 4, length, 7)
    for weight, density in zip(weights, meter.densities().values(), strict=True):
        attended = (weight > 0).sum((0, 2, 3))
        torch.testing.assert_close(density, attended / visible.sum((0, 2, 3)))


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_density_ignores_keys_hidden_by_additive_masks(name: str) -> None:
    batch, model = inputs(BY_NAME[name]), sparsify(build(name), 1.5)
    visible = torch.ones(2, 1, 7, 7).tril().bool()
    visible[1, ..., 3] = False
    visible[1, :, 3, 3] = True
    added = torch.zeros(visible.shape).masked_fill(~visible, torch.finfo(torch.float32).min)
    densities = []
    for mask in (visible, added):
        with torch.no_grad(), DensityMeter(model) as meter:
            model(batch["input_ids"], attention_mask=mask)
        densities.append(meter.densities())
    assert all(torch.equal(x, densities[1][name]) for name, x in densities[0].items())
    with torch.no_grad(), DensityMeter(sparsify(model, 1.0)) as meter:
        model(batch["input_ids"], attention_mask=added)
    assert all((x == 1).all() for x in meter.densities().values())


def test_density_ignores_padding_of_additive_mask_models() -> None:
    sizes = {**SMALL, **TEXT, "max_2d_position_embeddings": 8}
    model = sparsify(fill(lambda: tf.LayoutLMModel(tf.LayoutLMConfig(**sizes))), 1.0)
    batch = {**inputs(BY_NAME["bert"]), "bbox": torch.zeros(2, 7, 4, dtype=torch.long)}
    with torch.no_grad(), DensityMeter(model) as meter:
        model(**batch)
    assert all((x == 1).all() for x in meter.densities().values())


def test_density_ignores_the_padding_of_finished_outputs() -> None:
    model, source = sparsify(build("t5"), 1.7), torch.randint(5, 40, (2, 9))
    cache = tf.EncoderDecoderCache(tf.DynamicCache(), tf.DynamicCache())
    with torch.no_grad(), DensityMeter(model) as meter:
        for step in ([0, 0], [5, 0]):  # both outputs start with the padding token; the second one then has ended
            model(source, decoder_input_ids=torch.tensor(step).unsqueeze(1), past_key_values=cache)
    name = next(name for name in alphas(model) if name.startswith("decoder"))
    assert meter.sums([name])[2] == 3 * 4  # queries of all heads


def test_density_meter_accumulates_passes_inside_the_block() -> None:
    batch, model = inputs(BY_NAME["bert"]), sparsify(build("bert"), {0: 1.5})
    with DensityMeter(model) as meter:
        model(**batch)
        first = meter.densities()
        model(**batch)
    again = meter.densities()
    model(input_ids=batch["input_ids"][:1])
    assert list(first) == ["bert.encoder.layer.0.attention.self"]
    assert all(torch.equal(first[name], x) and torch.equal(meter.densities()[name], x) for name, x in again.items())


def test_a_compiled_model_is_measured_and_stays_compiled() -> None:
    batch, model = inputs(BY_NAME["bert"]), sparsify(build("bert"), 1.5)
    graphs: list[int] = []

    def count(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        graphs.append(1)
        return graph

    with torch.no_grad():
        with DensityMeter(model) as meter:
            model(**batch)
        expected = meter.densities()
        compiled = torch.compile(model, backend=count)
        before = compiled(**batch).logits
        size = len(graphs)
        with DensityMeter(compiled) as meter:
            compiled(**batch)
        assert torch.equal(compiled(**batch).logits, before)
    assert size and len(graphs) == size
    for ours, theirs in zip(meter.densities().values(), expected.values(), strict=True):
        assert torch.equal(ours, theirs)


def test_modules_without_sparse_attention_raise() -> None:
    with pytest.raises(ValueError, match="Linear has no sparse attention: call sparsify first"):
        DensityMeter(nn.Linear(2, 2))
