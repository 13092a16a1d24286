"""Search with certificates: beam, exhaustive, scoring, sampling, ensembles."""

from tsallis.search.beam import beam_search
from tsallis.search.certificate import Certificate, Hypothesis, Result
from tsallis.search.ensemble import Ensemble
from tsallis.search.exhaustive import exhaustive
from tsallis.search.sampling import sample
from tsallis.search.scoring import score

__all__ = ["Certificate", "Ensemble", "Hypothesis", "Result", "beam_search", "exhaustive", "sample", "score"]
