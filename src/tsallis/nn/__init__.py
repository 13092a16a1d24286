"""Modules for sparse probabilities: entmax, losses, attention, Transformer layers and output layers."""

from tsallis.nn.alpha import PerHeadAlpha
from tsallis.nn.continuous_attention.layers import (
    ContinuousAttention1d,
    ContinuousAttention2d,
    ContinuousGlobalAttention,
)
from tsallis.nn.global_attention import GlobalAttention
from tsallis.nn.kv_cache import KeyValueCache, ScreenedKeys
from tsallis.nn.length_scale import LengthScale
from tsallis.nn.maps import Entmax, EntmaxLoss, Sparsemax
from tsallis.nn.multihead_attention import AttentionStats, MultiheadAttention, attention_stats
from tsallis.nn.output import OutputLayer
from tsallis.nn.parameter_groups import parameter_groups
from tsallis.nn.replacement import densify_module, sparsify_module
from tsallis.nn.transformer_layers import TransformerDecoderLayer, TransformerEncoderLayer

__all__ = [
    "AttentionStats",
    "ContinuousAttention1d",
    "ContinuousAttention2d",
    "ContinuousGlobalAttention",
    "Entmax",
    "EntmaxLoss",
    "GlobalAttention",
    "KeyValueCache",
    "LengthScale",
    "MultiheadAttention",
    "OutputLayer",
    "PerHeadAlpha",
    "ScreenedKeys",
    "Sparsemax",
    "TransformerDecoderLayer",
    "TransformerEncoderLayer",
    "attention_stats",
    "densify_module",
    "parameter_groups",
    "sparsify_module",
]
