"""What a language model's run writes behind prompts: texts that are drawn, or the most probable one of a beam."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from tsallis.errors import OptionError, choice_fault
from tsallis.search.options import Mode, SearchOptions
from tsallis.toolkit.inference.searching import seeds_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tsallis.models.batch import Batch
    from tsallis.search import GeneratedText, Hypothesis, Result
    from tsallis.search.texts import Text
    from tsallis.toolkit.tasks.base import Task
    from tsallis.toolkit.training import Run

TOKENS = 256  # the default of `max_length`, behind a prompt
MODES: tuple[Mode, ...] = ("sample", "beam")  # of texts behind prompts
OF_GENERATION = ("mode", "num_samples", "seed", "temperature", "max_length", "beam_size", "end_rule")


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
        from tsallis.toolkit.evaluation.outputs import describe_certificate

        if self.result is None:
            return {"line": self.line, "texts": [text.to_dict() for text in self.texts]}
        log_prob = self.texts[0].log_prob if self.texts else None
        return {
            "line": self.line,
            "text": self.text,
            "log_prob": log_prob,
            **describe_certificate(self.result.certificate),
        }


def check_generation(options: SearchOptions) -> None:
    """Raise if options are not for texts behind prompts.

    Raises:
        OptionError: Another mode than "sample" and "beam", or an option that has no effect.
    """
    if fault := choice_fault(options.mode, MODES):
        raise OptionError(lambda spell: f"{spell('mode')} {fault}")
    if others := [name for name in options.given if name not in OF_GENERATION]:
        raise OptionError(lambda spell: f"{spell(others[0])} is not for texts of language models")


def draw_texts(run: Run, batch: Batch, options: SearchOptions, lines: Sequence[int]) -> list[list[GeneratedText]]:
    """Draw texts behind prompts.

    Args:
        run: Whose model draws.
        batch: Of prompts, on the model's device.
        options: Of the draws.
        lines: Numbers of the rows' lines, from 1. Draws depend on them and on the seed alone.
    """
    from tsallis.search import generate

    return generate(run.model, batch.src, batch.src_lengths, seeds=seeds_of(options, lines), **options.arguments)


def search_texts(run: Run, task: Task, batch: Batch, options: SearchOptions, defaults: SearchOptions) -> list[Result]:
    """Search for the most probable text behind each prompt by a beam; `defaults` are the run's options."""
    from tsallis.search import beam_search
    from tsallis.search.texts import merge_texts

    arguments = options.with_defaults(defaults.without_limits).arguments
    spell = task.ambiguous_text(run.tgt_vocab)
    if spell is None:
        return beam_search(run.model, batch.src, batch.src_lengths, n_best=1, **arguments)
    results = beam_search(run.model, batch.src, batch.src_lengths, **arguments)
    prompts = [row[:length] for row, length in zip(batch.src.tolist(), batch.src_lengths.tolist(), strict=True)]
    return [
        merge_texts(result, partial(_spell_behind, spell, prompt), run.model.output.normalized).truncated(1)
        for result, prompt in zip(results, prompts, strict=True)
    ]


def _spell_behind(spell: Text, prompt: Sequence[int], tokens: Sequence[int]) -> str:
    return spell([*prompt, *tokens])


def continue_prompt(run: Run, prompt: str, symbols: Sequence[int], output: GeneratedText | Hypothesis) -> Continuation:
    """Return a prompt with its continuation.

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
