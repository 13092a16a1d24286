"""Modules: the maps and losses, attention, and the output layer."""

from tsallis.nn.attention import GlobalAttention
from tsallis.nn.maps import AlphaReLULoss, Entmax, EntmaxLoss, Sparsemax
from tsallis.nn.output import OutputLayer

__all__ = ["AlphaReLULoss", "Entmax", "EntmaxLoss", "GlobalAttention", "OutputLayer", "Sparsemax"]
