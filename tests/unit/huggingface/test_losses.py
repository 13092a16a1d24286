"""Tests that losses of Transformers models match those computed from their logits."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("transformers")  # before the imports that need it

import torch
import transformers as tf
from torch import Tensor

import tsallis
from tiny_transformers import BY_NAME, GROUPED, SEQ2SEQ, SMALL, TEXT, build, fill, inputs
from tsallis.huggingface import lm_loss, trainer_loss

BERT = {**SMALL, **TEXT, "is_decoder": True}
MODELS = {
    "llama": BY_NAME["llama"].make,
    "gpt2": BY_NAME["gpt2"].make,
    # Models with a transform or a scaling before the output projection.
    "bert": lambda: tf.BertLMHeadModel(tf.BertConfig(**BERT)),
    "roberta": lambda: tf.RobertaForCausalLM(tf.RobertaConfig(**BERT)),
    "electra": lambda: tf.ElectraForCausalLM(tf.ElectraConfig(**BERT, embedding_size=8)),
    "modernbert": lambda: tf.ModernBertDecoderForCausalLM(
        tf.ModernBertDecoderConfig(**SMALL, **TEXT, local_attention=4, cls_token_id=1, sep_token_id=2)
    ),
    "scaled": lambda: ScaledBefore(tf.LlamaConfig(**GROUPED)),
}


class ScaledBefore(tf.LlamaForCausalLM):
    def __init__(self, config: tf.LlamaConfig) -> None:
        super().__init__(config)
        self.lm_head.register_forward_pre_hook(lambda _, args: (args[0] / 3,))


class ChangedAfter(tf.LlamaForCausalLM):
    """A model that changes its logits, initially all 0, in a way that its configuration does not mention."""

    def __init__(self, config: tf.LlamaConfig, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__(config)
        self.change = change

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        torch.nn.init.zeros_(self.lm_head.weight)
        output = super().forward(*args, **kwargs)
        output.logits = self.change(output.logits)
        return output


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("alpha", [1.0, 1.5])
def test_lm_loss_matches_loss_of_logits(name: str, alpha: float) -> None:
    batch, model = inputs(BY_NAME["llama"]), fill(MODELS[name])
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    shift = True if name == "modernbert" else None  # the model of Transformers 5.4 shifts labels itself
    results = []
    for loss in (
        lambda: trainer_loss(alpha, shift=True)(model(**batch), labels),
        lambda: lm_loss(model, {**batch, "labels": labels}, alpha, shift=shift),
    ):
        model.zero_grad()
        value = loss()
        value.backward()
        results.append([value.detach(), *(x.grad.clone() for x in model.parameters() if x.grad is not None)])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
    if alpha == 1:
        torch.testing.assert_close(results[0][0], model(**batch, labels=labels).loss.detach(), rtol=1e-5, atol=1e-5)


UNSHIFTED = {
    **{name: functools.partial(build, name) for name in ("bert", "roberta", "bart", "marian", "t5")},
    "m2m": lambda: fill(lambda: tf.M2M100ForConditionalGeneration(tf.M2M100Config(**SEQ2SEQ, **TEXT))),
}


@pytest.mark.parametrize("name", UNSHIFTED)
def test_masked_models_and_encoder_decoders_do_not_shift_labels(name: str) -> None:
    batch, model = inputs(BY_NAME["bert"]), UNSHIFTED[name]()
    labels = batch["input_ids"].flip(1).masked_fill(batch["attention_mask"] == 0, -100)
    output = model(**batch, labels=labels)
    torch.testing.assert_close(lm_loss(model, {**batch, "labels": labels}, 1.0), output.loss, rtol=1e-5, atol=1e-5)
    expected = tsallis.entmax_loss(output.logits, labels, 1.5)
    torch.testing.assert_close(lm_loss(model, {**batch, "labels": labels}, 1.5), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["PromptTuningConfig", "PrefixTuningConfig"])
def test_lm_loss_matches_models_with_peft_prompts(kind: str) -> None:
    peft = pytest.importorskip("peft")
    batch = inputs(BY_NAME["llama"])
    config = getattr(peft, kind)(num_virtual_tokens=4, task_type="CAUSAL_LM")
    model = peft.get_peft_model(build("llama"), config)
    prompts = [x for name, x in model.named_parameters() if "prompt" in name]
    with torch.no_grad():
        for prompt in prompts:
            prompt.normal_()
    items = {**batch, "labels": batch["input_ids"]}
    gradients = []
    for loss in (model(**items).loss, lm_loss(model, items, 1.0)):
        gradients.append([loss, *torch.autograd.grad(loss, prompts)])
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


def test_lm_loss_includes_the_router_loss() -> None:
    sizes = {"num_local_experts": 3, "router_aux_loss_coef": 0.5}
    model = fill(lambda: tf.MixtralForCausalLM(tf.MixtralConfig(**GROUPED, **sizes, output_router_logits=True)))
    batch = inputs(BY_NAME["llama"])
    items = {**batch, "labels": batch["input_ids"]}
    torch.testing.assert_close(lm_loss(model, items, 1.0), model(**items).loss, rtol=1e-5, atol=1e-5)


def test_unknown_router_losses_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fill(lambda: tf.SwitchTransformersForConditionalGeneration(tf.SwitchTransformersConfig(**SEQ2SEQ, **TEXT)))
    ids = inputs(BY_NAME["llama"])["input_ids"]
    with pytest.raises(ValueError, match="output_router_logits must be False for SwitchTransformers"):
        lm_loss(model, {"input_ids": ids, "labels": ids, "output_router_logits": True})
    model = fill(lambda: tf.JetMoeForCausalLM(tf.JetMoeConfig(**GROUPED, kv_channels=4, num_local_experts=3)))
    items = {"input_ids": ids, "labels": ids, "output_router_logits": True}
    torch.testing.assert_close(lm_loss(model, items, 1.0), model(**items).loss)
    del model.aux_loss_coef, model.config.aux_loss_coef
    monkeypatch.delattr(tf.JetMoeConfig, "aux_loss_coef", raising=False)
    with pytest.raises(ValueError, match="JetMoeForCausalLM has a router loss, but its factor is unknown"):
        lm_loss(model, items)


def test_sums_of_half_precision_do_not_overflow() -> None:
    model, ids = build("llama").half(), torch.randint(5, 40, (256, 64))
    items = {"input_ids": ids, "labels": ids, "num_items_in_batch": ids.numel()}
    with torch.no_grad():
        outputs = model(**items)
        losses = lm_loss(model, items, 1.0), trainer_loss(1.0, shift=True)(outputs, ids, ids.numel())
    for loss in losses:
        torch.testing.assert_close(loss, outputs.loss, rtol=1e-3, atol=0)


def test_probability_labels_shift_positions() -> None:
    logits, labels = torch.randn(2, 5, 7), torch.randn(2, 5, 7).softmax(-1)
    expected = tsallis.entmax_loss(logits[:, :-1], labels[:, 1:], 1.5)
    torch.testing.assert_close(trainer_loss(1.5, shift=True)({"logits": logits}, labels), expected)


def test_lm_loss_uses_given_decoder_input_ids() -> None:
    batch, model = inputs(BY_NAME["t5"]), build("t5")
    items = {**batch, "labels": batch["decoder_input_ids"]}
    torch.testing.assert_close(lm_loss(model, items, 1.0), model(**items).loss)


def test_shift_argument_controls_label_shift() -> None:
    """Check BART's decoder, which has a loss that does not shift labels."""
    batch = inputs(BY_NAME["llama"])
    model = fill(lambda: tf.BartForCausalLM(tf.BartConfig(**SEQ2SEQ, **TEXT)))
    items = {**batch, "labels": batch["input_ids"]}
    with pytest.raises(ValueError, match="whether BartForCausalLM shifts labels: pass shift="):
        lm_loss(model, items)
    output = model(**items)
    torch.testing.assert_close(lm_loss(model, items, 1.0, shift=False), output.loss, rtol=1e-5, atol=1e-5)
    shifted = trainer_loss(1.0, shift=True)(output, items["labels"])
    torch.testing.assert_close(lm_loss(model, items, 1.0, shift=True), shifted, rtol=1e-5, atol=1e-5)
    for wrong in (torch.nn.Linear(2, 2), torch.nn.DataParallel(torch.nn.Linear(2, 2))):
        with pytest.raises(TypeError, match=f"model must be a Transformers model, also .*, got {type(wrong).__name__}"):
            lm_loss(wrong, items)


def test_num_items_in_batch_divides_the_loss() -> None:
    batch, model = inputs(BY_NAME["llama"]), build("llama")
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    count = int((labels[:, 1:] != -100).sum())
    items = {**batch, "labels": labels}
    torch.testing.assert_close(lm_loss(model, items, num_items_in_batch=count), lm_loss(model, items))
    loss, outputs = trainer_loss(1.5, shift=True), model(**batch)
    torch.testing.assert_close(loss(outputs, labels, num_items_in_batch=2 * count) * 2, loss(outputs, labels))


def test_trainer_loss_supports_classification() -> None:
    logits, labels = torch.randn(4, 3), torch.tensor([0, 2, 1, -100])
    smooth = trainer_loss(2.0, label_smoothing=0.1)({"logits": logits}, labels)
    torch.testing.assert_close(smooth, tsallis.entmax_loss(logits, labels, 2.0, label_smoothing=0.1))
    with pytest.raises(ValueError, match="batches must have labels, got none"):
        trainer_loss()({"logits": logits}, None)
    with pytest.raises(ValueError, match="must return logits, got last_hidden_state"):
        trainer_loss()({"last_hidden_state": logits}, labels)
    assert torch.equal(trainer_loss(1.5)((logits,), labels), trainer_loss(1.5)({"logits": logits}, labels))
    with pytest.raises(ValueError, match=r"shape \[2, 9\], one per position of the logits, got \[2, 7\].* use lm_loss"):
        trainer_loss(shift=True)({"logits": torch.randn(2, 9, 4)}, torch.zeros(2, 7, dtype=torch.long))


def test_lm_loss_projects_only_one_position() -> None:
    batch, model = inputs(BY_NAME["llama"]), build("llama")
    shapes = []
    model.lm_head.register_forward_hook(lambda _, args, output: shapes.append((args[0].shape, output.shape)))
    lm_loss(model, {**batch, "labels": batch["input_ids"]}).backward()
    assert shapes == [((2, 1, 16), (2, 1, 40))]


def test_lm_loss_of_compiled_models_matches() -> None:
    batch, model = inputs(BY_NAME["llama"]), build("llama")
    items = {**batch, "labels": batch["input_ids"]}
    reference, logits = lm_loss(model, items), model(**batch).logits
    compiled = torch.compile(model, backend="eager")
    for forward in (compiled, model):
        assert torch.equal(lm_loss(forward, items), reference)
        torch.testing.assert_close(forward(**batch).logits, logits)
        assert torch.equal(lm_loss(forward, items), reference)
        model.compile(backend="eager")
    step = torch.compile(lambda: lm_loss(model, items), backend="eager")
    assert torch.equal(step(), reference) and torch.equal(step(), reference)


def test_lm_loss_of_offloaded_model_matches_loss_of_model() -> None:
    accelerate = pytest.importorskip("accelerate")
    model, batch = build("llama"), inputs(BY_NAME["llama"])
    accelerate.cpu_offload(model, execution_device="cpu")
    items = {**batch, "labels": batch["input_ids"]}
    with torch.no_grad():
        torch.testing.assert_close(lm_loss(model, items, 1.0), model(**items).loss, rtol=1e-5, atol=1e-5)
    assert model.lm_head.weight.is_meta


def test_failed_lm_loss_leaves_no_hooks() -> None:
    batch, model = inputs(BY_NAME["llama"]), build("llama")
    logits = model(**batch).logits
    with pytest.raises(ValueError, match=r"labels must have shape \[2, 3\], .*, got \[2, 7\]"):
        lm_loss(model, {**batch, "labels": batch["input_ids"], "logits_to_keep": 3})
    with pytest.raises(TypeError):
        lm_loss(model, {"input_ids": 3, "labels": batch["input_ids"]})
    assert torch.equal(model(**batch).logits, logits)


@pytest.mark.parametrize(
    "change",
    [lambda x: 2 * x, lambda x: 30 * (x / 30).tanh(), lambda x: x[..., :-1], lambda x: x.clamp(max=99)],
    ids=["factor", "cap", "slice", "clamp"],
)
def test_models_that_change_logits_are_rejected(change: Callable[[Tensor], Tensor]) -> None:
    batch, model = inputs(BY_NAME["llama"]), ChangedAfter(tf.LlamaConfig(**GROUPED), change)
    with pytest.raises(ValueError, match="ChangedAfter changes its logits after the projection"):
        lm_loss(model, {**batch, "labels": batch["input_ids"]})


UNSUPPORTED = [
    (lambda: build("llama"), None, "inputs must have labels, got input_ids, attention_mask"),
    (lambda: build("llama").model, True, "the output layer of LlamaModel must be a torch.nn.Linear"),
    (lambda: tf.Gemma2ForCausalLM(tf.Gemma2Config(**GROUPED, head_dim=4)), True, r"Gemma2.*softcapping = 30\.0"),
]


@pytest.mark.parametrize(("model", "labels", "message"), UNSUPPORTED)
def test_unsupported_models_and_missing_labels_raise(model: Any, labels: bool | None, message: str) -> None:
    batch = inputs(BY_NAME["llama"])
    with pytest.raises(ValueError, match=message):
        lm_loss(model(), {**batch, "labels": batch["input_ids"]} if labels else batch)
