"""The common base of all searches: prefixes linked to their parents, and one checked step of a model."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tsallis.models.protocol import Decoder
from tsallis.search.certificate import Hypothesis, Result, certify
from tsallis.special_symbols import BOS, EOS


@dataclass(frozen=True, slots=True, eq=False)
class Prefix:
    """An unfinished hypothesis: its last token, and the prefix before it. Prefixes share their beginnings."""

    parent: Prefix | None = None
    token: int = BOS
    log_prob: float = 0.0
    length: int = 0  # tokens
    support: int = 0  # of the last step
    num_attended: int = 0
    attention: Tensor | None = None  # [src]

    def chain(self) -> list[Prefix]:
        """Return the prefixes of one token, of two, and so on to this one."""
        chain: list[Prefix] = []
        node = self
        while node.parent is not None:
            chain.append(node)
            node = node.parent
        return chain[::-1]


@dataclass(kw_only=True)
class Search:
    """The state of the search of one source: its finished outputs, and the bound on those given up."""

    src_length: int
    limit: int  # steps, the end's step included
    finished: list[Hypothesis] = field(default_factory=list)
    bound: float = -math.inf
    gave_up: bool = False

    def give_up(self, log_prob: float) -> None:
        """Note that a prefix is not followed."""
        self.bound = max(self.bound, log_prob)
        self.gave_up = True

    def result(self, normalized: bool, n_best: int | None) -> Result:
        return certify(self.finished, self.bound, self.gave_up, normalized).truncated(n_best)


class Expansion:
    """All that may follow the prefixes of a step: log-probabilities, and the attention of their rows."""

    def __init__(self, attention: Tensor, log_probs: Tensor, keep: bool) -> None:
        self.log_probs = log_probs  # [rows, d_vocab]
        self.support = (log_probs > -torch.inf).sum(-1).tolist()
        self.num_attended = (attention > 0).sum(-1).tolist()
        self.attention = attention if keep else None

    def totals(self, prefixes: Sequence[Prefix]) -> tuple[Tensor, list[float]]:
        """Return log-probabilities [rows, d_vocab] of prefixes and one more token, and of their ends, -inf there."""
        before = torch.tensor([p.log_prob for p in prefixes], dtype=torch.float64).to(self.log_probs.device)
        totals = before.unsqueeze(-1) + self.log_probs
        ends: list[float] = totals[:, EOS].tolist()
        totals[:, EOS] = -torch.inf
        return totals, ends

    def extend(self, prefix: Prefix, row: int, token: int, log_prob: float) -> Prefix:
        attention = None if self.attention is None else self.attention[row]
        return Prefix(prefix, token, log_prob, prefix.length + 1, self.support[row], self.num_attended[row], attention)

    def finish(self, prefix: Prefix, row: int, log_prob: float, src_length: int) -> Hypothesis:
        chain = self.extend(prefix, row, EOS, log_prob).chain()
        weights = [node.attention for node in chain if node.attention is not None]
        return Hypothesis(
            tokens=tuple(node.token for node in chain[:-1]),
            log_prob=log_prob,
            support=tuple(node.support for node in chain),
            num_attended=tuple(node.num_attended for node in chain),
            attention=torch.stack([w[:src_length] for w in weights]) if weights else None,
        )


def advance(model: Decoder, state: Any, token: Tensor, sources: Sequence[int]) -> tuple[Tensor, Tensor, Any]:
    """Make one step: log-probabilities [rows, d_vocab] in float64, attention [rows, src] and the state after it.

    Raises:
        ValueError: probabilities that are NaN. A search that took them for zeros would prove what is not so.
    """
    step = model.step(state, token)
    log_probs = model.output.log_probs(step.scores)
    has_nan = log_probs.isnan().any(-1)
    if has_nan.any():
        bad = sorted({source for source, nan in zip(sources, has_nan.tolist(), strict=True) if nan})
        raise ValueError(f"the model's probabilities are NaN for source {bad[0]} of the batch (counted from 0)")
    return log_probs, step.attention, step.state


def step_limit(src_length: int, max_length: int | None) -> int:
    """Return the steps of the longest output allowed, its end included."""
    return (2 * src_length + 20 if max_length is None else max_length) + 1


def at_least_one(**sizes: int | None) -> None:
    """Refuse sizes below 1; None stands for a default."""
    for name, value in sizes.items():
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")


def nth_best(finished: Sequence[Hypothesis], n: int) -> float:
    """Return the log-probability of the n-th best hypothesis, -inf where there are fewer."""
    if len(finished) < n:
        return -math.inf
    return sorted((h.log_prob for h in finished), reverse=True)[n - 1]


@contextlib.contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Turn off the model's dropout while the context lasts, and leave every part of it as it was."""
    training = [m for m in model.modules() if m.training] if hasattr(model, "modules") else []
    if training:
        model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
