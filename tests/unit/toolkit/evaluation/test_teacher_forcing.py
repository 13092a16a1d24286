"""Loss and sparsity with teacher forcing, compared with sums over single rows."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tsallis.models.batch import Batch
from tsallis.search import Ensemble, SearchOptions, score, score_tokens
from tsallis.symbols import UNK
from tsallis.toolkit.data.corpus import Corpus
from tsallis.toolkit.evaluation.metrics import evaluate
from tsallis.toolkit.evaluation.search_results import search_corpus, timed_search
from tsallis.toolkit.evaluation.teacher_forcing import (
    EPSILON,
    TeacherForcedScores,
    row_hits,
    smoothed_losses,
    sparsemax_scores,
    teacher_forced_scores,
    teacher_forced_sums,
)
from unit.toolkit.evaluation.small_models import CORPUS, model, transformer


@pytest.mark.parametrize("output", ["softmax", "sparsemax", "entmax"])
def test_teacher_forced_scores_match_sums_over_rows(output: str) -> None:
    net = model(output).eval()
    loss = correct = possible = supported = num_attended = steps = 0.0
    for i in range(len(CORPUS)):
        batch = CORPUS.batch([i])
        with torch.no_grad():
            decoded = net(batch.src, batch.src_lengths, batch.tgt_in)
            scores = net.output.scores(decoded.hidden)[0]
            probs = net.output.probs(scores)
            summed = net.output.loss(decoded.hidden, batch.tgt_out, reduction="sum")
        gold = batch.tgt_out[0]
        loss += float(summed)
        correct += int((probs.argmax(-1) == gold).sum())
        possible += int((probs[range(len(gold)), gold] > 0).sum())
        supported += int((probs > 0).sum())
        num_attended += int((decoded.attention > 0).sum())
        steps += len(gold)
    result = teacher_forced_scores(net, CORPUS, batch_size=5)
    assert result.loss == pytest.approx(loss / steps, rel=1e-5)
    assert result.symbol_accuracy == pytest.approx(correct / steps)
    assert result.gold_in_support == pytest.approx(possible / steps)
    assert result.output_support == pytest.approx(supported / steps)
    assert result.attention_support == pytest.approx(num_attended / steps)


@pytest.mark.parametrize("output", ["softmax", "entmax", "alpha_relu"])
def test_text_scores_match_those_of_the_normalized_outputs(output: str) -> None:
    net = model(output).eval()
    batch = CORPUS.batch([0])
    with torch.no_grad():
        values = net.output.probs(net.output.scores(net(batch.src, batch.src_lengths, batch.tgt_in).hidden))[0]
    sums = values.sum(-1, keepdim=True)
    assert torch.allclose(sums, torch.ones_like(sums)) == (output != "alpha_relu")
    expected = text_scores(values / sums, batch.tgt_out[0])
    result = TeacherForcedScores.of(teacher_forced_sums(net, [batch]))
    assert (result.epsilon_perplexity, result.sparsemax_score) == pytest.approx(expected, rel=1e-5)


def test_row_hits_count_correct_symbols_per_row() -> None:
    net = model().eval()
    hits = row_hits(net, CORPUS.batches(5))
    assert list(sorted(hits)) == list(range(len(CORPUS)))
    right, total = (sum(column) for column in zip(*hits.values(), strict=True))
    assert right / total == pytest.approx(teacher_forced_scores(net, CORPUS).symbol_accuracy)
    assert all(hits[row][1] == len(CORPUS.tgt[row]) + 1 for row in range(len(CORPUS)))


def test_measuring_keeps_training_mode() -> None:
    net = model()
    net.train()
    first = teacher_forced_scores(net, CORPUS)
    assert net.training and teacher_forced_scores(net, CORPUS) == first  # dropout is off while measuring
    search_corpus(net, CORPUS, SearchOptions(beam_size=2))
    assert net.training


def test_sums_over_parts_match_scores_of_the_corpus() -> None:
    net = model().eval()
    batches = CORPUS.batches(5)
    parts = [teacher_forced_sums(net, batches[rank::2]) for rank in range(2)]
    whole = TeacherForcedScores.of([a + b for a, b in zip(*parts, strict=True)])
    for name, value in vars(teacher_forced_scores(net, CORPUS, 5)).items():
        assert getattr(whole, name) == pytest.approx(value, rel=1e-12)
    assert teacher_forced_sums(net, []) == [0.0] * 12


def test_ensemble_of_different_models_averages_probabilities() -> None:
    parts = [model("sparsemax").eval(), model("softmax", 1.0).eval(), transformer().eval()]
    both = Ensemble(parts)
    result = teacher_forced_scores(both, CORPUS, batch_size=5)
    each = [teacher_forced_scores(part, CORPUS) for part in parts]
    for name in ("loss", "attention_support"):
        assert getattr(result, name) == pytest.approx(sum(getattr(f, name) for f in each) / 3, rel=1e-5)
    assert result.gold_in_support == 1 and result.output_sum == pytest.approx(1, abs=1e-5)
    batch = CORPUS.batch(range(len(CORPUS)))
    with torch.no_grad():
        hidden = both(batch.src, batch.src_lengths, batch.tgt_in).hidden
        probs = both.output.probs(both.output.scores(hidden))
        own = [part(batch.src, batch.src_lengths, batch.tgt_in).hidden for part in parts]
        mean = sum(part.output.probs(part.output.scores(h)) for part, h in zip(parts, own, strict=True)) / 3
    torch.testing.assert_close(probs.float(), mean, atol=1e-6, rtol=1e-5)
    counts = batch.tgt_out != -100
    assert result.output_support == pytest.approx((mean > 0).sum(-1)[counts].float().mean().item())
    # Forced decoding and the steps of a search give the same log-probabilities.
    log_probs = probs.log().gather(-1, batch.tgt_out.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    totals = log_probs.masked_fill(~counts, 0).sum(-1)
    stepwise = score(both, batch.src, batch.src_lengths, batch.tgt_in, batch.tgt_out)
    torch.testing.assert_close(totals, stepwise, atol=1e-4, rtol=1e-4)
    assert evaluate(both, CORPUS, *timed_search(both, CORPUS, SearchOptions(beam_size=3))).samples == len(CORPUS)


@pytest.mark.parametrize("output", ["softmax", "sparsemax", "entmax", "alpha_relu", "ensemble"])
@pytest.mark.parametrize("rows", [1, 12])
def test_unknown_symbols_count_as_wrong_and_outside_support(output: str, rows: int) -> None:
    """An unknown symbol has probability zero, as in `score`. The mean loss excludes its infinite loss."""
    net = Ensemble([model().eval(), model("softmax").eval()]) if output == "ensemble" else model(output).eval()
    known = Corpus(CORPUS.src[:rows], CORPUS.tgt[:rows])
    corpus = Corpus(known.src, [[*known.tgt[0][:-1], UNK], *known.tgt[1:]])
    (scored,) = score_tokens(net, *_inputs(corpus.batch([0])))
    assert scored.exclusion is not None and scored.log_prob == -math.inf
    batch = corpus.batch(range(rows))
    with torch.no_grad():
        hidden = net(batch.src, batch.src_lengths, batch.tgt_in).hidden[batch.tgt_out != -100]
        scores = net.output.scores(hidden)
        values = net.output.probs(scores)
    gold = batch.tgt_out[batch.tgt_out != -100]
    right, possible = values.argmax(-1) == gold, values.gather(-1, gold.unsqueeze(-1)).squeeze(-1) > 0
    known_gold = gold != UNK
    loss = net.output.loss(hidden[known_gold], gold[known_gold], reduction="sum").item()
    result = teacher_forced_scores(net, corpus, batch_size=5)
    assert result.unknown_symbols == 1 and teacher_forced_scores(net, known).unknown_symbols == 0
    assert result.symbol_accuracy == pytest.approx(int((right & known_gold).sum()) / len(gold))
    assert result.gold_in_support == pytest.approx(int((possible & known_gold).sum()) / len(gold))
    assert result.gold_in_support <= 1 - 1 / len(gold)
    assert result.loss == pytest.approx(loss / (len(gold) - 1), rel=1e-5)
    assert result.output_support == pytest.approx((values > 0).sum(-1).double().mean().item())
    if output != "alpha_relu":
        expected = text_scores(values, gold)
        assert (result.epsilon_perplexity, result.sparsemax_score) == pytest.approx(expected, rel=1e-5)
    (hits, total), *_ = (row_hits(net, corpus.batches(5))[row] for row in range(rows))
    assert total == len(corpus.tgt[0]) + 1 and hits < total


def test_loss_of_only_unknown_symbols_is_finite() -> None:
    result = teacher_forced_scores(model().eval(), Corpus([[4, 5]], [[UNK] * 3]))
    assert result.unknown_symbols == 3 and result.gold_in_support <= 1 / 4 and math.isfinite(result.loss)


def _inputs(batch: Batch) -> tuple[torch.Tensor, ...]:
    return batch.src, batch.src_lengths, batch.tgt_in, batch.tgt_out


def test_underflowing_probabilities_stay_in_the_support() -> None:
    net = model("entmax").eval()
    net.output.alpha = 1.05
    with torch.no_grad():
        net.output.projection.weight.zero_()
        net.output.projection.bias.fill_(-100)
        net.output.projection.bias[:3] = net.output.projection.bias.new_tensor([-100, -100, 0])
        net.output.projection.bias[5] = -19.75
    corpus = Corpus([[4]], [[5]])
    batch = corpus.batch([0])
    with torch.no_grad():
        scores = net.output.scores(net(batch.src, batch.src_lengths, batch.tgt_in).hidden)
    assert net.output.probs(scores)[0, 0, 5] == 0
    result = teacher_forced_scores(net, corpus)
    assert score(net, batch.src, batch.src_lengths, batch.tgt_in, batch.tgt_out).item() > -math.inf
    assert result.gold_in_support == 1 and result.output_support == 2


def text_scores(probs: Tensor, tokens: Tensor, epsilon: float = EPSILON) -> tuple[float, float]:
    """Return the epsilon-perplexity and the sparsemax score of probabilities [n, vocabulary] for tokens [n]."""
    probs = probs.double()
    gold = probs.gather(1, tokens.unsqueeze(1)).squeeze(1)
    losses, scores = smoothed_losses(gold, probs.shape[1], epsilon), sparsemax_scores(probs, gold)
    return losses.mean().exp().item(), scores.mean().item()


PROBS = torch.tensor([[0.5, 0.25, 0.25, 0.0], [0.0, 0.0, 1.0, 0.0], [0.0, 0.6, 0.4, 0.0]])


def test_text_scores_of_three_tokens_match_their_formulas() -> None:
    epsilon = 1e-3
    epsilon_perplexity, sparsemax_score = text_scores(PROBS, torch.tensor([1, 2, 0]), epsilon)
    each = [math.log((p + epsilon) / (1 + 4 * epsilon)) for p in (0.25, 1.0, 0.0)]
    assert epsilon_perplexity == pytest.approx(math.exp(-sum(each) / 3))
    squares = (0.375, 1.0, 0.52)
    expected = sum(p + (1 - s) / 2 for p, s in zip((0.25, 1.0, 0.0), squares, strict=True)) / 3
    assert sparsemax_score == pytest.approx(expected)


def test_epsilon_zero_gives_the_perplexity() -> None:
    probs = torch.full((5, 4), 0.25)
    epsilon_perplexity, _ = text_scores(probs, torch.arange(5) % 4, 0.0)
    assert epsilon_perplexity == pytest.approx(4)
