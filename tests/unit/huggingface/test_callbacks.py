"""Tests of training with Transformers' Trainer and with PEFT."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")  # before the imports that need it
pytest.importorskip("accelerate")  # required by Trainer

import torch
import transformers as tf

from tiny_transformers import BY_NAME, alpha_parameters, build, inputs
from tsallis.huggingface import (
    AnnealAlpha,
    AttentionLog,
    alphas,
    from_pretrained,
    parameter_groups,
    set_alpha,
    sparsify,
    trainer_loss,
)

BATCH = inputs(BY_NAME["bert"])
ROWS = [
    {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}
    for ids, mask in zip(BATCH["input_ids"], BATCH["attention_mask"], strict=True)
]


def trainer(
    model: Any, folder: Path, *callbacks: Any, rows: Any = ROWS, arguments: dict[str, Any] | None = None, **options: Any
) -> tf.Trainer:
    settings = {
        "max_steps": 4,
        "per_device_train_batch_size": 2,
        "learning_rate": 1e-2,
        "report_to": [],
        "logging_steps": 2,
        "save_steps": 2,
        "disable_tqdm": True,
        "use_cpu": True,
    }
    training = tf.TrainingArguments(str(folder), **settings | (arguments or {}))
    return tf.Trainer(model, training, train_dataset=rows, callbacks=list(callbacks), **options)


def test_alphas_are_annealed_saved_and_resumed(tmp_path: Path) -> None:
    def values(model: Any) -> set[float]:
        return {float(x) for x in alphas(model).values()}

    model = sparsify(build("bert"), 1.0)
    trainer(model, tmp_path, AnnealAlpha(2.0, share=1.0)).train()
    assert values(model) == {2.0}
    half = from_pretrained(tf.BertForMaskedLM, tmp_path / "checkpoint-2")
    assert values(half) == {1.25}  # alpha at the second step
    resumed = sparsify(build("bert"), 1.0)
    trainer(resumed, tmp_path, AnnealAlpha(2.0, share=1.0)).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert values(resumed) == {2.0}
    for name, parameter in resumed.named_parameters():
        assert torch.equal(parameter, model.get_parameter(name)), name


def test_best_model_restores_its_alpha(tmp_path: Path) -> None:
    arguments = {
        "eval_strategy": "steps",
        "eval_steps": 2,
        "load_best_model_at_end": True,
        "metric_for_best_model": "eval_loss",
        "greater_is_better": True,  # selects the first checkpoint
    }
    model = sparsify(build("bert"), 1.0)
    run = trainer(model, tmp_path, AnnealAlpha(2.0, share=1.0), arguments=arguments, eval_dataset=ROWS)
    run.train()
    best = Path(run.state.best_model_checkpoint)
    losses = {entry["step"]: entry["eval_loss"] for entry in run.state.log_history if "eval_loss" in entry}
    assert best.name == "checkpoint-2" and {float(x) for x in alphas(model).values()} == {1.25}
    assert run.evaluate()["eval_loss"] == pytest.approx(losses[2])
    assert alphas(from_pretrained(tf.BertForMaskedLM, best)) == alphas(model)


def test_learned_alphas_train_and_are_logged(tmp_path: Path) -> None:
    model = sparsify(build("bert"), "learned", initial=1.5)
    before = alphas(model)
    optimizers = (torch.optim.AdamW(parameter_groups(model, 1e-3)), None)
    run = trainer(model, tmp_path, optimizers=optimizers, compute_loss_func=trainer_loss(1.5))
    run.add_callback(AttentionLog(run))
    run.train()
    assert all((x - before[name]).abs().min() > 1e-3 for name, x in alphas(model).items())
    entries = [entry for entry in run.state.log_history if "density" in entry]
    assert [entry["step"] for entry in entries] == [2, 4]
    name = "bert.encoder.layer.0.attention.self"
    assert 0 < entries[0][f"density/{name}"] < 1 and 1 < entries[0][f"alpha/{name}"] < 2
    assert [entry["step"] for entry in run.state.log_history if "loss" in entry] == [2, 4]
    loaded = from_pretrained(tf.BertForMaskedLM, tmp_path / "checkpoint-4")
    assert all(torch.equal(alphas(loaded)[key], x) for key, x in alphas(model).items())


LOGGED = [
    ({"logging_steps": 3, "logging_first_step": True}, [1, 3]),
    ({"logging_steps": 0.5}, [2, 4]),
    ({"logging_strategy": "epoch", "logging_first_step": True, "gradient_accumulation_steps": 3}, [1, 2, 3, 4]),
    ({"logging_strategy": "no"}, []),
]


@pytest.mark.parametrize(("arguments", "steps"), LOGGED)
def test_attention_is_logged_at_the_steps_of_the_loss(
    arguments: dict[str, Any], steps: list[int], tmp_path: Path
) -> None:
    """Check that attention is logged at the same steps as the loss. An epoch has three batches."""
    arguments = {"save_strategy": "no", **arguments}
    run = trainer(sparsify(build("bert"), 1.5), tmp_path, rows=ROWS * 3, arguments=arguments)
    run.add_callback(AttentionLog(run))
    for _ in range(2):
        run.train()
        history = run.state.log_history
        assert [entry["step"] for entry in history if "loss" in entry] == steps
        assert [entry["step"] for entry in history if "density" in entry] == steps


def test_new_training_ends_an_interrupted_measurement(tmp_path: Path) -> None:
    class Interrupted(tf.Trainer):
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            raise KeyboardInterrupt

    run = trainer(sparsify(build("bert"), 1.5), tmp_path, arguments={"logging_steps": 1, "save_strategy": "no"})
    run.add_callback(callback := AttentionLog(run))
    torch.compile(lambda x: x, backend="eager")(torch.ones(1))  # initializes the compiler, which the callback disables
    broken = Interrupted(run.model, run.args, train_dataset=ROWS, callbacks=[callback])
    with pytest.raises(KeyboardInterrupt):
        broken.train()
    run.train()
    graphs: list[Any] = []
    torch.compile(lambda x: x + 1, backend=lambda graph, _: graphs.append(graph) or graph.forward)(torch.ones(1))
    assert len(graphs) == 1


def test_densities_are_omitted_if_the_epoch_end_is_unknown(tmp_path: Path) -> None:
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self) -> Iterator[Any]:
            return iter(ROWS * 3)

    arguments = {"logging_strategy": "epoch", "logging_first_step": True, "save_strategy": "no"}
    run = trainer(sparsify(build("bert"), 1.5), tmp_path, rows=Stream(), arguments=arguments)
    run.add_callback(AttentionLog(run))
    run.train()
    assert [entry["step"] for entry in run.state.log_history if "loss" in entry] == [1, 3, 4]
    entries = [entry for entry in run.state.log_history if "alpha" in entry]
    assert [(entry["step"], "density" in entry) for entry in entries] == [(1, True), (3, False), (4, True)]


def test_trainer_excludes_alphas_from_weight_decay(tmp_path: Path) -> None:
    model = sparsify(build("bert"), "learned")
    decayed = trainer(model, tmp_path).get_decay_parameter_names(model)
    assert decayed and not [name for name in decayed if "alpha" in name]


def test_invalid_settings_raise() -> None:
    with pytest.raises(ValueError, match=r"share must be above 0 and at most 1, got 0\.0"):
        AnnealAlpha(share=0.0)
    with pytest.raises(ValueError, match=r"alpha must be finite and at least 1, got 0\.5"):
        AnnealAlpha(target=0.5)


def test_peft_adapters_learn_and_save_alphas(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    batch = inputs(BY_NAME["llama"])
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["tsallis_alpha"])
    model = peft.get_peft_model(sparsify(build("llama"), "learned", initial=1.5), config)
    parameters = alpha_parameters(model)
    assert len(parameters) == 2 and all(x.requires_grad for x in parameters)
    optimizer = torch.optim.AdamW(parameter_groups(model, 1e-2))
    model(**batch).logits.square().mean().backward()
    optimizer.step()
    learned = list(alphas(model).values())
    with model.disable_adapter():
        assert all((x == 1.5).all() for x in alphas(model).values())
    assert all((x - 1.5).abs().min() > 1e-3 for x in learned)
    model.save_pretrained(tmp_path)
    loaded = peft.PeftModel.from_pretrained(sparsify(build("llama"), "learned", initial=1.5), tmp_path)
    assert all(torch.equal(one, other) for one, other in zip(alphas(loaded).values(), learned, strict=True))
    with torch.no_grad():
        assert torch.equal(loaded(**batch).logits, model.eval()(**batch).logits)
        merged = loaded.merge_and_unload()
        torch.testing.assert_close(merged(**batch).logits, model(**batch).logits)
    assert all(torch.equal(one, other) for one, other in zip(alphas(merged).values(), learned, strict=True))


@pytest.mark.parametrize(("alpha", "modules"), [("learned", None), (1.5, ["tsallis_alpha"])])
def test_alphas_added_to_an_adapter_give_a_warning(alpha: Any, modules: Any) -> None:
    """PEFT saves only modules that it found when the adapter was added."""
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=modules)
    for adapt in (peft.get_peft_model, lambda model, config: model.add_adapter(config) or model):
        with pytest.warns(UserWarning, match=r"call sparsify first, then add the adapter.*\['tsallis_alpha'\]"):
            sparsify(adapt(build("llama"), config), alpha)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        sparsify(peft.get_peft_model(build("llama"), peft.LoraConfig(r=2, target_modules=["q_proj"])), 1.5)


def test_peft_saves_fixed_alphas_only_in_modules_to_save(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    for folder, modules, expected in (("without", None, 1.5), ("with", ["tsallis_alpha"], 1.75)):
        config = peft.LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=modules)
        model = peft.get_peft_model(sparsify(build("llama"), 1.25), config)
        set_alpha(model, 1.75)
        model.save_pretrained(tmp_path / folder)
        loaded = peft.PeftModel.from_pretrained(sparsify(build("llama"), 1.5), tmp_path / folder)
        assert {float(x) for x in alphas(loaded).values()} == {expected}


def test_annealed_alphas_that_an_adapter_does_not_save_give_a_warning() -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["q_proj"])
    for adapt in (peft.get_peft_model, lambda model, config: model.add_adapter(config) or model):
        with pytest.warns(UserWarning, match=r"does not save the alphas .* modules_to_save=\['tsallis_alpha'\]"):
            AnnealAlpha().on_train_begin(None, None, None, model=adapt(sparsify(build("llama"), 1.0), config))
    config.modules_to_save = ["tsallis_alpha"]
    saved = peft.get_peft_model(sparsify(build("llama"), 1.0), config)
    config = peft.LoraConfig(r=2, target_modules=["q_proj"])
    final = peft.get_peft_model(sparsify(build("llama"), 1.5), config)  # AnnealAlpha ends with the alpha of sparsify
    for model in (build("llama"), saved, final):
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            AnnealAlpha().on_train_begin(None, None, None, model=model)
