"""Convert our Transformers to CTranslate2, with the same parameters and symbols, and search with its engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tsallis.models import TransformerSeq2Seq


def hand_over(model: TransformerSeq2Seq, folder: Path) -> None:
    """Save a pre-norm model with softmax attention in the format of CTranslate2."""
    from ctranslate2.specs import TransformerSpec, common_spec

    state = {name: value.float().numpy() for name, value in model.state_dict().items()}
    sizes = model.arguments
    spec = TransformerSpec.from_config(
        (sizes["encoder_layers"], sizes["decoder_layers"]),
        sizes["heads"],
        pre_norm=True,
        activation=common_spec.Activation.RELU,
    )
    positions = model.positions(torch.zeros(1), 0, 512).detach().numpy()
    for side, table_name, own in (("encoder", "src", spec.encoder), ("decoder", "tgt", spec.decoder)):
        embeddings = own.embeddings[0] if isinstance(own.embeddings, list) else own.embeddings
        embeddings.weight = state[f"{table_name}_embedding.weight"]
        own.scale_embeddings = True
        own.position_encodings.encodings = positions
        _norm(own.layer_norm, state, f"{side}.norm")
        for number, layer in enumerate(own.layer):
            _hand_over_layer(layer, state, f"{side}.layers.{number}.", side == "decoder")
    spec.decoder.projection.weight = state["output.projection.weight"]
    spec.decoder.projection.bias = state["output.projection.bias"]
    names = words(len(state["output.projection.weight"]))
    spec.register_source_vocabulary(names)
    spec.register_target_vocabulary(names)
    spec.config.add_source_eos = False
    spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = "<s>", "</s>", "<unk>"
    spec.config.decoder_start_token = "<s>"
    spec.validate()
    spec.optimize(quantization=None)
    spec.save(str(folder))


def words(symbols: int) -> list[str]:
    return ["<blank>", "<s>", "</s>", "<unk>", *(f"w{i}" for i in range(4, symbols))]


def _norm(spec: Any, state: dict[str, Any], name: str) -> None:
    spec.gamma, spec.beta = state[f"{name}.weight"], state[f"{name}.bias"]


def _linear(spec: Any, state: dict[str, Any], name: str, rows: slice = slice(None), prefix: str = "") -> None:
    spec.weight, spec.bias = state[f"{name}.{prefix}weight"][rows], state[f"{name}.{prefix}bias"][rows]


def _hand_over_layer(layer: Any, state: dict[str, Any], name: str, decoder: bool) -> None:
    d = state[f"{name}norm1.weight"].shape[0]
    _linear(layer.self_attention.linear[0], state, f"{name}self_attn", prefix="in_proj_")
    _linear(layer.self_attention.linear[1], state, f"{name}self_attn.out_proj")
    _norm(layer.self_attention.layer_norm, state, f"{name}norm1")
    if decoder:
        _linear(layer.attention.linear[0], state, f"{name}multihead_attn", slice(d), "in_proj_")
        _linear(layer.attention.linear[1], state, f"{name}multihead_attn", slice(d, None), "in_proj_")
        _linear(layer.attention.linear[2], state, f"{name}multihead_attn.out_proj")
        _norm(layer.attention.layer_norm, state, f"{name}norm2")
    _norm(layer.ffn.layer_norm, state, f"{name}norm{3 if decoder else 2}")
    _linear(layer.ffn.linear_0, state, f"{name}linear1")
    _linear(layer.ffn.linear_1, state, f"{name}linear2")


def peer_search(
    folder: Path, beam: int, threads: int, kind: str, symbols: int, longest: int
) -> Callable[[Tensor, Tensor], list[list[str]]]:
    import ctranslate2

    names = words(symbols)
    engine = ctranslate2.Translator(
        str(folder), device="cpu", compute_type=kind, inter_threads=1, intra_threads=threads
    )

    def run(src: Tensor, lengths: Tensor) -> list[list[str]]:
        rows = [[names[i] for i in row[:n]] for row, n in zip(src.tolist(), lengths.tolist(), strict=True)]
        answers = engine.translate_batch(
            rows,
            beam_size=beam,
            length_penalty=0,
            max_decoding_length=longest,
            max_batch_size=0,
            suppress_sequences=[["<unk>"], ["<s>"], ["<blank>"]],
        )
        return [result.hypotheses[0] for result in answers]

    return run
