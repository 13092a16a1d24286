"""Checks of compiled searches that apply to every kind of model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tsallis.search import beam_search

SEARCHES: list[dict[str, Any]] = [
    {"beam_size": 1},
    {"beam_size": 5, "n_best": 1, "keep_attention": True},
    {"beam_size": 3, "prefixes": [(5,), (), (6, 7), (8,), (), (9,)], "min_length": 2, "length_penalty": 0.7},
    {"beam_size": 60, "max_length": 3},
    {"beam_size": 2, "end_rule": "competing"},
]


def sources(batch: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(1, 9, (batch,), generator=generator)
    return torch.randint(4, 20, (batch, int(lengths.max())), generator=generator), lengths


def same_step(model: Any, states: tuple[Any, Any], token: Tensor) -> tuple[Any, Any]:
    """Run one compiled and one plain step; check that they agree and return both states."""
    ours, plain = (model.step(state, token) for state in states)
    torch.testing.assert_close(ours.scores, plain.scores, atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(ours.attention, plain.attention, atol=2e-6, rtol=1e-5)
    return ours.state, plain.state


def independent_steps(model: Any, state: Any) -> None:
    """Check that one state allows several steps, and that rows do not depend on each other."""
    token = torch.arange(4, 10)
    whole, other, again = (model.step(state, one).scores for one in (token, token + 1, token))
    assert torch.equal(whole, again) and not torch.equal(whole, other)
    for i in range(6):
        assert torch.equal(model.step(state.select(torch.tensor([i])), token[i : i + 1]).scores[0], whole[i])


def same_best_symbols(model: Any, state: Any) -> None:
    """Check that the best symbols of a step are the ones with the best scores."""
    token, only = torch.ones(6, dtype=torch.long), torch.tensor([-1, 7, -1, 8, -1, -1])
    step = model.step(state, token)
    for symbols, keep in ((None, True), (only, False)):
        ours = model.step_best(state, token, 4, 2, symbols, keep)
        theirs = model.output.best_symbols(step.scores, 4, 2, symbols)
        for one, other in zip(ours.best, theirs, strict=True):
            torch.testing.assert_close(one.double(), other.double(), atol=1e-9, rtol=0)
        assert ours.num_attended.tolist() == (step.attention > 0).sum(-1).tolist()
        assert ours.attention is None or torch.equal(ours.attention, step.attention)
        assert (ours.attention is None) != keep


def same_whole_search(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a search in one call gives the same results as a search step by step, bit for bit."""
    src, lengths = sources()
    for search in SEARCHES:
        whole = beam_search(model, src, lengths, **search)
        with monkeypatch.context() as patch:
            patch.setattr("tsallis.ops.cpu.decoding.CACHE_NUMBERS", 1)
            parts = beam_search(model, src, lengths, **search)
            patch.setattr("tsallis.ops.cpu.decoding.BEST_NUMBERS", 0)
            steps = beam_search(model, src, lengths, **search)
        assert parts == whole and steps == whole
        for one, other in zip(whole, steps, strict=True):
            for a, b in zip(one.hypotheses, other.hypotheses, strict=True):
                assert (a.attention is None) == (b.attention is None) == ("keep_attention" not in search)
                assert a.attention is None or torch.equal(a.attention, b.attention)
