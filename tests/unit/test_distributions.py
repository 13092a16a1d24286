"""EntmaxCategorical: the interface of torch.distributions, and the additions for sparse distributions."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.autograd import gradcheck
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

import tsallis
from tsallis.distributions import EntmaxCategorical, Support, kl_divergence


@pytest.fixture
def scores() -> torch.Tensor:
    return torch.tensor([[2.0, 1.0, 0.1, 0.0], [0.0, 0.0, 0.0, 0.0], [9.0, 1.0, 8.9, 1.0]], dtype=torch.float64)


def test_probabilities_threshold_and_support_agree(scores: torch.Tensor) -> None:
    for alpha in (1.2, 1.5, 2.0):
        d = EntmaxCategorical(scores, alpha)
        torch.testing.assert_close(d.probs, tsallis.entmax(scores, alpha))
        assert torch.equal(d.support.mask, d.probs > 0)
        assert torch.equal(d.support_size, (d.probs > 0).sum(-1))
        rebuilt = ((alpha - 1) * scores - d.threshold.unsqueeze(-1)).clamp(min=0) ** (1 / (alpha - 1))
        torch.testing.assert_close(rebuilt, d.probs)
    assert isinstance(d.support, Support)
    assert d.support.check(torch.tensor([2, 0, 1])).tolist() == [False, True, False]
    assert not d.support.check(torch.tensor([4, -1, 7])).any()


def test_packed_nonzeros_match_the_probabilities(scores: torch.Tensor) -> None:
    d = EntmaxCategorical(scores)
    assert d.indices.shape == d.values.shape == (3, 4)
    dense = torch.zeros(3, 5, dtype=torch.float64).scatter(-1, d.indices.where(d.indices >= 0, 4), d.values)
    torch.testing.assert_close(dense[:, :4], d.probs)
    assert (d.values[:, :-1] >= d.values[:, 1:]).all()
    assert ((d.indices < 0) == (d.values == 0)).all()


def test_log_prob_is_safe_outside_the_support(scores: torch.Tensor) -> None:
    scores.requires_grad_()
    d = EntmaxCategorical(scores)
    log_prob = d.log_prob(torch.tensor([3, 1, 0]))
    assert log_prob[0] == -torch.inf and log_prob[1:].isfinite().all()
    (grad,) = torch.autograd.grad(log_prob[1:].sum() + torch.where(log_prob[0] > -9e9, log_prob[0], 0), scores)
    assert grad.isfinite().all()
    many = d.log_prob(torch.tensor([[0, 1, 2], [3, 3, 3]]))
    torch.testing.assert_close(many.exp(), d.probs.gather(-1, torch.tensor([[0, 3], [1, 3], [2, 3]])).T)


def test_alpha_one_is_a_categorical_even_where_probabilities_underflow() -> None:
    scores = torch.tensor([[0.0, -300.0, -500.0]])
    ours, theirs = EntmaxCategorical(scores, 1.0), Categorical(logits=scores)
    value = torch.tensor([2])
    torch.testing.assert_close(ours.log_prob(value), theirs.log_prob(value))
    mixed = EntmaxCategorical(scores.expand(2, 3), torch.tensor([1.0, 2.0]))
    torch.testing.assert_close(mixed.log_prob(torch.tensor([2, 2])), torch.tensor([-500.0, -torch.inf]))
    torch.testing.assert_close(ours.entropy(), theirs.entropy())


def test_entropies_match_their_formulas(scores: torch.Tensor) -> None:
    d = EntmaxCategorical(scores, 2.0)
    p = d.probs
    torch.testing.assert_close(d.entropy(), Categorical(probs=p).entropy())
    torch.testing.assert_close(d.tsallis_entropy(), (1 - p.square().sum(-1)) / 2)


def test_samples_follow_the_probabilities(scores: torch.Tensor) -> None:
    d = EntmaxCategorical(scores)
    drawn = d.sample((20_000,))
    assert drawn.shape == (20_000, 3) and drawn.dtype == torch.long
    assert (d.log_prob(drawn) > -torch.inf).all()
    share = torch.nn.functional.one_hot(drawn, 4).double().mean(0)
    torch.testing.assert_close(share, d.probs, atol=0.015, rtol=0)
    assert d.sample().shape == (3,) and d.sample((2, 5)).shape == (2, 5, 3)
    with pytest.raises(ValueError, match="all scores of a row are -inf"):
        EntmaxCategorical(torch.full((2, 3), -torch.inf), validate_args=False).sample()


def test_expand_keeps_computed_values(scores: torch.Tensor) -> None:
    d = EntmaxCategorical(scores, torch.tensor([1.0, 1.5, 2.0]))
    known = d.probs
    wide = d.expand((5, 3))
    assert wide.batch_shape == (5, 3) and wide.probs.shape == (5, 3, 4)
    torch.testing.assert_close(wide.probs[4], known)
    torch.testing.assert_close(wide.log_prob(torch.zeros(5, 3))[2], d.log_prob(torch.zeros(3)))
    assert wide.sample((2,)).shape == (2, 5, 3)
    torch.testing.assert_close(d.expand((2, 3)).threshold[1], d.threshold)


def test_enumeration_covers_every_class(scores: torch.Tensor) -> None:
    d = EntmaxCategorical(scores)
    assert d.enumerate_support().shape == (4, 3) and d.enumerate_support(expand=False).shape == (4, 1)
    torch.testing.assert_close(d.log_prob(d.enumerate_support()).exp().T, d.probs)


def test_kl_is_infinite_outside_the_support() -> None:
    p = EntmaxCategorical(torch.tensor([1.0, 1.0, -5.0]))
    q = EntmaxCategorical(torch.tensor([5.0, 0.0, -5.0]))
    assert kl_divergence(p, q) == torch.inf
    assert kl_divergence(q, p).item() == pytest.approx(torch.log(torch.tensor(2.0)).item())
    assert kl_divergence(p, p) == 0


def test_kl_is_infinite_where_a_categorical_has_no_probability() -> None:
    p, q = EntmaxCategorical(torch.tensor([1.0, 0.5, -3.0])), Categorical(probs=torch.tensor([1.0, 0.0, 0.0]))
    assert kl_divergence(p, q) == torch.inf and kl_divergence(q, p).isfinite()
    with pytest.raises(ValueError, match="same number of classes, got 3 and 1"):
        kl_divergence(p, Categorical(probs=torch.ones(1)))


def test_a_row_of_minus_inf_has_logits_of_minus_inf() -> None:
    scores = torch.tensor([[-torch.inf] * 3, [0.0, 1.0, 2.0]], requires_grad=True)
    for alpha in (1.0, 1.5, torch.tensor([1.0, 1.5])):
        logits = EntmaxCategorical(scores, alpha, validate_args=False).logits
        assert (logits[0] == -torch.inf).all() and logits[1].amax() > -1
        (grad,) = torch.autograd.grad(logits[1].amax() + logits[0].clamp(min=-1).sum(), scores)
        assert grad.isfinite().all()


def test_log_prob_works_under_vmap() -> None:
    scores, alphas = torch.randn(5, 4), torch.tensor([1.0, 1.2, 1.5, 2.0, 1.0])
    result = torch.vmap(lambda z, a: EntmaxCategorical(z, a, validate_args=False).log_prob(torch.tensor(2)))(
        scores, alphas
    )
    torch.testing.assert_close(result, EntmaxCategorical(scores, alphas).log_prob(torch.tensor(2)))


def test_the_loss_is_finite_where_the_log_probability_is_not(scores: torch.Tensor) -> None:
    value = torch.tensor([3, 0, 1])
    for alpha in (1.5, torch.tensor([1.0, 1.5, 2.0], dtype=torch.float64)):
        d = EntmaxCategorical(scores, alpha)
        column = alpha.unsqueeze(-1) if isinstance(alpha, torch.Tensor) else alpha
        expected = tsallis.entmax_loss(scores, value, column, reduction="none")
        torch.testing.assert_close(d.loss(value), expected)
        assert d.loss(value).isfinite().all()


def test_entmax_categorical_composes_with_torch_distributions(scores: torch.Tensor) -> None:
    d = EntmaxCategorical(scores)
    assert Independent(d, 1).log_prob(torch.tensor([0, 1, 2])).shape == ()
    mixture = MixtureSameFamily(Categorical(torch.ones(3) / 3), d)
    assert mixture.log_prob(torch.tensor(0)).isfinite()
    assert d.mean.isnan().all() and d.variance.isnan().all()
    assert d.mode.tolist() == [0, 0, 0]


def test_bad_input_is_refused(scores: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="at least one class"):
        EntmaxCategorical(torch.tensor(1.0))
    with pytest.raises(TypeError, match="floating point"):
        EntmaxCategorical(torch.arange(3))
    for bad in (torch.nan, torch.inf):
        with pytest.raises(ValueError, match="scores"):
            EntmaxCategorical(torch.tensor([1.0, bad]), validate_args=True)
    with pytest.raises(ValueError, match="got 4"):
        EntmaxCategorical(scores, validate_args=True).log_prob(torch.tensor([0, 1, 4]))
    for wrong, words in ((0.5, "0.5"), (-1, "-1"), (4, "4"), (torch.nan, "nan"), (-0.5, "-0.5"), (1e9, "1e\\+09")):
        for function in ("log_prob", "loss"):
            with pytest.raises(ValueError, match=f"classes from 0 to 3, got {words}$"):
                getattr(EntmaxCategorical(scores, validate_args=True), function)(torch.tensor([0, wrong, 1]))
    for function in ("log_prob", "loss"):
        with pytest.raises(ValueError, match=r"broadcast with the batch shape \(3,\), got \(2,\)$"):
            getattr(EntmaxCategorical(scores, validate_args=True), function)(torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="value must be a tensor of classes, got 1"):
        EntmaxCategorical(scores, validate_args=True).log_prob(1)
    whole = EntmaxCategorical(scores, validate_args=True).log_prob(torch.tensor([0.0, 1.0, 2.0]))
    assert torch.equal(whole, EntmaxCategorical(scores).log_prob(torch.tensor([0, 1, 2])))
    assert EntmaxCategorical(scores, validate_args=False).log_prob(torch.tensor([0.5, 1, 2])).shape == (3,)
    for broken in (torch.nan, torch.inf):
        with pytest.raises(ValueError, match="scores of a row contain NaN or infinity"):
            EntmaxCategorical(torch.tensor([[1.0, broken], [0.0, 0.0]]), validate_args=False).sample()
    with pytest.raises(ValueError, match="all scores of a row are -inf"):
        EntmaxCategorical(torch.tensor([[-torch.inf] * 2, [0.0, 0.0]])).sample()
    with pytest.raises(ValueError, match="alpha must be positive and finite, got a tensor with -1"):
        EntmaxCategorical(torch.zeros(3, 4), torch.tensor([1.5, -1.0, 2.0]))
    with pytest.raises(ValueError, match=r"\(3, 1\) .* batch shape \(3,\); .* alpha.squeeze\(-1\)"):
        EntmaxCategorical(torch.zeros(3, 4), torch.ones(3, 1))
    with pytest.raises(TypeError, match=r"alpha .* 'learned'"):
        EntmaxCategorical(scores, "learned")
    with pytest.raises(ValueError, match="alpha must be positive and finite, got 0"):
        EntmaxCategorical(scores, 0.0)


def test_kl_to_a_dense_categorical_matches_its_formula(scores: torch.Tensor) -> None:
    sparse, dense = EntmaxCategorical(scores, 2.0), Categorical(logits=scores)
    expected = torch.special.xlogy(sparse.probs, sparse.probs / dense.probs).sum(-1)
    torch.testing.assert_close(kl_divergence(sparse, dense), expected)
    assert kl_divergence(dense, sparse).isinf().tolist() == [True, False, True]
    whole = EntmaxCategorical(scores, 1.0)
    torch.testing.assert_close(kl_divergence(dense, whole), torch.zeros(3, dtype=torch.float64), rtol=0, atol=1e-12)


def test_components_outside_the_support_do_not_affect_mixtures() -> None:
    """A component with probability zero affects neither densities nor samples, regardless of its position."""
    scores = torch.tensor([[2.0, 1.5, -3.0], [0.0, 0.1, 9.0]], dtype=torch.float64, requires_grad=True)
    means = torch.tensor([[-1.0, 1.0, 50.0], [40.0, 60.0, 0.0]], dtype=torch.float64, requires_grad=True)
    mixing = EntmaxCategorical(scores, 1.5)
    mixture = MixtureSameFamily(mixing, Normal(means, 0.5))
    assert isinstance(mixing, Categorical) and mixing.param_shape == (2, 3)
    x = torch.linspace(-3, 3, 7, dtype=torch.float64).unsqueeze(-1)  # [7, 1], for both rows
    density = (mixing.probs * Normal(means, 0.5).log_prob(x.unsqueeze(-1)).exp()).sum(-1)
    torch.testing.assert_close(mixture.log_prob(x), density.log())
    torch.testing.assert_close(mixture.mean, (mixing.probs * means).sum(-1))
    assert mixture.log_prob(torch.tensor([50.0, 40.0], dtype=torch.float64)).lt(-500).all()
    draws = mixture.sample((300,))
    assert draws.shape == (300, 2) and draws.abs().max() < 6
    assert mixture.expand((4, 2)).log_prob(x[:4]).shape == (4, 2)
    for result in torch.autograd.grad(mixture.log_prob(x).sum(), (scores, means)):
        assert result.isfinite().all() and result[0, 2] == 0 and (result[1, :2] == 0).all()


def test_a_mixture_passes_gradcheck() -> None:
    scores = torch.tensor([[0.4, 0.1, -2.0]], dtype=torch.float64, requires_grad=True)
    means = torch.tensor([[-1.0, 1.0, 3.0]], dtype=torch.float64, requires_grad=True)
    alpha = torch.tensor([1.4], dtype=torch.float64, requires_grad=True)
    x = torch.tensor([[0.3], [2.0]], dtype=torch.float64)

    def log_prob(scores: torch.Tensor, alpha: torch.Tensor, means: torch.Tensor) -> torch.Tensor:
        return MixtureSameFamily(EntmaxCategorical(scores, alpha), Normal(means, 1.0)).log_prob(x)

    assert gradcheck(log_prob, (scores, alpha, means))


def test_an_alpha_below_1_gives_full_support() -> None:
    d = EntmaxCategorical(torch.tensor([[3.0, 0.0, -20.0]], dtype=torch.float64), 0.5)
    assert d.support_size.item() == 3 and d.logits.isfinite().all()
    below = (d.alpha - 1) * d.scores > d.threshold.unsqueeze(-1)
    assert below.all()
    torch.testing.assert_close(d.entropy(), -(d.probs * d.logits).sum(-1))


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
@pytest.mark.parametrize("alpha", [1.0, 1.1, 1.5, 2.0, 3.0])
def test_from_linear_matches_a_distribution_of_all_scores(alpha: float, shape: tuple[int, ...]) -> None:
    layer = tsallis.nn.OutputLayer(16, 3000, alpha=alpha, forbidden=(0, 7)).requires_grad_(False)
    torch.nn.init.normal_(layer.projection.weight)
    hidden = torch.randn(*shape, 16)
    d = EntmaxCategorical.from_linear(layer, hidden)
    exact = EntmaxCategorical(copy.deepcopy(layer).double().scores(hidden.double()), alpha)
    assert d.scores.shape[:-1] == d.batch_shape == shape and d.param_shape == (*shape, 3000)
    close = {"rtol": 1e-4, "atol": 1e-5, "check_dtype": False}
    torch.testing.assert_close(d.probs, exact.probs, **close)
    torch.testing.assert_close(d.logits.exp(), exact.probs, **close)
    torch.testing.assert_close(d.entropy(), exact.entropy(), **close)
    torch.testing.assert_close(d.tsallis_entropy(), exact.tsallis_entropy(), **close)
    if alpha > 1:
        torch.testing.assert_close(d.threshold, torch.zeros(shape), rtol=0, atol=1e-5)
    classes = d.enumerate_support()
    assert torch.equal(classes, exact.enumerate_support())
    torch.testing.assert_close(d.log_prob(classes).exp(), exact.log_prob(classes).exp(), **close)
    large = exact.probs > 1e-3
    torch.testing.assert_close(d.logits[large], exact.logits[large], rtol=1e-3, atol=1e-3, check_dtype=False)
    assert torch.equal(d.support.mask, d.probs > 0) and torch.equal(d.support_size, d.support.size)
    dense = d.probs.new_zeros(*shape, 3001).scatter(-1, d.indices.where(d.indices >= 0, 3000), d.values)[..., :-1]
    torch.testing.assert_close(dense, d.probs)
    assert (d.values[..., :-1] >= d.values[..., 1:]).all()


@pytest.fixture
def of_layer() -> tuple[EntmaxCategorical, EntmaxCategorical]:
    """Return a distribution from few scores, and the same one from all scores."""
    torch.manual_seed(1)
    layer = tsallis.nn.OutputLayer(16, 3000).requires_grad_(False)
    torch.nn.init.normal_(layer.projection.weight)
    hidden = torch.randn(2, 16)
    return EntmaxCategorical.from_linear(layer, hidden), EntmaxCategorical(layer.scores(hidden))


def test_from_linear_supports_sample_kl_and_expand(of_layer: tuple[EntmaxCategorical, EntmaxCategorical]) -> None:
    few, all_scores = of_layer
    assert few.scores.shape[-1] == few.support_size.max() < 300
    one, other = (d.sample((5000,), torch.Generator().manual_seed(0)) for d in of_layer)
    assert (one == other).float().mean() > 0.99  # rounding may change a draw
    torch.testing.assert_close(kl_divergence(few, all_scores), torch.zeros(2), rtol=0, atol=1e-5)
    torch.testing.assert_close(few.expand((4, 2)).log_prob(one[:4]), few.log_prob(one[:4]))
    torch.testing.assert_close(few.expand((4, 2)).probs, few.probs.expand(4, 2, -1))
    assert torch.equal(few.mode, all_scores.mode)
    with pytest.raises(ValueError, match=r"OutputLayer\.loss"):
        few.loss(torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="3000"):
        few.log_prob(torch.tensor([0, 3000]))


def test_draws_and_entropies_create_no_dense_values(
    of_layer: tuple[EntmaxCategorical, EntmaxCategorical], monkeypatch: pytest.MonkeyPatch
) -> None:
    few, all_scores = of_layer
    wanted = all_scores.logits
    monkeypatch.setattr(EntmaxCategorical, "_spread", None)
    value = few.sample()
    assert few.indices.shape == few.values.shape == few.scores.shape
    log_p = wanted.gather(-1, value[:, None])[:, 0]
    torch.testing.assert_close(few.log_prob(value), log_p, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(few.entropy(), all_scores.entropy(), rtol=1e-4, atol=1e-5)


def test_the_support_accepts_boolean_values() -> None:
    support = tsallis.distributions.EntmaxCategorical(torch.tensor([2.0, -9.0])).support
    assert support.check(torch.tensor([True, False])).tolist() == [False, True]


def test_an_empty_batch_has_empty_results() -> None:
    layer = tsallis.nn.OutputLayer(8, 4).requires_grad_(False)
    hidden, value = torch.zeros(0, 8), torch.zeros(0, dtype=torch.long)
    for d in (EntmaxCategorical(torch.zeros(0, 4)), EntmaxCategorical.from_linear(layer, hidden)):
        assert d.probs.shape == (0, 4) and d.sample((3,)).shape == (3, 0)
        assert d.log_prob(value).shape == d.entropy().shape == (0,)
