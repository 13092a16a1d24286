"""Searches agree on the possible outputs and their probabilities, from tiny probabilities to scores of 3e38."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from exact_logs import exact_logs
from tsallis.models.protocol import Step
from tsallis.models.spellings import Spellings
from tsallis.nn import OutputLayer
from tsallis.ops.choice import backend
from tsallis.search import (
    Ensemble,
    beam_search,
    complete,
    exact_search,
    exhaustive,
    next_characters,
    sample,
    score,
    score_tokens,
)
from tsallis.search.certificate import LARGE_SCORES, Certificate, Hypothesis, Result
from tsallis.search.spelling import score_texts
from tsallis.symbols import BOS, EOS, PAD
from tsallis.toolkit.evaluation.outputs import describe_result
from unit.search.test_next_characters import Pieces

VOCAB, LONGEST, SOURCE = 5, 3, 4
Tokens = tuple[int, ...]


@dataclass
class Prefixes:
    rows: list[Tokens | None]  # None: before the start

    def select(self, index: Tensor) -> Prefixes:
        return Prefixes([self.rows[i] for i in index.tolist()])

    @staticmethod
    def join(states: list[Prefixes]) -> Prefixes:
        return Prefixes([row for state in states for row in state.rows])


class RandomScores:
    """A decoder with random float32 scores for every prefix, and an output layer."""

    def __init__(self, output: Any, seed: int, scale: float = 1.0, offset: float = 0.0, ends: bool = False) -> None:
        self.output, self.seed, self.scale, self.offset, self.ends = output, seed, scale, offset, ends

    def scores_of(self, prefix: Tokens) -> list[float]:
        chance = random.Random(f"{self.seed} {prefix}")
        scores = [self.offset + self.scale * chance.gauss(0, 1) for _ in range(VOCAB)]
        scores[PAD] = scores[BOS] = -math.inf
        if len(prefix) == LONGEST or (self.ends and prefix):
            scores = [self.offset if token == EOS else -math.inf for token in range(VOCAB)]
        rounded: list[float] = torch.tensor(scores, dtype=torch.float32).tolist()
        return rounded

    def encode(self, src: Tensor, src_lengths: Tensor) -> int:
        return len(src)

    def start(self, memory: int) -> Prefixes:
        return Prefixes([None] * memory)

    def step(self, state: Prefixes, token: Tensor) -> Step:
        rows = [() if row is None else (*row, t) for row, t in zip(state.rows, token.tolist(), strict=True)]
        scores = torch.tensor([self.scores_of(row) for row in rows], dtype=torch.float32)
        return Step(scores, torch.ones(len(rows), 1), Prefixes(list(rows)))

    def enumerate(self) -> dict[Tokens, float]:
        """Return every possible output with its log-probability, computed with many digits."""
        outputs: dict[Tokens, float] = {}
        open_prefixes: list[tuple[Tokens, float]] = [((), 0.0)]
        tau = self.output.tau if self.output.transform == "alpha_relu" else None
        for prefix, total in open_prefixes:
            for token, log_prob in enumerate(exact_logs(self.scores_of(prefix), self.output.alpha, tau)):
                if log_prob == -math.inf:
                    continue
                if token == EOS:
                    outputs[prefix] = total + log_prob
                else:
                    open_prefixes.append(((*prefix, token), total + log_prob))
        return outputs


def source() -> tuple[Tensor, Tensor]:
    return torch.tensor([[SOURCE]]), torch.tensor([1])


def near(value: float, other: float) -> bool:
    return value == pytest.approx(other, rel=1e-6, abs=1e-30)


def log_probs(result: Result) -> dict[Tokens, float]:
    return {h.tokens: h.log_prob for h in result.hypotheses}


def score_of(model: Any, tokens: Tokens) -> float:
    return float(score(model, *source(), torch.tensor([[BOS, *tokens]]), torch.tensor([[*tokens, EOS]])))


def all_searches(model: Any) -> dict[str, Result]:
    searches = {
        "beam": lambda: beam_search(model, *source(), beam_size=30, max_length=LONGEST),
        "exhaustive": lambda: exhaustive(model, *source(), max_length=LONGEST),
        "exact": lambda: exact_search(model, *source(), n_best=30, beam_size=1, max_length=LONGEST),
    }
    return {name: search()[0] for name, search in searches.items()}


@pytest.mark.parametrize("kernels", ["auto", "eager"])
@pytest.mark.parametrize(
    ("alpha", "gap"), [(1.05, 19.75), (1.02, 40.0), (1.1, 9.9985), (1.0001, 200.0), (1.2, 4.99998)]
)
def test_outputs_below_the_float32_range_stay_possible(kernels: str, alpha: float, gap: float) -> None:
    class TwoOutputs(RandomScores):
        def scores_of(self, prefix: Tokens) -> list[float]:
            end = [-math.inf, -math.inf, 0.0, -math.inf, -math.inf]
            return end if prefix else torch.tensor([*end[:3], -gap, -math.inf]).tolist()

    with backend(kernels):
        model = TwoOutputs(OutputLayer(2, VOCAB, "entmax", alpha), 0)
        truth = model.enumerate()
        assert truth.keys() == {(), (3,)} and truth[3,] < -60
        for result in all_searches(model).values():
            assert result.certificate.kind == "complete" and log_probs(result).keys() == truth.keys()
            assert near(log_probs(result)[3,], truth[3,])
        assert near(score_of(model, (3,)), truth[3,])
        assert near(score_of(Ensemble([model, model]), (3,)), truth[3,])


MAPS = [("softmax", 1.0), ("entmax", 1.01), ("entmax", 1.1), ("entmax", 1.5), ("sparsemax", 2.0), ("alpha_relu", 1.5)]


@pytest.mark.parametrize("kernels", ["auto", "eager"])
@pytest.mark.parametrize(("transform", "alpha"), MAPS)
def test_searches_agree_with_an_enumeration(kernels: str, transform: str, alpha: float) -> None:
    with backend(kernels):
        for seed, (scale, offset) in enumerate(
            [(1, 0), (0.01, 0), (10, 0), (1, 1e6), (1e5, 0), (3, -1e17), (5e37, 1e38)]
        ):
            model = RandomScores(OutputLayer(2, VOCAB, transform, alpha, tau=-0.2), seed, scale, offset)
            truth = model.enumerate()
            large = max(max(map(abs, filter(math.isfinite, model.scores_of(())))), offset) >= 2**23
            for name, result in all_searches(model).items():
                found = log_probs(result)
                assert found.keys() == truth.keys() if name != "exact" else found.keys() <= truth.keys(), (name, seed)
                assert all(near(found[tokens], truth[tokens]) for tokens in found), (name, seed)
                assert result.certificate.kind == ("none" if large and truth else "complete"), (name, seed, offset)
                assert (result.certificate.reason is not None) == bool(large and truth)
                assert result.mass <= 1 or transform == "alpha_relu"
            assert all(near(score_of(model, tokens), log_prob) for tokens, log_prob in truth.items())
            for draw in sample(model, *source(), 5, max_length=LONGEST, seeds=[seed])[0]:
                assert draw is None or near(draw.log_prob, truth[draw.tokens])


@pytest.mark.parametrize("kernels", ["auto", "eager"])
@pytest.mark.parametrize(("transform", "alpha"), [("softmax", 1.0), ("entmax", 1.5), ("alpha_relu", 1.5)])
@pytest.mark.parametrize("offset", [1e17, -1e17, 3e38])
def test_scores_that_float32_cannot_tell_apart_prove_nothing(
    kernels: str, transform: str, alpha: float, offset: float
) -> None:
    with backend(kernels):
        layer = OutputLayer(2, VOCAB, transform, alpha, tau=-1e30 if offset < 0 and transform == "alpha_relu" else 0.0)
        large, small = RandomScores(layer, 1, 0.5, offset), RandomScores(layer, 1, 0.5)
        for model in (large, Ensemble([small, large]), Ensemble([Ensemble([large])])):
            for name, result in all_searches(model).items():
                assert result.certificate.kind == "none" and result.certificate.reason == LARGE_SCORES, name
                assert result.proven == () and result.truncated(1).certificate.reason == LARGE_SCORES
                assert 0 < result.mass <= 1 or transform == "alpha_relu"
                content = describe_result(result, Names())
                assert content["certificate"] == "none" and content["reason"] == LARGE_SCORES
        assert beam_search(large, *source(), beam_size=30, n_best=2, max_length=LONGEST)[0].certificate.kind == "none"
        assert beam_search(large, *source(), beam_size=1, max_length=LONGEST)[0].certificate.kind == "none"


class Names:
    def decode(self, tokens: Tokens) -> str:
        return str(tokens)


@pytest.mark.parametrize("kernels", ["auto", "eager"])
def test_scores_without_fractional_digits_prove_nothing(kernels: str) -> None:
    class Converted(RandomScores):
        dtype = torch.float32

        def step(self, state: Prefixes, token: Tensor) -> Step:
            step = super().step(state, token)
            return step._replace(scores=step.scores.to(self.dtype))

    with backend(kernels):
        limits = {torch.float32: 2**23, torch.float16: 2**10, torch.bfloat16: 2**7, torch.float64: 2**52}
        for dtype, limit in limits.items():
            for offset, kind in ((limit / 2, "complete"), (limit, "none")):
                model = Converted(OutputLayer(2, VOCAB, "entmax", 1.5), 0, 0.0, offset, ends=True)
                model.dtype = dtype
                for name, result in all_searches(model).items():
                    assert result.certificate.kind == kind, (dtype, offset, name)


@pytest.mark.parametrize(("transform", "alpha"), [("softmax", 1.0), ("entmax", 1.5), ("alpha_relu", 1.5)])
def test_after_a_dead_end_every_symbol_is_excluded(transform: str, alpha: float) -> None:
    model = RandomScores(OutputLayer(2, VOCAB, transform, alpha, tau=0.1), 0, offset=-math.inf)
    (scored,) = score_tokens(model, *source(), torch.tensor([[BOS, 4]]), torch.tensor([[4, EOS]]))
    assert scored.exclusion is not None and scored.exclusion.gap == math.inf and scored.exclusion.support == 0


def test_large_scores_of_impossible_symbols_are_ignored() -> None:
    class Masked(RandomScores):
        def scores_of(self, prefix: Tokens) -> list[float]:
            return [-3e38, -1e9, *super().scores_of(prefix)[2:]]

    model = Masked(OutputLayer(2, VOCAB, "entmax", 1.5), 0)
    assert {result.certificate.kind for result in all_searches(model).values()} == {"complete"}


def test_large_scores_in_known_results_prevent_a_proof() -> None:
    model = RandomScores(OutputLayer(2, VOCAB, "entmax", 1.5), 0)
    known = Result((Hypothesis((), -1e-9, (1,), (1,)),), Certificate("none", -math.inf, LARGE_SCORES))
    (result,) = exhaustive(model, *source(), known=[known], n_best=1, max_length=LONGEST)
    assert result.certificate.kind == "none" and result.certificate.reason == LARGE_SCORES


def test_the_mass_of_a_normalized_model_is_at_most_1() -> None:
    hypotheses = tuple(Hypothesis((k,), math.log(1 / 3) + 1e-12, (3,), (1,)) for k in (4, 5, 6))
    certificate = Certificate("complete", -math.inf)
    assert Result(hypotheses, certificate).mass == 1
    assert Result(hypotheses, certificate, normalized=False).mass > 1
    huge = tuple(Hypothesis((k,), 1e4, (3,), (1,)) for k in (4, 5))
    assert math.isfinite(Result(huge, certificate, normalized=False).mass)


class LargeForSomeSources(RandomScores):
    """Random scores, plus 1e9 for the sources that begin with SOURCE + 1."""

    def encode(self, src: Tensor, src_lengths: Tensor) -> list[int]:  # type: ignore[override]
        return [int(first) for first in src[:, 0]]

    def start(self, memory: list[int]) -> Prefixes:  # type: ignore[override]
        return Prefixes([(first,) for first in memory])

    def step(self, state: Prefixes, token: Tensor) -> Step:
        rows = [(*row, t) for row, t in zip(state.rows, token.tolist(), strict=True) if row is not None]
        scores = torch.tensor([self.scores_of(row[2:]) for row in rows], dtype=torch.float32)
        scores += torch.tensor([[1e9 * (row[0] > SOURCE)] for row in rows])
        return Step(scores, torch.ones(len(rows), 1), Prefixes(list(rows)))


@pytest.mark.parametrize("order", [[0, 1], [1, 0], [0, 1, 0]])
def test_large_scores_of_a_source_do_not_affect_other_sources(order: list[int]) -> None:
    model = LargeForSomeSources(OutputLayer(4, VOCAB, "sparsemax"), seed=3)
    src = torch.tensor([[SOURCE + large] for large in order])
    results = exhaustive(model, src, torch.ones(len(order), dtype=torch.long), max_length=LONGEST)
    for large, result in zip(order, results, strict=True):
        assert (result.certificate.kind == "complete") == (not large), result.certificate


@pytest.mark.parametrize("offset", [2.0**22, 2.0**23])
def test_completions_of_large_scores_prove_nothing(offset: float) -> None:
    class Scores(RandomScores):
        def scores_of(self, prefix: Tokens) -> list[float]:
            """Only symbol 4 follows the start."""
            scores = super().scores_of(prefix)
            return scores if prefix else [*scores[:4], self.offset + 100]

    model = Scores(OutputLayer(2, VOCAB, "entmax", 1.5), 0, 1.0, offset, ends=True)
    spellings = Spellings(Pieces([b"", b"", b"", b"?", b"a"]))
    completions = complete(model, *source(), "", spellings, str)
    distinct = offset < 2**23
    assert completions.certain == ((4,) if distinct else ()) and completions.missing == (0 if distinct else 1)
    assert completions.possible
    assert next_characters(model, *source(), "", spellings).missing == (0 if distinct else 1)
    (scored,) = score_texts(model, *source(), ["?"], spellings)
    assert scored.possible is (False if distinct else None) and scored.missing == (0 if distinct else 1)


@pytest.mark.parametrize("kernels", ["auto", "eager"])
def test_infinite_probabilities_are_refused(kernels: str) -> None:
    class Infinite(RandomScores):
        def scores_of(self, prefix: Tokens) -> list[float]:
            return [*super().scores_of(prefix)[:3], math.inf, 1.0]

    model = Infinite(OutputLayer(2, VOCAB, "alpha_relu", 1.5, tau=0.1), 0)
    with backend(kernels):
        for search in (beam_search, exhaustive, exact_search):
            with pytest.raises(ValueError, match="probabilities are infinite or NaN for source 0"):
                search(model, *source(), max_length=2)
