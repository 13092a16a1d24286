"""Sparse attention, losses, sampling and search in Hugging Face Transformers models; needs the extra `hf`."""

from tsallis.integrations.huggingface.alphas import (
    FixedAlpha,
    LearnedAlpha,
    alpha_parameters,
    alphas,
    parameter_groups,
)
from tsallis.integrations.huggingface.attention import register
from tsallis.integrations.huggingface.callbacks import AnnealAlpha, AttentionLog
from tsallis.integrations.huggingface.decoder import TransformersDecoder
from tsallis.integrations.huggingface.density import DensityMeter
from tsallis.integrations.huggingface.generation import EntmaxLogitsProcessor
from tsallis.integrations.huggingface.loading import from_pretrained
from tsallis.integrations.huggingface.losses import lm_loss, trainer_loss
from tsallis.integrations.huggingface.obstacles import find_obstacles
from tsallis.integrations.huggingface.sparsify import densify, set_alpha, sparsify

register()  # now: a model that is unpickled in another process needs it, and imports this package

__all__ = [
    "AnnealAlpha",
    "AttentionLog",
    "DensityMeter",
    "EntmaxLogitsProcessor",
    "FixedAlpha",
    "LearnedAlpha",
    "TransformersDecoder",
    "alpha_parameters",
    "alphas",
    "densify",
    "find_obstacles",
    "from_pretrained",
    "lm_loss",
    "parameter_groups",
    "set_alpha",
    "sparsify",
    "trainer_loss",
]
