"""A tiny model with random weights of every causal and sequence-to-sequence text model type in Transformers."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("transformers")  # before the modules that import it

import torch
import transformers as tf
from transformers.models.auto import modeling_auto

VOCABULARY = 11
PAD, END = 0, 2
# Each configuration takes the settings that it supports.
SIZES: dict[str, Any] = {
    **dict.fromkeys(("vocab_size", "encoder_vocab_size", "src_vocab_size", "tgt_vocab_size"), VOCABULARY),
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embedding_size", "emb_dim", "lru_width"), 16),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "n_inner", "dff", "d_inner", "ffn_hidden_size"), 24),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 24),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_decoder_layers", "num_encoder_layers", "num_key_value_heads", "linear_num_key_heads"), 2),
    "linear_num_heads": 2,
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "linear_num_value_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_encoder_attention_heads", "num_decoder_attention_heads"), 4),
    **dict.fromkeys(("head_dim", "d_kv", "v_head_dim", "qk_nope_head_dim", "qk_rope_head_dim", "rotary_dim"), 4),
    **dict.fromkeys(
        ("linear_key_head_dim", "linear_value_head_dim", "linear_head_dim", "hidden_size_per_layer_input"), 4
    ),
    **dict.fromkeys(("sliding_window", "attention_window", "attention_window_size", "local_attention"), 4),
    **dict.fromkeys(("window_size", "chunk_size", "conv_kernel"), 4),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("state_size", "ssm_state_size", "mamba_d_state", "mamba_n_heads", "mamba_num_heads"), 4),
    **dict.fromkeys(("time_step_rank", "mamba_dt_rank"), 4),
    **dict.fromkeys(("mamba_d_head", "mamba_head_dim", "q_lora_rank", "kv_lora_rank", "attention_chunk_size"), 8),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 16),
    **dict.fromkeys(
        ("n_group", "topk_group", "mamba_n_groups", "n_groups", "first_k_dense_replace", "num_expert_group"), 1
    ),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_k", "mamba_expand", "altup_num_inputs"), 2),
    **dict.fromkeys(("encoder_layerdrop", "decoder_layerdrop"), 0.0),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length"), 64),
    **dict.fromkeys(("max_encoder_position_embeddings", "max_decoder_position_embeddings"), 64),
    **dict.fromkeys(("max_source_positions", "max_target_positions", "context_length"), 64),
    "attention_hidden_size": 32,
    "mamba_d_ssm": 32,
    "decoder_vocab_size": None,
    "vocab_size_per_layer_input": VOCABULARY,
    "num_global_layers": 0,
    "pad_token_id": PAD,
    "bos_token_id": 1,
    "eos_token_id": END,
    "decoder_start_token_id": 1,
}
LATENT = (  # keys and values are projected from one vector, so both have the same number of heads
    *("axk1", "axk2", "bailing_hybrid", "deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite"),
    *("glm_moe_dsa", "kimi_linear", "minicpm3", "nemotron", "youtu"),
)
DECODERS = (  # bidirectional by default
    *("bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "electra", "ernie", "megatron-bert"),
    *("rembert", "roberta", "roberta-prelayernorm", "roformer", "xlm-roberta", "xlm-roberta-xl"),
)
VISION = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4, "num_hidden_layers": 1}
HYBRID = {"num_hidden_layers": 4, "layers_block_type": ["mamba", "hybrid"] * 2, "attention_head_dim": 8}
OVERRIDES: dict[str, dict[str, Any]] = {
    **{name: {"num_key_value_heads": 4} for name in LATENT},
    **{name: {"is_decoder": True} for name in DECODERS},
    "bamba": {"attn_layer_indices": [1]},
    "bigbird_pegasus": {"attention_type": "original_full"},
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8},
        "ffn_config": {"ffn_hidden_size": 16, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "dots1": {"n_shared_experts": 1},
    "gemma3n_text": {
        "num_kv_shared_layers": 0,
        "layer_types": ["full_attention", "sliding_attention"],
        "activation_sparsity_pattern": [0.0, 0.0],
        "laurel_rank": 4,
        "intermediate_size": [24, 24],
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2_moe": {"layer_types": ["full_attention", "conv"]},
    "longt5": {"local_radius": 2, "global_block_size": 2, "encoder_attention_type": "transient-global"},
    "mamba2": {"num_heads": 8, "head_dim": 4},
    "nllb-moe": {"encoder_sparse_step": 1, "decoder_sparse_step": 1},
    "pegasus_x": {"block_size": 4, "num_global_tokens": 2},
    "recurrent_gemma": {"block_types": ["recurrent", "attention"]},
    "reformer": {
        "is_decoder": True,
        "axial_pos_embds": False,
        "attn_layers": ["local", "lsh"],
        "local_attn_chunk_length": 4,
        "lsh_attn_chunk_length": 4,
        "num_buckets": 2,
    },
    "roc_bert": {
        "is_decoder": True,
        "enable_pronunciation": False,
        "enable_shape": False,
        "pronunciation_vocab_size": 5,
        "shape_vocab_size": 5,
    },
    "rwkv": {"attention_hidden_size": 16},
    "switch_transformers": {
        "expert_capacity": 2,
        "num_sparse_encoder_layers": 1,
        "num_sparse_decoder_layers": 1,
        "num_experts": 2,
    },
    "xmod": {"is_decoder": True, "languages": ["en_XX"], "default_language": "en_XX"},
    "zamba": HYBRID,
    "zamba2": HYBRID | {"n_mamba_heads": 4, "mamba_headdim": 8},
    "zaya": {"num_experts_per_tok": 1},
}
MIXED = (
    *("audioflamingo3", "fuyu", "gemma3", "gemma3n", "gemma4", "gemma4_unified", "git", "glmasr", "got_ocr2"),
    *("granite_speech", "granite_speech_plus", "moss_transcribe_diarize", "musicflamingo", "nemo_speechlm"),
    *("phi4_multimodal", "qwen2_audio", "qwen3_asr", "vibevoice_asr", "voxtral", "voxtral_realtime"),
)
# Types that are not built, with the reason.
NOT_TINY = {
    **dict.fromkeys(MIXED, "a model of images or sounds, whose text part is a type of its own"),
    "blt": "has four nested models, of bytes and of patches",
    "cohere_compass_text": "its configuration of rotations has no tiny form",
    "dots3_note": "its configuration has no tiny form",
    "dots3_note_text": "its configuration has no tiny form",
    "encoder-decoder": "is built of two other models: a test of its own",
    "gemma4_assistant": "drafts for another model, whose states it reads",
    "gemma4_unified_assistant": "drafts for another model, whose states it reads",
    "longcat_flash": "its configuration of experts has no tiny form",
    "qwen4_exp": "its configuration of linear attention has no tiny form",
    "qwen4_exp_text": "its configuration of linear attention has no tiny form",
}
CAUSAL = dict(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
SEQ2SEQ = dict(modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES)


def build(kind: str, model_type: str, **options: Any) -> Any:
    """Return a tiny model in evaluation mode.

    Args:
        kind: "causal" or "seq2seq".
        model_type: Value of `config.model_type`.
        options: Settings of the configuration, which override all others.
    """
    made = getattr(tf, (CAUSAL if kind == "causal" else SEQ2SEQ)[model_type])
    config = _configuration(made.config_class, OVERRIDES.get(model_type, {}) | options)
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in made(config).parameters())
    assert size < 2 * 10**6, f"{model_type} has {size} parameters"
    return fill(made(config))


def fill(model: Any) -> Any:
    """Set weights large enough that every token matters, and return the model in evaluation mode."""
    torch.manual_seed(7)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and parameter.dim() > 1:
                parameter.normal_(std=0.3)
            elif parameter.requires_grad and "bias" in name:
                parameter.normal_(std=0.1)
    return model.eval()


def _configuration(made: Any, options: dict[str, Any]) -> Any:
    names = made().to_dict()
    if made.model_type in ("t5gemma", "t5gemma2"):  # an encoder and a decoder in one
        side = {name: x for name, x in SIZES.items() if name in names["decoder"]}
        side["layer_types"] = ["sliding_attention", "full_attention"]
        encoder = {"text_config": side, "vision_config": VISION} if "text_config" in names["encoder"] else side
        return made(encoder=encoder, decoder=side, vocab_size=VOCABULARY, decoder_start_token_id=1, **options)
    always = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
    sizes = {name: x for name, x in SIZES.items() if name in names or name in always}
    if names.get("num_key_value_heads") is None:
        sizes.pop("num_key_value_heads", None)
    if (
        isinstance(names.get("layer_types"), list)
        and "layer_types" not in options
        and "layers_block_type" not in options
    ):
        kinds = list(dict.fromkeys(names["layer_types"]))
        sizes["layer_types"] = (kinds * 2)[: max(2, len(kinds))]
        sizes |= {x: len(sizes["layer_types"]) for x in ("num_hidden_layers", "n_layer", "num_layers") if x in sizes}
    if "layers_block_type" in options:
        sizes.pop("head_dim", None)
    return made(**sizes | options)
