"""Define a decoder-only Transformer with sparse attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tsallis.errors import check_integer
from tsallis.models.arguments import constructor_arguments
from tsallis.models.checks import check_counts, check_last_pass
from tsallis.models.protocol import DecoderOutput, Step
from tsallis.models.sharing import AttentionModel, SymbolRows
from tsallis.models.transformer.decoding_state import (
    KVBuffers,
    StepCache,
    join_buffers,
    select_counts,
    selects_all,
    step_cache,
)
from tsallis.nn import KeyValueCache, MultiheadAttention, OutputLayer
from tsallis.nn.dropout import Dropout
from tsallis.nn.kv_cache import Cache
from tsallis.nn.length_scale import LengthScaleKind
from tsallis.nn.positions import AttentionPositions
from tsallis.ops.transforms import traced
from tsallis.symbols import BOS, PAD, UNK


class LanguageLayer(nn.Module):
    r"""Layer of a language model: causal self-attention and a gated network, each after a norm.

    .. math:: y = x + \mathrm{MultiHead}_\alpha(\mathrm{norm}(x)), \qquad
              \mathrm{out} = y + W_3 (\mathrm{silu}(W_1 \hat y) \odot W_2 \hat y), \quad \hat y = \mathrm{norm}(y)

    The norms are root mean square norms, and there are no biases (Shazeer 2020; Touvron et al. 2023).

    Args:
        d_model, heads, d_ff: sizes.
        dropout: dropout of the outputs of attention and network.
        attention: arguments of the attention.
    """

    def __init__(self, d_model: int, heads: int, d_ff: int, dropout: float, attention: dict[str, Any]) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(d_model), nn.RMSNorm(d_model)
        self.self_attn = MultiheadAttention(d_model, heads, bias=False, batch_first=True, **attention)
        self.gate, self.expand = nn.Linear(d_model, d_ff, bias=False), nn.Linear(d_model, d_ff, bias=False)
        self.shrink = nn.Linear(d_ff, d_model, bias=False)
        self.dropout = Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        cache: Cache | None = None,
        key_lengths: Tensor | None = None,
        need_weights: bool = False,
        mask: Tensor | None = None,
        texts: RowTexts | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the output [batch, length, d_model], and the attention weights averaged over heads, or None.

        For rows with several texts, pass a mask or `texts`, so that attention reads each text separately.
        """
        normalized = self.norm1(x)
        if texts is not None:
            normalized, key_lengths = texts.split(normalized), texts.lengths
        options = {"need_weights": need_weights, "cache": cache, "key_lengths": key_lengths, "attn_mask": mask}
        context, weights = self.self_attn(normalized, normalized, normalized, is_causal=True, **options)
        x = x + self.dropout(context if texts is None else texts.join(context))
        normalized = self.norm2(x)
        return x + self.dropout(self.shrink(F.silu(self.gate(normalized)) * self.expand(normalized))), weights


@dataclass(frozen=True)
class Prompt:
    """Texts to continue.

    Args:
        tokens: Tokens [batch, src].
        lengths: Number of tokens per text [batch].
    """

    tokens: Tensor
    lengths: Tensor

    def select(self, index: Tensor) -> Prompt:
        """Select rows by index: reorder, repeat or drop them."""
        return Prompt(self.tokens[index], self.lengths[index])


@dataclass(frozen=True)
class LanguageState:
    """Decoder state of a batch of texts, one per row."""

    kv: KVBuffers
    steps: int  # maximum number of tokens read by a row
    read: Tensor | None  # [rows]: number of tokens that each row has read; None if all are equal
    prompts: Tensor  # [rows]: number of tokens in each prompt
    width: int  # width of the prompts
    last: Tensor | None  # [rows]: last tokens of the prompts, which the first step reads instead of BOS

    def select(self, index: Tensor) -> LanguageState:
        """Select rows by index: reorder, repeat or drop them."""
        if selects_all(index, len(self.prompts)):
            return self
        read, steps = select_counts(self.read, self.steps, index)
        last = None if self.last is None else self.last[index]
        return LanguageState(self.kv.select(index, steps), steps, read, self.prompts[index], self.width, last)

    @staticmethod
    def join(states: Sequence[LanguageState]) -> LanguageState:
        """Concatenate the rows of several states, all before or all after their first step."""
        kv, steps, read = join_buffers([(state.kv, state.steps, state.read) for state in states])
        last = [state.last for state in states if state.last is not None]
        if last and len(last) < len(states):
            raise ValueError("can't join states before the first step with states after it")
        prompts, width = torch.cat([state.prompts for state in states]), max(state.width for state in states)
        return LanguageState(kv, steps, read, prompts, width, torch.cat(last) if last else None)


class LanguageModel(AttentionModel):
    r"""Decoder-only Transformer with softmax, sparsemax or entmax in attention and output.

    The model implements the decoder protocol: a source is a prompt, which may be empty, and an output continues the
    prompt. A text starts with the start symbol. Self-attention encodes positions, so lengths are unlimited. A row may
    contain several texts, which don't attend to each other.

    Args:
        vocab: number of symbols; 0 is padding.
        d_model: size of embeddings and states; a multiple of `heads`.
        heads: number of heads of each attention.
        kv_heads: number of key and value heads, a divisor of `heads`; None: `heads`.
        layers: number of layers.
        d_ff: hidden units of the gated network after each attention.
        dropout: dropout of embeddings and of the outputs of attention and network.
        attention_dropout: dropout of attention weights.
        alpha: alpha of the attention: a number, or "learned" for one alpha per head.
        positions, length_scale: see :class:`tsallis.nn.MultiheadAttention`.
        output: "softmax", "sparsemax", "entmax" or "alpha_relu".
        output_alpha: alpha of output "entmax" and "alpha_relu".
        tau: threshold of output "alpha_relu".
        share: whether embedding and output projection are one matrix.
        forbidden: symbols that are never predicted (by default padding, start and unknown).

    Raises:
        ValueError: sizes that don't match, or unknown names.

    Example:
        >>> model = LanguageModel(20, d_model=8, heads=2, layers=1, d_ff=16, alpha="learned")
        >>> tokens = torch.randint(4, 20, (2, 5))
        >>> hidden = model.read(tokens)
        >>> model.output.loss(hidden[:, :-1], tokens[:, 1:]).shape
        torch.Size([])
    """

    symbol_rows: ClassVar[dict[str, SymbolRows]] = {
        "embedding.weight": SymbolRows("tgt"),
        "output.projection.weight": SymbolRows("tgt"),
    }

    def __init__(
        self,
        vocab: int,
        d_model: int = 512,
        heads: int = 8,
        kv_heads: int | None = None,
        layers: int = 6,
        d_ff: int = 1376,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        alpha: float | str = 1.5,
        positions: AttentionPositions = "nape",
        length_scale: LengthScaleKind | None = None,
        output: str = "entmax",
        output_alpha: float = 1.5,
        tau: float = 0.0,
        share: bool = True,
        forbidden: Sequence[int] = (PAD, BOS, UNK),
    ) -> None:
        super().__init__()
        self.arguments = constructor_arguments(locals()) | {"forbidden": list(forbidden)}
        for name, size in {"layers": layers, "d_ff": d_ff, "heads": heads}.items():
            check_integer(name, size, 1)
        self.embedding = nn.Embedding(vocab, d_model, padding_idx=PAD)
        attention = {
            "dropout": attention_dropout,
            "alpha": alpha,
            "positions": positions,
            "length_scale": length_scale,
            "num_kv_heads": kv_heads,
        }
        self.layers = nn.ModuleList(LanguageLayer(d_model, heads, d_ff, dropout, attention) for _ in range(layers))
        self.norm, self.dropout = nn.RMSNorm(d_model), Dropout(dropout)
        self.output = OutputLayer(d_model, vocab, output, output_alpha, tau, bias=False, forbidden=forbidden)
        nn.init.normal_(self.embedding.weight, std=d_model**-0.5)
        with torch.no_grad():
            self.embedding.weight[PAD] = 0
        if share:
            self.output.tie(self.embedding.weight)  # type: ignore[arg-type]
        self._texts: RowTexts | None = None  # texts of the last pass, if each text had its own attention
        self._positions: Tensor | None = None  # [batch, tgt]: position of each step in the tokens of the last pass

    def read(self, tokens: Tensor) -> Tensor:
        """Return the states [batch, length, d_model] from which each next token is predicted."""
        hidden, _ = self._read(tokens)
        return hidden

    def _read(
        self, tokens: Tensor, caches: Sequence[Cache] | None = None, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Read tokens [batch, length] after the tokens in caches; return states and weights of the last layer."""
        self._texts = self._positions = None  # discard the values of the previous pass
        x, weights = self.dropout(self.embedding(tokens)), None
        mask = texts = None
        if caches is None:
            self._texts = texts = None if need_weights else split_rows(tokens, x.shape[-1])
            mask = other_texts(tokens) if texts is None else None
        for number, layer in enumerate(self.layers):
            last = number == len(self.layers) - 1
            cache = None if caches is None else caches[number]
            lengths = cache.lengths if isinstance(cache, StepCache) else None
            x, weights = layer(x, cache, lengths, need_weights and last, mask, texts)
        return self.norm(x), weights

    def encode(self, src: Tensor, src_lengths: Tensor) -> Prompt:
        """Return prompts [batch, src] with their lengths [batch]; tokens beyond a length are ignored.

        Raises:
            ValueError: A count is below 0 or above the width of `src`.
        """
        return Prompt(src, check_counts(src, src_lengths, shortest=0).to(src.device))

    def start(self, memory: Prompt) -> LanguageState:
        """Return the state before the first new token, after reading all of a prompt except its last token."""
        tokens, lengths = memory.tokens, memory.lengths
        text = F.pad(tokens, (1, 0), value=BOS)  # [batch, src + 1]
        last = text.gather(1, lengths.unsqueeze(1)).squeeze(1)
        rows = torch.arange(len(tokens), device=tokens.device)
        read, steps = select_counts(lengths, tokens.shape[1], rows)
        kv = KVBuffers(tuple(x[:, :, :steps] for x in self._keys_and_values(text[:, :-1])), steps)
        return LanguageState(kv, steps, read, lengths, tokens.shape[1], last)

    def _keys_and_values(self, tokens: Tensor) -> tuple[Tensor, ...]:
        """Return keys and values of tokens [batch, length]: two tensors per layer, in the order of the layers."""
        if tokens.shape[1] == 0:
            attention = self.attentions()["decoder"][0]
            shape = len(tokens), attention.num_kv_heads, 0, attention.head_dim
            return (self.embedding.weight.new_zeros(shape),) * (2 * len(self.layers))
        caches = [KeyValueCache() for _ in self.layers]
        self._read(tokens, caches)
        return tuple(x for cache in caches for x in cache.read())

    def step(self, state: LanguageState, token: Tensor) -> Step:
        """Return the scores of the symbols after `token` [batch]; the first token is the start symbol.

        Attention is the mean over the heads of the last layer, restricted to the prompt.
        """
        token = token if state.last is None else state.last
        cache = step_cache(state.kv, state.steps, state.read)
        hidden, weights = self._read(token.unsqueeze(1), [cache] * len(self.layers), need_weights=True)
        assert weights is not None
        columns = torch.arange(state.width, device=token.device)
        attention = F.pad(weights.squeeze(1)[:, 1 : state.width + 1], (0, max(0, state.width - state.steps)))
        attention = attention.masked_fill(columns >= state.prompts.unsqueeze(1), 0)
        next_state = LanguageState(
            cache.next_buffers(), state.steps + 1, cache.lengths, state.prompts, state.width, None
        )
        return Step(self.output.scores(hidden.squeeze(1)), attention, next_state)

    def forward(self, src: Tensor, src_lengths: Tensor, tgt_in: Tensor, need_attention: bool = False) -> DecoderOutput:
        """Run the model on prompts [batch, src] of given lengths [batch]; continuations [batch, tgt] start with BOS.

        Without prompts (`src` of width 0), rows of `tgt_in` may contain several texts, each with its own BOS, and may
        start inside a text.

        Returns:
            States, and the attention of the continuation to the prompt or None.
        """
        lengths = check_counts(src, src_lengths, shortest=0).to(src.device)
        (batch, width), steps = src.shape, tgt_in.shape[1]
        if not width:
            hidden, _ = self._read(tgt_in, need_weights=need_attention)
            return DecoderOutput(hidden, hidden.new_zeros(batch, steps, 0) if need_attention else None)
        text = src.new_full((batch, width + steps), PAD)
        text[:, : width + 1] = F.pad(src, (1, 0), value=BOS)
        positions = lengths.unsqueeze(1) + torch.arange(steps, device=src.device)  # [batch, tgt]: positions in `text`
        text.scatter_(1, positions[:, 1:], tgt_in[:, 1:].to(text.dtype))
        hidden, weights = self._read(text, need_weights=need_attention)
        self._positions = positions
        states = hidden.gather(1, positions.unsqueeze(-1).expand(-1, -1, hidden.shape[-1]))
        if weights is None:
            return DecoderOutput(states, None)
        attention = weights.gather(1, positions.unsqueeze(-1).expand(-1, -1, weights.shape[-1]))[:, :, 1 : width + 1]
        padding = torch.arange(width, device=src.device) >= lengths.view(-1, 1, 1)
        return DecoderOutput(states, attention.masked_fill(padding, 0))

    def num_attended(self, decoded: DecoderOutput) -> Tensor:
        """Return the mean number of attended positions per step [batch, tgt], over layers and heads.

        Call this before the next pass, because the model records only its last pass.

        Raises:
            RuntimeError: if the last pass did not make `decoded`, or was compiled.
        """
        positions = self._positions
        mean = self._supports("decoder", decoded).double().mean((0, 2))
        mean = mean if self._texts is None else self._texts.join(mean)
        check_last_pass(mean.shape if positions is None else positions.shape, decoded)
        return mean if positions is None else mean.gather(1, positions)

    def _active(self, tgt_in: Tensor) -> Tensor:
        if self._positions is not None:
            raise ValueError("prompts are not supported when attended keys are counted: pass texts without prompts")
        active = super()._active(tgt_in)
        return active if self._texts is None else self._texts.split(active)

    def attentions(self) -> dict[str, list[MultiheadAttention]]:
        return {"decoder": [layer.self_attn for layer in self.layers]}  # type: ignore[misc]


@dataclass(frozen=True)
class RowTexts:
    """Texts split from rows, so that the cost of attention depends on the length of texts, not of rows.

    Args:
        index: Index of each token among the tokens of all rows [texts, longest]; any index after a text's end.
        lengths: Number of tokens per text [texts].
        shape: Batch size and length of the rows.
    """

    index: Tensor
    lengths: Tensor
    shape: tuple[int, int]

    def split(self, x: Tensor) -> Tensor:
        """Return rows [batch, length, size] as texts [texts, longest, size], padded with finite numbers."""
        return x.flatten(0, 1)[self.index]

    def join(self, x: Tensor) -> Tensor:
        """Return texts [texts, longest, ...] as rows [batch, length, ...]."""
        active = torch.arange(x.shape[1], device=x.device) < self.lengths.unsqueeze(1)
        return x[active].unflatten(0, self.shape)


def split_rows(tokens: Tensor, d_model: int) -> RowTexts | None:
    """Return the texts in rows [batch, length], or None.

    The result is None if each row is one text, if a mask is cheaper than separate texts, or under torch.compile.

    Example:
        >>> texts = split_rows(torch.tensor([[1, 7, 1, 8], [9, 9, 1, 8]]), 4)
        >>> texts.lengths.tolist()
        [2, 2, 2, 2]
        >>> texts.join(texts.split(torch.arange(8.0).view(2, 4, 1))).flatten().tolist()
        [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    """
    batch, length = tokens.shape
    starts = tokens == BOS
    if traced() or not starts[:, 1:].any():
        return None
    starts[:, 0] = True  # a row may begin in the middle of a text
    start_indices = starts.flatten().nonzero().flatten()
    lengths = start_indices.diff(append=start_indices.new_tensor([tokens.numel()]))
    longest = int(lengths.max())
    padded = len(start_indices) * longest
    # Cost per token: projections 4 d_model; scores and sums twice the number of keys. Causal attention within a text
    # uses half of the text's keys on average; attention with a mask uses all keys of the row.
    if padded * (4 * d_model + longest) > tokens.numel() * (4 * d_model + 2 * length):
        return None
    index = start_indices.unsqueeze(1) + torch.arange(longest, device=tokens.device)
    return RowTexts(index.clamp(max=tokens.numel() - 1), lengths, (batch, length))


def other_texts(tokens: Tensor) -> Tensor | None:
    """Return a mask [batch, 1, length, length] of pairs of tokens in different texts; None if each row is one text.

    A start symbol begins a text.

    Example:
        >>> other_texts(torch.tensor([[1, 7, 1]]))[0, 0].tolist()
        [[False, False, True], [False, False, True], [True, True, False]]
    """
    starts = tokens == BOS
    if not traced() and not starts[:, 1:].any():
        return None
    text_numbers = starts.cumsum(1)
    return (text_numbers.unsqueeze(1) != text_numbers.unsqueeze(2)).unsqueeze(1)
