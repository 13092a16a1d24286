"""Run searches of models by a backend's compiled kernels; models that the kernels don't support run their modules.

The rows of a decoder state are rows of addresses, see `tsallis.ops.cpu.decoding`. Therefore states share all memory,
and a search selects rows without copying what they have read.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from operator import is_
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tsallis.models.protocol import BestStep, Step, best_of_step, check_symbols
from tsallis.nn import (
    GlobalAttention,
    MultiheadAttention,
    OutputLayer,
    TransformerDecoderLayer,
    TransformerEncoderLayer,
)
from tsallis.ops.arguments import DecoderResult, OutputWeights
from tsallis.ops.fused_optimizers import fused_optimizer_steps
from tsallis.ops.transforms import traced


class CompiledState(NamedTuple):
    """Rows of a decoder state, as addresses of their sources and of what earlier steps have written."""

    decoder: Any  # the backend's compiled decoder
    positions: Any  # `Positions` of a Transformer, or None
    rows: Tensor  # [rows, columns]
    steps: int  # tokens that the longest row has read
    width: int  # source length of attention weights
    sources: tuple[Tensor, ...]  # tensors at the addresses, kept alive
    caches: tuple[Tensor, ...]  # the same, of earlier steps

    def select(self, index: Tensor) -> CompiledState:
        return self._replace(rows=self.rows.index_select(0, index))

    @staticmethod
    def join(states: Sequence[CompiledState]) -> CompiledState:
        """Concatenate the rows of several states, which may have read different numbers of tokens."""
        columns = max(state.rows.shape[1] for state in states)
        rows = torch.cat([F.pad(state.rows, (0, columns - state.rows.shape[1])) for state in states])
        sources, caches = (
            tuple({id(x): x for part in parts for x in part}.values())
            for parts in ([state.sources for state in states], [state.caches for state in states])
        )
        steps, width = max(state.steps for state in states), max(state.width for state in states)
        return CompiledState(states[0].decoder, states[0].positions, rows, steps, width, sources, caches)

    def step(self, token: Tensor) -> Step:
        """Read one token per row [rows] and return all scores."""
        token = self.decoder.check_tokens(token, len(self.rows))
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

    def _read(self, token: Tensor, **options: Any) -> tuple[DecoderResult, CompiledState]:
        """Run a step and return its results and the new state."""
        result: DecoderResult = self.decoder.step(self.rows, token, self.first_positions(1), **options)
        caches = (*self.caches, result.cache) if self.decoder.grows else (result.cache,)
        return result, self._replace(rows=result.state, steps=self.steps + 1, caches=caches)

    def first_positions(self, steps: int) -> Tensor | None:
        """Return the position embeddings that the next steps need."""
        return None if self.positions is None else self.positions.first(self.steps + steps)


def run_beams(states: Sequence[Any], beams: Any, end: int, keep: bool) -> list[Tensor] | None:
    """Run a beam search in one call, with the mean probabilities of one or more models.

    Args:
        states: States of the first rows, one per model.
        beams: Initial bookkeeping of the search, see `tsallis.ops.eager.beams`.
        end: Symbol that ends an output.
        keep: Whether to return attention weights.

    Returns:
        Attention weights [rows, src] if `keep`, as consecutive parts of the rows of the search. None if a state is not
        compiled, the models differ in their numbers of symbols or positions, or the beams are too large.
    """
    if not all(isinstance(state, CompiledState) for state in states):
        return None
    symbols, width = states[0].decoder.symbols, states[0].width
    if any((state.decoder.symbols, state.width) != (symbols, width) for state in states):
        return None
    if not states[0].decoder.runs(beams, len(states)):
        return None
    starts = [(state.decoder, state.rows, state.first_positions(beams.steps)) for state in states]
    weights: list[Tensor]
    weights, unknown = states[0].decoder.search(beams, starts, end, width if keep or len(states) > 1 else 0)
    if unknown is not None:
        check_symbols(torch.tensor([unknown], device="cpu"), symbols)
    return weights


class CompiledSteps:
    """Base class of models whose searches may run in compiled code."""

    output: Any
    step: Any

    def step_best(self, state: Any, token: Tensor, count: int, end: int, only: Tensor | None, keep: bool) -> BestStep:
        """Run a step and return what a beam search needs, see :func:`tsallis.models.protocol.best_of_step`."""
        if isinstance(state, CompiledState):
            return state.step_best(token, count, end, only, keep)
        return best_of_step(self.output, self.step(state, token), count, end, only)

    def run_beams(self, state: Any, beams: Any, end: int, keep: bool) -> list[Tensor] | None:
        """Run all steps of a beam search in one call, or return None; see :func:`tsallis.models.compiled.run_beams`."""
        return run_beams([state], beams, end, keep)


# Attributes of modules that change results, other than submodules and tensors.
SETTINGS: dict[type[nn.Module], tuple[str, ...]] = {
    MultiheadAttention: ("alpha", "add_zero_attn", "positions", "length_scale", "num_kv_heads"),
    GlobalAttention: ("alpha", "scorer"),
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
        tensors = [x for x in self.tensors if x is not None]
        self.state = (
            [(m.training, not m._forward_hooks, not m._forward_pre_hooks) for m in modules],
            [getattr(m, name) for m in modules for name in SETTINGS.get(type(m), ())],
            [(x.data_ptr(), 0 if x.is_inference() else x._version) for x in tensors],
            fused_optimizer_steps(),
        )

    def matches(self, model: nn.Module) -> bool:
        """Return whether the model is unchanged since the snapshot."""
        current = _ModelSnapshot(model)
        return (
            current.modules == self.modules
            and len(current.tensors) == len(self.tensors)
            and all(map(is_, current.tensors, self.tensors))
            and current.state == self.state
        )


_packs: weakref.WeakKeyDictionary[nn.Module, PackedModel] = weakref.WeakKeyDictionary()


class PackedModel(NamedTuple):
    """Packed weights of a model, and a snapshot of the model when they were packed."""

    snapshot: _ModelSnapshot
    kernels: Any
    parts: Any  # what `pack` has returned, see :func:`packed_model`


def packed_model(
    model: Any,
    like: Tensor,
    choose: Callable[[str], Any],
    pack: Callable[[Any, Any], Any],
    known: PackedModel | None = None,
) -> PackedModel | None:
    """Return the packed weights of a model, or None if kernels can't be used.

    Args:
        model: Model whose weights are packed again if it has changed since the last call.
        like: Tensor on the device of the call.
        choose: Function that returns a backend's kernels for a type of device.
        pack: Function that packs a model for kernels.
        known: Packed weights, which are returned without a check.
    """
    if traced() or torch.is_grad_enabled() or type(like) is not Tensor:
        return None
    kernels = choose(like.device.type)
    if kernels is None or torch.nn.modules.module._has_any_global_hook():
        return None
    if known is not None and known.kernels is kernels:
        return known
    known = _packs.get(model)
    if known is None or known.kernels is not kernels or not known.snapshot.matches(model):
        known = _packs[model] = PackedModel(_ModelSnapshot(model), kernels, pack(model, kernels))
    return known


def output_weights(output: Any) -> OutputWeights | None:
    projection = linear_weights(output.projection) if is_plain(output, OutputLayer) else None
    if projection is None or output.alpha > 2:
        return None
    weight, bias = projection
    tau = output.tau if output.transform == "alpha_relu" else None
    return OutputWeights((weight, bias.masked_fill(output.never, -torch.inf)), output.alpha, tau)


def embeds_outputs(decoder: Any, output: OutputWeights) -> bool:
    """Return whether every symbol of the output has an embedding; otherwise the modules raise an error."""
    return len(decoder.embedding) >= len(output.projection[0])


def linear_weights(module: Any) -> tuple[Tensor, Tensor] | None:
    return weight_and_bias(module) if is_plain(module, nn.Linear) else None


def weight_and_bias(module: Any) -> tuple[Tensor, Tensor] | None:
    weight, bias = module.weight, module.bias
    return None if bias is None or not (supported(weight) and supported(bias)) else (weight, bias)


def is_plain(module: Any, kind: type[nn.Module]) -> bool:
    """Return whether a module has exactly this type, is in eval mode, and has no hooks or replaced methods."""
    changed = module.training or module._forward_hooks or module._forward_pre_hooks
    return type(module) is kind and not changed and vars(module).keys().isdisjoint(("forward", "log_probs"))


def supported(x: Tensor) -> bool:
    """Return whether kernels support a parameter, and changes to it are detectable."""
    plain = type(x) in (Tensor, nn.Parameter) and x.device.type == "cpu"
    return plain and x.dtype == torch.float32 and not x.is_inference()
