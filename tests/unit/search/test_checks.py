"""Searches check options, sources and targets before they start; errors are one line and name the fault."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from tsallis.models import LanguageModel, RNNSeq2Seq, TransformerSeq2Seq
from tsallis.models.spellings import Spellings
from tsallis.nn import OutputLayer
from tsallis.search import (
    Ensemble,
    beam_search,
    complete,
    exact_search,
    exhaustive,
    generate,
    match,
    sample,
    score,
    score_tokens,
)
from tsallis.toolkit.data.vocabulary import Vocabulary

SRC, LENGTHS = torch.tensor([[4, 5, 6], [7, 4, 0]]), torch.tensor([3, 2])
TGT_IN, TGT_OUT = torch.tensor([[1, 4, 5], [1, 4, 0]]), torch.tensor([[4, 5, 2], [4, 2, -100]])
SEARCHES: dict[str, Any] = {f.__name__: f for f in (beam_search, exhaustive, exact_search)}
DRAWS: dict[str, Any] = {"sample": sample, "generate": generate}
SCORES: dict[str, Any] = {"score": score, "score_tokens": score_tokens}
COUNT: tuple[Any, ...] = (0, -1, 2.5, 2.0, True, "5", math.inf, math.nan, [1], 10**30)
ZERO_DIM = torch.tensor(2)
NUMBER: tuple[Any, ...] = (-0.5, math.nan, math.inf, 1e308, "1", True, [1.0], 10**400)
SIZES = {
    "beam_search": ("beam_size", "n_best", "max_length"),
    "exhaustive": ("budget", "n_best", "max_length"),
    "exact_search": ("budget", "n_best", "beam_size", "max_length"),
    **dict.fromkeys(("sample", "generate"), ("num_samples", "max_length")),
}
NUMBERS = {
    "beam_search": ("length_penalty",),
    **dict.fromkeys(("exhaustive", "exact_search"), ("length_penalty", "mass")),
    **dict.fromkeys(("sample", "generate"), ()),
}
CALLS = SEARCHES | DRAWS


@functools.cache
def models() -> list[Any]:
    """Return a model of each kind, with 8 symbols."""
    torch.manual_seed(0)
    sizes = {"d_model": 8, "heads": 2, "d_ff": 16}
    recurrent, other = (RNNSeq2Seq(8, 8, d_model=8, output="sparsemax") for _ in range(2))
    transformer = TransformerSeq2Seq(8, 8, layers=1, **sizes)
    return [recurrent, transformer, LanguageModel(8, layers=1, **sizes), Ensemble([recurrent, other])]


@pytest.fixture(scope="module", params=range(4), ids=["recurrent", "transformer", "language", "ensemble"])
def model(request: pytest.FixtureRequest) -> Any:
    return models()[request.param]


def check_refusal(call: Callable[[], object], *words: str) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message and all(word in message for word in words), message


INVALID_OPTIONS = [
    *((name, option, value) for name in CALLS for option in SIZES[name] for value in COUNT),
    *((name, option, value) for name in CALLS for option in NUMBERS[name] for value in NUMBER),
    *((name, option, None) for name in CALLS for option in {*SIZES[name]} & {"beam_size", "num_samples"}),
    *itertools.product(SEARCHES, ["min_length"], [-1, 2.5, True, "2", math.inf]),
    *itertools.product(["exhaustive", "exact_search"], ["time_limit"], [-1, math.nan, math.inf, "1", True]),
    *itertools.product(DRAWS, ["temperature"], [0, -1.0, 1e-301, math.nan, math.inf, "1", True]),
    *itertools.product(
        DRAWS, ["seeds"], [5, [1], [1, -1], [1, 2.5], [True, 1], ["1", "2"], [1, 2**64], "12", ZERO_DIM]
    ),
    *itertools.product(
        [*SEARCHES, "sample"], ["prefixes"], [4, "ab", [4, 5], [(4,), (5.5,)], [(4,), "a"], [(4,)], [ZERO_DIM]]
    ),
    *itertools.product([*SEARCHES, "sample"], ["prefixes"], [[(4,), (True,)], [(4,), (-4,)], [(4,), (8,)]]),
]


@pytest.mark.parametrize(("name", "option", "value"), INVALID_OPTIONS)
def test_errors_name_the_invalid_option_and_its_value(name: str, option: str, value: Any) -> None:
    words = [] if isinstance(value, list | str | Tensor) or value in (10**30, 10**400) else [str(value)]
    named = {"seeds": "seed", "prefixes": "prefix"}.get(option, option)
    check_refusal(lambda: CALLS[name](models()[0], SRC, LENGTHS, **{option: value}), named, *words)


WRONG_SOURCES = [
    (SRC + 4, LENGTHS, "symbols of src must be from 0 to 7, got 11"),
    (SRC - 5, LENGTHS, "symbols of src must be from 0 to 7, got -5"),
    (SRC.float(), LENGTHS, "src must be a tensor of int64 or int32, got float32"),
    (SRC.bool(), LENGTHS, "src must be a tensor of int64 or int32, got bool"),
    (SRC.tolist(), LENGTHS, "src must be a tensor"),
    (SRC[0], LENGTHS, "src must have shape [batch, src]"),
    (SRC, LENGTHS[:1], "src_lengths [batch], got [2, 3] and [1]"),
    (SRC, LENGTHS.unsqueeze(0), "got [2, 3] and [1, 2]"),
    (SRC, torch.tensor(3), "got [2, 3] and []"),
    (SRC, LENGTHS.float(), "src_lengths must be a tensor of integers, got float32"),
    (SRC, LENGTHS > 0, "src_lengths must be a tensor of integers, got bool"),
    (SRC, [3, 2], "src_lengths must be a tensor, got [3, 2]"),
    (SRC, LENGTHS + 1, "src_lengths must be from 0 to 3, the width of src, got [4, 3]"),
    (SRC, LENGTHS - 3, "got [0, -1]"),
]


@pytest.mark.parametrize(("src", "lengths", "word"), WRONG_SOURCES)
def test_wrong_sources_are_refused_by_every_search(model: Any, src: Any, lengths: Any, word: str) -> None:
    calls = [partial(call, model, src, lengths) for call in CALLS.values()]
    calls += [partial(call, model, src, lengths, TGT_IN, TGT_OUT) for call in SCORES.values()]
    for call in calls:
        check_refusal(call, word)


WRONG_TARGETS = [
    (TGT_IN + 7, TGT_OUT, "symbols of tgt_in must be from 0 to 7, got 12"),
    (TGT_IN - 2, TGT_OUT, "symbols of tgt_in must be from 0 to 7, got -2"),
    (TGT_IN, TGT_OUT + 7, "symbols of tgt_out must be from 0 to 7, got -93"),
    (TGT_IN, torch.where(TGT_OUT < 0, -100, TGT_OUT + 7), "symbols of tgt_out must be from 0 to 7, got 12"),
    (TGT_IN.float(), TGT_OUT, "tgt_in must be a tensor of int64 or int32, got float32"),
    (TGT_IN, TGT_OUT.double(), "tgt_out must be a tensor of int64 or int32, got float64"),
    (TGT_IN.tolist(), TGT_OUT, "tgt_in must be a tensor"),
    (TGT_IN[:1], TGT_OUT, "must both have shape [2, tgt]"),
]


@pytest.mark.parametrize(("tgt_in", "tgt_out", "word"), WRONG_TARGETS)
def test_scoring_functions_reject_wrong_targets(model: Any, tgt_in: Any, tgt_out: Any, word: str) -> None:
    for call in SCORES.values():
        check_refusal(partial(call, model, SRC, LENGTHS, tgt_in, tgt_out), word)


def test_other_integer_types_are_accepted(model: Any) -> None:
    """32-bit integers, NumPy numbers and one-element tensors are valid, as elsewhere in PyTorch."""
    (plain, *_), (narrow, *_) = (
        beam_search(model, SRC.to(dtype), LENGTHS.to(dtype), beam_size=size, prefixes=prefixes, max_length=4)
        for dtype, size, prefixes in (
            (torch.int64, 3, [(4,), (5,)]),
            (torch.int32, torch.tensor(3), torch.tensor([[4], [5]])),
        )
    )
    assert narrow == plain and all(type(token) is int for h in narrow.hypotheses for token in h.tokens)
    totals = [score(model, SRC, LENGTHS, TGT_IN.to(dtype), TGT_OUT.to(dtype)) for dtype in (torch.int64, torch.int32)]
    assert torch.equal(*totals)


def test_an_empty_batch_has_no_results(model: Any) -> None:
    src, lengths = SRC[:0], LENGTHS[:0]
    assert [list(call(model, src, lengths)) for call in CALLS.values()] == [[]] * len(CALLS)
    assert [list(call(model, src, lengths, TGT_IN[:0], TGT_OUT[:0])) for call in SCORES.values()] == [[], []]


def test_completions_check_their_arguments() -> None:
    vocabulary, source = Vocabulary("abcd"), (SRC[:1], LENGTHS[:1])
    typed = "a", Spellings(vocabulary), vocabulary.decode
    for option, value in [(o, v) for o in ("n_best", "longest") for v in COUNT]:
        check_refusal(lambda o=option, v=value: complete(models()[0], *source, *typed, **{o: v}), option)
    check_refusal(lambda: complete(models()[0], SRC[:1] + 4, LENGTHS[:1], *typed), "got 10")


def test_known_results_must_match_the_number_of_sources() -> None:
    results = beam_search(models()[0], SRC, LENGTHS, beam_size=1, max_length=3)
    call = partial(exhaustive, models()[0], SRC, LENGTHS, known=results[:1])
    check_refusal(call, "known", "got 1 results for 2 sources")
    for name in ("known", "prefixes"):
        with pytest.raises(TypeError, match=f"{name} must be a list .* got .*tensor"):
            exhaustive(models()[0], SRC, LENGTHS, **{name: torch.tensor(2)})
    assert sample(models()[0], SRC, LENGTHS, 1, temperature=2**80)


def test_a_budget_of_none_raises() -> None:
    model, source = RNNSeq2Seq(9, 8, d_model=8, output="sparsemax"), (torch.tensor([[4, 5]]), torch.tensor([2]))
    for search in (exhaustive, exact_search, partial(match, patterns=[])):
        with pytest.raises(TypeError, match="budget must be a whole number, got None"):
            search(model, *source, budget=None)


class Flat(OutputLayer):
    """An output layer with a temperature of 3."""

    def log_probs(self, scores: Tensor) -> Tensor:
        return super().log_probs(scores / 3)


@pytest.mark.parametrize("kind", [RNNSeq2Seq, partial(TransformerSeq2Seq, heads=2, d_ff=8)])
def test_searches_use_overridden_model_methods(kind: Any) -> None:
    model = kind(20, 7, d_model=8, output="sparsemax", forbidden=(0, 1, 3)).eval()
    source = torch.tensor([[4, 5, 6]]), torch.tensor([3])

    def same(*searches: Any) -> None:
        found = [search(model, *source, max_length=2)[0].best for search in searches]
        assert all(best.tokens == found[0].tokens and best.prob == pytest.approx(found[0].prob) for best in found)

    plain = model.step

    def step(state: Any, token: Tensor) -> Any:
        result = plain(state, token)
        result.scores[:, 5] = -torch.inf
        return result

    model.step = step
    for search in (beam_search, exact_search, exhaustive):
        (result,) = search(model, *source, max_length=2)
        assert result.hypotheses and not any(5 in h.tokens for h in result.hypotheses)
    del model.step
    model.output.__class__ = Flat
    same(exhaustive, beam_search, exact_search)
    model.output.__class__ = OutputLayer
    model.output.log_probs = lambda scores: OutputLayer.log_probs(model.output, scores / 3)
    same(exhaustive, beam_search, exact_search)
