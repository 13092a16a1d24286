"""Run the Transformer by a backend's compiled kernels; models that the kernels don't support run their modules.

The rows of a decoder state are rows of addresses, see `tsallis.ops.cpu.transformer`. Therefore states share all memory,
and a search selects rows without copying keys and values.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import cache, cached_property
from operator import is_
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from tsallis.models.protocol import BestStep, Memory, Step, check_symbols, source_mask
from tsallis.nn import (
    MultiheadAttention,
    OutputLayer,
    PerHeadAlpha,
    TransformerDecoderLayer,
    TransformerEncoderLayer,
)
from tsallis.ops.arguments import AttentionWeights, DecoderResult, LayerWeights, OutputWeights, StackWeights
from tsallis.ops.choice import choose_transformer
from tsallis.ops.transforms import traced

ROOM = 64  # initial number of position encodings


class CompiledState(NamedTuple):
    """Rows of a decoder state, as addresses of the keys and values of their tokens."""

    decoder: Any  # the backend's compiled decoder
    positions: _Positions
    table: Tensor  # position encodings [at least steps, d_model]
    rows: Tensor  # [rows, columns]
    steps: int  # tokens that the longest row has read
    width: int  # source length of attention weights
    memory: tuple[Tensor, ...]  # tensors at the addresses, kept alive

    def select(self, index: Tensor) -> CompiledState:
        return self._with(self.rows.index_select(0, index), self.steps, self.memory)

    @staticmethod
    def join(states: Sequence[CompiledState]) -> CompiledState:
        """Concatenate the rows of several states, which may have read different numbers of tokens."""
        columns = max(state.rows.shape[1] for state in states)
        rows = torch.cat([F.pad(state.rows, (0, columns - state.rows.shape[1])) for state in states])
        memory = tuple({id(x): x for state in states for x in state.memory}.values())
        first = max(states, key=lambda state: len(state.table))
        steps, width = max(state.steps for state in states), max(state.width for state in states)
        return CompiledState(first.decoder, first.positions, first.table, rows, steps, width, memory)

    def _with(self, rows: Tensor, steps: int, memory: tuple[Tensor, ...]) -> CompiledState:
        return CompiledState(self.decoder, self.positions, self.table, rows, steps, self.width, memory)

    def step(self, token: Tensor) -> Step:
        """Read one token per row [rows] and return all scores."""
        self.decoder.check_tokens(token)
        result, state = self._read(token, scores=True, attention=self.width)
        assert result.scores is not None and result.attention is not None
        return Step(result.scores, result.attention, state)

    def step_best(self, token: Tensor, count: int, end: int, only: Tensor | None, keep: bool) -> BestStep:
        """Read one token per row [rows] and return each row's best symbols; return attention weights if `keep`.

        Tokens are not checked, because a search chose them.
        """
        if only is not None:
            check_symbols(only, self.decoder.symbols)
        result, state = self._read(token, count=count, end=end, only=only, attention=self.width if keep else 0)
        return BestStep(result.best, result.num_attended, result.attention, state)

    def run_beams(self, beams: Any, end: int, keep: bool) -> list[Tensor] | None:
        """Run a beam search to its end or to the first NaN; see `TransformerSeq2Seq.run_beams`."""
        if not self.decoder.runs(beams):
            return None
        table = self.positions.first(self.steps + beams.steps)
        weights, unknown = self.decoder.search(beams, self.rows, table, end, self.width if keep else 0)
        if unknown is not None:
            check_symbols(torch.tensor([unknown], device="cpu"), self.decoder.symbols)
        return weights

    def _read(self, token: Tensor, **options: Any) -> tuple[DecoderResult, CompiledState]:
        """Run a step and return its results and the new state."""
        if self.steps >= len(self.table):
            return self._replace(table=self.positions.first(2 * self.steps))._read(token, **options)
        result: DecoderResult = self.decoder.step(self.rows, token, self.table, **options)
        return result, self._with(result.state, self.steps + 1, (*self.memory, result.cache))


# Attributes of modules that change results, other than submodules and tensors.
SETTINGS: dict[type[nn.Module], tuple[str, ...]] = {
    MultiheadAttention: ("alpha", "add_zero_attn", "positions", "length_scale", "num_kv_heads"),
    nn.LayerNorm: ("eps",),
    OutputLayer: ("transform", "alpha", "tau"),
    TransformerEncoderLayer: ("activation",),
    TransformerDecoderLayer: ("activation",),
}


class _ModelSnapshot:
    """Snapshot of a model: its modules, their settings, and the versions of their tensors."""

    def __init__(self, model: nn.Module) -> None:
        modules = [model]
        for module in modules:
            modules += [part for part in module._modules.values() if part is not None]
        self.modules = modules[1:]  # without the model itself, which is a weak key of `_packs`
        self.tensors = [x for m in modules for x in (*m._parameters.values(), *m._buffers.values())]
        found = [x for x in self.tensors if x is not None]
        self.state = (
            [(m.training, not m._forward_hooks, not m._forward_pre_hooks) for m in modules],
            [getattr(m, name) for m in modules for name in SETTINGS.get(type(m), ())],
            [(x.data_ptr(), 0 if x.is_inference() else x._version) for x in found],
        )

    def matches(self, model: nn.Module) -> bool:
        """Return whether the model is unchanged since the snapshot."""
        now = _ModelSnapshot(model)
        return (
            now.modules == self.modules
            and len(now.tensors) == len(self.tensors)
            and all(map(is_, now.tensors, self.tensors))
            and now.state == self.state
        )


class _Positions:
    """Table of a model's position encodings, which grows on demand."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._table = torch.empty(0, dtype=torch.float32, device="cpu")

    def first(self, count: int) -> Tensor:
        """Return at least `count` encodings [at least count, d_model]."""
        if len(self._table) < count:
            self._table = self._module(self._table, 0, max(ROOM, 2 * count))
        return self._table


class _PackedWeights(NamedTuple):
    """Packed weights of a model, and a snapshot of the model when they were packed."""

    snapshot: _ModelSnapshot
    kernels: Any
    encoder: Any  # None if the kernels don't support the encoder
    decoder: Any
    positions: _Positions


_packs: weakref.WeakKeyDictionary[nn.Module, _PackedWeights] = weakref.WeakKeyDictionary()


class CompiledMemory(Memory):
    """Encoder states from the kernels, stored with the packed weights that decoding needs.

    The mask is computed on first access.
    """

    lengths: Tensor  # [batch]
    packed: _PackedWeights

    def __init__(self, states: Tensor, lengths: Tensor, packed: _PackedWeights) -> None:
        self.__dict__.update(states=states, lengths=lengths, packed=packed, summary=())

    @cached_property
    def mask(self) -> Tensor:
        return source_mask(self.lengths, self.states)


@cache
def _watch_fused_optimizers() -> None:
    """Drop all packed weights after a fused optimizer's step, which changes tensors but not their versions."""
    register_optimizer_step_post_hook(
        lambda optimizer, *_: _packs.clear() if any(group.get("fused") for group in optimizer.param_groups) else None
    )


def encode_compiled(model: Any, src: Tensor, lengths: Tensor) -> CompiledMemory | None:
    """Return the states of sources [batch, src], or None if no kernels support the model and the call."""
    packed = _pack(model, src)
    if packed is None or packed.encoder is None or src.dtype != torch.int64:
        return None
    positions = packed.positions.first(src.shape[1])
    return CompiledMemory(packed.encoder.encode(src, lengths, positions), lengths, packed)


def start_compiled(model: Any, memory: Memory) -> CompiledState | None:
    """Return the state before the first token, or None if no kernels support the model and the call."""
    own = memory if isinstance(memory, CompiledMemory) else None
    packed = None if memory.copies is not None else _pack(model, memory.states, None if own is None else own.packed)
    if packed is None or packed.decoder is None or memory.states.dtype != torch.float32:
        return None
    rows, source = packed.decoder.project(memory.states, memory.mask.sum(1) if own is None else own.lengths)
    table = packed.positions.first(ROOM)
    return CompiledState(packed.decoder, packed.positions, table, rows, 0, memory.states.shape[1], (source,))


def _pack(model: Any, like: Tensor, known: _PackedWeights | None = None) -> _PackedWeights | None:
    """Return the packed weights of a model, or None if kernels can't be used.

    Weights in `known` are returned without a check. Other weights come from a cache, and are packed again if the model
    has changed.
    """
    if model.positions is None or traced() or torch.is_grad_enabled() or type(like) is not Tensor:
        return None
    kernels = choose_transformer(like.device.type)
    if kernels is None or torch.nn.modules.module._has_any_global_hook():
        return None
    if known is not None and known.kernels is kernels:
        return known
    known = _packs.get(model)
    if known is None or known.kernels is not kernels or not known.snapshot.matches(model):
        _watch_fused_optimizers()
        encoder, decoder, output = _encoder_weights(model), _decoder_weights(model), _output_weights(model.output)
        known = _PackedWeights(
            _ModelSnapshot(model),
            kernels,
            None if encoder is None or not kernels.computes(encoder) else kernels.CompiledEncoder(encoder),
            None
            if decoder is None or output is None or not kernels.computes(decoder)
            else kernels.CompiledDecoder(decoder, output),
            _Positions(model.positions),
        )
        _packs[model] = known
    return known


def _encoder_weights(model: Any) -> StackWeights | None:
    layers = [
        _layer_weights(layer, (layer.self_attn, layer.norm1), None, layer.norm2)
        if type(layer) is TransformerEncoderLayer
        else None
        for layer in model.encoder.layers
    ]
    return _stack_weights(model, model.src_embedding, layers, model.encoder.norm)


def _decoder_weights(model: Any) -> StackWeights | None:
    layers = [
        _layer_weights(layer, (layer.self_attn, layer.norm1), (layer.multihead_attn, layer.norm2), layer.norm3)
        if type(layer) is TransformerDecoderLayer
        else None
        for layer in model.decoder.layers
    ]
    return _stack_weights(model, model.tgt_embedding, layers, model.decoder.norm)


def _stack_weights(model: Any, embedding: Any, layers: Sequence[LayerWeights | None], norm: Any) -> StackWeights | None:
    """Return the weights of an encoder or a decoder, or None if a part is not supported by the kernels."""
    stack = model.encoder if embedding is model.src_embedding else model.decoder
    every_norm = [part for part in stack.modules() if isinstance(part, nn.LayerNorm)]
    known = [layer for layer in layers if layer is not None]
    if len(known) < len(layers) or len({part.eps for part in every_norm}) != 1 or model.dropout.training:
        return None
    end = None if norm is None else _norm(norm)
    if not _is(embedding, nn.Embedding) or not _plain(embedding.weight) or (norm is not None and end is None):
        return None
    return StackWeights(embedding.weight, tuple(known), end, model.heads, every_norm[0].eps)


def _layer_weights(layer: Any, own: tuple[Any, Any], cross: tuple[Any, Any] | None, norm: Any) -> LayerWeights | None:
    """Return the weights of a layer: attentions with their norms, and the feed-forward network with its norm."""
    if not _is(layer, type(layer)) or layer.activation is not F.relu:
        return None
    attentions = [_attention(*part) for part in (own, cross) if part is not None]
    rest = [_norm(norm), _linear(layer.linear1), _linear(layer.linear2)]
    if any(part is None for part in (*attentions, *rest)):
        return None
    return LayerWeights(attentions[0], None if cross is None else attentions[1], *rest)  # type: ignore[arg-type]


def _attention(attention: Any, norm: Any) -> AttentionWeights | None:
    if not _is(attention, MultiheadAttention) or attention.bias_k is not None or attention.add_zero_attn:
        return None
    if attention.positions != "none" or attention.length_scale is not None:
        return None
    if attention.num_kv_heads != attention.num_heads:
        return None
    if not isinstance(attention.alpha, float | Tensor) and not _is(attention.alpha, PerHeadAlpha):
        return None
    weight, bias, own_norm = attention.in_proj_weight, attention.in_proj_bias, _norm(norm)
    out = _linear(attention.out_proj)
    if weight is None or bias is None or own_norm is None or out is None or not (_plain(weight) and _plain(bias)):
        return None
    return AttentionWeights(own_norm, (weight, bias), out, attention.alphas().float())


def _output_weights(output: Any) -> OutputWeights | None:
    projection = _linear(output.projection) if _is(output, OutputLayer) else None
    if projection is None or output.alpha > 2:
        return None
    weight, bias = projection
    tau = output.tau if output.transform == "alpha_relu" else None
    return OutputWeights((weight, bias.masked_fill(output.never, -torch.inf)), output.alpha, tau)


def _norm(module: Any) -> tuple[Tensor, Tensor] | None:
    return _weight_and_bias(module) if _is(module, nn.LayerNorm) else None


def _linear(module: Any) -> tuple[Tensor, Tensor] | None:
    return _weight_and_bias(module) if _is(module, nn.Linear) else None


def _weight_and_bias(module: Any) -> tuple[Tensor, Tensor] | None:
    weight, bias = module.weight, module.bias
    return None if bias is None or not (_plain(weight) and _plain(bias)) else (weight, bias)


def _is(module: Any, kind: type[nn.Module]) -> bool:
    """Return whether a module has exactly this type, is in eval mode, and has no hooks."""
    return type(module) is kind and not (module.training or module._forward_hooks or module._forward_pre_hooks)


def _plain(x: Tensor) -> bool:
    """Return whether kernels support a parameter, and changes to it are detectable."""
    plain = type(x) in (Tensor, nn.Parameter) and x.device.type == "cpu"
    return plain and x.dtype == torch.float32 and not x.is_inference()
