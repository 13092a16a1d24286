"""The options that say how outputs are searched for, drawn or chosen: which of them go together, and the search."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tsallis.search_budget import EXPANSIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tsallis.config import SearchConfig
    from tsallis.data.batching import Batch
    from tsallis.search import Hypothesis, Result, RiskChoice
    from tsallis.tasks.base import Task
    from tsallis.training import Run

NEEDS = {
    "--budget": ("--all", "--exact"),
    "--time": ("--all", "--exact"),
    "--mass": ("--all", "--exact"),
    "--seed": ("--sample",),
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


@dataclass(frozen=True)
class Answer:
    """The answer to a line: the result of a search, or draws; and the output of least risk, where that is chosen."""

    result: Result | None
    draws: list[Hypothesis | None] | None = None
    choice: tuple[Hypothesis, RiskChoice] | None = None


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
    mbr: bool = False
    prefix: str | None = None
    prefix_column: bool = False
    min_length: int | None = None
    max_length: int | None = None
    length_penalty: float | None = None
    competing_ends: bool = False
    every_end: bool = False

    def check(self, without: Sequence[str] = ()) -> None:
        """Refuse options that say nothing beside each other.

        Args:
            without: options that the command doesn't have, which messages leave out.

        Raises:
            InputError: the first such pair.
        """
        from tsallis.errors import InputError

        names = {f"--{name.replace('_', '-')}": value for name, value in vars(self).items()}
        names["--all"] = names.pop("--every")
        active = {name for name, value in names.items() if value is not None and value is not False}
        for pair, message in REFUSALS.items():
            if active.issuperset(pair):
                raise InputError(message)
        for name, others in NEEDS.items():
            if name in active and not active.intersection(others):
                raise InputError(f"{name} is for {' and '.join(other for other in others if other not in without)}")
        for name in ("--time", "--mass", "--length-penalty"):
            if not math.isfinite(names[name] or 0):
                raise InputError(f"{name} must be finite, got {names[name]}")
        if self.mass is not None and not 0 < self.mass < 1:
            raise InputError(f"--mass must be above 0 and below 1, got {self.mass:g}")
        if self.mass is not None and self.exact and (self.nbest or 1) == 1:
            raise InputError("--mass is for lists: --exact ends once its output is proved (--all, --nbest)")
        if self.min_length is not None and self.max_length is not None and self.min_length > self.max_length:
            raise InputError(f"--min-length {self.min_length} is above --max-length {self.max_length}")

    def check_run(self, run: Run) -> None:
        """Refuse a mass where outputs have none that is known.

        Raises:
            InputError: such a run.
        """
        from tsallis.errors import InputError

        if self.mass is not None and not run.model.output.normalized:
            raise InputError(
                f"--mass is for outputs that sum to 1: {run.folder} has an alpha-ReLU, whose values do not"
            )

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
        limits = {"min_length": self.min_length, "max_length": self.max_length, "length_penalty": self.length_penalty}
        return {name: value for name, value in limits.items() if value is not None}

    def spell(self, run: Run, task: Task, beginnings: Sequence[str], origins: Sequence[str]) -> list[list[int]] | None:
        """Return the symbols that each row's output begins with.

        Args:
            run: whose symbols.
            task: that spells.
            beginnings: the text of each row.
            origins: the place of each row, for messages.

        Raises:
            InputError: a beginning with a symbol that the run does not know, or that is longer than --max-length.
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
                length = f"{len(symbols)} symbols, --max-length is {self.max_length}"
                raise InputError(f"{where}: the beginning {shorten(start)} has {length}")
            tokens.append(symbols)
        return tokens

    def answer(
        self,
        run: Run,
        task: Task,
        batch: Batch,
        prefixes: list[list[int]] | None,
        lines: Sequence[int],
        defaults: SearchConfig,
    ) -> list[Answer]:
        """Search, draw or choose outputs of a batch.

        Args:
            run: with the model.
            task: whose utility choices of least risk go by.
            batch: of sources.
            prefixes: that the outputs begin with.
            lines: the numbers of the rows' lines, from 1: draws depend on them and on the seed alone.
            defaults: of the run.
        """
        from tsallis.search.sampling import line_seed, sample

        sources = batch.src, batch.src_lengths
        if self.sample is not None:
            seeds = [line_seed(self.seed or 0, line) for line in lines]
            options: dict[str, Any] = {"prefixes": prefixes, "max_length": self.max_length, "seeds": seeds}
            draws = sample(run.model, *sources, self.sample, **options)
            answers = [Answer(None, part) for part in draws]
        else:
            answers = [Answer(result) for result in self._search(run, batch, prefixes, defaults)]
        return [choose(answer, run, task) for answer in answers] if self.mbr else answers

    def _search(self, run: Run, batch: Batch, prefixes: list[list[int]] | None, defaults: SearchConfig) -> list[Result]:
        from tsallis.search import beam_search, exact_search, exhaustive

        n_best = self.nbest or 1
        common: dict[str, Any] = {"prefixes": prefixes, **self.limits}
        budgets: dict[str, Any] = {"budget": self.budget or EXPANSIONS, "seconds": self.time, "mass": self.mass}
        beam = defaults.beam(self.beam, self.ends, n_best)
        model, src, lengths = run.model, batch.src, batch.src_lengths
        if self.every:
            return exhaustive(model, src, lengths, n_best=self.nbest, **budgets, **common)
        if self.exact:
            return exact_search(model, src, lengths, n_best=n_best, beam_size=beam["beam_size"], **budgets, **common)
        return beam_search(model, src, lengths, n_best=None if self.mbr else n_best, **beam, **common)


def choose(answer: Answer, run: Run, task: Task) -> Answer:
    """Return an answer with the output of least risk among its hypotheses or draws."""
    from tsallis.search import minimum_risk

    if answer.draws is not None:
        candidates = [draw for draw in answer.draws if draw is not None]
        weights, missing = [1.0] * len(candidates), 0.0
    else:
        assert answer.result is not None
        candidates = list(answer.result.hypotheses)
        weights = [hypothesis.prob for hypothesis in candidates]
        complete = answer.result.certificate.kind == "complete"
        missing = 0.0 if complete else max(0.0, 1 - answer.result.mass) if run.model.output.normalized else float("inf")
    texts = [run.tgt_vocab.text(candidate.tokens) for candidate in candidates]
    choice = minimum_risk(texts, weights, task.utility, missing)
    return answer if choice is None else Answer(answer.result, answer.draws, (candidates[choice.index], choice))
