"""Every supported family of Transformers models with sparse attention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")  # must precede the imports that need it

import torch
from torch import Tensor
from transformers import AutoModel

import tsallis
from tiny_transformers import DECODERS, FAMILIES, Family, alpha_parameters, build, checkpointing_gradients, inputs
from tsallis.huggingface import alphas, densify, from_pretrained, sparsify

every_family = pytest.mark.parametrize("family", FAMILIES, ids=str)
every_decoder = pytest.mark.parametrize("family", DECODERS, ids=str)


def logits(model: Any, batch: dict[str, Tensor]) -> Tensor:
    return model(**batch).logits


def vary_alphas(model: Any) -> None:
    """Give each head a different alpha, from 1.2 to 1.8."""
    with torch.no_grad():
        for parameter in alpha_parameters(model):
            parameter.copy_(torch.linspace(-1.4, 1.4, len(parameter)))


@every_family
def test_alpha_one_matches_the_original_model(family: Family) -> None:
    batch, model = inputs(family), build(family)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        reference = logits(model, batch)
        result = logits(sparsify(model, 1.0), batch)
    active = batch["attention_mask"].bool() if family.kind == "encoder" else slice(None)
    torch.testing.assert_close(result[active], reference[active], rtol=1e-5, atol=1e-5)
    if family.kind == "decoder":
        torch.testing.assert_close(result, reference, rtol=1e-5, atol=1e-5)


@every_family
def test_densify_undoes_sparsify(family: Family) -> None:
    batch, model = inputs(family), build(family)
    with torch.no_grad():
        before, names = logits(model, batch), list(model.state_dict())
        sparse = logits(sparsify(model, 2.0), batch)
        after = logits(densify(model), batch)
    assert not torch.allclose(before, sparse, atol=1e-3)
    assert torch.equal(before, after)
    assert list(model.state_dict()) == names and "tsallis" not in model.config.to_dict()


@every_family
@pytest.mark.parametrize("alpha", [1.5, "learned"])
def test_kernels_match_eager_outputs_and_gradients(family: Family, alpha: float | str) -> None:
    """Compare outputs and all gradients, including those of alpha."""
    batch, model = inputs(family), sparsify(build(family), alpha)
    vary_alphas(model)
    results = []
    for backend in ("auto", "eager"):
        model.zero_grad()
        with tsallis.backend(backend):
            output = logits(model, batch)
            output.square().mean().backward()
        gradients = {name: x.grad.clone() for name, x in model.named_parameters() if x.grad is not None}
        results.append((output.detach(), gradients))
    (fused, ours), (eager, theirs) = results
    torch.testing.assert_close(fused, eager, rtol=1e-4, atol=1e-4)
    assert ours.keys() == theirs.keys()
    for name, gradient in ours.items():
        torch.testing.assert_close(
            gradient, theirs[name], rtol=1e-3, atol=1e-4, msg=lambda text, n=name: f"{n}: {text}"
        )
    learned = [name for name in ours if "tsallis_alpha" in name]
    assert len(learned) == (family.attentions if alpha == "learned" else 0)
    assert all(ours[name].abs().max() > 0 for name in learned)


@every_family
def test_padding_does_not_change_logits(family: Family) -> None:
    batch, model = inputs(family), sparsify(build(family), 1.5)
    alone = {name: x[1:, :4] if name != "decoder_input_ids" else x[1:] for name, x in batch.items()}
    with torch.no_grad():
        padded, single = logits(model, batch)[1], logits(model, alone)[0]
    torch.testing.assert_close(padded[: len(single)], single, rtol=1e-5, atol=1e-5)


@every_family
def test_output_attentions_contain_exact_zeros(family: Family) -> None:
    batch, model = inputs(family), sparsify(build(family), 1.5)
    with torch.no_grad():
        output = model(**batch, output_attentions=True)
        again = model(**batch)
    names = ("encoder_attentions", "decoder_attentions", "cross_attentions")
    weights = [x for name in (names if family.kind == "seq2seq" else ("attentions",)) for x in output[name]]
    assert len(weights) == family.attentions
    assert all(x.shape[:2] == (2, 4) for x in weights)
    assert 0 < (weights[0][0] == 0).float().mean() < 1
    sums = torch.stack([x[0].sum(-1).mean() for x in weights])
    torch.testing.assert_close(sums, torch.ones(len(weights)), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(output.logits, again.logits, rtol=1e-4, atol=1e-5)


@every_decoder
def test_generation_is_the_same_with_every_cache(family: Family) -> None:
    """Greedy outputs don't depend on the cache or on padding, and beam search runs."""
    batch, model = inputs(family, "left" if family.kind == "decoder" else "right"), sparsify(build(family), 1.5)
    batch.pop("decoder_input_ids", None)
    settings = {"max_new_tokens": 6, "do_sample": False}
    caches: Any = {"use_cache": False}, {}, {"cache_implementation": "static"}
    results = [model.generate(**batch, **settings, **cache) for cache in caches]
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])
    own = slice(3, None) if family.kind == "decoder" else slice(4)
    alone = model.generate(**{name: x[1:, own] for name, x in batch.items()}, **settings)
    assert torch.equal(alone[0, -6:], results[0][1, -6:])
    assert model.generate(**batch, **settings, num_beams=3).shape == results[0].shape


@every_family
def test_a_saved_model_loads_with_one_call(family: Family, tmp_path: Path) -> None:
    """Load the original class and the base class without a head, with alphas of every kind."""
    batch, model = inputs(family), build(family)
    sparsify(model, {0: "learned", 1: 1.25}, kind="self")
    vary_alphas(model)
    model.save_pretrained(tmp_path)
    loaded = from_pretrained(type(model), tmp_path)
    assert type(loaded) is type(model)
    with torch.no_grad():
        assert torch.equal(logits(loaded, batch), logits(model, batch))
    assert [x.dtype for x in alpha_parameters(loaded)] == [torch.float32] * len(alpha_parameters(model))
    base = from_pretrained(AutoModel, tmp_path)
    ours, theirs = list(alphas(model).values()), list(alphas(base).values())
    assert len(ours) == len(theirs) == len([x for x in model.modules() if hasattr(x, "tsallis_alpha")])
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


@every_family
def test_half_precision_keeps_alphas_in_float32(family: Family, tmp_path: Path) -> None:
    batch, model = inputs(family), sparsify(build(family), "learned", initial=1.3)
    exact = alphas(model)
    model.bfloat16()
    output = logits(model, batch)
    assert output.dtype == torch.bfloat16
    output.float().square().mean().backward()
    assert all(x.dtype == torch.float32 and x.grad.isfinite().all() for x in alpha_parameters(model))
    model.save_pretrained(tmp_path)
    loaded = from_pretrained(type(model), tmp_path, dtype=torch.bfloat16)
    assert next(loaded.parameters()).dtype == torch.bfloat16
    for values in (alphas(model), alphas(loaded)):
        assert all(torch.equal(values[name], x) for name, x in exact.items())


@every_family
def test_checkpointing_gives_the_same_gradients(family: Family) -> None:
    batch, model = inputs(family), sparsify(build(family), "learned", initial=1.5)
    parameters = alpha_parameters(model)
    gradients = checkpointing_gradients(model, lambda: logits(model, batch).square().mean(), parameters)
    assert len(gradients[0]) == len(parameters)
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-6)
