"""The options that say how outputs are searched for, drawn or chosen: which of them go together, and the search.

They have the names of the command's options; those of Python's keywords are in :data:`KEYWORDS`.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tsallis.errors import check_real, check_whole
from tsallis.search_budget import EXPANSIONS, LENGTH, MOST, MOST_EXPANSIONS, PENALTY

if TYPE_CHECKING:
    from tsallis.config import SearchConfig
    from tsallis.models.batch import Batch
    from tsallis.search import Hypothesis, Result
    from tsallis.tasks.base import Task
    from tsallis.training import Run

NEEDS = {
    "--budget": ("--all", "--exact"),
    "--time": ("--all", "--exact"),
    "--mass": ("--all", "--exact"),
    "--seed": ("--sample",),
    "--temperature": ("--sample",),
}
REFUSALS = {
    ("--all", "--exact"): "--all lists every output, --exact proves the best: one of the two",
    ("--all", "--sample"): "--all lists every output, --sample draws some: one of the two",
    ("--exact", "--sample"): "--exact proves the best output, --sample draws some: one of the two",
    ("--beam", "--all"): "--beam is for beam search: --all searches without a beam (--budget limits it)",
    ("--beam", "--exact"): "--beam is for beam search: --exact answers the same for every beam (--budget limits it)",
    ("--beam", "--sample"): "--beam is for beam search: --sample draws without a beam",
    ("--nbest", "--sample"): "--nbest is for searches: --sample itself says how many outputs are drawn",
    ("--nbest", "--mbr"): "--nbest is for lists: --mbr chooses one output",
    ("--exact", "--mbr"): "--exact proves the most probable output, --mbr chooses by risk: one of the two",
    ("--length-penalty", "--mbr"): "--length-penalty ranks outputs, --mbr weighs them by their probability",
    ("--length-penalty", "--sample"): "--length-penalty ranks outputs, --sample draws them by their probability",
    ("--min-length", "--sample"): "--min-length is for searches: --sample draws as the model has it",
    ("--competing-ends", "--all"): "--competing-ends is for beam search: --all lists every output",
    ("--competing-ends", "--exact"): "--competing-ends is for beam search: --exact proves the best of all outputs",
    ("--competing-ends", "--sample"): "--competing-ends is for beam search: --sample draws as the model has it",
    ("--every-end", "--all"): "--every-end is for beam search: --all lists every output",
    ("--every-end", "--exact"): "--every-end is for beam search: --exact proves the best of all outputs",
    ("--every-end", "--sample"): "--every-end is for beam search: --sample draws as the model has it",
    ("--competing-ends", "--every-end"): "--competing-ends leaves endings out, --every-end none: one of the two",
    ("--prefix", "--prefix-column"): "--prefix is for all lines, --prefix-column for each its own: one of the two",
}
WHOLE: dict[str, tuple[int, int]] = {
    "--nbest": (1, MOST),
    "--beam": (1, MOST),
    "--budget": (1, MOST_EXPANSIONS),
    "--sample": (1, MOST),
    "--seed": (0, 2**62),
    "--min-length": (0, LENGTH),
    "--max-length": (1, LENGTH),
}
REAL: dict[str, tuple[float, float, bool]] = {  # True: the ends are outside
    "--time": (0, math.inf, False),
    "--mass": (0, 1, True),
    "--length-penalty": (0, PENALTY, False),
    "--temperature": (0, math.inf, True),
}
# What Python calls an option, where it is not the option's own name.
KEYWORDS = {
    "--all": "exhaustive",
    "--nbest": "n_best",
    "--beam": "beam_size",
    "--time": "seconds",
    "--prefix-column": "prefixes",
    "--samples": "n",
    "--every-end": "competing_ends=False",
}


@dataclass(frozen=True)
class SearchOptions:
    """The options of a search, as they were given; those that were not are None, False or 0."""

    nbest: int | None = None
    beam: int | None = None
    every: bool = False
    exact: bool = False
    budget: int | None = None
    time: float | None = None
    mass: float | None = None
    sample: int | None = None
    seed: int | None = None
    temperature: float | None = None
    mbr: bool = False
    prefix: str | None = None
    prefix_column: bool = False
    min_length: int | None = None
    max_length: int | None = None
    length_penalty: float | None = None
    competing_ends: bool = False
    every_end: bool = False

    def check(self, without: Sequence[str] = ()) -> None:
        """Refuse options that say nothing beside each other, and values that can't be.

        Args:
            without: options that the command doesn't have, which messages leave out.

        Raises:
            InputError: the first such option or pair.
        """
        from tsallis.errors import InputError

        names = self._by_name()
        active = {name for name, value in names.items() if value is not None and value is not False}
        for pair, message in REFUSALS.items():
            if active.issuperset(pair):
                raise InputError(message)
        for name, others in NEEDS.items():
            if name in active and not active.intersection(others):
                raise InputError(f"{name} is for {' and '.join(other for other in others if other not in without)}")
        self._check_values(names)
        if self.mass is not None and self.exact and (self.nbest or 1) == 1:
            raise InputError("--mass is for lists: --exact ends once its output is proved (--all, --nbest)")
        if self.min_length is not None and self.max_length is not None and self.min_length > self.max_length:
            raise InputError(f"--min-length {self.min_length} is above --max-length {self.max_length}")

    def _by_name(self) -> dict[str, Any]:
        """Return the value of each option by its name."""
        names = {f"--{name.replace('_', '-')}": value for name, value in vars(self).items()}
        names["--all"] = names.pop("--every")
        return names

    def _check_values(self, names: dict[str, Any]) -> None:
        """Refuse values of a wrong kind or size.

        Raises:
            InputError: the first such value.
        """
        for name, (first, last) in WHOLE.items():
            if names[name] is not None:
                check_option(check_whole, name, names[name], first, last)
        for name, (least, most, inside) in REAL.items():
            if names[name] is not None:
                check_option(check_real, name, names[name], least, most, inside=inside)

    def check_run(self, run: Run) -> None:
        """Refuse a mass, or a temperature, where outputs don't sum to 1.

        Raises:
            InputError: such a run.
        """
        from tsallis.errors import InputError

        if self.mass is not None and not run.model.output.normalized:
            raise InputError(
                f"--mass is for outputs that sum to 1: {run.folder} has an alpha-ReLU, whose values do not"
            )
        check_tempered_run(run, self.temperature)

    @property
    def ends(self) -> bool | None:
        """Whether endings compete; None: as the run has it."""
        return True if self.competing_ends else False if self.every_end else None

    @property
    def many(self) -> bool:
        """True where a line has a list of outputs."""
        return not self.mbr and (self.every or self.exact or self.sample is not None or (self.nbest or 1) > 1)

    @property
    def limits(self) -> dict[str, Any]:
        """The limits of a search that were given."""
        penalty = None if self.length_penalty is None else float(self.length_penalty)
        limits = {"min_length": self.min_length, "max_length": self.max_length, "length_penalty": penalty}
        return {name: value for name, value in limits.items() if value is not None}

    def with_defaults(self, defaults: SearchConfig) -> SearchOptions:
        """Return the options with the limits of a configuration where they say none, as far as those have an effect.

        Raises:
            InputError: a length that contradicts one of the configuration.
        """
        from tsallis.errors import InputError

        limits = defaults.limits
        if self.sample is not None:
            limits.pop("min_length", None)
        if self.sample is not None or self.mbr:
            limits.pop("length_penalty", None)
        options = replace(self, **{**limits, **self.limits})
        least, most = options.min_length, options.max_length
        if least is not None and most is not None and least > most:
            if self.max_length is None:
                message, other = f"--min-length {least} is above search.max_length {most}", "--max-length"
            else:
                message, other = f"--max-length {most} is below search.min_length {least}", "--min-length"
            raise InputError(f"{message} of the run's configuration: give {other}, too")
        return options

    def spell(
        self, run: Run, task: Task, beginnings: Sequence[str], origins: Sequence[str], limit: str = "--max-length"
    ) -> list[list[int]] | None:
        """Return the symbols that each row's output begins with.

        Args:
            run: whose symbols.
            task: that spells.
            beginnings: the text of each row.
            origins: the place of each row, for messages.
            limit: what messages call the greatest length.

        Raises:
            InputError: a beginning with a symbol that the run does not know, or that is longer than an output may be.
        """
        from tsallis.errors import InputError, shorten
        from tsallis.special_symbols import UNK

        if self.prefix is None and not self.prefix_column:
            return None
        tokens = []
        for text, origin in zip(beginnings, origins, strict=True):
            start = text if self.prefix is None else self.prefix
            symbols = task.spell(start, run) if start else []
            where = origin if self.prefix is None else "--prefix"
            if UNK in symbols:
                raise InputError(f"{where}: the beginning {shorten(start)} holds symbols that {run.folder} never gives")
            if self.max_length is not None and len(symbols) > self.max_length:
                length = f"{len(symbols)} symbols, {limit} is {self.max_length}"
                raise InputError(f"{where}: the beginning {shorten(start)} has {length}")
            tokens.append(symbols)
        return tokens

    def draw(
        self, run: Run, task: Task, batch: Batch, prefixes: list[list[int]] | None, lines: Sequence[int]
    ) -> list[list[Hypothesis | None]]:
        """Draw outputs of a batch; their probabilities are those of their texts.

        Args:
            run: with the model.
            task: of the run.
            batch: of sources.
            prefixes: that the outputs begin with.
            lines: the numbers of the rows' lines, from 1: draws depend on them and on the seed alone.
        """
        from tsallis.evaluation.text_probabilities import join_draws
        from tsallis.search.sampling import line_seed, sample
        from tsallis.search.temperature import with_temperature

        seeds = [line_seed(self.seed or 0, line) for line in lines]
        options: dict[str, Any] = {"prefixes": prefixes, "max_length": self.max_length, "seeds": seeds}
        model = with_temperature(run.model, 1.0 if self.temperature is None else float(self.temperature))
        draws = sample(model, batch.src, batch.src_lengths, self.sample or 1, **options)
        text = task.ambiguous_text(run.tgt_vocab)
        return draws if text is None else join_draws(model, batch, draws, run.tgt_vocab)

    def search(
        self, run: Run, task: Task, batch: Batch, prefixes: list[list[int]] | None, defaults: SearchConfig
    ) -> list[Result]:
        """Search for outputs of a batch; what the options leave open is as `defaults` say."""
        from tsallis.search import beam_search, exact_search, exhaustive

        n_best = self.nbest or 1
        text = task.ambiguous_text(run.tgt_vocab)
        common: dict[str, Any] = {"prefixes": prefixes, "text": text, **self.limits}
        budgets: dict[str, Any] = {"budget": self.budget or EXPANSIONS, "seconds": self.time, "mass": self.mass}
        beam = defaults.beam(self.beam, self.ends, n_best)
        model, src, lengths = run.model, batch.src, batch.src_lengths
        if self.every:
            return exhaustive(model, src, lengths, n_best=self.nbest, **budgets, **common)
        if self.exact:
            return exact_search(model, src, lengths, n_best=n_best, beam_size=beam["beam_size"], **budgets, **common)
        return beam_search(model, src, lengths, n_best=None if self.mbr else n_best, **beam, **common)


def check_option(check: Callable[..., object], name: str, value: Any, *span: Any, **options: Any) -> None:
    """Check the value of an option by a check of Python's functions.

    Raises:
        InputError: what the check refuses.
    """
    from tsallis.errors import InputError

    try:
        check(name, value, *span, **options)
    except (TypeError, ValueError) as error:
        raise InputError(str(error)) from None


def check_temperature(temperature: float | None) -> None:
    """Refuse a temperature that can't be.

    Raises:
        InputError: what is no number above 0, or not finite.
    """
    if temperature is not None:
        check_option(check_real, "--temperature", temperature, inside=True)


def check_tempered_run(run: Run, temperature: float | None) -> None:
    """Refuse a temperature for a run whose outputs don't sum to 1.

    Raises:
        InputError: such a run.
    """
    from tsallis.errors import InputError

    if temperature not in (None, 1) and not run.model.output.normalized:
        raise InputError(
            f"--temperature is for outputs that sum to 1: {run.folder} has an alpha-ReLU, whose threshold is fixed"
        )


# Of Python's keywords that are called as the option is; what else looks like one is a part of somebody's line.
NAMES = {*SearchOptions.__dataclass_fields__, "language", "images", "alignment", "length"}


@contextlib.contextmanager
def keywords() -> Iterator[None]:
    """Name options in messages as Python's keywords are called.

    >>> from tsallis.errors import InputError
    >>> with keywords():
    ...     raise InputError("--beam is for beam search: --all searches without a beam")
    Traceback (most recent call last):
    tsallis.errors.InputError: beam_size is for beam search: exhaustive searches without a beam
    """
    from tsallis.errors import InputError

    try:
        yield
    except InputError as error:
        raise InputError(re.sub(r"(?<![\w-])--[a-z]+(?:-[a-z]+)*", _keyword, str(error))) from None


def _keyword(option: re.Match[str]) -> str:
    name = option[0].removeprefix("--").replace("-", "_")
    return KEYWORDS.get(option[0], name if name in NAMES else option[0])
