"""Data that models read: vocabularies, subwords, sequences of numbers and batches of them. Knows no task."""

from tsallis.toolkit.data.batching import BatchPlan, make_batch
from tsallis.toolkit.data.vocabulary import Vocabulary

__all__ = ["BatchPlan", "Vocabulary", "make_batch"]
