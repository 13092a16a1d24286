"""Outputs drawn at random, as often as the model holds them probable."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from tsallis.models.protocol import Decoder
from tsallis.search.certificate import Hypothesis
from tsallis.search.checks import check_at_least_one, check_seeds, check_sources
from tsallis.search.step import Expansion, Prefix, advance, eval_mode, make_limits
from tsallis.search.temperature import with_temperature
from tsallis.symbols import EOS

ROUNDED = 1e-6  # what probabilities may lack to 1 by rounding


@torch.no_grad()
def sample(
    model: Decoder,
    src: Tensor,
    src_lengths: Tensor,
    num_samples: int = 1,
    *,
    prefixes: Sequence[Sequence[int]] | None = None,
    max_length: int | None = None,
    seeds: Sequence[int] | None = None,
    temperature: float = 1.0,
) -> list[list[Hypothesis | None]]:
    r"""Draw `num_samples` outputs from the model for every source, token by token; an impossible token is never drawn.

    Values that don't sum to 1 (alpha-ReLU) are drawn in proportion at every step.

    With a temperature T scores are divided by it before the map, :math:`p = \mathrm{entmax}_\alpha(z / T)`: below 1 the
    probable tokens become more probable, and the support shrinks to a part of what it was, in the limit to the greatest
    score; above 1 it grows, in the limit to all tokens that the model may give. Log-probabilities and supports of the
    hypotheses are those of the draws, at this temperature.

    Args:
        model: anything with the decoder protocol.
        src: [batch, src] symbols.
        src_lengths: [batch] their counts.
        num_samples: Number of draws per source.
        prefixes: the tokens that all outputs of a source begin with; what follows is drawn.
        max_length: of an output, without its end; None: twice the source's length and 20 after its prefix.
        seeds: of each source's random numbers, so that its draws depend on no other source, nor on the device;
            None: others at every call.
        temperature: of the draws, above 0; 1: as the model has it.

    Returns:
        `num_samples` outputs per source, in the order of the draws. An output is None where a draw met a dead end or
        the length limit, so that the frequencies of all others stay those of the model; where the prefix is impossible
        all are.

    Raises:
        ValueError: sizes below 1; not one seed or prefix a source; a model whose probabilities are NaN; a temperature
            that is not above 0 and finite, or another one than 1 for values that don't sum to 1.

    Example:
        >>> from tsallis.models import RNNSeq2Seq
        >>> model = RNNSeq2Seq(20, 15, d_model=8)
        >>> draws = sample(model, torch.randint(4, 20, (2, 5)), torch.tensor([5, 3]), 4, max_length=10)
        >>> [len(outputs) for outputs in draws]
        [4, 4]
    """
    check_at_least_one(num_samples=num_samples)
    tempered = with_temperature(model, temperature)
    lengths = check_sources(model, src, src_lengths)
    model = tempered
    limits = [limit for limit in make_limits(lengths, prefixes, max_length=max_length) for _ in range(num_samples)]
    generators = make_generators(len(lengths), seeds)
    outputs: list[Hypothesis | None] = [None] * len(limits)
    if not lengths:
        return []
    rows, prefix_of = list(range(len(outputs))), [Prefix()] * len(outputs)
    with eval_mode(model):
        state = model.start(model.encode(src, src_lengths))
        state = state.select(torch.arange(len(lengths), device=src.device).repeat_interleave(num_samples))
        while rows:
            tokens = torch.tensor([prefix_of[row].token for row in rows], device=src.device)
            log_probs, attention, state = advance(model, state, tokens, [row // num_samples for row in rows])
            expansion = Expansion(attention, log_probs, keep=False)
            dead = dead_share(log_probs, model.output.normalized)
            for i, row in enumerate(rows):
                limits[row].restrict(log_probs[i], prefix_of[row].length)
                if prefix_of[row].length < len(limits[row].prefix):
                    dead[i] = 0  # this symbol is given, not drawn
            uniform = draw_uniform(num_samples, generators)
            draws, log_prob = draw_tokens(log_probs.cpu(), uniform[rows], dead)  # a GPU sums in an order of its own
            active = []
            for i, (row, token, step) in enumerate(zip(rows, draws.tolist(), log_prob.tolist(), strict=True)):
                prefix = prefix_of[row]
                total = prefix.log_prob + step
                if step > -torch.inf and token == EOS:
                    outputs[row] = expansion.finish(prefix, i, total, lengths[row // num_samples])
                elif step > -torch.inf and prefix.length + 2 <= limits[row].steps:
                    prefix_of[row] = expansion.extend(prefix, i, token, total)
                    active.append(i)
            rows = [rows[i] for i in active]
            state = state.select(torch.tensor(active, dtype=torch.long, device=src.device))
    return [outputs[i * num_samples : (i + 1) * num_samples] for i in range(len(lengths))]


def line_seed(seed: int, line: int) -> int:
    """Return the seed of a line's draws, of its number and of one seed for all lines."""
    digest = hashlib.sha256(f"{seed} {line}".encode()).digest()
    return int.from_bytes(digest[:7], "big")


def draw_uniform(n: int, generators: Sequence[torch.Generator]) -> Tensor:
    """Draw `n` numbers between 0 and 1 from each generator: [generators * n] on the CPU, the same on every machine."""
    return torch.cat([torch.rand(n, generator=g, dtype=torch.float64, device="cpu") for g in generators])


def make_generators(sources: int, seeds: Sequence[int] | None) -> list[torch.Generator]:
    """Return a source of random numbers for each source, on the CPU."""
    if seeds is None:
        seeds = torch.randint(2**62, (sources,), device="cpu").tolist()
    return [torch.Generator().manual_seed(seed) for seed in check_seeds(seeds, sources)]


def dead_share(log_probs: Tensor, normalized: bool) -> Tensor:
    """Return the probability [rows] that nothing can follow: what the rows of a normalised model lack to 1.

    It is positive where a member of an ensemble is at a dead end. The result is on the CPU.
    """
    missing = 1 - log_probs.exp().sum(-1).cpu()
    return torch.where(missing > ROUNDED, missing, 0) if normalized else torch.zeros_like(missing)


def draw_tokens(log_probs: Tensor, uniform: Tensor, dead: Tensor) -> tuple[Tensor, Tensor]:
    """Draw a token a row from log-probabilities [rows, d_vocab] with numbers [rows] from 0 to 1, 1 excluded.

    Args:
        log_probs: [rows, d_vocab]
        uniform: [rows]
        dead: the probability [rows] that nothing follows.

    Returns:
        The tokens [rows] and their log-probabilities [rows], -inf where nothing follows.
    """
    weights = (log_probs - log_probs.amax(-1, keepdim=True)).exp().nan_to_num(0)  # a row of -inf has no weight
    sums = weights.cumsum(-1)  # [rows, d_vocab]
    # The first sum above the number is that of a token with a weight: one without has the sum before it.
    share = uniform / (1 - dead).clamp(min=ROUNDED)
    token = torch.searchsorted(sums, (share * sums[:, -1]).unsqueeze(-1), right=True)
    last = log_probs.shape[-1] - 1 - (weights.flip(-1) > 0).int().argmax(-1, keepdim=True)
    token = token.minimum(last).squeeze(-1)  # the product may round up to the whole sum
    log_prob = log_probs.gather(-1, token.unsqueeze(-1)).squeeze(-1)
    return token, log_prob.masked_fill((dead > 0) & (uniform >= 1 - dead), -torch.inf)
