"""Densities of sparsified models: those of the weights that the model hands out."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers")  # before what imports it

import torch
from torch import nn

from tiny_transformers import BY_NAME, build, inputs
from tsallis.integrations.huggingface import DensityMeter, sparsify


@pytest.mark.parametrize("name", ["bert", "mistral", "t5"])
def test_densities_are_those_of_the_weights(name: str) -> None:
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
    for weight, density, support in zip(weights, meter.densities().values(), meter.supports().values(), strict=False):
        attended = ((weight > 0) & visible).sum((0, 2, 3))
        torch.testing.assert_close(density, attended / visible.sum((0, 2, 3)))
        torch.testing.assert_close(support, attended / active.sum())
        assert 0 < density.min() < 1


@pytest.mark.parametrize("length", [5, 7])
@pytest.mark.parametrize("name", ["bart", "t5"])
def test_every_query_of_cross_attention_counts(name: str, length: int) -> None:
    """A target as long as its source makes no difference: no query is taken for padding."""
    batch, model = inputs(BY_NAME[name]), sparsify(build(name), 1.5, kind="cross")
    batch["decoder_input_ids"] = torch.randint(3, 40, (2, length))
    with torch.no_grad(), DensityMeter(model) as meter:
        weights = model(**batch, output_attentions=True).cross_attentions
    visible = batch["attention_mask"].bool()[:, None, None, :].expand(2, 4, length, 7)
    for weight, density, support in zip(weights, meter.densities().values(), meter.supports().values(), strict=True):
        attended = (weight > 0).sum((0, 2, 3))
        torch.testing.assert_close(density, attended / visible.sum((0, 2, 3)))
        torch.testing.assert_close(support, attended / (2 * length))


def test_passes_add_up_and_end_with_the_block() -> None:
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


def test_what_is_not_sparse_is_refused() -> None:
    with pytest.raises(ValueError, match="Linear has no sparse attention: call sparsify first"):
        DensityMeter(nn.Linear(2, 2))
