"""Operations on CPU tensors stay on the CPU, regardless of PyTorch's default device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import tsallis
from contract.maps import FUNCTIONS
from tsallis.models import LanguageModel, RNNSeq2Seq, TransformerSeq2Seq
from tsallis.search import beam_search, exhaustive, sample

Y = torch.tensor([1, 0, 2, 1])
SHARES = torch.rand(4, 9).softmax(-1)
QUERY = (4, 2, 5, 8)
CALLS: dict[str, tuple[Callable[[Tensor], Any], tuple[int, ...]]] = {
    **{str(m): (m.ours, (4, 9)) for m in FUNCTIONS.values()},
    "alpha_relu": (lambda z: tsallis.alpha_relu(z, 1.5, 0.1), (4, 9)),
    "entmax_loss": (lambda z: tsallis.entmax_loss(z, Y), (4, 9)),
    "entmax_loss of shares": (lambda z: tsallis.entmax_loss(z, SHARES, label_smoothing=0.1), (4, 9)),
    "alpha_relu_loss": (lambda z: tsallis.alpha_relu_loss(z, Y), (4, 9)),
    "linear_entmax_loss": (lambda h: tsallis.linear_entmax_loss(h, h, Y), (4, 9)),
    "linear_alpha_relu_loss": (lambda h: tsallis.linear_alpha_relu_loss(h, h, Y, tau=0.1), (4, 9)),
    "entmax_attention": (lambda q: tsallis.entmax_attention(q, q, q), QUERY),
    "attention with lengths": (lambda q: tsallis.entmax_attention(q, q, q, key_lengths=[1, 2, 5, 3]), QUERY),
    "attention with dropout": (lambda q: tsallis.entmax_attention(q, q, q, dropout_p=0.1), QUERY),
}


@pytest.mark.parametrize("backend", ["auto", "eager"])
@pytest.mark.parametrize("call", CALLS)
def test_functions_compute_on_the_device_of_their_inputs(call: str, backend: str) -> None:
    function, shape = CALLS[call]
    x = torch.randn(shape, requires_grad=True)

    def both() -> tuple[Tensor, Tensor]:
        torch.manual_seed(0)
        result = function(x).square().sum()
        return result.detach(), torch.autograd.grad(result, x)[0]

    with tsallis.backend(backend):
        expected = both()
        with torch.device("meta"):
            actual = both()
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("build", [TransformerSeq2Seq, RNNSeq2Seq, LanguageModel])
def test_searches_compute_on_the_device_of_the_model(build: Any) -> None:
    sizes = (12,) if build is LanguageModel else (12, 12)
    model = build(*sizes, d_model=8).eval()
    src, lengths = torch.tensor([[4, 5, 6], [7, 8, 0]]), torch.tensor([3, 2])

    def results() -> list[Any]:
        beams = beam_search(model, src, lengths, max_length=6)
        every = exhaustive(model, src, lengths, budget=20, max_length=4)
        return [*(r.hypotheses for r in (*beams, *every)), sample(model, src, lengths, 3, max_length=6, seeds=[1, 2])]

    expected = results()
    with torch.device("meta"):
        assert results() == expected
