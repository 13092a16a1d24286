"""Find out why attentions of a model can't become sparse."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import PreTrainedModel

from tsallis.huggingface.alphas import unwrap
from tsallis.huggingface.implementation import calls_ours, configurations, model_parts
from tsallis.huggingface.modules import attention_modules, other_attentions, score_obstacle


def find_obstacles(model: nn.Module) -> dict[str, str]:
    """Return why each attention of a model can't become sparse, without changing the model.

    :func:`sparsify` skips attentions that compute their function themselves, and raises for other obstacles. Attention
    sinks and key selections that appear only at run time are not found.

    Args:
        model: a Transformers model.

    Returns:
        Reasons by the name of the attention; "" if it can become sparse.

    Raises:
        TypeError: The model is not a Transformers model.

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
    """Return why Transformers does not allow replacing an attention's function, or ""."""
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
