"""Convert texts to batches for a Transformers model, and labels to decoder inputs."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tsallis.errors import InputError
from tsallis.huggingface.alphas import unwrap
from tsallis.symbols import IGNORE_INDEX

BATCH = 32  # number of texts per batch
DECODER_INPUTS = ("decoder_input_ids", "decoder_inputs_embeds")
ENDLESS = 10**9  # tokenizers without a length limit report a limit above this number


def text_batches(
    model: Any, tokenizer: Any, texts: Sequence[Any], targets: Sequence[str] | None
) -> Iterator[dict[str, Any]]:
    """Yield the inputs of a model, padded at the end, with the numbers of their texts.

    Texts and targets are cut at the maximum length of the tokenizer or the model.

    Args:
        model: Model that reads texts.
        tokenizer: Tokenizer of the model; it needs no padding token.
        texts: Texts or pairs of texts.
        targets: Target texts of an encoder-decoder; None for other models.

    Raises:
        InputError: The model reads no texts.
    """
    base = unwrap(model)
    if base.main_input_name != "input_ids":
        raise InputError(
            f"{type(base).__name__} must read input_ids, got {base.main_input_name}: pass batches instead of texts"
        )
    max_length = _max_length(base, tokenizer)
    truncation = {} if max_length is None else {"truncation": True, "max_length": max_length}
    # Tokenizers return inputs that some models don't accept.
    accepts = inspect.signature(base.forward).parameters
    names = [name for name in ("input_ids", "attention_mask", "token_type_ids") if name in accepts]
    padding = {name: 0 for name in names} | {"input_ids": getattr(tokenizer, "pad_token_id", None) or 0}
    for start in range(0, len(texts), BATCH):
        rows = range(start, min(start + BATCH, len(texts)))
        batch = dict(tokenizer([texts[row] for row in rows], **truncation))
        batch["attention_mask"] = [[1] * len(row) for row in batch["input_ids"]]
        yield {
            "index": rows,
            **{name: pad_rows(batch[name], padding[name]) for name in names if name in batch},
            **({} if targets is None else _decoder_batch(base, tokenizer, [targets[row] for row in rows], truncation)),
        }


def _decoder_batch(model: Any, tokenizer: Any, targets: list[str], truncation: dict[str, Any]) -> dict[str, Tensor]:
    rows = tokenizer(text_target=targets, **truncation)["input_ids"]
    labels = pad_rows(rows, -100)
    return {"decoder_input_ids": decoder_inputs(model, labels), "decoder_attention_mask": (labels != -100).long()}


def pad_rows(rows: Sequence[Sequence[int]], number: int) -> Tensor:
    """Return rows of different lengths as one tensor, padded at the end."""
    if not rows:
        return torch.zeros(0, 0, dtype=torch.long)
    return nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=number).long()


def _max_length(model: Any, tokenizer: Any) -> int | None:
    """Return the maximum number of tokens of a model, or None if unknown."""
    lengths = [length for length in (getattr(tokenizer, "model_max_length", ENDLESS),) if length < ENDLESS]
    positions = count_positions(model)
    return min(lengths if positions is None else [*lengths, positions], default=None)


def count_positions(model: Any) -> int | None:
    """Return the number of positions of a model, or None if unknown."""
    positions: int | None = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if positions is None:
        return None
    # In RoBERTa and similar models, positions start after the position of padding.
    tables = [x for name, x in model.named_modules() if name.endswith("position_embeddings")]
    offsets = [x.padding_idx + 1 for x in tables if getattr(x, "padding_idx", None) is not None]
    return positions - max(offsets, default=0)


def add_decoder_inputs(model: Any, batch: dict[str, Any], labels: Tensor) -> None:
    """Add the decoder inputs that follow from the labels if the model is an encoder-decoder and the batch has none.

    Raises:
        ValueError: The labels are rows of a teacher, or the model has no start token for its decoder.
    """
    if not model.config.is_encoder_decoder or any(batch.get(name) is not None for name in DECODER_INPUTS):
        return
    if (labels < IGNORE_INDEX).any():
        raise ValueError(
            "inputs must have decoder_input_ids if labels are rows of a teacher: "
            "give DistilledDataset a collator that adds them, such as DataCollatorForSeq2Seq(tokenizer, model)"
        )
    batch["decoder_input_ids"] = decoder_inputs(model, labels)


def decoder_inputs(model: Any, labels: Tensor) -> Tensor:
    """Return the decoder inputs [batch, length]: the start, then the labels without the last label.

    Args:
        model: Encoder-decoder of Transformers.
        labels: Labels [batch, length]; -100 becomes padding.

    Raises:
        ValueError: The model has no start token for its decoder.
    """
    prepare = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    if prepare is not None:
        inputs: Tensor = prepare(labels=labels)
        return inputs
    configs = model.config, getattr(model, "generation_config", None)
    start, padding = first_setting("decoder_start_token_id", *configs), first_setting("pad_token_id", *configs)
    if start is None:
        raise ValueError(f"{type(model).__name__} has no decoder_start_token_id: pass decoder_input_ids")
    inputs = labels.roll(1, -1)
    inputs[..., 0] = start
    return inputs.masked_fill(inputs == -100, 0 if padding is None else padding)


def first_setting(name: str, *configs: Any) -> Any:
    """Return a setting from the first configuration that has it, or None."""
    values = (getattr(config, name, None) for config in configs)
    return next((value for value in values if value is not None), None)
