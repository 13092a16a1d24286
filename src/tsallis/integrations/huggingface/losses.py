"""Entmax losses for Transformers' Trainer, and for language models whose logits are never held."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tsallis.functional import entmax_loss, linear_entmax_loss

# What models do to their logits besides the projection, by the names of their settings and the value that does nothing.
SCALINGS = {"final_logit_softcapping": None, "logits_scaling": 1.0, "logit_scale": 1.0, "mup_width_multiplier": None}


def trainer_loss(alpha: float = 1.5, *, shift: bool = False, label_smoothing: float = 0.0) -> Callable[..., Tensor]:
    r"""Return an entmax loss that `Trainer` takes as its `compute_loss_func`.

    .. math:: L(z, y) = \max_p \big(p^\top z + H_\alpha(p)\big) - z_y

    (Peters et al. 2019, eq. 10), the mean over all labels but those that are -100. The model then predicts with
    :func:`tsallis.entmax` of the same alpha.

    Args:
        alpha: at least 1; 1 is cross-entropy.
        shift: compare the logits of a position with the label of the next one, as causal language models need it.
        label_smoothing: as in :func:`tsallis.entmax_loss`.

    Returns:
        A function of the model's outputs, the labels, and the number of labels in all micro-batches of a step.

    Example:
        >>> import torch
        >>> loss = trainer_loss(1.5)
        >>> loss({"logits": torch.tensor([[2.0, 1.0, 0.1]])}, torch.tensor([0]))
        tensor(0.0617)
    """

    def compute(outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        logits = outputs["logits"]
        if shift:
            logits, labels = logits[..., :-1, :], labels[..., 1:]
        options: dict[str, Any] = {"label_smoothing": label_smoothing}
        if num_items_in_batch is None:
            return entmax_loss(logits, labels.to(logits.device), alpha, **options)
        return entmax_loss(logits, labels.to(logits.device), alpha, reduction="sum", **options) / num_items_in_batch

    return compute


def causal_lm_loss(
    model: Any, inputs: Mapping[str, Any], alpha: float = 1.5, *, num_items_in_batch: Tensor | int | None = None
) -> Tensor:
    """Compute the entmax loss of a causal language model; its logits are never held.

    The model runs without its head, and :func:`tsallis.linear_entmax_loss` does what the head and the loss would. With
    large vocabularies logits are most of the memory of a training.

    Args:
        model: a Transformers model with a language modelling head, such as `LlamaForCausalLM`.
        inputs: what it is called with, and `labels` [batch, length]: -100 where there is none.
        alpha: at least 1; 1 is cross-entropy.
        num_items_in_batch: what the sum is divided by; None: the number of labels.

    Returns:
        The loss [].

    Raises:
        ValueError: inputs without labels, a model without a head or one that changes its logits after the projection.

    Example:
        >>> import torch
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> config = GPT2Config(vocab_size=9, n_embd=8, n_head=2, n_layer=1, bos_token_id=1, eos_token_id=2)
        >>> model = GPT2LMHeadModel(config)
        >>> ids = torch.tensor([[5, 6, 7, 2]])
        >>> causal_lm_loss(model, {"input_ids": ids, "labels": ids}).shape
        torch.Size([])
    """
    if inputs.get("labels") is None:
        raise ValueError(f"inputs must have labels, got {', '.join(inputs)}")
    lm = model.get_base_model() if hasattr(model, "get_base_model") else model  # of PEFT
    head = lm.get_output_embeddings()
    if not isinstance(head, nn.Linear) or lm.base_model is lm:
        raise ValueError(f"{type(lm).__name__} has no linear head on a base model")
    config = lm.config.get_text_config()
    for name, neutral in SCALINGS.items():
        if getattr(config, name, neutral) not in (None, neutral):
            raise ValueError(f"{type(lm).__name__} changes its logits by {name} = {getattr(config, name)}")
    rest = {name: x for name, x in inputs.items() if name != "labels"}
    hidden = lm.base_model(**rest)[0]  # [batch, length, size]
    labels = torch.nn.functional.pad(inputs["labels"], (0, 1), value=-100)[..., 1:].to(hidden.device)
    weight = head.weight.to(hidden.dtype)
    if num_items_in_batch is None:
        return linear_entmax_loss(hidden, weight, labels, alpha, bias=head.bias)
    return linear_entmax_loss(hidden, weight, labels, alpha, bias=head.bias, reduction="sum") / num_items_in_batch
