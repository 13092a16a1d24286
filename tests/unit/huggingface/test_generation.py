"""Tests of sampling by entmax in `generate`."""

from __future__ import annotations

import math
import pickle
from typing import Any

import pytest

pytest.importorskip("transformers")  # before the imports that need it

import torch
import transformers as tf
from transformers import DynamicCache, EncoderDecoderCache, WatermarkingConfig

import tsallis
from tiny_transformers import BY_NAME, GROUPED, SPECIAL, VOCABULARY, build, fill, inputs
from tsallis.huggingface import EntmaxLogitsProcessor, ScreenedCache, find_obstacles, sparsify
from tsallis.ops.choice import choose_screening

SAMPLE = {"do_sample": True, "top_k": 0, "top_p": 1.0, "temperature": 1.0, "max_new_tokens": 5}


@pytest.mark.parametrize(("alpha", "temperature"), [(1.0, 1.0), (1.5, 0.5), (2.0, 2.0)])
def test_softmax_of_processed_scores_is_entmax(alpha: float, temperature: float) -> None:
    scores = torch.randn(3, 9)
    probs = EntmaxLogitsProcessor(alpha, temperature)(torch.zeros(3, 1), scores).softmax(-1)
    reference = tsallis.entmax(scores / temperature, alpha)
    torch.testing.assert_close(probs, reference)
    assert torch.equal(probs == 0, reference == 0)


@pytest.mark.parametrize("name", ["llama", "bart"])
def test_sampled_tokens_lie_in_the_support(name: str) -> None:
    model, processor = build(name), EntmaxLogitsProcessor(1.5, temperature=4.0)
    batch = inputs(BY_NAME[name], "left")
    batch.pop("decoder_input_ids", None)
    output = model.generate(
        **batch, **SAMPLE, logits_processor=[processor], output_logits=True, return_dict_in_generate=True
    )
    steps = len(output.logits)
    probs = torch.stack([tsallis.entmax(x.float() / 4, 1.5) for x in output.logits], 1)
    free = steps - 1 if name == "bart" else steps  # generate forces Bart's last token
    tokens = output.sequences[:, -steps:][:, :free]
    assert (probs[:, :free].gather(-1, tokens.unsqueeze(-1)) > 0).all()
    assert torch.equal(processor.support_sizes[:, :free], (probs[:, :free] > 0).sum(-1))
    assert processor.support_sizes.min() >= 1 and processor.support_sizes.max() < VOCABULARY


SETTINGS = [
    ("top_k", 3, "top_k=0"),
    ("top_p", 0.9, "top_p=1.0"),
    ("min_p", 0.1, "min_p=None"),
    ("typical_p", 0.5, "typical_p=1.0"),
    ("epsilon_cutoff", 0.1, "epsilon_cutoff=0.0"),
    ("eta_cutoff", 0.1, "eta_cutoff=0.0"),
    ("top_h", 0.5, "top_h=None"),
]


@pytest.mark.parametrize(("name", "value", "neutral"), SETTINGS)
def test_settings_applied_after_entmax_raise(name: str, value: float, neutral: str) -> None:
    """Check that such settings are rejected, and that the value in the error message changes no probability."""
    model, prompts = build("llama"), torch.full((2000, 3), 5)
    call = {"do_sample": True, "top_k": 0, "top_p": 1.0, "max_new_tokens": 1, "attention_mask": torch.ones(2000, 3)}
    call.pop(name, None)
    if not hasattr(model.generation_config, name):
        pytest.skip(f"needs transformers: this version has no {name}")
    setattr(model.generation_config, name, value)
    with pytest.raises(ValueError, match=f"would apply {name} after entmax.* pass {neutral} to generate"):
        model.generate(prompts, **call, logits_processor=[EntmaxLogitsProcessor(1.5, temperature=4.0)])
    text = neutral.partition("=")[2]
    call[name] = None if text == "None" else type(value)(float(text))
    torch.manual_seed(0)
    drawn = model.generate(prompts, **call, logits_processor=[EntmaxLogitsProcessor(1.5, temperature=4.0)])[:, -1]
    with torch.no_grad():
        expected = tsallis.entmax(model(prompts[:1]).logits[0, -1] / 4, 1.5)
    distance = (torch.bincount(drawn, minlength=VOCABULARY) / len(prompts) - expected).abs().sum() / 2
    assert distance < 0.05  # sampling error: about 0.02


@pytest.mark.parametrize("place", ["model", "call"])
def test_temperature_of_generate_is_undone_with_a_warning(place: str) -> None:
    """Check that samples follow p; if the temperature were not undone, they would follow p^(1/T), normalised."""
    model, prompts = build("llama"), torch.full((4000, 3), 5)
    call = {"do_sample": True, "top_k": 0, "top_p": 1.0, "max_new_tokens": 1, "attention_mask": torch.ones(4000, 3)}
    if place == "model":
        model.generation_config.temperature = 0.3
    else:
        call["temperature"] = 0.3
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match="temperature 0.3 of generate has no effect: pass it to EntmaxLogitsProcessor"):
        drawn = model.generate(prompts, **call, logits_processor=[EntmaxLogitsProcessor(1.5, temperature=4.0)])[:, -1]
    with torch.no_grad():
        expected = tsallis.entmax(model(prompts[:1]).logits[0, -1] / 4, 1.5)
    shares = torch.bincount(drawn, minlength=VOCABULARY) / len(prompts)
    cold = expected ** (1 / 0.3)
    assert (shares - expected).abs().sum() / 2 < 0.05 < (cold / cold.sum() - expected).abs().sum() / 4


def test_watermarks_raise() -> None:
    model, marks = build("llama"), WatermarkingConfig(bias=5.0)
    call = {"do_sample": True, "top_k": 0, "top_p": 1.0, "max_new_tokens": 1, "watermarking_config": marks}
    with pytest.raises(ValueError, match="pass watermarking_config=None to generate"):
        model.generate(torch.full((1, 3), 5), **call, logits_processor=[EntmaxLogitsProcessor(1.5)])


def test_neutral_settings_are_accepted() -> None:
    model, prompt = build("llama"), torch.full((1, 3), 5)
    call = {"do_sample": True, "max_new_tokens": 2, "attention_mask": torch.ones(1, 3), "min_p": 0.0}
    model.generate(
        prompt, **call, top_k=VOCABULARY, renormalize_logits=True, logits_processor=[EntmaxLogitsProcessor()]
    )
    greedy = call | {"do_sample": False, "min_p": None}
    model.generate(prompt, **greedy, temperature=0.5, logits_processor=[EntmaxLogitsProcessor()])


def test_support_sizes_are_reset_for_every_call() -> None:
    """Check prompts that are longer, continue at the next length with different tokens, or differ in number."""
    model, processor = build("llama"), EntmaxLogitsProcessor()
    assert processor.support_sizes.numel() == 0
    ids = torch.randint(3, VOCABULARY, (3, 30))
    for prompt in (ids[:2, :3], ids[:2, :12], ids[:2, 1:18], ids[:, :22]):  # 12 + 5 new tokens = 17
        model.generate(prompt, attention_mask=torch.ones_like(prompt), **SAMPLE, logits_processor=[processor])
        assert processor.support_sizes.shape == (len(prompt), 5)


def test_beam_search_counts_as_one_call() -> None:
    model, processor = build("llama"), EntmaxLogitsProcessor(1.5, temperature=4.0)
    torch.manual_seed(0)
    model.generate(**inputs(BY_NAME["llama"], "left"), **SAMPLE, num_beams=3, logits_processor=[processor])
    assert processor.support_sizes.shape == (6, 5)


@pytest.mark.parametrize("drafts", ["model", "prompt"])
def test_assisted_generation_counts_every_step_once(drafts: str) -> None:
    model, processor = build("llama"), EntmaxLogitsProcessor(2.0, 0.5)
    options: dict[str, Any] = {"assistant_model": model} if drafts == "model" else {"prompt_lookup_num_tokens": 2}
    options["eos_token_id"] = VOCABULARY - 1  # Transformers 5.4 needs an end for drafts from the prompt
    prompt = torch.tensor([[5, 6, 7, 5, 6]])
    torch.manual_seed(0)
    output = model.generate(
        prompt, logits_processor=[processor], do_sample=True, top_k=0, top_p=1.0, max_new_tokens=8, **options
    )
    length, count = prompt.shape[1], output.shape[1] - prompt.shape[1]
    logits = model(output).logits[0, length - 1 : -1].double()
    expected = (tsallis.entmax(logits / 0.5, 2.0) > 0).sum(-1).tolist()
    assert processor.support_sizes[0, :count].tolist() == expected


def test_invalid_settings_raise() -> None:
    for value in (0, -1, 1e-301, math.inf, math.nan):
        with pytest.raises(ValueError, match=f"temperature must be at least 1e-300 and finite, got {value}"):
            EntmaxLogitsProcessor(temperature=value)
    with pytest.raises(ValueError, match=r"alpha must be finite and at least 1, got 0\.5"):
        EntmaxLogitsProcessor(0.5)


@pytest.mark.parametrize("temperature", [1e-39, 1e-300])
def test_tiny_temperatures_keep_only_the_best_token(temperature: float) -> None:
    log_probs = EntmaxLogitsProcessor(1.5, temperature)(torch.tensor([[1]]), torch.tensor([[1.0, 2.0, 1.5]]))
    assert log_probs.tolist() == [[-math.inf, 0.0, -math.inf]]


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enable the scan for short caches."""
    if choose_screening("cpu") is None:
        pytest.skip("needs kernels: they scan the keys")
    monkeypatch.setattr("tsallis.ops.cpu.screening.MIN_KEYS", 1)


@pytest.mark.usefixtures("scans")
@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral"])
@torch.no_grad()
def test_screened_cache_matches_logits_of_one_pass(name: str) -> None:
    model, cache = sparsify(build(name), 1.5), ScreenedCache()
    ids = torch.randint(5, VOCABULARY, (2, 12))
    mask = torch.ones_like(ids)
    mask[1, :3] = 0  # padding on the left

    def step(begin: int, end: int, rows: slice = slice(None)) -> torch.Tensor:
        part, active = ids[rows, begin:end], mask[rows, :end]
        position_ids = (mask[rows].cumsum(1) - 1).clamp(min=0)[:, begin:end]
        return model(part, attention_mask=active, past_key_values=cache, position_ids=position_ids).logits

    expected = model(ids, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0)).logits
    for begin, end in ((0, 6), (6, 7), (7, 8), (8, 9)):
        torch.testing.assert_close(step(begin, end)[:, -1], expected[:, end - 1], atol=1e-4, rtol=1e-4)
    assert all(layer.store.rows is not None for layer in cache.layers)
    cache.crop(-2)
    for number in (7, 8):
        torch.testing.assert_close(step(number, number + 1)[:, 0], expected[:, number], atol=1e-4, rtol=1e-4)
    cache.batch_select_indices(torch.tensor([1]))
    for number in (9, 10):
        logits = step(number, number + 1, slice(1, 2))
        torch.testing.assert_close(logits[0, 0], expected[1, number], atol=1e-4, rtol=1e-4)
    assert all(len(layer.store) == 11 for layer in cache.layers)


@pytest.mark.usefixtures("scans")
@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"do_sample": True}], ids=str)
@pytest.mark.parametrize("name", ["llama", "bart"])
def test_generation_with_a_screened_cache_matches_default(name: str, options: dict[str, object]) -> None:
    model, prompt, screened = sparsify(build(name), 1.5), torch.randint(5, VOCABULARY, (2, 9)), ScreenedCache()
    outputs = []
    for cache in (None, screened if name == "llama" else EncoderDecoderCache(screened, ScreenedCache())):
        torch.manual_seed(0)
        outputs.append(model.generate(prompt, past_key_values=cache, max_new_tokens=8, eos_token_id=None, **options))
    assert torch.equal(*outputs)


@pytest.mark.usefixtures("scans")
def test_t5gemma_creates_a_screened_cache() -> None:
    side = {**GROUPED, "head_dim": 4, "sliding_window": 16, "attn_logit_softcapping": None}
    config = tf.T5GemmaConfig(encoder=side, decoder=side | {"cross_attention_hidden_size": 16}, **SPECIAL)
    model = sparsify(fill(lambda: tf.T5GemmaForConditionalGeneration(config)), 1.5)
    prompt = torch.randint(5, VOCABULARY, (2, 9))
    options = {"max_new_tokens": 6, "decoder_start_token_id": 1, "do_sample": False}
    cache = EncoderDecoderCache(ScreenedCache(), ScreenedCache())
    outputs = [model.generate(prompt, past_key_values=x, **options) for x in (cache, None)]
    assert torch.equal(*outputs)
    with pytest.raises(ValueError, match="offloading must be False for ScreenedCache, got True"):
        ScreenedCache(offloading=True)


@pytest.mark.usefixtures("scans")
def test_screened_cache_supports_prompt_lookup() -> None:
    model, prompt, options = sparsify(build("bart"), 1.5), torch.randint(5, VOCABULARY, (1, 9)), {"max_new_tokens": 8}
    options["eos_token_id"] = 2  # Transformers 5.4 needs it
    cache = EncoderDecoderCache(ScreenedCache(), ScreenedCache())
    drafted = model.generate(prompt, past_key_values=cache, prompt_lookup_num_tokens=3, **options)
    assert torch.equal(drafted, model.generate(prompt, **options))


@pytest.mark.usefixtures("scans")
@torch.no_grad()
def test_screened_cache_matches_default_if_a_model_changes_values() -> None:
    """DiffLlama exchanges parts of the cached values before attention."""
    model = fill(lambda: tf.DiffLlamaForCausalLM(tf.DiffLlamaConfig(**GROUPED)))
    if any(find_obstacles(model).values()):
        pytest.skip("needs transformers: that let the attention of DiffLlama be replaced")
    sparsify(model, 1.5)
    prompt, caches = torch.randint(5, VOCABULARY, (2, 9)), (DynamicCache(), ScreenedCache())
    logits = [[model(x, past_key_values=cache).logits for x in prompt.split(5, 1)][-1] for cache in caches]
    torch.testing.assert_close(*logits)


@pytest.mark.usefixtures("scans")
@torch.no_grad()
def test_screened_cache_survives_pickling() -> None:
    model, ids, cache = sparsify(build("llama"), 1.5), torch.randint(5, VOCABULARY, (1, 9)), ScreenedCache()
    for empty in (cache, ScreenedCache()):
        pickle.dumps(empty)
    model(ids[:, :8], past_key_values=cache)
    other = pickle.loads(pickle.dumps(cache))
    logits = [model(ids[:, 8:], past_key_values=each).logits for each in (cache, other)]
    assert torch.equal(*logits)
    assert all(layer.store.rows is not None for layer in other.layers)


@pytest.mark.usefixtures("scans")
@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral"])
@torch.no_grad()
def test_screened_cache_is_accurate_under_autocast(name: str) -> None:
    """Check that errors are close to those without a scan, though rotated keys and values differ in dtype."""
    model, ids = sparsify(build(name), 1.5), torch.randint(5, VOCABULARY, (2, 9))
    expected, errors = model(ids).logits[:, -1], []
    with torch.autocast("cpu", torch.bfloat16):
        for cache in (DynamicCache(), ScreenedCache()):
            model(ids[:, :8], past_key_values=cache)
            logits = model(ids[:, 8:], past_key_values=cache).logits[:, -1]
            errors.append(float((logits - expected).abs().max()))
    assert errors[1] <= 2 * errors[0] < 1


@pytest.mark.usefixtures("scans")
@torch.no_grad()
def test_screened_cache_matches_one_pass_in_bfloat16() -> None:
    model, cache = sparsify(build("llama"), 1.5).to(torch.bfloat16), ScreenedCache()
    ids = torch.randint(5, VOCABULARY, (1, 9))
    for part in ids.split([6, 1, 1, 1], 1):
        logits = model(part, past_key_values=cache).logits
    torch.testing.assert_close(logits[:, -1], model(ids).logits[:, -1], atol=0.05, rtol=0.05)
    assert all(layer.store.rows is not None and layer.keys.dtype == torch.bfloat16 for layer in cache.layers)
    cache.crop(-1)
    torch.testing.assert_close(model(ids[:, -1:], past_key_values=cache).logits[:, -1], logits[:, -1])


def test_screened_cache_gradients_match_one_pass() -> None:
    model, cache, ids = sparsify(build("llama"), 1.5), ScreenedCache(), torch.randint(5, VOCABULARY, (1, 9))
    model(ids[:, :5], past_key_values=cache)
    model(ids[:, 5:], past_key_values=cache).logits[0, -1, 0].backward()
    stepwise = model.lm_head.weight.grad.clone()
    model.zero_grad()
    model(ids).logits[0, -1, 0].backward()
    torch.testing.assert_close(stepwise, model.lm_head.weight.grad)


@torch.no_grad()
def test_screened_cache_rejects_models_with_convolutional_layers() -> None:
    if not hasattr(DynamicCache, "update_conv_state"):
        pytest.skip("needs transformers: that stores the states of convolutions in every cache")
    config = tf.Lfm2Config(**GROUPED, layer_types=["conv", "full_attention"])
    model, prompt = sparsify(fill(lambda: tf.Lfm2ForCausalLM(config))), torch.randint(5, VOCABULARY, (2, 5))
    model.generate(prompt, max_new_tokens=2)
    for call in (model, model.generate):
        with pytest.raises(NotImplementedError, match="recurrent or convolutional layers: call it without Screened"):
            call(prompt, past_key_values=ScreenedCache())
