"""Set how many positions the queries of a trained Transformer attend to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tsallis.errors import InputError, check_real
from tsallis.models.batch import Batch
from tsallis.models.modes import eval_mode
from tsallis.models.sharing import AttentionModel
from tsallis.nn import MultiheadAttention
from tsallis.nn.attended import calibrate


def scalable_attentions(model: Any) -> list[MultiheadAttention]:
    """Return all attentions of a model whose number of attended keys a factor of the scores can set.

    Raises:
        InputError: If the model is not a Transformer, or an attention has softmax or a learned alpha.
    """
    if not isinstance(model, AttentionModel):
        raise InputError(f"attended needs a Transformer, found {type(model).__name__}")
    attentions = [attention for part in model.attentions().values() for attention in part]
    for alpha in (attention.alpha for attention in attentions):
        if not isinstance(alpha, float) or alpha <= 1:
            found = f"{alpha:g}" if isinstance(alpha, float) else "a learned alpha"
            raise InputError(f"attended needs attention with a fixed alpha above 1, found {found}")
    return attentions


def calibrate_attended(model: Any, batches: Sequence[Batch], attended: float) -> float:
    r"""Scale the scores of a trained Transformer so that a query attends to `attended` positions on average.

    The projections of all queries are multiplied by one factor, which bisection finds: a larger factor gives sparser
    weights. The mean is over the queries of all heads and layers, without padding, in evaluation mode. It usually
    differs from the mean in training, because of dropout.

    Args:
        model: :class:`TransformerSeq2Seq` or :class:`LanguageModel` with fixed alphas above 1. It is changed in place.
        batches: Batches of development data; each pass reads all of them.
        attended: Mean number of attended positions, at least 1.

    Returns:
        The mean that was reached, usually within 1 % of `attended`. The function warns if it differs by more than 10 %.

    Raises:
        ValueError: `attended` is below 1 or above the mean number of visible positions, or an alpha is learned or 1.

    Example:
        >>> from tsallis.models import Batch, TransformerSeq2Seq
        >>> model = TransformerSeq2Seq(20, 15, d_model=8, heads=2, layers=1, d_ff=16)
        >>> src, tgt = torch.randint(4, 15, (2, 16, 30))
        >>> batch = Batch(src, torch.full((16,), 30), tgt, tgt, tuple(range(16)))
        >>> round(calibrate_attended(model, [batch], 4))
        4
    """
    attentions, attended = scalable_attentions(model), check_real("attended", attended, 1)
    device = attentions[0].out_proj.weight.device

    def scale(factor: float) -> None:
        for attention in attentions:
            attention.scale_scores(factor)

    def measure(batch: Batch) -> Tensor:
        tgt_in = batch.tgt_in.to(device)
        model(batch.src.to(device), batch.src_lengths.to(device), tgt_in)
        counts: Tensor = model.count_attended(tgt_in)
        return counts

    with eval_mode(model), torch.no_grad():
        return calibrate(scale, measure, batches, attended)
