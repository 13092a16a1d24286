"""Classifiers of documents and of questions about images: padding, gradients, copies and half precision."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tsallis.models import BiLSTMClassifier
from tsallis.models.vqa import VisualAnswerer

WIDTH, LENGTHS = 6, torch.tensor([6, 3, 1])
DOCUMENTS = [(a, t, None) for a in ("discrete", "continuous", "combined") for t in ("softmax", "sparsemax", 1.5)]
QUESTIONS = [
    ("discrete", "softmax", None),
    ("discrete", "sparsemax", None),
    ("continuous", "softmax", None),
    ("continuous", "softmax", 2.0),  # the paper's continuous sparsemax
    ("continuous", "sparsemax", None),
    ("continuous", 1.5, None),
    ("continuous", "softmax", "learned"),
    ("combined", "softmax", None),
    ("combined", "sparsemax", None),
]
every_kind = pytest.mark.parametrize(
    ("kind", "attention", "transform", "density"),
    [("documents", *case) for case in DOCUMENTS] + [("questions", *case) for case in QUESTIONS],
)


def make(kind: str, attention: str = "combined", transform: Any = "softmax", density: Any = None, **more: Any) -> Any:
    torch.manual_seed(3)
    options = {"d_model": 8, "dropout": 0.0, "attention": attention, "transform": transform, "density": density, **more}
    if kind == "documents":
        return BiLSTMClassifier(30, 3, **{"num_basis": 8, **options})
    return VisualAnswerer(30, 3, **{"heads": 2, "layers": 1, "stages": 2, "num_basis": 16, **options})


def inputs(kind: str) -> tuple[Tensor, ...]:
    """Return images (for questions only), padded rows and their lengths."""
    src = torch.randint(4, 30, (3, WIDTH)).masked_fill(torch.arange(WIDTH) >= LENGTHS.unsqueeze(1), 0)
    images = [torch.randint(256, (3, 12, 16, 3), dtype=torch.uint8)] if kind == "questions" else []
    return *images, src, LENGTHS


@every_kind
def test_padding_does_not_change_scores(kind: str, attention: str, transform: Any, density: Any) -> None:
    model = make(kind, attention, transform, density, layers=2).eval()
    *images, src, lengths = inputs(kind)
    scores = model(*images, src, lengths)
    assert scores.shape == (3, 3) and scores.isfinite().all()
    wider = torch.cat([src, torch.zeros(3, 5, dtype=torch.long)], 1)
    wider[torch.arange(WIDTH + 5) >= lengths.unsqueeze(1)] = 17  # arbitrary tokens in the padding
    torch.testing.assert_close(model(*images, wider, lengths), scores, atol=1e-5, rtol=1e-5)
    for row, length in enumerate(lengths.tolist()):
        one = slice(row, row + 1)
        alone = model(*(x[one] for x in images), src[one, :length], lengths[one])
        torch.testing.assert_close(alone, scores[one], atol=1e-5, rtol=1e-5)


@every_kind
def test_gradients_reach_every_parameter(kind: str, attention: str, transform: Any, density: Any) -> None:
    model, given = make(kind, attention, transform, density, layers=2), inputs(kind)
    labels = torch.tensor([0, -100, 1])
    loss, scores = model.loss(*given, labels), model(*given)
    torch.testing.assert_close(loss, nn.functional.cross_entropy(scores, labels))
    smoothed = model.loss(*given, labels, "sum", label_smoothing=0.2)
    expected = nn.functional.cross_entropy(scores, labels, reduction="sum", label_smoothing=0.2)
    torch.testing.assert_close(smoothed, expected)
    torch.testing.assert_close(model.probs(*given), scores.softmax(-1))
    loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
        assert (parameter.grad != 0).any(), name
    assert (model.embedding.weight.grad[0] == 0).all()


@every_kind
def test_arguments_and_state_dict_rebuild_the_model(kind: str, attention: str, transform: Any, density: Any) -> None:
    sizes = {"layers": 2} if kind == "documents" else {"d_flat": 5, "d_fused": 12, "d_ff": 9}
    model = make(kind, attention, transform, density, d_embedding=6, output="entmax", **sizes).eval()
    torch.manual_seed(99)
    other, given = type(model)(**model.arguments).eval(), inputs(kind)
    assert not torch.allclose(other(*given), model(*given))
    other.load_state_dict(model.state_dict())
    assert other(*given).equal(model(*given)) and model.output.alpha == 1.5


@pytest.mark.parametrize("kind", ["documents", "questions"])
def test_dropout_is_disabled_in_eval_mode(kind: str) -> None:
    model, given = make(kind, "continuous", "softmax", dropout=0.5), inputs(kind)
    assert not torch.allclose(model(*given), model(*given))
    model.eval()
    assert model(*given).equal(model(*given))


@every_kind
def test_autocast_scores_match_float32(kind: str, attention: str, transform: Any, density: Any) -> None:
    cell = {"cell": "gru" if attention == "discrete" else "lstm"} if kind == "documents" else {}
    model, given = make(kind, attention, transform, density, **cell).eval(), inputs(kind)
    with torch.no_grad():
        model.output.weight.mul_(8)
    scores = model(*given)
    with torch.autocast("cpu", torch.bfloat16):
        half, look = model(*given).float(), model.attention(*given)
        loss = model.loss(*given, torch.tensor([0, 1, 2]))
    assert (half - scores).norm() < 0.05 * (scores - scores.mean(0)).norm()
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert look.masses.dtype == torch.float32
