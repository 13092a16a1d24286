"""Modules: the maps and losses, attention, Transformer layers, and the output layer."""

from tsallis.nn.alpha import PerHeadAlpha
from tsallis.nn.attention import GlobalAttention
from tsallis.nn.cache import KeyValueCache
from tsallis.nn.continuous import ContinuousAttention1d, ContinuousAttention2d, ContinuousGlobalAttention
from tsallis.nn.maps import AlphaReLULoss, Entmax, EntmaxLoss, Sparsemax
from tsallis.nn.multihead import AttentionStats, MultiheadAttention
from tsallis.nn.output import OutputLayer
from tsallis.nn.transformer import TransformerDecoderLayer, TransformerEncoderLayer

__all__ = [
    "AlphaReLULoss",
    "AttentionStats",
    "ContinuousAttention1d",
    "ContinuousAttention2d",
    "ContinuousGlobalAttention",
    "Entmax",
    "EntmaxLoss",
    "GlobalAttention",
    "KeyValueCache",
    "MultiheadAttention",
    "OutputLayer",
    "PerHeadAlpha",
    "Sparsemax",
    "TransformerDecoderLayer",
    "TransformerEncoderLayer",
]
