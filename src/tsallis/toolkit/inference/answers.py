"""Answers to lines: outputs, certificates, and the objects that `--json` prints."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tsallis.search.options import SearchOptions
from tsallis.toolkit.inference.alignment import Pairs, pharaoh

if TYPE_CHECKING:
    from tsallis.search import Hypothesis, Result, RiskChoice, TokenScores
    from tsallis.search.texts import TextProbability


@dataclass(frozen=True)
class Output:
    """Output for a line.

    Args:
        text: Text of the output.
        tokens: Strings of the symbols, without the end. If several segmentations spell the text, the symbols are those
            of the most probable segmentation, or of the draw. `hypothesis.segmentations` contains all segmentations
            found.
        score: Log-probability. With a length penalty, it is divided by the length to the power of the penalty.
        hypothesis: Numbers of the symbols, log-probability and supports.
        scores: Log-probability of each symbol, including the end; None without `tokens=True`.
        alignment: Pairs of source and output positions; None without `alignment`.

    Example:
        >>> from tsallis.search import Hypothesis, TokenScores
        >>> scores = TokenScores((7, 2), (-0.5, -0.25), (3, 2), None)
        >>> output = Output("a", ("a",), -0.75, Hypothesis((7,), -0.75, (3, 2), (1, 1)), scores)
        >>> output.log_prob, output.prob
        (-0.75, 0.4723665527410147)
    """

    text: str
    tokens: tuple[str, ...]
    score: float
    hypothesis: Hypothesis
    scores: TokenScores | None = None
    alignment: Pairs | None = None

    @classmethod
    def of(cls, hypothesis: Hypothesis, vocabulary: Any, length_penalty: float = 0.0, **details: Any) -> Output:
        """Return an output with its text.

        Args:
            hypothesis: Hypothesis of a search or a draw.
            vocabulary: Vocabulary of the symbols.
            length_penalty: Length penalty of the search.
            details: Values of `scores` and `alignment`.
        """
        text, tokens = str(vocabulary.decode(hypothesis.tokens)), tuple(map(vocabulary.name, hypothesis.tokens))
        return cls(text, tokens, hypothesis.score(length_penalty), hypothesis, **details)

    @property
    def log_prob(self) -> float:
        """Return the natural logarithm of the probability, including the end."""
        return self.hypothesis.log_prob

    @property
    def prob(self) -> float:
        """Return the probability. Unnormalised values above the largest float become the largest float."""
        return self.hypothesis.prob


@dataclass(frozen=True)
class Answer:
    """Answer to a line: the outputs of a search with a certificate, or draws.

    Args:
        line: Line number, from 1.
        outputs: Outputs of a search, best first, or draws in order; None for a draw that reached a dead end or the
            length limit.
        result: Result of the search with the certificate; None for draws and blank lines.
        choice: Minimum-risk choice among the outputs; None if not requested.
        unknown: Number of symbols of the line that are not in the vocabulary.
        source: Strings of the source's symbols, to which alignments refer; None without alignments.

    Example:
        >>> from tsallis.search import Certificate, Hypothesis, Result
        >>> hypothesis = Hypothesis((7, 8), -0.105, (2, 1, 1), (1, 1, 1))
        >>> result = Result((hypothesis,), Certificate("optimal", -2.3))
        >>> answer = Answer(1, (Output("ab", ("a", "b"), -0.105, hypothesis),), result)
        >>> answer.text, answer.score, answer.certificate, answer.tokens
        ('ab', -0.105, 'optimal', ('a', 'b'))
    """

    line: int
    outputs: tuple[Output | None, ...] = ()
    result: Result | None = None
    choice: RiskChoice | None = None
    unknown: int = 0
    source: tuple[str, ...] | None = None
    _form: Any = field(default=None, repr=False, compare=False)

    @property
    def best(self) -> Output | None:
        """Return the minimum-risk output if requested, otherwise the first output; None if there are no outputs."""
        if self.choice is not None:
            return [output for output in self.outputs if output is not None][self.choice.index]
        return self.outputs[0] if self.outputs else None

    @property
    def text(self) -> str:
        """Return the best output's text; empty if there is none."""
        return "" if self.best is None else self.best.text

    @property
    def tokens(self) -> tuple[str, ...]:
        """Return the strings of the best output's symbols."""
        return () if self.best is None else self.best.tokens

    @property
    def score(self) -> float | None:
        """Return the best output's score, see :class:`Output`; None if there is no output."""
        return None if self.best is None else self.best.score

    @property
    def certificate(self) -> str:
        """Return the kind of the search's certificate, see :class:`tsallis.search.Certificate`; "none" for draws."""
        return "none" if self.result is None else self.result.certificate.kind

    def to_dict(self) -> dict[str, Any]:
        """Return the object that `tsallis translate --json` prints for the line."""
        return {"line": self.line, "unknown": self.unknown, **self._form.describe(self)}


@dataclass(frozen=True)
class Form:
    """Format of answers as JSON objects.

    Args:
        vocabulary: Vocabulary of the outputs.
        options: Options of the search.
        beginning: Prefix of the line's output; not used if `options` has a prefix.
    """

    vocabulary: Any
    options: SearchOptions
    beginning: str = ""

    def describe(self, answer: Answer) -> dict[str, Any]:
        """Return the JSON object of a line without its number."""
        options = self.options
        content: dict[str, Any] = {}
        start = options.prefix if options.prefix is not None else self.beginning
        limits = {**({"prefix": start} if start else {}), **options.limits}
        if options.pattern is not None:
            limits["pattern"] = options.pattern
        if limits:
            content["limits"] = limits  # the certificate covers only outputs within the limits
        if options.temperature is not None:
            content["temperature"] = options.temperature
        if answer.source is not None:
            content["source"] = answer.source
        if options.returns == "choice":
            content["choice"] = self._choice(answer)
        if options.mode == "sample":
            return {**content, "draws": [self._output(output) if output else None for output in answer.outputs]}
        return {**content, **self._result(answer)}

    def _choice(self, answer: Answer) -> dict[str, Any] | None:
        choice, best = answer.choice, answer.best
        if choice is None or best is None:
            return None
        proved = choice.proved and answer.result is not None
        return {**self._output(best), "expected_utility": choice.expected_utility, "proved": proved}

    def _result(self, answer: Answer) -> dict[str, Any]:
        from tsallis.search import Certificate, Result
        from tsallis.toolkit.evaluation.outputs import describe_result

        empty_result = Result((), Certificate("none", -math.inf))  # for a blank line
        content = describe_result(answer.result or empty_result, self.vocabulary)
        for output, described in zip(answer.outputs, content["hypotheses"], strict=True):
            described.update(self._details(output))
        if self.options.mode == "beam":
            del content["stopped_by"], content["expanded"]
        return content

    def _output(self, output: Output) -> dict[str, Any]:
        from tsallis.toolkit.evaluation.outputs import describe_hypothesis

        described = describe_hypothesis(output.hypothesis, self.vocabulary, self.options.length_penalty or 0)
        return {**described, **self._details(output)}

    def _details(self, output: Output | None) -> dict[str, Any]:
        """Return the requested details of an output."""
        from tsallis.toolkit.evaluation.outputs import describe_tokens

        details: dict[str, Any] = {}
        if output is not None and output.scores is not None:
            details["tokens"] = describe_tokens(output.scores, self.vocabulary)["tokens"]
        if output is not None and output.alignment is not None:
            details["alignment"] = pharaoh(output.alignment)
        return details


@dataclass(frozen=True)
class TextScore:
    """Score of a known output.

    Args:
        line: Line number, from 1.
        tokens: Strings of the symbols, including the end, up to the first impossible one.
        scores: Log-probability of each symbol, and the reason if the output is impossible; None for a blank line.
        text: Probability of the text, if several segmentations can spell a text. In this case, the symbols are those of
            the most probable segmentation, and `log_prob` is the log-probability of the text.

    Example:
        >>> from tsallis.search import TokenScores
        >>> score = TextScore(1, ("a", "</s>"), TokenScores((7, 2), (-0.5, -0.25), (3, 2), None))
        >>> score.log_prob, score.possible
        (-0.75, True)
    """

    line: int
    tokens: tuple[str, ...]
    scores: TokenScores | None
    text: TextProbability | None = None
    _vocabulary: Any = field(default=None, repr=False, compare=False)

    @property
    def log_prob(self) -> float:
        """Return the natural logarithm of the output's probability: -inf if impossible, NaN for a blank line.

        The value is a lower bound if `exact` is False.
        """
        if self.scores is None:
            return float("nan")
        return self.scores.log_prob if self.text is None else self.text.log_prob

    @property
    def exact(self) -> bool:
        """Return whether the probability of a text is exact up to rounding."""
        return self.text is None or self.text.exact

    @property
    def possible(self) -> bool | None:
        """Return whether the output is possible; None if an incomplete search found no segmentation."""
        if self.text is not None:
            return self.text.possible
        return self.scores is not None and self.scores.exclusion is None

    def to_dict(self) -> dict[str, Any]:
        """Return the object that `tsallis score --json` prints for the line."""
        from tsallis.toolkit.evaluation.outputs import describe_text, describe_tokens

        if self.scores is None:
            return {"line": self.line, "possible": None, "log_prob": None, "tokens": [], "impossible": None}
        if self.text is not None:
            return {"line": self.line, **describe_text(self.scores, self.text, self._vocabulary)}
        return {"line": self.line, **describe_tokens(self.scores, self._vocabulary)}
