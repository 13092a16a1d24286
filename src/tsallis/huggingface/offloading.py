"""Read models whose weights accelerate loads for each call and removes afterwards."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn


def input_device(model: nn.Module) -> torch.device:
    """Return the device of a model's inputs: that of its first loaded parameter, or that of offloaded modules."""
    devices = [x.device for x in model.parameters() if not x.is_meta]
    hooks = [getattr(module, "_hf_hook", None) for module in model.modules()]
    devices += [x for hook in hooks if (x := getattr(hook, "execution_device", None)) is not None]
    return torch.device(devices[0] if devices else "cpu")


def loaded(module: nn.Module) -> AbstractContextManager[Any]:
    """Return a context in which an offloaded module has its weights."""
    if not hasattr(module, "_hf_hook"):
        return nullcontext()
    from accelerate.utils import align_module_device  # type: ignore[import-untyped]

    return align_module_device(module)
