"""Sparse attention, losses and sampling in Hugging Face Transformers models; needs the extra `hf`."""

from tsallis.integrations.huggingface.alphas import (
    FixedAlpha,
    LearnedAlpha,
    alpha_parameters,
    alphas,
    parameter_groups,
)
from tsallis.integrations.huggingface.sparsify import densify, from_pretrained, set_alpha, sparsify

__all__ = [
    "FixedAlpha",
    "LearnedAlpha",
    "alpha_parameters",
    "alphas",
    "densify",
    "from_pretrained",
    "parameter_groups",
    "set_alpha",
    "sparsify",
]
