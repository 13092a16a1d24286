"""Sparse attention in place of PyTorch's own, in any module."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeVar

import torch
from torch import nn

from tsallis.nn.alpha import PerHeadAlpha
from tsallis.nn.multihead_attention import MultiheadAttention

Module = TypeVar("Module", bound=nn.Module)
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
    around it. At alpha 1 the outputs are those of before, except where PyTorch gives NaN because a query has no key.

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
    replacements: dict[nn.Module, MultiheadAttention] = {old: _replace(old, alpha, initial) for old in attentions}
    if module in replacements:
        return replacements[module]
    for parent in list(module.modules()):
        for name, child in parent._modules.items():  # with those that are there twice
            if child in replacements:
                setattr(parent, name, replacements[child])
    return module


def _attentions(module: nn.Module, patterns: list[str] | None) -> Iterator[nn.MultiheadAttention]:
    for name, part in module.named_modules():
        if not isinstance(part, nn.MultiheadAttention):
            continue
        if patterns is not None and not any(fnmatchcase(name, pattern) for pattern in patterns):
            continue
        if type(part) is not nn.MultiheadAttention:
            raise TypeError(f"{name or 'module'} is a {type(part).__name__}, not a torch.nn.MultiheadAttention itself")
        yield part


def _replace(old: nn.MultiheadAttention, alpha: Any, initial: float | None) -> MultiheadAttention:
    """Return a sparse attention with the same parameters."""
    device = old.out_proj.weight.device
    if isinstance(alpha, str):
        alpha = PerHeadAlpha(old.num_heads, initial=initial, device=device, dtype=torch.float32)
    new = MultiheadAttention(
        old.embed_dim,
        old.num_heads,
        dropout=old.dropout,
        bias=old.in_proj_bias is not None,
        add_bias_kv=old.bias_k is not None,
        add_zero_attn=old.add_zero_attn,
        kdim=old.kdim,
        vdim=old.vdim,
        batch_first=old.batch_first,
        device="meta",
        alpha=alpha,
    )
    for name in PARAMETERS:
        new.register_parameter(name, getattr(old, name))
    new.out_proj = old.out_proj
    return new.train(old.training)
