"""Draws inside `vmap`, draws with a generator, tensors from inference mode, ignored rows, unusual tensors."""

import warnings
from collections import Counter
from dataclasses import dataclass

import pytest
import torch
from torch.func import vmap

import tsallis
from tsallis import compat
from tsallis.distributions import EntmaxCategorical
from tsallis.models import Step
from tsallis.nn import OutputLayer
from tsallis.search import Ensemble, exhaustive, generate, sample
from tsallis.search.sampling import draw_tokens

Z = torch.randn(6, 3, 5, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("scores", [Z, Z[:, 0]], ids=["rows", "row"])
@pytest.mark.parametrize("randomness", ["same", "different"])
def test_vmap_draws_follow_the_probabilities(randomness, scores):
    draws = vmap(lambda z: EntmaxCategorical(z).sample((4000,)), randomness=randomness)(scores)
    probs = tsallis.entmax(scores.double(), 1.5)
    found = torch.nn.functional.one_hot(draws, 5).double().mean(1)
    single = vmap(lambda z: EntmaxCategorical(z).sample(), randomness=randomness)(scores)
    assert (probs.gather(-1, single.unsqueeze(-1)) > 0).all()
    assert not found[probs == 0].any()
    torch.testing.assert_close(found, probs, atol=0.05, rtol=0)  # 6 standard deviations


def test_vmap_of_a_data_dependent_width_raises():
    with pytest.raises(RuntimeError, match="width depends"):
        vmap(lambda z: EntmaxCategorical(z).indices)(Z)


def test_a_seeded_generator_repeats_draws():
    one, other = (EntmaxCategorical(Z).sample((3,), generator=torch.Generator().manual_seed(7)) for _ in range(2))
    assert torch.equal(one, other)


def test_a_dead_end_of_a_member_reduces_the_draws():
    """A member without a possible token has half of the probability."""
    uniform = torch.arange(0, 1, 0.01, dtype=torch.float64)
    log_probs = torch.tensor([[0.25, 0.25, 0.0]], dtype=torch.float64).log().expand(100, -1)
    tokens, log_prob = draw_tokens(log_probs, uniform, torch.full((100,), 0.5, dtype=torch.float64))
    drawn = log_prob > -torch.inf
    assert drawn.sum() == 50
    assert torch.bincount(tokens[drawn], minlength=3).tolist() == [25, 25, 0]


class Chain:
    """A model whose scores depend only on the last token; a row of -inf is a dead end."""

    def __init__(self, rows):
        self.rows, self.output = torch.tensor(rows), OutputLayer(2, 5, "softmax")

    def parameters(self):
        return iter(())

    def encode(self, src, lengths):
        return src

    def start(self, memory):
        return States(torch.zeros(len(memory)))

    def step(self, state, token):
        return Step(self.rows[token], torch.ones(len(token), 1), state)


@dataclass
class States:
    rows: torch.Tensor

    def select(self, index):
        return States(self.rows[index])

    @staticmethod
    def join(states):
        return States(torch.cat([state.rows for state in states]))


def test_ensemble_draws_follow_the_probabilities():
    """After symbol 3 one of two members is at a dead end: half of the draws there are None, not another output."""
    never, possible, dead = [-torch.inf] * 5, [-torch.inf, -torch.inf, 0.0, 0.0, 0.5], [-torch.inf] * 5
    first = [never, possible, never, dead, [-torch.inf, -torch.inf, 0.0, -torch.inf, -torch.inf]]
    second = [never, possible, never, [-torch.inf, -torch.inf, 0.3, -torch.inf, 0.0], first[4]]
    model = Ensemble([Chain(first), Chain(second)])
    src, lengths, count = torch.tensor([[4]]), torch.tensor([1]), 4000
    (result,) = exhaustive(model, src, lengths, max_length=6)
    assert result.certificate.kind == "complete" and 0.7 < result.mass < 0.95
    (draws,) = sample(model, src, lengths, count, seeds=[5], max_length=6)
    found = Counter(None if draw is None else draw.tokens for draw in draws)
    expected = {hypothesis.tokens: hypothesis.prob for hypothesis in result.hypotheses} | {None: 1 - result.mass}
    assert found.keys() <= expected.keys()
    chi = sum((found[tokens] - count * prob) ** 2 / (count * prob) for tokens, prob in expected.items())
    assert chi < 30, (found, expected)  # four degrees of freedom: 30 has a probability of 5e-6
    (texts,) = generate(model, src, lengths, count, max_length=6, seeds=[5])
    ended = sum(text.ended and text.log_prob > -torch.inf for text in texts)
    assert abs(ended / count - result.mass) < 0.04


@pytest.mark.parametrize("loss", ["entmax", "alpha_relu", "layer"])
def test_nan_in_ignored_rows_does_not_change_gradients(loss):
    target = torch.tensor([0, -100, 2])
    clean = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    gradients = []
    for filling in (0.0, torch.nan):
        hidden = torch.where(target.unsqueeze(-1) < 0, filling, clean)
        layer = tsallis.nn.OutputLayer(4, 5)
        weight = torch.linspace(-1, 1, 20).view(5, 4).requires_grad_()
        if loss == "layer":
            layer.projection.weight = torch.nn.Parameter(weight.detach())
            weight = layer.weight
            torch.nn.init.zeros_(layer.bias)
            layer.loss(hidden, target, label_smoothing=0.1).backward()
        elif loss == "entmax":
            tsallis.linear_entmax_loss(hidden, weight, target).backward()
        else:
            tsallis.linear_alpha_relu_loss(hidden, weight, target, 1.5, 0.1).backward()
        gradients.append(weight.grad)
    assert torch.equal(*gradients)


def test_tensors_from_inference_mode_work_in_backward():
    with torch.inference_mode():
        keep, heads, rows = torch.ones(5, 5, dtype=torch.bool).tril(), torch.tensor([1.2, 1.5]), torch.full((3, 1), 1.3)
    q, z = torch.randn(1, 2, 5, 4, requires_grad=True), torch.randn(3, 5, requires_grad=True)
    tsallis.entmax_attention(q, q, q, heads, attn_mask=keep).sum().backward()
    tsallis.entmax_loss(z, torch.tensor([0, 1, 2]), rows).backward()
    tsallis.entmax(z, rows)[:, 0].sum().backward()
    assert q.grad.isfinite().all() and z.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8])
@pytest.mark.parametrize("shape", [(), (6, 3, 1)])
def test_integer_alpha_tensors_match_float_alphas(shape, dtype):
    alpha, target = torch.full(shape, 2, dtype=dtype), Z.argmin(-1)
    rows, weight = alpha.view(-1, 1) if shape else alpha, torch.randn(7, 5)
    hidden, classes = Z.view(-1, 5), target.view(-1)
    torch.testing.assert_close(tsallis.entmax(Z, alpha), tsallis.sparsemax(Z))
    torch.testing.assert_close(tsallis.nn.Entmax(alpha)(Z), tsallis.sparsemax(Z))
    torch.testing.assert_close(compat.entmax_bisect(Z, alpha), tsallis.sparsemax(Z))
    torch.testing.assert_close(tsallis.budgeted_entmax(Z, alpha), tsallis.budgeted_entmax(Z, 2.0))
    torch.testing.assert_close(*(tsallis.entmax_loss(Z, target, a) for a in (alpha, 2.0)))
    torch.testing.assert_close(*(tsallis.linear_entmax_loss(hidden, weight, classes, a) for a in (rows, 2.0)))
    probs = tsallis.sparsemax(Z)
    torch.testing.assert_close(tsallis.tsallis_entropy(probs, alpha), tsallis.tsallis_entropy(probs, 2.0))
    heads = torch.full((3,), 2, dtype=dtype)
    q = Z.view(1, 3, 6, 5)
    torch.testing.assert_close(tsallis.entmax_attention(q, q, q, heads), tsallis.entmax_attention(q, q, q, 2.0))
    distribution = EntmaxCategorical(Z, alpha.squeeze(-1) if shape else alpha)
    torch.testing.assert_close(distribution.probs, probs)
    with pytest.raises(TypeError, match="bool"):
        tsallis.entmax(Z, torch.tensor(True))


SPECIAL = [
    lambda: torch.nested.nested_tensor([Z[0], Z[1]], layout=torch.jagged),
    lambda: torch.nested.nested_tensor([Z[0], Z[1]]),
    lambda: torch.eye(3).to_sparse(),
    lambda: torch.eye(3).to_sparse_csr(),
]


@pytest.mark.parametrize("make", SPECIAL)
@pytest.mark.filterwarnings("ignore")
def test_nested_and_sparse_tensors_raise(make):
    with pytest.raises(TypeError, match="scores must be a dense tensor"):
        tsallis.entmax(make(), 1.5)


def test_recorded_draws_follow_new_scores():
    peaked, uniform = torch.tensor([[5.0, 0.0, 0.0, 0.0]]), torch.zeros(3, 4)

    class Draw(torch.nn.Module):
        def forward(self, scores):
            return EntmaxCategorical(scores, validate_args=False).sample((100,))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(Draw(), peaked, check_trace=False)
    batch = {"scores": {0: torch.export.Dim.DYNAMIC}}
    exported = torch.export.export(Draw(), (peaked.expand(2, 4).clone(),), dynamic_shapes=batch).module()
    for recorded in (traced, exported, torch.compile(Draw(), fullgraph=True, backend="eager")):
        draws = recorded(uniform)
        assert draws.shape == (100, 3) and draws.unique().tolist() == [0, 1, 2, 3]
        assert not draws[:, 0].equal(draws[:, 1])  # the rows are drawn independently
        assert (recorded(peaked.expand(3, 4).clone()) == 0).all()


def test_meta_scores_give_meta_draws():
    assert EntmaxCategorical(torch.empty(3, 4, device="meta"), validate_args=False).sample((2,)).shape == (2, 3)


@pytest.mark.parametrize("name", ["indices", "values"])
def test_recorded_widths_that_depend_on_scores_raise(name):
    with pytest.raises(RuntimeError, match="width depends on the scores"):
        torch.jit.trace(lambda z: getattr(EntmaxCategorical(z, validate_args=False), name), torch.randn(1, 4))
