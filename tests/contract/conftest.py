"""Run the contract tests of maps, losses and attention once per backend."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import tsallis
from backends import backends_for, skip_unless_usable
from tsallis.ops import reference
from tsallis.ops.eager import losses, maps

BACKENDS = {
    "test_maps": ("reference", *backends_for("maps")),
    "test_losses": ("reference", *backends_for("losses")),
    "test_attention": backends_for("attention"),
}
BISECTIONS = 70  # enough to halve the widest bracket of these tests down to the last digit of float64


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "any_backend: computes nothing that a backend could compute otherwise")
    config.addinivalue_line(
        "markers",
        "by_reference(False): do not run the test with the reference backend; "
        "by_reference(name=values): run it with the reference backend only for these values of a parameter",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test on every backend of its file, unless its marks exclude that or its parameters name backends."""
    backends = BACKENDS.get(metafunc.module.__name__.rsplit(".", 1)[-1])
    own = any("computed_by" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize"))
    if backends and not own and metafunc.definition.get_closest_marker("any_backend") is None:
        metafunc.parametrize("computed_by", backends, indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    dropped = [item for item in items if isinstance(item, pytest.Function) and not _worth_it(item)]
    config.hook.pytest_deselected(items=dropped)
    items[:] = [item for item in items if item not in set(dropped)]
    for item in items:
        # Finite differences of the reference's own bisections take ten times as long as those of any backend.
        case = getattr(item, "callspec", None)
        if "both_orders" in item.name and case is not None and case.params.get("computed_by") == "reference":
            item.add_marker(pytest.mark.slow)


def _worth_it(item: pytest.Function) -> bool:
    """Return False for a run with the reference that would check nothing."""
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    if parameters.get("computed_by") != "reference":
        return True
    marker = item.get_closest_marker("by_reference")
    if marker is None:
        return True
    cases = {name: getattr(value, "name", value) for name, value in item.callspec.params.items()}
    return not marker.args and all(cases[name] in values for name, values in marker.kwargs.items())


def _whole_rows(probs: Tensor, scores: Tensor) -> Tensor:
    """Return all NaN for rows that contain NaN or +inf, because the reference supports only numbers and -inf."""
    broken = ~(scores.detach() < torch.inf).all(-1, keepdim=True)
    return probs.detach().masked_fill(broken, torch.nan).to(scores.dtype)


def _finite(scores: Tensor) -> Tensor:
    return scores.detach().nan_to_num(nan=0.0, posinf=0.0, neginf=-torch.inf)


def reference_entmax(scores: Tensor, alpha: float | Tensor) -> tuple[Tensor, None]:
    """Compute the result of `eager.maps.solve` with the reference."""
    with torch.no_grad():
        return _whole_rows(reference.entmax(_finite(scores), alpha), scores), None


def reference_loss(scores: Tensor, target: Tensor, alpha: float | Tensor) -> tuple[Tensor, Tensor, None]:
    """Compute the result of `eager.losses.solve_loss` with the reference; negative targets and empty rows give 0."""
    with torch.no_grad():
        probs, _ = reference_entmax(scores, alpha)
        loss = reference.entmax_loss(_finite(scores), target.clamp(min=0), alpha)
        gold = scores.gather(-1, target.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        loss = loss.masked_fill(gold == -torch.inf, torch.inf).masked_fill(probs[:, 0].isnan(), torch.nan)
        nothing = (target < 0) | (scores.amax(-1) == -torch.inf)
        return loss.clamp(min=0).masked_fill(nothing, 0).to(scores.dtype), probs, None


def reference_budgeted_entmax(scores: Tensor, alpha: float | Tensor, budget: float) -> Tensor:
    """Compute the result of `eager.maps.budgeted_entmax` with the reference.

    Entries of -inf get 0. If at most `budget` other entries remain in a row, each of them gets 1.
    """
    with torch.no_grad():
        active = scores > -torch.inf
        filled = active.sum(-1, keepdim=True) <= budget
        low = torch.where(active, _finite(scores), torch.inf).amin(-1, keepdim=True)
        apart = torch.where(active, _finite(scores), torch.where(filled, 0, low))
        # An entry this far below all others has probability 0 and keeps the bracket of the bisection finite.
        apart = torch.where(active, apart, apart - 200)
        probs = reference.budgeted_entmax(apart, alpha, min(budget, scores.shape[-1]))
        probs = torch.where(filled, active.double(), probs.masked_fill(~active, 0))
        return _whole_rows(probs, scores)


# The keys are the functions of `ops/eager/maps.py` that these functions replace.
SOLVERS = {"solve": reference_entmax, "budgeted_entmax": reference_budgeted_entmax}


@pytest.fixture(autouse=True)
def computed_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run the test on one backend; the reference replaces only the solvers of the eager backend."""
    monkeypatch.setattr(reference, "BISECTIONS", BISECTIONS)
    name = getattr(request, "param", None)
    if name is None:
        yield "auto"
        return
    by = "eager" if name == "reference" else name
    skip_unless_usable(by)
    if name == "reference":
        monkeypatch.setattr(losses, "solve_loss", reference_loss)
        for solver, function in SOLVERS.items():
            monkeypatch.setattr(maps, solver, function)
    with tsallis.backend(by):
        yield name
