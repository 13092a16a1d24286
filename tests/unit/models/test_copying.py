"""Tests of models that copy source symbols, against a mixture that is computed symbol by symbol."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tsallis.functional import alpha_relu, alpha_relu_loss, entmax, entmax_loss
from tsallis.models import RNNSeq2Seq, TransformerSeq2Seq
from tsallis.models.arguments import untrained_copy
from tsallis.models.copying import CopyOutput, with_unknown
from tsallis.nn import OutputLayer
from tsallis.search import Ensemble, beam_search, score, score_tokens

MAPS = [("softmax", 1.0), ("entmax", 1.3), ("entmax", 1.5), ("sparsemax", 2.0), ("entmax", 2.5), ("alpha_relu", 1.5)]
TARGETS = [-1, -1, -1, -1, 4, 6, -1, 8]  # source symbol 6 is a tag; no source symbol maps to 5 or 7
FORBIDDEN = (0, 1, 3)
D_MODEL, D_VOCAB = 4, 9

every_map = pytest.mark.parametrize(("transform", "alpha"), MAPS)
every_kind = pytest.mark.parametrize("kind", ["rnn", "transformer"])


def layer(transform: str, alpha: float, seed: int = 0) -> CopyOutput:
    torch.manual_seed(seed)
    made = CopyOutput(D_MODEL, D_VOCAB, TARGETS, transform, alpha, -0.2, forbidden=FORBIDDEN).double()
    with torch.no_grad():
        made.projection.weight.mul_(8)
    return made


def inputs(seed: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Return hidden states [5, 3, d_model], sparse weights [5, 3, src], and source symbols [5, src]."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(5, 3, D_MODEL, generator=generator, dtype=torch.float64)
    attention = entmax(3 * torch.randn(5, 3, 4, generator=generator, dtype=torch.float64), 1.5)
    return hidden, attention, torch.tensor([[4, 5, 6, 7], [4, 4, 7, 7], [6, 6, 6, 6], [5, 5, 5, 5], [7, 6, 5, 4]])


def brute_force(made: CopyOutput, hidden: Tensor, attention: Tensor, src: Tensor, unknown: tuple[int, ...] = ()) -> Any:
    """Compute probabilities [..., symbols] by the formula, position by position."""
    scores = (hidden @ made.weight.T + made.bias).index_fill(-1, torch.tensor(FORBIDDEN), -torch.inf)
    made_by_map = alpha_relu(scores, made.alpha, made.tau) if not made.normalized else entmax(scores, made.alpha)
    gate = torch.sigmoid(made.gate(hidden))[..., 0]
    width = max([D_VOCAB, *(number + 1 for number in unknown)])
    probs = torch.zeros(*hidden.shape[:-1], width, dtype=hidden.dtype)
    probs[..., :D_VOCAB] += (1 - gate).unsqueeze(-1) * made_by_map
    for row, symbols in enumerate(src.tolist()):
        for j, symbol in enumerate(symbols):
            weight = gate[row] * attention[row, :, j]
            target = [*TARGETS, *unknown][symbol]
            if target < 0:
                probs[row, :, :D_VOCAB] += weight.unsqueeze(-1) * made_by_map[row]
            else:
                probs[row, :, target] += weight
    return probs


@every_map
def test_probabilities_match_formula(transform: str, alpha: float) -> None:
    made, (hidden, attention, src) = layer(transform, alpha), inputs()
    scores = made.scores(made.attend(hidden, attention, made.copies(src)))
    expected = brute_force(made, hidden, attention, src)
    probs = made.probs(scores)
    torch.testing.assert_close(probs, expected, atol=1e-13, rtol=0)
    assert (probs == 0).equal(expected == 0) and (made.log_probs(scores) == -torch.inf).equal(expected == 0)
    assert (probs[..., FORBIDDEN] == 0).all()
    if transform != "alpha_relu":
        torch.testing.assert_close(probs.sum(-1), torch.ones(5, 3, dtype=torch.float64), atol=1e-14, rtol=0)


def test_an_unknown_source_symbol_is_copied_as_itself() -> None:
    """Check two symbols outside both vocabularies and one symbol that is only in the target vocabulary."""
    unknown = (9, 5, 10)
    model = with_unknown(rnn("sparsemax", 2.0, seed=3), unknown)
    hidden, attention, _ = inputs()
    hidden = torch.cat([hidden, hidden], -1)
    src = torch.tensor([[8, 9, 10, 8], [8, 8, 8, 8], [10, 4, 6, 9], [4, 5, 7, 7], [9, 9, 9, 9]])
    scores = model.output.scores(model.output.attend(hidden, attention, model.output.copies(src)))
    assert scores.shape == (5, 3, 11)
    expected = brute_force(model.output, hidden, attention, src, unknown)
    torch.testing.assert_close(model.output.probs(scores), expected, atol=1e-13, rtol=0)
    assert (expected[1, :, 9] > 0).all() and (expected[1, :, 10] == 0).all()


def test_best_symbols_match_mixture() -> None:
    made, (hidden, attention, src) = layer("sparsemax", 2.0), inputs()
    scores = made.scores(made.attend(hidden, attention, made.copies(src)))[:, 0]
    best = made.best_symbols(scores, 3, end=2)
    others = brute_force(made, hidden, attention, src)[:, 0].index_fill(-1, torch.tensor([2]), 0)
    torch.testing.assert_close(best.log_probs.exp(), others.topk(3).values, atol=1e-12, rtol=0)


def oracle_loss(made: CopyOutput, probs: Tensor, hidden: Tensor, target: int) -> Tensor:
    """Compute the loss [] of one target from the probabilities [symbols] of one hidden state [d_model]."""
    scores, power = OutputLayer.scores(made, hidden), made.alpha - 1
    gold = torch.tensor(target)
    if made.normalized:
        own = entmax_loss(scores, gold, made.alpha)
    else:
        own = alpha_relu_loss(scores, gold, made.alpha, made.tau)
    if made.alpha == 1:
        return (own - probs[target].log()) / 2
    lost = 1 - (probs[target] ** power if probs[target] > 0 else 0)
    return (own + lost / power - (1 - (probs**made.alpha).sum()) / made.alpha) / 2


GOLD = torch.tensor([[4, 5, 2], [6, 7, 8], [2, -100, 4], [5, 6, 5], [7, 8, 2]])


@every_map
def test_loss_and_gradients_match_formula(transform: str, alpha: float) -> None:
    made, (hidden, attention, src) = layer(transform, alpha), inputs()
    hidden.requires_grad_(True)
    losses = made.loss(made.attend(hidden, attention, made.copies(src)), GOLD, reduction="none")
    probs = brute_force(made, hidden, attention, src)
    expected = torch.zeros(5, 3, dtype=torch.float64)
    for row, step in (GOLD != -100).nonzero().tolist():
        expected[row, step] = oracle_loss(made, probs[row, step], hidden[row, step], int(GOLD[row, step]))
    torch.testing.assert_close(losses, expected, atol=1e-12, rtol=1e-12)
    assert (losses >= 0).all() and losses[2, 1] == 0
    variables = [hidden, *made.parameters()]
    weights = torch.randn(5, 3, dtype=torch.float64)
    result = torch.autograd.grad((losses * weights).sum(), variables)
    for one, other in zip(result, torch.autograd.grad((expected * weights).sum(), variables), strict=True):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-9)
    gold_probs = probs.gather(-1, GOLD.clamp(min=0).unsqueeze(-1)).squeeze(-1)[GOLD != -100]
    assert transform == "softmax" or (gold_probs == 0).any()  # the test includes impossible targets


@every_map
def test_gradients_match_finite_differences(transform: str, alpha: float) -> None:
    made, (hidden, scores, src) = layer(transform, alpha), inputs()
    weights = torch.randn(5, 3, dtype=torch.float64)

    def total(hidden: Tensor, scores: Tensor, *parameters: Tensor) -> Tensor:
        attended = made.attend(hidden, entmax(scores, 1.5), made.copies(src))
        named = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(_Loss(made), named, (attended, weights))

    names = [f"layer.{name}" for name, _ in made.named_parameters()]
    parameters = [parameter.detach().clone().requires_grad_(True) for parameter in made.parameters()]
    scores = (3 * scores).requires_grad_(True)
    assert torch.autograd.gradcheck(total, (hidden.requires_grad_(True), scores, *parameters))


class _Loss(torch.nn.Module):
    def __init__(self, made: CopyOutput) -> None:
        super().__init__()
        self.layer = made

    def forward(self, hidden: Tensor, weights: Tensor) -> Tensor:
        total: Tensor = (self.layer.loss(hidden, GOLD, reduction="none") * weights).sum()
        return total


@every_map
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_without_copying_matches_output_layer(transform: str, alpha: float, smoothing: float) -> None:
    made, (hidden, attention, src) = layer(transform, alpha), inputs()
    with torch.no_grad():
        made.projection.weight.div_(32)  # so that most symbols are possible
    plain = OutputLayer(D_MODEL, D_VOCAB, transform, alpha, -0.2, forbidden=FORBIDDEN).double()
    plain.projection.load_state_dict(made.projection.state_dict())
    with torch.no_grad():
        made.gate.weight.zero_()
        made.gate.bias.fill_(-200)
        probs = plain.probs(plain.scores(hidden)).gather(-1, GOLD.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    gold = GOLD.masked_fill(probs == 0, -100)
    assert (gold != -100).sum() > 3
    hidden.requires_grad_(True)
    for reduction in ("mean", "sum"):
        options: dict[str, Any] = {"reduction": reduction, "label_smoothing": smoothing}
        loss = made.loss(made.attend(hidden, attention, made.copies(src)), gold, **options)
        expected = plain.loss(hidden, gold, **options)
        torch.testing.assert_close(loss, expected, atol=1e-9, rtol=1e-9)
        gradients = (torch.autograd.grad(x, hidden)[0] for x in (loss, expected))
        torch.testing.assert_close(*gradients, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize(("transform", "alpha"), MAPS[1:])
def test_unknown_target_loss_is_the_mixture_term(transform: str, alpha: float) -> None:
    model = with_unknown(rnn(transform, alpha, seed=3), (9,))
    hidden, attention, _ = inputs()
    src, gold = torch.tensor([[8, 4, 5, 8]]).repeat(5, 1), torch.full((5, 3), 9)
    attended = model.output.attend(torch.cat([hidden, hidden], -1), attention, model.output.copies(src))
    probs = model.output.probs(model.output.scores(attended))
    expected = (1 - probs[..., 9] ** (alpha - 1)) / (alpha - 1) - (1 - (probs**alpha).sum(-1)) / alpha
    torch.testing.assert_close(model.output.loss(attended, gold, reduction="none"), expected / 2)


def rnn(transform: str, alpha: float, seed: int, **options: Any) -> RNNSeq2Seq:
    torch.manual_seed(seed)
    model = RNNSeq2Seq(8, D_VOCAB, 8, 1, 0.0, output=transform, output_alpha=alpha, tau=-0.2, copy=TARGETS, **options)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.mul_(12 if name.startswith("output") else 8)
    return model.double().eval()


def transformer(transform: str, alpha: float, seed: int, **options: Any) -> TransformerSeq2Seq:
    torch.manual_seed(seed)
    model = TransformerSeq2Seq(
        8, D_VOCAB, 32, 2, 1, 16, 0.0, output=transform, output_alpha=alpha, tau=-0.2, copy=TARGETS, **options
    )
    with torch.no_grad():
        model.output.projection.weight.mul_(4)
    return model.eval()


BUILD = {"rnn": rnn, "transformer": transformer}


@every_kind
def test_model_probabilities_match_formula(kind: str) -> None:
    model = BUILD[kind]("sparsemax", 2.0, 0).double()
    src, lengths = torch.tensor([[4, 5, 7, 6], [7, 5, 0, 0]]), torch.tensor([4, 2])
    tokens = torch.tensor([[1, 4, 6], [1, 8, 5]])
    decoded = model(src, lengths, tokens, need_attention=True)
    size = model.output.projection.in_features
    expected = brute_force(model.output, decoded.hidden[..., :size], decoded.attention, src)
    torch.testing.assert_close(model.output.probs(model.output.scores(decoded.hidden)), expected, atol=1e-12, rtol=0)


@every_kind
def test_out_of_vocabulary_symbols_are_read_as_unknown(kind: str) -> None:
    model = with_unknown(BUILD[kind]("entmax", 1.5, 1), (9, 10))
    lengths, tokens = torch.tensor([3, 3]), torch.tensor([[1, 10, 4], [1, 3, 4]])
    first = model(torch.tensor([[4, 9, 5]] * 2), lengths, tokens, need_attention=True)
    other = model(torch.tensor([[4, 8, 5]] * 2), lengths, tokens, need_attention=True)
    size = model.output.projection.in_features
    assert first.hidden[0, :, :size].equal(first.hidden[1, :, :size])
    assert first.hidden[..., :size].equal(other.hidden[..., :size]) and first.attention.equal(other.attention)
    probs = [model.output.probs(model.output.scores(x.hidden)) for x in (first, other)]
    assert probs[0][..., [9, 10]].equal(probs[1][..., [10, 9]])


@every_kind
def test_with_unknown_shares_parameters(kind: str) -> None:
    model = BUILD[kind]("entmax", 1.5, 1)
    wide = with_unknown(model, (9,))
    assert {id(p) for p in wide.parameters()} == {id(p) for p in model.parameters()}
    assert model.output.d_vocab == D_VOCAB and wide.output.d_vocab == D_VOCAB + 1
    src, lengths = torch.tensor([[4, 8]]), torch.tensor([2])
    assert len(beam_search(wide, src, lengths, max_length=2)) == 1
    with pytest.raises(ValueError, match=r"src must be from 0 to 7, got 8"):
        beam_search(model, src, lengths)
    with pytest.raises(ValueError, match=r"src must be from 0 to 8, got 9"):
        beam_search(wide, torch.tensor([[4, 9]]), lengths)


@every_kind
def test_unknown_targets_are_possible_only_from_the_source(kind: str) -> None:
    """Check that an unknown symbol of the source is possible, and that any other unknown symbol, 3, is not."""
    model = with_unknown(BUILD[kind]("softmax", 1.0, 2, attention="softmax"), (9, 10))
    src, lengths = torch.tensor([[4, 8, 5]]).repeat(3, 1), torch.tensor([3, 3, 3])
    symbols = torch.tensor([9, 10, 3])  # unknown symbols of this source, of another source, and of no source
    tgt_in, tgt_out = torch.tensor([[1, 4]] * 3), torch.tensor([[4, 2]] * 3)
    tgt_out[:, 1] = symbols
    log_probs = score(model, src, lengths, tgt_in, tgt_out)
    assert log_probs[0] > -math.inf and (log_probs[1:] == -math.inf).all()
    scored = score_tokens(model, src, lengths, tgt_in, tgt_out)
    assert scored[0].log_prob == log_probs[0] and scored[0].exclusion is None
    assert all(s.exclusion is not None and s.exclusion.gap is None for s in scored[1:])
    with pytest.raises(ValueError, match="tgt_out must be from 0 to 10, got 11"):
        score(model, src, lengths, tgt_in, tgt_out.masked_fill(tgt_out == 3, 11))


def test_copying_transformer_is_not_compiled() -> None:
    model = transformer("entmax", 1.5, 0)
    src, lengths = torch.tensor([[4, 5, 7], [7, 4, 0]]), torch.tensor([3, 2])
    with torch.no_grad():
        state = model.start(model.encode(src, lengths))
        assert type(state).__name__ == "TransformerState"
        (first, second) = (search.hypotheses for search in beam_search(model, src, lengths, max_length=4))
    expected = beam_search(model.double(), src, lengths, max_length=4)
    for result, other in zip((first, second), expected, strict=True):
        assert [h.tokens for h in result] == [h.tokens for h in other.hypotheses]
        assert [h.log_prob for h in result] == pytest.approx([h.log_prob for h in other.hypotheses], abs=1e-3)


def test_ensemble_of_copying_models_averages_probabilities() -> None:
    models = [with_unknown(rnn("sparsemax", 2.0, seed), (9,)) for seed in (1, 2)]
    ensemble = Ensemble(models)
    src, lengths, tokens = torch.tensor([[4, 8, 6]]), torch.tensor([3]), torch.tensor([[1, 4, 9]])
    decoded = ensemble(src, lengths, tokens)
    each = [m.output.probs(m.output.scores(m(src, lengths, tokens).hidden)) for m in models]
    torch.testing.assert_close(ensemble.output.scores(decoded.hidden).exp(), (each[0] + each[1]) / 2)


INVALID = [
    ({"copy": [4, 5]}, "8 numbers, one per source symbol, got 2"),
    ({"copy": [-1] * 7 + [9]}, "target symbols from 4 to 8 or -1, got 9"),
    ({"copy": [-1] * 7 + [2]}, "target symbols from 4 to 8 or -1, got 2"),
    ({"copy": TARGETS, "density": "gaussian"}, "density must be None with copy, got 'gaussian'"),
]


@pytest.mark.parametrize(("arguments", "message"), INVALID)
def test_invalid_copy_arguments_raise(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RNNSeq2Seq(8, D_VOCAB, 8, **arguments)


def test_untrained_copy_keeps_unknown_symbols() -> None:
    assert untrained_copy(with_unknown(rnn("softmax", 1.0, 0), (9, 5))).output.unknown == (9, 5)


def test_with_unknown_rejects_invalid_models_and_symbols() -> None:
    with pytest.raises(ValueError, match="does not copy"):
        with_unknown(RNNSeq2Seq(8, D_VOCAB, 8), (9,))
    with pytest.raises(ValueError, match="symbols of at least 4, got 3"):
        with_unknown(rnn("softmax", 1.0, 0), (9, 3))


def test_a_saturated_gate_keeps_finite_gradients() -> None:
    output = CopyOutput(D_MODEL, D_VOCAB, TARGETS, "softmax", forbidden=FORBIDDEN)
    with torch.no_grad():
        output.gate.bias.fill_(40.0)
    hidden = torch.randn(1, 1, D_MODEL, requires_grad=True)
    source = output.copies(torch.tensor([[4, 7]]))
    states = output.attend(hidden, torch.tensor([[[1.0, 0.0]]]), source)
    output.loss(states, torch.tensor([[4]])).backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in (hidden, *output.gate.parameters()))
