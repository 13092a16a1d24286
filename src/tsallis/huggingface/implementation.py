"""Set or restore the attention function that a Transformers model calls, and find out why it can't be set."""

from __future__ import annotations

import copy
import functools
import inspect
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from tsallis.huggingface.alphas import ALPHA, base_model
from tsallis.huggingface.attention import FULL_MASKS, NAME
from tsallis.huggingface.modules import attention_modules, score_obstacle, unsupported_attentions

# Name of a model attribute that stores configurations, each with the name of the original attention function.
DENSE = "_tsallis_dense_attention"
# Functions to restore in a model that was created from the configuration of a sparsified model.
DEFAULTS = {NAME: "sdpa", FULL_MASKS: "eager"}


def implementation_name(model: nn.Module) -> str:
    """Return the name of the implementation whose masks are right for a model.

    `sdpa_mask` omits causal masks, because attentions with `is_causal` need none. This works for models that support
    PyTorch's scaled dot-product attention. Some decoders don't set `is_causal` (NLLB-MoE, PEGASUS-X), some pass the
    mask to attentions of their own (Informer, BigBird-Pegasus), and some treat the name "sdpa" specially (Gemma 4).
    These models get the masks of eager attention.
    """
    parts = model_parts(model)
    return NAME if all(x._supports_sdpa and not _mentions_sdpa(type(x).__module__) for x in parts) else FULL_MASKS


@functools.cache
def _mentions_sdpa(module_name: str) -> bool:
    """Return whether a model's Python module treats the name "sdpa" specially."""
    try:
        source = inspect.getsource(sys.modules[module_name])
    except (KeyError, OSError, TypeError):  # the class was defined in a notebook
        return False
    return re.search(r"""_attn_implementation\s*==\s*["']sdpa["']""", source) is not None


def model_parts(model: nn.Module) -> list[Any]:
    """Return the model itself and the Transformers models inside it."""
    return [module for module in model.modules() if isinstance(module, PreTrainedModel)]


def calls_entmax(attention: nn.Module, model: Any) -> bool:
    """Return whether an attention of a model calls our function."""
    config: Any = getattr(attention, "config", model.config)
    return getattr(config, "_attn_implementation", None) in DEFAULTS


def switch_attention(model: Any, owner: nn.Module, attentions: Mapping[str, nn.Module]) -> None:
    """Make attentions of a model call our function, and store the name of the original function.

    The model gets a copy of its configuration, because other models may share the original. An error changes nothing.

    Args:
        model: Transformers model.
        owner: The model or its wrapper.
        attentions: Attentions that will call our function, by name.

    Raises:
        ValueError: Transformers does not allow replacing an attention's function, or the configuration requests
            weights.
    """
    if hasattr(model, DENSE) and all(calls_entmax(attention, model) for attention in attentions.values()):
        return
    configs = configurations(model)
    if any(config.output_attentions for config in configs):
        raise ValueError(
            "config.output_attentions must be False, got True: Transformers can't save it with sparse attention. Pass "
            "output_attentions=True to calls of the model instead"
        )
    dense_names = [(config, _dense_implementation(model, config)) for config in configs]
    copies = _copy_configurations(owner, configs)
    _replace_configurations(owner, {key: new for key, (_, new) in copies.items()})
    try:
        model.set_attn_implementation(implementation_name(model))
        unsupported = [name for name, attention in attentions.items() if not calls_entmax(attention, model)]
        if unsupported:
            reason = _function_obstacle(model, attentions[unsupported[0]])
            raise ValueError(
                f"Transformers does not support replacing the attention function of {', '.join(unsupported)}"
                f"{f', which {reason}' if reason else ''}"
            )
    except Exception:
        _replace_configurations(owner, {id(new): old for old, new in copies.values()})
        raise
    for part in model_parts(model):
        vars(part).pop(DENSE, None)
    setattr(model, DENSE, [(copies[id(config)][1], name) for config, name in dense_names])


def keep_sparse(attention: nn.Module) -> None:
    """Make a sparse attention of Whisper raise if `generate` replaced it to compute the timestamps of tokens."""
    hooks = attention._forward_pre_hooks.values()
    config = getattr(attention, "config", None)
    if getattr(config, "model_type", None) == "whisper" and _reject_eager not in hooks:
        attention.register_forward_pre_hook(_reject_eager)


def _reject_eager(attention: Any, _: Any) -> None:
    if attention.config._attn_implementation == "eager" and hasattr(attention, ALPHA):
        attention.config._attn_implementation = NAME  # later calls are sparse again
        raise ValueError(
            "Whisper computes timestamps of tokens and words with softmax attention, but this model is sparse: "
            "leave out return_token_timestamps (in a pipeline, return_timestamps='word'), or call densify first"
        )


def restore_attention(model: nn.Module) -> None:
    """Restore the original function of a model, and of each part that was sparsified separately."""
    for part in model_parts(model):
        for config, name in vars(part).pop(DENSE, ()):
            # Don't call set_attn_implementation: it checks the old value, and ignores parts that are not built.
            config._attn_implementation_internal = name


def configurations(model: nn.Module) -> list[Any]:
    """Return the configurations of a model and its parts, including nested configurations, each once."""
    configs: dict[int, Any] = {}
    queue: list[Any] = [part.config for part in model_parts(model)]
    while queue:
        config = queue.pop()
        if id(config) not in configs:
            configs[id(config)] = config
            inner = (getattr(config, name, None) for name in config.sub_configs)
            queue += [x for x in inner if isinstance(x, PreTrainedConfig)]
    return list(configs.values())


def _dense_implementation(model: nn.Module, config: Any) -> str | None:
    """Return the name of the original attention function of a configuration."""
    name: str | None = config._attn_implementation
    if name not in DEFAULTS:
        return name
    original_names = {
        id(x): original_name for part in model_parts(model) for x, original_name in getattr(part, DENSE, ())
    }
    return original_names.get(id(config), DEFAULTS[name])


def _copy_configurations(owner: nn.Module, configs: Iterable[Any]) -> dict[int, tuple[Any, Any]]:
    """Copy the configurations of a model and its modules. Return each original and its copy, by the original's id."""
    module_configs = [x for module in owner.modules() for x in vars(module).values() if isinstance(x, PreTrainedConfig)]
    memo: dict[int, Any] = {}
    return {id(config): (config, copy.deepcopy(config, memo)) for config in (*configs, *module_configs)}


def _replace_configurations(owner: nn.Module, copies: Mapping[int, Any]) -> None:
    for module in owner.modules():
        for name, value in vars(module).items():
            if isinstance(value, PreTrainedConfig):
                vars(module)[name] = copies[id(value)]


def find_obstacles(model: nn.Module) -> dict[str, str]:
    """Return, for each attention, the reason why it can't become sparse. The model is not changed.

    :func:`sparsify` skips attentions that compute their function themselves, and raises for other obstacles. Attention
    sinks and key selections that appear only at run time are not found.

    Args:
        model: Transformers model.

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
    base = base_model(model)
    replaceable = {name for name, _ in attention_modules(base)}
    other_names = set(unsupported_attentions(base))
    obstacles = {}
    for name, attention in base.named_modules():
        if name in replaceable:
            obstacles[name] = score_obstacle(attention) or _function_obstacle(base, attention)
        elif name in other_names:
            obstacles[name] = _interface_obstacle(attention)
    return obstacles


def _interface_obstacle(attention: nn.Module) -> str:
    if isinstance(attention, nn.MultiheadAttention):
        return "is a torch.nn.MultiheadAttention: replace it with tsallis.nn.sparsify_module"
    return "does not use Transformers' AttentionInterface"


def _function_obstacle(base: Any, attention: nn.Module) -> str:
    """Return why Transformers does not allow replacing an attention's function; "" if it does."""
    config = getattr(attention, "config", base.config)
    if calls_entmax(attention, base):
        return ""
    part = next((part for part in model_parts(base) if part.config is config), None)
    if part is None:
        is_inner = any(x is config for x in configurations(base))
        return (
            ""
            if is_inner
            else "has a configuration outside the model's configuration: save the model and load it again"
        )
    if part._can_set_attn_implementation():
        return ""
    return f"belongs to {type(part).__name__}, whose attention function Transformers can't replace"
