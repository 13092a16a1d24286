"""Define the Transformer of Vaswani et al. 2017 with the attention of Correia et al. 2019 and sparse outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tsallis.errors import check_integer, check_one_of
from tsallis.models.arguments import constructor_arguments
from tsallis.models.checks import check_counts, check_last_pass
from tsallis.models.compiled import CompiledState, CompiledSteps
from tsallis.models.copying import CopyOutput, embed_known, make_output
from tsallis.models.features import FeatureTypes
from tsallis.models.protocol import DecoderOutput, Memory, Step, source_mask
from tsallis.models.sharing import SEQUENCE_ROWS, SHARES, AttentionModel, SymbolRows, share_embeddings
from tsallis.models.transformer.compiled import encode_compiled, start_compiled
from tsallis.models.transformer.decoding_state import KVBuffers, RowPacking, Sources, StepCache, TransformerState
from tsallis.nn import (
    KeyValueCache,
    MultiheadAttention,
    PerHeadAlpha,
    TransformerDecoderLayer,
    TransformerEncoderLayer,
)
from tsallis.nn.dropout import Dropout
from tsallis.nn.length_scale import LengthScaleKind
from tsallis.nn.output import MAP_ALPHAS
from tsallis.nn.positions import SinusoidalPositions, check_positions
from tsallis.ops.transforms import traced
from tsallis.symbols import BOS, PAD, UNK

KINDS = ("encoder", "decoder", "cross")
ATTENTIONS = ("softmax", "sparsemax", "entmax", "learned")
TIES = ("none", "layer", "kind", "global")
NORMS = ("post", "pre")


class Stack(nn.Module):
    """Stack of layers with an optional final norm, with the parameter names of `torch.nn.TransformerEncoder`.

    Args:
        layers: Layers from the input to the output.
        norm: Norm of the last layer's output, or None.
    """

    def __init__(self, layers: Sequence[nn.Module], norm: nn.Module | None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norm = norm

    def end(self, x: Tensor) -> Tensor:
        """Return the last layer's output, normalised if there is a norm."""
        return x if self.norm is None else self.norm(x)


class TransformerSeq2Seq(CompiledSteps, AttentionModel):
    r"""Encoder-decoder Transformer with sparse attention and sparse outputs.

    .. math:: \mathrm{head}_h = \mathrm{entmax}_{\alpha_h}\big(Q_h K_h^\top / \sqrt{d}\big) V_h, \qquad
              \alpha_h = 1 + \sigma(a_h)

    (Vaswani et al. 2017; Correia et al. 2019, eq. 8 and 10, learn an alpha for every head of every layer). There are
    three kinds of attention: self-attention of the encoder, self-attention of the decoder, and attention of the decoder
    to the source ("cross"). Parameters have the names of `torch.nn.Transformer`.

    Args:
        src_vocab: Number of source symbols; 0 is padding.
        tgt_vocab: Number of target symbols; 0 is padding.
        d_model: Size of embeddings and states; even, and a multiple of `heads`.
        heads: Number of heads of each attention.
        layers: Number of layers of the encoder and of the decoder.
        d_ff: Number of hidden units of the feed-forward networks.
        dropout: Dropout on embeddings, hidden units, and outputs of attention and feed-forward networks.
        attention_dropout: Dropout on attention weights; None for the value of `dropout`.
        norm: Place of layer norms: "post" after residual sums (Vaswani et al. 2017), "pre" before each sublayer and at
            the end of a stack.
        activation: Activation of the feed-forward networks, "relu" or "gelu".
        attention: Activation of all kinds of attention: "softmax", "sparsemax", "entmax" or "learned".
        attention_alpha: Alpha of attention "entmax".
        encoder_attention, decoder_attention, cross_attention: Override of `attention` for one kind.
        tie_alphas: Sharing of learned alphas: "none" has one alpha per head, "layer" one per attention, "kind" one per
            kind of attention, "global" one for the model.
        output: Activation of the output: "softmax", "sparsemax", "entmax" or "alpha_relu".
        output_alpha: Alpha of output "entmax" and "alpha_relu".
        tau: Threshold of output "alpha_relu", see :func:`tsallis.estimate_tau_from_scores`.
        share: Weight tying: "target" ties the target embedding and the output's projection, "all" also the source
            embedding; "none" ties nothing.
        forbidden: Target symbols that are never predicted (by default padding, start and unknown).
        encoder_layers, decoder_layers: Number of layers of one part, in place of `layers`.
        checkpoint_activations: Whether to store only the input of each layer, and recompute the layer in the backward
            pass.
        positions: Position encoding: "sinusoids" are added to embeddings; "rope", "alibi", "nape" and "none" apply to
            the self-attentions, see :class:`tsallis.nn.MultiheadAttention`.
        length_scale: Kind of :class:`tsallis.nn.LengthScale` of the self-attentions: "input", "head", "ssmax" or None.
        copy: Target symbol of each source symbol, or -1 for symbols that are never copied. The output then mixes the
            activation's probabilities with the last layer's attention to the source, see
            :class:`tsallis.models.copying.CopyOutput`. None: nothing is copied.
        features: Source symbols that are features, such as morphological tags. Their order has no effect, see
            :class:`tsallis.models.features.FeatureTypes`; this needs positions "sinusoids". None: all symbols have
            positions.

    Raises:
        ValueError: If sizes don't fit, or a name is unknown.

    Example:
        >>> model = TransformerSeq2Seq(20, 15, d_model=8, heads=2, layers=1, d_ff=16, attention="learned")
        >>> src, lengths = torch.randint(4, 20, (2, 5)), torch.tensor([5, 3])
        >>> decoded = model(src, lengths, torch.randint(4, 15, (2, 4)))
        >>> decoded.hidden.shape, model.num_attended(decoded).shape
        (torch.Size([2, 4, 8]), torch.Size([2, 4]))
        >>> model.alphas()["cross"].shape  # [layers, heads]
        torch.Size([1, 2])
    """

    symbol_rows: ClassVar[dict[str, SymbolRows]] = SEQUENCE_ROWS

    def __init__(
        self,
        src_vocab: int,
        tgt_vocab: int,
        d_model: int = 512,
        heads: int = 8,
        layers: int = 6,
        d_ff: int = 2048,
        dropout: float = 0.1,
        attention_dropout: float | None = 0.0,
        norm: str = "post",
        activation: str = "relu",
        attention: str = "entmax",
        attention_alpha: float = 1.5,
        encoder_attention: str | None = None,
        decoder_attention: str | None = None,
        cross_attention: str | None = None,
        tie_alphas: str = "none",
        output: str = "entmax",
        output_alpha: float = 1.5,
        tau: float = 0.0,
        share: str = "none",
        forbidden: Sequence[int] = (PAD, BOS, UNK),
        encoder_layers: int | None = None,
        decoder_layers: int | None = None,
        checkpoint_activations: bool = False,
        positions: str = "sinusoids",
        length_scale: LengthScaleKind | None = None,
        copy: Sequence[int] | None = None,
        features: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        self.arguments = constructor_arguments(locals()) | {
            "forbidden": list(forbidden),
            "attention_dropout": dropout if attention_dropout is None else attention_dropout,
            "encoder_attention": encoder_attention or attention,
            "decoder_attention": decoder_attention or attention,
            "cross_attention": cross_attention or attention,
            "encoder_layers": layers if encoder_layers is None else encoder_layers,
            "decoder_layers": layers if decoder_layers is None else decoder_layers,
        }
        del self.arguments["attention"], self.arguments["layers"]
        _check(self.arguments)
        self.d_model = d_model
        self.heads = heads
        self.checkpoint_activations = checkpoint_activations
        self.src_embedding = nn.Embedding(src_vocab, d_model, padding_idx=0)
        self.tgt_embedding = nn.Embedding(tgt_vocab, d_model, padding_idx=0)
        self.positions = SinusoidalPositions(d_model) if positions == "sinusoids" else None
        self.features = None if features is None else FeatureTypes(src_vocab, features, d_model)
        self._build_layers()
        self.dropout = Dropout(dropout)
        maps = output, output_alpha, tau
        self.output = make_output(d_model, tgt_vocab, src_vocab, copy, *maps, forbidden=forbidden)
        self._initialise()
        share_embeddings(share, self.src_embedding, self.tgt_embedding, self.output, SHARES)

    def _build_layers(self) -> None:
        arguments = self.arguments
        options = {
            "dim_feedforward": arguments["d_ff"],
            "dropout": arguments["dropout"],
            "attention_dropout": arguments["attention_dropout"],
            "activation": arguments["activation"],
            "norm_first": arguments["norm"] == "pre",
            "batch_first": True,
            "positions": "none" if arguments["positions"] == "sinusoids" else arguments["positions"],
            "length_scale": arguments["length_scale"],
        }
        alpha = _alphas(arguments)

        def norm() -> nn.Module | None:
            return nn.LayerNorm(self.d_model) if arguments["norm"] == "pre" else None

        encoder = [
            TransformerEncoderLayer(self.d_model, self.heads, **options, alpha=alpha("encoder"))
            for _ in range(arguments["encoder_layers"])
        ]
        decoder = [
            TransformerDecoderLayer(
                self.d_model, self.heads, **options, alpha=alpha("decoder"), cross_attention_alpha=alpha("cross")
            )
            for _ in range(arguments["decoder_layers"])
        ]
        self.encoder, self.decoder = Stack(encoder, norm()), Stack(decoder, norm())

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        for table in (self.src_embedding, self.tgt_embedding):
            nn.init.normal_(table.weight, std=self.d_model**-0.5)
            with torch.no_grad():
                table.weight[0] = 0

    def encode(self, src: Tensor, src_lengths: Tensor) -> Memory:
        """Encode symbols [batch, src] with their counts [batch]; symbols beyond a count have no effect.

        Raises:
            ValueError: If a count is below 1 or above the width of `src`.
        """
        lengths = self._counts(src, src_lengths)
        if isinstance(self.output, CopyOutput):
            copies = self.output.copies(src)
            return Memory(self._encode(src, lengths), source_mask(lengths, src), copies=copies)
        plain = type(self) is TransformerSeq2Seq and self.features is None
        compiled = encode_compiled(self, src, lengths) if plain else None
        return Memory(self._encode(src, lengths), source_mask(lengths, src)) if compiled is None else compiled

    def _counts(self, src: Tensor, src_lengths: Tensor) -> Tensor:
        """Check the lengths and return them on the CPU, so that reading them doesn't wait for a device."""
        counts = check_counts(src, src_lengths)
        return counts if traced() else counts.cpu()

    def _encode(self, src: Tensor, lengths: Tensor) -> Tensor:
        x = self._embed_source(src)  # [batch, src, d_model]
        for layer in self.encoder.layers:
            x = self._run_layer(layer, x, src_key_lengths=lengths)
        return self.encoder.end(x)

    def start(self, memory: Memory) -> TransformerState | CompiledState:
        """Return the state before the first token, with one row per source and the keys and values of the sources."""
        if type(memory) is Memory and not traced():
            prefixes = source_mask(memory.mask.sum(1), memory.states)
            if not memory.mask.equal(prefixes):
                row = int((memory.mask != prefixes).any(1).nonzero()[0])
                raise ValueError(
                    f"mask of the memory must be True up to the last symbol and False after it, but row {row} differs"
                )
        plain = type(self) is TransformerSeq2Seq and "step" not in vars(self)
        compiled = start_compiled(self, memory) if plain else None
        return self._start_plain(memory) if compiled is None else compiled

    def _start_plain(self, memory: Memory) -> TransformerState:
        pairs = (attention.keys_and_values(memory.states) for attention in self.attentions()["cross"])
        keys, values = zip(*pairs, strict=True)
        sources = Sources(keys, values, memory.mask.sum(1).cpu(), memory.copies)
        empty = tuple(x[:, :, :0] for pair in zip(keys, values, strict=True) for x in pair)
        rows = torch.arange(len(memory.states), device=memory.states.device)
        return TransformerState(sources, rows, KVBuffers(empty, 0), 0)

    def step(self, state: TransformerState | CompiledState, token: Tensor) -> Step:
        """Return the scores of the symbols after `token` [batch], which follows the tokens read by the state.

        Attention is the mean of the heads of the last layer.
        """
        if isinstance(state, CompiledState):
            return state.step(token)
        sources, source_index = state.attended_sources()
        packing = RowPacking.of(torch.searchsorted(source_index, state.source), len(sources))
        cache = StepCache(state.kv, state.steps, state.read)
        position = state.steps if state.read is None else state.read
        x = self._embed(self.tgt_embedding, token.unsqueeze(1), position)  # [rows, 1, d_model]
        last = len(self.decoder.layers) - 1
        for number, layer in enumerate(self.decoder.layers):
            x, weights = _run_layer_step(layer, x, cache, sources, packing, number, number == last)
        assert weights is not None
        hidden, attention = self.decoder.end(x).squeeze(1), packing.scatter(weights).squeeze(1)
        next_state = cache.following(state, (sources, source_index) if sources is not state.sources else None)
        if isinstance(self.output, CopyOutput):
            assert state.sources.copies is not None
            return self.output.step(hidden, attention, state.sources.copies[state.source], next_state)
        return Step(self.output.scores(hidden), attention, next_state)

    def forward(self, src: Tensor, src_lengths: Tensor, tgt_in: Tensor, need_attention: bool = False) -> DecoderOutput:
        """Decode all steps with teacher forcing: symbols [batch, src], counts [batch], target tokens [batch, tgt].

        Attention weights (the mean of the last layer's heads) are returned only with `need_attention`.
        """
        lengths = self._counts(src, src_lengths)
        memory = self._encode(src, lengths)
        x = self._embed(self.tgt_embedding, tgt_in, 0)  # [batch, tgt, d_model]
        options: dict[str, Any] = {"tgt_is_causal": True, "memory_key_lengths": lengths}
        *earlier_layers, last_layer = self.decoder.layers
        for layer in earlier_layers:
            x = self._run_layer(layer, x, memory, **options)
        attention = None
        if need_attention or isinstance(self.output, CopyOutput):
            x, attention = self._run_layer(last_layer, x, memory, **options, need_weights=True)
        else:
            x = self._run_layer(last_layer, x, memory, **options)
        hidden = self.decoder.end(x)
        if isinstance(self.output, CopyOutput):
            assert attention is not None
            hidden = self.output.attend(hidden, attention, self.output.copies(src))
        return DecoderOutput(hidden, attention)

    def _run_layer(self, layer: nn.Module, x: Tensor, *memory: Tensor, **options: Any) -> Any:
        if self.checkpoint_activations and torch.is_grad_enabled():
            return checkpoint(layer, x, *memory, use_reentrant=False, **options)
        return layer(x, *memory, **options)

    def _embed_source(self, src: Tensor) -> Tensor:
        if self.features is None or self.positions is None:
            return self._embed(self.src_embedding, src, 0)
        places, types = self.features(src)
        x = (embed_known(self.src_embedding, src, self.output) + types) * math.sqrt(self.d_model)
        embedded: Tensor = self.dropout(x + self.positions(x, places, 1).squeeze(1))
        return embedded

    def _embed(self, table: nn.Embedding, symbols: Tensor, first: int | Tensor) -> Tensor:
        """Embed symbols [batch, length] with positions from `first`; return [batch, length, d_model]."""
        x = embed_known(table, symbols, self.output) * math.sqrt(self.d_model)
        if self.positions is not None:
            x = x + self.positions(x, first, symbols.shape[1])
        embedded: Tensor = self.dropout(x)
        return embedded

    def attentions(self) -> dict[str, list[MultiheadAttention]]:
        encoder, decoder = self.encoder.layers, self.decoder.layers
        return {
            "encoder": [layer.self_attn for layer in encoder],  # type: ignore[misc]
            "decoder": [layer.self_attn for layer in decoder],  # type: ignore[misc]
            "cross": [layer.multihead_attn for layer in decoder],  # type: ignore[misc]
        }

    def num_attended(self, decoded: DecoderOutput) -> Tensor:
        """Return the mean number of attended source positions per step [batch, tgt], over layers and heads.

        Attended positions have a weight above zero. Call this before the next pass, because the model records only its
        last pass.

        Raises:
            RuntimeError: If the last pass did not make `decoded`, or was compiled.
        """
        mean = self._supports("cross", decoded).float().mean((0, 2))
        check_last_pass(mean.shape, decoded)
        return mean


def _run_layer_step(
    layer: Any, x: Tensor, cache: StepCache, sources: Sources, packing: RowPacking, number: int, need_weights: bool
) -> tuple[Tensor, Tensor | None]:
    """Return a layer's output for one token per row, and its weights [sources, width, src] or None."""
    weights: list[Tensor | None] = []

    def attend(states: Tensor) -> Tensor:
        context: Tensor = layer.self_attn(
            states, states, states, need_weights=False, cache=cache, key_lengths=cache.lengths
        )[0]
        return context

    def attend_memory(states: Tensor) -> Tensor:
        memory = KeyValueCache()
        memory.append(sources.keys[number], sources.values[number])
        context, attention = layer.multihead_attn(
            packing.gather(states), need_weights=need_weights, cache=memory, key_lengths=sources.lengths
        )
        weights.append(attention)
        return packing.scatter(context)

    return layer.compose(x, attend, attend_memory), weights[0]


def _alphas(arguments: dict[str, Any]) -> Callable[[str], float | PerHeadAlpha]:
    """Return a function that creates the alpha of an attention of a given kind; tied alphas share a module."""
    tie, tied = arguments["tie_alphas"], {}

    def alpha(kind: str) -> float | PerHeadAlpha:
        attention = arguments[f"{kind}_attention"]
        if attention != "learned":
            return MAP_ALPHAS.get(attention, arguments["attention_alpha"])
        if tie in ("none", "layer"):
            return PerHeadAlpha(arguments["heads"] if tie == "none" else 1)
        name = kind if tie == "kind" else "all"
        if name not in tied:
            tied[name] = PerHeadAlpha(1)
        return tied[name]

    return alpha


def _check(arguments: dict[str, Any]) -> None:
    """Raise if an argument of the model is invalid."""
    d_model, heads = arguments["d_model"], arguments["heads"]
    for name in ("heads", "encoder_layers", "decoder_layers", "d_ff"):
        check_integer(name, arguments[name], 1)
    if d_model < 2 or d_model % 2 or d_model % heads:
        raise ValueError(f"d_model must be even and a multiple of heads, got {d_model} and {heads} heads")
    check_positions(arguments["positions"], ("sinusoids",))
    if arguments["features"] is not None and arguments["positions"] != "sinusoids":
        raise ValueError(f"positions must be 'sinusoids' with features, got {arguments['positions']!r}")
    for name in ("dropout", "attention_dropout"):
        if not 0 <= arguments[name] < 1:
            raise ValueError(f"{name} must be at least 0 and below 1, got {arguments[name]}")
    choices = {"norm": NORMS, "tie_alphas": TIES, "activation": ("relu", "gelu")}
    choices |= {f"{kind}_attention": ATTENTIONS for kind in KINDS}
    for name, options in choices.items():
        check_one_of(name, arguments[name], options)
    if arguments["tie_alphas"] != "none" and "learned" not in {arguments[f"{kind}_attention"] for kind in KINDS}:
        raise ValueError(f"tie_alphas must be 'none' if no attention is 'learned', got {arguments['tie_alphas']!r}")
