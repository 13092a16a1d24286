"""The function that Transformers calls: its masks, and what else a model hands over."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("transformers")  # before what imports it

import torch
from torch import nn

import tsallis
from tiny_transformers import BY_NAME, build, inputs
from tsallis.integrations.huggingface import FixedAlpha, alpha_parameters, sparsify
from tsallis.integrations.huggingface.attention import attention_forward


def module(causal: bool = False) -> nn.Module:
    attention = nn.Module()
    attention.is_causal = causal
    attention.tsallis_alpha = FixedAlpha(1.5)
    return attention


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", ["none", "boolean", "additive"])
def test_masks_and_biases_add_up(kind: str, causal: bool) -> None:
    q, k, v = torch.randn(3, 2, 4, 5, 8).unbind()
    bias, boolean = torch.randn(1, 4, 5, 5), torch.rand(2, 1, 5, 5) > 0.3
    boolean[..., 0] = True
    mask = {"none": None, "boolean": boolean, "additive": torch.where(boolean, 0.0, -torch.inf)}[kind]
    output, weights = attention_forward(
        module(causal), q, k, v, mask, scaling=0.7, position_bias=bias, output_attentions=True
    )
    scores = 0.7 * q @ k.mT + bias
    visible = torch.ones(5, 5).tril().bool() if mask is None and causal else boolean if mask is not None else None
    reference = tsallis.entmax(scores, 1.5, mask=None if visible is None else visible.expand_as(scores))
    torch.testing.assert_close(weights, reference, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(output, (reference @ v).transpose(1, 2), rtol=1e-5, atol=1e-5)
    assert output.is_contiguous()


@pytest.mark.parametrize(
    ("argument", "message"),
    [("softcap", "a soft cap"), ("s_aux", "attention sinks"), ("cache", "a paged cache")],
)
def test_what_cannot_be_computed_is_refused(argument: str, message: str) -> None:
    q = torch.randn(1, 1, 2, 4)
    with pytest.raises(NotImplementedError, match=f"Module uses {message}"):
        attention_forward(module(), q, q, q, None, **{argument: 1.0})


def test_queries_of_a_norm_may_be_more_precise() -> None:
    q = torch.randn(1, 1, 2, 4)
    output, _ = attention_forward(module(), q, q, q.bfloat16(), None)
    assert output.dtype == torch.bfloat16


def test_packed_sentences_do_not_see_each_other() -> None:
    batch, model = inputs(BY_NAME["llama"]), sparsify(build("llama"), 1.5)
    first, second = batch["input_ids"][:1], batch["input_ids"][1:, :4]
    positions = torch.cat([torch.arange(7), torch.arange(4)]).unsqueeze(0)
    with torch.no_grad():
        packed = model(torch.cat([first, second], 1), position_ids=positions, use_cache=False).logits
        alone = [model(x, use_cache=False).logits for x in (first, second)]
    torch.testing.assert_close(packed, torch.cat(alone, 1), rtol=1e-5, atol=1e-5)


def test_a_mask_of_the_users_own() -> None:
    model = sparsify(build("llama"), 1.5)
    ids = inputs(BY_NAME["llama"])["input_ids"][:1]
    window = torch.ones(7, 7).tril().bool() & ~torch.ones(7, 7).tril(-2).bool()
    with torch.no_grad():
        weights = model(ids, attention_mask=window[None, None], output_attentions=True).attentions
    assert all((x[0][:, ~window] == 0).all() for x in weights)


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_autocast(name: str) -> None:
    batch, model = inputs(BY_NAME[name]), sparsify(build(name), "learned", initial=1.5)
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(**batch).logits.float().square().mean()
    loss.backward()
    assert all(x.grad.dtype == torch.float32 and x.grad.abs().max() > 0 for x in alpha_parameters(model))


def test_generation_hands_out_weights() -> None:
    batch, model = inputs(BY_NAME["llama"], "left"), sparsify(build("llama"), 1.5)
    output: Any = model.generate(
        **batch, max_new_tokens=3, do_sample=False, output_attentions=True, return_dict_in_generate=True
    )
    assert [step[0].shape[-2:] for step in output.attentions] == [(7, 7), (1, 8), (1, 9)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "t5"])
def test_compiled_models_give_the_same_gradients(name: str) -> None:
    batch, model = inputs(BY_NAME[name]), sparsify(build(name), "learned", initial=1.4)
    results = []
    for forward in (model, torch.compile(model, fullgraph=True)):
        model.zero_grad()
        output = forward(**batch).logits
        output.square().mean().backward()
        results.append([output.detach(), *(x.grad.clone() for x in alpha_parameters(model))])
    for ours, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, ours, rtol=1e-4, atol=1e-5)
