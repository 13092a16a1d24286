"""Tests of PyTorch's recurrent layers under autocast, also on processors without a half-precision LSTM."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tsallis.models import recurrence
from tsallis.models.recurrence import run_layers

every_layer = pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])


@every_layer
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_layers_run_under_autocast_on_every_processor(kind: type[nn.LSTM], dtype: torch.dtype) -> None:
    module, x = kind(4, 8, 2, batch_first=True), torch.randn(3, 5, 4)
    expected, _ = module(x)
    with torch.autocast("cpu", dtype):
        states, _ = run_layers(module, x)
        with torch.no_grad():
            again, _ = run_layers(module, x)
    torch.testing.assert_close(again.float(), expected, atol=0.05, rtol=0.05)
    torch.testing.assert_close(states.float(), expected, atol=0.05, rtol=0.05)
    states.float().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in module.parameters())


@every_layer
def test_unsupported_dtypes_compute_in_parameter_dtype(kind: type[nn.LSTM], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recurrence, "_has_dtype", lambda dtype: False)
    module, x = kind(4, 8, 2, batch_first=True), torch.randn(3, 5, 4).bfloat16()
    start = torch.randn(2, 3, 8).bfloat16()
    state = (start, -start) if kind is nn.LSTM else start
    exact = (start.float(), -start.float()) if kind is nn.LSTM else start.float()
    with torch.autocast("cpu", torch.bfloat16):
        states, _ = run_layers(module, x, state)
    assert states.equal(module(x.float(), exact)[0])
