"""Outputs drawn at random, as often as the model holds them probable."""

from __future__ import annotations

import torch
from torch import Tensor

from tsallis.models.protocol import Decoder
from tsallis.search.step import advance, at_least_one, evaluating, step_limit
from tsallis.special_symbols import BOS, EOS


@torch.no_grad()
def sample(
    model: Decoder,
    src: Tensor,
    src_lengths: Tensor,
    n: int = 1,
    *,
    max_length: int | None = None,
    generator: torch.Generator | None = None,
) -> list[list[tuple[int, ...] | None]]:
    """Draw `n` outputs from the model for every source, token by token; an impossible token is never drawn.

    Values that don't sum to 1 (alpha-ReLU) are drawn in proportion at every step.

    Args:
        model: anything with the decoder protocol.
        src: [batch, src] symbols.
        src_lengths: [batch] their counts.
        n: draws a source.
        max_length: of an output, without its end; None: twice the source's length and 20.
        generator: of the random numbers, on the device of `src`.

    Returns:
        `n` outputs a source, each without start and end. An output is None where a draw met a dead end or the length
        limit, so that the frequencies of all others stay those of the model.

    Raises:
        ValueError: sizes below 1; a model whose probabilities are NaN.

    Example:
        >>> from tsallis.models import RNNSeq2Seq
        >>> model = RNNSeq2Seq(20, 15, d_model=8)
        >>> drawn = sample(model, torch.randint(4, 20, (2, 5)), torch.tensor([5, 3]), 4, max_length=10)
        >>> [len(outputs) for outputs in drawn]
        [4, 4]
    """
    at_least_one(n=n, max_length=max_length)
    batch = src.shape[0]
    if batch == 0:
        return []
    outputs: list[tuple[int, ...] | None] = [None] * (batch * n)
    prefixes: list[list[int]] = [[] for _ in outputs]
    limits = [step_limit(length, max_length) for length in src_lengths.tolist()]
    rows = list(range(len(outputs)))
    with evaluating(model):
        state = model.start(model.encode(src, src_lengths))
        state = state.select(torch.arange(batch, device=src.device).repeat_interleave(n))
        tokens = torch.full((len(rows),), BOS, device=src.device)
        while rows:
            log_probs, _, state = advance(model, state, tokens, [row // n for row in rows])
            draws, possible = _draw(log_probs, generator)
            going = []
            for i, (row, token, alive) in enumerate(zip(rows, draws.tolist(), possible.tolist(), strict=True)):
                if alive and token == EOS:
                    outputs[row] = tuple(prefixes[row])
                elif alive and len(prefixes[row]) + 2 <= limits[row // n]:
                    prefixes[row].append(token)
                    going.append(i)
            rows = [rows[i] for i in going]
            index = torch.tensor(going, dtype=torch.long, device=src.device)
            state, tokens = state.select(index), draws[index]
    return [outputs[i * n : (i + 1) * n] for i in range(batch)]


def _draw(log_probs: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """Draw a token a row [rows], and tell of each row whether it had any that is possible."""
    possible = (log_probs > -torch.inf).any(-1)
    weights = torch.where(possible.unsqueeze(-1), log_probs, 0).softmax(-1)
    return torch.multinomial(weights, 1, generator=generator).squeeze(-1), possible
