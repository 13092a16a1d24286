"""Analyse the attention heads and outputs of trained models. Results are plain records.

:func:`record` records a model sentence by sentence, and :func:`collect` computes several statistics of a recording in
one pass. Layers and heads are numbered from 0 in records, and from 1 in names for people.
"""

from tsallis.analysis.attention_summary import summarize_attention
from tsallis.analysis.cards import head_cards
from tsallis.analysis.contrasts import Comparison, Contrasts, compare_models, density_contrasts
from tsallis.analysis.density import Density, density
from tsallis.analysis.density_shapes import SignalDensity, draw_density, signal_densities
from tsallis.analysis.diversity import Diversity, diversity
from tsallis.analysis.head_roles import ROLES, Roles, head_roles
from tsallis.analysis.importance import head_importance
from tsallis.analysis.outputs import TeacherForcedStep, output_statistics, teacher_forced_supports
from tsallis.analysis.record import AttentionReader, Recording, capture_weights, read_model, record
from tsallis.analysis.statistics import collect
from tsallis.analysis.summary_records import RunSummary
from tsallis.analysis.tables import Histogram, to_pandas
from tsallis.analysis.tree import BeamTree, Edge, beam_tree
from tsallis.analysis.weight_summary import summarize_weights
from tsallis.analysis.weights import AttentionLayer, Sentence, SparseWeights, Text

__all__ = [
    "ROLES",
    "AttentionLayer",
    "AttentionReader",
    "BeamTree",
    "Comparison",
    "Contrasts",
    "Density",
    "Diversity",
    "Edge",
    "Histogram",
    "Recording",
    "Roles",
    "RunSummary",
    "Sentence",
    "SignalDensity",
    "SparseWeights",
    "TeacherForcedStep",
    "Text",
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
    "output_statistics",
    "read_model",
    "record",
    "signal_densities",
    "summarize_attention",
    "summarize_weights",
    "teacher_forced_supports",
    "to_pandas",
]
