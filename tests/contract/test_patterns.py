"""Brute-force enumeration never contradicts `match` or restricted searches."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from contract.tables import random_table
from contract.tables import sources as table_sources
from contract.test_search import LONGEST, enumerate_all, random_model, sources
from tsallis.models import LanguageModel, TransformerSeq2Seq
from tsallis.search import Ensemble, Match, Pattern, beam_search, exact_search, exhaustive, match, restrict, with_top_p

Truth = dict[tuple[int, ...], float]  # log-probabilities of outputs
CHARACTERS = ["", "", "", "<unk>", "a", "b", "c"]
SUBWORDS = ["", "", "", "<unk>", "a", "b", "ab"]
REGEXES = (".*b.*", "a*", "(ab|b)*", ".{0,2}", "[^b]*b?", "aab?", ".*", ".*aa|b+", "(a|c){2}|b", "x.*")
PATTERNS: tuple[Any, ...] = (*REGEXES, ["ba", "ab"], ["cc"])
MAPS = (("softmax", 1.0), ("top_p", 0.9), ("entmax", 1.3), ("entmax", 1.5), ("sparsemax", 2.0))
KINDS = ("table", "lstm", "transformer", "language", "ensemble")
BUDGETS = (2, 12, 300)
TOLERANCE = 1e-9


def make_model(kind: str, transform: str, alpha: float, seed: int) -> tuple[Any, tuple[torch.Tensor, torch.Tensor]]:
    """Return a random model over three symbols, and one source."""
    output, number = ("softmax", 1.0) if transform == "top_p" else (transform, alpha)
    torch.manual_seed(seed)
    if kind == "table":
        model: Any = random_table("softmax" if output == "softmax" else "entmax", number, seed)
        source = table_sources(seed % 3)
    elif kind == "lstm":
        model, source = random_model(output, number, seed), sources(seed, 1)
    elif kind == "ensemble":
        model = Ensemble([random_model(output, number, seed), random_model("sparsemax", 2.0, seed + 1)])
        source = sources(seed, 1)
    else:
        sizes: dict[str, Any] = {"d_model": 8, "heads": 2, "layers": 1, "d_ff": 16, "dropout": 0.0}
        sizes |= {"output": output, "output_alpha": number}
        model = TransformerSeq2Seq(8, 7, **sizes) if kind == "transformer" else LanguageModel(7, **sizes)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.mul_(6 if name.startswith("output") else 2)
        model, source = model.double().eval(), sources(seed, 1)
        source = source[0].clamp(max=6), source[1]
    return (with_top_p(model, alpha) if transform == "top_p" else model), source


def enumerate_outputs(model: Any, source: tuple[torch.Tensor, torch.Tensor]) -> Truth:
    """Return every output of at most LONGEST symbols with its log-probability."""
    return enumerate_all(model, *source)[0]


def texts_of(truth: Mapping[tuple[int, ...], float], texts: list[str]) -> dict[str, float]:
    """Return the probability of every text."""
    result: dict[str, float] = {}
    for tokens, log_prob in truth.items():
        text = "".join(texts[token] for token in tokens)
        result[text] = result.get(text, 0.0) + math.exp(log_prob)
    return result


def check(found: Match, pattern: Pattern, truth: Truth, texts: list[str], at_least: float) -> None:
    """Raise if the enumeration of all outputs of at most LONGEST symbols contradicts the result."""
    hits = {tokens: log_prob for tokens, log_prob in truth.items() if pattern.matches(tokens)}
    others = {tokens: log_prob for tokens, log_prob in truth.items() if tokens not in hits}
    mass, longer = (math.fsum(map(math.exp, x.values())) for x in (hits, truth))
    assert 0 <= found.lower <= found.upper <= 1
    assert found.upper >= mass and (mass == 0 or found.upper > 0)
    assert found.lower <= mass + (1 - longer) + TOLERANCE
    assert found.upper <= found.lower + found.open + found.too_long + 4 * TOLERANCE  # each number is rounded
    if found.witness is not None:
        assert pattern.matches(found.witness.tokens)
        assert truth[found.witness.tokens] == pytest.approx(found.witness.log_prob, abs=TOLERANCE)
    if found.verdict == "possible":
        assert found.witness is not None and found.witness.prob >= at_least * (1 - TOLERANCE)
    for verdict, refuting in (("never", hits), ("always", others)):
        if found.verdict == verdict:
            assert all(prob < at_least for prob in texts_of(refuting, texts).values())
            assert not (found.absolute and refuting)


def check_restricted(model: Any, source: Any, pattern: Pattern, truth: Truth, budget: int) -> None:
    """Raise if the enumeration contradicts a restricted search."""
    hits = {tokens: log_prob for tokens, log_prob in truth.items() if pattern.matches(tokens)}
    restricted = restrict(model, pattern)
    results = [
        *exhaustive(restricted, *source, max_length=LONGEST, budget=budget),
        *exact_search(restricted, *source, max_length=LONGEST, budget=budget, beam_size=2),
        *beam_search(restricted, *source, max_length=LONGEST, beam_size=2),
    ]
    for result in results:
        assert result.scope == "limited"
        listed = {h.tokens: h.log_prob for h in result.hypotheses}
        assert listed == {tokens: pytest.approx(hits[tokens], abs=TOLERANCE) for tokens in listed}
        missing = max((log_prob for tokens, log_prob in hits.items() if tokens not in listed), default=-math.inf)
        if result.certificate.kind == "complete":
            assert missing == -math.inf
        if result.certificate.kind != "none":
            assert missing <= result.certificate.bound + TOLERANCE
        if result.certificate.proves_best and result.best is not None:
            assert missing <= result.best.log_prob + TOLERANCE


def run_case(kind: str, transform: str, alpha: float, seed: int, budgets: tuple[int, ...]) -> list[Match]:
    """Check three patterns at several budgets for one model, and return the results."""
    rng = random.Random(f"{kind} {transform} {alpha} {seed}")
    model, source = make_model(kind, transform, alpha, seed)
    truth = enumerate_outputs(model, source)
    texts = SUBWORDS if seed % 2 else CHARACTERS
    chosen = [Pattern(x, texts, complement=rng.random() < 0.4) for x in rng.sample(PATTERNS, 3)]
    found = []
    for budget in budgets:
        at_least = rng.choice((0.0, 1e-6, 1e-3, 0.1))
        (bounds,) = match(model, *source, chosen, budget=budget, at_least=at_least, max_length=LONGEST)
        for one, pattern in zip(bounds, chosen, strict=True):
            check(one, pattern, truth, texts, at_least)
        options = {"budget": budget, "at_least": at_least, "max_length": LONGEST}
        ((early,),) = match(model, *source, chosen[:1], stop_early=True, **options)
        check(early, chosen[0], truth, texts, at_least)
        found += bounds
    check_restricted(model, source, chosen[0], truth, rng.choice(budgets))
    return found


@pytest.mark.parametrize(("transform", "alpha"), MAPS)
@pytest.mark.parametrize("kind", KINDS)
def test_match_agrees_with_enumeration(kind: str, transform: str, alpha: float) -> None:
    run_case(kind, transform, alpha, KINDS.index(kind) % 2, (4, 60))


@pytest.mark.slow
def test_match_agrees_with_enumeration_for_400_models() -> None:
    found = [
        one
        for number in range(400)
        for one in run_case(KINDS[number % 5], *MAPS[number // 5 % 5], 100 + number // 5, BUDGETS)
    ]
    assert {one.verdict for one in found} == {"never", "always", "possible", "unknown"}


def test_joint_matches_equal_separate_matches() -> None:
    model, (src, lengths) = random_model("entmax", 1.5, 3), sources(3)
    patterns = [Pattern(regex, CHARACTERS) for regex in REGEXES]
    together = match(model, src, lengths, patterns, max_length=LONGEST)
    assert len(together) == len(src)
    for row, found in enumerate(together):
        source = src[row : row + 1], lengths[row : row + 1]
        assert match(model, *source, patterns, max_length=LONGEST) == [found]
        for pattern, one in zip(patterns, found, strict=True):
            ((alone,),) = match(model, *source, [pattern], max_length=LONGEST)
            assert alone.expanded <= one.expanded
            assert (alone.lower, alone.upper) == pytest.approx((one.lower, one.upper), abs=TOLERANCE)


def test_match_agrees_with_enumeration_for_gpt2() -> None:
    transformers = pytest.importorskip("transformers")
    from tsallis.huggingface import TransformersDecoder

    sizes = {"vocab_size": 5, "n_embd": 8, "n_head": 2, "n_layer": 1, "initializer_range": 1.0}
    config = transformers.GPT2Config(bos_token_id=1, eos_token_id=2, **sizes)
    decoder = TransformersDecoder(transformers.GPT2LMHeadModel(config).double().eval(), alpha=1.5)
    source = decoder.sources({"input_ids": torch.tensor([[3, 4, 0]])})
    texts = ["", "", "", "x", "y", "", "ab", "b"]  # token ids from 3 on: x, y, the end, ab and b
    (listed,) = exhaustive(decoder, *source, max_length=LONGEST, budget=2000)
    truth = {h.tokens: h.log_prob for h in listed.hypotheses}
    for regex in (".*b", "[^x]*", "(ab)*x?"):
        pattern = Pattern(regex, texts, begun=True)
        ((found,),) = match(decoder, *source, [pattern], max_length=LONGEST, at_least=0, budget=2000)
        check(found, pattern, truth, texts, 0)
        check_restricted(decoder, source, pattern, truth, 50)
