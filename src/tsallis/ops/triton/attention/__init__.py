"""Compute attention on GPUs; `calls` implements :class:`tsallis.ops.protocol.AttentionKernels`."""

from __future__ import annotations

from tsallis.ops.triton.attention.calls import (
    SavedForBackward,
    allocate,
    attention,
    attention_gradient,
    drop_factors,
    resolve,
)

__all__ = ["SavedForBackward", "allocate", "attention", "attention_gradient", "drop_factors", "resolve"]
