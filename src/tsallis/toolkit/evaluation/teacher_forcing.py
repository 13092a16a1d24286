"""Loss and sparsity of a model that reads the targets."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from tsallis.models.batch import Batch, has_loss
from tsallis.models.label_decoder import ends_are_certain
from tsallis.models.protocol import Decoder, device_of
from tsallis.search.step import eval_mode
from tsallis.symbols import EOS, IGNORE_INDEX
from tsallis.toolkit.data.corpus import Corpus
from tsallis.toolkit.evaluation.language import smoothed_losses, sparsemax_scores

AT_ONCE = 1 << 24  # scores computed together


@dataclass(frozen=True)
class TeacherForcedScores:
    """Loss and sparsity of a model with teacher forcing.

    A symbol that the vocabulary lacks has probability zero, as in :func:`~tsallis.search.score`: it is wrong, and out
    of the support. The loss alone leaves it out, for it would be infinite. The symbols of a classifier are its labels.

    Args:
        loss: the map's own loss, a symbol of the vocabulary.
        gold_in_support: share of symbols with a probability.
        symbol_accuracy: share of symbols that are the most probable.
        output_support: symbols with a probability, mean over steps.
        output_sum: sum of a step's probabilities, mean over steps: 1 but for alpha-ReLU.
        logit_norm: Euclidean norm of the scores, mean over steps.
        threshold: mean threshold over steps, see :meth:`tsallis.nn.OutputLayer.thresholds`; NaN for softmax.
        smoothed_loss: :math:`-\\log` of smoothed probabilities, see `epsilon_perplexity`.
        sparsemax_score: mean of :math:`p_y + (1 - \\|p\\|^2) / 2` (Martins et al. 2020, *Sparse Text Generation*).
        attention_support: positions with a weight, mean over steps (and heads).
        unknown_symbols: the number of symbols that the vocabulary lacks.

    Example:
        >>> sums = [1.0, 2.0, 2.0, 6.0, 2.0, 4.0, 0.5, 2.0, 1.0, 3.0, 0.0, 2.0]  # of two symbols, none of them unknown
        >>> scores = TeacherForcedScores.of(sums)
        >>> scores.loss, scores.output_support
        (0.5, 3.0)
    """

    loss: float
    gold_in_support: float
    symbol_accuracy: float
    output_support: float
    output_sum: float
    logit_norm: float
    threshold: float
    smoothed_loss: float
    sparsemax_score: float
    attention_support: float
    unknown_symbols: int = field(kw_only=True)

    @property
    def epsilon_perplexity(self) -> float:
        """The perplexity of the probabilities :math:`(p + \\epsilon) / (1 + \\epsilon |V|)`, which are never zero."""
        return math.exp(self.smoothed_loss)

    @classmethod
    def of(cls, sums: Sequence[float]) -> TeacherForcedScores:
        """Return the means of sums by :func:`teacher_forced_sums`, which may be added up over batches and processes."""
        loss, *totals, unknown, symbols = sums
        means = (total / max(symbols, 1) for total in totals)
        return cls(loss / max(symbols - unknown, 1), *means, unknown_symbols=int(unknown))


def teacher_forced_scores(model: Decoder, corpus: Corpus, batch_size: int = 128) -> TeacherForcedScores:
    """Compute loss and sparsity with teacher forcing.

    Args:
        model: an encoder-decoder of this package, or an ensemble of such.
        corpus: with targets.
        batch_size: rows computed together.

    Returns:
        Means over all symbols.

    Example:
        >>> from tsallis.models import RNNSeq2Seq
        >>> scores = teacher_forced_scores(RNNSeq2Seq(6, 6, d_model=8), Corpus([[4, 5]], [[5]]))
        >>> round(scores.output_sum, 4)
        1.0
    """
    return TeacherForcedScores.of(teacher_forced_sums(model, corpus.batches(batch_size)))


def counted_symbols(model: object, tgt_out: Tensor) -> Tensor:
    """Tell which target symbols count: all but padding, and of a classifier the labels alone, for its ends are certain.

    >>> from tsallis.models import RNNSeq2Seq
    >>> counted_symbols(RNNSeq2Seq(6, 6, d_model=8), torch.tensor([[5, 2, IGNORE_INDEX]])).tolist()
    [[True, True, False]]
    """
    symbols = tgt_out != IGNORE_INDEX
    return symbols & (tgt_out != EOS) if ends_are_certain(model) else symbols


@torch.no_grad()
def teacher_forced_sums(
    model: Any,
    batches: Iterable[Batch],
    densities: dict[str, Tensor] | None = None,
    possible: dict[int, bool] | None = None,
) -> list[float]:
    """Return the numbers of :class:`TeacherForcedScores` summed over symbols, and how many there were.

    To `densities`, a float64 tensor [layers, heads] for each kind of attention, each head's density in a batch is
    added, times the batch's symbols. In `possible` it is noted by the rows' numbers whether all symbols of a row have a
    probability.
    """
    totals = dict.fromkeys([*(field.name for field in fields(TeacherForcedScores)), "symbols"], 0.0)
    device = device_of(model)
    with eval_mode(model):
        for batch in batches:
            tgt_out = batch.tgt_out.to(device)
            decoded = model(batch.src.to(device), batch.src_lengths.to(device), batch.tgt_in.to(device))
            mask = counted_symbols(model, tgt_out)
            hidden, gold = decoded.hidden[mask], tgt_out[mask]  # [symbols, d_model], [symbols]
            width = max(1, AT_ONCE // model.output.scores(hidden[:1]).shape[-1])
            parts = zip(hidden.split(width), gold.split(width), strict=True)
            sums_of_parts, supports = zip(*(_output_sums(model.output, h, y) for h, y in parts), strict=True)
            if possible is not None:
                missing = torch.zeros_like(mask).masked_scatter(mask, ~torch.cat(supports)).any(1)  # [batch]
                possible.update(zip(batch.index, (~missing).tolist(), strict=True))
            counts = {
                "attention_support": model.num_attended(decoded)[mask].sum(dtype=torch.float64),
                "unknown_symbols": (~has_loss(gold)).sum(),
                "symbols": mask.sum(),
            }
            for sums in (*sums_of_parts, _to_floats(counts)):
                for name, value in sums.items():
                    totals[name] += value
            for kind, layers in (model.attention_stats() if densities else {}).items():
                assert densities is not None
                densities[kind] += torch.stack([s.density for s in layers]).double().cpu() * int(mask.sum())
    return [*totals.values()]


@torch.no_grad()
def row_hits(model: Any, batches: Iterable[Batch]) -> dict[int, tuple[int, int]]:
    """Return how many symbols of each row are the most probable ones, given those before them, and how many there are.

    Example:
        >>> from tsallis.models import RNNSeq2Seq
        >>> corpus = Corpus([[4, 5], [4]], [[5], [4, 5]])
        >>> [total for _, total in row_hits(RNNSeq2Seq(6, 6, d_model=8), corpus.batches(2)).values()]
        [2, 3]
    """
    device, hits = device_of(model), {}
    with eval_mode(model):
        for batch in batches:
            tgt_out = batch.tgt_out.to(device)
            hidden = model(batch.src.to(device), batch.src_lengths.to(device), batch.tgt_in.to(device)).hidden
            mask = counted_symbols(model, tgt_out)
            known = has_loss(tgt_out) & mask
            right = torch.zeros_like(known)
            right[known] = model.output.scores(hidden[known]).argmax(-1) == tgt_out[known]
            counts = zip(right.sum(1).tolist(), mask.sum(1).tolist(), strict=True)
            hits.update(dict(zip(batch.index, counts, strict=True)))
    return hits


def _output_sums(output: Any, hidden: Tensor, gold: Tensor) -> tuple[dict[str, float], Tensor]:
    """Return what :class:`TeacherForcedScores` says of the output layer, and which symbols have a probability.

    The first is summed over symbols, by name; the second is [symbols].
    """
    known = has_loss(gold)  # [symbols]
    scores = output.scores(hidden)  # [symbols, d_vocab]
    probs = output.probs(scores)
    # As a search has it: some probabilities are too small for a number.
    possible = output.log_probs(scores) > -torch.inf
    gold_possible = _gold_values(possible, gold, known)
    thresholds = output.thresholds(scores, probs) if hasattr(output, "thresholds") else None
    # The two scores of Martins et al. need normalized probabilities.
    shares = probs if output.normalized else probs / probs.sum(-1, keepdim=True).clamp(min=1e-30)
    of_gold_share = _gold_values(shares, gold, known)
    # The losses of an ensemble's models are not defined on its scores.
    of_scores = hasattr(output, "loss_of_scores")
    loss, inputs = (output.loss_of_scores, scores) if of_scores else (output.loss, hidden)
    sums = {
        "loss": loss(inputs[known], gold[known], reduction="sum"),
        "gold_in_support": gold_possible.sum(),
        "symbol_accuracy": ((probs.argmax(-1) == gold) & known).sum(),
        "output_support": possible.sum(),
        "output_sum": probs.sum(),
        "logit_norm": scores.masked_fill(scores == -torch.inf, 0).norm(dim=-1).sum(),
        "threshold": probs.new_tensor(torch.nan) if thresholds is None else thresholds.sum(),
        "smoothed_loss": smoothed_losses(of_gold_share, shares.shape[-1]).sum(),
        "sparsemax_score": sparsemax_scores(shares, of_gold_share).sum(),
    }
    return _to_floats(sums), gold_possible


def _to_floats(values: dict[str, Tensor]) -> dict[str, float]:
    """Return numbers on a device as floats, in one transfer."""
    return dict(zip(values, torch.stack([value.double() for value in values.values()]).tolist(), strict=True))


def _gold_values(values: Tensor, gold: Tensor, known: Tensor) -> Tensor:
    """Return the values [symbols] of gold symbols among those of all [symbols, d_vocab]; 0 of an unknown one."""
    return values.gather(-1, gold.unsqueeze(-1)).squeeze(-1).masked_fill(~known, 0)
