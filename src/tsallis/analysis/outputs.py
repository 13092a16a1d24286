"""Compute statistics of output layers per step: possible symbols, sums of values, and sizes of scores."""

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
from tsallis.models.modes import eval_mode
from tsallis.nn import OutputLayer
from tsallis.search.checks import check_at_least_one
from tsallis.symbols import IGNORE_INDEX

MAX_SCORES = 1 << 22  # maximum number of scores in memory at a time
WIDTHS = {"total": 0.05, "norm": 1.0, "threshold": 0.1}  # widths of the bins of histograms


class Steps(NamedTuple):
    """Statistics of an output layer at each step, as float64 or int64 tensors [steps]."""

    support: Tensor  # number of symbols with a value above zero
    total: Tensor  # sum of the values
    norm: Tensor  # Euclidean norm of the finite scores
    threshold: Tensor | None  # threshold of the step; None for softmax


@dataclass(frozen=True)
class Distribution(Record):
    """Mean of a value over steps, and its histogram."""

    mean: float
    histogram: Histogram


@dataclass(frozen=True, eq=False)
class OutputStatistics(Record):
    """Support sizes, sums, norms and thresholds of a model's output layer over a corpus, with teacher forcing.

    Args:
        steps: Number of steps.
        symbols: Number of symbols that can be generated.
        num_attended: Mean number of source positions with a weight above zero, over steps, layers and heads; None
            without attention.
        support: Mean number of symbols with a value above zero, over steps.
        support_counts: Number of steps with 0, 1, 2, ... possible symbols.
        total: Sum of the values at a step.
        norm: Euclidean norm of the scores at a step.
        threshold: Threshold at a step; None for softmax.

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
        """Return the mean share of symbols whose value is zero (Tezekbayev et al. 2022, fig. 5 and 6)."""
        return 1 - self.support / self.symbols


@torch.no_grad()
def output_steps(output: OutputLayer, scores: Tensor) -> Steps:
    """Compute support, sum, norm and threshold of an output layer at each step.

    :meth:`tsallis.nn.OutputLayer.thresholds` defines the threshold.

    Args:
        output: Output layer that computed the scores.
        scores: Scores [steps, symbols].

    Returns:
        Support, sum, norm and threshold of each step, each [steps].

    Example:
        >>> layer = OutputLayer(2, 3, "sparsemax")
        >>> steps = output_steps(layer, torch.tensor([[1.0, 0.5, -2.0]]))
        >>> [round(float(values), 3) for values in steps]
        [2.0, 1.0, 2.291, 0.25]
    """
    z = scores.double()
    log_probs = output.log_probs(scores)  # logarithms, because symbols whose probability underflows are possible
    values = log_probs.exp()
    norm = z.masked_fill(z == -torch.inf, 0).norm(dim=-1)
    return Steps((log_probs > -torch.inf).sum(-1), values.sum(-1), norm, output.thresholds(z, values))


def output_statistics(model: Any, batches: Iterable[Batch]) -> OutputStatistics:
    r"""Compute support sizes, sums, norms and thresholds at every step, with teacher forcing.

    .. math:: |\{i : p_i > 0\}|, \qquad \sum_i p_i, \qquad \|z\|, \qquad \tau(z)

    for the values :math:`p` and the scores :math:`z` of a step, see :func:`output_steps`. Peters et al. 2019 report
    `num_attended` and `support` in table 3. Tezekbayev et al. 2022 report the distributions of zeros (fig. 5 and 6), of
    the logit norm and the threshold (fig. 7; this function computes one point of it), and of sums (fig. 9).

    Args:
        model: Encoder-decoder of this package.
        batches: Batches with targets.

    Returns:
        Means and histograms over all steps.

    Raises:
        InputError: There are no batches, or no targets.

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
    """Accumulator for :class:`OutputStatistics`, which uses the results of passes that run anyway.

    Args:
        model: Encoder-decoder of this package.

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
        """Add the result `decoded` of a pass over a batch with targets."""
        mask = (batch.tgt_out != IGNORE_INDEX).to(decoded.hidden.device)
        if self.attends:
            self.num_attended += float(self.model.num_attended(decoded)[mask].double().sum())
        for hidden in decoded.hidden[mask].split(max(1, MAX_SCORES // len(self.model.output.weight))):
            self._add(output_steps(self.model.output, self.model.output.scores(hidden)))

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
            InputError: There were no steps.
        """
        if self.steps == 0:
            raise InputError("can't describe outputs: the corpus is empty or has no targets")
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
    """Step with teacher forcing: the target, and the possible symbols.

    Args:
        gold: Target symbol.
        prob: Probability of the target, or its value for alpha-ReLU.
        support: Number of symbols with a value above zero.
        words: Most probable symbols with their values, best first.
    """

    gold: str
    prob: float
    support: int
    words: tuple[tuple[str, float], ...]


def teacher_forced_supports(
    model: Any, batches: Iterable[Batch], tgt_vocab: Symbols, words: int = 10
) -> Iterator[tuple[int, tuple[TeacherForcedStep, ...]]]:
    """Yield the possible symbols at each step of given targets (Peters et al. 2019, fig. 2).

    Args:
        model: Encoder-decoder of this package.
        batches: Batches with targets.
        tgt_vocab: Vocabulary of the targets.
        words: Maximum number of symbols to list per step.

    Yields:
        Number of each sentence in its corpus, and its steps. The target of the last step is the end.

    Raises:
        ValueError: `words` is below 1.

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
    """Yield the number and the steps of each sentence of a batch, or only of the sentences in `rows`."""
    for row, index in enumerate(batch.index):
        if rows is not None and index not in rows:
            continue
        gold = batch.tgt_out[row]
        gold = gold[gold != IGNORE_INDEX]
        # Don't use `probs`, in which small probabilities underflow to 0.
        probs = model.output.log_probs(model.output.scores(decoded.hidden[row, : len(gold)])).exp()  # [steps, symbols]
        steps = zip(probs, gold.tolist(), strict=True)
        yield index, tuple(_teacher_forced_step(values, number, tgt_vocab, words) for values, number in steps)


def _teacher_forced_step(probs: Tensor, gold: int, vocab: Symbols, words: int) -> TeacherForcedStep:
    support = int((probs > 0).sum())
    best = probs.topk(min(words, support))
    best_words = zip(map(vocab.name, best.indices.tolist()), best.values.tolist(), strict=True)
    return TeacherForcedStep(vocab.name(gold), float(probs[gold]), support, tuple(best_words))


def _decode(model: Any, batches: Iterable[Batch]) -> Iterator[tuple[Any, Batch]]:
    """Yield the model's result for each batch, and the batch."""
    device = model.output.weight.device
    for batch in batches:
        with torch.no_grad(), eval_mode(model):
            decoded = model(batch.src.to(device), batch.src_lengths.to(device), batch.tgt_in.to(device))
        yield decoded, batch


@dataclass(frozen=True)
class EmptyOutput(Record):
    """Sentence whose empty output is more probable than the best output of a search.

    Args:
        index: Index of the sentence in its corpus.
        empty: Log-probability of the empty output.
        best: Log-probability of the best output of the search, -inf if there is none.
    """

    index: int
    empty: float
    best: float


@dataclass(frozen=True)
class EmptyRate(Record):
    """Share of sentences whose empty output is more probable than the best output of a search.

    Args:
        sentences: Number of sentences.
        rate: Share of these sentences, from 0 to 1.
        outputs: One record per such sentence.

    Example:
        >>> EmptyRate(2, 0.5, (EmptyOutput(1, -1.0, -2.0),)).of_rows([4, 7]).outputs[0].index
        7
    """

    sentences: int
    rate: float
    outputs: tuple[EmptyOutput, ...]

    def of_rows(self, rows: Sequence[int]) -> EmptyRate:
        """Return a copy in which sentence i has the index `rows[i]`, its index in a larger corpus."""
        outputs = tuple(replace(output, index=rows[output.index]) for output in self.outputs)
        return replace(self, outputs=outputs)
