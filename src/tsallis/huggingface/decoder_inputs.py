"""Compute the decoder inputs of an encoder-decoder from labels."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def decoder_inputs(model: Any, labels: Tensor) -> Tensor:
    """Return the decoder inputs [batch, length]: the start and the labels without the last one.

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
        raise ValueError(f"{type(model).__name__} has no decoder_start_token_id: give decoder_input_ids")
    inputs = labels.roll(1, -1)
    inputs[..., 0] = start
    return inputs.masked_fill(inputs == -100, 0 if padding is None else padding)


def first_setting(name: str, *configs: Any) -> Any:
    """Return a setting from the first configuration that has it, or None."""
    values = (getattr(config, name, None) for config in configs)
    return next((value for value in values if value is not None), None)
