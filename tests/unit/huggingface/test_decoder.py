"""Tests of searches with Transformers models against passes without a cache, `generate`, and enumeration."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

pytest.importorskip("transformers")  # before the imports that need it

import torch
import transformers as tf
from tests.tiny_transformers import BY_NAME, DECODERS, SEQ2SEQ, SPECIAL, Family, build, inputs
from tests.unit.huggingface.test_every_model import Reference
from torch import Tensor

from tsallis.huggingface import TransformersDecoder, sparsify
from tsallis.search import beam_search, exact_search, exhaustive, score_tokens

END = 2


def make(family: Family | str, **options: Any) -> TransformersDecoder:
    return TransformersDecoder(build(family).double(), **{"end": END, "alpha": 1.5, **options})


def sources(decoder: TransformersDecoder, family: Family | str, padding: str = "right") -> tuple[Tensor, Tensor]:
    family = BY_NAME[family] if isinstance(family, str) else family
    return decoder.sources({x: ids for x, ids in inputs(family, padding).items() if x != "decoder_input_ids"})


class Enumeration:
    """Enumeration of all outputs of a small model up to a length, with their probabilities."""

    def __init__(self, decoder: TransformersDecoder, source: Tensor, longest: int) -> None:
        self.probs: dict[tuple[int, ...], float] = {}
        self.cut = 0.0
        self.reference = Reference(decoder.model, decoder.output.alpha, source.tolist())
        self._follow(decoder, [], 1.0, longest)

    def _follow(self, decoder: TransformersDecoder, output: list[int], prob: float, longest: int) -> None:
        for token, p in enumerate(self.reference.next(tuple(output)).exp().tolist()):
            if p == 0:
                continue
            if token in decoder.output.ends:
                self.probs[tuple(output)] = self.probs.get(tuple(output), 0.0) + prob * p
            elif len(output) < longest:
                self._follow(decoder, [*output, token], prob * p, longest)
            else:
                self.cut += prob * p


def small(kind: str) -> Any:
    """Return a model with a vocabulary of nine ids."""
    torch.manual_seed(3)
    if kind == "seq2seq":
        model: Any = tf.BartForConditionalGeneration(
            tf.BartConfig(vocab_size=9, max_position_embeddings=16, **SEQ2SEQ, **SPECIAL, forced_bos_token_id=None)
        )
    else:
        model = tf.GPT2LMHeadModel(
            tf.GPT2Config(vocab_size=9, n_embd=16, n_head=4, n_layer=2, n_positions=16, **SPECIAL)
        )
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    if kind == "seq2seq":
        model.final_logits_bias[0, 2] = 1.0  # the end is likely
    else:
        model.lm_head = torch.nn.Linear(16, 9)
        with torch.no_grad():
            model.lm_head.bias.zero_()[2] = 1.0
    return model.double().eval()


@pytest.mark.parametrize("end", [2, [2, 5]], ids=["one end", "two ends"])
@pytest.mark.parametrize("kind", ["decoder", "seq2seq"])
def test_exhaustive_and_exact_search_match_enumeration(kind: str, end: int | list[int]) -> None:
    decoder = TransformersDecoder(small(kind), 2.0, end=end)
    ids = torch.tensor([[4, 7, 3], [6, 8, 0]])
    src, lengths = decoder.sources({"input_ids": ids, "attention_mask": (ids > 0).long()})
    results = exhaustive(decoder, src, lengths, max_length=4)
    best = exact_search(decoder, src, lengths, max_length=4)
    for row, (result, length) in enumerate(zip(results, lengths.tolist(), strict=True)):
        every = Enumeration(decoder, src[row, :length], 4)
        assert every.probs
        assert {tuple(decoder.ids(h.tokens)): pytest.approx(h.prob) for h in result.hypotheses} == every.probs
        assert result.mass + every.cut == pytest.approx(1)
        assert (result.certificate.kind == "complete") == (every.cut == 0)
        most = max(every.probs.values())
        if best[row].certificate.proves_best:
            assert best[row].best.prob == pytest.approx(most)
        else:  # only a longer output may be more probable
            assert math.exp(best[row].certificate.bound) > most


@pytest.mark.parametrize("name", ["gpt2", "llama", "bart", "t5", "mistral"])
def test_softmax_beams_match_generate(name: str) -> None:
    model = build(name).double()
    family = BY_NAME[name]
    batch = {x: ids[:1] for x, ids in inputs(family).items() if x != "decoder_input_ids"}
    decoder = TransformersDecoder(model, 1.0, end=END)
    settings = {"num_beams": 4, "max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False, "length_penalty": 0.0}
    tokens = {"eos_token_id": END, "pad_token_id": 0, "forced_bos_token_id": None, "forced_eos_token_id": None}
    outputs = model.generate(**batch, **settings, **tokens, num_return_sequences=4)
    first = 1 if family.kind == "seq2seq" else batch["input_ids"].shape[1]
    # The order may differ, because only our search counts the probability of the end.
    (result,) = beam_search(decoder, *decoder.sources(batch), beam_size=4, min_length=5, max_length=5)
    assert {tuple(decoder.ids(h.tokens)) for h in result.hypotheses} == {tuple(x) for x in outputs[:, first:].tolist()}


def test_keys_and_values_are_kept_for_plain_caches() -> None:
    held = {}
    for family in DECODERS:
        decoder = make(family)
        with torch.no_grad():
            state = decoder.start(decoder.encode(*sources(decoder, family)))
        held[family.name] = state.rows[0][0].pairs is not None
    assert held == {"gpt2": True, "llama": True, "mistral": False, "gemma3": False} | dict.fromkeys(
        ["marian", "bart", "t5"], True
    )


def test_search_steps_read_only_the_last_token() -> None:
    decoder = make("llama")
    lengths = []
    decoder.model.register_forward_pre_hook(
        lambda _, args, kwargs: lengths.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    beam_search(decoder, *sources(decoder, "llama"), beam_size=2, max_length=4)
    assert lengths[0] == 7
    assert set(lengths[1:]) == {1}


@pytest.mark.parametrize("kind", ["eager", "sparse"])
@pytest.mark.parametrize("family", DECODERS, ids=str)
def test_attention_matches_full_forward_passes(family: Family, kind: str) -> None:
    if kind == "eager":  # float32: in float64, Llama's eager attention returns NaN for padding rows
        model = build(family)
        model.set_attn_implementation("eager")
    else:
        model = sparsify(build(family).double(), 2.0)
    tolerance = {"rtol": 1e-4, "atol": 1e-6} if kind == "eager" else {"rtol": 1e-6, "atol": 1e-9}
    decoder = TransformersDecoder(model, 1.0, end=END, attention=True)
    src, lengths = sources(decoder, family)
    results = beam_search(decoder, src, lengths, beam_size=2, min_length=2, max_length=4, keep_attention=True)
    for row, (result, length) in enumerate(zip(results, lengths.tolist(), strict=True)):
        output, source = decoder.ids(result.best.tokens), src[row, :length]
        with torch.no_grad():
            if decoder.is_encoder_decoder:
                ids = torch.tensor([[*decoder.start_ids, *output]])
                passed = model(input_ids=source[None], decoder_input_ids=ids, output_attentions=True)
                expected = passed.cross_attentions[-1][0].mean(0)
            else:
                ids = torch.cat([source, source.new_tensor(output)])
                passed = model(input_ids=ids[None], output_attentions=True)
                expected = passed.attentions[-1][0].mean(0)[length - 1 :, :length]
        torch.testing.assert_close(result.best.attention, expected, **tolerance, check_dtype=False)
        assert [*result.best.num_attended] == (expected > 0).sum(-1).tolist()
    if kind == "sparse":
        assert any(min(result.best.num_attended) < n for result, n in zip(results, lengths.tolist(), strict=True))


def test_exact_search_with_attention_finds_the_same_outputs() -> None:
    decoder = TransformersDecoder(sparsify(small("seq2seq"), 1.5), 2.0, end=END, attention=True)
    src, lengths = decoder.sources({"input_ids": torch.tensor([[4, 7, 3], [6, 8, 5]])})
    plain = TransformersDecoder(decoder.model, 2.0, end=END)
    exact, same = (exact_search(each, src, lengths, n_best=3, max_length=4) for each in (decoder, plain))
    for one, other in zip(exact, same, strict=True):
        assert [h.tokens for h in one.hypotheses] == [h.tokens for h in other.hypotheses]
        assert all(0 < n <= 3 for h in one.hypotheses for n in h.num_attended)
        assert {n for h in other.hypotheses for n in h.num_attended} == {0}


def test_attention_without_weights_raises() -> None:
    with pytest.raises(ValueError, match=r"LlamaForCausalLM \(sdpa\) returns no weights: sparsify the model"):
        TransformersDecoder(build("llama"), 1.5, end=END, attention=True)


def test_suppressed_tokens_have_no_probability() -> None:
    model = build("llama")
    model.generation_config.bad_words_ids = [[7], [8, 9]]
    model.generation_config.suppress_tokens = [11, 12]
    decoder = TransformersDecoder(model, 1.0, end=END)
    assert decoder.suppress == [7, 11, 12]
    src, lengths = sources(decoder, "llama")
    (scores, _) = score_tokens(decoder, src, lengths, *decoder.targets([[5, 7], [5, 6]]))
    assert decoder.ids([scores.exclusion.token]) == [7]
    # Softmax over the other tokens: padding, the start and reserved ids are not counted as tokens.
    assert scores.support[0] == 40 - 3
    assert TransformersDecoder(model, 1.0, end=END, suppress=[]).suppress == []


def test_forced_first_tokens_belong_to_the_start() -> None:
    model = build("bart")
    model.generation_config.forced_bos_token_id = 9
    decoder = TransformersDecoder(model, 1.5, end=END)
    assert decoder.start_ids == [model.config.decoder_start_token_id, 9]
    assert TransformersDecoder(model, 1.5, end=END, start=[1, 8]).start_ids == [1, 8]


@pytest.mark.parametrize("end", [2, [2, 5]], ids=["one end", "two ends"])
def test_last_vocabulary_id_can_start_an_output(end: int | list[int]) -> None:
    decoder = make("llama", alpha=1.0, end=end)
    prefix = decoder.symbols([39])
    for result in beam_search(decoder, *sources(decoder, "llama"), max_length=3, prefixes=[prefix] * 2):
        assert decoder.ids(result.best.tokens)[0] == 39
    with pytest.raises(ValueError, match="ids of the output must be from 0 to 39 for LlamaForCausalLM, got 40"):
        decoder.symbols([40])


def test_targets_accept_trainer_labels() -> None:
    decoder = make("t5")
    tgt_in, tgt_out = decoder.targets(torch.tensor([[5, 6, END], [7, END, -100]]))
    assert tgt_in.tolist() == [[1, 8, 9], [1, 10, 0]]
    assert tgt_out.tolist() == [[8, 9, 2], [10, 2, -100]]
    same = decoder.targets([[5, 6], [7]])
    assert all(torch.equal(a, b) for a, b in itertools.zip_longest((tgt_in, tgt_out), same))


def test_invalid_arguments_raise() -> None:
    with pytest.raises(ValueError, match="BertModel does not generate from input_ids"):
        TransformersDecoder(tf.BertModel(tf.BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1)))
    model = build("gpt2")
    model.config.eos_token_id = None
    with pytest.raises(ValueError, match="GPT2LMHeadModel has no eos_token_id: pass end"):
        TransformersDecoder(model)
    with pytest.raises(ValueError, match="alpha"):
        make("gpt2", alpha=0.5)
    with pytest.raises(ValueError, match="start applies only to encoder-decoder models"):
        make("gpt2", start=[1])
    with pytest.raises(ValueError, match="ids of end must be from 0 to 39 for GPT2LMHeadModel, got 40"):
        make("gpt2", end=[2, 40])
    decoder = make("gpt2")
    with pytest.raises(ValueError, match=r"at least one token, got none in source 1"):
        ids = torch.tensor([[5, 6], [7, 8]])
        decoder.sources({"input_ids": ids, "attention_mask": torch.tensor([[1, 1], [0, 0]])})
    with pytest.raises(ValueError, match="must be a tensor"):
        decoder.sources({"input_ids": [[5, 6]]})
    with pytest.raises(TypeError, match=r"input_ids must be a tensor of int64 or int32, got torch\.float32"):
        decoder.sources({"input_ids": ids.float()})
    with pytest.raises(ValueError, match="output must not contain an end symbol"):
        decoder.symbols([5, END])
