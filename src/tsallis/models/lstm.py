"""Define the recurrent sequence-to-sequence model of Peters et al. 2019."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tsallis.continuous import Density, translation_basis
from tsallis.continuous.moments import Matching
from tsallis.errors import check_integer, check_one_of
from tsallis.models.arguments import constructor_arguments
from tsallis.models.checks import check_counts
from tsallis.models.compiled import CompiledState, CompiledSteps
from tsallis.models.compiled_recurrence import start_compiled
from tsallis.models.copying import CopyOutput, embed_known, make_output
from tsallis.models.features import GatedAttention
from tsallis.models.monotonic import AlignedSteps, MonotonicOutput
from tsallis.models.protocol import DecoderOutput, Memory, Step, source_mask
from tsallis.models.recurrence import (
    CELLS,
    CellWeights,
    check_cell,
    open_forget_gates,
    read_layers,
    read_rows,
    run_layers,
)
from tsallis.models.sharing import SEQUENCE_ROWS, SHARES, SharingModel, SymbolRows, share_embeddings
from tsallis.nn import ContinuousGlobalAttention, GlobalAttention
from tsallis.nn.dropout import dropout_mask
from tsallis.nn.output import is_linear, transform_alpha
from tsallis.ops.autograd.lstm_steps import LSTMLayer, LSTMSteps, fused_steps
from tsallis.ops.transforms import tracing_active
from tsallis.symbols import BOS, PAD, UNK

INITIAL_STATES = ("encoder", "zeros")
INITIAL = 0.1  # parameters start uniform in [-0.1, 0.1], as in OpenNMT's LSTM models


@dataclass(frozen=True)
class RNNState:
    """Rows of a decoder state with their sources."""

    memory: Memory
    keys: Tensor  # [batch, src, d_model]
    hidden: tuple[Tensor, ...]  # [batch, d_model] per layer
    cell: tuple[Tensor, ...]  # [batch, d_model] per layer; empty for a GRU
    feed: Tensor  # [batch, d_model]: attentional state of the previous step
    alignment: tuple[Tensor, ...] = ()  # state of hard attention, see `MonotonicOutput.step`

    def select(self, index: Tensor) -> RNNState:
        return RNNState(
            self.memory.select(index),
            self.keys[index],
            tuple(h[index] for h in self.hidden),
            tuple(c[index] for c in self.cell),
            self.feed[index],
            tuple(x[index] for x in self.alignment),
        )


class RNNSeq2Seq(CompiledSteps, SharingModel):
    r"""Bidirectional LSTM or GRU encoder, and a decoder with input feeding and global attention.

    Each decoder step reads the embedding of the last token and the last attentional state :math:`\tilde h = \tanh(W [c;
    s])`, attends to the encoder's states with the activation `attention`, and predicts with the activation `output`
    (Peters et al. 2019, sec. 4: two layers, 300 units, dropout 0.3 for inflection).

    The attribute `attention` can be replaced by any module with the methods of :class:`tsallis.nn.GlobalAttention`.
    `keys(memory)` returns tensors [batch, ...] that are computed once per sentence. `forward(query, memory, mask,
    keys)` returns a context [batch, d_model] and weights [batch, src]; for queries [batch, tgt, d_model], both have the
    additional dimension tgt. The attribute `arguments` does not record a replaced module.

    Args:
        src_vocab: number of source symbols; 0 is padding.
        tgt_vocab: number of target symbols; 0 is padding.
        d_model: size of states; even.
        layers: number of layers of the encoder and of the decoder.
        dropout: dropout on embeddings, between layers and on the attentional state.
        attention: "softmax", "sparsemax" or "entmax".
        attention_alpha: alpha of attention "entmax".
        output: "softmax", "sparsemax", "entmax" or "alpha_relu".
        output_alpha: alpha of output "entmax" and "alpha_relu".
        tau: threshold of output "alpha_relu", see :func:`tsallis.estimate_tau_from_scores`.
        input_feeding: whether a step reads the attentional state of the previous step. Without input feeding, all steps
            of a known target run in one call, at some loss of accuracy.
        forbidden: target symbols that are never predicted (by default padding, start and unknown).
        share: "target" uses one matrix as target embedding and output projection; "none" uses two matrices.
        density: density of continuous attention, see :class:`tsallis.nn.ContinuousGlobalAttention`: "gaussian",
            "truncated_parabola", "laplace", "triangular" or an alpha. The discrete weights define its moments. None:
            discrete attention.
        combine: whether the continuous context is added to the discrete context, as in the paper.
        num_basis: number of basis functions of the continuous attention, a multiple of 3, with widths .03, .1 and .3.
        matching: parameter of the density that the computed variance sets, "covariance" or "scale".
        cell: "lstm" or "gru".
        scorer: score function of the attention, "bilinear" or "additive", see :class:`tsallis.nn.GlobalAttention`.
        d_embedding: size of the embeddings; by default `d_model`.
        copy: target symbol of each source symbol, or -1 for symbols that are never copied. The output then mixes the
            activation's probabilities with attention, see :class:`tsallis.models.copying.CopyOutput`. None: nothing is
            copied.
        features: source symbols that are features, such as morphological tags. A second encoder reads them, and the
            decoder attends to symbols and features separately, see :class:`tsallis.models.features.GatedAttention`.
            None: one encoder reads all.
        monotonic: order of hard monotonic attention, 0 or 1, see :class:`tsallis.models.monotonic.MonotonicOutput`. It
            needs `input_feeding` False, because a decoder state can't depend on alignments. None: soft attention.
        initial_state: the decoder's state before the first token: the last states of the "encoder", or "zeros". From
            zeros, the decoder knows the source by attention alone, and generalises better after few examples.

    Raises:
        ValueError: sizes that are odd or too small, an unknown map, density, cell, scorer or initial state.

    Example:
        >>> model = RNNSeq2Seq(20, 15, d_model=8)
        >>> src, lengths = torch.randint(4, 20, (2, 5)), torch.tensor([5, 3])
        >>> decoded = model(src, lengths, torch.randint(4, 15, (2, 4)))
        >>> decoded.hidden.shape, decoded.attention.shape
        (torch.Size([2, 4, 8]), torch.Size([2, 4, 5]))
    """

    symbol_rows: ClassVar[dict[str, SymbolRows]] = SEQUENCE_ROWS

    def __init__(
        self,
        src_vocab: int,
        tgt_vocab: int,
        d_model: int = 300,
        layers: int = 2,
        dropout: float = 0.3,
        attention: str = "entmax",
        attention_alpha: float = 1.5,
        output: str = "entmax",
        output_alpha: float = 1.5,
        tau: float = 0.0,
        input_feeding: bool = True,
        forbidden: Sequence[int] = (PAD, BOS, UNK),
        share: str = "none",
        density: str | float | None = None,
        combine: bool = True,
        num_basis: int = 30,
        matching: Matching = "covariance",
        cell: str = "lstm",
        scorer: str = "bilinear",
        d_embedding: int | None = None,
        copy: Sequence[int] | None = None,
        features: Sequence[int] | None = None,
        monotonic: int | None = None,
        initial_state: str = "encoder",
    ) -> None:
        super().__init__()
        self.arguments = constructor_arguments(locals()) | {"forbidden": list(forbidden)}
        size = d_model if d_embedding is None else d_embedding
        _check(d_model, layers, dropout, share, size)
        check_cell(cell)
        _check_conflicts(self.arguments)
        check_one_of("initial_state", initial_state, INITIAL_STATES)
        self.d_model = d_model
        self.layers = layers
        self.input_feeding = input_feeding
        self.initial_state = initial_state
        between = dropout if layers > 1 else 0.0
        self.src_embedding = nn.Embedding(src_vocab, size, padding_idx=0)
        self.tgt_embedding = nn.Embedding(tgt_vocab, size, padding_idx=0)
        stack = {"num_layers": layers, "batch_first": True, "dropout": between}
        self.encoder = CELLS[cell](size, d_model // 2, bidirectional=True, **stack)
        self.features: GatedAttention | None = None
        if features is not None:
            self.features = GatedAttention(src_vocab, features, d_model, attention, attention_alpha, scorer)
            self.feature_encoder = CELLS[cell](size, d_model // 2, bidirectional=True, **stack)
        # The decoder's input is [embedding; attentional state], or the embedding alone.
        self.decoder = CELLS[cell](size + d_model * input_feeding, d_model, **stack)
        self.attention: Any = GlobalAttention(d_model, d_model, attention, attention_alpha, scorer)
        if density is not None:
            self.attention = ContinuousGlobalAttention(
                d_model,
                d_model,
                transform_alpha(attention, attention_alpha),
                density,
                combine=combine,
                matching=matching,
                basis=translation_basis(num_basis),
                scorer=scorer,
            )
        self.combine = nn.Linear(2 * d_model, d_model, bias=False)
        maps = output, output_alpha, tau
        if monotonic is None:
            self.output = make_output(d_model, tgt_vocab, src_vocab, copy, *maps, forbidden=forbidden)
        else:
            alpha = self.attention.alpha
            self.output = MonotonicOutput(d_model, tgt_vocab, monotonic, alpha, *maps, forbidden=forbidden)
        share_embeddings(share, self.src_embedding, self.tgt_embedding, self.output, SHARES[:2])
        self.dropout = float(dropout)
        self._initialise()

    def _initialise(self) -> None:
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -INITIAL, INITIAL)
        with torch.no_grad():
            open_forget_gates(self.encoder)
            if self.features is not None:
                open_forget_gates(self.feature_encoder)
            open_forget_gates(self.decoder)
            self.src_embedding.weight[0] = 0
            self.tgt_embedding.weight[0] = 0

    def encode(self, src: Tensor, src_lengths: Tensor) -> Memory:
        """Encode symbols [batch, src] with their counts [batch] to states; symbols beyond a count have no effect.

        Raises:
            ValueError: counts below 1 or above the width of `src`.
        """
        src_lengths = check_counts(src, src_lengths)
        counts = src_lengths.cpu()
        embedded = self._drop(embed_known(self.src_embedding, src, self.output))  # [batch, src, d_embedding]
        mask = source_mask(src_lengths, src)
        copies = self.output.copies(src) if isinstance(self.output, CopyOutput) else None
        features = None
        if self.features is None:
            states, summary = self._read(self.encoder, embedded, counts, mask)
        else:
            features = self.features.mask(src) & mask
            states, summary = self._read_part(self.encoder, embedded, mask & ~features)
            states = states + self._read_part(self.feature_encoder, embedded, features)[0]
        if self.initial_state == "zeros":
            summary = tuple(torch.zeros_like(x) for x in summary)
        return Memory(states, mask, summary, copies, features)

    def _read_part(self, encoder: Any, embedded: Tensor, part: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Encode only the symbols in the mask `part` [batch, src]; the states of other symbols are zero."""
        order = part.int().argsort(dim=1, descending=True, stable=True).unsqueeze(-1)
        counts = part.sum(1)
        # An encoder needs at least one symbol per row; the result for a row without symbols is replaced by zeros.
        lengths = counts.clamp(min=1)
        states, summary = self._read(
            encoder, embedded.gather(1, order.expand_as(embedded)), lengths.cpu(), source_mask(lengths, part)
        )
        states = torch.zeros_like(states).scatter(1, order.expand_as(states), states)
        has_symbols = (counts > 0).unsqueeze(-1)
        return torch.where(part.unsqueeze(-1), states, 0), tuple(torch.where(has_symbols, x, 0) for x in summary)

    def _read(self, encoder: Any, x: Tensor, counts: Tensor, mask: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the states [batch, src, d_model] of an encoder and its last states, each [batch, d_model]."""
        if isinstance(encoder, nn.LSTM) and _can_fuse(x, encoder):
            states, last = read_rows(encoder, x, counts, self.dropout if self.training else 0.0)
            return torch.where(mask.unsqueeze(-1), states, 0), tuple(
                p for y in last for p in self._concatenate_directions(y)
            )
        packed = pack_padded_sequence(x, counts, batch_first=True, enforce_sorted=False)
        packed_states, last = encoder(packed)
        states, _ = pad_packed_sequence(packed_states, batch_first=True, total_length=x.shape[1])
        summary = last if isinstance(last, tuple) else (last,)  # hidden states and, for an LSTM, cells
        return states, tuple(part for y in summary for part in self._concatenate_directions(y))

    def _concatenate_directions(self, x: Tensor) -> tuple[Tensor, ...]:
        # Convert [layers * 2, batch, d_model / 2] to one tensor [batch, d_model] per layer.
        return tuple(torch.cat([x[2 * i], x[2 * i + 1]], -1) for i in range(self.layers))

    def start(self, memory: Memory) -> RNNState | CompiledState:
        """Return the state before the first token, with one row per source."""
        plain = type(self) is RNNSeq2Seq and "step" not in vars(self)
        compiled = start_compiled(self, memory) if plain else None
        return self._start_plain(memory) if compiled is None else compiled

    def _start_plain(self, memory: Memory) -> RNNState:
        feed = memory.states.new_zeros(memory.states.shape[0], self.d_model)
        hidden, cell = memory.summary[: self.layers], memory.summary[self.layers :]
        keys: Tensor = self.attention.keys(memory.states)
        if self.features is not None and memory.features is not None:
            keys = self.features.keys(memory.states, memory.features, keys)
        alignment = self.output.start(memory.mask) if isinstance(self.output, MonotonicOutput) else ()
        return RNNState(memory, keys, hidden, cell, feed, alignment)

    def step(self, state: RNNState | CompiledState, token: Tensor) -> Step:
        """Return the scores of the symbols after `token` [batch], which follows the tokens read by the state."""
        if isinstance(state, CompiledState):
            return state.step(token)
        by_token, layers = self._decoder_weights()
        gates = self._token_gates(token, by_token, layers[0])
        between, out = self._dropout_mask(self.layers - 1, *state.feed.shape), self._dropout_mask(*state.feed.shape)
        if isinstance(self.output, MonotonicOutput):
            hidden, cell = self._recur(state, gates, layers, between)
            state = replace(state, hidden=hidden, cell=cell)
            return self.output.step(state, token, self._align(hidden[-1].unsqueeze(1), state))
        state, attention = self._advance(state, gates, layers, between, out)
        if isinstance(self.output, CopyOutput):
            assert state.memory.copies is not None
            return self.output.step(state.feed, attention, state.memory.copies, state)
        return Step(self.output.scores(state.feed), attention, state)

    def forward(self, src: Tensor, src_lengths: Tensor, tgt_in: Tensor, need_attention: bool = True) -> DecoderOutput:
        """Decode all steps with teacher forcing: symbols [batch, src], counts [batch], target tokens [batch, tgt].

        The result equals that of :meth:`step` token by token, but everything that does not depend on the previous step
        is computed at once. Attention weights are always returned, regardless of `need_attention`.
        """
        state = self._start_plain(self.encode(src, src_lengths))
        hidden, attention = self._all_steps(state, tgt_in)
        if isinstance(self.output, CopyOutput):
            assert state.memory.copies is not None
            hidden = self.output.attend(hidden, attention, state.memory.copies)
        return DecoderOutput(hidden, attention)

    def _all_steps(self, state: RNNState, tgt_in: Tensor) -> tuple[Tensor, Tensor]:
        """Return attentional states [batch, tgt, d_model] and attention weights [batch, tgt, src]."""
        if not self.input_feeding:
            embedded = self._drop(embed_known(self.tgt_embedding, tgt_in, self.output))  # [batch, tgt, d_embedding]
            initial_hidden = torch.stack(state.hidden)
            initial_state = (initial_hidden, torch.stack(state.cell)) if state.cell else initial_hidden
            states, _ = run_layers(self.decoder, embedded, initial_state)
            if isinstance(self.output, MonotonicOutput):
                return self.output.align(self._align(states, state), tgt_in)
            return self._attend(states, state, self._dropout_mask(*states.shape))
        by_token, layers = self._decoder_weights()
        token_gates = self._token_gates(tgt_in.t(), by_token, layers[0])  # [tgt, batch, gates * d_model]
        between = self._dropout_mask(tgt_in.shape[1], self.layers - 1, *state.feed.shape)
        out = self._dropout_mask(tgt_in.shape[1], *state.feed.shape)
        steps = self._as_lstm_steps(state, token_gates, layers, between, out)
        if steps is not None:
            return fused_steps(steps)
        hidden, weights = [], []
        for t, gates in enumerate(token_gates.unbind(0)):
            dropout_masks = (None, None) if between is None or out is None else (between[t], out[t])
            state, attention = self._advance(state, gates, layers, *dropout_masks)
            hidden.append(state.feed)
            weights.append(attention)
        return torch.stack(hidden, 1), torch.stack(weights, 1)

    def num_attended(self, decoded: DecoderOutput) -> Tensor:
        """Count the positions with a weight above zero at each step [batch, tgt]."""
        assert decoded.attention is not None
        return (decoded.attention > 0).sum(-1).float()

    @torch.no_grad()
    def densities(self, src: Tensor, src_lengths: Tensor, tgt_in: Tensor) -> Density | None:
        """Return the densities of all steps, with batch shape [batch, 1, tgt]; None without continuous attention.

        Args:
            src: source symbols [batch, src].
            src_lengths: number of source symbols per row [batch].
            tgt_in: start symbol and target tokens [batch, tgt].
        """
        attention, calls = self.attention, []
        if not isinstance(attention, ContinuousGlobalAttention):
            return None
        hook = attention.register_forward_hook(lambda module, arguments, result: calls.append(arguments))
        try:
            self(src, src_lengths, tgt_in)
        finally:
            hook.remove()
        queries = [query for query, *_ in calls]  # one tensor [batch, tgt, d_model], or one [batch, d_model] per step
        return attention.density(queries[0] if queries[0].dim() == 3 else torch.stack(queries, 1), *calls[0][1:])

    def _decoder_weights(self) -> tuple[Tensor, list[CellWeights]]:
        """Return the weight that multiplies token embeddings [gates * d_model, d_embedding], and the layers."""
        return read_layers(self.decoder, self.tgt_embedding.embedding_dim)

    def _token_gates(self, token: Tensor, weight: Tensor, first: CellWeights) -> Tensor:
        # Convert tokens [...] to gates [..., gates * d_model].
        return linear(self._drop(embed_known(self.tgt_embedding, token, self.output)), weight, first.bias)

    def _as_lstm_steps(
        self,
        state: RNNState,
        token_gates: Tensor,
        layers: list[CellWeights],
        between: Tensor | None,
        out: Tensor | None,
    ) -> LSTMSteps | None:
        """Return arguments of the operation that runs all steps; None if it does not support the cell or attention."""
        attention = self.attention
        if not state.cell or self.features is not None or not _can_fuse(state.feed, attention, self.combine):
            return None
        if type(attention) is not GlobalAttention or attention.scorer != "bilinear" or not is_linear(self.combine):
            return None
        parts = []
        for i, layer in enumerate(layers):
            assert layer.weight is not None
            parts.append(LSTMLayer(layer.weight.t(), layer.recurrent.t(), layer.bias if i else None))
        memory = state.memory
        inputs = token_gates, memory.states, state.keys, memory.mask, state.feed, self.combine.weight, between, out
        return LSTMSteps(*inputs, parts, state.hidden, state.cell, attention.alpha)

    def _advance(
        self, state: RNNState, gates: Tensor, layers: list[CellWeights], between: Tensor | None, out: Tensor | None
    ) -> tuple[RNNState, Tensor]:
        """Run one step from the token's gates [batch, gates * d_model].

        `between` [layers - 1, batch, d_model] and `out` [batch, d_model] are dropout masks.
        """
        hidden, cell = self._recur(state, gates, layers, between)
        feed, attention = self._attend(hidden[-1], state, out)
        return RNNState(state.memory, state.keys, hidden, cell, feed), attention

    @staticmethod
    def _recur(
        state: RNNState, gates: Tensor, layers: list[CellWeights], between: Tensor | None
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Return the states and cells of all layers after a token."""
        hidden: list[Tensor] = []
        cell: list[Tensor] = []
        for i, layer in enumerate(layers):
            below = hidden[-1] if i else state.feed
            if i and between is not None:
                below = below * between[i - 1]
            h, c = layer.step(None if i else gates, below, state.hidden[i], state.cell[i] if state.cell else None)
            hidden.append(h)
            if c is not None:
                cell.append(c)
        return tuple(hidden), tuple(cell)

    def _align(self, states: Tensor, state: RNNState) -> AlignedSteps:
        """Return the steps of hard attention for decoder states [batch, tgt, d_model]."""
        assert isinstance(self.output, MonotonicOutput)
        by_memory, by_state = self.combine.weight.split(self.d_model, 1)
        mixed = linear(state.memory.states, by_memory).unsqueeze(1) + linear(states, by_state).unsqueeze(2)
        out = self._dropout_mask(*states.shape)
        mixed = torch.tanh(mixed) if out is None else torch.tanh(mixed) * out.unsqueeze(2)
        return self.output.prepare(mixed, self.attention.scores(states, state.keys), state.memory.mask)

    def _attend(self, states: Tensor, state: RNNState, out: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return attentional states and weights of states [batch, d_model] or [batch, tgt, d_model]."""
        memory = state.memory
        if self.features is None:
            context, attention = self.attention(states, memory.states, memory.mask, state.keys)
            mixed = self._mix(states, context)
        else:
            assert memory.features is not None
            inputs = states, memory.states, memory.mask, memory.features, state.keys
            mixed, attention = self.features(*inputs, self.attention, self._mix)
        return mixed if out is None else mixed * out, attention

    def _mix(self, states: Tensor, context: Tensor) -> Tensor:
        """Return attentional states [..., d_model] from states and their contexts."""
        return torch.tanh(self.combine(torch.cat([context, states], -1)))

    def _dropout_mask(self, *shape: int) -> Tensor | None:
        """Draw dropout factors; return None if there is no dropout."""
        if not self.training or self.dropout == 0:
            return None
        return dropout_mask(shape, self.dropout, self.combine.weight)

    def _drop(self, x: Tensor) -> Tensor:
        mask = self._dropout_mask(*x.shape)
        return x if mask is None else x * mask


def _can_fuse(x: Tensor, *modules: nn.Module) -> bool:
    """Return whether CPU kernels can replace the modules: x is on a CPU, and nothing traces or hooks the modules."""
    hooks = any(module._forward_hooks or module._forward_pre_hooks for module in modules)
    return x.device.type == "cpu" and not hooks and not tracing_active()


def _check_conflicts(arguments: Mapping[str, Any]) -> None:
    """Raise if arguments of :class:`RNNSeq2Seq` exclude each other."""
    given = [name for name in ("copy", "features", "density") if arguments[name] is not None]
    if "density" in given and len(given) > 1:
        raise ValueError(f"density must be None with {given[0]}, got {arguments['density']!r}")
    if arguments["monotonic"] is not None:
        if arguments["input_feeding"]:
            raise ValueError("input_feeding must be False with monotonic, got True")
        if given:
            raise ValueError(f"{given[0]} must be None with monotonic, got {arguments[given[0]]!r}")


def _check(d_model: int, layers: int, dropout: float, share: str, d_embedding: int) -> None:
    """Raise a ValueError if an argument of the model is invalid."""
    if d_model < 2 or d_model % 2:
        raise ValueError(f"d_model must be even and at least 2, got {d_model}")
    check_integer("layers", layers, 1)
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must be at least 0 and below 1, got {dropout}")
    if share != "none" and d_embedding != d_model:
        raise ValueError(f"d_embedding must be equal to d_model, {d_model}, with share {share!r}, got {d_embedding}")
