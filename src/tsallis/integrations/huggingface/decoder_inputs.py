"""What the decoder of an encoder-decoder reads when its labels are known."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def decoder_inputs(model: Any, labels: Tensor) -> Tensor:
    """Return the labels that a decoder reads to predict the next one [batch, length], after a start of its own.

    Args:
        model: an encoder-decoder of Transformers.
        labels: [batch, length]; what is -100 becomes padding.

    Raises:
        ValueError: a model that does not tell what its decoder starts with.
    """
    prepare = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    if prepare is not None:
        inputs: Tensor = prepare(labels=labels)
        return inputs
    start, padding = _token(model, "decoder_start_token_id"), _token(model, "pad_token_id")
    if start is None:
        raise ValueError(f"{type(model).__name__} has no decoder_start_token_id: give decoder_input_ids")
    inputs = labels.roll(1, -1)
    inputs[..., 0] = start
    return inputs.masked_fill(inputs == -100, 0 if padding is None else padding)


def _token(model: Any, name: str) -> int | None:
    """Return a token's number from the model's configuration, or from what it generates with."""
    for config in (model.config, getattr(model, "generation_config", None)):
        number: int | None = getattr(config, name, None)
        if number is not None:
            return number
    return None
