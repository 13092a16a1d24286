"""Analysis: what the heads and the outputs of a trained model do, as plain records.

A model is recorded sentence by sentence (:func:`record`), and any number of statistics read a recording in one pass
(:func:`collect`). Layers and heads are numbered from 0 in records, and from 1 where they are named for people.
"""

from tsallis.analysis.attention_summary import summarize_attention
from tsallis.analysis.cards import HeadCard, head_cards
from tsallis.analysis.contrasts import (
    Comparison,
    Contrasts,
    DensityContrast,
    ModelContrast,
    WordContrast,
    compare_models,
    density_contrasts,
)
from tsallis.analysis.density import Densities, Density, HeadDensity, density, sentence_density
from tsallis.analysis.density_shapes import DrawnDensity, SignalDensity, draw_density, signal_densities
from tsallis.analysis.diversity import Diversities, Diversity, LayerDiversity, diversity, jensen_shannon
from tsallis.analysis.head_roles import ROLES, Example, HeadRole, HeadRoles, Roles, head_roles
from tsallis.analysis.histories import HeadHistory, Sweep, SweepPoint, ValueHistory
from tsallis.analysis.importance import HeadImportance, HeadLoss, head_importance, mask_head
from tsallis.analysis.outputs import (
    EmptyOutput,
    EmptyRate,
    Outputs,
    OutputStatistics,
    TeacherForcedStep,
    output_statistics,
    output_steps,
    teacher_forced_supports,
)
from tsallis.analysis.record import (
    AttentionReader,
    RecordedBatch,
    Recording,
    capture_weights,
    read_model,
    record,
    record_batches,
)
from tsallis.analysis.statistics import Statistic, collect
from tsallis.analysis.summary_records import ComparisonSummary, DensityExample, DensitySummary, RunSummary
from tsallis.analysis.tables import Histogram, Record, to_pandas
from tsallis.analysis.tree import BeamTree, Edge, beam_tree
from tsallis.analysis.weight_summary import summarize_weights
from tsallis.analysis.weights import AttentionLayer, Sentence, SparseWeights, Text
from tsallis.analysis.words import INTERROGATIVES, word_clusters

__all__ = [
    "INTERROGATIVES",
    "ROLES",
    "AttentionLayer",
    "AttentionReader",
    "BeamTree",
    "Comparison",
    "ComparisonSummary",
    "Contrasts",
    "Densities",
    "Density",
    "DensityContrast",
    "DensityExample",
    "DensitySummary",
    "Diversities",
    "Diversity",
    "DrawnDensity",
    "Edge",
    "EmptyOutput",
    "EmptyRate",
    "Example",
    "HeadCard",
    "HeadDensity",
    "HeadHistory",
    "HeadImportance",
    "HeadLoss",
    "HeadRole",
    "HeadRoles",
    "Histogram",
    "LayerDiversity",
    "ModelContrast",
    "OutputStatistics",
    "Outputs",
    "Record",
    "RecordedBatch",
    "Recording",
    "Roles",
    "RunSummary",
    "Sentence",
    "SignalDensity",
    "SparseWeights",
    "Statistic",
    "Sweep",
    "SweepPoint",
    "TeacherForcedStep",
    "Text",
    "ValueHistory",
    "WordContrast",
    "beam_tree",
    "capture_weights",
    "collect",
    "compare_models",
    "density",
    "density_contrasts",
    "diversity",
    "draw_density",
    "head_cards",
    "head_importance",
    "head_roles",
    "jensen_shannon",
    "mask_head",
    "output_statistics",
    "output_steps",
    "read_model",
    "record",
    "record_batches",
    "sentence_density",
    "signal_densities",
    "summarize_attention",
    "summarize_weights",
    "teacher_forced_supports",
    "to_pandas",
    "word_clusters",
]
