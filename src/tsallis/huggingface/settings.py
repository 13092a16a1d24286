"""Store in a model's configuration which attentions are sparse, and the kind of their alphas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import transformers
from torch import nn

from tsallis.huggingface.alphas import COMPILED, FixedAlpha, LearnedAlpha, ScaledAlpha, alpha_modules, unwrap
from tsallis.huggingface.modules import choose_attentions, count_heads

SETTINGS = "tsallis"  # name of the attribute of a configuration
# Kinds of fixed alphas, whose numbers are saved with the weights. For learned alphas, the setting contains two bounds.
FIXED, FIXED_PER_HEAD, SCALED = "fixed", "fixed per head", "fixed, scaled scores"
Setting = str | list[float]


def write_settings(model: Any) -> None:
    """Write the sparse attentions of a model into its configuration."""
    model = unwrap(model)
    model.config.tsallis = {base_name(model, name): _setting(alpha) for name, alpha in alpha_modules(model)}


def _setting(alpha: FixedAlpha | LearnedAlpha) -> Setting:
    if isinstance(alpha, LearnedAlpha):
        return [alpha.low, alpha.high]
    if isinstance(alpha, ScaledAlpha):
        return SCALED
    return FIXED_PER_HEAD if alpha.value.dim() else FIXED


def modules_of_settings(
    model: Any, settings: Mapping[str, Setting]
) -> dict[str, tuple[nn.Module, FixedAlpha | LearnedAlpha]]:
    """Return the attentions that the settings name, each with a module for its alphas.

    Raises:
        ValueError: The settings name no attention of the model, or an unknown kind.
    """
    settings = {base_name(model, name): setting for name, setting in settings.items()}
    attentions = {name: x for name, x in choose_attentions(model).items() if base_name(model, name) in settings}
    if settings and not attentions:
        raise ValueError(
            f"{type(model).__name__} has none of the attentions that the settings of sparsify list: "
            f"{', '.join(sorted(settings))}{version_advice(model.config)}"
        )
    return {name: (x, _alpha_module(name, x, settings[base_name(model, name)])) for name, x in attentions.items()}


def version_advice(config: Any) -> str:
    """Return advice if another version of Transformers, which may name attentions differently, saved a model."""
    version = getattr(config, "transformers_version", None)
    if version in (None, transformers.__version__):
        return ""
    return f". If Transformers has renamed them since version {version}, load the model with that version"


def _alpha_module(name: str, attention: nn.Module, setting: Setting) -> FixedAlpha | LearnedAlpha:
    if isinstance(setting, list):
        low, high = setting
        return LearnedAlpha(count_heads(attention), low, high, (low + high) / 2, dtype=torch.float32)
    if setting == SCALED:
        return ScaledAlpha(1.5)
    if setting not in (FIXED, FIXED_PER_HEAD):
        kinds = f"{FIXED!r}, {FIXED_PER_HEAD!r}, {SCALED!r}"
        raise ValueError(f"the alphas of {name} must be {kinds} or two bounds, got {setting!r}")
    return FixedAlpha(1.0 if setting == FIXED else [1.0] * count_heads(attention))


def base_name(model: Any, name: str) -> str:
    """Return a module's name inside the base model, which is the same for models with other heads."""
    return name.replace(f"{COMPILED}.", "").removeprefix(f"{model.base_model_prefix}.")
