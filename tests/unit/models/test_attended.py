"""Tests of calibrating trained models to attend to a given number of positions per query."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tsallis.errors import InputError
from tsallis.models import Batch, LanguageModel, RNNSeq2Seq, TransformerSeq2Seq, calibrate_attended
from tsallis.symbols import BOS, PAD

SIZES = {"d_model": 8, "heads": 2, "layers": 2, "d_ff": 12}


def batches(src_width: int = 9) -> list[Batch]:
    """Return two batches with padded sources and targets of different lengths."""
    torch.manual_seed(4)
    made = []
    for rows, tgt_width in ((4, 7), (3, 12)):
        src, tgt_in = torch.randint(4, 15, (rows, src_width)), torch.randint(4, 15, (rows, tgt_width))
        lengths, ends = torch.randint(1, src_width + 1, (rows,)), torch.randint(2, tgt_width + 1, (rows, 1))
        src[torch.arange(src_width) >= lengths.unsqueeze(1)] = PAD
        tgt_in[:, 0] = BOS
        tgt_in[torch.arange(tgt_width) >= ends] = PAD
        made.append(Batch(src, lengths, tgt_in, tgt_in, tuple(range(rows))))
    return made


def transformer(**options: Any) -> TransformerSeq2Seq:
    torch.manual_seed(5)
    return TransformerSeq2Seq(20, 15, **SIZES, **{"dropout": 0.5, **options})


def language_model(**options: Any) -> LanguageModel:
    torch.manual_seed(5)
    return LanguageModel(15, **SIZES, **options)


def naive_mean(model: Any, data: list[Batch]) -> float:
    """Return the mean number of attended positions per query, from all attention weights, without padding."""
    seen: list[tuple[bool, Tensor]] = []  # (is encoder, weights [batch, heads, queries, keys])
    asked = {"need_weights": True, "average_attn_weights": False}
    hooks = []
    for kind, part in model.attentions().items():

        def ask(module: Any, args: Any, given: Any) -> Any:
            return args, given | asked

        def note(module: Any, args: Any, output: Any, encoder: bool = kind == "encoder") -> None:
            seen.append((encoder, output[1]))

        for attention in part:
            hooks += [attention.register_forward_pre_hook(ask, with_kwargs=True), attention.register_forward_hook(note)]
    counts: list[int] = []
    for batch in data:
        seen.clear()
        model(batch.src, batch.src_lengths, batch.tgt_in)
        for encoder, weights in seen:
            tokens = batch.src if encoder else batch.tgt_in
            for row in range(len(tokens)):
                for query in (tokens[row] != PAD).nonzero().flatten().tolist():
                    counts += [int((head[query] > 0).sum()) for head in weights[row]]
    for hook in hooks:
        hook.remove()
    return sum(counts) / len(counts)


@pytest.mark.parametrize("attended", [1.2, 2, 3])
@pytest.mark.parametrize(
    "options",
    [{}, {"attention": "sparsemax", "norm": "pre"}, {"positions": "alibi", "length_scale": "head"}],
    ids=lambda options: "-".join(options) or "default",
)
@torch.no_grad()
def test_calibrated_transformer_reaches_the_mean(attended: float, options: dict[str, Any]) -> None:
    model, data = transformer(**options), batches()
    reached = calibrate_attended(model, data, attended)
    assert model.training, "the mode is restored"
    naive = naive_mean(model.eval(), data)
    assert naive == pytest.approx(reached, rel=1e-9) and naive == pytest.approx(attended, rel=0.03)


@pytest.mark.parametrize("positions", ["none", "rope", "nape"])
@torch.no_grad()
def test_calibrated_language_model_reaches_the_mean(positions: Any) -> None:
    model = language_model(positions=positions, kv_heads=1)
    data = [Batch(b.src[:, :0], b.src_lengths * 0, b.tgt_in, b.tgt_in, b.index) for b in batches()]
    reached = calibrate_attended(model, data, 2)
    assert naive_mean(model.eval(), data) == pytest.approx(reached, rel=1e-9) and reached == pytest.approx(2, rel=0.03)


@torch.no_grad()
def test_texts_in_one_row_are_counted_without_their_padding() -> None:
    """Check rows with several texts, when the model attends to each text separately."""
    model = language_model().eval()
    tokens = torch.randint(4, 15, (2, 12))
    tokens[:, [0, 5]] = BOS
    tokens[1, 9:] = PAD
    model(tokens[:, :0], torch.zeros(2, dtype=torch.long), tokens)
    assert model._texts is not None
    texts = [tokens[0, :5], tokens[0, 5:], tokens[1, :5], tokens[1, 5:9]]
    expected = torch.zeros(3, dtype=torch.float64)
    counted = model.count_attended(tokens)
    for text in texts:
        model(tokens[:1, :0], torch.zeros(1, dtype=torch.long), text.unsqueeze(0))
        expected += model.count_attended(text.unsqueeze(0))
    torch.testing.assert_close(counted, expected)


@torch.no_grad()
def test_calibration_keeps_train_and_eval_modes() -> None:
    model = transformer().train()
    frozen = model.encoder.eval()
    calibrate_attended(model, batches(), 2)
    assert model.training
    assert not any(part.training for part in frozen.modules())


@torch.no_grad()
def test_calibrated_weights_are_in_the_state_dict() -> None:
    data = batches()
    model, loaded = transformer(), transformer()
    calibrate_attended(model, data, 2)
    loaded.load_state_dict(model.state_dict())
    arguments = data[0].src, data[0].src_lengths, data[0].tgt_in
    assert torch.equal(loaded.eval()(*arguments).hidden, model.eval()(*arguments).hidden)
    state = model.start(model.encode(*arguments[:2]))  # compiled kernels see the scaled weights too
    scores = model.step(state, arguments[2][:, 0]).scores
    torch.testing.assert_close(scores, model.output.scores(model(*arguments).hidden[:, 0]), atol=1e-5, rtol=1e-5)


def test_impossible_calls_are_rejected() -> None:
    for wrong in (0, -1, 0.99, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=f"attended must be at least 1 and finite, got {wrong}"):
            calibrate_attended(transformer(), batches(), wrong)
    with pytest.raises(ValueError, match=r"attended must be at most [0-9.]+, the mean number of visible keys, got 9"):
        calibrate_attended(transformer(), batches(), 9)
    with pytest.raises(InputError, match=r"fixed alpha above 1, found 1$"):
        calibrate_attended(transformer(cross_attention="softmax"), batches(), 2)
    with pytest.raises(InputError, match="fixed alpha above 1, found a learned alpha"):
        calibrate_attended(transformer(attention="learned"), batches(), 2)
    with pytest.raises(InputError, match="needs a Transformer, found RNNSeq2Seq"):
        calibrate_attended(RNNSeq2Seq(20, 15, d_model=8), batches(), 2)
    with pytest.raises(InputError, match="batches must be readable several times"):
        calibrate_attended(transformer(), iter(batches()), 2)
    with pytest.raises(ValueError, match="without prompts"):
        calibrate_attended(language_model(), batches(3), 2)
