"""Decide how a model reads prefixes, so that batches and caches don't change its probabilities."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from tsallis.huggingface.modules import learns_prompt
from tsallis.huggingface.text_batches import count_positions

# Model types whose last logits are not the distribution of the next token.
UNSUPPORTED = {
    "cpmant": "reads a prompt of its own before every prefix",
    "flaubert": "predicts the token at a mask after the prefix",
    "musicgen_decoder": "generates several codes per position",
    "musicgen_melody_decoder": "generates several codes per position",
    "rag": "generates from retrieved documents",
    "reformer": "hashes keys at random",
    "xlm": "predicts the token at a mask after the prefix",
    "xlnet": "predicts the token at a mask after the prefix",
}
# Model types whose results differ with and without a cache.
UNCACHED = {"fsmt", "prophetnet"}
# Model types whose decoder masks the padding id when it runs without a cache.
MASKS_PADDING = {"t5gemma"}


def find_obstacle(model: Any, base: Any) -> str:
    """Return why searches can't read the distribution of the next token from a model, or "".

    Args:
        model: Model that the user passed.
        base: Transformers model inside it.
    """
    if not getattr(base, "can_generate", bool)() or base.main_input_name != "input_ids":
        return "does not generate from input_ids"
    if reason := UNSUPPORTED.get(base.config.model_type):
        return f"is not supported: it {reason}"
    if learns_prompt(model):
        return "is not supported with an adapter that learns a prompt"
    if base.config.return_dict is False:  # without return_dict, inner calls of some models fail
        return "returns tuples: set config.return_dict to True"
    config = base.config.get_text_config()
    bidirectional = (
        getattr(config, "use_bidirectional_attention", None) in (True, "all")
        or getattr(config, "is_causal", None) is False
        # GPT-NeoX is always causal: its modules ignore the configuration.
        or (
            getattr(config, "is_decoder", None) is False
            and any(getattr(x, "is_decoder", None) is False for x in base.modules())
        )
    )
    if bidirectional and not base.config.is_encoder_decoder:
        return "reads prefixes in both directions: load it with is_decoder=True or is_causal=True"
    share = getattr(config, "moe_eval_capacity_token_fraction", None)
    if share is not None and share < 1:
        return f"drops tokens, depending on the batch: moe_eval_capacity_token_fraction must be 1, got {share}"
    return ""


class Reading:
    """Rules about what a model can cache, pad and read.

    Args:
        model: Transformers model that generates.
    """

    def __init__(self, model: Any) -> None:
        config = model.config.get_text_config()
        accepted = inspect.signature(model.forward).parameters
        is_encoder_decoder = bool(model.config.is_encoder_decoder)
        self.options: dict[str, Any] = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}
        self.accepts_mask = "attention_mask" in accepted
        self._accepted = set(accepted)
        # RoBERTa, M2M100 and similar models compute positions from ids, skipping padding.
        tables = [module for name, module in model.named_modules() if "position" in name.rpartition(".")[2]]
        self._padding_id = next((x.padding_idx for x in tables if getattr(x, "padding_idx", None) is not None), None)
        if model.config.model_type in MASKS_PADDING:
            self._padding_id = config.pad_token_id
        # LongRoPE: beyond this length, the rotation of all tokens changes.
        rope = getattr(config, "rope_parameters", None) or {}
        is_long = rope.get("rope_type") == "longrope"
        name = "original_max_position_embeddings"
        self._rope_switch: int | None = rope.get(name) or getattr(config, name, None) if is_long else None
        # The experts of Switch Transformers drop tokens above their capacity.
        self._capacity = getattr(config, "expert_capacity", None)
        layers = getattr(config, "num_hidden_layers", None)
        # Transformers uses the number of encoder layers when it creates a decoder's cache.
        miscounted = not is_encoder_decoder and getattr(config, "decoder_layers", layers) != layers
        # States other than keys and values are not cached.
        stateful = bool(getattr(model, "_is_stateful", False))
        self.without_cache = model.config.model_type in UNCACHED or miscounted or stateful
        # Recurrent states read padding. Without position_ids, padding shifts the positions.
        self.skips_padding = is_encoder_decoder or (
            {"position_ids", "attention_mask"} <= set(accepted)
            and not stateful
            and self._padding_id is None
            and self._rope_switch is None
        )
        names = ("max_decoder_position_embeddings", "max_target_positions")
        self.num_positions: int | None = count_positions(model) or _first_value(config, *names)
        self.num_source_positions = _first_value(config, "max_encoder_position_embeddings") or count_positions(model)
        # Beyond this length BigBird attends to random blocks, which depend on the padded length.
        if is_encoder_decoder and getattr(config, "attention_type", None) == "block_sparse":
            self.num_source_positions = (5 + 2 * config.num_random_blocks) * config.block_size

    def is_unread(self, key: str, value: Any) -> bool:
        """Return whether a model would read an input that sources don't include."""
        if key == "token_type_ids":  # tokenizers return zeros for models that do not need them
            return bool(torch.as_tensor(value).any())
        known = ("input_ids", "attention_mask", "labels", "use_cache", "return_dict")
        is_accepted = key in self._accepted and key not in known and not key.startswith("decoder_")
        return is_accepted and isinstance(value, Tensor)

    def caches(self, ids: Tensor, length: int) -> bool:
        """Return whether reading ids with a cache gives the same result as reading them without a cache.

        Args:
            ids: Ids [rows, length], including prompts.
            length: Number of ids per row, without padding.
        """
        return not (
            self.without_cache
            or (self._capacity is not None and length > self._capacity)
            or (self._rope_switch is not None and length == self._rope_switch + 1)
            or (self._padding_id is not None and bool((ids == self._padding_id).any()))
        )


def _first_value(config: Any, *names: str) -> int | None:
    return next((number for name in names if (number := getattr(config, name, None)) is not None), None)


def count_ids(embeddings: Any, default: int) -> int:
    """Return the number of ids of an embedding or an output layer."""
    for name in ("out_features", "num_embeddings"):
        if isinstance(number := getattr(embeddings, name, None), int):
            return number
    weight = getattr(embeddings, "weight", None)
    return default if weight is None else len(weight)
