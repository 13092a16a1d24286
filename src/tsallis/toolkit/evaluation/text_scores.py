"""Scores of texts beside references: exact, by distance, and sacrebleu's with their signatures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any


def levenshtein(a: Sequence[Any], b: Sequence[Any]) -> int:
    """Count the insertions, deletions and replacements that turn one sequence into the other.

    Args:
        a: a text, or a sequence of symbols.
        b: the other one.

    Returns:
        The least number of them.

    Example:
        >>> levenshtein("drawed", "drew")
        3
    """
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, start=1):
        previous, row[0] = row[0], i
        for j, y in enumerate(b, start=1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (x != y))
    return row[-1]


def exact_match(texts: Sequence[Any], references: Sequence[Any]) -> float:
    """Return the share of texts that are the reference.

    Args:
        texts: outputs of a model.
        references: one for each.

    Returns:
        The share, from 0 to 1; 0 of no texts.

    Example:
        >>> exact_match(["drew", "drawed"], ["drew", "drew"])
        0.5
    """
    return sum(a == b for a, b in zip(texts, references, strict=True)) / max(len(texts), 1)


def form_scores(texts: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return the share of texts that are the reference, and the mean distance to it.

    Args:
        texts: Forms, each a text or a list of symbols.
        references: One for each.

    Returns:
        "accuracy", and "levenshtein", the mean of :func:`levenshtein`.

    Example:
        >>> form_scores(["drew", "drawed"], ["drew", "drew"])
        {'accuracy': 0.5, 'levenshtein': 1.5}
    """
    distances = [levenshtein(a, b) for a, b in zip(texts, references, strict=True)]
    return {"accuracy": exact_match(texts, references), "levenshtein": sum(distances) / max(len(texts), 1)}


@dataclass(frozen=True)
class CorpusScore:
    """A score of a whole corpus with the signature that makes it comparable.

    Args:
        name: such as "bleu".
        value: in the metric's own units: BLEU and chrF from 0 to 100, TER in percent.
        signature: sacrebleu's.
    """

    name: str
    value: float
    signature: str


def translation_scores(
    texts: Sequence[str],
    references: Sequence[str],
    tgt_lang: str = "",
    names: Sequence[str] = ("bleu", "chrf", "ter"),
    lowercase: bool = False,
    tokenized: bool = False,
) -> list[CorpusScore]:
    """Compute BLEU, chrF and TER by sacrebleu; its signatures say how.

    Args:
        texts: translations.
        references: one for each.
        tgt_lang: "ja", "ko" or "zh" for a tokeniser that knows their words; all others have sacrebleu's default, 13a.
        names: which of "bleu", "chrf" and "ter".
        lowercase: whether capitals count as small letters.
        tokenized: whether white space separates the words of BLEU already; otherwise sacrebleu's tokeniser does.

    Returns:
        One score for each name.

    Example:
        >>> [round(s.value, 1) for s in translation_scores(["the cat sat on the mat"], ["the cat sat on a mat"])]
        [53.7, 72.1, 16.7]
    """
    from sacrebleu.metrics import BLEU, CHRF, TER

    factories: dict[str, Any] = {
        "bleu": lambda: BLEU(lowercase=lowercase, **_tokenizer(tgt_lang, tokenized)),
        "chrf": lambda: CHRF(lowercase=lowercase),
        "ter": TER,  # never tells capitals from small letters
    }
    scores = []
    for name in names:
        metric = factories[name]()
        value = metric.corpus_score(list(texts), [list(references)]).score
        scores.append(CorpusScore(name, float(value), str(metric.get_signature())))
    return scores


def length_ratio(texts: Sequence[str], references: Sequence[str], tgt_lang: str = "", tokenized: bool = False) -> float:
    r"""Return the number of words of translations divided by that of references, as BLEU counts them.

    Below 1 it is what BLEU's penalty for brevity comes from, :math:`\exp(1 - 1 / r)`: a model finds short outputs more
    probable than it should.

    Args:
        texts: translations.
        references: one for each.
        tgt_lang: as for :func:`translation_scores`.
        tokenized: as for :func:`translation_scores`.

    Returns:
        The ratio; 0 where references have no words.

    Example:
        >>> length_ratio(["the cat", ""], ["the cat sat", "a dog."])
        0.3333333333333333
    """
    from sacrebleu.metrics import BLEU

    score: Any = BLEU(**_tokenizer(tgt_lang, tokenized)).corpus_score(list(texts), [list(references)])
    return float(score.sys_len / score.ref_len) if score.ref_len else 0.0


def _tokenizer(tgt_lang: str, tokenized: bool) -> dict[str, Any]:
    return {"tokenize": "none", "force": True} if tokenized else {"trg_lang": tgt_lang}


@cache
def _chrf() -> Any:
    from sacrebleu.metrics import CHRF

    return CHRF()


def sentence_chrf(text: str, reference: str) -> float:
    """Return sacrebleu's chrF of one text, from 0 to 1; 1 of two that are the same.

    Args:
        text: a translation.
        reference: the right one.

    Example:
        >>> round(sentence_chrf("the cat sat on the mat", "the cat sat on a mat"), 3)
        0.721
    """
    return 1.0 if text == reference else float(_chrf().sentence_score(text, [reference]).score) / 100
