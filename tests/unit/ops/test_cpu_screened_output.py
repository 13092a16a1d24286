"""Tests of compiled decoders that scan the output layer in 8 bits, against steps that compute all scores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from compiled_models import same_whole_search, sources
from instruction_sets import instructions
from tsallis.models import RNNSeq2Seq, TransformerSeq2Seq
from tsallis.ops import cpu
from tsallis.ops.cpu import decoding
from tsallis.search import Ensemble, beam_search

__all__ = ["instructions"]

pytestmark = pytest.mark.skipif(not cpu.status().available, reason=f"needs kernel: {cpu.status().reason}")

SYMBOLS = 700
MODELS: dict[str, dict[str, Any]] = {
    "1.5-entmax": {"norm": "pre", "attention": "softmax"},
    "sparsemax": {"norm": "post", "attention": "learned", "output": "sparsemax"},
    "1.2-entmax, shared": {"norm": "pre", "attention": "softmax", "output_alpha": 1.2, "share": "target"},
    "lstm": {"attention": "entmax", "d_model": 200},
    "gru": {"cell": "gru", "output": "sparsemax"},
}


@pytest.fixture(autouse=True)
def scan_small_layers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(decoding, "MIN_SCANNED", 1)
    monkeypatch.setattr(decoding, "SCANNED_ROWS", 5)
    with torch.no_grad():
        yield


def make(name: str = "1.5-entmax", factor: float = 8, seed: int = 0, **options: Any) -> Any:
    torch.manual_seed(seed)
    options = {**MODELS[name], **options}
    if "norm" in options:
        model = TransformerSeq2Seq(20, SYMBOLS, **{"d_model": 32, "heads": 2, "layers": 1, "d_ff": 40, **options})
    else:
        model = RNNSeq2Seq(20, SYMBOLS, **{"d_model": 22, **options})
    model.output.projection.weight.data = torch.randn_like(model.output.projection.weight) * factor / 20
    model.output.projection.bias.data = torch.randn_like(model.output.projection.bias) * factor / 20
    return model.eval()


def best_symbols(state: Any, scan: bool, **options: Any) -> list[Tensor]:
    """Return the best symbols of a step, with or without a scan."""
    rows, positions = len(state.rows), state.positions and state.positions.first(8)
    with pytest.MonkeyPatch.context() as patch:
        if not scan:
            patch.setattr(decoding, "SCANNED_ROWS", 0)
        result = state.decoder.step(state.rows, torch.arange(4, 4 + rows), positions, count=6, end=2, **options)
    return [*result.best]


def start(model: Any, rows: int = 5) -> tuple[Any, Tensor]:
    """Return a state and its counter of steps until the scan resumes."""
    state = model.start(model.encode(*sources(rows)))
    assert state.decoder.screen(5)
    return state, state.decoder.screened[0].pauses


def assert_equal(ours: list[Tensor], theirs: list[Tensor]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-13, atol=1e-13, equal_nan=True)


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("name", MODELS)
def test_scanned_symbols_match_those_of_all_scores(name: str, rows: int) -> None:
    state, pauses = start(make(name), rows)
    pauses.fill_(2)
    paused = best_symbols(state, True)
    pauses.fill_(0)
    scanned, dense = best_symbols(state, True), best_symbols(state, False)
    assert pauses.item() == 0
    assert_equal(scanned, dense)
    assert_equal(paused, dense)
    assert dense[3].sum() < rows * SYMBOLS / 4 and (rows == 1 or dense[3].sum() > rows)
    for only in (torch.arange(rows) * 3, dense[1][:, 0]):
        assert_equal(best_symbols(state, True, only=only), best_symbols(state, False, only=only))


def test_flat_scores_pause_the_scan() -> None:
    state, pauses = start(make(factor=0.01), 1)
    for step in range(18):
        assert_equal(best_symbols(state, True), best_symbols(state, False))
        assert pauses.item() == (16 - step) % 17


def test_memory_after_the_scores_is_ignored() -> None:
    model = make("lstm")
    model.decoder.bias_ih_l1.fill_(1e3)  # such large gates are stored after the scores, in the same memory
    state, _ = start(model, 1)
    assert_equal(best_symbols(state, True), best_symbols(state, False))


def test_many_rows_and_steps_with_all_scores_skip_the_scan() -> None:
    for rows, options, left in ((6, {}, 9), (5, {"scores": True}, 9), (5, {}, 4)):
        state, pauses = start(make(), rows)
        pauses.fill_(9)
        best_symbols(state, True, **options)
        assert pauses.item() == left


@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("where", ["weight", "bias"])
def test_non_finite_weights_and_biases_match_all_scores(where: str, number: float) -> None:
    model = make()
    getattr(model.output.projection, where).data.view(-1)[200] = number
    state, _ = start(model)
    assert_equal(best_symbols(state, True), best_symbols(state, False))


def test_unsupported_or_small_layers_are_not_scanned(monkeypatch: pytest.MonkeyPatch) -> None:
    for options in ({"output": "softmax"}, {"output": "alpha_relu"}):
        model = make(**options)
        assert model.start(model.encode(*sources())).decoder.screen(1) is None
    decoder = make().start(make().encode(*sources())).decoder
    assert decoder.screen(5) and decoder.screen(6) is None
    monkeypatch.setattr(decoding, "MIN_SCANNED", 32 * SYMBOLS + 1)
    assert decoder.screen(1) is None


@pytest.mark.parametrize("name", ["1.5-entmax", "lstm"])
def test_beam_search_with_scan_matches_dense(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    same_whole_search(make(name), monkeypatch)
    models, one = [make(name, seed=seed) for seed in range(2)], sources(1)
    scanned = beam_search(models[0], *one), beam_search(Ensemble(models), *one)
    monkeypatch.setattr(decoding, "MIN_SCANNED", 1 << 40)
    models = [make(name, seed=seed) for seed in range(2)]
    dense = beam_search(models[0], *one), beam_search(Ensemble(models), *one)
    for ours, theirs in zip(scanned, dense, strict=True):
        for a, b in zip(ours[0].hypotheses, theirs[0].hypotheses, strict=True):
            assert a.tokens == b.tokens
            assert a.log_prob == pytest.approx(b.log_prob, abs=1e-12)


def test_a_changed_weight_is_encoded_again() -> None:
    model = make()
    state, _ = start(model)
    before = best_symbols(state, True)
    model.output.projection.weight.mul_(-1)
    state, _ = start(model)
    after = best_symbols(state, True)
    assert not torch.equal(before[1], after[1])
    assert_equal(after, best_symbols(state, False))
