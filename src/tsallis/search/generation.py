"""Texts drawn from a model token by token, those among them that are cut at a length."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tsallis.models.protocol import Decoder
from tsallis.search.certificate import LARGEST_LOG
from tsallis.search.checks import check_at_least_one, check_sources
from tsallis.search.sampling import dead_share, draw_tokens, draw_uniform, make_generators, start_draws
from tsallis.search.step import advance, eval_mode
from tsallis.search.temperature import with_temperature
from tsallis.symbols import BOS, EOS


@dataclass(frozen=True)
class GeneratedText:
    """A text that was drawn behind a prompt.

    Args:
        tokens: without the prompt and the end.
        log_prob: of the draws, the end's among them.
        support: the tokens that were possible at each draw.
        ended: whether the end was drawn; else the text was cut at its greatest length, or nothing was possible.

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
        """The probability; of a model without a normaliser at most the largest float."""
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
    """Draw `num_samples` texts behind every prompt, each token from its whole support: nothing is truncated.

    Unlike :func:`tsallis.search.sample` it returns texts that are cut, too: their frequencies are those of beginnings.

    Args:
        model: anything with the decoder protocol whose sources may be prompts.
        prompts: [batch, src] symbols.
        prompt_lengths: [batch] their counts.
        num_samples: Number of texts per prompt.
        max_length: Number of symbols of a text, at most, without its prompt and its end.
        seeds: of each prompt's random numbers; None: others at every call.
        temperature: Divisor of the scores before the map, see :func:`tsallis.search.sample`.

    Returns:
        `num_samples` texts per prompt, in the order of the draws.

    Raises:
        ValueError: sizes below 1, not one seed per prompt, probabilities that are NaN, a bad temperature.

    Example:
        >>> from tsallis.models import LanguageModel
        >>> model = LanguageModel(20, d_model=8, heads=2, layers=1, d_ff=16)
        >>> ((text,),) = generate(model, torch.randint(4, 20, (1, 5)), torch.tensor([5]), max_length=10)
        >>> len(text.tokens) <= 10
        True
    """
    check_at_least_one(num_samples=num_samples, max_length=max_length)
    model, batch = with_temperature(model, temperature), len(check_sources(model, prompts, prompt_lengths))
    generators = make_generators(batch, seeds)
    if not batch:
        return []
    texts = [_Text() for _ in range(batch * num_samples)]
    active = list(range(len(texts)))
    with eval_mode(model):
        state = start_draws(model, prompts, prompt_lengths, num_samples)
        while active:
            tokens = torch.tensor([texts[row].last for row in active], device=prompts.device)
            log_probs, _, state = advance(model, state, tokens, [row // num_samples for row in active])
            log_probs = log_probs.cpu()
            uniform = draw_uniform(num_samples, generators)[active]
            drawn, steps = draw_tokens(log_probs, uniform, dead_share(log_probs, model.output.normalized))
            support = (log_probs > -torch.inf).sum(-1)
            draws = enumerate(zip(drawn.tolist(), steps.tolist(), support.tolist(), strict=True))
            open_rows = [i for i, draw in draws if texts[active[i]].append(*draw, max_length)]
            active = [active[i] for i in open_rows]
            state = state.select(torch.tensor(open_rows, dtype=torch.long, device=prompts.device))
    return [[text.generated() for text in texts[i : i + num_samples]] for i in range(0, len(texts), num_samples)]


@dataclass
class _Text:
    """The draws of one text so far."""

    tokens: list[int] = field(default_factory=list)
    support: list[int] = field(default_factory=list)
    log_prob: float = 0.0
    ended: bool = False

    @property
    def last(self) -> int:
        return self.tokens[-1] if self.tokens else BOS

    def append(self, token: int, log_prob: float, support: int, max_length: int) -> bool:
        """Append a draw; behind `max_length` symbols only the end. Return whether another draw follows."""
        if log_prob == -torch.inf or (len(self.tokens) == max_length and token != EOS):
            return False
        self.log_prob += log_prob
        self.support.append(support)
        self.ended = token == EOS
        if not self.ended:
            self.tokens.append(token)
        return not self.ended

    def generated(self) -> GeneratedText:
        return GeneratedText(tuple(self.tokens), self.log_prob, tuple(self.support), self.ended)
