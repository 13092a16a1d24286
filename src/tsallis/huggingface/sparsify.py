"""Sparse attention in a Transformers model, and softmax again; saved with the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from tsallis.functional.rows import alpha_number
from tsallis.huggingface.alphas import ALPHA, FixedAlpha, LearnedAlpha, alpha_modules, fixed_numbers, unwrap
from tsallis.huggingface.implementation import DENSE, model_parts, restore_attention, switch_attention
from tsallis.huggingface.modules import Kind, Layer, check_scores, choose_attentions, count_heads, warn_of_others
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
    r"""Give the attentions of a Transformers model sparse weights, with alphas that are fixed or learned.

    .. math:: p_i = \mathrm{entmax}_{\alpha_h}\big(\mathrm{scale} \cdot Q_i K^\top + \mathrm{mask}_i\big)

    in place of softmax (Correia et al. 2019, eq. 8). At alpha 1 the outputs are the model's own. Masks, caches and
    `generate` stay as they are. `save_pretrained` saves the alphas, which lie inside the attentions under
    `tsallis_alpha`, and :func:`from_pretrained` loads them. A second call changes only the attentions that it chooses;
    `sparsify(model, alphas(model))` fixes what was learned. A warning names attentions that cannot be changed, as
    :func:`find_obstacles` does.

    Args:
        model: a Transformers model whose attentions use its `AttentionInterface`, or what PEFT or `torch.compile` made
            of one; it is changed in place, and gets a configuration of its own.
        alpha: at least 1: a number, one for each head in a list or tensor, "learned" for an alpha of each head that is
            trained with the model, or a mapping from some of the `layers` to any of them.
        layers: numbers, which encoder and decoder both count from 0, or patterns such as "*.decoder.*"; None: all.
        kind: "self", or "cross" for attention to an encoder's output; None: both.
        initial: the alpha that learned ones start with, between `low` and `high`; 1.1 is near the softmax of a
            pretrained model. None draws each at random, see :class:`tsallis.nn.PerHeadAlpha`.
        low, high: the bounds of learned alphas.

    Returns:
        The model.

    Raises:
        ValueError: an attention that cannot be replaced, a part of a sparsified model, a missing layer, a bad alpha.
        TypeError: what is no Transformers model.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> config = BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=2, intermediate_size=8)
        >>> model = sparsify(BertModel(config), alpha=1.5)
        >>> model(torch.tensor([[5, 6, 7]]), output_attentions=True).attentions[0].shape
        torch.Size([1, 2, 3, 3])
    """
    base: Any = unwrap(model)
    if not isinstance(base, PreTrainedModel):
        raise TypeError(
            f"model must be a Transformers model, got {type(model).__name__}; for others nn.sparsify_module"
        )
    _check_whole(base, "sparsify on that, with layers=")
    layers = layers if layers is None or isinstance(layers, int | str) else list(layers)
    modules = {
        name: (attention, _alpha_module(value, name, attention, initial, low, high))
        for value, chosen in _alphas_of_layers(alpha, layers)
        for name, attention in choose_attentions(base, chosen, kind).items()
    }
    install_alphas(model, modules)
    warn_of_others(base, list(alpha) if isinstance(alpha, Mapping) else layers, kind)
    return model


def _alphas_of_layers(alpha: Alpha | Mapping[Layer, Alpha], layers: Layers) -> list[tuple[Alpha, Layers]]:
    """Return alphas, each with the layers that get it."""
    if not isinstance(alpha, Mapping):
        return [(alpha, layers)]
    if layers is not None or not alpha:
        raise ValueError("alpha names the layers itself: leave layers out" if alpha else "alpha names no layers: {}")
    return [(value, layer) for layer, value in alpha.items()]


def _check_whole(base: nn.Module, call: str) -> None:
    """Raise if a model is inside another one that was sparsified."""
    if any(alpha_modules(base)) and not any(hasattr(part, DENSE) for part in model_parts(base)):
        raise ValueError(f"{type(base).__name__} is a part of a sparsified model: call {call}")


def densify(model: Model) -> Model:
    """Give a sparsified model softmax attention again; its alphas are gone, its other weights stay.

    Args:
        model: sparsified by :func:`sparsify`, itself or parts of it; it is changed in place.

    Returns:
        The model.

    Raises:
        ValueError: a model that is not sparsified, or a part of one that is.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> config = BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=2, intermediate_size=8)
        >>> densify(sparsify(BertModel(config))).config._attn_implementation
        'sdpa'
    """
    base: Any = unwrap(model)
    _check_whole(base, "densify on that")
    parts = model_parts(base)
    if not any(hasattr(part, DENSE) for part in parts):
        raise ValueError(f"{type(base).__name__} is not sparsified")
    restore_attention(base)
    for part in parts:
        vars(part.config).pop(SETTINGS, None)
    for module in base.modules():
        if hasattr(module, ALPHA):
            delattr(module, ALPHA)
    return model


def set_alpha(model: nn.Module, alpha: float) -> None:
    """Change all fixed alphas of a sparsified model, those of single heads, too; learned ones stay as they are.

    Args:
        model: sparsified by :func:`sparsify`.
        alpha: at least 1.

    Raises:
        ValueError: a bad alpha, a model without a fixed one.

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
        raise ValueError(f"{type(model).__name__} has no attention with a fixed alpha")
    for module in modules:
        module.set(number)


def install_alphas(model: nn.Module, modules: Mapping[str, tuple[nn.Module, FixedAlpha | LearnedAlpha]]) -> None:
    """Put alphas into attentions, let these call our function, and let the configuration say so.

    Args:
        model: a Transformers model, or a wrapper of one.
        modules: attentions by their names, each with what gives its alphas.

    Raises:
        ValueError: an attention that does to its scores what entmax attention cannot, or whose function cannot be
            replaced; the model is then as it was.
    """
    base = unwrap(model)
    for name, (attention, _) in modules.items():
        check_scores(name, attention)
    switch_attention(base, model, {name: attention for name, (attention, _) in modules.items()})
    for attention, alpha_module in modules.values():
        setattr(attention, ALPHA, alpha_module)
    # Transformers then loads alphas in float32 from a checkpoint of half precision, too.
    base._keep_in_fp32_modules_strict = set(base._keep_in_fp32_modules_strict or ()) | {ALPHA}
    write_settings(base)


def _alpha_module(
    alpha: Alpha, name: str, attention: nn.Module, initial: float | None, low: float, high: float
) -> FixedAlpha | LearnedAlpha:
    device = next(attention.parameters()).device
    if isinstance(alpha, str):
        if alpha != "learned":
            raise ValueError(f"alpha must be a number or 'learned', got {alpha!r}")
        return LearnedAlpha(count_heads(attention), low, high, initial, device=device, dtype=torch.float32)
    numbers = fixed_numbers(alpha)
    if isinstance(numbers, list) and len(numbers) != count_heads(attention):
        raise ValueError(f"alpha has {len(numbers)} numbers, but {name} has {count_heads(attention)} heads")
    return FixedAlpha(numbers, device)
