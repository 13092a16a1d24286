"""Search with certificates: beam, exhaustive, exact; scores, draws, generation, completion, least risk, ensembles."""

from tsallis.search.beam import beam_search
from tsallis.search.certificate import Certificate, Hypothesis, Result
from tsallis.search.completion import Choice, Completions, complete
from tsallis.search.ensemble import Ensemble
from tsallis.search.exact import exact_search
from tsallis.search.best_first import exhaustive
from tsallis.search.generation import GeneratedText, generate
from tsallis.search.risk import RiskChoice, minimum_risk
from tsallis.search.sampling import sample
from tsallis.search.scoring import Exclusion, TokenScores, score, score_tokens

__all__ = [
    "Certificate",
    "Choice",
    "Completions",
    "Ensemble",
    "Exclusion",
    "GeneratedText",
    "Hypothesis",
    "Result",
    "RiskChoice",
    "TokenScores",
    "beam_search",
    "complete",
    "exact_search",
    "exhaustive",
    "generate",
    "minimum_risk",
    "sample",
    "score",
    "score_tokens",
]
