"""Sparse attention, losses and sampling in Hugging Face Transformers models; needs the extra `hf`."""

from tsallis.integrations.huggingface.alphas import (
    FixedAlpha,
    LearnedAlpha,
    alpha_parameters,
    alphas,
    parameter_groups,
)
from tsallis.integrations.huggingface.attention import register
from tsallis.integrations.huggingface.callbacks import AnnealAlpha, AttentionLog
from tsallis.integrations.huggingface.density import DensityMeter
from tsallis.integrations.huggingface.generation import EntmaxLogitsProcessor
from tsallis.integrations.huggingface.losses import causal_lm_loss, trainer_loss
from tsallis.integrations.huggingface.sparsify import densify, from_pretrained, set_alpha, sparsify

register()  # now: a model that is unpickled in another process needs it, and imports this package

__all__ = [
    "AnnealAlpha",
    "AttentionLog",
    "DensityMeter",
    "EntmaxLogitsProcessor",
    "FixedAlpha",
    "LearnedAlpha",
    "alpha_parameters",
    "alphas",
    "causal_lm_loss",
    "densify",
    "from_pretrained",
    "parameter_groups",
    "set_alpha",
    "sparsify",
    "trainer_loss",
]
