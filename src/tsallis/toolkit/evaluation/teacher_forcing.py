"""Loss and sparsity of a model with teacher forcing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from tsallis.models.batch import Batch, has_loss
from tsallis.models.label_decoder import ends_are_certain
from tsallis.models.mixture import MixtureOutput
from tsallis.models.modes import eval_mode
from tsallis.models.protocol import Decoder, device_of
from tsallis.symbols import EOS, IGNORE_INDEX
from tsallis.toolkit.data.corpus import Corpus

MAX_SCORES = 1 << 24  # maximum number of scores computed at once
EPSILON = 1e-6  # smoothing of the epsilon-perplexity


@dataclass(frozen=True)
class TeacherForcedScores:
    """Loss and sparsity of a model with teacher forcing.

    A symbol that is not in the vocabulary has probability 0, as in :func:`~tsallis.search.score`. It counts as a wrong
    symbol outside the support. The loss excludes such symbols, because their loss would be infinite. For classifiers,
    the symbols are labels.

    Args:
        loss: Mean loss of the output mapping per known symbol.
        gold_in_support: Share of reference symbols with non-zero probability.
        symbol_accuracy: Share of reference symbols that are predicted correctly.
        output_support: Mean number of symbols with non-zero probability per step.
        output_sum: Mean sum of probabilities per step, which is 1 except for alpha-ReLU.
        logit_norm: Mean Euclidean norm of the scores per step.
        threshold: Mean threshold per step, see :meth:`tsallis.nn.OutputLayer.thresholds`; NaN for softmax.
        smoothed_loss: Mean :math:`-\\log` of smoothed probabilities, see `epsilon_perplexity`.
        sparsemax_score: Mean of :math:`p_y + (1 - \\|p\\|^2) / 2` (Martins et al. 2020, *Sparse Text Generation*).
        attention_support: Mean number of attended positions per step and head.
        unknown_symbols: Number of symbols that are not in the vocabulary.

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
        """Compute means from the sums of :func:`teacher_forced_sums`, or from the total of several processes."""
        loss, *totals, unknown, symbols = sums
        means = (total / max(symbols, 1) for total in totals)
        return cls(loss / max(symbols - unknown, 1), *means, unknown_symbols=int(unknown))


def teacher_forced_scores(model: Decoder, corpus: Corpus, batch_size: int = 128) -> TeacherForcedScores:
    """Compute loss and sparsity with teacher forcing.

    Args:
        model: Encoder-decoder of this package, or an ensemble.
        corpus: Corpus with targets.
        batch_size: Number of rows per batch.

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
    """Return a mask of all target symbols except padding and the certain end symbol of classifiers.

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
    """Return the fields of :class:`TeacherForcedScores`, each summed over symbols, and the number of symbols.

    If given, `densities` contains a float64 tensor [layers, heads] for each kind of attention. The function adds to it
    the attention density of each head, times the number of symbols. If given, `possible` receives, for each row number,
    whether all symbols of the row have non-zero probability.
    """
    totals = dict.fromkeys([*(field.name for field in fields(TeacherForcedScores)), "symbols"], 0.0)
    device = device_of(model)
    with eval_mode(model):
        for batch in batches:
            tgt_out = batch.tgt_out.to(device)
            decoded = model(batch.src.to(device), batch.src_lengths.to(device), batch.tgt_in.to(device))
            mask = counted_symbols(model, tgt_out)
            hidden, gold = decoded.hidden[mask], tgt_out[mask]  # [symbols, d_model], [symbols]
            width = max(1, MAX_SCORES // model.output.scores(hidden[:1]).shape[-1])
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
    """Return, for each row, the number of correctly predicted symbols and the number of symbols, with teacher forcing.

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
            correct = torch.zeros_like(known)
            correct[known] = model.output.scores(hidden[known]).argmax(-1) == tgt_out[known]
            counts = zip(correct.sum(1).tolist(), mask.sum(1).tolist(), strict=True)
            hits.update(dict(zip(batch.index, counts, strict=True)))
    return hits


def _output_sums(output: Any, hidden: Tensor, gold: Tensor) -> tuple[dict[str, float], Tensor]:
    """Return the sums of the output layer by name, and a mask [symbols] of possible reference symbols."""
    known = has_loss(gold)  # [symbols]
    scores = output.scores(hidden)  # [symbols, d_vocab]
    probs = output.probs(scores)
    # Use log-probabilities, as the search does, because small probabilities underflow.
    possible = output.log_probs(scores) > -torch.inf
    gold_possible = _gold_values(possible, gold, known)
    thresholds = output.thresholds(scores, probs) if hasattr(output, "thresholds") else None
    # The two scores of Martins et al. need normalized probabilities.
    shares = probs if output.normalized else probs / probs.sum(-1, keepdim=True).clamp(min=1e-30)
    gold_shares = _gold_values(shares, gold, known)
    # The loss of an ensemble or of a mixture is not a function of scores.
    uses_scores = hasattr(output, "loss_of_scores") and not isinstance(output, MixtureOutput)
    loss, inputs = (output.loss_of_scores, scores) if uses_scores else (output.loss, hidden)
    sums = {
        "loss": loss(inputs[known], gold[known], reduction="sum"),
        "gold_in_support": gold_possible.sum(),
        "symbol_accuracy": ((probs.argmax(-1) == gold) & known).sum(),
        "output_support": possible.sum(),
        "output_sum": probs.sum(),
        "logit_norm": scores.masked_fill(scores == -torch.inf, 0).norm(dim=-1).sum(),
        "threshold": probs.new_tensor(torch.nan) if thresholds is None else thresholds.sum(),
        "smoothed_loss": smoothed_losses(gold_shares, shares.shape[-1]).sum(),
        "sparsemax_score": sparsemax_scores(shares, gold_shares).sum(),
    }
    return _to_floats(sums), gold_possible


def smoothed_losses(gold: Tensor, symbols: int, epsilon: float = EPSILON) -> Tensor:
    r"""Return :math:`-\log((p_y + \epsilon) / (1 + \epsilon |V|))` for `gold` probabilities and |V| `symbols`.

    Example:
        >>> smoothed_losses(torch.tensor([1.0, 0.0]), 10, 0.1).exp()
        tensor([ 1.8182, 20.0000], dtype=torch.float64)
    """
    return ((1 + epsilon * symbols) / (gold.double() + epsilon)).log()


def sparsemax_scores(probs: Tensor, gold: Tensor) -> Tensor:
    r"""Return :math:`p_y + (1 - \|p\|^2) / 2` for `probs` [n, vocabulary] and `gold` probabilities [n].

    Example:
        >>> sparsemax_scores(torch.tensor([[0.5, 0.5]]), torch.tensor([0.5])).tolist()
        [0.75]
    """
    return gold + (1 - probs.square().sum(-1)) / 2


def _to_floats(values: dict[str, Tensor]) -> dict[str, float]:
    """Return tensors on a device as floats, with a single transfer."""
    return dict(zip(values, torch.stack([value.double() for value in values.values()]).tolist(), strict=True))


def _gold_values(values: Tensor, gold: Tensor, known: Tensor) -> Tensor:
    """Select the value [symbols] of each reference symbol from `values` [symbols, d_vocab]; 0 for unknown symbols."""
    return values.gather(-1, gold.unsqueeze(-1)).squeeze(-1).masked_fill(~known, 0)
