"""Search with certificates: beam, exhaustive and exact search, scores, samples, completion, ensembles and patterns.

Names are loaded at first use: most of them need torch, but the help of the commands needs only
`tsallis.search.options`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tsallis.search.beam import beam_search
    from tsallis.search.best_first import exact_search, exhaustive
    from tsallis.search.certificate import Certificate, Hypothesis, Result
    from tsallis.search.completion import Choice, Completions, NextCharacters, complete, next_characters
    from tsallis.search.ensemble import Ensemble
    from tsallis.search.gaps import Stability, stability
    from tsallis.search.matching import Match, match
    from tsallis.search.options import SearchOptions
    from tsallis.search.patterns import Pattern, restrict
    from tsallis.search.risk import RiskChoice, minimum_risk
    from tsallis.search.sampling import GeneratedText, generate, sample
    from tsallis.search.scoring import Exclusion, TokenScores, score, score_tokens
    from tsallis.search.temperature import with_top_p

__all__ = [
    "Certificate",
    "Choice",
    "Completions",
    "Ensemble",
    "Exclusion",
    "GeneratedText",
    "Hypothesis",
    "Match",
    "NextCharacters",
    "Pattern",
    "Result",
    "RiskChoice",
    "SearchOptions",
    "Stability",
    "TokenScores",
    "beam_search",
    "complete",
    "exact_search",
    "exhaustive",
    "generate",
    "match",
    "minimum_risk",
    "next_characters",
    "restrict",
    "sample",
    "score",
    "score_tokens",
    "stability",
    "with_top_p",
]


def __getattr__(name: str) -> object:
    """Load all public names when the first name is used."""
    if name not in __all__:
        raise AttributeError(f"module 'tsallis.search' has no attribute {name!r}")
    import importlib

    names = (
        "beam best_first certificate completion ensemble gaps matching options patterns risk sampling scoring "
        "temperature"
    )
    modules = [importlib.import_module(f"tsallis.search.{module}") for module in names.split()]
    for public in __all__:
        globals()[public] = next(getattr(module, public) for module in modules if hasattr(module, public))
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
