"""Fields of requests: every invalid field is rejected with an error that names it."""

from __future__ import annotations

import json
from inspect import signature
from typing import Any

import pytest

from tsallis.errors import OptionError
from tsallis.search import exact_search, exhaustive
from tsallis.search.options import EXPANSIONS, MODES, OPTIONS, TYPES
from tsallis.toolkit.serve.limits import Limits, Refusal
from tsallis.toolkit.serve.requests import (
    AttentionRequest,
    ProveRequest,
    Request,
    StepsRequest,
    SuggestRequest,
    TranslateRequest,
    parse_request,
)

LIMITS = Limits(symbols=5, sources=2, outputs=7)


def parse(schema: type[Request], content: Any) -> Request:
    return parse_request(content if isinstance(content, bytes) else json.dumps(content).encode(), schema, LIMITS)


def test_valid_requests_are_parsed_and_keyed_by_options() -> None:
    request = parse(TranslateRequest, {"sources": ["a\tV"], "n_best": 7, "max_length": 30, "tree": True})
    assert isinstance(request, TranslateRequest)
    assert (request.sources, request.options.n_best, request.options.mode, request.run) == (["a\tV"], 7, "beam", None)
    other = parse(TranslateRequest, {"sources": ["b\tV"], "n_best": 7, "max_length": 30, "tree": True})
    assert isinstance(other, TranslateRequest) and other.key == request.key
    third = parse(TranslateRequest, {"sources": ["b\tV"], "n_best": 6, "max_length": 30, "tree": True})
    assert isinstance(third, TranslateRequest) and third.key != request.key


@pytest.mark.parametrize(
    ("schema", "content", "message"),
    [
        (ProveRequest, {"sources": []}, "sources must not be empty, got []"),
        (ProveRequest, {"sources": ["a"]}, "use either never or always, got neither"),
        (ProveRequest, {"sources": ["a"], "never": "a", "always": "b"}, "use either never or always, got both"),
        (ProveRequest, {"sources": ["a"], "never": "(?=a)"}, "never: .*look-around"),
        (ProveRequest, {"sources": ["a"], "never": ["a" * 41]}, "a pattern must have at most 40 characters, got 41"),
        (ProveRequest, {"sources": ["a"], "never": "a", "at_least": 2}, "at_least"),
        (ProveRequest, {"sources": ["a"], "never": "a", "budget": EXPANSIONS + 1}, "budget must be at most"),
        (ProveRequest, {"sources": ["a"], "never": "a", "n_best": 2}, "n_best: unknown key"),
        (TranslateRequest, b"", "not JSON: EOF"),
        (TranslateRequest, b"{", "not JSON: EOF"),
        (TranslateRequest, b'{"sources": ["\xff"]}', "not JSON: invalid unicode"),
        (TranslateRequest, b'{"sources": ["\\ud800"]}', "not JSON: .*hex escape"),
        (TranslateRequest, b"[" * 100_000, "not JSON: recursion"),
        (TranslateRequest, [], "expected a JSON object, found []"),
        (TranslateRequest, {}, "sources: missing"),
        (TranslateRequest, {"sources": "a"}, "sources: input should be a valid array, found 'a'"),
        (TranslateRequest, {"sources": []}, "sources must not be empty, got []"),
        (TranslateRequest, {"sources": [1]}, "sources.0: input should be a valid string, found 1"),
        (TranslateRequest, {"sources": ["a"] * 3}, "the number of sources must be at most 2, got 3"),
        (TranslateRequest, {"sources": ["a" * 41]}, "a source must have at most 40 characters, got 41"),
        (TranslateRequest, {"sources": ["a\nb"]}, "one line, got a line break"),
        (TranslateRequest, {"sources": ["a\0b"]}, "must not contain a null character"),
        (TranslateRequest, {"sources": ["a"], "x": 1}, "x: unknown key"),
        (TranslateRequest, {"sources": ["a"], "mode": "best"}, "mode: input should be 'beam'"),
        (TranslateRequest, {"sources": ["a"], "n_best": 8}, "n_best must be at most 7, got 8"),
        (TranslateRequest, {"sources": ["a"], "n_best": 0}, "n_best: input should be greater than or equal to 1"),
        (TranslateRequest, {"sources": ["a"], "n_best": 1.0}, "n_best: input should be a valid integer"),
        (TranslateRequest, {"sources": ["a"], "n_best": True}, "n_best: input should be a valid integer"),
        (TranslateRequest, b'{"sources": ["a"], "n_best": ' + b"9" * 5000 + b"}", "."),
        (TranslateRequest, {"sources": ["a"], "beam_size": 10**30}, f"beam_size: input .* 1000, found {10**30}"),
        (TranslateRequest, {"sources": ["a"], "beam_size": 10**100}, "beam_size: .* found an integer of 333 bits"),
        (TranslateRequest, {"sources": ["a"], "max_length": 10**30}, f"max_length: input .* 100000, found {10**30}"),
        (TranslateRequest, {"sources": ["a"], "mode": "exact", "mass": 0.5}, "mass 0.5 needs n_best above 1"),
        (TranslateRequest, {"sources": ["a"], "max_length": 31}, "max_length must be at most 30, got 31"),
        (TranslateRequest, {"sources": ["a"], "prefix": "a" * 41}, "the prefix must have at most 40 characters"),
        (TranslateRequest, {"sources": ["a"], "min_length": 4, "max_length": 3}, "min_length .* max_length 3, got 4"),
        (TranslateRequest, b'{"sources": ["a"], "length_penalty": NaN}', "length_penalty: input should be a finite"),
        (TranslateRequest, {"sources": ["a"], "mode": "exact", "mass": 1}, "mass: input should be less than 1"),
        (TranslateRequest, {"sources": ["a"], "mode": "all", "budget": 10**6}, "budget .* at most 10000, got 1000000"),
        (SuggestRequest, {"source": "a", "typed": "a" * 41}, "the typed text must have at most 40 characters"),
        (TranslateRequest, {"sources": ["a"], "mode": "all", "time_limit": 60.0}, "time_limit .* at most 10, got 60"),
        (SuggestRequest, b'{"source": "a", "source": "b"}', "source must occur once, got 2 values"),
        (TranslateRequest, b'{"n_best": 2, "sources": ["a"], "n_best": 3}', "n_best must occur once, got 2 values"),
        (TranslateRequest, {"sources": ["a"], "mode": "sample", "temperature": 1e-301}, "temperature .* 1e-300, got"),
        (SuggestRequest, {"source": "a", "n_best": 8}, "n_best must be at most 7"),
        (StepsRequest, {"source": "a", "n_best": 8}, "n_best must be at most 7"),
        (SuggestRequest, {"source": ["a"]}, "source: input should be a valid string"),
        (StepsRequest, {"source": "a", "output": "a", "tokens": [4]}, "send either output or tokens"),
        (StepsRequest, {"source": "a", "output": "a" * 41}, "an output must have at most 40 characters"),
        (StepsRequest, {"source": "a", "tokens": [4] * 31}, "the number of tokens must be at most 30, got 31"),
        (AttentionRequest, {"source": "a", "heads": []}, "heads must not be empty, got []"),
        (AttentionRequest, {"source": "a", "heads": ["cross.1.1"] * 17}, "number of heads must be at most 16, got 17"),
    ],
)
def test_invalid_fields_are_rejected(schema: type[Request], content: Any, message: str) -> None:
    with pytest.raises((Refusal, OptionError), match=message.replace("[", r"\[").replace("]", r"\]")) as refusal:
        parse(schema, content)
    assert getattr(refusal.value, "status", 400) == 400
    assert len(str(refusal.value)) < 500 and "\n" not in str(refusal.value)


def test_byte_order_marks_are_removed() -> None:
    marked = "\ufeffa"
    assert parse(TranslateRequest, {"sources": [marked, "a\ufeff"]}).sources == ["a", "a\ufeff"]  # type: ignore[attr-defined]
    suggest = parse(SuggestRequest, {"source": marked, "typed": marked})
    steps = parse(StepsRequest, {"source": marked, "output": marked})
    assert isinstance(suggest, SuggestRequest) and isinstance(steps, StepsRequest)
    assert (suggest.source, suggest.typed, steps.source, steps.output) == ("a",) * 4


def test_the_largest_budget_is_the_default_of_exact_search() -> None:
    defaults = {signature(search).parameters["budget"].default for search in (exact_search, exhaustive)}
    assert defaults == {EXPANSIONS}
    content = {"sources": ["a"], "mode": "exact", "budget": EXPANSIONS}
    assert parse(TranslateRequest, content).model_dump()["budget"] == EXPANSIONS
    with pytest.raises(Refusal):
        parse(TranslateRequest, content | {"budget": EXPANSIONS + 1})


@pytest.mark.parametrize("outputs", [1, 4, 100])
def test_requests_without_n_best_are_valid_under_any_limit(outputs: int) -> None:
    limits = Limits(outputs=outputs)
    for schema in (SuggestRequest, StepsRequest):
        assert parse_request(b'{"source": "a"}', schema, limits).n_best is None  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", [*(name for name in OPTIONS if name != "mode"), "tree"])
def test_options_without_effect_in_a_mode_are_rejected(name: str) -> None:
    values = {"mass": 0.5, "tree": True, "end_rule": "every"}
    values |= {option: {bool: True, str: "a"}.get(kind, 1) for option, kind in TYPES.items() if option not in values}
    modes = OPTIONS[name].modes if name in OPTIONS else ("beam", "exact", "all")
    for mode in MODES:
        content = {"sources": ["a"], "mode": mode, name: values[name]}
        content |= {"n_best": 2} if (name, mode) == ("mass", "exact") else {}
        if mode in modes:
            parse(TranslateRequest, content)
        else:
            with pytest.raises((Refusal, OptionError), match=f"{name} (applies|can't).* mode {mode}"):
                parse(TranslateRequest, content)
