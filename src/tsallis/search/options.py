"""Define the options of searches: names, types, ranges and defaults.

Python, the commands, the section `search` of a configuration and the JSON API all read this module.
This module imports nothing heavy: the commands read it before they print their help.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType, NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from tsallis.errors import OptionError, choice_error, describe, integer_error, real_error
from tsallis.search.regex import parse

Mode = Literal["beam", "exact", "all", "sample"]
EndRule = Literal["every", "competing"]

MODES: tuple[Mode, ...] = get_args(Mode)
END_RULES: tuple[EndRule, ...] = get_args(EndRule)
EXPANSIONS = 10_000  # the default of `budget`
MAX_COUNT = 1_000  # the largest beam, list or number of draws
MAX_EXPANSIONS = 1_000_000
PENALTY = 10  # the largest length penalty; larger powers of a length could overflow
LENGTH = 100_000  # the largest length of an output
MIN_TEMPERATURE = 1e-300  # scores that are divided by a smaller number could overflow


@dataclass(frozen=True)
class OptionInfo:
    """Help text, modes, range and default of a search option.

    Args:
        help: One sentence for `--help` and for pages.
        modes: The modes that the option is for.
        minimum, maximum: The range of a number.
        inside: Whether the ends of the range are excluded.
        default: The value that a search uses if none is given.
        of_runs: Whether the configuration of a run may set the option.
    """

    help: str
    modes: tuple[Mode, ...] = MODES
    minimum: float = 0
    maximum: float = math.inf
    inside: bool = False
    default: Any = None
    of_runs: bool = False


def _option(help: str, *modes: Mode, unset: Any = None, **details: Any) -> Any:
    """Return the field of an option. `unset` is the value of an option that is not given."""
    return field(default=unset, metadata={"info": OptionInfo(help, modes or MODES, **details)})


@dataclass(frozen=True)
class SearchOptions:
    """Options of a search. None means that an option is not given: the run or the search then sets it.

    Equal options are equal objects, and can be keys of dictionaries.

    Args:
        {options}

    Raises:
        OptionError: A value has a wrong type or is out of range, or two options contradict each other.

    Example:
        >>> SearchOptions(mode="exact", n_best=3, time_limit=2).given
        {'mode': 'exact', 'n_best': 3, 'time_limit': 2.0}
        >>> SearchOptions(beam_size=0)
        Traceback (most recent call last):
        tsallis.errors.OptionError: beam_size must be a whole number from 1 to 1000, got 0
        >>> SearchOptions(mode="all", seed=1)
        Traceback (most recent call last):
        tsallis.errors.OptionError: seed applies only to mode sample, got mode all
    """

    mode: Mode = _option(  # noqa: RUF009 (it calls `field`)
        "Search method. beam (the default): beam search. exact: the best outputs, with a proof. all: all possible "
        "outputs. sample: random outputs.",
        unset="beam",
        default="beam",
    )
    beam_size: int | None = _option(
        "Number of prefixes that the beam keeps per source (default: the run's setting, or the number of outputs if "
        "larger).",
        *("beam", "exact"),
        minimum=1,
        maximum=MAX_COUNT,
        default=5,
        of_runs=True,
    )
    n_best: int | None = _option(
        "Number of outputs per source, best first (default: 1; mode all returns all outputs by default).",
        *("beam", "exact", "all"),
        minimum=1,
        maximum=MAX_COUNT,
    )
    budget: int | None = _option(
        f"Maximum number of prefixes to expand per source (default: {EXPANSIONS}).",
        *("exact", "all"),
        minimum=1,
        maximum=MAX_EXPANSIONS,
        default=EXPANSIONS,
    )
    time_limit: float | None = _option(
        "Maximum search time per source, in seconds (default: no limit).", "exact", "all"
    )
    mass: float | None = _option(
        "For each source, stop once the outputs found have this total probability, between 0 and 1.",
        "exact",
        "all",
        maximum=1,
        inside=True,
    )
    num_samples: int | None = _option(
        "Number of outputs to draw per source (default: 1).", "sample", minimum=1, maximum=MAX_COUNT, default=1
    )
    seed: int | None = _option("Random seed for sampling (default: 0).", "sample", maximum=2**62, default=0)
    temperature: float | None = _option(
        "Divide the scores by this number before sampling; numbers below 1 favour likely symbols (default: 1).",
        "sample",
        inside=True,
        default=1.0,
    )
    prefix: str | None = _option("Text that every output starts with.")
    pattern: str | None = _option(
        "Regular expression that every output must match as a whole; certificates cover only matching outputs."
    )
    min_length: int | None = _option(
        "Minimum number of symbols per output (default: the run's setting).",
        *("beam", "exact", "all"),
        maximum=LENGTH,
        default=0,
        of_runs=True,
    )
    max_length: int | None = _option(
        "Maximum number of symbols per output (default: the run's setting, or 20 plus twice the source length).",
        minimum=1,
        maximum=LENGTH,
        of_runs=True,
    )
    length_penalty: float | None = _option(
        "Exponent p: outputs are ranked by log-probability / length^p (default: the run's setting).",
        *("beam", "exact", "all"),
        maximum=PENALTY,
        default=0.0,
        of_runs=True,
    )
    end_rule: EndRule | None = _option(  # noqa: RUF009
        "Finished outputs that beam search keeps. every: all of them. competing: only those whose end symbol "
        "is among the best continuations of the beam, as in other toolkits (default: the run's setting).",
        "beam",
        default="every",
        of_runs=True,
    )
    min_risk: bool = _option(
        "Return the output found or drawn with the best expected score (minimum Bayes risk): chrF for translations, "
        "edit distance for strings.",
        *("beam", "all", "sample"),
        unset=False,
        default=False,
    )

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            if value is not None or option.default is not None:
                object.__setattr__(self, option.name, _convert_option(option.name, value))
        if unsupported := [name for name in self.given if self.mode not in OPTIONS[name].modes]:
            name, modes = unsupported[0], " or ".join(OPTIONS[unsupported[0]].modes)
            raise OptionError(
                lambda spell: f"{spell(name)} applies only to {spell('mode')} {modes}, got {spell('mode')} {self.mode}"
            )
        if self.min_risk and (ranks := sorted(RANKING_OPTIONS & self.given.keys())):
            raise OptionError(
                lambda spell: (
                    f"use either {spell(ranks[0])} or {spell('min_risk')}, not both: {spell('min_risk')} ranks by risk "
                    "and returns one output"
                )
            )
        if self.mass is not None and self.mode == "exact" and (self.n_best or 1) == 1:
            raise OptionError(
                lambda spell: (
                    f"{spell('mass')} {self.mass:g} needs {spell('n_best')} above 1 or {spell('mode')} all, got "
                    f"{spell('n_best')} 1 and {spell('mode')} exact"
                )
            )
        if self.temperature is not None and self.temperature < MIN_TEMPERATURE:
            raise OptionError(
                lambda spell: f"{spell('temperature')} must be at least {MIN_TEMPERATURE:g}, got {self.temperature:g}"
            )
        if self.pattern is not None:
            try:
                parse(self.pattern)
            except ValueError as error:
                fault = str(error)
                raise OptionError(lambda spell: f"{spell('pattern')}: {fault}") from None
        min_length, max_length = self.min_length, self.max_length
        if min_length is not None and max_length is not None and min_length > max_length:
            raise OptionError(
                lambda spell: (
                    f"{spell('min_length')} must be at most {spell('max_length')} {max_length}, got {min_length}"
                )
            )

    @property
    def given(self) -> dict[str, Any]:
        """Return the options, by name, whose values differ from the values of `SearchOptions()`."""
        return {x.name: value for x in fields(self) if (value := getattr(self, x.name)) != x.default}

    @property
    def arguments(self) -> dict[str, Any]:
        """Return the given options that a search of this mode takes as keyword arguments.

        The toolkit itself handles the remaining options: the mode, the seed, the prefix, the pattern and the choice of
        least risk.
        """
        return {name: value for name, value in self.given.items() if name not in OF_TEXTS}

    @property
    def returns(self) -> Literal["best", "list", "draws", "choice"]:
        """Return the kind of result: "best", "list", "draws" or "choice" (the output of least risk)."""
        if self.min_risk or self.mode == "sample":
            return "choice" if self.min_risk else "draws"
        return "best" if self.mode == "beam" and (self.n_best or 1) == 1 else "list"

    @property
    def limits(self) -> dict[str, Any]:
        """Return the given `min_length`, `max_length` and `length_penalty`; certificates hold within these limits."""
        return {name: value for name, value in self.given.items() if name in LIMITS}

    @property
    def without_limits(self) -> SearchOptions:
        """Return a copy without `min_length`, `max_length` and `length_penalty`."""
        unset: dict[str, Any] = dict.fromkeys(LIMITS)
        return replace(self, **unset)

    def with_defaults(self, defaults: SearchOptions) -> SearchOptions:
        """Return a copy whose missing options are filled from `defaults`, if the mode uses them.

        Raises:
            OptionError: A length contradicts one of the defaults.

        Example:
            >>> SearchOptions(n_best=7).with_defaults(SearchOptions(beam_size=5, end_rule="every")).given
            {'beam_size': 7, 'n_best': 7, 'end_rule': 'every'}
        """
        filled = {}
        for name, value in defaults.given.items():
            is_used = self.mode in OPTIONS[name].modes and not (self.min_risk and name in RANKING_OPTIONS)
            if getattr(self, name) is None and is_used:
                filled[name] = max(value, self.n_best or 1) if name == "beam_size" else value
        min_length, max_length = (filled.get(name, getattr(self, name)) for name in ("min_length", "max_length"))
        if min_length is not None and max_length is not None and min_length > max_length:
            option, default_option = (
                ("min_length", "max_length") if self.max_length is None else ("max_length", "min_length")
            )
            relation = "above" if option == "min_length" else "below"
            raise OptionError(
                lambda spell: (
                    f"{spell(option)} {getattr(self, option)} is {relation} the run's search.{default_option} "
                    f"{filled[default_option]}: set {spell(default_option)}, too"
                )
            )
        return replace(self, **filled)


# Four groups: options that only the toolkit uses, that limit outputs, that rank outputs, and that limit proofs.
OF_TEXTS = frozenset({"mode", "seed", "prefix", "pattern", "min_risk"})
LIMITS = frozenset({"min_length", "max_length", "length_penalty"})
RANKING_OPTIONS = frozenset({"n_best", "length_penalty"})
PROOF_OPTIONS = ("budget", "time_limit", "max_length")

OPTIONS: Mapping[str, OptionInfo] = MappingProxyType({x.name: x.metadata["info"] for x in fields(SearchOptions)})


def _type_of(hint: Any) -> Any:
    """Return a type without None."""
    if get_origin(hint) is Literal or not get_args(hint):
        return hint
    return next(kind for kind in get_args(hint) if kind is not NoneType)


TYPES: Mapping[str, Any] = MappingProxyType(
    {name: _type_of(hint) for name, hint in get_type_hints(SearchOptions).items() if name in OPTIONS}
)


def _convert_option(name: str, value: Any) -> Any:
    """Return the value of an option, converted to the option's type.

    Raises:
        OptionError: The value has another type or is out of range.
    """
    info, kind = OPTIONS[name], TYPES[name]
    if kind is int:
        fault = integer_error(value, int(info.minimum), int(info.maximum))
        value = value if fault else operator.index(value)
    elif kind is float:
        fault = real_error(value, info.minimum, info.maximum, inside=info.inside)
        value = value if fault else float(value)
    elif get_origin(kind) is Literal:
        fault = choice_error(value, get_args(kind))
    else:
        words = "a string" if kind is str else "True or False"
        fault = "" if isinstance(value, kind) else f"must be {words}, got {describe(value)}"
    if fault:
        raise OptionError(lambda spell: f"{spell(name)} {fault}")
    return value


# Each option is described once, in its field.
SearchOptions.__doc__ = (SearchOptions.__doc__ or "").replace(
    "        {options}", "\n".join(f"        {name}: {info.help}" for name, info in OPTIONS.items())
)
