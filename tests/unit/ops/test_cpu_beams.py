"""Tests of compiled beam search bookkeeping against the Python reference, on hundreds of random searches."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch

from tsallis.ops import cpu
from tsallis.ops.arguments import BeamLimits, BeamOptions, BestSymbols

pytestmark = pytest.mark.skipif(not cpu.status().available, reason=f"needs kernel: {cpu.status().reason}")

SYMBOLS = 6
FIRST = 1  # the start token of all prefixes


def random_options(chance: random.Random) -> BeamOptions:
    size = chance.choice((1, 2, 3, 5, 8))
    n_best = chance.choice((None, 1, 2, 4))
    return BeamOptions(
        size=size,
        n_best=n_best or size,
        num_recorded=0 if n_best is None else n_best + 1,
        length_penalty=chance.choice((0.0, 0.0, 0.6, 1.0)),
        competing_ends=chance.random() < 0.4,
    )


def random_limits(chance: random.Random) -> BeamLimits:
    prefix = tuple(chance.randrange(SYMBOLS) for _ in range(chance.choice((0, 0, 1, 3))))
    return BeamLimits(chance.randrange(max(len(prefix), 1), 9) + 1, max(len(prefix), chance.choice((0, 0, 2))), prefix)


def random_step(chance: random.Random, rows: int, count: int, ties: bool) -> BestSymbols:
    """Draw log-probabilities, many of them -inf; with `ties`, only three finite values occur."""

    def draw() -> float:
        if chance.random() < 0.3:
            return -math.inf
        return -chance.choice((0.5, 1.0, 2.0)) if ties else -chance.expovariate(0.7)

    best = [sorted((draw() for _ in range(min(count, SYMBOLS))), reverse=True) for _ in range(rows)]
    symbols = [chance.sample(range(SYMBOLS), min(count, SYMBOLS)) for _ in range(rows)]
    if ties:
        symbols = [sorted(row) for row in symbols]
    return BestSymbols(
        torch.tensor(best, dtype=torch.float64),
        torch.tensor(symbols),
        torch.tensor([draw() for _ in range(rows)], dtype=torch.float64),
        torch.tensor([chance.randrange(9) for _ in range(rows)]),
        torch.ones(rows, dtype=torch.float64),
    )


def compiled_and_reference(limits: list[BeamLimits], options: BeamOptions) -> tuple[Any, Any]:
    from tsallis.ops.cpu.beams import Beams
    from tsallis.ops.eager.beams import Beams as Reference

    return Beams(limits, options, FIRST), Reference(limits, options, FIRST)


def numbers(x: torch.Tensor | None) -> Any:
    return None if x is None else x.tolist()


@pytest.mark.parametrize("seed", range(4))
def test_searches_match_the_reference(seed: int) -> None:
    """Check that all steps and outcomes are equal bit for bit: prefixes, parents, forced symbols, and bounds."""
    finished, gave_up = 0, set()
    for number in range(100):
        chance = random.Random(1000 * seed + number)
        options, limits = random_options(chance), [random_limits(chance) for _ in range(chance.choice((1, 2, 5)))]
        ours, reference = compiled_and_reference(limits, options)
        ties, searching = chance.random() < 0.5, True
        while searching:
            tokens = reference.tokens()
            assert torch.equal(ours.tokens(), tokens)
            forced = reference.forced()
            assert (numbers(ours.forced()) or [-1] * len(tokens)) == (numbers(forced) or [-1] * len(tokens))
            step = random_step(chance, len(tokens), options.size + 1, ties)
            attended = torch.tensor([chance.randrange(5) for _ in tokens])
            searching = reference.follow(step, attended)
            assert ours.follow(step, attended) == searching
            if searching:
                assert torch.equal(ours.parents(), reference.parents())
        outcome = reference.outcome()
        assert ours.outcome() == outcome
        assert reference.nan_source is None and ours.nan_source is None
        finished += sum(map(len, outcome.ends))
        gave_up |= set(outcome.gave_up)
    assert finished > 100 and gave_up == {False, True}


def test_the_first_source_with_nan_is_reported() -> None:
    options = BeamOptions(size=2, n_best=2, num_recorded=0, length_penalty=0.0)
    for wrong, source in (((4, 3), 1), ((0,), 0), ((), None)):
        for beams in compiled_and_reference([BeamLimits(5, 0, ())] * 3, options):
            step = random_step(random.Random(0), 3, 3, ties=False)._replace(
                log_probs=torch.tensor([[-0.5, -1.0, -2.0]] * 3, dtype=torch.float64)
            )
            assert beams.follow(step, torch.ones(3, dtype=torch.long))
            assert beams.tokens().shape == (6,)
            step = random_step(random.Random(1), 6, 3, ties=False)
            step.mass[list(wrong)] = math.nan
            beams.follow(step, torch.ones(6, dtype=torch.long))
            assert beams.nan_source == source


def test_searches_continue_when_their_memory_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tsallis.ops.cpu.beams.STEPS_AT_ONCE", 1)
    options = BeamOptions(size=3, n_best=3, num_recorded=0, length_penalty=0.0)
    ours, reference = compiled_and_reference([BeamLimits(9, 0, ())] * 2, options)
    chance, searching, steps = random.Random(3), True, 0
    while searching:
        rows, steps = len(reference.tokens()), steps + 1
        step, attended = random_step(chance, rows, 4, ties=False), torch.ones(rows, dtype=torch.long)
        searching = reference.follow(step, attended)
        assert ours.follow(step, attended) == searching
    assert steps > 4 and ours.outcome() == reference.outcome()
