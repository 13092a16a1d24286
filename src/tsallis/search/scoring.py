"""Log-probabilities of given outputs."""

from __future__ import annotations

import torch
from torch import Tensor

from tsallis.data.batching import IGNORED
from tsallis.models.protocol import Decoder
from tsallis.search.step import advance, evaluating


@torch.no_grad()
def score(model: Decoder, src: Tensor, src_lengths: Tensor, tgt_in: Tensor, tgt_out: Tensor) -> Tensor:
    """Compute the log-probabilities of given outputs.

    The steps are those of search: the score of a search's output is the log-probability that the search reported.

    Args:
        model: anything with the decoder protocol.
        src: [batch, src] symbols.
        src_lengths: [batch] their counts.
        tgt_in: [batch, tgt] tokens, the start first.
        tgt_out: [batch, tgt] tokens, the end last, padded with -100.

    Returns:
        [batch] in float64, -inf where the model holds the output impossible.

    Raises:
        ValueError: targets of different shapes; a model whose probabilities are NaN.

    Example:
        >>> from tsallis.models import RNNSeq2Seq
        >>> model = RNNSeq2Seq(20, 15, d_model=8, output="softmax")
        >>> src, lengths = torch.randint(4, 20, (1, 5)), torch.tensor([5])
        >>> score(model, src, lengths, torch.tensor([[1, 7, 8]]), torch.tensor([[7, 8, 2]])).exp().item() > 0
        True
    """
    if tgt_in.shape != tgt_out.shape or tgt_in.dim() != 2 or len(tgt_in) != len(src):
        raise ValueError(
            f"tgt_in and tgt_out must both be [{len(src)}, tgt], got {list(tgt_in.shape)} and {list(tgt_out.shape)}"
        )
    total = torch.zeros(len(src), dtype=torch.float64, device=src.device)
    if len(src) == 0:
        return total
    with evaluating(model):
        state = model.start(model.encode(src, src_lengths))
        for token, gold in zip(tgt_in.unbind(1), tgt_out.unbind(1), strict=True):
            log_probs, _, state = advance(model, state, token, range(len(src)))  # [batch, d_vocab]
            mask = gold != IGNORED
            log_prob = log_probs.gather(-1, torch.where(mask, gold, 0).unsqueeze(-1)).squeeze(-1)
            total = total + torch.where(mask, log_prob, 0)
    return total
