"""Data: vocabularies, batches, tasks, known sources and the embedded default."""

from tsallis.data.batching import Batch, BatchPlan, make_batch
from tsallis.data.inflection import InflectionExample, read_inflection, read_languages
from tsallis.data.verbs import english_verbs
from tsallis.data.vocabulary import Vocabulary

__all__ = [
    "Batch",
    "BatchPlan",
    "InflectionExample",
    "Vocabulary",
    "english_verbs",
    "make_batch",
    "read_inflection",
    "read_languages",
]
