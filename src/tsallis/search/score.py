"""How probable given outputs are, and outputs drawn at random."""

from __future__ import annotations

import torch
from torch import Tensor

from tsallis.data.batching import IGNORED
from tsallis.data.vocabulary import BOS, EOS
from tsallis.models.decoder import Decoder
from tsallis.search.beam import evaluating, step_limit


@torch.no_grad()
def score(model: Decoder, src: Tensor, src_lengths: Tensor, tgt_in: Tensor, tgt_out: Tensor) -> Tensor:
    """Log-probabilities [batch] of given outputs in float64, -inf where the model holds one impossible.

    The same steps as in search: an output that was found scores what the search reported.

    Args:
        model: anything with the decoder protocol.
        src: [batch, src] symbols.
        src_lengths: [batch] their counts.
        tgt_in: [batch, tgt] tokens, the start first.
        tgt_out: [batch, tgt] tokens, the end last, padded with -100.
    """
    with evaluating(model):
        state = model.start(model.encode(src, src_lengths))
        total = torch.zeros(src.shape[0], dtype=torch.float64, device=src.device)
        for token, gold in zip(tgt_in.unbind(1), tgt_out.unbind(1), strict=True):
            step = model.step(state, token)
            log_probs = model.output.log_probs(step.scores)  # [batch, d_vocab]
            counted = gold != IGNORED
            found = log_probs.gather(-1, torch.where(counted, gold, 0).unsqueeze(-1)).squeeze(-1)
            total = total + torch.where(counted, found, 0)
            state = step.state
    return total


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
    """`n` outputs drawn from the model for every source; None where a draw met a dead end or the length limit.

    Values that don't sum to 1 (alpha-ReLU) are drawn in proportion.
    """
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    with evaluating(model):
        batch = src.shape[0]
        owners = torch.arange(batch, device=src.device).repeat_interleave(n)
        state = model.start(model.encode(src, src_lengths)).select(owners)
        drawn: list[tuple[int, ...] | None] = [None] * (batch * n)
        prefixes: list[list[int]] = [[] for _ in drawn]
        rows = list(range(len(drawn)))
        tokens = torch.full((len(rows),), BOS, device=src.device)
        limits = [step_limit(int(length), max_length) for length in src_lengths]
        while rows:
            step = model.step(state, tokens)
            weights = model.output.log_probs(step.scores).exp()
            possible = weights.sum(-1) > 0
            draws = torch.multinomial(torch.where(possible.unsqueeze(-1), weights, 1), 1, generator=generator)
            going = []
            for i, (row, token, alive) in enumerate(
                zip(rows, draws.squeeze(-1).tolist(), possible.tolist(), strict=True)
            ):
                if alive and token == EOS:
                    drawn[row] = tuple(prefixes[row])
                elif alive and len(prefixes[row]) + 2 <= limits[row // n]:
                    prefixes[row].append(token)
                    going.append(i)
            rows = [rows[i] for i in going]
            index = torch.tensor(going, dtype=torch.long, device=src.device)
            state, tokens = step.state.select(index), draws.squeeze(-1)[index]
    return [drawn[i * n : (i + 1) * n] for i in range(batch)]
