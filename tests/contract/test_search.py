"""Brute-force enumeration never contradicts the certificate of any search, for any model and map."""

from __future__ import annotations

import copy
import itertools
import math
import random
from collections import Counter
from typing import Any

import pytest
import torch

from contract.tables import TableModel, random_table
from contract.tables import sources as table_sources
from tsallis.models import RNNSeq2Seq, TransformerSeq2Seq
from tsallis.models.copying import with_unknown
from tsallis.search import Ensemble, beam_search, exact_search, exhaustive, sample, score
from tsallis.search.temperature import with_temperature
from tsallis.symbols import EOS
from tsallis.toolkit.data.batching import make_batch

SYMBOLS = 3
LONGEST = 4
BEAMS = ((1, None), (2, 1), (3, None), (4, 2), (5, 5))  # beam sizes and values of `n_best`
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
    """Return every output of at most LONGEST symbols with its log-probability, by scoring all of them."""
    outputs = [o for n in range(LONGEST + 1) for o in itertools.product(range(4, 4 + SYMBOLS), repeat=n)]
    result = []
    for i in range(src.shape[0]):
        count = int(lengths[i])
        batch = make_batch([src[i, :count].tolist()] * len(outputs), outputs, range(len(outputs)))
        scores = score(model, batch.src, batch.src_lengths, batch.tgt_in, batch.tgt_out).tolist()
        result.append({o: s for o, s in zip(outputs, scores, strict=True) if s > -math.inf})
    return result


def check(
    result,
    truth: dict[tuple[int, ...], float],
    normalized: bool,
    whole: bool = True,
    penalty: float = 0,
    rounding: float = 1e-9,
    least: float = -math.inf,
) -> None:
    """Check a result against the true log-probabilities; `whole`: they include every output of the distribution.

    Log-probabilities below `least` may have any error: near the threshold of a sparse map few digits of a score count.
    """

    def near(log_prob: float, other: float) -> bool:
        return log_prob == pytest.approx(other, abs=rounding) or max(log_prob, other) < least

    for hypothesis in result.hypotheses:
        assert near(hypothesis.log_prob, truth[hypothesis.tokens])
        assert len(hypothesis.support) == len(hypothesis.num_attended) == len(hypothesis.tokens) + 1
        assert hypothesis.log_prob > -math.inf
    truth = {tokens: log_prob / (len(tokens) + 1) ** penalty for tokens, log_prob in truth.items()}
    logs = [h.score(penalty) for h in result.hypotheses]
    assert logs == sorted(logs, reverse=True)
    assert len({h.tokens for h in result.hypotheses}) == len(logs)
    best = max(truth.values(), default=-math.inf)
    kind, bound = result.certificate.kind, result.certificate.bound
    if kind == "complete":
        assert {h.tokens for h in result.hypotheses} == set(truth)
        if normalized and whole:
            assert result.mass == pytest.approx(1, abs=rounding)
    elif kind == "optimal":
        assert logs[0] == pytest.approx(best, abs=rounding)
    elif kind == "bounded":
        assert normalized and logs[0] < bound and best <= bound + rounding
    else:
        assert not normalized or not logs
    ranks = sorted(truth.values(), reverse=True)
    for hypothesis, rank in zip(result.proven, ranks, strict=False):
        assert near(hypothesis.score(penalty), rank)
    if normalized:
        missing = [s for o, s in truth.items() if o not in {h.tokens for h in result.hypotheses}]
        assert max(missing, default=-math.inf) <= bound + rounding


def check_searches(model: Any, src: torch.Tensor, lengths: torch.Tensor) -> list[dict[tuple[int, ...], float]]:
    """Check beams and budgets of all sizes, and the exact search, and return the true log-probabilities."""
    truth, normalized = enumerate_all(model, src, lengths), model.output.normalized
    for size in (1, 2, 5, 30, 200):
        results = beam_search(model, src, lengths, beam_size=size, max_length=LONGEST)
        listed = exhaustive(model, src, lengths, budget=10_000 if size == 200 else 2 * size - 1, max_length=LONGEST)
        for result, other, known in zip(results, listed, truth, strict=True):
            check(result, known, normalized)
            check(other, known, normalized)
            if size == 200:
                assert {h.tokens for h in result.hypotheses} == {h.tokens for h in other.hypotheses} == set(known)
    for result, known in zip(exact_search(model, src, lengths, n_best=2, max_length=LONGEST), truth, strict=True):
        check(result, known, normalized)
    return truth


@pytest.mark.parametrize(("transform", "alpha"), TRANSFORMS)
@pytest.mark.parametrize("seed", range(3))
def test_certificates_agree_with_enumeration(transform: str, alpha: float, seed: int) -> None:
    check_searches(random_model(transform, alpha, seed), *sources(seed))


def random_copying_model(kind: str, transform: str, alpha: float, seed: int) -> Any:
    """Create a model that copies two source symbols, and unknown ones as 6; it doesn't copy source symbol 7."""
    torch.manual_seed(seed)
    options: dict[str, Any] = {"output": transform, "output_alpha": alpha, "tau": -0.2}
    options |= {"attention": ("softmax", "entmax")[seed % 2], "copy": [-1, -1, -1, -1, 4, 5, 4, -1]}
    if kind == "rnn":
        model: Any = RNNSeq2Seq(8, 6, 8, 1, 0.0, **options)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.mul_(12 if name.startswith("output.projection") else 8 if "output" not in name else 1)
    else:
        model = TransformerSeq2Seq(8, 6, 32, 2, 1, 16, 0.0, **options)
        with torch.no_grad():
            model.output.projection.weight.mul_(4)
    return with_unknown(model.double().eval(), [6, 5])


def copied_sources(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return sources that contain the unknown symbols 8 and 9."""
    src, lengths = sources(seed)
    inside = torch.arange(src.shape[1]) > 0
    return torch.where(src == 6, 8, torch.where((src == 7) & inside, 9, src)), lengths


@pytest.mark.parametrize(("transform", "alpha"), TRANSFORMS)
@pytest.mark.parametrize("kind", ["rnn", "transformer"])
def test_certificates_of_copying_models_agree_with_enumeration(kind: str, transform: str, alpha: float) -> None:
    copied = False
    for seed in range(3):
        model, (src, lengths) = random_copying_model(kind, transform, alpha, seed), copied_sources(seed)
        truth, normalized = check_searches(model, src, lengths), model.output.normalized
        copied |= any(6 in tokens for known in truth for tokens in known)
        for source, drawn in enumerate(sample(model, src, lengths, 20, seeds=[1, 2, 3, 4], max_length=LONGEST)):
            for h in drawn:
                assert h is None or h.log_prob == pytest.approx(truth[source][h.tokens], abs=1e-9) or not normalized
    assert copied  # the symbol that is possible only by copying occurred


STRING_MODELS: dict[str, dict[str, Any]] = {
    "features": {"features": [4, 5]},
    "order 0": {"monotonic": 0, "input_feeding": False},
    "order 1": {"monotonic": 1, "input_feeding": False},
}


@pytest.mark.parametrize(("transform", "alpha"), TRANSFORMS)
@pytest.mark.parametrize("kind", STRING_MODELS)
def test_certificates_of_string_models_agree_with_enumeration(kind: str, transform: str, alpha: float) -> None:
    for seed in range(3):
        torch.manual_seed(seed)
        options = {"output": transform, "output_alpha": alpha, "tau": -0.2, **STRING_MODELS[kind]}
        model = RNNSeq2Seq(8, 4 + SYMBOLS, 8, 1, 0.0, attention=("softmax", "entmax")[seed % 2], **options).double()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.mul_(12 if name.startswith("output") else 8)
        check_searches(model, *sources(seed))


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_a_temperature_is_applied_to_the_mixture(temperature: float) -> None:
    model, (src, lengths) = random_copying_model("rnn", "sparsemax", 2.0, 1), copied_sources(1)
    token = torch.ones(len(src), dtype=torch.long)
    plain, tempered = (
        m.output.log_probs(m.step(m.start(m.encode(src, lengths)), token).scores)
        for m in (model, with_temperature(model, temperature))
    )
    powers = plain.exp() ** (1 / temperature)
    torch.testing.assert_close(tempered.exp(), powers / powers.sum(-1, keepdim=True))
    assert (tempered == -math.inf).equal(plain == -math.inf)


def random_transformer(transform: str, alpha: float, seed: int) -> TransformerSeq2Seq:
    """Create a float32 Transformer with sizes that the compiled decoders support."""
    torch.manual_seed(seed)
    options = {"norm": ("pre", "post")[seed % 2], "attention": ("softmax", "learned", "entmax")[seed % 3]}
    model = TransformerSeq2Seq(
        8, 4 + SYMBOLS, 32, 2, 1, 16, 0.0, **options, output=transform, output_alpha=alpha, tau=-0.2
    )
    with torch.no_grad():
        model.output.projection.weight.mul_(4)
    return model.eval()


@pytest.mark.parametrize(("transform", "alpha"), TRANSFORMS)
@pytest.mark.parametrize("seed", range(6))
def test_float32_certificates_agree_with_float64_enumeration(transform: str, alpha: float, seed: int) -> None:
    model = random_transformer(transform, alpha, seed)
    src, lengths = sources(seed, 6)
    truth = enumerate_all(copy.deepcopy(model).double(), src, lengths)
    for beam_size in (1, 2, 5, 200):
        results = beam_search(model, src, lengths, beam_size=beam_size, max_length=LONGEST)
        for i, (result, known) in enumerate(zip(results, truth, strict=True)):
            check(result, known, model.output.normalized, rounding=1e-3, least=-12)
            (alone,) = beam_search(
                model, src[i : i + 1, : lengths[i]], lengths[i : i + 1], beam_size=beam_size, max_length=LONGEST
            )
            assert [h.tokens for h in alone.hypotheses] == [h.tokens for h in result.hypotheses]
            assert alone.certificate.kind == result.certificate.kind


@pytest.mark.parametrize(("transform", "alpha"), TRANSFORMS)
@pytest.mark.parametrize("seed", range(8))
def test_certificates_of_table_models_agree_with_enumeration(transform: str, alpha: float, seed: int) -> None:
    """The enumeration shares no code with the searches: no model, no steps and no scoring."""
    src, lengths = table_sources(0, 1, 2)
    for limit in (1, 2, 5):
        model = random_table(transform, alpha, seed)
        truth = [model.enumerate(source, limit) for source in range(3)]
        for (size, n_best), competing in itertools.product(BEAMS, (False, True)):
            options = {"beam_size": size, "n_best": n_best, "end_rule": "competing" if competing else "every"}
            actual = beam_search(model, src, lengths, **options, max_length=limit)
            for result, known in zip(actual, truth, strict=True):
                check(result, known, model.output.normalized)
        for budget, n_best in ((1, None), (7, None), (40, 2), (40, None), (10_000, None), (10_000, 3)):
            actual = exhaustive(model, src, lengths, budget=budget, n_best=n_best, max_length=limit)
            for result, known in zip(actual, truth, strict=True):
                check(result, known, model.output.normalized)


class Case:
    """A random model or an ensemble of two, random limits, and the enumerated outputs within the limits."""

    def __init__(self, transform: str, alpha: float, seed: int) -> None:
        chance = random.Random(seed)
        tables = [random_table(transform, alpha, seed + 1000 * i) for i in range(chance.choice((1, 1, 2)))]
        self.model = tables[0] if len(tables) == 1 else Ensemble(tables)
        self.penalty = chance.choice((0.0, 0.0, 0.5, 1.0))
        self.max_length = chance.choice((1, 3, 4))
        self.min_length = chance.choice((0, 0, 1, self.max_length))
        lengths = [chance.randrange(self.max_length + 1) for _ in range(2)]
        self.prefixes = [[chance.choice((4, 5, 6)) for _ in range(n)] for n in chance.choice((lengths, [0, 0]))]
        self.truth = [
            {
                tokens: log_prob
                for tokens, log_prob in self.enumerate(tables, source).items()
                if len(tokens) >= self.min_length and list(tokens[: len(prefix)]) == prefix
            }
            for source, prefix in enumerate(self.prefixes)
        ]

    def enumerate(self, tables, source: int) -> dict[tuple[int, ...], float]:
        def row(_: int, prefix: tuple[int, ...]) -> dict[int, float]:
            rows = [table.row(source, prefix) for table in tables]
            return {token: sum(r[token] for r in rows) / len(rows) for token in rows[0]}

        return TableModel(row).enumerate(source, self.max_length)

    @property
    def whole(self) -> bool:
        return self.min_length == 0 and not any(self.prefixes)

    @property
    def limits(self) -> dict[str, Any]:
        return {
            "prefixes": self.prefixes,
            "min_length": self.min_length,
            "max_length": self.max_length,
            "length_penalty": self.penalty,
        }


@pytest.mark.parametrize(("transform", "alpha"), TRANSFORMS)
def test_certificates_with_random_limits_agree_with_enumeration(transform: str, alpha: float) -> None:
    """Compare random prefixes, lengths, penalties, ensembles and budgets with the enumeration."""
    src, lengths = table_sources(0, 1)
    reasons = set()
    for seed in range(50):
        case, chance = Case(transform, alpha, seed), random.Random(seed)
        normalized = case.model.output.normalized
        n_best = chance.choice((None, 1, 2))
        mass = chance.choice((None, 0.2, 0.9)) if normalized else None
        budget, seconds = chance.choice((1, 4, 20, 10_000)), chance.choice((None, None, 0.0))
        beam = {"beam_size": chance.choice((1, 2, 4)), "end_rule": chance.choice(("every", "competing"))}
        beams = beam_search(case.model, src, lengths, n_best=n_best, **beam, **case.limits)
        known = beams if chance.random() < 0.5 else None
        options = {"n_best": n_best, "budget": budget, "mass": mass, "time_limit": seconds, "known": known}
        listed = exhaustive(case.model, src, lengths, **options, **case.limits)
        for result, truth in zip([*beams, *listed], case.truth * 2, strict=True):
            check(result, truth, normalized, case.whole, case.penalty)
            assert n_best is None or len(result.hypotheses) <= n_best
        for result in listed:
            assert result.expanded <= budget
            reasons.add(result.stopped_by)
            reached = result.certificate.kind == "complete" or len(result.proven) == n_best
            assert (result.stopped_by is None) == reached
    assert {None, "budget", "time", "length"} <= reasons and ("mass" in reasons) == (transform != "alpha_relu")


@pytest.mark.parametrize(("transform", "alpha"), TRANSFORMS)
def test_a_beam_of_one_is_greedy(transform: str, alpha: float) -> None:
    """Append the most probable symbol, never the end, until an output beats every possible continuation."""
    for seed in range(30):
        table = random_table(transform, alpha, seed)
        (result,) = beam_search(table, *table_sources(0), beam_size=1, max_length=LONGEST)
        prefix: tuple[int, ...] = ()
        greedy, total, dropped = {}, 0.0, False
        for _ in range(LONGEST + 1):
            row = table.row(0, prefix)
            if row[EOS] > 0:
                greedy[prefix] = total + math.log(row[EOS])
            best = max((4, 5, 6), key=row.__getitem__)
            if row[best] == 0:
                break
            dropped |= sum(row[token] > 0 for token in (4, 5, 6)) > 1
            prefix, total = (*prefix, best), total + math.log(row[best])
            if not table.output.normalized and dropped and total <= max(greedy.values(), default=-math.inf):
                break  # although the score of a continuation might grow
        assert {h.tokens: h.log_prob for h in result.hypotheses}.items() <= {
            tokens: pytest.approx(log_prob) for tokens, log_prob in greedy.items()
        }.items()
        expected = max(greedy, key=greedy.__getitem__, default=None)
        assert (result.best.tokens if result.best else None) == expected


def textbook_beam(table: TableModel, size: int) -> dict[tuple[int, ...], float]:
    """Return every output whose end is among the `size` best continuations of its step; `size` prefixes continue.

    If values are not normalised and a prefix was dropped, only prefixes above the `size` best outputs continue.
    """
    prefixes: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    outputs: dict[tuple[int, ...], float] = {}
    dropped = False
    for length in range(LONGEST + 1):
        ranked = sorted(
            (-(total + math.log(prob)), i, token)
            for i, (prefix, total) in enumerate(prefixes)
            for token, prob in table.row(0, prefix).items()
            if prob > 0
        )
        ends = [c for rank, c in enumerate(ranked) if c[2] == EOS and (rank < size or length == LONGEST)]
        outputs.update({prefixes[i][0]: -cost for cost, i, _ in ends})
        longer = [((*prefixes[i][0], token), -cost) for cost, i, token in ranked if token != EOS]
        prefixes = longer[:size]
        dropped |= len(ends) + len(prefixes) < len(ranked)
        if dropped and len(outputs) >= size and not table.output.normalized:
            worst = sorted(outputs.values())[-size]
            prefixes = [(prefix, total) for prefix, total in prefixes if total > worst]
    return outputs


@pytest.mark.parametrize(("transform", "alpha"), TRANSFORMS)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_competing_end_rule_matches_textbook_beam_search(transform: str, alpha: float, size: int) -> None:
    """Compare the best `size` outputs; a search may drop others. With beam size 1, it is greedy up to the first end."""
    fewer = 0
    for seed in range(40):
        table = random_table(transform, alpha, seed)
        options: dict[str, Any] = {"beam_size": size, "max_length": LONGEST}
        (result,) = beam_search(table, *table_sources(0), **options, end_rule="competing")
        expected = textbook_beam(table, size)
        ranked = sorted(expected, key=lambda tokens: (-expected[tokens], tokens))[:size]
        assert [h.tokens for h in result.hypotheses[:size]] == ranked
        assert [h.log_prob for h in result.hypotheses[:size]] == pytest.approx([expected[tokens] for tokens in ranked])
        (every,) = beam_search(table, *table_sources(0), **options)
        fewer += every.best != result.best
        if size == 1 and ranked and table.output.normalized:
            prefix: tuple[int, ...] = ()
            while len(prefix) < LONGEST and (token := max(row := table.row(0, prefix), key=row.__getitem__)) != EOS:
                prefix = (*prefix, token)
            assert [prefix] == ranked
    assert fewer > 0 or size > 1


def test_prefixed_search_scores_match_enumeration() -> None:
    """Log-probabilities agree with `score` to 1e-9, and a batch agrees with its sources one by one."""
    for seed, (transform, alpha) in enumerate(TRANSFORMS):
        model = Ensemble([random_model(transform, alpha, seed), random_model(transform, alpha, seed + 50)])
        src, lengths = sources(seed)
        limits: dict[str, Any] = {"min_length": 2, "max_length": LONGEST, "length_penalty": 1.0}
        prefixes = [[4 + i % SYMBOLS] for i in range(len(lengths))]
        truth = enumerate_all(model, src, lengths)
        for search in (beam_search, exhaustive):
            whole = search(model, src, lengths, prefixes=prefixes, **limits)
            for i, (result, (prefix,)) in enumerate(zip(whole, prefixes, strict=True)):
                part = {t: p for t, p in truth[i].items() if len(t) >= 2 and t[0] == prefix}
                check(result, part, model.output.normalized, whole=False, penalty=1.0)
                one = src[i : i + 1, : lengths[i]], lengths[i : i + 1]
                (alone,) = search(model, *one, prefixes=prefixes[i : i + 1], **limits)
                assert [h.tokens for h in alone.hypotheses] == [h.tokens for h in result.hypotheses]
                assert alone.certificate.kind == result.certificate.kind


def test_beam_search_returns_every_certificate_kind() -> None:
    kinds = set()
    for seed in range(6):
        for transform, alpha in TRANSFORMS:
            model = random_model(transform, alpha, seed)
            for size in (1, 3):
                results = beam_search(model, *sources(seed), beam_size=size, max_length=LONGEST)
                kinds |= {(r.certificate.kind, model.output.normalized) for r in results}
    assert {("complete", True), ("optimal", True), ("bounded", True), ("none", True)} <= kinds
    assert ("optimal", False) not in kinds and ("bounded", False) not in kinds


def test_keep_attention_returns_attention_weights() -> None:
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


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize(("transform", "alpha"), TRANSFORMS[:-1])
def test_samples_follow_the_distribution(transform: str, alpha: float, temperature: float) -> None:
    """Apply Pearson's chi-square test, with and without a prefix; truncated draws have a separate cell."""
    src, lengths = table_sources(0, 1)
    given = random_table(transform, alpha, 5, sharpness=1.0)
    prefixes = [[max((4, 5, 6), key=given.row(0, ()).__getitem__)], []]
    options: dict[str, Any] = {"prefixes": prefixes, "seeds": [0, 1], "temperature": temperature}
    draws = sample(given, src, lengths, 3000, max_length=3, **options)

    def tempered(source: int, prefix: tuple[int, ...]) -> dict[int, float]:
        powers = {token: p ** (1 / temperature) for token, p in given.row(source, prefix).items()}
        return {token: p / math.fsum(powers.values()) for token, p in powers.items()}

    table = TableModel(tempered)
    for source, (drawn, prefix) in enumerate(zip(draws, prefixes, strict=True)):
        truth = table.enumerate(source, 3)
        of_prefix = table.row(source, ())[prefix[0]] if prefix else 1.0
        probs = {o: math.exp(p) / of_prefix for o, p in truth.items() if list(o[: len(prefix)]) == prefix}
        outputs = Counter(h.tokens if h else None for h in drawn)
        assert set(outputs) <= {*probs, None}
        assert all(h.log_prob == pytest.approx(truth[h.tokens]) for h in drawn if h)
        probs[None] = max(1 - math.fsum(probs.values()), 0.0)
        cells = [(outputs[o], 3000 * p) for o, p in probs.items()]
        small = [cell for cell in cells if cell[1] < 5]
        cells = [cell for cell in cells if cell[1] >= 5] + [(sum(n for n, _ in small), sum(e for _, e in small))]
        statistic = sum((n - e) ** 2 / max(e, 1) for n, e in cells)
        freedom = len(cells) - 1
        # The limit is four standard deviations above the mean of a chi-square; the seeds are fixed.
        assert statistic < freedom + 4 * math.sqrt(2 * max(freedom, 1))


def test_samples_of_a_source_do_not_depend_on_the_batch() -> None:
    model = random_model("softmax", 1.0, 2)
    src, lengths = sources(2, 3)
    whole = sample(model, src, lengths, 5, max_length=6, seeds=[7, 8, 9])
    for i in range(3):
        (alone,) = sample(model, src[i : i + 1, : lengths[i]], lengths[i : i + 1], 5, max_length=6, seeds=[7 + i])
        assert [h and h.tokens for h in alone] == [h and h.tokens for h in whole[i]]


def test_dead_ends_give_no_hypothesis() -> None:
    model = random_model("alpha_relu", 1.5, 0)
    model.output.tau = 1e6
    for search in (beam_search, exhaustive):
        for result in search(model, *sources(0)):
            assert result.best is None and result.certificate.kind == "complete" and result.mass == 0
    never_ends = random_model("sparsemax", 2.0, 0)
    with torch.no_grad():
        never_ends.output.projection.bias[EOS] = -1e6
    for result in beam_search(never_ends, *sources(0), max_length=3):
        assert result.best is None and result.certificate.kind == "none" and result.certificate.bound > -math.inf


@pytest.mark.parametrize("transform", ["softmax", "entmax"])
def test_a_compiled_decoder_with_large_scores_proves_nothing(transform: str) -> None:
    model = random_transformer(transform, 1.5, 0)
    src, lengths = sources(0)
    for offset, reason in ((1e4, False), (1e17, True)):
        with torch.no_grad():
            model.output.projection.bias.fill_(offset)
        for result in beam_search(model, src, lengths, beam_size=200, max_length=LONGEST):
            assert (result.certificate.reason is not None) == reason
            assert not reason or (result.certificate.kind == "none" and 0 < result.mass <= 1)
