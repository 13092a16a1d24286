"""Updates have the same gradient for any distribution of rows, and every setting has its effect."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from small_run import changed
from tsallis.models import RNNSeq2Seq, TransformerSeq2Seq
from tsallis.models.batch import Batch
from tsallis.nn import PerHeadAlpha
from tsallis.symbols import IGNORE_INDEX, UNK
from tsallis.toolkit.data.batching import make_batch
from tsallis.toolkit.training import Settings
from tsallis.toolkit.training.distributed import World
from tsallis.toolkit.training.engine import Engine, Objective, has_loss

SIZE = 14
SRC = [[4, 5, 6], [4, 7], [8, 9, 5, 4], [6], [4, 4, 10], [12, 13]]
TGT = [[4, 5], [6, 7, 8], [9], [4, 4, 4, 11], [5], [13, 12]]
SETTINGS = Settings(clip=1e9)


def batch(*rows: int) -> Batch:
    return make_batch(SRC, TGT, rows or range(len(SRC)))


def model(kind: str = "rnn", **options: Any) -> nn.Module:
    torch.manual_seed(3)
    options = {"dropout": 0.0, "d_model": 8, **options}
    if kind == "rnn":
        return RNNSeq2Seq(SIZE, SIZE, layers=1, **options)
    return TransformerSeq2Seq(SIZE, SIZE, heads=2, layers=1, d_ff=12, **{"attention": "learned", **options})


def engine(net: nn.Module, settings: Settings = SETTINGS) -> Engine:
    return Engine(net, settings, World())


def gradients(net: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("kind", ["rnn", "transformer"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_accumulated_batches_match_the_gradient_of_one_batch(kind: str, smoothing: float) -> None:
    settings = changed(SETTINGS, label_smoothing=smoothing)
    whole, parts = (engine(model(kind).double(), settings) for _ in range(2))
    symbols, loss = whole.update([batch()], 1, 1, 0.01)
    # The batches differ in size, so a mean of their means would give another gradient.
    pieces = [batch(0, 1, 2), batch(3), batch(4, 5)]
    again, summed = parts.update(pieces, 3, 3, 0.01)
    assert symbols == again == sum(len(row) + 1 for row in TGT)
    assert summed.item() == pytest.approx(loss.item(), rel=1e-12)
    expected = gradients(whole.model)
    assert expected and gradients(parts.model).keys() == expected.keys()
    for name, grad in gradients(parts.model).items():
        torch.testing.assert_close(grad, expected[name], atol=1e-12, rtol=1e-12, msg=name)
    for one, other in zip(parts.model.parameters(), whole.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-9)


def test_gradient_matches_the_mean_loss() -> None:
    net = model().double()
    result = engine(net)
    inputs = batch()
    decoded = net(inputs.src, inputs.src_lengths, inputs.tgt_in)
    net.output.loss(decoded.hidden, inputs.tgt_out).backward()
    expected = gradients(net)
    result.update([inputs], 1, 1, 0.0)
    for name, grad in gradients(net).items():
        torch.testing.assert_close(grad, expected[name], atol=1e-12, rtol=1e-12)


def test_padding_passes_add_no_gradient() -> None:
    """A process with fewer batches than the others repeats its first batch without counting it."""
    one, other = engine(model().double()), engine(model().double())
    symbols, loss = one.update([batch(0, 1)], 1, 1, 0.01)
    again, padded = other.update([batch(0, 1)], 1, 3, 0.01)
    assert symbols == again and padded.item() == loss.item()
    for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert a.equal(b)
    idle = engine(model().double())
    assert idle.update([batch(0)], 0, 1, 0.01)[0] == 0
    assert all((grad == 0).all() for grad in gradients(idle.model).values())


def test_unknown_symbols_have_no_loss() -> None:
    """No model gives an unknown symbol a probability, so its loss would be infinite."""
    net = model().double()
    result = engine(net)
    unknown = make_batch(SRC, [[4, UNK], *TGT[1:]], range(len(SRC)))
    symbols, loss = result.update([unknown], 1, 1, 0.01, collect_stats=True)
    assert symbols == unknown.tokens - 1 and loss.isfinite()
    assert all(grad.isfinite().all() for grad in gradients(net).values())
    assert result.objective.batch_stats is not None and result.objective.batch_stats.symbols == symbols
    assert has_loss(torch.tensor([2, UNK, IGNORE_INDEX, 4])).tolist() == [True, False, False, True]


def test_the_gradient_is_clipped_to_a_norm() -> None:
    clipped, free = engine(model(), changed(SETTINGS, clip=1e-3)), engine(model())
    for each in (clipped, free):
        each.update([batch()], 1, 1, 0.01)
    norms = [torch.stack([g.norm() for g in gradients(each.model).values()]).norm() for each in (clipped, free)]
    assert norms[0].item() == pytest.approx(1e-3, rel=1e-3) and norms[1] > 0.01


def test_learned_alphas_have_a_separate_learning_rate() -> None:
    def moved(alpha_lr_scale: float) -> tuple[list[float], list[Tensor]]:
        net = model("transformer").double()
        result = engine(net, changed(SETTINGS, alpha_lr_scale=alpha_lr_scale))
        alphas = [m.bias for m in net.modules() if isinstance(m, PerHeadAlpha)]
        before = [alpha.detach().clone() for alpha in alphas]
        result.update([batch()], 1, 1, 0.01)
        own = {id(alpha) for alpha in alphas}
        rest = [p.detach() for p in net.parameters() if id(p) not in own]
        return [float((a - b).detach().abs().max()) for a, b in zip(alphas, before, strict=True)], rest

    (usual, rest), (fast, rest_fast), (never, rest_never) = moved(1.0), moved(5.0), moved(0.0)
    assert len(usual) == 3 and never == [0.0] * 3
    assert usual == pytest.approx([0.01] * 3, rel=1e-4)  # Adam's first step equals the learning rate
    assert fast == pytest.approx([0.05] * 3, rel=1e-4)
    for one, two, three in zip(rest, rest_fast, rest_never, strict=True):
        assert one.equal(two) and one.equal(three)


@pytest.mark.parametrize("kind", ["rnn", "transformer"])
def test_bfloat16_gradients_are_near_those_of_float32(kind: str) -> None:
    half, full = (engine(model(kind), changed(SETTINGS, precision=p)) for p in ("bfloat16", "float32"))
    losses = [each.update([batch()], 1, 1, 0.03)[1].item() for each in (half, full)]
    assert losses[0] == pytest.approx(losses[1], rel=0.02)
    ours, exact = (torch.cat([x.flatten() for x in gradients(each.model).values()]) for each in (half, full))
    assert 0 < (ours - exact).norm() < 0.02 * exact.norm()
    assert all(p.dtype == torch.float32 for p in half.model.parameters())


def test_batch_stats_describe_the_first_batch() -> None:
    net = model("transformer")
    result = engine(net)
    assert result.objective.batch_stats is None
    result.update([batch(0, 1), batch(2)], 2, 2, 0.0)
    assert result.objective.batch_stats is None
    result.update([batch(0, 1), batch(2)], 2, 2, 0.0, collect_stats=True)
    inputs, stats = batch(0, 1), result.objective.batch_stats
    with torch.no_grad():
        decoded = net(inputs.src, inputs.src_lengths, inputs.tgt_in)
        known = inputs.tgt_out != IGNORE_INDEX
        scores = net.output.scores(decoded.hidden)[known]
        probs = net.output.probs(scores)
        num_attended = net.num_attended(decoded)[known].sum()
    assert stats is not None and stats.symbols == known.sum() == 7
    assert stats.accuracy == (probs.argmax(-1) == inputs.tgt_out[known]).sum()
    assert stats.supported == (probs > 0).sum() and stats.num_attended == num_attended


@pytest.mark.parametrize("kind", ["rnn", "transformer"])
def test_state_loads_into_another_engine(kind: str) -> None:
    options = {"share": "all", "tie_alphas": "kind"} if kind == "transformer" else {"share": "target"}
    first, second = (engine(model(kind, **options), changed(SETTINGS, alpha_lr_scale=2.0)) for _ in range(2))
    for _ in range(2):
        first.update([batch()], 1, 1, 0.01)
    parameters, optimizer = first.state()
    assert len(parameters) == len(list(first.model.parameters()))  # each parameter once
    second.load(*copy.deepcopy((parameters, optimizer)))  # a copy, as if read from a file
    for each in (first, second):
        each.update([batch(1, 2)], 1, 1, 0.01)
    for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert a.equal(b)
    assert first.unsharded_model() is first.model


@pytest.mark.slow
def test_the_objective_can_be_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The captured graph runs as it is, so the test does not depend on a compiler."""
    options = {"attention": "softmax", "output": "softmax", "input_feeding": False}
    calls: list[int] = []

    def backend(graph: Any, _: Any) -> Any:
        calls.append(0)
        return graph.forward

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    plain = engine(model(**options))
    compiled = engine(model(**options), changed(SETTINGS, compile=True))
    for rows, collects in (((0, 1), False), ((0, 1), True)):
        expected = plain.update([batch(*rows)], 1, 1, 0.01)
        result = compiled.update([batch(*rows)], 1, 1, 0.01, collects)
        assert result[0] == expected[0] and result[1].item() == pytest.approx(expected[1].item(), rel=1e-5)
    assert calls and compiled.objective.batch_stats is not None  # statistics come from a pass that is not compiled
    assert compiled.state()[0].keys() == plain.state()[0].keys()


def test_the_objective_sums_over_symbols() -> None:
    net = model().double()
    inputs = batch()
    fields = (inputs.src, inputs.src_lengths, inputs.tgt_in, inputs.tgt_out)
    hidden = net(*fields[:3]).hidden
    for smoothing in (0.0, 0.3):
        expected = net.output.loss(hidden, inputs.tgt_out, reduction="sum", label_smoothing=smoothing)
        torch.testing.assert_close(Objective(net, smoothing)(*fields), expected)


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_weight_decay_applies_only_to_matrices(optimizer: str) -> None:
    """One update agrees with PyTorch's optimizer, applied to each parameter separately."""
    decay, rate = 0.3, 0.05
    settings = changed(SETTINGS, optimizer=optimizer, weight_decay=decay, betas=(0.8, 0.9), alpha_lr_scale=3.0)
    net = model("transformer", share="target").double()
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    engine(net, settings).update([batch()], 1, 1, rate)
    alphas = {f"{name}.bias" for name, module in net.named_modules() if isinstance(module, PerHeadAlpha)}
    assert alphas
    for name, p in net.named_parameters():
        expected = nn.Parameter(before[name].clone())
        expected.grad = p.grad
        decays = decay if p.dim() >= 2 and name not in alphas else 0.0
        assert (decays == 0) == ("bias" in name or "norm" in name), name
        lr = rate * 3 if name in alphas else rate
        kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[optimizer]
        kind([expected], lr=lr, betas=(0.8, 0.9), weight_decay=decays).step()
        torch.testing.assert_close(p, expected, atol=1e-12, rtol=1e-10, msg=name)
