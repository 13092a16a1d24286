"""Outputs step by step: how many symbols are possible, what their values sum to, and how large scores are."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tsallis.analysis.record import Symbols
from tsallis.analysis.tables import Bins, Histogram, Record
from tsallis.errors import InputError
from tsallis.models.batch import Batch
from tsallis.nn import OutputLayer
from tsallis.search.checks import check_at_least_one
from tsallis.search.step import eval_mode
from tsallis.symbols import IGNORE_INDEX

AT_ONCE = 1 << 22  # maximum number of scores in memory at a time
WIDTHS = {"total": 0.05, "norm": 1.0, "threshold": 0.1}  # of the histograms' bins


class Steps(NamedTuple):
    """Support, sum, norm and threshold of an output layer at each step; tensors are float64 or int64 [steps]."""

    support: Tensor  # symbols with a value above zero
    total: Tensor  # sum of the values
    norm: Tensor  # Euclidean, of the scores that take part
    threshold: Tensor | None  # None for softmax, which has none


@dataclass(frozen=True)
class Distribution(Record):
    """The mean of a number over steps, and its histogram."""

    mean: float
    histogram: Histogram


@dataclass(frozen=True, eq=False)
class OutputStatistics(Record):
    """Support sizes, sums, norms and thresholds of a model's output layer over a corpus, with teacher forcing.

    Args:
        steps: their number.
        symbols: the number of symbols that an output can have at a step.
        num_attended: source positions with a weight above zero: the mean over steps, layers and heads; None without
            attention.
        support: symbols with a value above zero: the mean over steps.
        support_counts: number of steps with 0, 1, 2, ... possible symbols.
        total: the sum of the values, over steps.
        norm: the Euclidean norm of the scores, over steps.
        threshold: of the map, over steps; None for softmax.

    Example:
        >>> one = Distribution(1.0, Histogram((0.5, 1.5), (4,)))
        >>> statistics = OutputStatistics(4, 10, None, 2.0, (0, 0, 4), one, one, None)
        >>> statistics.sparsity
        0.8
    """

    steps: int
    symbols: int
    num_attended: float | None
    support: float
    support_counts: tuple[int, ...]
    total: Distribution
    norm: Distribution
    threshold: Distribution | None

    @property
    def sparsity(self) -> float:
        """The mean share of symbols whose value is zero (Tezekbayev et al. 2022, fig. 5 and 6)."""
        return 1 - self.support / self.symbols


@torch.no_grad()
def output_steps(output: OutputLayer, scores: Tensor) -> Steps:
    """Compute support, sum, norm and threshold of an output layer's values.

    The threshold is that of :meth:`tsallis.nn.OutputLayer.thresholds`.

    Args:
        output: the layer that made the scores.
        scores: [steps, symbols].

    Returns:
        Support, sum, norm and threshold of each step, each [steps].

    Example:
        >>> layer = OutputLayer(2, 3, "sparsemax")
        >>> steps = output_steps(layer, torch.tensor([[1.0, 0.5, -2.0]]))
        >>> [round(float(values), 3) for values in steps]
        [2.0, 1.0, 2.291, 0.25]
    """
    z = scores.double()
    log_probs = output.log_probs(scores)  # as a search has them: some probabilities are too small for a number
    values = log_probs.exp()
    norm = z.masked_fill(z == -torch.inf, 0).norm(dim=-1)
    return Steps((log_probs > -torch.inf).sum(-1), values.sum(-1), norm, output.thresholds(z, values))


def output_statistics(model: Any, batches: Iterable[Batch]) -> OutputStatistics:
    r"""Compute support sizes, sums, norms and thresholds at every step with the target given.

    .. math:: |\{i : p_i > 0\}|, \qquad \sum_i p_i, \qquad \|z\|, \qquad \tau(z)

    for the values :math:`p` of the scores :math:`z` of a step, see :func:`output_steps`. These are the counts of Peters
    et al. 2019, table 3 (`num_attended`, `support`), and of Tezekbayev et al. 2022 the distributions of zeros (fig. 5
    and 6), of logit norm and threshold (fig. 7, one point of it), and of sums (fig. 9).

    Args:
        model: an encoder-decoder of this package.
        batches: with targets.

    Returns:
        Means and histograms over all steps.

    Raises:
        InputError: no batches, or none with targets.

    Example:
        >>> from tsallis.models import Batch, RNNSeq2Seq
        >>> model = RNNSeq2Seq(6, 6, d_model=8, output="sparsemax")
        >>> source, target = torch.tensor([[4, 5]]), torch.tensor([[5, 2]])
        >>> batch = Batch(source, torch.tensor([2]), torch.tensor([[1, 5]]), target, (0,))
        >>> statistics = output_statistics(model, [batch])
        >>> statistics.steps, round(statistics.total.mean, 6)
        (2, 1.0)
    """
    outputs = Outputs(model)
    for decoded, batch in _decode(model, batches):
        outputs.update(decoded, batch)
    return outputs.result()


class Outputs:
    """Sums and counts for :class:`OutputStatistics`, collected batch by batch from passes with another purpose.

    Args:
        model: an encoder-decoder of this package.

    Example:
        >>> from tsallis.models import Batch, RNNSeq2Seq
        >>> model = RNNSeq2Seq(6, 6, d_model=8, output="sparsemax")
        >>> source, target = torch.tensor([[4, 5]]), torch.tensor([[5, 2]])
        >>> batch = Batch(source, torch.tensor([2]), torch.tensor([[1, 5]]), target, (0,))
        >>> outputs = Outputs(model)
        >>> outputs.update(model(batch.src, batch.src_lengths, batch.tgt_in), batch)
        >>> outputs.result().steps
        2
    """

    def __init__(self, model: Any) -> None:
        self.model, symbols = model, getattr(model.output, "d_vocab", len(model.output.weight))
        self.attends = hasattr(model, "num_attended")
        self.steps, self.num_attended = 0, 0.0
        self.support = np.zeros(symbols + 1, np.int64)
        self.sums = dict.fromkeys(WIDTHS, 0.0)
        self.bins = {name: Bins(width) for name, width in WIDTHS.items()}

    @torch.no_grad()
    def update(self, decoded: Any, batch: Batch) -> None:
        """Take in the model's last pass, over a batch with targets."""
        counts = (batch.tgt_out != IGNORE_INDEX).to(decoded.hidden.device)
        if self.attends:
            self.num_attended += float(self.model.num_attended(decoded)[counts].double().sum())
        for hidden in decoded.hidden[counts].split(max(1, AT_ONCE // len(self.model.output.weight))):
            self._add(output_steps(self.model.output, _scores(self.model, hidden)))

    def _add(self, steps: Steps) -> None:
        self.steps += len(steps.support)
        self.support += np.bincount(steps.support.cpu().numpy(), minlength=len(self.support))
        for name, bins in self.bins.items():
            values = getattr(steps, name)
            if values is not None:
                self.sums[name] += float(values.sum())
                bins.add(values.cpu().numpy())

    def result(self) -> OutputStatistics:
        """Return means and histograms.

        Raises:
            InputError: if there was no step.
        """
        if self.steps == 0:
            raise InputError("there are no steps to describe: the corpus is empty or has no targets")
        largest = int(self.support.nonzero()[0].max())
        total, norm, threshold = (self._distribution(name) for name in WIDTHS)
        assert total is not None and norm is not None
        return OutputStatistics(
            steps=self.steps,
            symbols=len(self.support) - 1 - int(self.model.output.never.sum()),
            num_attended=self.num_attended / self.steps if self.attends else None,
            support=float(self.support @ np.arange(len(self.support))) / self.steps,
            support_counts=tuple(self.support[: largest + 1].tolist()),
            total=total,
            norm=norm,
            threshold=threshold,
        )

    def _distribution(self, name: str) -> Distribution | None:
        histogram = self.bins[name].histogram()
        return Distribution(self.sums[name] / self.steps, histogram) if histogram.counts else None


@dataclass(frozen=True)
class TeacherForcedStep(Record):
    """A step with the target given: the target, and the symbols that the model holds possible.

    Args:
        gold: the target symbol.
        prob: its probability; its value, for alpha-ReLU.
        support: the number of symbols with a value above zero.
        words: the most probable of them with their values, the best first.
    """

    gold: str
    prob: float
    support: int
    words: tuple[tuple[str, float], ...]


def teacher_forced_supports(
    model: Any, batches: Iterable[Batch], tgt_vocab: Symbols, words: int = 10
) -> Iterator[tuple[int, tuple[TeacherForcedStep, ...]]]:
    """Yield the symbols that a model holds possible at each step of given targets (Peters et al. 2019, fig. 2).

    Args:
        model: an encoder-decoder of this package.
        batches: with targets.
        tgt_vocab: spells its symbols.
        words: how many of them a step has at most.

    Yields:
        The number of the sentence in its corpus, and its steps; the last one's target is the end.

    Raises:
        ValueError: `words` below 1.

    Example:
        >>> from types import SimpleNamespace
        >>> from tsallis.models import Batch, RNNSeq2Seq
        >>> symbols = SimpleNamespace(name=["<pad>", "<s>", "</s>", "<unk>", "▁a", "▁b"].__getitem__)
        >>> model = RNNSeq2Seq(6, 6, d_model=8, output="sparsemax")
        >>> source, target = torch.tensor([[4, 5]]), torch.tensor([[5, 2]])
        >>> batch = Batch(source, torch.tensor([2]), torch.tensor([[1, 5]]), target, (0,))
        >>> [(index, steps)] = teacher_forced_supports(model, [batch], symbols)
        >>> index, [step.gold for step in steps], steps[0].support == len(steps[0].words)
        (0, ['▁b', '</s>'], True)
    """
    check_at_least_one(words=words)
    for decoded, batch in _decode(model, batches):
        yield from describe_steps(model, decoded, batch, tgt_vocab, words)


@torch.no_grad()
def describe_steps(
    model: Any, decoded: Any, batch: Batch, tgt_vocab: Symbols, words: int, rows: Container[int] | None = None
) -> Iterator[tuple[int, tuple[TeacherForcedStep, ...]]]:
    """Yield the number and the steps of each sentence of a batch, or of `rows` alone, from a pass of the model."""
    for row, index in enumerate(batch.index):
        if rows is not None and index not in rows:
            continue
        gold = batch.tgt_out[row]
        gold = gold[gold != IGNORE_INDEX]
        # Not `probs`, in which small probabilities underflow to 0.
        probs = model.output.log_probs(_scores(model, decoded.hidden[row, : len(gold)])).exp()  # [steps, symbols]
        steps = zip(probs, gold.tolist(), strict=True)
        yield index, tuple(_teacher_forced_step(values, number, tgt_vocab, words) for values, number in steps)


@torch.no_grad()
def _scores(model: Any, hidden: Tensor) -> Tensor:
    """Return the scores [..., symbols] of states [..., d_model]."""
    scores: Tensor = model.output.scores(hidden)
    return scores


def _teacher_forced_step(probs: Tensor, gold: int, vocab: Symbols, words: int) -> TeacherForcedStep:
    support = int((probs > 0).sum())
    best = probs.topk(min(words, support))
    best_words = zip(map(vocab.name, best.indices.tolist()), best.values.tolist(), strict=True)
    return TeacherForcedStep(vocab.name(gold), float(probs[gold]), support, tuple(best_words))


@torch.no_grad()
def _forward(model: Any, batch: Batch) -> Any:
    device = model.output.weight.device
    with eval_mode(model):
        return model(batch.src.to(device), batch.src_lengths.to(device), batch.tgt_in.to(device))


def _decode(model: Any, batches: Iterable[Batch]) -> Iterator[tuple[Any, Batch]]:
    """Yield the decoder's pass over each batch's targets, and the batch."""
    for batch in batches:
        yield _forward(model, batch), batch


@dataclass(frozen=True)
class EmptyOutput(Record):
    """A sentence for which the empty output is more probable than the best one of a search.

    Args:
        index: of the sentence in its corpus.
        empty: the log-probability of the empty output.
        best: the log-probability of the best output of the search, -inf if there is none.
    """

    index: int
    empty: float
    best: float


@dataclass(frozen=True)
class EmptyRate(Record):
    """The share of sentences whose empty output is more probable than the best one of a search, and each such case.

    Args:
        sentences: their number.
        rate: the share, from 0 to 1.
        outputs: one record for each such sentence.

    Example:
        >>> EmptyRate(2, 0.5, (EmptyOutput(1, -1.0, -2.0),)).of_rows([4, 7]).outputs[0].index
        7
    """

    sentences: int
    rate: float
    outputs: tuple[EmptyOutput, ...]

    def of_rows(self, rows: Sequence[int]) -> EmptyRate:
        """Return the same, with the numbers that the sentences have in a larger corpus."""
        outputs = tuple(replace(output, index=rows[output.index]) for output in self.outputs)
        return replace(self, outputs=outputs)
