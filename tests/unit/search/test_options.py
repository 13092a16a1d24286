"""Search options: their checks, their defaults from a run, and search arguments of the same names."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError
from inspect import signature
from typing import Any

import pytest

from tsallis.errors import InputError, OptionError
from tsallis.search import beam_search, exact_search, exhaustive, generate, sample
from tsallis.search.options import LIMITS, MODES, OPTIONS, TYPES, SearchOptions

SEARCHES = {"beam": beam_search, "exact": exact_search, "all": exhaustive, "sample": sample}
VALUES = {int: 3, float: 0.5, str: "a", bool: True}
CASES = [(name, mode) for name in OPTIONS for mode in MODES if name != "mode"]


def value_of(name: str) -> Any:
    return VALUES.get(TYPES[name], "competing")


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_each_option_works_in_its_modes_and_raises_elsewhere(name: str, mode: Any) -> None:
    others = {"n_best": 3} if (name, mode) == ("mass", "exact") else {}
    if mode in OPTIONS[name].modes:
        options = SearchOptions(mode=mode, **{name: value_of(name), **others})
        assert options.given[name] == value_of(name)
        assert set(options.arguments) <= set(signature(SEARCHES[mode]).parameters) | LIMITS  # exact_search passes them
        return
    with pytest.raises(OptionError, match=f"^{name} applies only to mode .*, got mode {mode}$"):
        SearchOptions(mode=mode, **{name: value_of(name), **others})


def test_search_functions_share_the_option_defaults() -> None:
    for mode, search in SEARCHES.items():
        parameters = signature(search).parameters
        for name, info in OPTIONS.items():
            if name in parameters and name != "n_best":
                assert parameters[name].default == info.default, (mode, name)
    assert {"num_samples", "max_length", "temperature"} <= set(signature(generate).parameters)


INVALID = [
    ({"beam_size": 0}, "beam_size must be a whole number from 1 to 1000, got 0"),
    ({"n_best": 1001}, "n_best must be a whole number from 1 to 1000, got 1001"),
    ({"n_best": True}, "n_best must be a whole number from 1 to 1000, got True"),
    ({"mode": "sample", "num_samples": 1.5}, "num_samples must be a whole number from 1 to 1000, got 1.5"),
    ({"mode": "sample", "seed": -1}, f"seed must be a whole number from 0 to {2**62}, got -1"),
    ({"min_length": -1}, "min_length must be a whole number from 0 to 100000, got -1"),
    ({"max_length": 100_001}, "max_length must be a whole number from 1 to 100000, got 100001"),
    ({"length_penalty": "1"}, "length_penalty must be a number, got '1'"),
    ({"mode": "all", "mass": 1}, "mass must be above 0 and below 1, got 1"),
    ({"mode": "all", "time_limit": math.inf}, "time_limit must be at least 0 and finite, got inf"),
    *(
        ({"mode": "sample", "temperature": value}, f"temperature must be above 0 and finite, got {value}")
        for value in (0, -0.5, math.inf, math.nan)
    ),
    ({"mode": "sample", "temperature": 1e-301}, "temperature must be at least 1e-300, got 1e-301"),
    ({"end_rule": "no"}, "end_rule must be 'every' or 'competing', got 'no'"),
    ({"end_rule": False}, "end_rule must be 'every' or 'competing', got False"),
    ({"min_risk": "no"}, "min_risk must be True or False, got 'no'"),
    ({"min_risk": None}, "min_risk must be True or False, got None"),
    ({"mode": None}, "mode must be 'beam', 'exact', 'all' or 'sample', got None"),
    ({"prefix": 1}, "prefix must be a string, got 1"),
    ({"min_length": 3, "max_length": 2}, "min_length must be at most max_length 2, got 3"),
    ({"min_risk": True, "n_best": 2}, "use either n_best or min_risk, not both"),
    ({"min_risk": True, "length_penalty": 1}, "use either length_penalty or min_risk, not both"),
    ({"mode": "exact", "mass": 0.5}, "mass 0.5 needs n_best above 1 or mode all"),
    ({"mode": "exact", "mass": 0.5, "n_best": 1}, "mass 0.5 needs n_best above 1 or mode all"),
]


@pytest.mark.parametrize(("values", "message"), INVALID)
def test_invalid_options_raise(values: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        SearchOptions(**values)
    assert str(caught.value).startswith(message) and isinstance(caught.value, InputError)
    flags = caught.value.spelled(lambda name: f"--{name.replace('_', '-')}")
    assert "--" in flags and flags.replace("--", "").replace("-", "_") == str(caught.value).replace("-", "_")


def test_options_are_frozen_and_can_be_keys() -> None:
    options = SearchOptions(n_best=2)
    with pytest.raises(FrozenInstanceError):
        options.n_best = 3  # type: ignore[misc]
    assert {options: 1}[SearchOptions(mode="beam", n_best=2)] == 1
    assert SearchOptions(length_penalty=1) == SearchOptions(length_penalty=1.0)


def test_with_defaults_fills_missing_options() -> None:
    defaults = SearchOptions(beam_size=5, min_length=2, max_length=9, length_penalty=0.6, end_rule="competing")
    assert SearchOptions().with_defaults(defaults) == defaults
    given = SearchOptions(beam_size=2, min_length=0, end_rule="every")
    assert given.with_defaults(defaults).given == {**defaults.given, **given.given}
    assert SearchOptions(n_best=7).with_defaults(defaults).beam_size == 7
    assert SearchOptions(n_best=3).with_defaults(defaults).beam_size == 5
    assert SearchOptions(mode="sample").with_defaults(defaults).limits == {"max_length": 9}
    assert SearchOptions(min_risk=True).with_defaults(defaults).limits == {"min_length": 2, "max_length": 9}
    of_all = SearchOptions(mode="all").with_defaults(defaults)
    assert of_all.given == {"mode": "all", "min_length": 2, "max_length": 9, "length_penalty": 0.6}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"min_length": 10}, "min_length 10 is above the run's search.max_length 9: set max_length, too"),
        ({"max_length": 1}, "max_length 1 is below the run's search.min_length 2: set min_length, too"),
    ],
)
def test_a_length_that_contradicts_the_run_is_refused(given: dict[str, int], message: str) -> None:
    with pytest.raises(OptionError, match=f"^{message}$"):
        SearchOptions(**given).with_defaults(SearchOptions(min_length=2, max_length=9))
    SearchOptions(mode="sample", max_length=1).with_defaults(SearchOptions(min_length=2, max_length=9))


EFFECTS = [
    ({}, "best"),
    ({"n_best": 1}, "best"),
    ({"n_best": 2}, "list"),
    ({"mode": "exact", "n_best": 1}, "list"),
    ({"mode": "all"}, "list"),
    ({"mode": "sample"}, "draws"),
    ({"min_risk": True}, "choice"),
    ({"mode": "sample", "min_risk": True}, "choice"),
]


@pytest.mark.parametrize(("options", "returned"), EFFECTS)
def test_options_determine_what_a_search_returns(options: dict[str, Any], returned: str) -> None:
    assert SearchOptions(**options).returns == returned


def test_the_docstring_contains_the_help_of_every_option() -> None:
    for name, info in OPTIONS.items():
        assert f"        {name}: {info.help}\n" in f"{SearchOptions.__doc__}\n"
        assert info.help.endswith(".") and "--" not in info.help
