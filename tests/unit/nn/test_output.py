"""Tests of the output layer: its probabilities match its loss, and forbidden symbols have probability zero."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import tsallis
from tsallis.nn import Entmax, EntmaxLoss, OutputLayer, Sparsemax

KINDS = [("softmax", 1.0), ("sparsemax", 2.0), ("entmax", 1.5), ("entmax", 1.2)]
KINDS += [("alpha_relu", 1.5), ("alpha_relu", 2.0)]
every_kind = pytest.mark.parametrize(("transform", "alpha"), KINDS)


def layer(transform: str, alpha: float, **options) -> OutputLayer:
    return OutputLayer(6, 9, transform, alpha, **options).double()


@every_kind
def test_probabilities_match_the_functional_transform(transform: str, alpha: float) -> None:
    output = layer(transform, alpha, tau=0.1)
    scores = output(torch.randn(2, 3, 6, dtype=torch.float64) * 3)
    assert scores.shape == (2, 3, 9)
    relu = transform == "alpha_relu"
    expected = tsallis.alpha_relu(scores, alpha, 0.1) if relu else tsallis.entmax(scores, alpha)
    assert output.probs(scores).equal(expected)
    assert output.normalized == (not relu)
    if output.normalized:
        torch.testing.assert_close(expected.sum(-1), torch.ones(2, 3, dtype=torch.float64))


@every_kind
def test_loss_gradient_is_probabilities_minus_one_hot(transform: str, alpha: float) -> None:
    output = layer(transform, alpha, tau=-0.2)
    scores = output(torch.randn(5, 6, dtype=torch.float64) * 3).detach().requires_grad_()
    target = torch.tensor([0, 3, 8, 2, 2])
    output.loss_of_scores(scores, target, reduction="sum").backward()
    torch.testing.assert_close(scores.grad, output.probs(scores) - nn.functional.one_hot(target, 9))


@every_kind
def test_log_probs_match_probs_and_are_minus_inf_only_at_0(transform: str, alpha: float) -> None:
    output = OutputLayer(6, 9, transform, alpha, forbidden=(0,))
    scores = output(torch.randn(4, 6) * 8)
    logs, probs = output.log_probs(scores), output.probs(scores)
    assert logs.dtype == torch.float64
    assert (logs == -torch.inf).equal(probs == 0)
    torch.testing.assert_close(logs.exp(), probs.double(), atol=1e-6, rtol=1e-5)
    if transform == "softmax":  # a case in which float32 probabilities underflow to zero
        steep = torch.zeros(1, 9)
        steep[0, 1] = 300.0
        assert output.log_probs(steep)[0, 2].item() == pytest.approx(-300, abs=1e-6)


@every_kind
def test_forbidden_symbols_have_no_probability_and_no_gradient(transform: str, alpha: float) -> None:
    output = layer(transform, alpha, tau=-0.3, forbidden=(0, 4))
    hidden = torch.randn(3, 6, dtype=torch.float64)
    scores = output(hidden)
    assert (scores[:, [0, 4]] == -torch.inf).all() and (output.probs(scores)[:, [0, 4]] == 0).all()
    loss = output.loss(hidden, torch.tensor([1, 2, 3]), reduction="sum")
    loss.backward()
    assert loss.isfinite() and output.weight.grad.isfinite().all()
    assert (output.weight.grad[[0, 4]] == 0).all() and (output.bias.grad[[0, 4]] == 0).all()
    assert output.weight.grad[1].abs().sum() > 0


def test_forbidden_symbols_do_not_change_what_a_hook_kept() -> None:
    output, kept = layer("entmax", 1.5, forbidden=(0, 4)), []
    output.projection.register_forward_hook(lambda *call: kept.append(call[-1]))
    scores = torch.no_grad()(output.scores)(torch.randn(2, 6, dtype=torch.float64))
    assert kept[0].isfinite().all() and scores[:, [0, 4]].isinf().all()


def test_forbidden_symbols_match_removing_their_scores() -> None:
    output = layer("entmax", 1.5, forbidden=(0, 4))
    hidden = torch.randn(3, 6, dtype=torch.float64)
    saved = [1, 2, 3, 5, 6, 7, 8]
    alone = hidden @ output.weight[saved].t() + output.bias[saved]
    torch.testing.assert_close(output.probs(output(hidden))[:, saved], tsallis.entmax15(alone))


def test_scores_are_the_same_with_gradients_and_without() -> None:
    for forbidden in ((), (0, 4)):
        output, hidden = layer("entmax", 1.5, forbidden=forbidden), torch.randn(2, 3, 6, dtype=torch.float64)
        with torch.no_grad():
            scores = output(hidden)
        assert torch.equal(scores, output(hidden).detach())
        assert (scores == -torch.inf).sum() == 6 * len(forbidden)


@pytest.mark.parametrize(("transform", "alpha"), KINDS[1:4])
def test_loss_is_zero_at_the_margin(transform: str, alpha: float) -> None:
    output, margin = layer(transform, alpha), 1 / (alpha - 1)
    scores = torch.zeros(2, 9, dtype=torch.float64)
    scores[0, 3], scores[1, 3] = margin, 0.9 * margin
    loss = output.loss_of_scores(scores, torch.tensor([3, 3]), reduction="none")
    assert loss[0] == 0 and loss[1] > 0
    assert output.probs(scores)[0, 3] == 1 and output.probs(scores)[1, 3] < 1


def test_modules_match_the_functions() -> None:
    scores, mask = torch.randn(3, 5, 4), torch.rand(3, 5, 4) > 0.3
    assert Entmax(1.3)(scores, mask).equal(tsallis.entmax(scores, 1.3, mask=mask))
    assert Entmax(dim=1)(scores).equal(tsallis.entmax15(scores, 1))
    assert Sparsemax(dim=0)(scores, mask).equal(tsallis.sparsemax(scores, 0, mask=mask))
    target = torch.randint(0, 4, (3, 5))
    weight = torch.rand(4)
    loss = EntmaxLoss(1.3, weight=weight, ignore_index=2, reduction="none", label_smoothing=0.1)
    options = {"weight": weight, "ignore_index": 2, "reduction": "none", "label_smoothing": 0.1}
    assert loss(scores, target).equal(tsallis.entmax_loss(scores, target, 1.3, **options))


def test_alpha_may_be_parameter_buffer_or_number() -> None:
    scores, target = torch.randn(3, 5), torch.tensor([0, 1, 2])
    learned = nn.Parameter(torch.full((3, 1), 1.4))
    for module, arguments in ((Entmax(learned), (scores,)), (EntmaxLoss(learned), (scores, target))):
        assert list(module.parameters()) == [learned]
        learned.grad = None
        module(*arguments).square().sum().backward()
        assert learned.grad is not None and (learned.grad != 0).any()
        assert "alpha: (3, 1)" in repr(module)
    saved = Entmax(torch.tensor([[1.0], [1.5], [2.0]]))
    assert list(saved.parameters()) == [] and "alpha" in saved.state_dict()
    assert saved.double().alpha.dtype == torch.float64
    torch.testing.assert_close(saved(scores.double())[0], scores[0].double().softmax(-1))
    assert repr(Entmax(1.5)) == "Entmax(alpha=1.5, dim=-1)" and repr(EntmaxLoss(2.0)) == "EntmaxLoss(alpha=2)"


def smoothed(output: OutputLayer, scores: torch.Tensor, target: torch.Tensor, share: float) -> torch.Tensor:
    """Return the loss with label smoothing: a share of the target is spread over all symbols that are not forbidden."""
    if output.transform != "alpha_relu":
        return tsallis.entmax_loss(scores, target, output.alpha, reduction="none", label_smoothing=share)
    # The loss is linear in the target: mix it with the mean loss over all classes.
    classes = [i for i in range(scores.shape[-1]) if not output.never[i]]
    each = [output.loss_of_scores(scores, torch.where(target < 0, target, c), reduction="none") for c in classes]
    plain = output.loss_of_scores(scores, target, reduction="none")
    return (1 - share) * plain + share * torch.stack(each).mean(0)


@every_kind
@pytest.mark.parametrize("many", [False, True], ids=["few", "many"])
@pytest.mark.parametrize("share", [0.0, 0.2])
@pytest.mark.parametrize("options", [{}, {"forbidden": (0, 5)}, {"forbidden": (0,), "bias": False}], ids=str)
def test_losses_and_gradients_match_for_few_and_many_scores(
    transform: str, alpha: float, many: bool, share: float, options: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    if many:
        monkeypatch.setattr("tsallis.nn.output.MANY_SCORES", 1)
    output = layer(transform, alpha, tau=0.1, **options)
    hidden = torch.randn(2, 3, 6, dtype=torch.float64, requires_grad=True)
    target = torch.tensor([[1, 2, 8], [4, -100, 3]])
    leaves = (hidden, *output.parameters())
    each = smoothed(output, output(hidden), target, share)
    assert each[1, 1] == 0
    for reduction, expected in (("none", each), ("sum", each.sum()), ("mean", each.sum() / 5)):
        result = output.loss(hidden, target, reduction=reduction, label_smoothing=share)
        torch.testing.assert_close(result, expected)
        pairs = [torch.autograd.grad(x.sum(), leaves, retain_graph=True) for x in (result, expected)]
        for one, other in zip(*pairs, strict=True):
            assert one.isfinite().all()
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("share", [-0.1, 1.1, math.nan])
def test_invalid_label_smoothing_raises(share: float) -> None:
    with pytest.raises(ValueError, match=f"label_smoothing must be between 0 and 1, got {share}"):
        OutputLayer(6, 9).loss(torch.randn(2, 6), torch.tensor([1, 2]), label_smoothing=share)


def test_a_tied_projection_is_one_parameter() -> None:
    output, table = OutputLayer(6, 9), nn.Embedding(9, 6)
    output.tie(table.weight)
    assert output.weight is table.weight
    with pytest.raises(ValueError, match=r"\(9, 6\), got \(8, 6\)"):
        output.tie(nn.Embedding(8, 6).weight)


@pytest.mark.parametrize(("ignored", "dtype"), [(999, torch.long), (-100, torch.long), (0, torch.uint8)])
def test_label_smoothing_matches_loss_for_ignored_targets(ignored: int, dtype: torch.dtype) -> None:
    output = OutputLayer(6, 9)
    hidden, target = torch.randn(4, 6), torch.tensor([1, 2, ignored, 3]).to(dtype)
    smoothed = output.loss(hidden, target, ignore_index=ignored, label_smoothing=0.1)
    scores = output(hidden)
    expected = tsallis.entmax_loss(scores, target, ignore_index=ignored, label_smoothing=0.1)
    torch.testing.assert_close(smoothed, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@every_kind
def test_half_precision_ranking_matches_float32(transform: str, alpha: float, dtype: torch.dtype) -> None:
    output = OutputLayer(6, 200, transform, alpha).to(dtype)
    scores = output(torch.randn(8, 6, dtype=dtype) * 8)
    exact = output.log_probs(scores.float())
    assert output.log_probs(scores).equal(exact)
    for backend in ("auto", "eager"):
        with tsallis.backend(backend):
            best = output.best_symbols(scores, 5, 0)
        torch.testing.assert_close(best.ends, exact[:, 0], rtol=1e-5, atol=1e-5)
        assert best.support.equal((exact > -torch.inf).sum(-1))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_quantised_layer_loss_matches_its_scores() -> None:
    layer, hidden, target = OutputLayer(8, 5), torch.randn(6, 8), torch.arange(6) % 5
    quantised = torch.ao.quantization.quantize_dynamic(layer, {torch.nn.Linear}, dtype=torch.qint8)
    expected = tsallis.entmax_loss(quantised.scores(hidden), target)
    torch.testing.assert_close(quantised.loss(hidden, target), expected)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@every_kind
def test_states_of_ignored_targets_have_no_influence(transform: str, alpha: float, bad: float) -> None:
    output, hidden = OutputLayer(6, 9, transform, alpha), torch.randn(3, 6)
    spoiled = hidden.clone()
    spoiled[1] = bad
    rows = tsallis.SparseRows(torch.tensor([1, 4]), torch.ones(2), torch.tensor([0, 1, 1, 2]))
    gradients = []
    for states, target in ((hidden, rows), (spoiled, rows), (spoiled, torch.tensor([1, -100, 4]))):
        output.zero_grad()
        output.loss(states, target).backward()
        gradients.append(output.weight.grad.clone())
    torch.testing.assert_close(gradients[0], gradients[1])
    torch.testing.assert_close(gradients[0], gradients[2])


def test_invalid_targets_raise() -> None:
    output, hidden = OutputLayer(6, 9), torch.randn(3, 6)
    with pytest.raises(TypeError, match=r"integers, got torch\.float32; SparseRows\.from_dense"):
        output.loss(hidden, torch.full((3, 9), 1 / 9))
    with pytest.raises(TypeError, match="class targets must be a tensor, got list"):
        output.loss(hidden, [1, 2, 3])  # type: ignore[arg-type]


class Scaled(nn.Linear):
    """A linear layer with other code, as of an adapter."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 3 * super().forward(x)


@pytest.mark.parametrize("change", ["class", "hook"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_large_batches_use_the_code_of_the_projection(change: str, smoothing: float) -> None:
    output, hidden, target = OutputLayer(4, 3000), torch.randn(800, 4), torch.randint(3000, (800,))
    if change == "class":
        output.projection = Scaled(4, 3000)
    else:
        output.projection.register_forward_hook(lambda module, arguments, result: 3 * result)
    options = {"reduction": "none", "label_smoothing": smoothing}
    small = torch.cat(
        [output.loss(*part, **options) for part in zip(hidden.split(100), target.split(100), strict=True)]
    )
    torch.testing.assert_close(output.loss(hidden, target, **options), small)
    scores = output.scores(hidden)
    torch.testing.assert_close(small, tsallis.entmax_loss(scores, target, 1.5, **options), rtol=1e-4, atol=1e-4)
    rows = output.support(hidden[:3].detach())
    torch.testing.assert_close(rows.dense(3000), output.probs(scores[:3]).detach())


def test_a_loader_that_gives_memory_keeps_the_constants() -> None:
    with torch.device("meta"):
        output = OutputLayer(8, 50, forbidden=(0, 7))
    for name in ("never", "_forbidden"):
        setattr(output, name, torch.full_like(getattr(output, name), 1, device="cpu"))
    assert output.never.nonzero().flatten().tolist() == output._forbidden.tolist() == [0, 7]


def test_a_projection_with_dropout_is_drawn_once() -> None:
    output = OutputLayer(4, 30)
    output.projection.register_forward_hook(lambda module, arguments, result: nn.functional.dropout(result))
    hidden, target = torch.randn(6, 4), torch.randint(30, (6,))
    torch.manual_seed(0)
    loss = output.loss(hidden, target, label_smoothing=0.1)
    torch.manual_seed(0)
    expected = tsallis.entmax_loss(output.scores(hidden), target, 1.5, label_smoothing=0.1)
    torch.testing.assert_close(loss, expected)
