"""Replace the attention of a Transformers model by sparse attention, and restore the original attention."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from tsallis.functional.rows import alpha_number
from tsallis.huggingface.alphas import (
    ALPHA,
    FixedAlpha,
    LearnedAlpha,
    alpha_modules,
    base_model,
    fixed_numbers,
    unwrap,
)
from tsallis.huggingface.implementation import DENSE, keep_sparse, model_parts, restore_attention, switch_attention
from tsallis.huggingface.modules import (
    Kind,
    Layer,
    attention_modules,
    check_scores,
    choose_attentions,
    count_heads,
    warn_about_unsupported,
)
from tsallis.huggingface.settings import SETTINGS, write_settings

Alpha = float | Literal["learned"] | Sequence[float] | Tensor
Layers = Layer | Iterable[Layer] | None
Model = TypeVar("Model", bound=nn.Module)


def sparsify(
    model: Model,
    alpha: Alpha | Mapping[Layer, Alpha] = 1.5,
    *,
    layers: Layer | Iterable[Layer] | None = None,
    kind: Kind | None = None,
    initial: float | None = None,
    low: float = 1.0,
    high: float = 2.0,
) -> Model:
    r"""Replace the attention of a Transformers model by sparse attention with fixed or learned alphas.

    .. math:: p_i = \mathrm{entmax}_{\alpha_h}\big(\mathrm{scale} \cdot Q_i K^\top + \mathrm{mask}_i\big)

    replaces softmax (Correia et al. 2019, eq. 8). At alpha 1 the outputs don't change, except for padding
    positions. Masks, caches and `generate` keep working. `save_pretrained` saves the alphas, and
    :func:`from_pretrained` loads them. The alphas are the attributes `tsallis_alpha` of the attentions. A second call
    changes only the attentions that it selects; "learned" then creates new parameters, so create the optimizer
    afterwards. `sparsify(model, alphas(model))` fixes learned alphas. A warning names attentions that can't be
    changed; see :func:`find_obstacles`.

    Args:
        model: Transformers model whose attentions use `AttentionInterface`, also inside PEFT or `torch.compile`. It is
            changed in place, and gets its own configuration.
        alpha: Alpha of at least 1: a number, a list or tensor with one alpha per head, "learned" for a learned alpha
            per head, or a mapping from `layers` to any of these.
        layers: Layer numbers from 0 (separately in encoder and decoder), or patterns such as "*.decoder.*"; None: all.
        kind: "self", or "cross" for attention to an encoder's output; None: both.
        initial: Initial learned alpha, strictly between `low` and `high`; 1.1 is near softmax. None draws a random
            value, see :class:`tsallis.nn.PerHeadAlpha`. No effect on fixed alphas.
        low, high: Bounds of learned alphas.

    Returns:
        The model.

    Raises:
        ValueError: An attention can't be replaced, the model is part of a sparsified model, a layer is missing, an
            alpha is invalid, or `config.output_attentions` is True (pass it to calls of the model instead).
        TypeError: The model is not a Transformers model.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> config = BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=2, intermediate_size=8)
        >>> model = sparsify(BertModel(config), alpha=1.5)
        >>> model(torch.tensor([[5, 6, 7]]), output_attentions=True).attentions[0].shape
        torch.Size([1, 2, 3, 3])
    """
    base = base_model(model)
    _check_not_part(base, "sparsify with the argument layers")
    layers = layers if layers is None or isinstance(layers, int | str) else list(layers)
    alpha = _remove_wrapper_names(alpha, model, base) if isinstance(alpha, Mapping) else alpha
    modules = {
        name: (attention, _alpha_module(value, name, attention, initial, low, high))
        for value, chosen in _alphas_of_layers(alpha, layers)
        for name, attention in choose_attentions(base, chosen, kind).items()
    }
    install_alphas(model, modules)
    _warn_about_adapters(model, any(isinstance(module, LearnedAlpha) for _, module in modules.values()))
    warn_about_unsupported(base, list(alpha) if isinstance(alpha, Mapping) else layers, kind)
    return model


def _remove_wrapper_names(alphas: Mapping[Layer, Alpha], model: nn.Module, base: nn.Module) -> dict[Layer, Alpha]:
    """Remove the names of wrappers, with which the names start that :func:`~tsallis.huggingface.alphas` returns."""
    wrapper = next(f"{name}." if name else "" for name, part in model.named_modules() if part is base)
    return {x.removeprefix(wrapper) if isinstance(x, str) else x: alpha for x, alpha in alphas.items()}


def _alphas_of_layers(alpha: Alpha | Mapping[Layer, Alpha], layers: Layers) -> list[tuple[Alpha, Layers]]:
    """Return each alpha with its layers."""
    if not isinstance(alpha, Mapping):
        return [(alpha, layers)]
    if layers is not None or not alpha:
        conflict = "pass either layers or a mapping from layers to alphas, not both"
        raise ValueError(conflict if alpha else "alpha must name at least one layer, got {}")
    return [(value, layer) for layer, value in alpha.items()]


def _warn_about_adapters(model: Any, learned: bool) -> None:
    """Warn if adapters should save the new alphas, because PEFT saves only modules that it has replaced itself."""
    configs = getattr(model, "peft_config", {}).values()
    if configs and (learned or any(ALPHA in (getattr(x, "modules_to_save", None) or ()) for x in configs)):
        warnings.warn(
            f"the adapter of {type(model).__name__} does not save alphas that sparsify sets afterwards: call sparsify "
            f"first, then add the adapter, for learned alphas with modules_to_save=[{ALPHA!r}]",
            stacklevel=3,
        )


def _check_not_part(base: nn.Module, call: str) -> None:
    """Raise if a model is part of a sparsified model."""
    if any(alpha_modules(base)) and not any(hasattr(part, DENSE) for part in model_parts(base)):
        raise ValueError(f"{type(base).__name__} is part of a sparsified model: call {call} on the whole model")


def densify(model: Model) -> Model:
    """Restore the softmax attention of a sparsified model, and remove its alphas.

    Args:
        model: Model that :func:`sparsify` has changed, completely or in parts. It is changed in place.

    Returns:
        The model.

    Raises:
        ValueError: The model is not sparsified, or is part of a sparsified model.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> config = BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=2, intermediate_size=8)
        >>> densify(sparsify(BertModel(config))).config._attn_implementation
        'sdpa'
    """
    base: Any = unwrap(model)
    _check_not_part(base, "densify")
    parts = model_parts(base)
    if not any(hasattr(part, DENSE) for part in parts):
        raise ValueError(f"{type(base).__name__} has no sparse attention to restore")
    restore_attention(base)
    for part in parts:
        vars(part.config).pop(SETTINGS, None)
    for module in base.modules():
        if hasattr(module, ALPHA):
            delattr(module, ALPHA)
    return model


def set_alpha(model: nn.Module, alpha: float) -> None:
    """Set all fixed alphas of a sparsified model, including alphas per head. Learned alphas don't change.

    A factor of :func:`calibrate_attended` stays; :func:`sparsify` discards it.

    Args:
        model: Model that :func:`sparsify` has changed.
        alpha: Alpha of at least 1.

    Raises:
        ValueError: The alpha is invalid, or the model has no fixed alpha.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> config = BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8)
        >>> model = sparsify(BertModel(config), 1.0)
        >>> set_alpha(model, 1.25)
        >>> model.encoder.layer[0].attention.self.tsallis_alpha
        FixedAlpha(1.25)
    """
    number = alpha_number(alpha)
    modules = [x for _, x in alpha_modules(model) if isinstance(x, FixedAlpha)]
    if not modules:
        raise ValueError(
            f"{type(model).__name__} has no attention with a fixed alpha: call sparsify with a number first"
        )
    for module in modules:
        module.set(number)


def install_alphas(model: nn.Module, modules: Mapping[str, tuple[nn.Module, FixedAlpha | LearnedAlpha]]) -> None:
    """Add alphas to attentions, set their function, and update the configuration.

    Args:
        model: Transformers model or a wrapper of one.
        modules: Attentions by name, each with its alphas.

    Raises:
        ValueError: An attention changes its scores in an unsupported way, or its function can't be replaced. The model
            is then unchanged.
    """
    base = unwrap(model)
    for name, attention in attention_modules(base):
        check_scores(name, attention, name in modules)
    switch_attention(base, model, {name: attention for name, (attention, _) in modules.items()})
    for attention, alpha_module in modules.values():
        setattr(attention, ALPHA, alpha_module)
        keep_sparse(attention)
    # Keep alphas in float32, also if a checkpoint is loaded in half precision.
    base._keep_in_fp32_modules_strict = set(base._keep_in_fp32_modules_strict or ()) | {ALPHA}
    write_settings(base)


def _alpha_module(
    alpha: Alpha,
    name: str,
    attention: nn.Module,
    initial: float | None,
    low: float,
    high: float,
) -> FixedAlpha | LearnedAlpha:
    tensors = [*attention.parameters(), *attention.buffers()]  # quantized layers may have only buffers
    device = next((x.device for x in tensors if not x.is_meta), None)
    if device is None:  # the weights of an offloaded attention are loaded for each call, but alphas stay
        offloaded = any(hasattr(module, "_hf_hook") for module in attention.modules())
        device = torch.device("cpu" if offloaded or not tensors else "meta")
    if isinstance(alpha, str):
        if alpha != "learned":
            raise ValueError(f"alpha must be a number or 'learned', got {alpha!r}")
        return LearnedAlpha(count_heads(attention), low, high, initial, device=device, dtype=torch.float32)
    numbers = fixed_numbers(alpha)
    if isinstance(numbers, list) and len(numbers) != count_heads(attention):
        raise ValueError(
            f"alpha must have {count_heads(attention)} numbers, one per head of {name}, got {len(numbers)}"
        )
    return FixedAlpha(numbers, device)
