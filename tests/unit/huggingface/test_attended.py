"""Hugging Face models whose queries attend to a given number of keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")  # before what imports it
pytest.importorskip("accelerate")  # its Trainer needs it

import torch
import transformers as tf
from torch import Tensor

from tiny_transformers import BY_NAME, build, inputs
from tsallis.huggingface import (
    AttentionLog,
    ControlAttended,
    DensityMeter,
    alphas,
    calibrate_attended,
    densify,
    from_pretrained,
    sparsify,
)
from tsallis.huggingface.alphas import ScaledAlpha
from tsallis.nn.attended import scale_change

BATCH = inputs(BY_NAME["bert"])
ROWS = [
    {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}
    for ids, mask in zip(BATCH["input_ids"], BATCH["attention_mask"], strict=True)
] * 4
NAMES = ["bert", "gpt2", "mistral", "bart", "t5"]


def trainer(model: Any, folder: Path, *callbacks: Any, arguments: dict[str, Any] | None = None) -> tf.Trainer:
    settings = {"max_steps": 4, "per_device_train_batch_size": 2, "learning_rate": 1e-2, "report_to": []}
    quiet = {"logging_steps": 2, "disable_tqdm": True, "use_cpu": True}
    training = tf.TrainingArguments(str(folder), **settings | quiet | (arguments or {}))
    return tf.Trainer(model, training, train_dataset=ROWS, callbacks=list(callbacks))


def scales(model: Any) -> list[float]:
    return [float(x.scale) for x in model.modules() if isinstance(x, ScaledAlpha)]


def naive_mean(model: Any, batch: dict[str, Tensor], decoder: Tensor | None) -> float:
    """Attended keys by query, from the weights of every head and layer, without padding."""
    with torch.no_grad():
        output = model(**batch, output_attentions=True)
    source = batch["attention_mask"].bool()
    parts = [(output.encoder_attentions, source), (output.decoder_attentions, decoder)] if decoder is not None else []
    parts += [(output.cross_attentions, decoder)] if decoder is not None else [(output.attentions, source)]
    counts = [(w > 0).sum(-1).transpose(1, 2)[active] for weights, active in parts for w in weights]
    return float(torch.cat(counts).double().mean())


@pytest.mark.parametrize("attended", [1.3, 2.5])
@pytest.mark.parametrize("name", NAMES)
def test_the_mean_is_met_without_padding(name: str, attended: float, tmp_path: Path) -> None:
    batch, model, decoder = inputs(BY_NAME[name]), sparsify(build(name), 1.5), None
    if BY_NAME[name].kind == "seq2seq":
        batch["decoder_input_ids"][1, 3:] = 0
        decoder = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    assert calibrate_attended(model, [batch], 1.5) == pytest.approx(1.5, rel=0.03)
    reached = calibrate_attended(model, [batch], attended)
    assert naive_mean(model, batch, decoder) == pytest.approx(reached, rel=1e-6)
    assert reached == pytest.approx(attended, rel=0.03)
    assert len(set(scales(model))) == 1 and scales(model)[0] != 1
    model.save_pretrained(tmp_path)
    loaded = from_pretrained(type(model), tmp_path)
    assert scales(loaded) == scales(model)
    with torch.no_grad():
        assert torch.equal(loaded.eval()(**batch)[0], model(**batch)[0])
        assert not torch.equal(densify(loaded)(**batch)[0], model(**batch)[0])


def test_a_mask_of_the_decoder_excludes_its_padding() -> None:
    batch, model = inputs(BY_NAME["bart"]), sparsify(build("bart"), 1.5)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])
    with torch.no_grad(), DensityMeter(model) as meter:
        model(**batch, decoder_attention_mask=mask)
    queries = [float(meter.sums([name])[2]) / 4 for name in meter.densities()]
    assert sorted(queries) == [7, 7, 7, 7, 11, 11]  # per head: encoder 7 + 4, decoder 5 + 2


@pytest.mark.filterwarnings("ignore:queries attend to")  # so few steps may or may not reach the target
@pytest.mark.parametrize("accumulate", [1, 2])
def test_training_moves_one_factor_that_is_saved_and_resumed(tmp_path: Path, accumulate: int) -> None:
    arguments = {"max_steps": 6, "save_steps": 3, "gradient_accumulation_steps": accumulate}
    callback, model = ControlAttended(), sparsify(build("bert"), attended=1.5)
    assert scales(model) == [1, 1] and {float(x) for x in alphas(model).values()} == {1.5}
    run = trainer(model, tmp_path, callback, arguments=arguments)
    run.add_callback(AttentionLog(run))  # measures the same passes
    run.train()
    assert len(set(scales(model))) == 1 and scales(model)[0] != 1 and callback.mean > 1
    assert all("density" in entry for entry in run.state.log_history if "alpha" in entry)
    resumed = sparsify(build("bert"), attended=1.5)
    again = trainer(resumed, tmp_path, ControlAttended(), arguments=arguments)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    for name, x in resumed.state_dict().items():
        assert torch.equal(x, model.state_dict()[name]), name
    assert scales(from_pretrained(tf.BertForMaskedLM, tmp_path / "checkpoint-3"))[0] != scales(model)[0]


@pytest.mark.filterwarnings("ignore:queries attend to")
def test_the_factor_follows_the_counts_of_all_batches_of_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[float]] = []

    def record(sums: Tensor, attended: float, step: int, updates: int) -> float:
        seen.append([*sums.tolist(), attended, step, updates])
        return scale_change(sums, attended, step, updates)

    monkeypatch.setattr("tsallis.huggingface.attended.scale_change", record)
    model = sparsify(build("bert"), {0: 1.5})
    sparsify(model, layers=1, attended=1.1)
    arguments = {"max_steps": 2, "gradient_accumulation_steps": 2, "save_strategy": "no"}
    callback = ControlAttended()
    trainer(model, tmp_path, callback, arguments=arguments).train()
    for step, (keys, visible, queries, *rest) in enumerate(seen, start=1):
        assert queries == 4 * 2 * (7 + 4) and visible == 4 * 2 * (7 * 7 + 4 * 4) and queries < keys <= visible
        assert rest == [1.1, step, 2]
    assert callback.mean == seen[-1][0] / seen[-1][2]
    callback.mean = 3.0
    with pytest.warns(UserWarning, match="queries attend to 3 keys on average, not to 1.1"):
        callback.on_train_end(None, None, None)


def test_half_precision_keeps_the_factor(tmp_path: Path) -> None:
    model, batch = sparsify(build("llama"), attended=3), inputs(BY_NAME["llama"])
    calibrate_attended(model, [batch], 2)
    before = scales(model)
    assert scales(model.to(torch.bfloat16)) == before
    assert {x.scale.dtype for x in model.modules() if isinstance(x, ScaledAlpha)} == {torch.float32}
    assert model(**batch)[0].dtype == torch.bfloat16


def test_impossible_settings_are_rejected(tmp_path: Path) -> None:
    for wrong in (0, -1, 0.5, float("nan")):
        with pytest.raises(ValueError, match=f"attended must be at least 1 and finite, got {wrong}"):
            sparsify(build("bert"), attended=wrong)
        with pytest.raises(ValueError, match=f"attended must be at least 1 and finite, got {wrong}"):
            calibrate_attended(sparsify(build("bert")), [], wrong)
    for alpha in (1.0, "learned", [1.5] * 4):
        with pytest.raises(ValueError, match="alpha must be one number above 1"):
            sparsify(build("bert"), alpha, attended=2)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="learned"):
        calibrate_attended(sparsify(build("bert"), "learned"), [], 2)
    with pytest.raises(ValueError, match=r"alpha must be one number above 1 to set attended, got 1.0"):
        calibrate_attended(sparsify(build("bert"), 1.0), [], 2)
    with pytest.raises(ValueError, match="sparsify first"):
        calibrate_attended(build("bert"), [], 2)
    with pytest.raises(ValueError, match=r"at most [0-9.]+, the mean number of visible keys, got 7"):
        calibrate_attended(sparsify(build("bert")), [inputs(BY_NAME["bert"])], 7)
    with pytest.raises(ValueError, match="got none"):
        trainer(sparsify(build("bert")), tmp_path, ControlAttended()).train()
    model = sparsify(sparsify(build("bert"), attended=2), layers=1, attended=3)
    with pytest.raises(ValueError, match=r"one setting attended: call sparsify with it, got 2.0 and 3.0"):
        trainer(model, tmp_path, ControlAttended()).train()
    arguments = {"torch_compile": True}
    with pytest.raises(ValueError, match="torch_compile=False"):
        trainer(sparsify(build("bert"), attended=2), tmp_path, ControlAttended(), arguments=arguments).train()
