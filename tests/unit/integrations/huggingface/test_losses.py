"""Losses of Transformers models: those of their logits."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("transformers")  # before what imports it

import torch
import transformers as tf

import tsallis
from tiny_transformers import BY_NAME, GROUPED, build, inputs
from tsallis.integrations.huggingface import causal_lm_loss, trainer_loss


@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize("alpha", [1.0, 1.5])
def test_the_loss_without_logits_is_that_of_the_logits(name: str, alpha: float) -> None:
    batch, model = inputs(BY_NAME[name]), build(name)
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    results = []
    for loss in (
        lambda: trainer_loss(alpha, shift=True)(model(**batch), labels),
        lambda: causal_lm_loss(model, {**batch, "labels": labels}, alpha),
    ):
        model.zero_grad()
        value = loss()
        value.backward()
        results.append([value.detach(), *(x.grad.clone() for x in model.parameters() if x.grad is not None)])
    for ours, reference in zip(*results, strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-4, atol=1e-5)
    if alpha == 1:
        torch.testing.assert_close(results[0][0], model(**batch, labels=labels).loss.detach(), rtol=1e-5, atol=1e-5)


def test_a_sum_is_divided_by_the_number_of_items() -> None:
    batch, model = inputs(BY_NAME["llama"]), build("llama")
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    count = int((labels[:, 1:] != -100).sum())
    items = {**batch, "labels": labels}
    torch.testing.assert_close(causal_lm_loss(model, items, num_items_in_batch=count), causal_lm_loss(model, items))
    loss, outputs = trainer_loss(1.5, shift=True), model(**batch)
    torch.testing.assert_close(loss(outputs, labels, num_items_in_batch=2 * count) * 2, loss(outputs, labels))


def test_a_loss_of_classes() -> None:
    logits, labels = torch.randn(4, 3), torch.tensor([0, 2, 1, -100])
    smooth = trainer_loss(2.0, label_smoothing=0.1)({"logits": logits}, labels)
    torch.testing.assert_close(smooth, tsallis.entmax_loss(logits, labels, 2.0, label_smoothing=0.1))


def test_the_head_is_not_called() -> None:
    batch, model = inputs(BY_NAME["llama"]), build("llama")

    def refuse(*args: Any) -> None:
        raise AssertionError("logits were computed")

    model.lm_head.register_forward_hook(refuse)
    causal_lm_loss(model, {**batch, "labels": batch["input_ids"]}).backward()


@pytest.mark.parametrize(
    ("model", "labels", "message"),
    [
        (lambda: build("llama"), None, "inputs must have labels, got input_ids, attention_mask"),
        (lambda: build("llama").model, True, "LlamaModel has no linear head on a base model"),
        (
            lambda: tf.Gemma2ForCausalLM(tf.Gemma2Config(**GROUPED, head_dim=4)),
            True,
            r"Gemma2ForCausalLM changes its logits by final_logit_softcapping = 30\.0",
        ),
    ],
)
def test_what_has_no_such_loss_is_refused(model: Any, labels: bool | None, message: str) -> None:
    batch = inputs(BY_NAME["llama"])
    with pytest.raises(ValueError, match=message):
        causal_lm_loss(model(), {**batch, "labels": batch["input_ids"]} if labels else batch)
