"""Texts drawn from a model token by token, those among them that are cut at a length."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tsallis.models.protocol import Decoder
from tsallis.search.certificate import LARGEST_LOG
from tsallis.search.checks import check_at_least_one, check_sources
from tsallis.search.sampling import dead_share, draw_tokens, draw_uniform, make_generators
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
        temperature: that scores are divided by before the map, see :func:`tsallis.search.sample`; 1: as they are.

    Returns:
        `num_samples` texts per prompt, in the order of the draws.

    Raises:
        ValueError: sizes below 1; not one seed a prompt; a model whose probabilities are NaN; a temperature that is not
            above 0 and finite, or another one than 1 for values that don't sum to 1.

    Example:
        >>> from tsallis.models import LanguageModel
        >>> model = LanguageModel(20, d_model=8, heads=2, layers=1, d_ff=16)
        >>> ((text,),) = generate(model, torch.randint(4, 20, (1, 5)), torch.tensor([5]), max_length=10)
        >>> len(text.tokens) <= 10
        True
    """
    check_at_least_one(num_samples=num_samples, max_length=max_length)
    tempered = with_temperature(model, temperature)
    batch = len(check_sources(model, prompts, prompt_lengths))
    model = tempered
    generators = make_generators(batch, seeds)
    if not batch:
        return []
    texts = [_Text() for _ in range(batch * num_samples)]
    active = list(range(len(texts)))
    with eval_mode(model):
        state = model.start(model.encode(prompts, prompt_lengths))
        state = state.select(torch.arange(batch, device=prompts.device).repeat_interleave(num_samples))
        for last in [False] * max_length + [True]:
            tokens = torch.tensor([texts[row].last for row in active], device=prompts.device)
            log_probs, _, state = advance(model, state, tokens, [row // num_samples for row in active])
            uniform = draw_uniform(num_samples, generators)
            log_probs = log_probs.cpu()
            dead = dead_share(log_probs, model.output.normalized)
            draws, steps = draw_tokens(log_probs, uniform[active], dead)
            support = (log_probs > -torch.inf).sum(-1)
            rows: Iterable[tuple[int, int, float, int]] = zip(
                active, draws.tolist(), steps.tolist(), support.tolist(), strict=True
            )
            open_rows = [
                i
                for i, (row, token, log_prob, count) in enumerate(rows)
                if texts[row].append(token, log_prob, count, last=last)
            ]
            active = [active[i] for i in open_rows]
            if not active:
                break
            state = state.select(torch.tensor(open_rows, device=prompts.device))
    outputs = [text.generated() for text in texts]
    return [outputs[first : first + num_samples] for first in range(0, len(outputs), num_samples)]


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

    def append(self, token: int, log_prob: float, support: int, *, last: bool) -> bool:
        """Append a draw, of the last step only if it is the end; tell whether another one follows."""
        if log_prob == -torch.inf or (last and token != EOS):
            return False
        self.log_prob += log_prob
        self.support.append(support)
        self.ended = token == EOS
        if not self.ended:
            self.tokens.append(token)
        return not self.ended

    def generated(self) -> GeneratedText:
        return GeneratedText(tuple(self.tokens), self.log_prob, tuple(self.support), self.ended)
