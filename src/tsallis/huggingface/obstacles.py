"""What keeps attentions of a model from becoming sparse."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import PreTrainedModel

from tsallis.huggingface.alphas import unwrap
from tsallis.huggingface.implementation import calls_ours, configurations, model_parts
from tsallis.huggingface.modules import attention_modules, other_attentions, score_obstacle


def find_obstacles(model: nn.Module) -> dict[str, str]:
    """Find what keeps each attention of a model from becoming sparse; the model stays as it is.

    :func:`sparsify` leaves attentions that are computed in a way of their own as they are, and raises an error for the
    others that something keeps from it. Sinks and choices of keys that show only while a model runs are not found.

    Args:
        model: a Transformers model.

    Returns:
        For every attention's name a reason, "" where it can become sparse.

    Raises:
        TypeError: what is no Transformers model.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> config = BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8)
        >>> find_obstacles(BertModel(config))
        {'encoder.layer.0.attention.self': ''}
    """
    base: Any = unwrap(model)
    if not isinstance(base, PreTrainedModel):
        raise TypeError(f"model must be a Transformers model, got {type(model).__name__}")
    own = {name for name, _ in attention_modules(base)}
    others = set(other_attentions(base))
    obstacles = {}
    for name, attention in base.named_modules():
        if name in own:
            obstacles[name] = score_obstacle(attention) or _function_obstacle(base, attention)
        elif name in others:
            obstacles[name] = _own_way(attention)
    return obstacles


def _own_way(attention: nn.Module) -> str:
    if isinstance(attention, nn.MultiheadAttention):
        return "is a torch.nn.MultiheadAttention: tsallis.nn.sparsify_module makes it sparse"
    return "does not ask Transformers' AttentionInterface which function computes it"


def _function_obstacle(base: Any, attention: nn.Module) -> str:
    """Tell why Transformers would not let an attention's function be replaced; "" where it would."""
    config = getattr(attention, "config", base.config)
    if calls_ours(attention, base):
        return ""
    part = next((part for part in model_parts(base) if part.config is config), None)
    if part is None:
        is_inner = any(x is config for x in configurations(base))
        return "" if is_inner else "has a configuration that Transformers does not reach from the model's"
    if part._can_set_attn_implementation():
        return ""
    return f"is of {type(part).__name__}, whose attention function Transformers does not let be replaced"
