"""Measure the importance of each head: the increase of the loss without it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tsallis.analysis.tables import Record
from tsallis.errors import InputError
from tsallis.models import LanguageModel, TransformerSeq2Seq
from tsallis.models.batch import Batch, has_loss
from tsallis.models.modes import eval_mode
from tsallis.nn import MultiheadAttention


@dataclass(frozen=True)
class HeadLoss(Record):
    """Loss without one head; layers and heads count from 0.

    Args:
        kind: Kind of attention: "encoder", "decoder" or "cross".
        layer: Number of the layer.
        head: Number of the head.
        alpha: Alpha of the head.
        loss: Mean loss per symbol without the head.
        increase: Difference from the loss with all heads.
    """

    kind: str
    layer: int
    head: int
    alpha: float
    loss: float
    increase: float


@dataclass(frozen=True)
class HeadImportance(Record):
    """Loss with all heads, and without each head.

    Args:
        loss: Mean loss per symbol with all heads, computed by the output layer.
        symbols: Number of target symbols.
        heads: One record per head, largest increase first.
    """

    loss: float
    symbols: int
    heads: tuple[HeadLoss, ...]


@contextlib.contextmanager
def mask_head(attention: MultiheadAttention, head: int) -> Iterator[None]:
    """Set the output of one head to zero inside the context.

    Args:
        attention: Module that contains the head.
        head: Number of the head, from 0.

    Returns:
        A context manager.

    Raises:
        ValueError: The module has no such head.

    Example:
        >>> attention = MultiheadAttention(4, 2, batch_first=True)
        >>> x = torch.randn(1, 3, 4)
        >>> with mask_head(attention, 0), mask_head(attention, 1):
        ...     output, _ = attention(x, x, x)
        >>> bool((output == attention.out_proj.bias).all())
        True
    """
    if not 0 <= head < attention.num_heads:
        raise ValueError(f"head must be from 0 to {attention.num_heads - 1}, got {head}")
    part = slice(head * attention.head_dim, (head + 1) * attention.head_dim)

    def clear(_: Any, inputs: tuple[Tensor]) -> tuple[Tensor]:
        (x,) = inputs  # [batch, queries, heads * head size]
        x = x.clone()
        x[..., part] = 0
        return (x,)

    handle = attention.out_proj.register_forward_pre_hook(clear)
    try:
        yield
    finally:
        handle.remove()


def head_importance(model: TransformerSeq2Seq | LanguageModel, batches: Iterable[Batch]) -> HeadImportance:
    r"""Compute the loss on given targets without each head in turn.

    .. math:: I_h = L(\mathrm{model} \mid \mathrm{head}_h = 0) - L(\mathrm{model}), \qquad
              L = \frac{1}{N} \sum_{n=1}^{N} \ell_n

    where :math:`\ell_n` is the output layer's loss for a symbol. Setting a head's output to zero corresponds to a
    closed gate in Voita et al. 2019 (sec. 6).

    Args:
        model: Transformer, either an encoder-decoder or a language model.
        batches: Batches with targets; the model reads all of them once, and once more per head.

    Returns:
        Loss with all heads, and without each head.

    Raises:
        InputError: There are no target symbols.

    Example:
        >>> from tsallis.models import Batch, TransformerSeq2Seq
        >>> model = TransformerSeq2Seq(6, 6, d_model=8, heads=2, layers=1, d_ff=8)
        >>> source, target = torch.tensor([[4, 5]]), torch.tensor([[5, 2]])
        >>> batch = Batch(source, torch.tensor([2]), torch.tensor([[1, 5]]), target, (0,))
        >>> importance = head_importance(model, [batch])
        >>> importance.symbols, len(importance.heads)
        (2, 6)
    """
    batches = list(batches) if isinstance(batches, Iterator) else batches
    loss, symbols = _loss(model, batches)
    heads = []
    for kind, attentions in model.attentions().items():
        for layer, attention in enumerate(attentions):
            for head, alpha in enumerate(attention.alphas().tolist()):
                with mask_head(attention, head):
                    masked_loss, _ = _loss(model, batches)
                heads.append(HeadLoss(kind, layer, head, alpha, masked_loss, masked_loss - loss))
    return HeadImportance(loss, symbols, tuple(sorted(heads, key=lambda head: -head.increase)))


@torch.no_grad()
def _loss(model: TransformerSeq2Seq | LanguageModel, batches: Iterable[Batch]) -> tuple[float, int]:
    """Return the mean loss per symbol, and the number of symbols."""
    device = model.output.weight.device
    total, symbols = 0.0, 0
    with eval_mode(model):
        for batch in batches:
            target = batch.tgt_out.to(device)
            decoded = model(batch.src.to(device), batch.src_lengths.to(device), batch.tgt_in.to(device))
            mask = has_loss(target)
            total += float(model.output.loss(decoded.hidden[mask], target[mask], reduction="sum"))
            symbols += int(mask.sum())
    if symbols == 0:
        raise InputError("can't compute a loss: the corpus is empty or has no targets")
    return total / symbols, symbols
