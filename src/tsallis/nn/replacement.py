"""Sparse attention in place of PyTorch's own, in any module, and PyTorch's back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeVar, cast

import torch
from torch import nn

from tsallis.nn.alpha import PerHeadAlpha
from tsallis.nn.multihead_attention import MultiheadAttention
from tsallis.nn.transformer_layers import TransformerDecoderLayer, TransformerEncoderLayer

Module = TypeVar("Module", bound=nn.Module)
Attention = nn.MultiheadAttention | MultiheadAttention
NewAttention = TypeVar("NewAttention", nn.MultiheadAttention, MultiheadAttention)
LAYERS = (TransformerEncoderLayer, TransformerDecoderLayer)
PARAMETERS = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight", "in_proj_bias", "bias_k", "bias_v")


def sparsify_module(
    module: Module,
    alpha: float | Literal["learned"] = 1.5,
    *,
    names: str | Iterable[str] | None = None,
    initial: float | None = 1.1,
) -> Module | MultiheadAttention:
    r"""Give every attention of PyTorch inside a module sparse weights, those of `torch.nn.Transformer` among them.

    .. math:: p_i = \mathrm{entmax}_{\alpha_h}\big(Q_i K^\top / \sqrt{d}\big)

    in place of softmax (Correia et al. 2019, eq. 8): each `torch.nn.MultiheadAttention` becomes a
    :class:`MultiheadAttention` with the same parameters, which an optimizer goes on training. Layers stay as they are
    around it, but for the fast path of PyTorch's encoder, which computes softmax by itself and is left out. At alpha 1
    the outputs are those of before, except where PyTorch gives NaN because a query has no key, and at padding, where
    the fast path gives zeros. :func:`densify_module` undoes it.

    Args:
        module: changed in place, unless it is an attention itself.
        alpha: at least 1: a number, or "learned" for an alpha of each head.
        names: patterns of attentions' names, such as "encoder.*"; None: all.
        initial: the alpha that learned ones start with; None draws them.

    Returns:
        The module; for an attention itself the one that takes its place.

    Raises:
        ValueError: no attention to replace, a bad alpha.
        TypeError: a subclass of PyTorch's attention, whose own code would be lost.

    Example:
        >>> import torch
        >>> model = sparsify_module(nn.Transformer(16, 4, 1, 1, 32, batch_first=True), alpha=1.5)
        >>> model(torch.randn(3, 5, 16), torch.randn(3, 4, 16)).shape
        torch.Size([3, 4, 16])
        >>> model.decoder.layers[0].multihead_attn.stats().density.shape
        torch.Size([4])
    """
    if isinstance(alpha, str) and alpha != "learned":
        raise ValueError(f"alpha must be a number or 'learned', got {alpha!r}")
    patterns = [names] if isinstance(names, str) else names if names is None else list(names)
    attentions = list(_attentions(module, patterns))
    if not attentions:
        among = "" if patterns is None else f" whose name matches {', '.join(patterns)}"
        raise ValueError(f"{type(module).__name__} has no torch.nn.MultiheadAttention{among}")
    return cast(Module | MultiheadAttention, _swap(module, {old: _sparse(old, alpha, initial) for old in attentions}))


def densify_module(module: Module) -> Module | nn.MultiheadAttention:
    r"""Give every sparse attention inside a module softmax back: undo :func:`sparsify_module`.

    Each :class:`MultiheadAttention` becomes a `torch.nn.MultiheadAttention` with the same parameters; learned alphas
    are dropped. Those in layers of this package stay, because these layers ask more of them than PyTorch's can do.

    Args:
        module: changed in place, unless it is an attention itself.

    Returns:
        The module; for an attention itself the one that takes its place.

    Raises:
        ValueError: no attention to replace.

    Example:
        >>> import torch
        >>> model = sparsify_module(nn.TransformerEncoderLayer(16, 4, batch_first=True), alpha=1.5)
        >>> type(densify_module(model).self_attn)
        <class 'torch.nn.modules.activation.MultiheadAttention'>
    """
    own = {part for layer in module.modules() if isinstance(layer, LAYERS) for part in layer.children()}
    attentions = [x for x in module.modules() if type(x) is MultiheadAttention and x not in own]
    if not attentions:
        raise ValueError(f"{type(module).__name__} has no sparse attention that PyTorch's could replace")
    return cast(Module | nn.MultiheadAttention, _swap(module, {old: _dense(old) for old in attentions}))


def _swap(module: nn.Module, replacements: dict[nn.Module, nn.Module]) -> nn.Module:
    """Put modules in the place of others wherever these are, and return what then stands for the outermost one."""
    if module in replacements:
        return replacements[module]
    for parent in list(module.modules()):
        for name, child in parent._modules.items():  # with those that are there twice
            if child in replacements:
                setattr(parent, name, replacements[child])
    for encoder in module.modules():
        if isinstance(encoder, nn.TransformerEncoder):
            _set_nested(encoder)
    return module


def _set_nested(encoder: Any) -> None:
    """Let an encoder of PyTorch make nested tensors of padded ones only where all its attentions are PyTorch's."""
    sparse = any(isinstance(x, MultiheadAttention) for x in encoder.modules())
    if sparse and getattr(encoder, "use_nested_tensor", False):
        encoder.use_nested_tensor, encoder.nested_when_dense = False, True
    elif not sparse and getattr(encoder, "nested_when_dense", False):
        encoder.use_nested_tensor, encoder.nested_when_dense = True, False


def _attentions(module: nn.Module, patterns: list[str] | None) -> Iterator[nn.MultiheadAttention]:
    for name, part in module.named_modules():
        if not isinstance(part, nn.MultiheadAttention):
            continue
        if patterns is not None and not any(fnmatchcase(name, pattern) for pattern in patterns):
            continue
        if type(part) is not nn.MultiheadAttention:
            raise TypeError(f"{name or 'module'} is a {type(part).__name__}, not a torch.nn.MultiheadAttention itself")
        yield part


def _sparse(old: nn.MultiheadAttention, alpha: Any, initial: float | None) -> MultiheadAttention:
    """Return a sparse attention with the same parameters."""
    if isinstance(alpha, str):
        device = old.out_proj.weight.device
        alpha = PerHeadAlpha(old.num_heads, initial=initial, device=device, dtype=torch.float32)
    return _with_parameters(MultiheadAttention(**_arguments(old), alpha=alpha), old)


def _dense(old: MultiheadAttention) -> nn.MultiheadAttention:
    """Return an attention of PyTorch with the same parameters."""
    return _with_parameters(nn.MultiheadAttention(**_arguments(old)), old)


def _arguments(old: Attention) -> dict[str, Any]:
    return {
        "embed_dim": old.embed_dim,
        "num_heads": old.num_heads,
        "dropout": old.dropout,
        "bias": old.in_proj_bias is not None,
        "add_bias_kv": old.bias_k is not None,
        "add_zero_attn": old.add_zero_attn,
        "kdim": old.kdim,
        "vdim": old.vdim,
        "batch_first": old.batch_first,
        "device": "meta",
    }


def _with_parameters(new: NewAttention, old: Attention) -> NewAttention:
    for name in (*PARAMETERS, "out_proj"):
        setattr(new, name, getattr(old, name))
    return new.train(old.training)
