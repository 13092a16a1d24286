"""Alphas as modules: their dtype, and their groups in an optimizer."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers")  # before what imports it

import torch

from tiny_transformers import build
from tsallis.integrations.huggingface import (
    FixedAlpha,
    LearnedAlpha,
    alpha_parameters,
    alphas,
    parameter_groups,
    sparsify,
)


def test_a_cast_keeps_the_values_to_the_bit() -> None:
    module = LearnedAlpha(3, initial=1.2345)
    before = module.bias.detach().clone()
    for cast in (module.bfloat16, module.half, module.double, lambda: module.to(torch.float16)):
        cast()
        assert module.bias.dtype == torch.float32 and torch.equal(module.bias, before)
    assert module.to("meta").bias.is_meta


def test_fixed_alphas_are_checked() -> None:
    with pytest.raises(ValueError, match=r"alpha must be finite and at least 1, got 0\.9"):
        FixedAlpha(0.9)


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


def test_without_learned_alphas_there_is_no_group_of_them() -> None:
    model = sparsify(build("bert"), 1.5)
    assert len(parameter_groups(model, 1e-3)) == 2 and alpha_parameters(model) == []
