"""Texts drawn from a model token by token, those among them that are cut at a length."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tsallis.errors import check_whole
from tsallis.models.protocol import Decoder
from tsallis.search.certificate import LARGEST_LOG
from tsallis.search.checks import check_sources
from tsallis.search.sampling import Draw, draw_outputs
from tsallis.search.step import make_limits
from tsallis.search.temperature import with_temperature


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
    tempered, lengths = with_temperature(model, temperature), check_sources(model, prompts, prompt_lengths)
    limits = make_limits(lengths, max_length=check_whole("max_length", max_length, 1))
    draws = draw_outputs(tempered, prompts, prompt_lengths, limits, num_samples, seeds)
    return [[_text(draw) for draw in of_prompt] for of_prompt in draws]


def _text(draw: Draw) -> GeneratedText:
    """Return a text as far as it was drawn."""
    if draw.output is not None:
        return GeneratedText(draw.output.tokens, draw.output.log_prob, draw.output.support, True)
    chain = draw.prefix.chain()
    tokens, support = tuple(node.token for node in chain), tuple(node.support for node in chain)
    return GeneratedText(tokens, draw.prefix.log_prob, support, False)
