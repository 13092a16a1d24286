"""`tsallis.compat` has the interface of PyPI `entmax` 1.3, and its values where these are right."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck

import tsallis
from tsallis import compat
from tsallis.ops import reference

# Names, and parameters with their defaults, of the package's release; ... marks a parameter without a default.
MAP = {"X": ..., "dim": -1}
FUNCTIONS: dict[str, dict[str, object]] = {
    "sparsemax": {**MAP, "k": None},
    "entmax15": {**MAP, "k": None},
    "entmax_bisect": {"X": ..., "alpha": 1.5, "dim": -1, "n_iter": 50, "ensure_sum_one": True},
    "sparsemax_bisect": {**MAP, "n_iter": 50, "ensure_sum_one": True},
    "normmax_bisect": {"X": ..., "alpha": 2, "dim": -1, "n_iter": 50},
    "budget_bisect": {"X": ..., "budget": 2, "dim": -1, "n_iter": 50},
    "sparsemax_loss": {"X": ..., "target": ..., "k": None},
    "entmax15_loss": {"X": ..., "target": ..., "k": None},
    "sparsemax_bisect_loss": {"X": ..., "target": ..., "n_iter": 50},
    "entmax_bisect_loss": {"X": ..., "target": ..., "alpha": 1.5, "n_iter": 50},
    "normmax_bisect_loss": {"X": ..., "target": ..., "alpha": 2, "n_iter": 50},
}
REDUCED = {"ignore_index": -100, "reduction": "elementwise_mean"}
CLASSES: dict[str, dict[str, object]] = {
    "Sparsemax": {"dim": -1, "k": None},
    "Entmax15": {"dim": -1, "k": None},
    "SparsemaxBisect": {"dim": -1, "n_iter": None},
    "EntmaxBisect": {"alpha": 1.5, "dim": -1, "n_iter": 50},
    "NormmaxBisect": {"alpha": 2, "dim": -1, "n_iter": 50},
    "BudgetBisect": {"budget": 2, "dim": -1, "n_iter": 50},
    "SparsemaxLoss": {"k": None, **REDUCED},
    "Entmax15Loss": {"k": 100, **REDUCED},
    "SparsemaxBisectLoss": {"n_iter": 50, **REDUCED},
    "EntmaxBisectLoss": {"alpha": 1.5, "n_iter": 50, **REDUCED},
    "NormmaxBisectLoss": {"alpha": 2, "n_iter": 50, **REDUCED},
}
# Autograd functions with the arguments of `apply`, the names of each module, and the names also at the top level.
APPLIED: dict[str, dict[str, object]] = {
    "SparsemaxFunction": {**MAP, "k": None},
    "Entmax15Function": {"X": ..., "dim": 0, "k": None},
    "EntmaxBisectFunction": FUNCTIONS["entmax_bisect"],
    "SparsemaxBisectFunction": FUNCTIONS["sparsemax_bisect"],
    "NormmaxBisectFunction": FUNCTIONS["normmax_bisect"],
    "BudgetBisectFunction": FUNCTIONS["budget_bisect"],
    "SparsemaxLossFunction": FUNCTIONS["sparsemax_loss"],
    "Entmax15LossFunction": FUNCTIONS["entmax15_loss"],
    "SparsemaxBisectLossFunction": FUNCTIONS["sparsemax_bisect_loss"],
    "EntmaxBisectLossFunction": FUNCTIONS["entmax_bisect_loss"],
    "NormmaxBisectLossFunction": FUNCTIONS["normmax_bisect_loss"],
}
NAMES = [*FUNCTIONS, *CLASSES, *APPLIED]
MODULES = {
    "activations": ["sparsemax", "entmax15", "Sparsemax", "Entmax15", "SparsemaxFunction", "Entmax15Function"],
    "losses": [name for name in NAMES if "loss" in name.lower()],
    "root_finding": [name for name in NAMES if "bisect" in name.lower() and "loss" not in name.lower()],
}
MAPS = [name for name in FUNCTIONS if not name.endswith("loss")]
LOSSES = [name for name in FUNCTIONS if name.endswith("loss")]
WITH_SIZE = ["sparsemax", "entmax15", "sparsemax_loss", "entmax15_loss"]

MAP_REFERENCES: dict[str, Callable[[Tensor], Tensor]] = {
    "sparsemax": lambda z: reference.entmax(z, 2.0),
    "entmax15": lambda z: reference.entmax(z, 1.5),
    "entmax_bisect": lambda z: reference.entmax(z, 1.5),
    "sparsemax_bisect": lambda z: reference.entmax(z, 2.0),
    "normmax_bisect": lambda z: reference.normmax(z, 2.0),
    "budget_bisect": lambda z: reference.budgeted_entmax(z, 2.0, 2),
}
LOSS_ALPHAS = {"sparsemax_loss": 2.0, "entmax15_loss": 1.5, "sparsemax_bisect_loss": 2.0, "entmax_bisect_loss": 1.5}


def problem(rows: int = 6, d: int = 9, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    scores = torch.randn(rows, d, generator=generator, dtype=torch.float64) * 2
    return scores.to(dtype), torch.randint(d, (rows,), generator=generator)


def parameters(function: Callable[..., object]) -> list[tuple[str, object]]:
    result = inspect.signature(function).parameters.values()
    return [(p.name, ... if p.default is p.empty else p.default) for p in result if p.name != "self"]


@pytest.mark.parametrize("name", [*FUNCTIONS, *CLASSES])
def test_signatures_match_the_entmax_package(name: str) -> None:
    """Parameters have the same names, order and defaults; ours may only add parameters at the end."""
    recorded = FUNCTIONS.get(name) or CLASSES[name]
    thing = getattr(compat, name)
    result = parameters(thing.__init__ if name in CLASSES else thing)
    assert result[: len(recorded)] == list(recorded.items())
    assert name in compat.__all__
    assert all(default is not ... for _, default in result[len(recorded) :])


def test_public_names_match_the_entmax_package() -> None:
    assert set(compat.__all__) == {*FUNCTIONS, *CLASSES}
    assert sorted(name for names in MODULES.values() for name in names) == sorted(NAMES)


@pytest.mark.parametrize("name", MODULES)
def test_modules_have_the_names_of_the_entmax_package(name: str) -> None:
    module = importlib.import_module(f"tsallis.compat.{name}")
    assert getattr(compat, name) is module and sorted(module.__all__) == sorted(MODULES[name])
    for public in MODULES[name]:
        assert public in APPLIED or getattr(module, public) is getattr(compat, public)
        assert getattr(module, public).__module__ == module.__name__


def of_module(name: str) -> Any:
    """Return the autograd function with this name."""
    return getattr(getattr(compat, next(module for module, names in MODULES.items() if name in names)), name)


@pytest.mark.parametrize("name", APPLIED)
def test_apply_signatures_match_the_entmax_package(name: str) -> None:
    """The autograd functions have only `apply`, and no other member of `torch.autograd.Function`."""
    function = of_module(name)
    expected = list(APPLIED[name].items())
    assert parameters(function.apply)[: len(expected)] == expected
    assert not issubclass(function, torch.autograd.Function)
    assert [public for public in vars(function) if not public.startswith("_")] == ["apply"]


@pytest.mark.parametrize("name", APPLIED)
def test_autograd_functions_match_the_plain_functions(name: str) -> None:
    z, y = problem(4, 6)
    arguments = (z, y) if "Loss" in name else (z,)
    by_name = {public.replace("_", "").lower(): public for public in FUNCTIONS}
    expected = getattr(compat, by_name[name.removesuffix("Function").lower()])
    function = of_module(name)
    if name == "Entmax15Function":
        torch.testing.assert_close(function.apply(z), expected(z, dim=0), atol=0, rtol=0)
    else:
        torch.testing.assert_close(function.apply(*arguments), expected(*arguments), atol=0, rtol=0)
    more = {"dim": 0, "k": 2, "n_iter": 7, "ensure_sum_one": False, "alpha": 1.75, "budget": 3}
    rest = [more[key] for key in APPLIED[name] if key in more]  # by position, as PyTorch's `apply` requires
    result = function.apply(z.requires_grad_(), *arguments[1:], *rest)
    torch.testing.assert_close(result, expected(*arguments, *rest), atol=0, rtol=0)
    assert gradcheck(lambda s: function.apply(s, *arguments[1:], *rest), (z,))


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("dim", [-1, 0, 1])
def test_maps_match_the_reference(name: str, dim: int) -> None:
    z = torch.randn(3, 4, 5, dtype=torch.float64) * 2
    p = getattr(compat, name)(z, dim=dim)
    expected = MAP_REFERENCES[name](z.movedim(dim, -1).reshape(-1, z.shape[dim]))
    expected = expected.reshape(z.movedim(dim, -1).shape).movedim(-1, dim)
    torch.testing.assert_close(p, expected, atol=1e-10, rtol=0)
    single = getattr(compat, name)(z.float(), dim=dim)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", LOSS_ALPHAS)
def test_losses_match_the_reference(name: str) -> None:
    z, y = problem()
    alpha = LOSS_ALPHAS[name]
    onehot = nn.functional.one_hot(y, z.shape[-1]).to(z)
    expected = reference.entmax_loss(z, onehot, alpha)
    torch.testing.assert_close(getattr(compat, name)(z, y), expected, atol=1e-10, rtol=0)


@pytest.mark.parametrize("alpha", [1.25, 1.5, 2, 3.0])
def test_normmax_loss_matches_its_formula(alpha: float) -> None:
    """The loss is (p - e_y)^T z + 1 - ||p||, with gradient p - e_y and the map's Jacobian as its Hessian."""
    z, y = problem()
    p = reference.normmax(z, alpha)
    onehot = nn.functional.one_hot(y, z.shape[-1]).to(z)
    expected = ((p - onehot) * z).sum(-1) + 1 - p.pow(alpha).sum(-1).pow(1 / alpha)
    torch.testing.assert_close(compat.normmax_bisect_loss(z, y, alpha), expected, atol=1e-9, rtol=0)
    scores = z.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(compat.normmax_bisect_loss(scores, y, alpha).sum(), scores)
    torch.testing.assert_close(gradient, p - onehot, atol=1e-9, rtol=0)
    small = z[:3, :5].clone().requires_grad_()
    targets = torch.tensor([0, 4, -100])
    assert gradcheck(lambda s: compat.normmax_bisect_loss(s, targets, alpha), (small,))
    assert gradgradcheck(lambda s: compat.normmax_bisect_loss(s, targets, alpha), (small,))


def test_normmax_loss_handles_infinite_and_nan_rows() -> None:
    inf, nan = torch.inf, torch.nan
    z = torch.tensor([[0.0, 1.0, -inf], [-inf, -inf, -inf], [nan, 1.0, 2.0], [5.0, 0.0, 0.0]], requires_grad=True)
    loss = compat.normmax_bisect_loss(z, torch.tensor([0, 0, 0, 0]))
    (gradient,) = torch.autograd.grad(loss.sum(), z)
    torch.testing.assert_close(loss, torch.tensor([1.0, 0.0, nan, 0.0]), equal_nan=True)
    assert gradient[2].isnan().all() and gradient[[0, 1, 3]].isfinite().all()
    assert gradient[1].eq(0).all()
    far = torch.tensor([[1e6 + 2, 1e6, 1e6 - 1]])
    assert 0 <= compat.normmax_bisect_loss(far, torch.tensor([1])) <= 2
    with pytest.raises(ValueError, match="got 7"):
        compat.normmax_bisect_loss(z, torch.tensor([0, 7, 0, 0]))
    with pytest.raises(ValueError, match="target"):
        compat.normmax_bisect_loss(z, torch.tensor([0, 1]))


def test_k_n_iter_and_ensure_sum_one_are_ignored() -> None:
    z, y = problem(dtype=torch.float32)
    for k in (1, 100):
        assert torch.equal(compat.sparsemax(z, k=k), compat.sparsemax(z))
        assert torch.equal(compat.entmax15_loss(z, y, k), compat.entmax15_loss(z, y))
    assert torch.equal(compat.entmax_bisect(z, 1.3, n_iter=1, ensure_sum_one=False), tsallis.entmax(z, 1.3))
    assert torch.equal(compat.entmax15(z.T, 0, 3), tsallis.entmax15(z).T)


@pytest.mark.parametrize("name", WITH_SIZE)
def test_return_support_size_counts_nonzeros(name: str) -> None:
    z, y = problem()
    arguments = (z, y) if name.endswith("loss") else (z,)
    result, size = getattr(compat, name)(*arguments, return_support_size=True)
    torch.testing.assert_close(result, getattr(compat, name)(*arguments))
    transform = compat.sparsemax if name.startswith("sparsemax") else compat.entmax15
    assert size.dtype == torch.long and torch.equal(size, (transform(z) > 0).sum(-1, keepdim=True))
    _, along_rows = compat.sparsemax(z, dim=0, return_support_size=True)
    assert along_rows.shape == (1, z.shape[1])


def test_alpha_one_is_softmax() -> None:
    z, y = problem(dtype=torch.float32)
    torch.testing.assert_close(compat.entmax_bisect(z, 1), z.softmax(-1))
    torch.testing.assert_close(compat.EntmaxBisectLoss(alpha=1)(z, y), nn.functional.cross_entropy(z, y))
    with pytest.raises(ValueError, match=r"alpha must be positive and finite, got -0\.5"):
        compat.entmax_bisect(z, -0.5)
    with pytest.raises(TypeError, match="int64"):
        compat.sparsemax(torch.tensor([1, 2]))


def test_alphas_below_1_match_the_reference() -> None:
    """Alphas may range from 0 to 2.5 and more, mixed in one tensor, with gradients in scores and alpha."""
    z, y = problem(4, 6)
    alpha = torch.tensor([[0.05], [0.5], [1.0], [2.5]], dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(compat.entmax_bisect(z, alpha), reference.entmax(z, alpha), atol=1e-10, rtol=0)
    assert gradcheck(compat.entmax_bisect, (z.requires_grad_(), alpha))
    torch.testing.assert_close(compat.entmax_bisect_loss(z, y, alpha), reference.entmax_loss(z, y, alpha))
    assert gradcheck(lambda s, a: compat.EntmaxBisectLoss(a)(s, y), (z, alpha))


def test_a_budget_of_zero_chooses_nothing() -> None:
    z, _ = problem(3, 5)
    z[1, 2] = torch.nan
    scores = z.requires_grad_()
    for budget in (0, torch.tensor(0.0), torch.zeros(3, 1)):
        marginals = compat.budget_bisect(scores, budget)
        assert (marginals[[0, 2]] == 0).all() and marginals[1].isnan().all()
        (grad,) = torch.autograd.grad(marginals[[0, 2]].sum(), scores)
        assert (grad[[0, 2]] == 0).all()


def test_tensor_arguments_apply_per_row() -> None:
    z, y = problem(4, 6)
    alpha = torch.tensor([[1.0], [1.5], [2.0], [1.5]], dtype=torch.float64)
    norm, budget = alpha + 0.25, torch.tensor([[1], [2], [3], [2]])
    for i in range(4):
        row, at = slice(i, i + 1), alpha[i].item()
        torch.testing.assert_close(compat.entmax_bisect(z, alpha)[row], tsallis.entmax(z[row], at))
        torch.testing.assert_close(compat.normmax_bisect(z, norm)[row], tsallis.normmax(z[row], at + 0.25))
        for loss, each, one in ((compat.entmax_bisect_loss, alpha, at), (compat.normmax_bisect_loss, norm, at + 0.25)):
            torch.testing.assert_close(loss(z, y, each)[row], loss(z[row], y[row], one))
        chosen = tsallis.budgeted_entmax(z[row], 2.0, budget[i].item())
        torch.testing.assert_close(compat.budget_bisect(z, budget)[row], chosen)
    turned = compat.budget_bisect(z.T, budget.T, dim=0)
    torch.testing.assert_close(turned.T, compat.budget_bisect(z, budget))
    scores = z.clone().requires_grad_()
    assert gradcheck(lambda s: compat.budget_bisect(s, budget), (scores,))
    assert gradcheck(lambda s: compat.normmax_bisect(s, norm), (scores,))


@pytest.mark.parametrize("name", [n for n in CLASSES if not n.endswith("Loss")])
def test_map_modules_match_their_functions(name: str) -> None:
    z, _ = problem()
    function = {"Sparsemax": "sparsemax", "Entmax15": "entmax15"}.get(name, name.replace("Bisect", "_bisect").lower())
    module = getattr(compat, name)(dim=0)
    assert torch.equal(module(z), getattr(compat, function)(z, dim=0))
    assert not list(module.parameters()) and not module.state_dict()


@pytest.mark.parametrize("name", [n for n in CLASSES if n.endswith("Loss")])
@pytest.mark.parametrize("ignore_index", [-100, 0])
def test_loss_modules_apply_reduction_and_ignore_index(name: str, ignore_index: int) -> None:
    z, y = problem()
    y = torch.where(y == 0, 1, y)
    function = name.replace("BisectLoss", "_bisect_loss").replace("15Loss", "15_loss").replace("xLoss", "x_loss")
    each = getattr(compat, function.lower())(z, y)
    target = y.clone()
    target[2] = ignore_index
    saved = torch.cat([each[:2], torch.zeros_like(each[:1]), each[3:]])
    module = getattr(compat, name)
    torch.testing.assert_close(module(ignore_index=ignore_index, reduction="none")(z, target), saved)
    torch.testing.assert_close(module(ignore_index=ignore_index, reduction="sum")(z, target), saved.sum())
    for mean in ({}, {"reduction": "mean"}):
        torch.testing.assert_close(module(ignore_index=ignore_index, **mean)(z, target), saved.sum() / (len(y) - 1))
    torch.testing.assert_close(module()(z, y), each.mean())
    scores = z.clone().requires_grad_()
    module(ignore_index=ignore_index)(scores, target).backward()
    assert scores.grad is not None and scores.grad[2].eq(0).all() and scores.grad[0].ne(0).any()
    with pytest.raises(ValueError, match="average"):
        module(reduction="average")


def test_modules_hold_a_learned_alpha() -> None:
    z, y = problem(dtype=torch.float32)
    loss = compat.EntmaxBisectLoss(alpha=nn.Parameter(torch.tensor(1.5)))
    loss(z, y).backward()
    assert loss.alpha.grad is not None and loss.alpha.grad.abs() > 0 and list(loss.state_dict()) == ["alpha"]
    attention = compat.EntmaxBisect(alpha=nn.Parameter(torch.tensor([1.2])))
    (attention(z) ** 2).sum().backward()
    assert attention.alpha.grad is not None
    fixed = compat.EntmaxBisect(alpha=torch.tensor(1.5)).double()
    assert fixed.alpha.dtype == torch.float64 and not fixed.state_dict()


@pytest.mark.parametrize("name", LOSSES)
def test_losses_accept_more_dimensions_and_half_precision(name: str) -> None:
    z, y = problem(6, 9, torch.float32)
    flat = getattr(compat, name)(z, y)
    torch.testing.assert_close(getattr(compat, name)(z.reshape(2, 3, 9), y.reshape(2, 3)).reshape(-1), flat)
    half = z.bfloat16()
    rounded = getattr(compat, name)(half.float(), y)
    assert getattr(compat, name)(half, y).dtype == torch.bfloat16
    torch.testing.assert_close(getattr(compat, name)(half, y).float(), rounded, atol=1e-2, rtol=1e-2)


def test_values_match_the_entmax_package() -> None:
    """Compare with the package itself if it is installed, in the range where it is right."""
    peer = pytest.importorskip("entmax")
    z, y = problem(20, 40)
    for name in MAPS:
        ours, theirs = getattr(compat, name), getattr(peer, name)
        first, second = z.clone().requires_grad_(), z.clone().requires_grad_()
        p, q = ours(first), theirs(second)
        torch.testing.assert_close(p, q, atol=1e-8, rtol=0)
        upstream = torch.randn_like(z)
        p.backward(upstream)
        q.backward(upstream)
        torch.testing.assert_close(first.grad, second.grad, atol=1e-6, rtol=0)
    for name in LOSSES:
        torch.testing.assert_close(getattr(compat, name)(z, y), getattr(peer, name)(z, y), atol=1e-8, rtol=0)
    for name in [n for n in CLASSES if n.endswith("Loss")]:
        for reduction in ("elementwise_mean", "sum", "none"):
            options = {"reduction": reduction, "ignore_index": int(y[0])}
            expected = getattr(peer, name)(**options)(z.clone(), y)
            torch.testing.assert_close(getattr(compat, name)(**options)(z, y), expected, atol=1e-8, rtol=0)
    for name, recorded in {**FUNCTIONS, **CLASSES}.items():
        thing = getattr(peer, name)
        assert parameters(thing.__init__ if name in CLASSES else thing) == list(recorded.items())


@pytest.mark.parametrize("name", [n for n in CLASSES if n.endswith("Loss") and n != "NormmaxBisectLoss"])
def test_loss_modules_take_probabilities_as_targets(name: str) -> None:
    scores, target = torch.randn(4, 3, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64).softmax(-1)
    alpha = 2.0 if name.startswith("Sparsemax") else 1.5
    expected = tsallis.entmax_loss(scores, target, alpha)
    for reduction in ("elementwise_mean", "mean"):
        torch.testing.assert_close(getattr(compat, name)(reduction=reduction)(scores, target), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_mean_of_many_losses_does_not_overflow(dtype: torch.dtype) -> None:
    z, y = torch.randn(40_000, 10).to(dtype), torch.randint(10, (40_000,))
    for module in (compat.Entmax15Loss(), compat.SparsemaxLoss(), compat.NormmaxBisectLoss()):
        assert module(z, y).dtype == dtype and 0 < module(z, y) < 10


def test_a_batch_of_ignored_targets_has_zero_gradients() -> None:
    alpha, scores = nn.Parameter(torch.tensor(1.3)), torch.randn(3, 4, requires_grad=True)
    loss = compat.EntmaxBisectLoss(alpha)(scores, torch.full((3,), -100))
    loss.backward()
    assert loss.isnan() and alpha.grad == 0 and (scores.grad == 0).all()


def test_learned_normmax_alphas_and_budgets_raise() -> None:
    z, y = problem(dtype=torch.float32)
    alpha, budget = nn.Parameter(torch.tensor(2.5)), nn.Parameter(torch.tensor(2.0))
    calls = (lambda: compat.NormmaxBisect(alpha)(z), lambda: compat.NormmaxBisectLoss(alpha)(z, y))
    for call, name in (*((c, "alpha") for c in calls), (lambda: compat.BudgetBisect(budget)(z), "budget")):
        with pytest.raises(ValueError, match=f"{name} must not require a gradient"):
            call()


def test_tensor_alphas_without_readable_values_raise() -> None:
    """torch.export, vmap over alpha and meta tensors can't read a tensor alpha or budget."""
    z, alpha = torch.randn(3, 5), torch.tensor([[1.5], [2.0], [3.0]])
    expected = compat.normmax_bisect(z, alpha)
    results = torch.func.vmap(lambda rows: compat.normmax_bisect(rows, alpha))(z.expand(2, 3, 5))  # not over alpha
    torch.testing.assert_close(results, expected.expand(2, 3, 5))
    for tensor in (alpha, torch.tensor(2.0)):
        module, budget = compat.NormmaxBisect(tensor), compat.BudgetBisect(tensor)
        batch = tensor.expand(2, *tensor.shape)
        calls = (
            lambda m=module: torch.export.export(m, (z,)),
            lambda m=budget: torch.export.export(m, (z,)),
            lambda a=batch: torch.func.vmap(lambda one: compat.normmax_bisect(z, one))(a),
            lambda a=tensor: compat.normmax_bisect(z.to("meta"), a.to("meta")),
        )
        for call in calls:
            with pytest.raises(NotImplementedError, match="must be a number"):
                call()


def test_normmax_loss_accepts_integer_class_targets() -> None:
    z, y = problem(dtype=torch.float32)
    expected = compat.normmax_bisect_loss(z, y)
    assert compat.normmax_bisect_loss(z, y.to(torch.uint8)).equal(expected)
    with pytest.raises(TypeError, match=r"class targets must contain integers, got torch\.bool"):
        compat.normmax_bisect_loss(z, y.bool())
    batched = torch.func.vmap(compat.normmax_bisect_loss)(z.expand(2, *z.shape), y.expand(2, *y.shape))
    torch.testing.assert_close(batched, expected.expand(2, *expected.shape))
    with torch.autocast("cpu", torch.bfloat16):
        assert compat.normmax_bisect_loss(z.bfloat16(), y).dtype == torch.float32


def test_errors_name_invalid_scores_and_alpha_shapes() -> None:
    with pytest.raises(TypeError, match="X must be a tensor, got list"):
        compat.normmax_bisect([1.0, 2.0], 2)
    with pytest.raises(ValueError, match=r"\(3,\) can't be expanded to \(3, 4, 1\)"):
        compat.normmax_bisect(torch.zeros(3, 4, 5), torch.tensor([1.5, 2.0, 3.0]))
