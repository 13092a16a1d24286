"""Texts that a language model writes after prompts: draws, or the most probable text that a beam search finds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tsallis.errors import OptionError, choice_error
from tsallis.search.options import Mode, SearchOptions
from tsallis.toolkit.inference.searching import seeds_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tsallis.models.batch import Batch
    from tsallis.search import GeneratedText, Hypothesis, Result
    from tsallis.toolkit.tasks.base import Task
    from tsallis.toolkit.training import Run

TOKENS = 256  # default of `max_length`, not counting the prompt
MODES: tuple[Mode, ...] = ("sample", "beam")  # modes for texts after prompts
GENERATION_OPTIONS = ("mode", "num_samples", "seed", "temperature", "max_length", "beam_size", "end_rule")


@dataclass(frozen=True)
class Continuation:
    """Text that a language model wrote after a prompt.

    Args:
        text: The prompt as given, and its continuation.
        tokens: Strings of the symbols of the continuation, without the end.
        log_prob: Natural logarithm of the probability of `tokens` given the prompt, including the end if it was
            reached. For a beam, the probability of the text, summed over all segmentations found.
        support: Number of possible symbols at each step, including the step of the end.
        ended: Whether the text reached its end; False if it was truncated, or no symbol was possible.

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
    """Answer to a prompt: texts in the order of their draws, or the best text of a beam.

    Args:
        line: Number of the prompt, from 1.
        prompt: Prompt as given.
        texts: Texts that begin with the prompt; empty if a beam found none.
        result: Result of a beam with the certificate; None for draws.

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
        """Return the first text; empty if there is none."""
        return self.texts[0].text if self.texts else ""

    @property
    def certificate(self) -> str:
        """Return the kind of a beam's certificate, see :class:`tsallis.search.Certificate`; "none" for draws."""
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
    """Raise if an option is not supported for texts after prompts.

    Raises:
        OptionError: If the mode is not "sample" or "beam", or an option has no effect.
    """
    if fault := choice_error(options.mode, MODES):
        raise OptionError(lambda spell: f"{spell('mode')} {fault}")
    if unsupported := [name for name in options.given if name not in GENERATION_OPTIONS]:
        raise OptionError(lambda spell: f"{spell(unsupported[0])} can't be used with a language model")


def draw_texts(run: Run, batch: Batch, options: SearchOptions, lines: Sequence[int]) -> list[list[GeneratedText]]:
    """Draw texts after prompts.

    Args:
        run: Run with the model.
        batch: Batch of prompts on the model's device.
        options: Options of the draws.
        lines: Line numbers of the rows, from 1. The draws of a row depend only on its line number and the seed.
    """
    from tsallis.search import generate

    return generate(run.model, batch.src, batch.src_lengths, seeds=seeds_of(options, lines), **options.arguments)


def search_texts(run: Run, task: Task, batch: Batch, options: SearchOptions, defaults: SearchOptions) -> list[Result]:
    """Search for the most probable text after each prompt with a beam; `defaults` are the run's options."""
    from tsallis.search import beam_search
    from tsallis.search.texts import merge_texts

    arguments = options.with_defaults(defaults.without_limits).arguments
    spell = task.ambiguous_text(run.tgt_vocab)
    if spell is None:
        return beam_search(run.model, batch.src, batch.src_lengths, n_best=1, **arguments)
    results = beam_search(run.model, batch.src, batch.src_lengths, **arguments)
    prompts = [row[:length] for row, length in zip(batch.src.tolist(), batch.src_lengths.tolist(), strict=True)]
    merged = []
    for result, prompt in zip(results, prompts, strict=True):

        def text(tokens: Sequence[int], prompt: Sequence[int] = prompt) -> str:
            return spell([*prompt, *tokens])

        merged.append(merge_texts(result, text, run.model.output.normalized).truncated(1))
    return merged


def continue_prompt(run: Run, prompt: str, symbols: Sequence[int], output: GeneratedText | Hypothesis) -> Continuation:
    """Return a prompt with its continuation.

    Args:
        run: Run with the vocabulary.
        prompt: Prompt as given.
        symbols: Symbols of the prompt.
        output: Continuation, from a draw or a search.
    """
    vocabulary: Any = run.tgt_vocab
    prompt_text, full_text = (str(vocabulary.decode(part)) for part in (symbols, [*symbols, *output.tokens]))
    continuation = full_text.removeprefix(prompt_text)
    if prompt_text[-1:] != " " == prompt[-1:]:  # the prompt already ends with the space before the next subword
        continuation = continuation.removeprefix(" ")
    tokens = tuple(vocabulary.name(symbol) for symbol in output.tokens)
    ended = getattr(output, "ended", True)  # a search returns only texts that ended
    return Continuation(prompt + continuation, tokens, output.log_prob, output.support, ended)
