"""What a language model's run writes behind prompts: texts that are drawn, or the most probable one of a beam."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from tsallis.errors import check_whole
from tsallis.inference.options import check_option, check_temperature, check_tempered_run
from tsallis.search_budget import LENGTH, MOST

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tsallis.config import SearchConfig
    from tsallis.models.batch import Batch
    from tsallis.search import GeneratedText, Hypothesis, Result
    from tsallis.search.texts import Text
    from tsallis.tasks.base import Task
    from tsallis.training import Run

TOKENS = 256  # behind a prompt, at most, where nothing else is said


@dataclass(frozen=True)
class Continuation:
    """A text that a language model wrote behind a prompt.

    Args:
        text: the prompt, as it was given, and what follows it.
        tokens: the strings of the symbols that follow, without the end.
        log_prob: natural logarithm of their probability given the prompt, with that of the end where it was reached; of
            a text that a beam found, the sum over the segmentations that it found.
        support: the symbols that were possible at each step, the end's last.
        ended: False where the text was cut at its greatest length, or nothing was possible.

    Example:
        >>> Continuation("am Abend", ("▁Abend",), -0.5, (3, 1), True).ended
        True
    """

    text: str
    tokens: tuple[str, ...]
    log_prob: float
    support: tuple[int, ...]
    ended: bool

    def to_dict(self) -> dict[str, Any]:
        """Return the object that `tsallis generate --json` prints for a draw."""
        values = {"text": self.text, "log_prob": self.log_prob, "ended": self.ended, "support": self.support}
        return {**values, "symbols": self.tokens}


@dataclass(frozen=True)
class Continuations:
    """The answer to a prompt: texts in the order of their draws, or the best one of a beam.

    Args:
        line: the number of the prompt, from 1.
        prompt: as it was given.
        texts: that begin with it; none where a beam found none.
        result: of a beam, with the certificate; None of draws.

    Example:
        >>> answer = Continuations(1, "am", (Continuation("am Abend", ("▁Abend",), -0.5, (3, 1), True),))
        >>> answer.text, answer.certificate
        ('am Abend', 'none')
    """

    line: int
    prompt: str
    texts: tuple[Continuation, ...]
    result: Result | None = field(default=None, repr=False)

    @property
    def text(self) -> str:
        """The first text; empty where there is none."""
        return self.texts[0].text if self.texts else ""

    @property
    def certificate(self) -> str:
        """The proof that a beam gives, see :class:`tsallis.search.Certificate`; "none" of draws."""
        return "none" if self.result is None else self.result.certificate.kind

    def to_dict(self) -> dict[str, Any]:
        """Return the object that `tsallis generate --json` prints for the prompt."""
        from tsallis.evaluation.outputs import describe_certificate

        if self.result is None:
            return {"line": self.line, "texts": [text.to_dict() for text in self.texts]}
        log_prob = self.texts[0].log_prob if self.texts else None
        return {
            "line": self.line,
            "text": self.text,
            "log_prob": log_prob,
            **describe_certificate(self.result.certificate),
        }


@dataclass(frozen=True)
class GenerationOptions:
    """The options of `tsallis generate`, as they were given; those that were not are None or False."""

    samples: int | None = None
    seed: int | None = None
    temperature: float | None = None
    length: int = TOKENS
    beam: int | None = None
    competing_ends: bool = False
    every_end: bool = False

    def check(self) -> None:
        """Refuse options that say nothing beside each other, and values that can't be.

        Raises:
            InputError: the first such option or pair.
        """
        from tsallis.errors import InputError

        for name, value, least, most in (
            ("--samples", self.samples, 1, MOST),
            ("--seed", self.seed, 0, 2**62),
            ("--length", self.length, 1, LENGTH),
            ("--beam", self.beam, 1, MOST),
        ):
            if value is not None:
                check_option(check_whole, name, value, least, most)
        if self.beam is not None and (self.samples is not None or self.seed is not None):
            raise InputError("--beam searches, --samples and --seed are for draws: one of the two")
        if self.beam is not None and self.temperature is not None:
            raise InputError("--beam searches, --temperature is for draws: one of the two")
        if self.competing_ends and self.every_end:
            raise InputError("--competing-ends leaves endings out, --every-end none: one of the two")
        check_temperature(self.temperature)
        if self.beam is None and (self.competing_ends or self.every_end):
            name = "--competing-ends" if self.competing_ends else "--every-end"
            raise InputError(f"{name} is for --beam: draws end as the model has it")

    def check_run(self, run: Run) -> None:
        """Refuse a temperature where outputs don't sum to 1.

        Raises:
            InputError: such a run.
        """
        check_tempered_run(run, self.temperature)

    def draw(self, run: Run, batch: Batch, lines: Sequence[int]) -> list[list[GeneratedText]]:
        """Draw texts behind prompts.

        Args:
            run: with the model.
            batch: of prompts.
            lines: the numbers of the rows' lines, from 1: draws depend on them and on the seed alone.
        """
        from tsallis.search import generate
        from tsallis.search.sampling import line_seed

        return generate(
            run.model,
            batch.src,
            batch.src_lengths,
            self.samples or 1,
            length=self.length,
            seeds=[line_seed(self.seed or 0, line) for line in lines],
            temperature=1.0 if self.temperature is None else float(self.temperature),
        )

    def search(self, run: Run, task: Task, batch: Batch, defaults: SearchConfig) -> list[Result]:
        """Search for the most probable text behind each prompt; what the options leave open is as `defaults` say."""
        from tsallis.search import beam_search
        from tsallis.search.texts import merge_texts

        ends = True if self.competing_ends else False if self.every_end else None
        beam = defaults.beam(self.beam, ends)
        limits: dict[str, Any] = {"max_length": self.length, **beam}
        spell = task.ambiguous_text(run.tgt_vocab)
        if spell is None:
            return beam_search(run.model, batch.src, batch.src_lengths, n_best=1, **limits)
        results = beam_search(run.model, batch.src, batch.src_lengths, **limits)
        prompts = [row[:length] for row, length in zip(batch.src.tolist(), batch.src_lengths.tolist(), strict=True)]
        return [
            merge_texts(result, partial(_spell_behind, spell, prompt), run.model.output.normalized).truncated(1)
            for result, prompt in zip(results, prompts, strict=True)
        ]


def _spell_behind(spell: Text, prompt: Sequence[int], tokens: Sequence[int]) -> str:
    return spell([*prompt, *tokens])


def continue_prompt(run: Run, prompt: str, symbols: Sequence[int], output: GeneratedText | Hypothesis) -> Continuation:
    """Return a prompt with what was written behind it.

    Args:
        run: that spells symbols.
        prompt: as it was given.
        symbols: of the prompt.
        output: what follows, drawn or of a search.
    """
    vocabulary: Any = run.tgt_vocab
    before, whole = (str(vocabulary.decode(part)) for part in (symbols, [*symbols, *output.tokens]))
    following = whole.removeprefix(before)
    if before[-1:] != " " == prompt[-1:]:  # subwords hold no space behind a word: the next one begins with it
        following = following.removeprefix(" ")
    tokens = tuple(vocabulary.name(symbol) for symbol in output.tokens)
    ended = getattr(output, "ended", True)  # a search returns no text that is cut
    return Continuation(prompt + following, tokens, output.log_prob, output.support, ended)
