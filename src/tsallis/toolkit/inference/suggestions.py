"""Completion of partly typed outputs: the possible next symbols as text, with probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tsallis.toolkit.inference.searching import decode_after, typed_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tsallis.models.batch import Batch
    from tsallis.search import Completions, NextCharacters
    from tsallis.toolkit.tasks.base import Task
    from tsallis.toolkit.training import Run

LISTED = 10  # default number of continuations to list


@dataclass(frozen=True)
class Suggestion:
    """Possible continuation of an output.

    Args:
        text: Output so far, with the continuation.
        symbols: Strings of the symbols after the certain symbols. They include the symbols of the typed text if several
            symbol sequences can spell it.
        prob: Probability given the typed text; a lower bound if :attr:`Suggestions.missing` is not 0.
        ends: Whether the output ends with this continuation.

    Example:
        >>> Suggestion("rebell", ("l",), 0.75, False).ends
        False
    """

    text: str
    symbols: tuple[str, ...]
    prob: float
    ends: bool

    def to_dict(self) -> dict[str, Any]:
        """Return the object that `tsallis suggest --json` lists for this continuation."""
        return {**vars(self), "symbols": list(self.symbols)}


@dataclass(frozen=True)
class Suggestions:
    """Continuations of a partly typed output.

    Args:
        line: Line number, from 1.
        typed: Typed text as given.
        text: Typed text, followed by the certain symbols. A symbol is certain if no other continuation is possible.
        certain: Strings of the certain symbols.
        log_prob: Natural logarithm of the probability of the typed text, a lower bound if `missing` is not 0; -inf if
            no spelling was found.
        support: Number of possible continuations, listed or not.
        mass: Probability of all continuations; 1 if the model's probabilities sum to 1 and nothing is missing.
        missing: Upper bound on the probability of continuations that were not searched.
        next: Listed continuations, the most probable first.
        characters: Next characters, summed over all spellings. None if every symbol is a single character, if the
            probabilities don't sum to 1, or if the typed text has unknown symbols.

    Example:
        >>> end = Suggestion("rebel", (), 1.0, True)
        >>> answer = Suggestions(1, "reb", "rebel", ("e", "l"), -0.1, 1, 1.0, 0.0, (end,))
        >>> answer.possible, answer.next[0].text
        (True, 'rebel')
    """

    line: int
    typed: str
    text: str
    certain: tuple[str, ...]
    log_prob: float
    support: int
    mass: float
    missing: float
    next: tuple[Suggestion, ...]
    characters: NextCharacters | None = None

    @property
    def possible(self) -> bool:
        """Return whether an output may start with the typed text; True if this is unknown."""
        return bool(self.next or self.missing)

    def to_dict(self) -> dict[str, Any]:
        """Return the object that `tsallis suggest --json` prints for the line."""
        from tsallis.toolkit.evaluation.outputs import finite

        content = {**vars(self), "possible": self.possible, "certain": list(self.certain)}
        content.update({name: finite(content[name]) for name in ("log_prob", "missing")})
        content["characters"] = self.characters and vars(self.characters)
        return {**content, "next": [suggestion.to_dict() for suggestion in self.next]}


@dataclass(frozen=True)
class Completer:
    """Completion of partly typed outputs of a run.

    Args:
        run: Run with the model.
        task: Task of the run, which reads the typed text.
        n_best: Number of continuations to list.
    """

    run: Run
    task: Task
    n_best: int = LISTED

    def suggest(self, source: Batch | None, typed: str, line: int = 1) -> Suggestions:
        """Return the continuations of a typed text.

        Args:
            source: Batch of one row; None for a blank line, which has no continuations.
            typed: Beginning of the output.
            line: Line number, from 1.
        """
        if source is None:
            return Suggestions(line, typed, typed, (), float("-inf"), 0, 0.0, 0.0, ())
        completions, prompt, typed_symbols = self._complete(source, typed)
        certain, choices = completions.certain, completions.choices
        # If only one symbol sequence spells the typed text, leave the symbols of this text out.
        certain_start, choice_start = (typed_symbols, 0) if certain else (0, typed_symbols)
        return Suggestions(
            line=line,
            typed=typed,
            text=self._display_text(certain, prompt, typed) if certain else typed,
            certain=self._names(certain[certain_start:]),
            log_prob=completions.log_prob,
            support=completions.support,
            mass=completions.mass,
            missing=completions.missing,
            next=tuple(
                Suggestion(
                    self._display_text([*certain, *choice.tokens], prompt, typed),
                    self._names(choice.tokens[choice_start:]),
                    choice.prob,
                    choice.ends,
                )
                for choice in choices
            ),
            characters=completions.characters,
        )

    def _complete(self, source: Batch, typed: str) -> tuple[Completions, list[int], int]:
        """Return the completions, the prompt, and the number of typed symbols.

        The number is 0 if the typed text has several spellings.
        """
        from tsallis.models.protocol import device_of
        from tsallis.models.spellings import Place, spellings_of
        from tsallis.search import Completions, complete
        from tsallis.symbols import UNK

        vocabulary: Any = self.run.tgt_vocab
        prompt = self._prompt(source)
        tokens, beginning = typed_text(self.run, self.task, typed, prompt)
        if UNK in tokens:  # the unknown symbol could stand for any text
            return Completions(float("-inf"), (), (), 0, 0.0, 0.0), prompt, 0
        batch = source.to(device_of(self.run.model))
        spellings, place = spellings_of(vocabulary), Place(begun=bool(prompt))
        text, sources = partial(decode_after, vocabulary, prompt=prompt), (batch.src, batch.src_lengths)
        completions = complete(self.run.model, *sources, beginning, spellings, text, place=place, n_best=self.n_best)
        return completions, prompt, 0 if self.task.ambiguous_text(vocabulary) else len(tokens)

    def _names(self, tokens: Sequence[int]) -> tuple[str, ...]:
        return tuple(self.run.tgt_vocab.name(token) for token in tokens)

    def _prompt(self, source: Batch) -> list[int]:
        """Return the symbols of the prompt that the output of a language model continues; empty for other runs."""
        continues_prompt = not self.task.searched and self.task.ambiguous_text(self.run.tgt_vocab) is not None
        return [int(symbol) for symbol in source.src[0, : int(source.src_lengths[0])]] if continues_prompt else []

    def _display_text(self, tokens: Sequence[int], prompt: Sequence[int], typed: str) -> str:
        """Return a continuation for display; after a prompt, the space before the typed text is removed."""
        text = decode_after(self.run.tgt_vocab, tokens, prompt)
        return text.removeprefix(" ") if prompt and typed else text
