"""Tests of rows with several texts: reading each text separately matches attention with a mask."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tsallis.models import LanguageModel, language
from tsallis.models.language import other_texts, split_rows
from tsallis.symbols import BOS

VOCAB = 9
KINDS: list[dict[str, Any]] = [
    {"heads": 4, "kv_heads": 2, "length_scale": "input"},
    {"positions": "rope", "alpha": "learned"},
    {"positions": "alibi", "alpha": 1.0},
]


def rows(batch: int, length: int) -> Tensor:
    """Return rows with several starts of texts; the first row begins in the middle of a text."""
    tokens = torch.randint(4, VOCAB, (batch, length))
    tokens[:, 3::4] = BOS
    tokens[1, 0] = BOS
    return tokens


def results(model: LanguageModel, tokens: Tensor) -> tuple[Any, ...]:
    """Return states, gradients, counts of positions with a weight, and densities of heads."""
    nothing, lengths = torch.empty(len(tokens), 0, dtype=torch.long), torch.zeros(len(tokens), dtype=torch.long)
    decoded = model(nothing, lengths, tokens)
    grads = torch.autograd.grad(decoded.hidden.square().sum(), [*model.layers.parameters(), model.embedding.weight])
    stats = model.attention_stats()["decoder"]
    return decoded.hidden, grads, model.num_attended(decoded), [(each.density, each.support) for each in stats]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(map(str, kind.values())))
@pytest.mark.parametrize("shape", [(3, 11), (2, 300)], ids=str)
def test_separate_texts_match_masked_rows(
    kind: dict[str, Any], shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(3)
    model = LanguageModel(VOCAB, **{"d_model": 8, "heads": 2, "layers": 2, "d_ff": 12, **kind}).double()
    tokens = rows(*shape)
    alone = results(model, tokens)
    assert model._texts is not None and model._texts.index.shape[1] == 4
    monkeypatch.setattr(language, "split_rows", lambda tokens, d_model: None)
    torch.testing.assert_close(alone, results(model, tokens))
    assert model._texts is None


def test_rows_are_split_only_if_cheaper() -> None:
    tokens = torch.full((4, 64), 7)
    assert other_texts(tokens) is None and split_rows(tokens, 16) is None
    tokens[:, ::8] = BOS
    texts = split_rows(tokens, 16)
    assert texts is not None and texts.lengths.tolist() == [8] * 32
    tokens[:, 1:40] = 7  # a long text, followed by three short ones
    assert split_rows(tokens, 16) is None
    assert split_rows(tokens[:, :0], 16) is None


def test_need_weights_reads_whole_rows() -> None:
    model = LanguageModel(VOCAB, d_model=8, heads=2, layers=1, d_ff=8)
    tokens = rows(2, 8)
    _, weights = model._read(tokens, need_weights=True)
    assert weights is not None and weights.shape == (2, 8, 8) and model._texts is None
