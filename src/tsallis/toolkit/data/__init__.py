"""Data for models: vocabularies, subwords, encoded sequences and batches. This package is independent of tasks."""

from tsallis.toolkit.data.batching import BatchPlan, make_batch
from tsallis.toolkit.data.vocabulary import Vocabulary

__all__ = ["BatchPlan", "Vocabulary", "make_batch"]
