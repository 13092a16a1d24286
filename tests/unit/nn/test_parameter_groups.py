"""Tests of optimizer groups: every trainable parameter is in one group, and alphas have a separate group."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tsallis.compat import EntmaxBisect, EntmaxBisectLoss
from tsallis.nn import (
    Entmax,
    EntmaxLoss,
    MultiheadAttention,
    PerHeadAlpha,
    TransformerEncoderLayer,
    parameter_groups,
)


def test_every_trainable_parameter_is_in_one_group() -> None:
    shared = TransformerEncoderLayer(8, 2, 12, alpha="learned")
    model = nn.ModuleList([shared, shared, nn.Linear(3, 3).requires_grad_(False)])
    matrices, vectors, alphas = parameter_groups(model, 0.1, alpha_lr_scale=3, weight_decay=0.01)
    assert all(p.dim() > 1 for p in matrices["params"]) and all(p.dim() == 1 for p in vectors["params"])
    assert [p.shape for p in alphas["params"]] == [(2,)] and alphas["lr"] == pytest.approx(0.3)
    assert (matrices["weight_decay"], vectors["weight_decay"], alphas["weight_decay"]) == (0.01, 0.0, 0.0)
    together = [p for group in (matrices, vectors, alphas) for p in group["params"]]
    assert {id(p) for p in together} == {id(p) for p in shared.parameters()} and len(together) == 13
    torch.optim.AdamW([matrices, vectors, alphas]).step()


class Doubled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.raw = nn.Parameter(torch.full((2,), 0.75))

    def forward(self) -> Tensor:
        return self.raw * 2


@pytest.mark.parametrize("alpha", ["learned", nn.Parameter(torch.full((2,), 1.5)), Doubled(), PerHeadAlpha(2)])
def test_every_learned_alpha_form_is_in_the_alpha_group(alpha: Any) -> None:
    own = nn.Parameter(torch.tensor(1.5))
    model = nn.ModuleList([MultiheadAttention(8, 2, alpha=alpha), Entmax(own), EntmaxLoss(1.5)])
    *_, alphas = parameter_groups(model, 0.1, alpha_lr_scale=3)
    learned = [p for p in model.parameters() if p.shape in ((), (2,))]
    assert len(learned) == 2 and {id(p) for p in alphas["params"]} == {id(p) for p in learned}


def test_alphas_of_compat_modules_are_in_the_alpha_group() -> None:
    model = nn.ModuleList([make(nn.Parameter(torch.tensor(1.5))) for make in (EntmaxBisect, EntmaxBisectLoss)])
    (alphas,) = parameter_groups(model, 0.1, alpha_lr_scale=3, weight_decay=0.01)
    assert len(alphas["params"]) == 2 and (alphas["lr"], alphas["weight_decay"]) == (pytest.approx(0.3), 0)


def test_a_group_without_parameters_is_left_out() -> None:
    (group,) = parameter_groups(nn.Linear(2, 2, bias=False), 0.1, alpha_lr_scale=1)
    assert group["weight_decay"] == 0 and len(group["params"]) == 1
    with pytest.raises(ValueError, match="alpha_lr_scale must be finite and at least 0, got -1"):
        parameter_groups(nn.Linear(2, 2), 0.1, alpha_lr_scale=-1)
