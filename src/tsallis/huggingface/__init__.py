"""Use sparse attention, losses, sampling and search in Hugging Face Transformers; needs the extra `hf`."""

from tsallis.huggingface.alphas import FixedAlpha, LearnedAlpha, alphas, parameter_groups
from tsallis.huggingface.attended import calibrate_attended
from tsallis.huggingface.attention import register
from tsallis.huggingface.callbacks import AnnealAlpha, AttentionLog
from tsallis.huggingface.decoder import TransformersDecoder
from tsallis.huggingface.density import DensityMeter
from tsallis.huggingface.distillation import DistilledDataset, distill
from tsallis.huggingface.generation import EntmaxLogitsProcessor, ScreenedCache
from tsallis.huggingface.implementation import find_obstacles
from tsallis.huggingface.loading import from_pretrained
from tsallis.huggingface.losses import lm_loss, trainer_loss
from tsallis.huggingface.sparsify import densify, set_alpha, sparsify

register()  # register at import, because another process may unpickle a model

__all__ = [
    "AnnealAlpha",
    "AttentionLog",
    "DensityMeter",
    "DistilledDataset",
    "EntmaxLogitsProcessor",
    "FixedAlpha",
    "LearnedAlpha",
    "ScreenedCache",
    "TransformersDecoder",
    "alphas",
    "calibrate_attended",
    "densify",
    "distill",
    "find_obstacles",
    "from_pretrained",
    "lm_loss",
    "parameter_groups",
    "set_alpha",
    "sparsify",
    "trainer_loss",
]
