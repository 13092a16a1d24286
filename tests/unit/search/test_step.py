"""What all searches share: dropout is off while they last, and every part of the model is as it was after them."""

from __future__ import annotations

import pytest
from torch import nn

from tsallis.models import RNNSeq2Seq
from tsallis.search import Ensemble
from tsallis.search.step import eval_mode


def test_every_part_of_a_model_is_as_it_was() -> None:
    model = nn.Sequential(nn.Dropout(), nn.Sequential(nn.Linear(2, 2), nn.Dropout()))
    model.register_module("none", None)
    model[1][0].eval()  # as a frozen part is
    before = [part.training for part in model.modules()]
    assert before.count(True) == 4
    with pytest.raises(KeyError), eval_mode(model):
        assert not any(part.training for part in model.modules())
        raise KeyError
    assert [part.training for part in model.modules()] == before


def test_an_ensemble_is_its_models() -> None:
    models = [RNNSeq2Seq(9, 8, d_model=4, layers=1) for _ in range(2)]
    both = Ensemble(models)
    with eval_mode(both):
        assert not any(part.training for model in models for part in model.modules())
    assert all(part.training for model in models for part in model.modules())
