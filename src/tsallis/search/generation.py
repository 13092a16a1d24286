"""Sample texts from a model token by token, including texts that are cut."""

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
    """Text that was sampled after a prompt.

    Args:
        tokens: Tokens without the prompt and the end.
        log_prob: Log-probability of the draws, including the end.
        support: Number of possible tokens per draw.
        ended: Whether the end was drawn; otherwise the text was cut at the maximum length, or nothing was possible.

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
        """Return the probability; unnormalized values are at most the largest float."""
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

    Unlike :func:`tsallis.search.sample` it also returns texts that are cut at the maximum length.

    Args:
        model: Model with the decoder protocol whose sources may be prompts.
        prompts: Symbols of the prompts [batch, src].
        prompt_lengths: Number of symbols per prompt [batch].
        num_samples: Number of texts per prompt.
        max_length: Maximum number of symbols per text, without its prompt and its end.
        seeds: One random seed per prompt; None: random.
        temperature: Divisor of the scores before the map, see :func:`tsallis.search.sample`.

    Returns:
        `num_samples` texts per prompt, in the order of the draws.

    Raises:
        ValueError: A size is below 1, the number of seeds is wrong, probabilities are NaN, or the temperature is
            invalid.

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
