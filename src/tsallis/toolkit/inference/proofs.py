"""Proofs that outputs never match a pattern, or always do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from tsallis.errors import OptionError, describe, real_error
from tsallis.search.options import PROOF_OPTIONS, SearchOptions
from tsallis.search.regex import parse

if TYPE_CHECKING:
    from tsallis.models.batch import Batch
    from tsallis.search import Match
    from tsallis.toolkit.tasks.base import Task
    from tsallis.toolkit.training import Run

AT_LEAST = 1e-6  # default probability below which outputs are ignored


@dataclass(frozen=True)
class Proof:
    """What is proved about the outputs of a line and a rule.

    Args:
        line: Line number, from 1.
        result: "proved" if no output of probability `at_least` or more breaks the rule, "refuted" if the witness does,
            else "unknown".
        match: Bounds on the probability that an output breaks the rule, see :class:`tsallis.search.Match`.
        witness: Text of the most probable output found that breaks the rule, or None.

    Example:
        >>> from tsallis.search import Match
        >>> Proof(1, "proved", Match(0.0, 0.0, 0.0, 0.0, "never", True, None, 7), None).absolute
        True
    """

    line: int
    result: Literal["proved", "refuted", "unknown"]
    match: Match
    witness: str | None

    @property
    def absolute(self) -> bool:
        """Return whether the proof holds for all outputs, however improbable."""
        return self.result == "proved" and self.match.absolute

    def to_dict(self) -> dict[str, Any]:
        """Return the object that `tsallis prove --json` prints for the line."""
        match = self.match
        bounds = {name: getattr(match, name) for name in ("lower", "upper", "open", "too_long")}
        witness = None if match.witness is None else {"text": self.witness, "prob": match.witness.prob}
        effort = {"expanded": match.expanded, "stopped_by": match.stopped_by}
        return {
            "line": self.line,
            "result": self.result,
            "absolute": self.absolute,
            **bounds,
            "witness": witness,
            **effort,
        }


@dataclass(frozen=True)
class Rule:
    """Rule for outputs: a pattern that they never match, or that they always match.

    Args:
        pattern: Regular expression or strings.
        always: Whether outputs must match the pattern.
        at_least: Probability below which outputs are ignored.
        options: Limits of the search.
    """

    pattern: str | tuple[str, ...]
    always: bool
    at_least: float
    options: SearchOptions

    @classmethod
    def of(
        cls,
        never: str | Sequence[str] | None,
        always: str | Sequence[str] | None,
        at_least: Any,
        options: SearchOptions,
    ) -> Rule:
        """Return a rule from checked arguments.

        Raises:
            OptionError: If not exactly one pattern is given, or an option is out of range or has no effect.
        """
        if (never is None) == (always is None):
            found = "neither" if never is None else "both"
            raise OptionError(lambda spell: f"use either {spell('never')} or {spell('always')}, got {found}")
        if fault := real_error(at_least, 0, 1):
            raise OptionError(lambda spell: f"{spell('at_least')} {fault}")
        if unsupported := [name for name in options.given if name not in (*PROOF_OPTIONS, "mode")]:
            raise OptionError(lambda spell: f"{spell(unsupported[0])} can't be used in a proof")
        pattern, name = (always, "always") if never is None else (never, "never")
        fault = ""
        if isinstance(pattern, str):
            try:
                parse(pattern)
            except ValueError as error:
                fault = str(error)
        elif not isinstance(pattern, Sequence) or isinstance(pattern, bytes):
            fault = f"must be a string or a list of strings, got {describe(pattern)}"
        if fault:
            raise OptionError(lambda spell: f"{spell(name)}: {fault}")
        return cls(pattern if isinstance(pattern, str) else tuple(pattern or ()), always is not None, at_least, options)

    def prove(self, run: Run, task: Task, batch: Batch, lines: Sequence[int], defaults: SearchOptions) -> list[Proof]:
        """Return a proof per row of a batch.

        Args:
            run: Run with the model.
            task: Task of the run.
            batch: Batch of sources on the model's device.
            lines: Line numbers of the rows, from 1.
            defaults: Options of the run, for the maximum length.

        Raises:
            OptionError: If the pattern is invalid, not supported or too large.
        """
        from tsallis.search import match
        from tsallis.toolkit.inference.searching import run_pattern

        try:
            pattern = run_pattern(run, task, self.pattern, self.always)
        except (TypeError, ValueError) as error:
            fault = str(error)
            raise OptionError(lambda spell: f"{spell('always' if self.always else 'never')}: {fault}") from None
        chosen_limits = {name: value for name, value in self.options.given.items() if name in PROOF_OPTIONS}
        limits = {"max_length": defaults.max_length, **chosen_limits}
        sources = batch.src, batch.src_lengths
        matches = match(run.model, *sources, [pattern], at_least=self.at_least, stop_early=True, **limits)
        proofs = []
        for line, (bounds,) in zip(lines, matches, strict=True):
            result: Any = {"never": "proved", "possible": "refuted"}.get(bounds.verdict, "unknown")
            if bounds.verdict == "always":  # every output breaks the rule; without a witness, this is not shown
                prob = 0.0 if bounds.witness is None else bounds.witness.prob
                result = "refuted" if prob >= self.at_least and bounds.witness is not None else "unknown"
                bounds = (
                    replace(bounds, lower=prob) if result == "unknown" else bounds
                )  # outputs that never end don't count
            witness = None if bounds.witness is None else str(run.tgt_vocab.decode(bounds.witness.tokens))
            proofs.append(Proof(line, result, bounds, witness))
        return proofs
