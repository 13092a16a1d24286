"""Tests of the decoder-only model: steps agree with one pass over a text, and outputs continue prompts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tsallis.models import LanguageModel
from tsallis.models.protocol import join
from tsallis.ops.choice import choose_screening
from tsallis.symbols import BOS, PAD

VOCAB = 9
KINDS: list[dict[str, Any]] = [
    {},
    {"heads": 4, "kv_heads": 2},
    {"positions": "rope", "length_scale": "head", "alpha": "learned", "kv_heads": 1},
    {"positions": "alibi", "alpha": 1.0, "output": "softmax", "share": False},
    {"positions": "none", "length_scale": "input", "alpha": 2.0, "output": "sparsemax", "layers": 1},
]
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(map(str, kind.values())) or "default")


def model_of(kind: dict[str, Any]) -> LanguageModel:
    torch.manual_seed(2)
    model = LanguageModel(VOCAB, **{"d_model": 8, "heads": 2, "layers": 2, "d_ff": 12, **kind}).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return model


def prompts() -> tuple[Tensor, Tensor]:
    src, lengths = torch.randint(4, VOCAB, (3, 4)), torch.tensor([4, 1, 3])
    return src.masked_fill(torch.arange(4) >= lengths.unsqueeze(1), PAD), lengths


@every_kind
def test_steps_after_a_prompt_match_one_pass(kind: dict[str, Any]) -> None:
    model, (src, lengths) = model_of(kind), prompts()
    follows = torch.randint(4, VOCAB, (3, 5))
    tgt_in = torch.cat([torch.full((3, 1), BOS), follows], 1)
    decoded = model(src, lengths, tgt_in, need_attention=True)
    expected = model.output.scores(decoded.hidden)
    for row in range(3):  # the same text without padding
        text = torch.cat([torch.tensor([BOS]), src[row, : lengths[row]], follows[row]]).unsqueeze(0)
        alone = model.output.scores(model.read(text))[0, lengths[row] :]
        torch.testing.assert_close(expected[row], alone)
    with torch.no_grad():
        state = model.start(model.encode(src, lengths))
        for number in range(6):
            step = model.step(state, tgt_in[:, number])
            torch.testing.assert_close(step.scores, expected[:, number].detach())
            torch.testing.assert_close(step.attention, decoded.attention[:, number].detach())
            state = step.state


@every_kind
def test_rows_are_selected_and_joined(kind: dict[str, Any]) -> None:
    model, (src, lengths) = model_of(kind), prompts()
    with torch.no_grad():
        whole = model.start(model.encode(src, lengths))
        parts = join([whole.select(torch.tensor([1])), whole.select(torch.tensor([0, 2]))])
        for _ in range(3):
            token = torch.randint(4, VOCAB, (3,))
            one, other = model.step(whole, token), model.step(parts, token[[1, 0, 2]])
            torch.testing.assert_close(other.scores, one.scores[[1, 0, 2]])
            whole, parts = one.state, other.state


@pytest.mark.parametrize("equal", [False, True], ids=["lengths-differ", "equal-lengths"])
def test_branched_states_are_independent(equal: bool) -> None:
    """Check that two steps from the same state do not write to the same memory of a cache."""
    model, (src, lengths) = model_of({"kv_heads": 1}), prompts()
    if equal:
        src, lengths = src[:, :1], torch.ones(3, dtype=torch.long)
    branches = torch.randint(4, VOCAB, (2, 3, 12))  # long enough for memory to grow
    branches[:, :, 0] = BOS
    expected = [model.output.scores(model(src, lengths, tokens).hidden).detach() for tokens in branches]
    with torch.no_grad():
        start = model.step(model.start(model.encode(src, lengths)), branches[0, :, 0])
        states = [start.state, start.state]
        for number in range(1, 12):
            steps = [model.step(state, tokens[:, number]) for state, tokens in zip(states, branches, strict=True)]
            for step, scores in zip(steps, expected, strict=True):
                torch.testing.assert_close(step.scores, scores[:, number])
            states = [step.state.select(torch.arange(3)) for step in steps]


@pytest.mark.skipif(choose_screening("cpu") is None, reason="needs kernels: they scan the keys")
@pytest.mark.parametrize("kind", KINDS[:3], ids=str)
@pytest.mark.parametrize("rows", [1, 2])
def test_scanned_keys_match_scores_of_one_pass(
    kind: dict[str, Any], rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that 8-bit rows are copied when states branch, and follow the selected rows."""
    monkeypatch.setattr("tsallis.ops.cpu.screening.MIN_KEYS", 1)
    model = model_of(kind).float()
    src, lengths = torch.randint(4, VOCAB, (rows, 40)), torch.full((rows,), 40)
    branches = torch.randint(4, VOCAB, (2, rows, 30))  # long enough for memory to grow
    branches[:, :, 0] = BOS
    expected = [model(src, lengths, tokens, need_attention=True) for tokens in branches]
    order = torch.arange(rows).flip(0)
    with torch.no_grad():
        start = model.step(model.start(model.encode(src, lengths)), branches[0, :, 0])
        states = [start.state, start.state]
        for number in range(1, 30):
            steps = [model.step(state, tokens[:, number]) for state, tokens in zip(states, branches, strict=True)]
            for step, wanted in zip(steps, expected, strict=True):
                scores = model.output.scores(wanted.hidden[:, number])
                torch.testing.assert_close(step.scores, scores, atol=1e-4, rtol=1e-4)
                torch.testing.assert_close(step.attention, wanted.attention[:, number], atol=1e-4, rtol=1e-4)
                assert len(step.state.kv.scanned) == model.arguments["layers"]
            states = [step.state for step in steps]
            if number == 15:
                states = [state.select(order).select(order) for state in states]


@every_kind
def test_texts_in_one_row_do_not_attend_to_each_other(kind: dict[str, Any]) -> None:
    model = model_of(kind)
    texts = [torch.tensor([BOS, *torch.randint(4, VOCAB, (n,))]) for n in (4, 1, 6)]
    nothing, lengths = torch.empty(2, 0, dtype=torch.long), torch.zeros(2, dtype=torch.long)
    row = torch.cat([torch.randint(4, VOCAB, (3,)), *texts])  # the row starts in the middle of a text
    hidden = model(nothing, lengths, torch.stack([row, row.flip(0)])).hidden[0]
    parts = hidden.split([3, *map(len, texts)])
    for text, part in zip([row[:3], *texts], parts, strict=True):
        torch.testing.assert_close(part, model.read(text.unsqueeze(0))[0])
    counts = model.num_attended(model(nothing[:1], lengths[:1], row.unsqueeze(0)))[0]
    assert (counts <= torch.cat([torch.arange(1, n + 1) for n in map(len, parts)])).all() and (counts >= 1).all()


def test_num_attended_raises_after_another_pass() -> None:
    model, (src, lengths) = model_of({}), prompts()
    tgt_in, nothing = torch.tensor([[BOS, 5, 6]]).expand(3, -1), torch.empty(3, 0, dtype=torch.long)
    with pytest.raises(RuntimeError, match="no attended positions are recorded"):
        model.num_attended(model_of({})(src, lengths, tgt_in))
    prompted = model(src, lengths, tgt_in)
    assert model.num_attended(prompted).shape == (3, 3)
    for other in (src[:2], lengths[:2], tgt_in[:2]), (nothing, lengths * 0, torch.full((3, 6), BOS)):
        model(*other)
        with pytest.raises(RuntimeError, match="the requested pass has 3 rows and 3 steps"):
            model.num_attended(prompted)
    model.start(model.encode(src, lengths))  # reads only the prompts
    with pytest.raises(RuntimeError, match=r"3 rows and 4 steps, .* 3 rows and 3 steps"):
        model.num_attended(prompted)


@every_kind
def test_a_prompt_may_be_empty(kind: dict[str, Any]) -> None:
    model, tgt_in = model_of(kind), torch.tensor([[BOS, 5, 6], [BOS, 7, 4]])
    expected = model.read(tgt_in)
    for width in (0, 2):
        src, lengths = torch.full((2, width), 8), torch.zeros(2, dtype=torch.long)
        decoded = model(src, lengths, tgt_in, need_attention=True)
        torch.testing.assert_close(decoded.hidden, expected)
        assert decoded.attention is not None and decoded.attention.shape == (2, 3, width)
        assert not decoded.attention.any()
        with torch.no_grad():
            state = model.start(model.encode(src, lengths))
            for number in range(3):
                step = model.step(state, tgt_in[:, number])
                torch.testing.assert_close(step.scores, model.output.scores(expected[:, number]).detach())
                state = step.state


def test_share_ties_embedding_and_projection() -> None:
    assert model_of({}).shared_parameters() == {"output.projection.weight": "embedding.weight"}
    assert model_of({"share": False}).shared_parameters() == {}
