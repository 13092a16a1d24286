"""Search with certificates: beam, exhaustive, scoring, sampling, ensembles."""

from tsallis.search.beam import beam_search
from tsallis.search.ensemble import Ensemble
from tsallis.search.exhaustive import exhaustive
from tsallis.search.hypothesis import Certificate, Hypothesis, Result
from tsallis.search.sample import sample
from tsallis.search.score import score

__all__ = ["Certificate", "Ensemble", "Hypothesis", "Result", "beam_search", "exhaustive", "sample", "score"]
