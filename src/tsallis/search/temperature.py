"""Apply a temperature to a model's scores, or restrict its probabilities to a nucleus (top-p)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tsallis.errors import check_real
from tsallis.models.protocol import Step
from tsallis.search.ensemble import Ensemble
from tsallis.search.options import MIN_TEMPERATURE
from tsallis.search.patterns import RestrictedModel, check_sums

ROUNDING = 1e-6  # largest deviation of log-sums from 0
SUM_ROUNDING = 1e-12  # relative rounding error of a sum of probabilities in float64


def with_temperature(model: Any, temperature: float) -> Any:
    r"""Return a model whose scores are divided by a temperature; temperature 1 returns the model itself.

    .. math:: p = \mathrm{entmax}_\alpha(z / T)

    A symbol i has non-zero probability if the symbols j with larger scores satisfy

    .. math:: \sum_{z_j > z_i} (z_j - z_i)^{1/(\alpha-1)} < (T / (\alpha-1))^{1/(\alpha-1)}

    Therefore, the support at a lower temperature is a subset of the support at a higher temperature. As T decreases,
    the support shrinks to the largest scores. As T increases, the support grows to all symbols that are not forbidden.
    In both limits, these symbols have equal probabilities. For softmax (:math:`\alpha = 1`) the support does not
    change. In an ensemble, the scores of each model are divided.

    Args:
        model: Model with the decoder protocol.
        temperature: Temperature, at least 1e-300.

    Raises:
        ValueError: The temperature is below 1e-300 or not finite, or the outputs don't sum to 1.

    Example:
        >>> from tsallis.models import RNNSeq2Seq
        >>> model = RNNSeq2Seq(20, 15, d_model=8, output="sparsemax")
        >>> scores = torch.tensor([[1.0, 0.5, -1.0]])
        >>> [with_temperature(model, t).output.log_probs(scores).exp().tolist() for t in (1.0, 0.25)]
        [[[0.75, 0.25, 0.0]], [[1.0, 0.0, 0.0]]]
    """
    temperature = check_real("temperature", temperature, MIN_TEMPERATURE)
    if temperature == 1:
        return model
    if isinstance(model, Ensemble):
        return Ensemble([with_temperature(member, temperature) for member in model.models])
    if isinstance(model, RestrictedModel):
        return RestrictedModel(with_temperature(model.model, temperature), model.pattern)
    if isinstance(model, _ModelWithOutput) and isinstance(model.output, _TemperedOutput):
        return with_temperature(model.model, temperature * model.output.temperature)
    if isinstance(model, _ModelWithOutput) and isinstance(model.output, _NucleusOutput):
        return with_top_p(with_temperature(model.model, temperature), model.output.top_p)
    if not model.output.normalized:  # alpha-ReLU has a fixed threshold: the support would change the other way
        raise ValueError(
            f"temperature {temperature:g} needs a model whose probabilities sum to 1; those of alpha-ReLU do not"
        )
    return _ModelWithOutput(model, _TemperedOutput(model.output, temperature))


def with_top_p(model: Any, top_p: float) -> Any:
    """Return a model that keeps the most probable tokens of each step whose probabilities sum to at least `top_p`.

    The probabilities of these tokens are rescaled to sum to 1 (Holtzman et al. 2020). The wrapper gives a softmax model
    exact zeros, to compare it with sparse models: proofs are then about the truncated distribution.

    Args:
        model: Model with the decoder protocol whose probabilities sum to 1.
        top_p: Probability to keep, above 0 and at most 1; 1 returns the model itself.

    Returns:
        The model with top-p, with the decoder protocol.

    Raises:
        ValueError: `top_p` is out of range, or the outputs don't sum to 1.

    Example:
        >>> from tsallis.models import RNNSeq2Seq
        >>> model = with_top_p(RNNSeq2Seq(20, 15, d_model=8, output="softmax"), 0.9)
        >>> model.output.log_probs(torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()).isfinite().tolist()
        [[True, True, True, False]]
    """
    check_real("top_p", top_p, 0, 1)
    if not top_p:
        raise ValueError("top_p must be above 0, got 0")
    if isinstance(model, RestrictedModel):
        return RestrictedModel(with_top_p(model.model, top_p), model.pattern)
    check_sums(f"top_p {top_p:g}", model)
    return model if top_p == 1 else _ModelWithOutput(model, _NucleusOutput(model.output, top_p))


def divide_scores(scores: Tensor, temperature: float) -> Tensor:
    """Subtract the largest score, then divide by a temperature in float64, which avoids overflow."""
    scores = scores.double()
    top = scores.amax(-1, keepdim=True)
    return (scores - torch.where(top.isfinite(), top, 0)) / temperature


class _TemperedOutput:
    """Output layer of a model at a temperature."""

    normalized = True

    def __init__(self, output: Any, temperature: float) -> None:
        self.output, self.temperature = output, temperature

    def log_probs(self, scores: Tensor) -> Tensor:
        log_probs: Tensor = self.output.log_probs(divide_scores(scores, self.temperature))
        total = log_probs.logsumexp(-1, keepdim=True)  # not 0 if scores are log-probabilities already
        return log_probs - torch.where(total.isfinite() & (total.abs() > ROUNDING), total, 0)


class _NucleusOutput:
    """Output layer of a model with top-p."""

    normalized = True

    def __init__(self, output: Any, top_p: float) -> None:
        self.output, self.top_p = output, top_p

    def log_probs(self, scores: Tensor) -> Tensor:
        ordered, order = self.output.log_probs(scores).sort(dim=-1, descending=True, stable=True)
        probs = ordered.exp()
        # A sum that equals top_p up to rounding reaches it: the kept tokens must not depend on the batch size.
        reached = probs.cumsum(-1) - probs >= self.top_p * (1 - SUM_ROUNDING)
        truncated = ordered.masked_fill(reached, -torch.inf)
        total = truncated.logsumexp(-1, keepdim=True)
        truncated = truncated - torch.where(total.isfinite(), total, 0)  # a dead end has no tokens
        return torch.empty_like(truncated).scatter_(-1, order, truncated)


class _ModelWithOutput(nn.Module):
    """Model with another output layer, and the steps of the original model."""

    def __init__(self, model: Any, output: Any) -> None:
        super().__init__()
        self.model, self.output = model, output

    def encode(self, src: Tensor, src_lengths: Tensor) -> Any:
        return self.model.encode(src, src_lengths)

    def start(self, memory: Any) -> Any:
        return self.model.start(memory)

    def step(self, state: Any, token: Tensor) -> Step:
        step: Step = self.model.step(state, token)
        return step
