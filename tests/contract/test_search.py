"""What every search promises: no certificate that brute-force enumeration would refute, for any model and map."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from contract.tables import random_table
from contract.tables import sources as table_sources
from tsallis.data.batching import make_batch
from tsallis.models import RNNSeq2Seq
from tsallis.search import Ensemble, beam_search, exhaustive, sample, score
from tsallis.special_symbols import EOS

SYMBOLS = 3
LONGEST = 4
TRANSFORMS = [("softmax", 1.0), ("entmax", 1.3), ("entmax", 1.5), ("sparsemax", 2.0), ("alpha_relu", 1.5)]


def random_model(transform: str, alpha: float, seed: int, sharpness: float = 12.0) -> RNNSeq2Seq:
    torch.manual_seed(seed)
    model = RNNSeq2Seq(8, 4 + SYMBOLS, 8, 1, 0.0, output=transform, output_alpha=alpha, tau=-0.2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.mul_(sharpness if name.startswith("output") else 8)
    return model.double()


def sources(seed: int, count: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 5, (count,), generator=generator)
    src = torch.randint(4, 8, (count, int(lengths.max())), generator=generator)
    return src.masked_fill(torch.arange(src.shape[1]) >= lengths.unsqueeze(1), 0), lengths


def enumerate_all(model, src: torch.Tensor, lengths: torch.Tensor) -> list[dict[tuple[int, ...], float]]:
    """Every output of at most LONGEST symbols with its log-probability, by scoring all of them."""
    outputs = [o for n in range(LONGEST + 1) for o in itertools.product(range(4, 4 + SYMBOLS), repeat=n)]
    result = []
    for i in range(src.shape[0]):
        count = int(lengths[i])
        batch = make_batch([src[i, :count].tolist()] * len(outputs), outputs, range(len(outputs)))
        scores = score(model, batch.src, batch.src_lengths, batch.tgt_in, batch.tgt_out).tolist()
        result.append({o: s for o, s in zip(outputs, scores, strict=True) if s > -math.inf})
    return result


def check(result, truth: dict[tuple[int, ...], float], normalized: bool) -> None:
    for hypothesis in result.hypotheses:
        assert hypothesis.log_prob == pytest.approx(truth[hypothesis.tokens], abs=1e-9)
        assert len(hypothesis.support) == len(hypothesis.num_attended) == len(hypothesis.tokens) + 1
    logs = [h.log_prob for h in result.hypotheses]
    assert logs == sorted(logs, reverse=True)
    assert len({h.tokens for h in result.hypotheses}) == len(logs)
    best = max(truth.values(), default=-math.inf)
    kind, bound = result.certificate.kind, result.certificate.bound
    if kind == "complete":
        assert {h.tokens for h in result.hypotheses} == set(truth)
        if normalized:
            assert result.mass == pytest.approx(1, abs=1e-9)
    elif kind == "optimal":
        assert logs[0] == pytest.approx(best, abs=1e-9)
    elif kind == "bounded":
        assert normalized and logs[0] < bound and best <= bound + 1e-9
    else:
        assert not normalized or not logs
    ranks = sorted(truth.values(), reverse=True)
    for hypothesis, rank in zip(result.proven, ranks, strict=False):
        assert hypothesis.log_prob == pytest.approx(rank, abs=1e-9)
    if normalized:
        missing = [s for o, s in truth.items() if o not in {h.tokens for h in result.hypotheses}]
        assert max(missing, default=-math.inf) <= bound + 1e-9


@pytest.mark.parametrize(("transform", "alpha"), TRANSFORMS)
@pytest.mark.parametrize("seed", range(3))
def test_no_certificate_is_refuted_by_enumeration(transform: str, alpha: float, seed: int) -> None:
    model = random_model(transform, alpha, seed)
    src, lengths = sources(seed)
    truth = enumerate_all(model, src, lengths)
    for beam_size in (1, 2, 5, 30, 200):
        for result, known in zip(
            beam_search(model, src, lengths, beam_size=beam_size, max_length=LONGEST), truth, strict=True
        ):
            check(result, known, model.output.normalized)
    for budget in (1, 3, 10, 10_000):
        for result, known in zip(
            exhaustive(model, src, lengths, budget=budget, max_length=LONGEST), truth, strict=True
        ):
            check(result, known, model.output.normalized)


@pytest.mark.parametrize(("transform", "alpha"), TRANSFORMS)
@pytest.mark.parametrize("seed", range(8))
def test_no_certificate_is_refuted_by_a_written_table(transform: str, alpha: float, seed: int) -> None:
    """Against an enumeration that shares nothing with the searches: neither model, nor steps, nor scoring."""
    src, lengths = table_sources(0, 1, 2)
    for limit in (1, 2, 5):
        model = random_table(transform, alpha, seed)
        truth = [model.enumerate(source, limit) for source in range(3)]
        for size, n_best in ((1, None), (2, 1), (3, None), (4, 2), (5, 5)):
            actual = beam_search(model, src, lengths, beam_size=size, n_best=n_best, max_length=limit)
            for result, known in zip(actual, truth, strict=True):
                check(result, known, model.output.normalized)
        for budget, n_best in ((1, None), (7, None), (40, 2), (40, None), (10_000, None), (10_000, 3)):
            actual = exhaustive(model, src, lengths, budget=budget, n_best=n_best, max_length=limit)
            for result, known in zip(actual, truth, strict=True):
                check(result, known, model.output.normalized)


def test_certificates_of_every_kind_are_met() -> None:
    kinds = set()
    for seed in range(6):
        for transform, alpha in TRANSFORMS:
            model = random_model(transform, alpha, seed)
            for size in (1, 3):
                results = beam_search(model, *sources(seed), beam_size=size, max_length=LONGEST)
                kinds |= {(r.certificate.kind, model.output.normalized) for r in results}
    assert {("complete", True), ("optimal", True), ("bounded", True), ("none", True)} <= kinds
    assert ("optimal", False) not in kinds and ("bounded", False) not in kinds


@pytest.mark.parametrize(("transform", "alpha"), TRANSFORMS)
def test_a_batch_is_its_sources_one_by_one(transform: str, alpha: float) -> None:
    model = random_model(transform, alpha, 5)
    src, lengths = sources(5, 6)
    whole = beam_search(model, src, lengths, max_length=LONGEST, beam_size=3)
    for i, result in enumerate(whole):
        (alone,) = beam_search(model, src[i : i + 1, : lengths[i]], lengths[i : i + 1], max_length=LONGEST, beam_size=3)
        assert [h.tokens for h in alone.hypotheses] == [h.tokens for h in result.hypotheses]
        assert alone.certificate.kind == result.certificate.kind
        assert alone.certificate.bound == pytest.approx(result.certificate.bound, abs=1e-9)


def test_exhaustive_lists_in_order_and_proves_the_best_it_is_asked_for() -> None:
    model = random_model("softmax", 1.0, 3)
    src, lengths = sources(3)
    truth = enumerate_all(model, src, lengths)
    for result, known in zip(exhaustive(model, src, lengths, n_best=3, max_length=LONGEST), truth, strict=True):
        expected = sorted(known, key=known.__getitem__, reverse=True)[:3]
        assert [h.tokens for h in result.hypotheses] == expected
        assert result.certificate.kind == "optimal"


def test_attention_is_kept_on_request() -> None:
    model = random_model("entmax", 1.5, 1)
    src, lengths = sources(1)
    for search in (beam_search, exhaustive):
        plain = search(model, src, lengths, max_length=LONGEST)
        saved = search(model, src, lengths, max_length=LONGEST, keep_attention=True)
        for a, b, length in zip(plain, saved, lengths.tolist(), strict=True):
            assert a == b
            for x, y in zip(a.hypotheses, b.hypotheses, strict=True):
                assert x.attention is None and y.attention is not None
                assert y.attention.shape == (len(y.tokens) + 1, length)
                assert (y.attention > 0).sum(-1).tolist() == list(y.num_attended)


def test_samples_come_from_the_answer_set_in_proportion() -> None:
    model = random_model("sparsemax", 2.0, 2)
    src, lengths = sources(2, 2)
    results = exhaustive(model, src, lengths, max_length=12)
    generator = torch.Generator().manual_seed(0)
    for drawn, result in zip(
        sample(model, src, lengths, 4000, max_length=12, generator=generator), results, strict=True
    ):
        known = {h.tokens: h.prob for h in result.hypotheses}
        saved = [d for d in drawn if d is not None]
        if result.certificate.kind == "complete":
            assert len(saved) == len(drawn) and set(saved) <= set(known)
        for tokens, prob in known.items():
            assert saved.count(tokens) / len(drawn) == pytest.approx(prob, abs=0.04)


def test_an_ensemble_averages_probabilities_and_unites_supports() -> None:
    models = [random_model("sparsemax", 2.0, seed, sharpness=5.0) for seed in (1, 2)]
    ensemble = Ensemble(models)
    src, lengths = sources(4)
    truth = enumerate_all(ensemble, src, lengths)
    for result, known in zip(beam_search(ensemble, src, lengths, beam_size=50, max_length=LONGEST), truth, strict=True):
        check(result, known, normalized=True)
    states = [m.start(m.encode(src, lengths)) for m in models]
    token = torch.ones(len(lengths), dtype=torch.long)
    each = [m.output.probs(m.step(s, token).scores) for m, s in zip(models, states, strict=True)]
    whole = ensemble.step(ensemble.start(ensemble.encode(src, lengths)), token).scores.exp()
    torch.testing.assert_close(whole, (each[0] + each[1]) / 2)
    with pytest.raises(ValueError, match="at least one"):
        Ensemble([])


def test_dropout_is_off_during_search_and_on_again_afterwards() -> None:
    torch.manual_seed(0)
    model = RNNSeq2Seq(8, 7, 8, 2, 0.5)
    src, lengths = sources(0)
    first = beam_search(model, src, lengths, max_length=3)
    assert model.training
    assert first == beam_search(model, src, lengths, max_length=3)


def test_dead_ends_give_no_hypothesis() -> None:
    model = random_model("alpha_relu", 1.5, 0)
    model.output.tau = 1e6
    for search in (beam_search, exhaustive):
        for result in search(model, *sources(0)):
            assert result.best is None and result.certificate.kind == "complete" and result.mass == 0
    never_ends = random_model("sparsemax", 2.0, 0)
    with torch.no_grad():
        assert never_ends.output.projection.bias is not None
        never_ends.output.projection.bias[EOS] = -1e6
    for result in beam_search(never_ends, *sources(0), max_length=3):
        assert result.best is None and result.certificate.kind == "none" and result.certificate.bound > -math.inf


@pytest.mark.parametrize("option", ["beam_size", "n_best", "max_length"])
def test_sizes_below_one_are_refused(option: str) -> None:
    with pytest.raises(ValueError, match=option):
        beam_search(random_model("softmax", 1.0, 0), *sources(0), **{option: 0})
