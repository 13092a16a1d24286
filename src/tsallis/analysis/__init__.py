"""Analysis: what the heads and the outputs of a trained model do, as plain records.

A model is recorded sentence by sentence (:func:`record`), and any number of statistics read a recording in one pass
(:func:`collect`). Layers and heads are numbered from 0 in records, and from 1 where they are named for people.
"""

from tsallis.analysis.alphas import HeadHistory, alpha_histograms, alpha_history, density_history
from tsallis.analysis.cards import HeadCard, head_cards
from tsallis.analysis.contrasts import (
    Contrasts,
    DensityContrast,
    ModelContrast,
    WordContrast,
    compare_models,
    density_contrasts,
)
from tsallis.analysis.density import Densities, Density, HeadDensity, density, sentence_density
from tsallis.analysis.diversity import Diversities, Diversity, LayerDiversity, diversity, jensen_shannon
from tsallis.analysis.head_roles import ROLES, Example, HeadRole, HeadRoles, Roles, head_roles
from tsallis.analysis.importance import HeadImportance, HeadLoss, head_importance, mask_head
from tsallis.analysis.outputs import (
    EmptyOutput,
    EmptyRate,
    OutputStatistics,
    TeacherForcedStep,
    empty_rate,
    output_statistics,
    output_steps,
    teacher_forced_supports,
)
from tsallis.analysis.record import AttentionReader, Recording, capture_weights, read_model, record
from tsallis.analysis.statistics import Statistic, collect
from tsallis.analysis.store import load_recording, save_recording
from tsallis.analysis.summary import Options, RunSummary, summarize
from tsallis.analysis.tables import Histogram, Record, to_pandas
from tsallis.analysis.tree import BeamTree, Edge, beam_tree
from tsallis.analysis.weights import AttentionLayer, Sentence, SparseWeights, Text
from tsallis.analysis.words import INTERROGATIVES, count_pieces, word_clusters

__all__ = [
    "INTERROGATIVES",
    "ROLES",
    "AttentionLayer",
    "AttentionReader",
    "BeamTree",
    "Contrasts",
    "Densities",
    "Density",
    "DensityContrast",
    "Diversities",
    "Diversity",
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
    "Options",
    "OutputStatistics",
    "Record",
    "Recording",
    "Roles",
    "RunSummary",
    "Sentence",
    "SparseWeights",
    "Statistic",
    "TeacherForcedStep",
    "Text",
    "WordContrast",
    "alpha_histograms",
    "alpha_history",
    "beam_tree",
    "capture_weights",
    "collect",
    "compare_models",
    "count_pieces",
    "density",
    "density_contrasts",
    "density_history",
    "diversity",
    "empty_rate",
    "head_cards",
    "head_importance",
    "head_roles",
    "jensen_shannon",
    "load_recording",
    "mask_head",
    "output_statistics",
    "output_steps",
    "read_model",
    "record",
    "save_recording",
    "sentence_density",
    "summarize",
    "teacher_forced_supports",
    "to_pandas",
    "word_clusters",
]
