"""Scores of texts against references: edit distance, and sacrebleu with signatures."""

from __future__ import annotations

import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from tsallis.errors import IgnoredInputWarning

if TYPE_CHECKING:
    from numpy.typing import NDArray

DRAWS = 2000  # samples of a confidence interval
# Codes of sacrebleu for languages with special tokenizers, by the codes of ISO 639.
SACREBLEU_CODES = {
    **dict.fromkeys(("zho", "chi", "cmn", "yue", "wuu", "nan", "hak", "lzh"), "zh"),
    "jpn": "ja",
    "kor": "ko",
}
UNSPACED = {"th", "tha", "lo", "lao", "km", "khm", "my", "mya", "bur", "bo", "bod", "tib", "dz", "dzo"}


def levenshtein(a: Sequence[Any], b: Sequence[Any]) -> int:
    """Count the insertions, deletions and replacements that turn one sequence into the other.

    Args:
        a: First text or sequence of symbols.
        b: Second text or sequence of symbols.

    Returns:
        The minimum number of edits.

    Example:
        >>> levenshtein("drawed", "drew")
        3
    """
    if a == b:
        return 0
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, start=1):
        previous, row[0] = row[0], i
        for j, y in enumerate(b, start=1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (x != y))
    return row[-1]


class SampledScore(ABC):
    """Score of a corpus that can be computed again on a sample of its lines."""

    @abstractmethod
    def of(self, counts: NDArray[Any]) -> float:
        """Compute the score of a sample; `counts` says how often each line occurs."""

    @property
    @abstractmethod
    def count(self) -> int:
        """Number of lines."""

    def interval(self, other: SampledScore | None = None) -> tuple[float, float]:
        """Return the 95 % interval of the score, or of the score minus the score `other` of another model.

        Lines are drawn with replacement. Both scores use the same draws of lines (paired bootstrap).
        """
        import numpy as np

        if not self.count:
            return 0.0, 0.0
        generator, values = np.random.default_rng(0), []
        for _ in range(DRAWS):
            counts = np.bincount(generator.integers(0, self.count, self.count), minlength=self.count)
            values.append(self.of(counts) - (0.0 if other is None else other.of(counts)))
        low, high = np.quantile(values, (0.025, 0.975)).tolist()
        return low, high


@dataclass(frozen=True)
class LineScore(SampledScore):
    """Score that is a mean over lines: the sum of `values` divided by the sum of `weights`.

    Args:
        values: Value of each line, such as its number of edits.
        weights: Weight of each line, such as its number of symbols; default: 1.

    Example:
        >>> edits = LineScore([0, 2, 1, 0], [4, 5, 5, 6])
        >>> edits.value, edits.interval()
        (0.15, (0.0, 0.3157894736842105))
    """

    values: Sequence[float]
    weights: Sequence[float] | None = None

    @property
    def count(self) -> int:
        return len(self.values)

    @property
    def value(self) -> float:
        """The mean; 0 if there are no lines."""
        weight = len(self.values) if self.weights is None else sum(self.weights)
        return sum(self.values) / max(weight, 1)

    def interval(self, other: SampledScore | None = None) -> tuple[float, float]:
        """Return the 95 % interval; if all lines are right or all are wrong, it is exact (Clopper and Pearson 1934)."""
        if other is None and self.weights is None and self.count and set(self.values) in ({0}, {1}):
            bound = 0.025 ** (1 / self.count)
            return (bound, 1.0) if self.values[0] else (0.0, 1 - bound)
        return super().interval(other)

    @cached_property
    def _columns(self) -> NDArray[Any]:
        import numpy as np

        return np.column_stack((self.values, np.ones(self.count) if self.weights is None else self.weights))

    def of(self, counts: NDArray[Any]) -> float:
        value, weight = counts @ self._columns
        return float(value / max(weight, 1))


@dataclass(frozen=True)
class MetricScore(SampledScore):
    """Score of sacrebleu, with the statistics of each line."""

    metric: Any
    texts: Sequence[str]
    references: Sequence[str]

    @property
    def count(self) -> int:
        return len(self.texts)

    @cached_property
    def _statistics(self) -> NDArray[Any]:
        import numpy as np

        return np.asarray(self.metric._extract_corpus_statistics(self.texts, [self.references]), dtype=float)

    def of(self, counts: NDArray[Any]) -> float:
        return float(self.metric._compute_score_from_stats((counts @ self._statistics).tolist()).score)


@dataclass(frozen=True)
class CorpusScore:
    """Score of a corpus. Two scores are comparable only if their signatures are equal.

    Args:
        name: Name of the score, such as "bleu".
        value: Value of the score: BLEU and chrF from 0 to 100, TER in percent.
        signature: Signature of sacrebleu; empty for other scores.
        lines: Source of confidence intervals; None if the score has no intervals.

    Example:
        >>> score = CorpusScore.mean("accuracy", [1.0, 0.0, 1.0, 1.0])
        >>> score.value, score.lines.interval()
        (0.75, (0.25, 1.0))
    """

    name: str
    value: float
    signature: str = ""
    lines: SampledScore | None = None

    @classmethod
    def mean(cls, name: str, values: Sequence[float], weights: Sequence[float] | None = None) -> CorpusScore:
        """Return a score that is a mean over lines; see :class:`LineScore`."""
        lines = LineScore(values, weights)
        return cls(name, lines.value, lines=lines)


def translation_scores(
    texts: Sequence[str],
    references: Sequence[str],
    tgt_lang: str = "",
    names: Sequence[str] = ("bleu", "chrf", "ter"),
    lowercase: bool = False,
    tokenized: bool = False,
) -> list[CorpusScore]:
    """Compute BLEU, chrF and TER with sacrebleu.

    Args:
        texts: Translations.
        references: One reference for each translation.
        tgt_lang: Code of the target language. BLEU of Chinese, Japanese and Korean uses special tokenizers, and TER of
            Chinese and Japanese compares characters; other languages use sacrebleu's defaults.
        names: Names of the scores, from "bleu", "chrf" and "ter".
        lowercase: Whether to ignore case.
        tokenized: Whether texts are tokenized, so that BLEU and TER split at white space only.

    Returns:
        One score for each name, with its signature.

    Example:
        >>> [round(s.value, 1) for s in translation_scores(["the cat sat on the mat"], ["the cat sat on a mat"])]
        [53.7, 72.1, 16.7]
    """
    from sacrebleu.metrics import BLEU, CHRF, TER

    language = sacrebleu_language(tgt_lang)
    if language in UNSPACED and not tokenized:
        hint = f"the language {tgt_lang} has no spaces between words, which BLEU and TER compare: use chrF"
        warnings.warn(hint, IgnoredInputWarning, stacklevel=2)
    by_character = language in ("zh", "ja") and not tokenized
    factories: dict[str, Any] = {
        "bleu": lambda: BLEU(lowercase=lowercase, **_tokenizer(tgt_lang, tokenized)),
        "chrf": lambda: CHRF(lowercase=lowercase),
        # TER always ignores case.
        "ter": lambda: TER(normalized=by_character, asian_support=by_character),
    }
    scores = []
    for name in names:
        metric = factories[name]()
        value = metric.corpus_score(list(texts), [list(references)]).score
        lines = MetricScore(metric, list(texts), list(references))
        scores.append(CorpusScore(name, float(value), str(metric.get_signature()), lines))
    return scores


def length_ratio(texts: Sequence[str], references: Sequence[str], tgt_lang: str = "", tokenized: bool = False) -> float:
    r"""Return the number of words in translations divided by the number in references, as BLEU counts words.

    A ratio :math:`r` below 1 leads to the brevity penalty of BLEU, :math:`\exp(1 - 1 / r)`: the outputs are too short.

    Args:
        texts: Translations.
        references: One reference for each translation.
        tgt_lang: See :func:`translation_scores`.
        tokenized: See :func:`translation_scores`.

    Returns:
        The ratio; 0 if references have no words.

    Example:
        >>> length_ratio(["the cat", ""], ["the cat sat", "a dog."])
        0.3333333333333333
    """
    from sacrebleu.metrics import BLEU

    score: Any = BLEU(**_tokenizer(tgt_lang, tokenized)).corpus_score(list(texts), [list(references)])
    return float(score.sys_len / score.ref_len) if score.ref_len else 0.0


def _tokenizer(tgt_lang: str, tokenized: bool) -> dict[str, Any]:
    return {"tokenize": "none", "force": True} if tokenized else {"trg_lang": sacrebleu_language(tgt_lang)}


def sacrebleu_language(code: str) -> str:
    """Return sacrebleu's code of a language, given any code.

    >>> [sacrebleu_language(code) for code in ("zho_Hans", "ja-JP", "kor", "pt-BR")]
    ['zh', 'ja', 'ko', 'pt']
    """
    language = re.split("[^a-z]", code.lower())[0]
    return SACREBLEU_CODES.get(language, language)


@cache
def _chrf() -> Any:
    from sacrebleu.metrics import CHRF

    return CHRF()


def sentence_chrf(text: str, reference: str) -> float:
    """Return the chrF of one text, computed with sacrebleu, from 0 to 1; 1 for equal texts.

    Args:
        text: Translation.
        reference: Reference translation.

    Example:
        >>> round(sentence_chrf("the cat sat on the mat", "the cat sat on a mat"), 3)
        0.721
    """
    return 1.0 if text == reference else float(_chrf().sentence_score(text, [reference]).score) / 100
