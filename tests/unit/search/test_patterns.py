"""Patterns match the same texts as `re`, over characters, subwords and symbols of several characters."""

from __future__ import annotations

import itertools
import random
import re
import string
import sys
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from contract.tables import A, B, C, TableModel, sources, trie
from tsallis.models import RNNSeq2Seq
from tsallis.search import (
    Ensemble,
    Pattern,
    beam_search,
    complete,
    exact_search,
    exhaustive,
    match,
    next_characters,
    restrict,
    sample,
    with_top_p,
)
from tsallis.search import regex as automata
from tsallis.search.patterns import RestrictedModel
from tsallis.search.temperature import with_temperature
from tsallis.symbols import EOS
from tsallis.toolkit.data.vocabulary import GRAPHEMES, Vocabulary
from unit.search.test_next_characters import Pieces, spellings

LETTERS = "ab1 A"
TEXTS = ["".join(text) for n in range(5) for text in itertools.product(LETTERS, repeat=n)]
VOCABULARY = Vocabulary(LETTERS)
REGEXES = (
    *("", "a", ".*a.*", "(ab|a)*b?", "[^a]{2,3}", "a{2}b*?", r"\d|\s+", "(a|)+", "(a*)*b", "(?:)|b{0}", "(a|b){2,}"),
    *(r"\w+\b.*", r".*\bab\b.*", r"a\B.*", "^a.*b$", "a$|^b", r"\Aa\Z", "(^|.* )ab( .*|$)", "b^a", "a$b"),
    *("(?i)a+", "(?i:a)b", "(?i)[^a]b", "(?s:.)a", "(?x) a b # two", r"(?a)\w+", "[a-z1]+", r"[\W]", "(?P<x>a)b"),
)


@pytest.mark.parametrize("regex", REGEXES)
def test_a_regular_expression_matches_as_in_python(regex: str) -> None:
    pattern, other = Pattern(regex, VOCABULARY), Pattern(regex, VOCABULARY, complement=True)
    for text in TEXTS:
        expected = re.fullmatch(regex, text) is not None
        symbols = VOCABULARY.encode(text)
        assert (pattern.matches(symbols), other.matches(symbols)) == (expected, not expected), text


def all_texts(letters: str, most: int) -> list[str]:
    return ["".join(text) for n in range(most + 1) for text in itertools.product(letters, repeat=n)]


@pytest.mark.parametrize(
    "regex",
    [
        *(r"(?a:\w)*", r"\w(?a:\w)", r"(?a:é|\W)*", r"(?a:\d)\d", r"(?a)(?u:\w)\w*", r"(?u:\d+)", r"(?i-s:a)(?a:\w?)"),
        *(r"\B", r"\b", r"\Ba?", r"a?\B", r"(\B|a)*", "^$", r"a(?:)$", "(?:(?:){3000}){3000}"),
    ],
)
def test_character_classes_and_empty_parts_match_as_in_python(regex: str) -> None:
    letters = "aé1\u0663"
    pattern, vocabulary = Pattern(regex, Vocabulary(letters)), Vocabulary(letters)
    for text in all_texts(letters, 3):
        assert pattern.matches(vocabulary.encode(text)) == (re.fullmatch(regex, text) is not None), text


def test_boundaries_in_groups_with_flags_a_or_u_raise() -> None:
    for regex in (r"(?a:\b)é", r"(?a:a\B)", r"(?a)(?u:\b)"):
        with pytest.raises(ValueError, match="not supported in a group with a flag a or u of its own"):
            Pattern(regex, VOCABULARY)
    Pattern(r"(?a:(?i:\w))\b", VOCABULARY)


@pytest.mark.parametrize("regex", ["a$", "^a$|b", r"a\Z", r"\n$", "(a|\n)*$", "a$b*", r"a$|b\n"])
def test_end_anchors_match_line_breaks_as_in_python(regex: str) -> None:
    vocabulary = Vocabulary("ab\n")
    pattern = Pattern(regex, vocabulary)
    for text in all_texts("ab\n", 3):
        assert pattern.matches(vocabulary.encode(text)) == (re.fullmatch(regex, text) is not None), repr(text)


@pytest.mark.parametrize("regex", [r"a$\s", r"a$(b|\n)", r"(a$)?(?s:.)", r"(a$\n?)*"])
def test_an_end_anchor_before_a_line_break_raises(regex: str) -> None:
    with pytest.raises(ValueError, match=r"\$ before a part that can match a line break is not supported"):
        Pattern(regex, Vocabulary("ab\n"))
    Pattern(regex, Vocabulary("ab"))


def test_an_empty_part_is_repeated_once() -> None:
    """`re` runs out of memory for this expression."""
    pattern = Pattern("(?:){4000000000}a", VOCABULARY)
    assert [text for text in TEXTS if pattern.matches(VOCABULARY.encode(text))] == ["a"]


@pytest.mark.parametrize("regex", [r"(?:\ba?){5000}", r"x{0,2000}(?:\B|){9000}", "((x{0,9}){0,9}){0,99}"])
def test_expressions_that_need_too_much_work_raise(regex: str) -> None:
    with pytest.raises(ValueError, match=r"simplify it|shorten the expression"):
        Pattern(regex, Vocabulary("ax"))


@pytest.mark.parametrize("strings", [("ab",), ("aab", "ab", "b1"), ("abab", "ab"), ("ab", "abab"), ("A", "z", "1b 1")])
def test_a_list_of_strings_matches_texts_that_contain_one(strings: tuple[str, ...]) -> None:
    pattern = Pattern(strings, VOCABULARY)
    for text in TEXTS:
        assert pattern.matches(VOCABULARY.encode(text)) == any(part in text for part in strings), text


UNSUPPORTED = [
    *((r"(a)\1", "back-reference"), ("(?=a)b", "look-around"), ("(?<!a)b", "negative look-around")),
    *(("(a)?(?(1)b|c)", "condition"), ("(?m)^a", "multiline"), ("(a", "unterminated subpattern")),
    *(("[[:alpha:]]+", "possible nested set"), ("[a-z&&[aeiou]]", "possible set intersection")),
    *(("(?!)", "negative look-around"), ("(a|b)*a(a|b){20}", "10000 states"), ("(a{900}){900}", "40000 states")),
]


@pytest.mark.parametrize(("regex", "part"), UNSUPPORTED)
def test_errors_name_unsupported_parts(regex: str, part: str) -> None:
    with pytest.raises(ValueError, match=re.escape(part)):
        Pattern(regex, VOCABULARY)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="needs python: 3.11 or newer")
@pytest.mark.parametrize(("regex", "part"), [("a++", "possessive"), ("(?>a)", "atomic")])
def test_errors_name_atomic_parts(regex: str, part: str) -> None:
    with pytest.raises(ValueError, match=part):
        Pattern(regex, VOCABULARY)


def test_replacement_characters_stand_for_parts_of_characters() -> None:
    """A tokenizer decodes each half of "é" as U+FFFD, so an output of both halves may match "é"."""
    model = trie({(): {A: 1.0}, (A,): {B: 1.0}, (A, B): {EOS: 1.0}})
    for halves in (("\ufffd", "\ufffd"), (b"\xc3", b"\xa9")):
        pattern = Pattern(".*é.*", ["", "", "", "", *halves, "c"])
        ((found,),) = match(model, *sources(0), [pattern])
        assert found.verdict == "unknown" and found.upper == pytest.approx(1) and not pattern.unique


@pytest.mark.parametrize("strings", [[], ["a", ""]])
def test_empty_lists_and_empty_strings_raise(strings: list[str]) -> None:
    with pytest.raises(ValueError, match="at least one string and no empty strings"):
        Pattern(strings, VOCABULARY)


def test_wrong_types_and_vocabularies_are_refused() -> None:
    with pytest.raises(TypeError, match="got 7"):
        Pattern(["a", 7], VOCABULARY)  # type: ignore[list-item]
    with pytest.raises(TypeError, match="strings or bytes, got None"):
        Pattern("a", ["", "", "", "", None])
    with pytest.raises(TypeError, match=r"of all tokens in their order, got \{"):
        Pattern("a", {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3, "b": 5, "a": 4})
    model = trie({(): {EOS: 1.0}})
    with pytest.raises(ValueError, match="must have 7 symbols, like the model, got 9"):
        match(model, *sources(0), [Pattern("a", VOCABULARY)])
    with pytest.raises(TypeError, match=r"each of patterns must be a tsallis\.search\.Pattern, got 'a'"):
        match(model, *sources(0), ["a"])  # type: ignore[list-item]
    pattern: Any = Pattern("a", VOCABULARY)
    with pytest.raises(TypeError, match=r"patterns must be a list of tsallis\.search\.Pattern objects"):
        match(model, *sources(0), pattern)
    with pytest.raises(TypeError, match=r"pattern must be a tsallis\.search\.Pattern, got 'a'"):
        restrict(model, "a")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="pattern must be a string or a list of strings, got 3"):
        Pattern(3, VOCABULARY)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="pattern must be a string or a list of strings, got b'a'"):
        Pattern(b"a", VOCABULARY)  # type: ignore[arg-type]
    for token in (-1, 99):
        with pytest.raises(ValueError, match=f"got {token}"):
            pattern.matches([token])


def test_a_vocabulary_need_not_be_hashable() -> None:
    pattern = Pattern("a+b", Pieces([b"", b"", b"", b"<unk>", b"a", b"b", b"ab"]))
    assert [pattern.matches(tokens) for tokens in ([4, 5], [4, 6], [6, 4])] == [True, True, False]


def test_wrapped_restricted_models_stay_restricted() -> None:
    """Probabilities of a restricted model do not sum to 1: they are not rescaled, and results are limited."""
    texts, model = ["", "", "", "", "a", "b"], RNNSeq2Seq(20, 6, d_model=8, output="softmax")
    only_a, only_b = (restrict(model, Pattern(text, texts)) for text in "ab")
    one, other = with_top_p(only_a, 0.99), restrict(with_top_p(model, 0.99), Pattern("a", texts))
    for find in (exhaustive, beam_search):
        assert find(one, *sources(0)) == find(other, *sources(0))
    both = Ensemble([only_a, only_b])
    assert {find(both, *sources(0))[0].scope for find in (exhaustive, beam_search)} == {"limited"}
    typed: Any = (*sources(0), "", spellings("a", "b"))
    for call in ((with_top_p, both, 0.9), (next_characters, only_a, *typed), (complete, only_a, *typed, str)):
        refused, *arguments = call
        with pytest.raises(ValueError, match="those of a restricted model do not"):
            refused(*arguments)


def test_500_words_need_at_most_one_state_per_prefix() -> None:
    rng = random.Random(0)
    words = ["".join(rng.choices(string.ascii_lowercase, k=rng.randint(4, 12))) for _ in range(500)]
    vocabulary = Vocabulary(string.ascii_letters + " ")
    pattern = Pattern(words, vocabulary)
    assert len(pattern.live) <= 3 + len({word[:length] for word in words for length in range(len(word))})
    assert pattern.matches(vocabulary.encode(f"the {words[77]}s")) and not pattern.matches(vocabulary.encode("the s"))


@pytest.mark.parametrize(("separator", "symbols"), [(" ", ("d", "uː", "dʒ")), (GRAPHEMES, ("e\u0301", "e", "a"))])
def test_patterns_match_symbols_of_several_characters(separator: str, symbols: tuple[str, ...]) -> None:
    vocabulary = Vocabulary(symbols, separator)
    sequences = [s for n in range(5) for s in itertools.product(range(3, 4 + len(symbols)), repeat=n)]
    for regex in (".*d.*", "d( uː)*", r"[^ ]*", "e?.a*", ".*\u0301", ".*<unk>.*"):
        pattern = Pattern(regex, vocabulary)
        for tokens in sequences:
            expected = re.fullmatch(regex, vocabulary.decode(tokens)) is not None
            assert pattern.matches(tokens) == expected, (regex, tokens)


@pytest.mark.parametrize("byte_fallback", [False, True])
def test_patterns_match_subwords(byte_fallback: bool) -> None:
    subwords = pytest.importorskip("tsallis.toolkit.data.subwords")
    lines = ["low lower lowest", "new newer  newest", "wide é wider"] * 3
    vocabulary = subwords.Subwords.train(lines, 40 + 256 * byte_fallback, byte_fallback=byte_fallback)
    rng = random.Random(0)
    names = [vocabulary.name(number) for number in range(len(vocabulary))]
    plain = [number for number, name in enumerate(names) if number > 2 and not re.fullmatch("<0x..>", name)]
    sequences = [rng.choices(plain, k=rng.randint(0, 6)) for _ in range(400)]
    for regex in ("low.*", ".* .*", r".*\bnew\b.*", "[^w]*", r".*[é⁇]", "(low|new)(er|est)?( .*)?"):
        pattern, both = Pattern(regex, vocabulary), Pattern(regex, vocabulary, complement=True)
        for tokens in sequences:
            expected = re.fullmatch(regex, vocabulary.decode(tokens)) is not None
            assert (pattern.matches(tokens), both.matches(tokens)) == (expected, not expected), (regex, tokens)
        if byte_fallback:  # neither matches tokens that are parts of characters
            tokens = [names.index("<0xC3>"), names.index("<0xA9>"), *sequences[0]]
            assert not pattern.matches(tokens) and not both.matches(tokens)


def test_patterns_that_exclude_bytes_do_not_prove_probabilities_of_texts() -> None:
    """`é` is the best text, but a pattern excludes its spelling by two bytes."""
    rows = {(): {A: 0.75, B: 0.25}, (A,): {EOS: 0.4, A: 0.6}, (B,): {C: 1.0}, (A, A): {EOS: 1.0}, (B, C): {EOS: 1.0}}
    pieces = [b"", b"", b"", b"<unk>", "é".encode(), b"\xc3", b"\xa9"]
    model = restrict(trie(rows), Pattern("é+", pieces))

    def spell(tokens: Sequence[int]) -> str:
        return b"".join(pieces[token] for token in tokens).decode(errors="replace")

    for search in (beam_search, exhaustive, exact_search):
        (sequences,) = search(model, *sources(0))
        (texts,) = search(model, *sources(0), text=spell)
        assert sequences.certificate.proves_best and not texts.certificate.proves_best
        assert texts.missing >= 0.25


def uniform(source: int, prefix: tuple[int, ...]) -> dict[int, float]:
    return {EOS: 0.25, A: 0.25, B: 0.25, C: 0.25}


ABC = ["", "", "", "<unk>", "a", "b", "c"]


def test_prefixes_without_a_possible_match_are_not_expanded() -> None:
    """By its characters, `a` could continue to `ab`, but the tokens can't spell that."""
    texts = ["", "", "", "<unk>", "a", "ba", "c"]
    model = TableModel(uniform)
    (result,) = exhaustive(restrict(model, Pattern("(a|c)b|cc?", texts)), *sources(0))
    assert {h.tokens for h in result.hypotheses} == {(C,), (C, C)}
    assert result.certificate.kind == "complete" and result.scope == "limited" and result.expanded == 3


def test_restricted_probabilities_are_not_rescaled() -> None:
    (result,) = beam_search(restrict(TableModel(uniform), Pattern("ab?", ABC)), *sources(0))
    assert {h.tokens: h.prob for h in result.hypotheses} == pytest.approx({(A,): 1 / 16, (A, B): 1 / 64})
    (best,) = exact_search(restrict(TableModel(uniform), Pattern(".*b", ABC)), *sources(0), max_length=9)
    assert best.best.tokens == (B,) and best.certificate.kind == "optimal"


def test_a_search_without_matches_is_complete() -> None:
    (result,) = exhaustive(restrict(TableModel(uniform), Pattern("x", ABC)), *sources(0))
    assert result.certificate.kind == "complete" and not result.hypotheses


def test_draws_outside_the_pattern_are_none() -> None:
    model = restrict(TableModel(uniform), Pattern("a?", ABC))
    (draws,) = sample(model, *sources(0), 1000, seeds=[1])
    counts = {tokens: sum(d is not None and d.tokens == tokens for d in draws) for tokens in ((), (A,))}
    assert sum(d is None for d in draws) == 1000 - sum(counts.values())
    assert abs(counts[()] - 250) < 60 and abs(counts[A,] - 62) < 40  # more than 4 standard deviations
    tempered = with_temperature(model, 0.5)
    assert isinstance(tempered, RestrictedModel) and tempered.pattern is model.pattern


def test_trivial_patterns_are_decided_in_one_step() -> None:
    ((never, always),) = match(TableModel(uniform), *sources(0), [Pattern("x.*", ABC), Pattern(".*", ABC)])
    assert (never.verdict, never.absolute, never.upper) == ("never", True, 0)
    assert (always.verdict, always.absolute, always.witness.tokens) == ("always", True, ())
    assert never.expanded == always.expanded == 1  # to find a witness


def test_masses_that_underflow_prove_nothing() -> None:
    """Every step gives `b` a probability of 1e-300, so the probability of `bb` is below the smallest float."""
    tiny = 1e-300
    rows = {(): {A: 1.0, B: tiny}, (B,): {B: tiny, EOS: 1.0}, (B, B): {EOS: 1.0}, (A,): {EOS: 1.0}}
    (found,) = match(trie(rows), *sources(0), [Pattern("bb", ABC)], at_least=0)
    assert found[0].verdict == "possible" and found[0].witness.tokens == (B, B) and found[0].upper > 0
    (cut,) = match(trie(rows), *sources(0), [Pattern("bb", ABC)], at_least=0, max_length=1)
    assert cut[0].verdict == "unknown" and cut[0].upper > 0


def test_scores_that_are_too_large_prove_nothing() -> None:
    model = RNNSeq2Seq(8, 7, d_model=4, output="softmax", forbidden=(0, 1, 3)).eval()
    for verdict in ("possible", "unknown"):
        ((found,),) = match(model, *sources(4), [Pattern(".*c.*", ABC)], budget=100, at_least=0)
        assert found.verdict == verdict and (found.lower > 0) == (verdict == "possible")
        with torch.no_grad():
            model.output.projection.bias += 1e9


def test_match_stops_early_and_names_its_limit() -> None:
    pattern = Pattern(".*b", ABC)
    (early,) = match(TableModel(uniform), *sources(0), [pattern], stop_early=True)
    (late,) = match(TableModel(uniform), *sources(0), [pattern], budget=100)
    assert early[0].verdict == late[0].verdict == "possible" and early[0].expanded < late[0].expanded == 100
    assert late[0].stopped_by == "budget" and late[0].open > 0
    (timed,) = match(TableModel(uniform), *sources(0), [pattern], time_limit=1e-9)
    assert timed[0].stopped_by == "time" and timed[0].expanded == 1


@pytest.mark.parametrize(("name", "value"), [("at_least", 1.5), ("budget", 0), ("time_limit", -1)])
def test_options_of_match_are_checked(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        match(TableModel(uniform), *sources(0), [Pattern("a", ABC)], **{name: value})
    with pytest.raises(ValueError, match="sum to 1"):
        match(TableModel(uniform, normalized=False), *sources(0), [Pattern("a", ABC)])


@pytest.mark.parametrize("top_p", [0, 1.5])
def test_top_p_is_checked(top_p: float) -> None:
    with pytest.raises(ValueError, match=str(top_p)):
        with_top_p(TableModel(uniform), top_p)
    with pytest.raises(ValueError, match="sum to 1"):
        with_top_p(TableModel(uniform, normalized=False), 0.9)


def test_top_p_keeps_the_most_probable_tokens() -> None:
    model = with_top_p(trie({(): {A: 0.5, B: 0.3, C: 0.15, EOS: 0.05}}), 0.75)
    scores = model.step(model.start(model.encode(*sources(0))), torch.tensor([1])).scores
    assert model.output.log_probs(scores).exp()[0].tolist() == pytest.approx([0, 0, 0, 0, 0.625, 0.375, 0])
    nothing = torch.full((1, 7), -torch.inf, dtype=torch.float64)
    assert (model.output.log_probs(nothing) == -torch.inf).all()


def test_an_automaton_that_takes_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(automata, "WORK", 20)
    with pytest.raises(ValueError, match="needs more than 20 steps to compile: simplify it"):
        Pattern("(a|b)*a(a|b){3}", VOCABULARY)
    monkeypatch.setattr(automata, "WORK", 150)
    with pytest.raises(ValueError, match="needs more than 150 steps"):
        Pattern("(a?){9}a*", VOCABULARY)  # few states, but many ways to reach them


def test_lists_of_strings_above_the_state_limit_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(automata, "STATES", 5)
    Pattern(["abab"], VOCABULARY)
    with pytest.raises(ValueError, match="the list of 2 strings needs more than 5 states: shorten it"):
        Pattern(["abab", "ba"], VOCABULARY)


def test_match_rejects_restricted_models() -> None:
    model = RNNSeq2Seq(20, 7, d_model=8, output="softmax")
    some = restrict(model, Pattern("a?", ["", "", "", "", "a", "b", "c"]))
    for restricted in (some, with_top_p(some, 0.9), Ensemble([some, some]), with_temperature(some, 2.0)):
        with pytest.raises(ValueError, match="those of a restricted model do not"):
            match(restricted, torch.tensor([[4, 5]]), torch.tensor([2]), [])


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16])
def test_lengths_of_small_integer_types_do_not_overflow(dtype: torch.dtype) -> None:
    model = restrict(RNNSeq2Seq(20, 6, d_model=8, output="sparsemax"), Pattern("a{300}|b", ["", "", "", "", "a", "b"]))
    (result,) = beam_search(model, torch.tensor([[4, 5]]), torch.tensor([2], dtype=dtype), max_length=2)
    assert {hypothesis.tokens for hypothesis in result.hypotheses} <= {(5,)}
