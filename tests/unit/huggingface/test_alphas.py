"""Tests of alpha modules: their dtype and their optimizer groups."""

from __future__ import annotations

import copy
from typing import Any

import pytest

pytest.importorskip("transformers")  # before the imports that need it

import torch

from tiny_transformers import BY_NAME, alpha_parameters, build, inputs
from tsallis.huggingface import (
    FixedAlpha,
    LearnedAlpha,
    alphas,
    parameter_groups,
    set_alpha,
    sparsify,
)


def test_learned_alphas_stay_in_float32() -> None:
    module = LearnedAlpha(3, initial=1.2345)
    before = module.bias.detach().clone()
    for cast in (module.bfloat16, module.half, module.double, lambda: module.to(torch.float16)):
        cast()
        assert module.bias.dtype == torch.float32 and torch.equal(module.bias, before)
    assert module.to("meta").bias.is_meta


@pytest.mark.parametrize("value", [1.2345, [1.2345, 2.0]])
def test_fixed_alphas_stay_in_float32(value: Any) -> None:
    module = FixedAlpha(value)
    before = module.value.clone()
    for cast in (module.bfloat16, module.half, module.double, lambda: module.to(torch.float16)):
        cast()
        assert module.value.dtype == torch.float32 and torch.equal(module.value, before)
    assert list(module.state_dict()) == ["value"] and not list(module.parameters())
    assert module.to("meta")().is_meta and "meta" in repr(module)


def test_fixed_alpha_is_a_number_after_every_update() -> None:
    module, other = FixedAlpha(1.5), FixedAlpha(2.0)
    assert module() == 1.5 and repr(module) == "FixedAlpha(1.5)"
    module.load_state_dict(other.state_dict())
    assert module() == 2.0
    module.value = torch.tensor(1.25)  # Transformers loads buffers by assignment
    assert module() == 1.25
    module.set(1.75)
    assert module() == 1.75 and copy.deepcopy(module)() == 1.75
    with torch.inference_mode():
        module.set(1.5)
        assert FixedAlpha(1.5)() == module() == 1.5
    module.value.data.fill_(1.125)  # does not change the version of the tensor
    assert module() == 1.125
    assert torch.equal(FixedAlpha([1.5, 2.0])(), torch.tensor([1.5, 2.0]))


def test_adapters_without_alphas_use_those_of_the_model() -> None:
    peft = pytest.importorskip("peft")
    options = {"r": 2, "target_modules": ["q_proj"]}
    model = sparsify(build("llama"), "learned")
    adapted = peft.get_peft_model(model, peft.LoraConfig(**options, modules_to_save=["tsallis_alpha"]))
    adapted.add_adapter("other", peft.LoraConfig(**options))
    adapted.set_adapter("other")
    assert all(torch.equal(x, y) for x, y in zip(alphas(adapted).values(), alphas(model).values(), strict=True))


def test_invalid_fixed_alphas_raise() -> None:
    for value in (0.9, [1.5, 0.9], torch.tensor([1.5, 0.9], dtype=torch.float64)):
        with pytest.raises(ValueError, match=r"alpha must be finite and at least 1, got 0\.9"):
            FixedAlpha(value)
    with pytest.raises(TypeError, match="alpha must be a number"):
        FixedAlpha(torch.ones(2, 2))


def test_new_alphas_do_not_recompile() -> None:
    """Check that a new alpha never triggers compilation, even with more alphas than the recompilation limit."""
    batch, model = inputs(BY_NAME["bert"]), sparsify(build("bert"), 1.0)
    graphs: list[int] = []

    def count(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        graphs.append(1)
        return graph

    compiled = torch.compile(model, backend=count, fullgraph=True)
    with torch.no_grad():
        for step in range(10):
            set_alpha(model, 1 + step / 20)
            torch.testing.assert_close(compiled(**batch).logits, model(**batch).logits, rtol=1e-4, atol=1e-4)
    assert len(graphs) == 1


def test_groups_hold_every_trainable_parameter_once() -> None:
    model = sparsify(build("bert"), {0: "learned"})
    frozen = next(model.parameters())
    frozen.requires_grad_(False)
    groups = parameter_groups(model, 1e-3, alpha_lr_scale=5, weight_decay=0.1)
    assert [(group["lr"], group["weight_decay"]) for group in groups] == [(1e-3, 0.1), (1e-3, 0.0), (5e-3, 0.0)]
    parameters = [x for group in groups for x in group["params"]]
    assert {id(x) for x in parameters} == {id(x) for x in model.parameters()} - {id(frozen)}
    assert len(parameters) == len({id(x) for x in parameters})
    assert [id(x) for x in groups[-1]["params"]] == [id(x) for x in alpha_parameters(model)]
    before = alphas(model)
    optimizer = torch.optim.AdamW(groups)
    model(torch.tensor([[5, 6, 7]])).logits.square().mean().backward()
    optimizer.step()
    assert all(not torch.equal(x, before[name]) for name, x in alphas(model).items())


def test_frozen_alphas_warn() -> None:
    model = sparsify(build("bert"), {0: "learned"})
    alpha_parameters(model)[0].requires_grad_(False)
    with pytest.warns(UserWarning, match=r"learned alphas of 1 attentions are frozen.* PEFT .*\['tsallis_alpha'\]"):
        assert len(parameter_groups(model, 1e-3)) == 2


def test_fixed_alphas_add_no_parameter_group() -> None:
    model = sparsify(build("bert"), 1.5)
    assert len(parameter_groups(model, 1e-3)) == 2 and alpha_parameters(model) == []
