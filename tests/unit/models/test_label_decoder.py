"""Tests of a classifier as a decoder: training, search and scores agree with the classifier."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tsallis import entmax_loss
from tsallis.models import LabelDecoder
from tsallis.models.arguments import untrained_copy
from tsallis.search import SearchOptions, beam_search, exhaustive, score
from tsallis.toolkit.data.corpus import Corpus
from tsallis.toolkit.evaluation.metrics import evaluate
from tsallis.toolkit.evaluation.search_results import search_corpus
from tsallis.toolkit.evaluation.teacher_forcing import teacher_forced_scores
from tsallis.toolkit.training import Settings
from tsallis.toolkit.training.distributed import World
from tsallis.toolkit.training.engine import Engine


def make(output: str = "softmax", attention: str = "combined") -> LabelDecoder:
    torch.manual_seed(3)
    return LabelDecoder(30, 7, d_model=8, num_basis=8, dropout=0.0, attention=attention, output=output)


def inputs() -> tuple[Tensor, Tensor]:
    return torch.randint(4, 30, (4, 6)), torch.tensor([6, 3, 1, 5])


@pytest.mark.parametrize("output", ["softmax", "sparsemax", "entmax"])
def test_search_matches_classifier_probabilities(output: str) -> None:
    model = make(output).eval()
    with torch.no_grad():
        model.classifier.output.weight.mul_(8)
    src, lengths = inputs()
    probs = model.classifier.probs(src, lengths)
    for actual in (beam_search(model, src, lengths, beam_size=3, n_best=3), exhaustive(model, src, lengths)):
        for row, result in enumerate(actual):
            assert result.certificate.kind == "complete"
            listed = {h.tokens[0] - 4: h.prob for h in result.hypotheses}
            expected = {i: p for i, p in enumerate(probs[row].tolist()) if p > 0}
            assert listed == pytest.approx(expected, rel=1e-5) and all(len(h.tokens) == 1 for h in result.hypotheses)
            assert result.best.tokens[0] - 4 == int(probs[row].argmax())
    labels = torch.tensor([[4], [5], [6], [4]])
    starts, ends = torch.ones(4, 1, dtype=torch.long), torch.full((4, 1), 2)
    log_probs = score(model, src, lengths, torch.cat([starts, labels], 1), torch.cat([labels, ends], 1))
    torch.testing.assert_close(log_probs.exp().float(), probs.gather(1, labels - 4).squeeze(1))


def test_loss_matches_classifier_cross_entropy() -> None:
    model = make()
    src, lengths = inputs()
    labels = torch.tensor([0, 2, 1, 1])
    batch = Corpus([s[:n].tolist() for s, n in zip(src, lengths, strict=True)], [[i + 4] for i in labels]).batch(
        range(4)
    )
    decoded = model(batch.src, batch.src_lengths, batch.tgt_in)
    expected = nn.functional.cross_entropy(model.classifier(src, lengths), labels, reduction="sum")
    torch.testing.assert_close(model.output.loss(decoded.hidden, batch.tgt_out, reduction="sum"), expected)
    scores = model.output.scores(decoded.hidden)
    torch.testing.assert_close(model.output.loss_of_scores(scores, batch.tgt_out, reduction="sum"), expected)
    mean = model.output.loss_of_scores(scores, batch.tgt_out)
    torch.testing.assert_close(mean, expected / 4)  # the end symbols are certain and are not counted
    smooth = nn.functional.cross_entropy(model.classifier(src, lengths), labels, reduction="sum", label_smoothing=0.1)
    result = model.output.loss(decoded.hidden, batch.tgt_out, reduction="sum", label_smoothing=0.1)
    torch.testing.assert_close(result, smooth)
    unknown = model.output.loss(decoded.hidden, batch.tgt_out.masked_fill(batch.tgt_out > 3, 3), reduction="sum")
    assert unknown == 0


@pytest.mark.parametrize("attention", ["discrete", "continuous", "combined"])
def test_updates_and_searches_of_the_engine_match_the_classifier(attention: str) -> None:
    labels = [i % 3 for i in range(30)]
    rows = [[4 + label, *([10 + i % 7] * (i % 5))] for i, label in enumerate(labels)]
    corpus = Corpus(rows, [[label + 4] for label in labels])
    model = make("sparsemax", attention)
    with torch.no_grad():
        model.classifier.embedding.weight.mul_(5)
        model.classifier.output.weight.mul_(100)  # some labels are certain, others are not
    engine = Engine(model, Settings(clip=1e9), World())
    batch, target = corpus.batch(range(30)), torch.tensor(labels)
    scores = model.classifier(batch.src, batch.src_lengths)
    exact = entmax_loss(scores, target, 2.0, reduction="sum")
    expected = torch.cat([slope.flatten() for slope in torch.autograd.grad(exact, [*model.parameters()])])
    symbols, loss = engine.update([batch], 1, 1, 1e-30, collect_stats=True)
    assert symbols == 30 and loss.item() == pytest.approx(exact.item(), rel=1e-5)
    assert engine.objective.batch_stats.accuracy == (scores.argmax(-1) == target).sum()
    gradient = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    torch.testing.assert_close(gradient, expected / 30)
    results = search_corpus(model, corpus, SearchOptions(beam_size=1))
    result = evaluate(model, corpus, results, 1.0)
    certain = (model.classifier.probs(batch.src, batch.src_lengths) > 0).sum(-1) == 1
    assert result.complete == pytest.approx(certain.double().mean().item()) and result.empty == 0
    assert 0 < result.complete < 1
    assert result.loss == pytest.approx(teacher_forced_scores(model, corpus).loss) and result.empty_rate == 0
    other = LabelDecoder(**model.arguments).eval()
    other.load_state_dict(model.state_dict())
    assert other.output.loss(other(*inputs(), torch.ones(4, 1).long()).hidden, torch.full((4, 1), 4)).isfinite()


def test_untrained_copy_shares_the_image_store() -> None:
    model = LabelDecoder(20, 6, kind="questions", image="features", d_image=5, d_model=8, heads=2, layers=1)
    model.image_store = lambda numbers: torch.zeros(len(numbers), 2, 2, 5)
    copy = untrained_copy(model)
    assert copy is not model and copy.arguments == model.arguments
    assert copy.image_store is model.image_store
    assert untrained_copy(LabelDecoder(20, 6, d_model=8)).image_store is None


@pytest.mark.parametrize("ignore_index", [-100, 0, 5])
def test_ignore_index_is_a_symbol_as_targets_are(ignore_index: int) -> None:
    output = make().output
    hidden, target = torch.randn(3, output.d_model), torch.tensor([4, 5, 6])
    hidden[:, -1] = 0
    expected = output.loss(hidden, target, reduction="none")
    expected[target == ignore_index] = 0
    loss = output.loss(hidden, target, ignore_index, reduction="none")
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(output.loss_of_scores(output.scores(hidden), target, ignore_index, "none"), expected)
