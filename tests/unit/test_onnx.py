"""Maps, attention and models as ONNX files: onnxruntime gives the results of the exported functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnxruntime")  # must precede the imports that need it
pytest.importorskip("onnxscript")

import onnxruntime
import torch
from torch import Tensor, nn

import tsallis
from contract.maps import SMOOTH, Map
from tsallis.ops import reference
from tsallis.ops.eager import graph

# One map per formula; alphas that differ only in numbers are left out.
EXPORTED = [m for m in SMOOTH if m.function != "entmax" or m.name in ("entmax-1.0", "entmax-1.5")]


class Call(nn.Module):
    """A function as a module, because the exporter requires one."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs)


def run(module: nn.Module, inputs: tuple[Tensor, ...], folder: Path, **options: Any) -> Any:
    """Export a module; return a session and its results for the inputs."""
    path = folder / "model.onnx"
    torch.onnx.export(module.eval(), inputs, path, dynamo=True, verbose=False, **options)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session, call(session, inputs)


def call(session: Any, inputs: tuple[Tensor, ...]) -> Tensor:
    names = [x.name for x in session.get_inputs()]
    return torch.from_numpy(session.run(None, {n: x.numpy() for n, x in zip(names, inputs, strict=True)})[0])


@pytest.mark.parametrize("alpha", [0.25, 0.95, 1.0, 1.05, 1.25, 1.5, 2.0, 2.5, 10.0, 50.0])
def test_the_graph_agrees_with_the_reference(alpha: float) -> None:
    scores = 3 * torch.randn(50, 33)
    scores[0], scores[1, 3:] = -torch.inf, -torch.inf
    expected = reference.entmax(scores, alpha).float()
    for number in (alpha, torch.full((50, 1), alpha)):
        torch.testing.assert_close(graph.entmax(scores, number), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("alpha", [1.0, 1.001, 1.25, 1.5, 2.0, 2.5, 10.0])
@pytest.mark.parametrize("budget", [0.0, 0.5, 2.0, 3.5, 40.0])
def test_the_graph_of_a_budget_agrees_with_the_reference(alpha: float, budget: float) -> None:
    scores = 3 * torch.randn(50, 33)
    scores[0], scores[1, 3:], scores[2, 4], scores[3] = -torch.inf, -torch.inf, torch.nan, 1.0
    expected = tsallis.budgeted_entmax(scores, alpha, budget)
    for number in (alpha, torch.full((50, 1), alpha)):
        probs = graph.budgeted_entmax(scores, number, budget)
        torch.testing.assert_close(probs, expected, rtol=0, atol=2e-6, equal_nan=True)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.25, 1.5, 2.0, 2.5, 10.0])
def test_the_graph_of_a_loss_agrees_with_the_reference(alpha: float) -> None:
    scores, target = 3 * torch.randn(50, 33), torch.randint(33, (50,))
    scores[0], scores[1, 3:], target[1], target[2], scores[3, 5], target[3] = -torch.inf, -torch.inf, 1, -1, 40.0, 5
    expected = tsallis.entmax_loss(scores, target, alpha, reduction="none", ignore_index=-1)
    for number in (alpha, torch.full((50, 1), alpha)):
        torch.testing.assert_close(graph.entmax_loss(scores, target, number), expected, rtol=1e-5, atol=5e-6)


@pytest.mark.slow
def test_exported_budgets_at_alpha_3_match(tmp_path: Path) -> None:
    scores = torch.randn(4, 20)
    _, output = run(Call(lambda z: tsallis.budgeted_entmax(z, 3.0, 2.5)), (scores,), tmp_path)
    torch.testing.assert_close(output, tsallis.budgeted_entmax(scores, 3.0, 2.5), rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["class", "probability", "smoothing", "linear", "alpha-relu", "linear-alpha-relu"])
def test_exported_losses_match(name: str, tmp_path: Path) -> None:
    weight = torch.randn(20, 8)
    losses: dict[str, Any] = {
        "class": lambda z, y: tsallis.entmax_loss(z, y, 1.5),
        "probability": lambda z, y: tsallis.entmax_loss(z, nn.functional.one_hot(y, 20).float() * 0.9 + 0.005, 1.5),
        "smoothing": lambda z, y: tsallis.entmax_loss(z, y, 1.5, label_smoothing=0.1, reduction="none"),
        "linear": lambda z, y: tsallis.linear_entmax_loss(z[:, :8], weight, y, 1.5),
        "alpha-relu": lambda z, y: tsallis.alpha_relu_loss(z, y, 1.5, 0.2),
        "linear-alpha-relu": lambda z, y: tsallis.linear_alpha_relu_loss(z[:, :8], weight, y, 1.5, 0.2),
    }
    inputs = (torch.randn(4, 20), torch.tensor([0, 3, -100 if name != "probability" else 1, 19]))
    _, output = run(Call(losses[name]), inputs, tmp_path)
    torch.testing.assert_close(output, losses[name](*inputs), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("m", EXPORTED, ids=str)
def test_exported_maps_match(m: Map, tmp_path: Path) -> None:
    scores = torch.randn(4, 3, 20)
    _, output = run(Call(m.ours), (scores,), tmp_path)
    torch.testing.assert_close(output, m.ours(scores), rtol=0, atol=1e-6)


@pytest.mark.slow
def test_exported_tensor_alphas_and_masks_match(tmp_path: Path) -> None:
    scores, alpha = torch.randn(4, 20), torch.tensor([[1.0], [1.2], [1.5], [2.0]])
    mask = torch.rand(4, 20) > 0.3
    inputs = (scores, alpha, mask)
    _, output = run(Call(lambda z, a, m: tsallis.entmax(z, a, mask=m)), inputs, tmp_path)
    torch.testing.assert_close(output, tsallis.entmax(scores, alpha, mask=mask), rtol=0, atol=1e-6)


@pytest.mark.slow
def test_exported_attention_accepts_any_length(tmp_path: Path) -> None:
    module = tsallis.nn.MultiheadAttention(16, 4, batch_first=True, alpha="learned").eval()
    length = torch.export.Dim("length", min=2, max=64)
    wrapped = Call(lambda x: module(x, x, x, need_weights=False, is_causal=True)[0])
    wrapped.inner = module
    session, _ = run(wrapped, (torch.randn(2, 7, 16),), tmp_path, dynamic_shapes=(({1: length},),))
    for size in (5, 11):
        x = torch.randn(2, size, 16)
        with torch.no_grad():
            torch.testing.assert_close(call(session, (x,)), wrapped(x), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_exported_padding_masks_accept_other_batch_sizes(tmp_path: Path) -> None:
    module = tsallis.nn.MultiheadAttention(16, 4, batch_first=True).eval()
    wrapped = Call(lambda x, hidden: module(x, x, x, key_padding_mask=hidden, need_weights=False)[0])
    wrapped.inner = module
    free = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    example = torch.randn(1, 5, 16), torch.zeros(1, 5, dtype=torch.bool)
    session, _ = run(wrapped, example, tmp_path, dynamic_shapes=((free, free),))
    x, hidden = torch.randn(3, 6, 16), torch.rand(3, 6) > 0.7
    with torch.no_grad():
        torch.testing.assert_close(call(session, (x, hidden)), wrapped(x, hidden), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["input", "head", "ssmax"])
def test_exported_length_scales_accept_any_batch_and_length(kind: str, tmp_path: Path) -> None:
    layer = tsallis.nn.TransformerEncoderLayer(16, 4, 20, batch_first=True, length_scale=kind).eval()
    batch, length = (torch.export.Dim(name, min=2, max=64) for name in ("batch", "length"))
    session, _ = run(layer, (torch.randn(2, 5, 16),), tmp_path, dynamic_shapes=({0: batch, 1: length},))
    x = torch.randn(3, 9, 16)
    with torch.no_grad():
        torch.testing.assert_close(call(session, (x,)), layer(x), rtol=1e-4, atol=1e-4)


def test_torch_export_keeps_the_entmax_operator() -> None:
    program = torch.export.export(Call(lambda z: tsallis.entmax(z, 1.5)), (torch.randn(2, 5),))
    assert "tsallis.entmax" in str(program.graph)
