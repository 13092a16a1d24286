"""Tests of the attention function that Transformers calls: its masks and other arguments."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("transformers")  # before the imports that need it

import torch
import transformers as tf
from torch import Tensor, nn

import tsallis
from tiny_transformers import (
    BY_NAME,
    FAMILIES,
    GROUPED,
    SEQ2SEQ,
    TEXT,
    Family,
    alpha_parameters,
    build,
    checkpointing_gradients,
    fill,
    inputs,
)
from tsallis.huggingface import DensityMeter, FixedAlpha, sparsify
from tsallis.huggingface.attention import NAME, attention_forward, full_mask_forward

SERIES = {"prediction_length": 5, "context_length": 8, "lags_sequence": [1, 2], "num_time_features": 1}
EXPERTS = {"num_experts": 4, "encoder_sparse_step": 2, "decoder_sparse_step": 2}
# Models whose decoders rely on the mask to be causal, and models whose custom attention gets the same mask.
WITHOUT_SDPA = {
    "nllb_moe": lambda: tf.NllbMoeForConditionalGeneration(tf.NllbMoeConfig(**SEQ2SEQ, **TEXT, **EXPERTS)),
    "pegasus_x": lambda: tf.PegasusXForConditionalGeneration(tf.PegasusXConfig(**SEQ2SEQ, **TEXT)),
    "bigbird_pegasus": lambda: tf.BigBirdPegasusForConditionalGeneration(tf.BigBirdPegasusConfig(**SEQ2SEQ, **TEXT)),
}


def module(causal: bool = False) -> nn.Module:
    attention = nn.Module()
    attention.is_causal = causal
    attention.tsallis_alpha = FixedAlpha(1.5)
    return attention


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", ["none", "boolean", "additive"])
def test_attention_with_mask_and_bias_matches_reference(kind: str, causal: bool) -> None:
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("forward", [attention_forward, full_mask_forward])
def test_lowest_mask_values_hide_keys(forward: Any, dtype: torch.dtype) -> None:
    q, k, v = torch.randn(3, 2, 4, 5, 8, dtype=dtype).unbind()
    visible = torch.rand(2, 1, 5, 5) > 0.3
    visible[0, :, 2] = False  # a query that sees no key
    lowest = torch.full(visible.shape, torch.finfo(dtype).min, dtype=dtype).masked_fill(visible, 0)
    expected = attention_forward(module(), q, k, v, visible, output_attentions=True)
    for mask in (visible, lowest, 0.9 * lowest, lowest + lowest):
        result = forward(module(causal=forward is full_mask_forward), q, k, v, mask, output_attentions=True)
        assert all(map(torch.equal, result, expected))


UNSUPPORTED = [("softcap", "a soft cap"), ("s_aux", "attention sinks"), ("sinks", "attention sinks")]
UNSUPPORTED += [("indices", "an indexer's choice of keys"), ("block_indices", "an indexer's choice of blocks")]
UNSUPPORTED += [("cache", "a paged cache")]


@pytest.mark.parametrize(("argument", "message"), UNSUPPORTED)
def test_unsupported_arguments_raise(argument: str, message: str) -> None:
    q = torch.randn(1, 1, 2, 4)
    with pytest.raises(NotImplementedError, match=f"Module uses {message}"):
        attention_forward(module(), q, q, q, None, **{argument: 1.0})


def test_output_has_the_dtype_of_the_values() -> None:
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


def test_packed_sentences_without_a_mask_raise() -> None:
    """Transformers creates no mask for packed sentences if there is a cache."""
    model, collator = sparsify(build("llama"), 1.5), tf.DataCollatorWithFlattening(return_flash_attn_kwargs=True)
    batch = {
        name: x for name, x in collator([{"input_ids": [5, 6, 7]}, {"input_ids": [8, 9]}]).items() if x is not None
    }
    with pytest.raises(ValueError, match="packed sequences need a mask"):
        model(**batch)
    assert model(**batch, use_cache=False).logits.shape[1] == 5


def test_alphas_of_other_heads_raise() -> None:
    """Under tensor parallelism, a process has fewer heads than the module has alphas."""
    model = sparsify(build("llama"), "learned")
    attention = model.model.layers[0].self_attn
    query = torch.randn(1, 2, 3, 4)
    with pytest.raises(ValueError, match="computes 2 of 4 heads"):
        attention_forward(attention, query, query, query, None)


def test_custom_masks_are_applied() -> None:
    model = sparsify(build("llama"), 1.5)
    ids = inputs(BY_NAME["llama"])["input_ids"][:1]
    window = torch.ones(7, 7).tril().bool() & ~torch.ones(7, 7).tril(-2).bool()
    with torch.no_grad():
        weights = model(ids, attention_mask=window[None, None], output_attentions=True).attentions
    assert all((x[0][:, ~window] == 0).all() for x in weights)


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_autocast_gives_float32_alpha_gradients(name: str) -> None:
    batch, model = inputs(BY_NAME[name]), sparsify(build(name), "learned", initial=1.5)
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(**batch).logits.float().square().mean()
    loss.backward()
    assert all(x.grad.dtype == torch.float32 and x.grad.abs().max() > 0 for x in alpha_parameters(model))


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
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


def without_sdpa(name: str) -> Any:
    model = fill(WITHOUT_SDPA[name])
    model.set_attn_implementation("eager")
    return model


@pytest.mark.filterwarnings("ignore:.*has attentions that do not use")
@pytest.mark.parametrize("padding", [False, True])
@pytest.mark.parametrize("name", WITHOUT_SDPA)
def test_decoders_causal_only_by_mask_stay_causal(name: str, padding: bool) -> None:
    batch, model = inputs(BY_NAME["bart"]), without_sdpa(name)
    if not padding:
        batch["attention_mask"] = torch.ones_like(batch["attention_mask"])
    changed = {**batch, "decoder_input_ids": batch["decoder_input_ids"].clone()}
    changed["decoder_input_ids"][:, -1] = 3 + (changed["decoder_input_ids"][:, -1] - 2) % 37
    with torch.no_grad():
        reference = model(**batch).logits
        result = sparsify(model, 1.0)(**batch).logits
        sparse = [sparsify(model, 1.5)(**x).logits[:, :-1] for x in (batch, changed)]
    torch.testing.assert_close(result, reference, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(*sparse, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["nllb_moe", "pegasus_x"])
@pytest.mark.filterwarnings("ignore:.*has attentions that do not use")
def test_generation_with_full_masks_matches_without_cache(name: str) -> None:
    batch, model = inputs(BY_NAME["bart"]), sparsify(without_sdpa(name), 1.5)
    del batch["decoder_input_ids"]
    settings = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": None}
    results = [model.generate(**batch, **settings, **x) for x in ({}, {"use_cache": False})]
    assert torch.equal(*results)


@pytest.mark.filterwarnings("ignore:.*has attentions that do not use")
def test_custom_attention_receives_additive_masks() -> None:
    sizes = {**SEQ2SEQ, "encoder_layers": 1, "decoder_layers": 1}
    del sizes["decoder_start_token_id"]
    model = fill(lambda: tf.InformerModel(tf.InformerConfig(**SERIES, **sizes)))
    model.set_attn_implementation("eager")
    sizes = {"past_values": (2, 10), "past_time_features": (2, 10, 1), "past_observed_mask": (2, 10)}
    sizes |= {"future_values": (2, 5), "future_time_features": (2, 5, 1)}
    batch = {name: torch.randn(size) for name, size in sizes.items()}
    batch["past_observed_mask"] = torch.ones(2, 10)

    def run(x: Any) -> Tensor:
        torch.manual_seed(1)  # the model samples keys
        with torch.no_grad():
            return x(**batch)[0]

    reference = run(model)
    torch.testing.assert_close(run(sparsify(model, 1.0)), reference, rtol=1e-5, atol=1e-5)


def test_dropped_queries_are_dropped_from_the_mask() -> None:
    if not hasattr(tf, "Gemma4TextConfig"):
        pytest.skip("needs transformers: with Gemma 4")
    sizes = {"num_hidden_layers": 4, "head_dim": 4, "global_head_dim": 4, "num_global_key_value_heads": 2}
    per_layer = {"hidden_size_per_layer_input": 4, "vocab_size_per_layer_input": 40, "num_kv_shared_layers": 2}
    config = tf.Gemma4TextConfig(
        **{**GROUPED, **sizes}, **per_layer, layer_types=["sliding_attention", "full_attention"] * 2
    )
    model = sparsify(fill(lambda: tf.Gemma4ForCausalLM(config)), 1.5)
    ids = inputs(BY_NAME["llama"])["input_ids"][:1]
    with torch.no_grad():
        logits, last = model(ids).logits, model(ids, logits_to_keep=3).logits
    torch.testing.assert_close(last, logits[:, -3:], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_families_use_attention_without_full_masks(family: Family) -> None:
    assert sparsify(build(family)).config._attn_implementation == NAME


def test_full_masks_replace_the_causal_mask() -> None:
    q, k, v = torch.randn(3, 2, 4, 5, 8).unbind()
    alone = full_mask_forward(module(causal=True), q, k, v, None)[0]
    assert torch.equal(alone, attention_forward(module(), q, k, v, None)[0])
    assert not torch.allclose(alone, attention_forward(module(causal=True), q, k, v, None)[0])


def test_densities_under_full_masks_count_visible_keys() -> None:
    batch, model = inputs(BY_NAME["bart"]), without_sdpa("nllb_moe")
    with torch.no_grad(), DensityMeter(sparsify(model, 1.0)) as meter:
        model(**batch)
    assert all((x == 1).all() for x in meter.densities().values())


def test_checkpointing_with_returned_weights_gives_the_same_gradients() -> None:
    batch, model = inputs(BY_NAME["gpt2"]), sparsify(build("gpt2"), 1.5)
    model.config.use_cache = False

    def loss() -> Tensor:
        outputs = model(**batch, output_attentions=True)
        assert len(outputs.attentions) == model.config.num_hidden_layers
        squares: Tensor = outputs.logits.square()
        return squares.mean()

    gradients = checkpointing_gradients(model, loss, list(model.parameters()))
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-6)
