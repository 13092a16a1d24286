"""The Transformer's decoder by a backend's own kernels, where they know the model; else there is the plain step.

A state's rows are rows of addresses, see `tsallis.ops.cpu.decoder`: nothing is copied when a search chooses among them,
and states share all memory.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tsallis.models.protocol import BestStep, Memory, Step, check_symbols
from tsallis.nn import MultiheadAttention, OutputLayer, PerHeadAlpha, TransformerDecoderLayer
from tsallis.ops.arguments import DecoderLayerWeights, DecoderWeights
from tsallis.ops.backend import load_decoder
from tsallis.ops.transforms import traced


@dataclass(frozen=True)
class CompiledState:
    """Rows of a decoder state, as addresses of what they have read."""

    decoder: Any  # of the backend
    positions: Any  # the model's module
    rows: Tensor  # [rows, columns]
    steps: int  # tokens read, by the row that has read most
    width: int  # source positions of attention weights
    memory: tuple[Tensor, ...]  # what the addresses name

    def select(self, index: Tensor) -> CompiledState:
        rows = self.rows.index_select(0, index)
        return CompiledState(self.decoder, self.positions, rows, self.steps, self.width, self.memory)

    @staticmethod
    def join(states: Sequence[CompiledState]) -> CompiledState:
        """Concatenate the rows of several states, which may have read differently many tokens."""
        columns = max(state.rows.shape[1] for state in states)
        rows = torch.cat([F.pad(state.rows, (0, columns - state.rows.shape[1])) for state in states])
        memory = tuple({id(x): x for state in states for x in state.memory}.values())
        steps, width = max(state.steps for state in states), max(state.width for state in states)
        return CompiledState(states[0].decoder, states[0].positions, rows, steps, width, memory)

    def step(self, token: Tensor) -> Step:
        """Read a token [rows] and return all scores."""
        result = self._read(token, scores=True, attention=self.width)
        return Step(result.scores, result.attention, self._following(result))

    def step_best(self, token: Tensor, count: int, end: int, only: Tensor | None, keep: bool) -> BestStep:
        """Read a token [rows] and return the best symbols of each row, and weights of attention to `keep`."""
        if only is not None:
            check_symbols(only, self.decoder.symbols)
        result = self._read(token, count=count, end=end, only=only, attention=self.width if keep else 0)
        return BestStep(result.best, result.num_attended, result.attention, self._following(result))

    def _read(self, token: Tensor, **wishes: Any) -> Any:
        positions = self.positions(self.decoder.embedding, 0, self.steps + 1)
        return self.decoder.step(self.rows, token, positions, **wishes)

    def _following(self, result: Any) -> CompiledState:
        memory = (*self.memory, result.cache)
        return CompiledState(self.decoder, self.positions, result.state, self.steps + 1, self.width, memory)


class _Packed(NamedTuple):
    """A decoder with packed weights, and the versions of the parameters that they were packed from."""

    versions: tuple[tuple[int, int], ...]
    kernels: Any
    decoder: Any


_packed: weakref.WeakKeyDictionary[nn.Module, _Packed] = weakref.WeakKeyDictionary()


def start_compiled(model: Any, memory: Memory) -> CompiledState | None:
    """Return the state before the first token; None where no kernels know the model, or may not be called."""
    states = memory.states
    if traced() or torch.is_grad_enabled() or type(states) is not Tensor or states.dtype != torch.float32:
        return None
    kernels = load_decoder(states.device.type)
    if kernels is None or torch.nn.modules.module._has_any_global_hook():
        return None
    parts = _parts(model)
    if parts is None or not all(_plain(x) for x in parts.tensors):
        return None
    versions = tuple((x.data_ptr(), x._version) for x in (*parts.tensors, parts.output.never))
    known = _packed.get(model)
    if known is None or known.versions != versions or known.kernels is not kernels:
        weights = _weights(parts)
        decoder = kernels.CompiledDecoder(weights) if kernels.computes(weights) else None
        known = _packed[model] = _Packed(versions, kernels, decoder)
    if known.decoder is None:
        return None
    rows, source = known.decoder.project(states[memory.mask], memory.mask.sum(1))
    return CompiledState(known.decoder, model.positions, rows, 0, states.shape[1], (source,))


def _plain(x: Tensor) -> bool:
    """Tell whether kernels can read a parameter."""
    return (
        type(x) in (Tensor, nn.Parameter)
        and x.dtype == torch.float32
        and x.device.type == "cpu"
        and not x.is_inference()
    )


class _Layer(NamedTuple):
    """The parts of a layer that weights are read from."""

    norms: tuple[nn.LayerNorm, ...]
    own: MultiheadAttention
    cross: MultiheadAttention
    expand: nn.Linear
    shrink: nn.Linear


class _Parts(NamedTuple):
    """The parts of a decoder, every one of a known kind."""

    embedding: nn.Embedding
    layers: tuple[_Layer, ...]
    norm: nn.LayerNorm | None
    output: OutputLayer
    tensors: tuple[Tensor, ...]  # all that weights are computed from


def _parts(model: Any) -> _Parts | None:
    """Return the parts of a model's decoder; None where one of them is of another kind than the kernels know."""
    layers = []
    for layer in model.decoder.layers:
        if not _is(layer, TransformerDecoderLayer) or layer.activation is not F.relu:
            return None
        norms = (layer.norm1, layer.norm2, layer.norm3)
        part = _Layer(norms, layer.self_attn, layer.multihead_attn, layer.linear1, layer.linear2)
        if not (_attends(part.own) and _attends(part.cross) and _is(part.expand, nn.Linear)):
            return None
        if not (_is(part.shrink, nn.Linear) and all(_is(norm, nn.LayerNorm) for norm in norms)):
            return None
        layers.append(part)
    norm, output, embedding = model.decoder.norm, model.output, model.tgt_embedding
    if not (_is(output, OutputLayer) and _is(output.projection, nn.Linear) and _is(embedding, nn.Embedding)):
        return None
    if norm is not None and not _is(norm, nn.LayerNorm):
        return None
    every_norm = [x for layer in layers for x in layer.norms] + ([norm] if norm is not None else [])
    if len({x.eps for x in every_norm}) != 1 or model.dropout.training:
        return None
    tensors = [embedding.weight, output.projection.weight, output.projection.bias]
    tensors += [x for part in every_norm for x in (part.weight, part.bias)]
    for part in layers:
        tensors += [x for linear in (part.expand, part.shrink) for x in (linear.weight, linear.bias)]
        for attention in (part.own, part.cross):
            tensors += [attention.in_proj_weight, attention.in_proj_bias, attention.out_proj.weight]
            tensors += [attention.out_proj.bias, *_alpha_tensors(attention)]
    if any(x is None for x in tensors):
        return None
    return _Parts(embedding, tuple(layers), norm, output, tuple(tensors))


def _is(module: Any, kind: type[nn.Module]) -> bool:
    """Tell whether a module is of exactly a kind, evaluates, and has no hooks that it would have to call."""
    return type(module) is kind and not (module.training or module._forward_hooks or module._forward_pre_hooks)


def _attends(attention: Any) -> bool:
    """Tell whether an attention is one that the kernels know."""
    return (
        _is(attention, MultiheadAttention)
        and _is(attention.out_proj, nn.Linear)
        and attention.bias_k is None
        and not attention.add_zero_attn
        and (isinstance(attention.alpha, float | Tensor) or _is(attention.alpha, PerHeadAlpha))
    )


def _alpha_tensors(attention: MultiheadAttention) -> list[Tensor]:
    """Return the tensors that alphas are computed from."""
    if isinstance(attention.alpha, PerHeadAlpha):
        return [attention.alpha.bias]
    return [attention.alpha] if isinstance(attention.alpha, Tensor) else []


def _weights(parts: _Parts) -> DecoderWeights:
    output = parts.output
    bias = output.projection.bias.masked_fill(output.never, -torch.inf)
    return DecoderWeights(
        embedding=parts.embedding.weight,
        layers=tuple(_layer_weights(layer) for layer in parts.layers),
        norm=None if parts.norm is None else (parts.norm.weight, parts.norm.bias),
        output=(output.projection.weight, bias),
        heads=parts.layers[0].own.num_heads,
        epsilon=parts.layers[0].norms[0].eps,
        alpha=output.alpha,
        tau=output.tau if output.transform == "alpha_relu" else None,
    )


def _layer_weights(layer: _Layer) -> DecoderLayerWeights:
    own, cross = layer.own, layer.cross
    assert own.in_proj_weight is not None and own.in_proj_bias is not None
    assert cross.in_proj_weight is not None and cross.in_proj_bias is not None
    return DecoderLayerWeights(
        norms=tuple((norm.weight, norm.bias) for norm in layer.norms),
        own_projection=(own.in_proj_weight, own.in_proj_bias),
        own_out=(own.out_proj.weight, own.out_proj.bias),
        cross_projection=(cross.in_proj_weight, cross.in_proj_bias),
        cross_out=(cross.out_proj.weight, cross.out_proj.bias),
        expand=(layer.expand.weight, layer.expand.bias),
        shrink=(layer.shrink.weight, layer.shrink.bias),
        own_alphas=own.alphas().float(),
        cross_alphas=cross.alphas().float(),
    )
