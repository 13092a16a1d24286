"""Tests of every model type of Transformers: probabilities match forward passes without batches and caches."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("transformers")  # before the imports that need it

import torch
import transformers as tf
from tests.every_transformer import CAUSAL, END, NOT_TINY, SEQ2SEQ, build, fill
from tests.tiny_transformers import SMALL, TEXT

from tsallis.functional import entmax
from tsallis.huggingface import TransformersDecoder
from tsallis.huggingface.reading import UNSUPPORTED
from tsallis.search import beam_search, exhaustive, score

SOURCES = [[5, 6, 8, 4, 9, 0, 7], [7, 3], [4]]  # the padding id 0 may also be an ordinary token
OUTPUTS = [[6, 0, 9, 4], [9, 8, 10, 3], [1, 6, 5, 8]]
# Types that cover earlier bugs; they run in every test run.
QUICK = [
    *(("causal", name) for name in ("bart", "bloom", "gpt2", "jamba", "llama", "roberta", "rwkv", "trocr")),
    *(("seq2seq", name) for name in ("fsmt", "m2m_100", "marian", "nllb-moe", "switch_transformers")),
]
EVERY = [("causal", name) for name in CAUSAL] + [("seq2seq", name) for name in SEQ2SEQ]


class Reference:
    """Log-probabilities of the outputs of a source, from one full forward pass of the model per prefix."""

    def __init__(self, model: Any, alpha: float, source: list[int]) -> None:
        self.model, self.alpha, self.source = model, alpha, source
        self.known: dict[tuple[int, ...], torch.Tensor] = {}

    @torch.no_grad()
    def next(self, output: tuple[int, ...]) -> torch.Tensor:
        if output not in self.known:
            if self.model.config.is_encoder_decoder:
                start = self.model.config.decoder_start_token_id
                inputs = {"input_ids": [self.source], "decoder_input_ids": [[start, *output]]}
            else:
                inputs = {"input_ids": [[*self.source, *output]]}
            tensors = {name: torch.tensor(rows) for name, rows in inputs.items()}
            mask = torch.ones_like(tensors["input_ids"])  # without a mask, some models treat the padding id as padding
            logits = self.model(**tensors, attention_mask=mask, use_cache=False, return_dict=True).logits[0, -1]
            self.known[output] = entmax(logits.double(), self.alpha).log()
        return self.known[output]

    def log_prob(self, output: list[int]) -> float:
        return float(sum(self.next(tuple(output[:n]))[token] for n, token in enumerate([*output, END])))


def pad(rows: list[list[int]]) -> dict[str, torch.Tensor]:
    """Pad rows on the left, as tokenizers of causal models do, with an id that is not the padding id."""
    width = max(map(len, rows))
    return {
        "input_ids": torch.tensor([[3] * (width - len(row)) + row for row in rows]),
        "attention_mask": torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows]),
    }


def check(model: Any) -> None:
    plain = TransformersDecoder(model, 1.0, end=END, suppress=[])
    batch = plain.sources(pad(SOURCES))
    together = score(plain, *batch, *plain.targets(OUTPUTS)).tolist()
    alone = [
        score(plain, *plain.sources(pad([source])), *plain.targets([output])).item()
        for source, output in zip(SOURCES, OUTPUTS, strict=True)
    ]
    expected = [Reference(model, 1.0, x).log_prob(y) for x, y in zip(SOURCES, OUTPUTS, strict=True)]
    assert together == pytest.approx(expected, rel=1e-4, abs=1e-3)
    assert alone == pytest.approx(expected, rel=1e-4, abs=1e-3)
    sparse = TransformersDecoder(model, 1.5, end=END, suppress=[])
    found = 0
    for source, result in zip(SOURCES, beam_search(sparse, *batch, beam_size=3, max_length=4), strict=True):
        reference = Reference(model, 1.5, source)
        for hypothesis in result.hypotheses:
            found += 1
            expected_log_prob = reference.log_prob(sparse.ids(hypothesis.tokens))
            assert hypothesis.log_prob == pytest.approx(expected_log_prob, rel=1e-3, abs=5e-3)
    for hypothesis in beam_search(plain, *batch, beam_size=2, max_length=3, min_length=2)[1].hypotheses:
        output = plain.ids(hypothesis.tokens)
        expected_log_prob = Reference(model, 1.0, SOURCES[1]).log_prob(output)
        assert hypothesis.log_prob == pytest.approx(expected_log_prob, rel=1e-4, abs=1e-3)
        found += 1
    assert found


@pytest.mark.parametrize(("kind", "name"), QUICK)
def test_probabilities_match_forward_passes(kind: str, name: str) -> None:
    check(build(kind, name))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), [case for case in EVERY if case not in QUICK and case[1] not in NOT_TINY])
def test_probabilities_of_every_type_match_forward_passes(kind: str, name: str) -> None:
    model = build(kind, name)
    if (reason := UNSUPPORTED.get(model.config.model_type)) is not None:
        with pytest.raises(ValueError, match=reason):
            TransformersDecoder(model, 1.0, end=END)
    else:
        check(model)


def tiny(name: str, **options: Any) -> Any:
    return build("seq2seq" if name in ("bart", "bigbird_pegasus", "marian", "nllb-moe") else "causal", name, **options)


def test_encoder_and_decoder_may_have_different_types() -> None:
    sides = [tf.RobertaConfig(**SMALL, **TEXT), tf.BertConfig(**SMALL, **TEXT | {"vocab_size": 20})]
    config = tf.EncoderDecoderConfig.from_encoder_decoder_configs(*sides, decoder_start_token_id=1, pad_token_id=0)
    check(fill(tf.EncoderDecoderModel(config)))


@pytest.mark.parametrize(("source", "target"), [(8, 12), (12, 8)])
def test_source_and_target_vocabularies_may_differ(source: int, target: int) -> None:
    options = {"decoder_vocab_size": target, "share_encoder_decoder_embeddings": False}
    model = tiny("marian", vocab_size=source, **options)
    decoder = TransformersDecoder(model, 1.0, end=END)
    batch = decoder.sources({"input_ids": torch.tensor([[source - 1, 5]])})
    output = [target - 1, 4]
    value = score(decoder, *batch, *decoder.targets([output])).item()
    assert value == pytest.approx(Reference(model, 1.0, [source - 1, 5]).log_prob(output), abs=1e-3)
    ends = {h.tokens[0] for h in exhaustive(decoder, *batch, max_length=1)[0].hypotheses if len(h.tokens) == 1}
    assert set(decoder.ids(sorted(ends))) == set(range(target)) - {END}
    with pytest.raises(ValueError, match=f"from 0 to {target - 1} for MarianMTModel, got {target}"):
        decoder.targets([[target]])
    for options in ({"end": target}, {"suppress": [target]}, {"start": [target]}):
        with pytest.raises(ValueError, match=f"from 0 to {target - 1} for MarianMTModel, got {target}"):
            TransformersDecoder(model, **{"end": END} | options)
    with pytest.raises(ValueError, match=f"from 0 to {source - 1} for MarianMTModel, got {source}"):
        decoder.sources({"input_ids": torch.tensor([[4, source]])})


@pytest.mark.parametrize("name", ["llama", "bart"])
@pytest.mark.parametrize("option", [{"use_cache": False}, {"tie_word_embeddings": False}], ids=str)
def test_probabilities_match_with_other_config_options(name: str, option: dict[str, bool]) -> None:
    check(tiny(name, **option))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_scores_match_float32(dtype: torch.dtype) -> None:
    model = tiny("roberta")
    expected = TransformersDecoder(model, 1.0, end=END)
    values = score(expected, *expected.sources(pad(SOURCES)), *expected.targets(OUTPUTS))
    decoder = TransformersDecoder(model.to(dtype), 1.0, end=END)
    halves = score(decoder, *decoder.sources(pad(SOURCES)), *decoder.targets(OUTPUTS))
    torch.testing.assert_close(halves, values, rtol=0.02, atol=0.3)


def test_decoder_may_have_more_layers_than_its_encoder() -> None:
    """Check a decoder for which Transformers creates a cache of one layer, as many as the encoder has."""
    options = {"encoder_layers": 1, "decoder_layers": 2}
    check(build("causal", "bart", **options))
    check(build("seq2seq", "bart", **options))


def test_length_dependent_rope_matches_forward_passes() -> None:
    """Check rotations that differ between cached keys and longer prefixes, and between sources of a batch."""
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 5}
    factors = {"short_factor": [1.0, 1.0], "long_factor": [8.0, 9.0], "factor": 8.0}
    # Keys are cached only without a sliding window.
    options = {"original_max_position_embeddings": 5, "sliding_window": None, "rope_parameters": rope | factors}
    check(tiny("phi3", **options))


UNSUPPORTED_MODELS = [
    ("bert", {"is_decoder": False}, "BertLMHeadModel reads prefixes in both directions"),
    ("roberta", {"is_decoder": False}, "RobertaForCausalLM reads prefixes in both directions"),
    ("llama", {"is_causal": False}, "LlamaForCausalLM reads prefixes in both directions"),
    ("llama", {"return_dict": False}, "LlamaForCausalLM returns tuples: set config.return_dict to True"),
    ("xlnet", {}, "XLNetLMHeadModel is not supported: it predicts the token at a mask"),
    ("nllb-moe", {"moe_eval_capacity_token_fraction": 0.5}, r"token_fraction must be 1, got 0\.5"),
]


@pytest.mark.parametrize(("name", "options", "message"), UNSUPPORTED_MODELS)
def test_unsupported_models_raise(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TransformersDecoder(tiny(name, **options), 1.0, end=END)


@pytest.mark.parametrize("dtype", [torch.bool, torch.long, torch.float32, torch.uint8])
def test_masks_of_every_dtype_are_accepted(dtype: torch.dtype) -> None:
    decoder = TransformersDecoder(tiny("llama"), 1.0, end=END)
    batch = pad(SOURCES)
    ids, lengths = decoder.sources({**batch, "attention_mask": batch["attention_mask"].to(dtype)})
    assert [row[:n].tolist() for row, n in zip(ids, lengths.tolist(), strict=True)] == SOURCES


INVALID = [
    ({"attention_mask": torch.ones(2, 4)}, r"attention_mask must .* \[2, 3\] of input_ids, got \[2, 4\]"),
    ({"attention_mask": torch.ones(2, 1, 3, 3)}, r"shape \[2, 3\] of input_ids, got \[2, 1, 3, 3\]"),
    ({"attention_mask": torch.tensor([[0.0, 0.0, 0.0], [-1e9, 0.0, 0.0]])}, "must contain only 1 .* got -1e"),
    ({"input_ids": torch.tensor([[4, 11, 5], [4, 5, 6]])}, "from 0 to 10 for LlamaForCausalLM, got 11"),
    ({"input_ids": torch.tensor([[4, -100, 5], [4, 5, 6]])}, "for LlamaForCausalLM, got -100"),
    ({"inputs_embeds": torch.rand(2, 3, 16)}, "only input_ids and attention_mask, got inputs_embeds"),
    ({"position_ids": torch.ones(2, 3)}, "only input_ids and attention_mask, got position_ids"),
    ({"token_type_ids": torch.ones(2, 3)}, "only input_ids and attention_mask, got token_type_ids"),
]


@pytest.mark.parametrize(("batch", "message"), INVALID)
def test_invalid_sources_raise(batch: dict[str, torch.Tensor], message: str) -> None:
    decoder = TransformersDecoder(tiny("llama"), 1.0, end=END)
    with pytest.raises(ValueError, match=message):
        decoder.sources({"input_ids": torch.tensor([[4, 5, 6], [7, 8, 9]]), **batch})
    zeros = {"token_type_ids": torch.zeros(1, 2), "labels": torch.ones(1, 2), "special_tokens_mask": torch.ones(1, 2)}
    decoder.sources({"input_ids": torch.tensor([[4, 5]]), **zeros})
    hidden = torch.tensor([[99, 4]])  # masked ids may be any number
    assert decoder.sources({"input_ids": hidden, "attention_mask": torch.tensor([[0, 1]])})[0].tolist() == [[4]]


def test_bad_words_are_suppressed_and_start_lists_raise() -> None:
    model = tiny("bart")
    model.generation_config.bad_words_ids = [[END], [7]]
    assert TransformersDecoder(model, 1.0, end=END).suppress == [7]
    model.generation_config.decoder_start_token_id = [4, 5]
    with pytest.raises(ValueError, match=r"decoder_start_token_id must be a single id, got \[4, 5\]: pass start"):
        TransformersDecoder(model, 1.0, end=END)


def test_too_long_sources_raise() -> None:
    for name, options, most in (
        ("bart", {"max_position_embeddings": 8}, 8),
        ("bigbird_pegasus", {"attention_type": "block_sparse", "block_size": 1, "num_random_blocks": 1}, 7),
    ):
        decoder = TransformersDecoder(tiny(name, **options), 1.0, end=END)
        batch = decoder.sources({"input_ids": torch.full((1, most + 1), 5)})
        with pytest.raises(ValueError, match=f"at most {most} tokens for .*, got {most + 1}"):
            beam_search(decoder, *batch, max_length=2)
    decoder = TransformersDecoder(build("causal", "whisper", max_target_positions=8), 1.0, end=END, suppress=[END])
    with pytest.raises(ValueError, match="has 8 positions"):
        beam_search(decoder, *decoder.sources({"input_ids": torch.full((1, 7), 5)}), max_length=5)


def test_attention_of_padded_sources_matches_single_passes() -> None:
    model = tiny("roberta")
    model.set_attn_implementation("eager")
    decoder = TransformersDecoder(model, 1.0, end=END, attention=True)
    sources = [[5, 6, 8, 4], [7, 3], [9]]
    batch = decoder.sources(pad(sources))
    results = beam_search(decoder, *batch, beam_size=2, min_length=3, max_length=3, keep_attention=True)
    for source, result in zip(sources, results, strict=True):
        ids = torch.tensor([[*source, *decoder.ids(result.best.tokens)]])
        with torch.no_grad():
            weights = model(input_ids=ids, output_attentions=True, use_cache=False).attentions[-1][0].mean(0)
        expected = weights[len(source) - 1 :, : len(source)]
        found = result.best.attention[:, : len(source)]
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5, check_dtype=False)


def test_lora_adapters_match_forward_passes() -> None:
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(tiny("trocr"), peft.LoraConfig(target_modules=["q_proj"], init_lora_weights=False))
    decoder = TransformersDecoder(model.eval(), 1.0, end=END)
    values = score(decoder, *decoder.sources(pad(SOURCES)), *decoder.targets(OUTPUTS))
    with torch.no_grad():
        for value, source, output in zip(values.tolist(), SOURCES, OUTPUTS, strict=True):
            logits = model(input_ids=torch.tensor([[*source, *output]]), use_cache=False).logits[0, len(source) - 1 :]
            steps = logits.double().log_softmax(-1)[range(len(output) + 1), [*output, END]]
            assert value == pytest.approx(steps.sum().item(), abs=1e-3)
    prompt = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    with pytest.raises(ValueError, match="not supported with an adapter that learns a prompt"):
        TransformersDecoder(peft.get_peft_model(tiny("llama"), prompt), 1.0, end=END)
