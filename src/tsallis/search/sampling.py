"""Sample complete outputs from a model, or texts that may be cut at a maximum length."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tsallis.errors import check_integer
from tsallis.models.modes import eval_mode
from tsallis.models.protocol import Decoder
from tsallis.search.certificate import LARGEST_LOG, Hypothesis
from tsallis.search.checks import check_at_least_one, check_seeds, check_sources
from tsallis.search.step import Expansion, Limits, Prefix, advance, make_limits
from tsallis.search.temperature import with_temperature
from tsallis.symbols import EOS

ROUNDED = 1e-6  # rounding error of a sum of probabilities


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
    r"""Sample `num_samples` outputs for every source, token by token; impossible tokens are never drawn.

    Values that don't sum to 1 (alpha-ReLU) are normalized at every step. A temperature T divides the scores,
    :math:`p = \mathrm{entmax}_\alpha(z / T)`. Below 1, probable tokens become more probable and the support shrinks;
    above 1, the support grows. Hypotheses have the log-probabilities and supports at this temperature.

    Args:
        model: Model with the decoder protocol, see :mod:`tsallis.models.protocol`.
        src, src_lengths: Symbols of the sources [batch, src], and number of symbols per source [batch].
        num_samples: Number of draws per source.
        prefixes: Tokens that all outputs of a source start with.
        max_length: Maximum length of an output, without its end; None: the prefix's length, plus twice the source's
            length, plus 20.
        seeds: One seed per source, so that draws don't depend on other sources or the device; None: random.
        temperature: Divisor of the scores, at least 1e-300.

    Returns:
        `num_samples` outputs per source, in the order of the draws. An output is None if the draw reached a dead end or
        the length limit, or if the prefix is impossible. Such draws are not repeated, so that the frequencies of the
        other outputs match the model.

    Raises:
        ValueError: A size is below 1, the number of seeds or prefixes is wrong, probabilities are NaN or infinite, or
            the temperature is out of range.

    Example:
        >>> from tsallis.models import RNNSeq2Seq
        >>> model = RNNSeq2Seq(20, 15, d_model=8)
        >>> [len(draws) for draws in sample(model, torch.randint(4, 20, (2, 5)), torch.tensor([5, 3]), 4)]
        [4, 4]
    """
    tempered, lengths = with_temperature(model, temperature), check_sources(model, src, src_lengths)
    limits = make_limits(lengths, prefixes, max_length=max_length)
    draws = draw_outputs(tempered, src, src_lengths, limits, num_samples, seeds)
    return [[draw.output for draw in source_draws] for source_draws in draws]


def draw_outputs(
    model: Decoder,
    src: Tensor,
    src_lengths: Tensor,
    limits: Sequence[Limits],
    num_samples: int,
    seeds: Sequence[int] | None,
) -> list[list[Draw]]:
    """Make `num_samples` draws per source, token by token, until each has ended or can't continue."""
    check_at_least_one(num_samples=num_samples)
    lengths = src_lengths.tolist()
    generators = make_generators(len(lengths), seeds)
    if not lengths:
        return []
    draws = [Draw(*source) for source in zip(limits, lengths, strict=True) for _ in range(num_samples)]
    rows = list(range(len(draws)))
    with eval_mode(model):
        state = model.start(model.encode(src, src_lengths))
        state = state.select(torch.arange(len(src), device=src.device).repeat_interleave(num_samples))
        while rows:
            tokens = torch.tensor([draws[row].prefix.token for row in rows], device=src.device)
            log_probs, attention, state = advance(model, state, tokens, [row // num_samples for row in rows])
            expansion = Expansion(attention, log_probs, keep=False)
            uniform = draw_uniform(num_samples, generators)[rows]
            drawn = _draw_step([draws[row] for row in rows], log_probs, model.output.normalized, uniform)
            open_rows = [i for i, pair in enumerate(drawn) if draws[rows[i]].append(expansion, i, *pair)]
            rows = [rows[i] for i in open_rows]
            state = state.select(torch.tensor(open_rows, dtype=torch.long, device=src.device))
    return [draws[i : i + num_samples] for i in range(0, len(draws), num_samples)]


@dataclass
class Draw:
    """State of one draw: the symbols drawn so far."""

    limits: Limits
    src_length: int
    prefix: Prefix = field(default_factory=Prefix)
    output: Hypothesis | None = None

    def restrict(self, log_probs: Tensor) -> bool:
        """Exclude impossible symbols in place; return whether the next symbol is part of the prefix."""
        self.limits.restrict(log_probs, self.prefix.length)
        return self.prefix.length < len(self.limits.prefix)

    def append(self, expansion: Expansion, row: int, token: int, log_prob: float) -> bool:
        """Append the symbol that was drawn for one row; return whether another symbol follows."""
        total = self.prefix.log_prob + log_prob
        if log_prob == -torch.inf or (token != EOS and self.prefix.length + 2 > self.limits.steps):
            return False
        if token == EOS:
            self.output = expansion.finish(self.prefix, row, total, self.src_length)
        else:
            self.prefix = expansion.extend(self.prefix, row, token, total)
        return token != EOS


def _draw_step(draws: list[Draw], log_probs: Tensor, normalized: bool, uniform: Tensor) -> list[tuple[int, float]]:
    """Return the next symbol of each output, and its log-probability; inside a prefix the symbol is fixed."""
    dead = dead_share(log_probs, normalized)
    dead[torch.tensor([draw.restrict(log_probs[i]) for i, draw in enumerate(draws)])] = 0
    tokens, steps = draw_tokens(log_probs.cpu(), uniform, dead)  # on the CPU, because a GPU sums in another order
    return list(zip(tokens.tolist(), steps.tolist(), strict=True))


def line_seed(seed: int, line: int) -> int:
    """Compute the seed of a line from the line number and a common seed."""
    digest = hashlib.sha256(f"{seed} {line}".encode()).digest()
    return int.from_bytes(digest[:7], "big")


def draw_uniform(n: int, generators: Sequence[torch.Generator]) -> Tensor:
    """Draw `n` numbers between 0 and 1 from each generator. The result [generators * n] is equal on every machine."""
    return torch.cat([torch.rand(n, generator=g, dtype=torch.float64, device="cpu") for g in generators])


def make_generators(sources: int, seeds: Sequence[int] | None) -> list[torch.Generator]:
    """Return one random number generator per source, on the CPU."""
    if seeds is None:
        seeds = torch.randint(2**62, (sources,), device="cpu").tolist()
    return [torch.Generator().manual_seed(seed) for seed in check_seeds(seeds, sources)]


def dead_share(log_probs: Tensor, normalized: bool) -> Tensor:
    """Return the probability [rows] that no symbol can follow: 1 minus the sum of a row if `normalized`, else 0.

    This probability is positive if a member of an ensemble is at a dead end. The result is on the CPU.
    """
    missing = 1 - log_probs.exp().sum(-1).cpu()
    return torch.where(missing > ROUNDED, missing, 0) if normalized else torch.zeros_like(missing)


def draw_tokens(log_probs: Tensor, uniform: Tensor, dead: Tensor) -> tuple[Tensor, Tensor]:
    """Draw one token per row from log-probabilities with uniform random numbers in [0, 1).

    Args:
        log_probs: Log-probabilities [rows, d_vocab].
        uniform: Random numbers [rows].
        dead: Probability that no symbol follows [rows].

    Returns:
        The tokens [rows] and their log-probabilities [rows], -inf if no symbol follows.
    """
    weights = (log_probs - log_probs.amax(-1, keepdim=True)).exp().nan_to_num(0)  # rows of -inf get weight 0
    sums = weights.cumsum(-1)  # [rows, d_vocab]
    # Draw the first token whose sum exceeds the random number. Its weight is never zero.
    share = uniform / (1 - dead).clamp(min=ROUNDED)
    token = torch.searchsorted(sums, (share * sums[:, -1]).unsqueeze(-1), right=True)
    last = log_probs.shape[-1] - 1 - (weights.flip(-1) > 0).int().argmax(-1, keepdim=True)
    token = token.minimum(last).squeeze(-1)  # if `uniform` times the total rounds up to the total, draw the last token
    log_prob = log_probs.gather(-1, token.unsqueeze(-1)).squeeze(-1)
    return token, log_prob.masked_fill((dead > 0) & (uniform >= 1 - dead), -torch.inf)


@dataclass(frozen=True)
class GeneratedText:
    """Text that was sampled after a prompt.

    Args:
        tokens: Tokens without the prompt and the end.
        log_prob: Log-probability of the draws, including the end.
        support: Number of possible tokens per draw.
        ended: Whether the end was drawn; otherwise the text was cut at the maximum length, or no symbol was possible.

    Example:
        >>> GeneratedText((7, 8), -1.5, (3, 1, 2), True).tokens
        (7, 8)
    """

    tokens: tuple[int, ...]
    log_prob: float
    support: tuple[int, ...]
    ended: bool

    @property
    def prob(self) -> float:
        """Return the probability. Unnormalized values above the largest float become the largest float."""
        return math.exp(min(self.log_prob, LARGEST_LOG))


@torch.no_grad()
def generate(
    model: Decoder,
    prompts: Tensor,
    prompt_lengths: Tensor,
    num_samples: int = 1,
    *,
    max_length: int = 256,
    seeds: Sequence[int] | None = None,
    temperature: float = 1.0,
) -> list[list[GeneratedText]]:
    """Sample `num_samples` texts after every prompt, each token from its whole support.

    Unlike :func:`tsallis.search.sample`, this function also returns texts that are cut at the maximum length.

    Args:
        model: Model with the decoder protocol whose sources may be prompts.
        prompts: Symbols of the prompts [batch, src].
        prompt_lengths: Number of symbols per prompt [batch].
        num_samples: Number of texts per prompt.
        max_length: Maximum number of symbols per text, without its prompt and its end.
        seeds: One random seed per prompt; None: random.
        temperature: Divisor of the scores, see :func:`tsallis.search.sample`.

    Returns:
        `num_samples` texts per prompt, in the order of the draws.

    Raises:
        ValueError: A size is below 1, the number of seeds is wrong, probabilities are NaN or infinite, or the
            temperature is invalid.

    Example:
        >>> from tsallis.models import LanguageModel
        >>> model = LanguageModel(20, d_model=8, heads=2, layers=1, d_ff=16)
        >>> ((text,),) = generate(model, torch.randint(4, 20, (1, 5)), torch.tensor([5]), max_length=10)
        >>> len(text.tokens) <= 10
        True
    """
    tempered, lengths = with_temperature(model, temperature), check_sources(model, prompts, prompt_lengths)
    limits = make_limits(lengths, max_length=check_integer("max_length", max_length, 1))
    draws = draw_outputs(tempered, prompts, prompt_lengths, limits, num_samples, seeds)
    return [[_generated_text(draw) for draw in prompt_draws] for prompt_draws in draws]


def _generated_text(draw: Draw) -> GeneratedText:
    """Return the text that was drawn, complete or cut."""
    if draw.output is not None:
        return GeneratedText(draw.output.tokens, draw.output.log_prob, draw.output.support, True)
    chain = draw.prefix.chain()
    tokens, support = tuple(node.token for node in chain), tuple(node.support for node in chain)
    return GeneratedText(tokens, draw.prefix.log_prob, support, False)
