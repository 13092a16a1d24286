"""Search Transformers models with certificates: implement the decoder protocol for them."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, EncoderDecoderCache
from transformers.cache_utils import DynamicLayer

from tsallis.errors import check_integer, describe
from tsallis.functional.maps import log_entmax
from tsallis.functional.rows import alpha_number
from tsallis.huggingface.alphas import unwrap
from tsallis.huggingface.attention import FULL_MASKS, NAME
from tsallis.huggingface.reading import Reading, count_ids, find_obstacle
from tsallis.huggingface.text_batches import first_setting, pad_rows
from tsallis.huggingface.token_texts import TokenTexts
from tsallis.models.protocol import Step, source_mask
from tsallis.ops.arguments import BestSymbols
from tsallis.ops.choice import choose
from tsallis.ops.eager.log_probs import indistinct
from tsallis.ops.eager.ranking import best_of_log_probs
from tsallis.symbols import BOS, EOS, PAD

# Attention implementations that return weights.
WITH_WEIGHTS = ("eager", NAME, FULL_MASKS)
# Number of symbols that searches reserve for padding, start and end. The symbol of a token is its id plus this number.
RESERVED = 3
IGNORE_INDEX = -100
Pairs = tuple[tuple[Tensor, Tensor], ...]  # keys and values [rows, heads, length, size] of every layer


class TransformersDecoder(nn.Module):
    r"""Decoder of a Transformers model for all searches of :mod:`tsallis.search`.

    .. math:: p(y_t \mid y_{<t}, x) = \mathrm{entmax}_\alpha(z_t)

    with the model's logits z. `generate` proves nothing about its outputs. A search with this decoder returns a
    certificate, and with alpha above 1 often the whole distribution (Peters et al. 2019, sec. 4.1). Use the alpha of
    the loss that trained the model (:func:`trainer_loss`, :func:`lm_loss`); 1 is softmax, for pretrained models.

    Searches have their own numbers for symbols. :meth:`sources` converts a batch, :meth:`ids` converts the tokens of a
    hypothesis to the tokenizer's ids, :meth:`symbols` does the reverse for `prefixes`, and :meth:`targets` converts
    labels for :func:`tsallis.search.score`.

    Batching and caching do not change the distribution: the model computes the same one for each source alone, without
    a cache. `generation_config` provides the start, a forced first token, the ends and the tokens that are never
    generated (`suppress_tokens`, `bad_words_ids` of one token). All other settings are ignored, such as temperature,
    top-k, penalties and lengths. A forced token counts as part of the start.

    Keys and values are cached if the model uses a :class:`transformers.DynamicCache` without sliding windows. Other
    models read each prefix from its first token at every step, which is slower. Models that can't skip padding, such as
    RoBERTa and Mamba, read prompts of different lengths separately.

    Args:
        model: Causal language model or encoder-decoder with `input_ids`, also inside PEFT.
        alpha: Alpha of the distribution, at least 1.
        start: Ids that the decoder of an encoder-decoder reads first, such as a language id; None: the model's setting.
        end: Id or ids that end an output; None: the model's setting.
        suppress: Ids that are never generated; None: the model's setting.
        attention: Whether to return attention to the source or the prompt: the mean over the heads of the last layer.
            Hypotheses then count attended positions, and have weights with `keep_attention`. The model must be
            sparsified (:func:`sparsify`) or loaded with `attn_implementation="eager"`.

    Raises:
        ValueError: The alpha is below 1. The model does not generate from `input_ids` token by token, has no start or
            end, or lacks an id. `start` is given for a causal model, whose prompt is its start. `attention` is
            requested, but the model returns no weights.

    Example:
        >>> import torch
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> from tsallis.search import beam_search
        >>> _ = torch.manual_seed(0)
        >>> config = GPT2Config(vocab_size=9, n_embd=8, n_head=2, n_layer=1, bos_token_id=1, eos_token_id=2)
        >>> decoder = TransformersDecoder(GPT2LMHeadModel(config), alpha=1.5)
        >>> sources = decoder.sources({"input_ids": torch.tensor([[5, 6, 7]])})
        >>> (result,) = beam_search(decoder, *sources, beam_size=3, max_length=4)
        >>> result.certificate.kind, len(decoder.ids(result.best.tokens)) <= 4
        ('bounded', True)
    """

    def __init__(
        self,
        model: Any,
        alpha: float = 1.5,
        *,
        start: Sequence[int] | None = None,
        end: int | Sequence[int] | None = None,
        suppress: Sequence[int] | None = None,
        attention: bool = False,
    ) -> None:
        super().__init__()
        self.model = model
        base = unwrap(model)
        name = type(base).__name__
        if obstacle := find_obstacle(model, base):
            raise ValueError(f"{name} {obstacle}")
        self.is_encoder_decoder = bool(base.config.is_encoder_decoder)
        if start is not None and not self.is_encoder_decoder:
            raise ValueError(
                f"start applies only to encoder-decoder models, got the decoder-only {name}: leave out start"
            )
        vocabulary = getattr(base.config.get_text_config(), "vocab_size", 0)
        self._size = count_ids(base.get_output_embeddings(), vocabulary)
        self._source_size = count_ids(base.get_input_embeddings(), vocabulary)
        ends = _to_ids(_setting(base, "eos_token_id") if end is None else end)
        if not ends:
            raise ValueError(
                f"{name} has no eos_token_id: pass end" if end is None else "end must have an id, got none"
            )
        self.start_ids = (_start_ids(base) if start is None else list(start)) if self.is_encoder_decoder else []
        if self.is_encoder_decoder and not self.start_ids:
            raise ValueError(f"{name} has no decoder_start_token_id: pass start")
        self.suppress = sorted(set(_suppressed_ids(base, ends) if suppress is None else suppress))
        for what, ids in (("end", ends), ("start", self.start_ids), ("suppress", self.suppress)):
            self._check(what, ids)
        self.output = TransformersOutput(alpha_number(alpha), ends)
        self._reading = Reading(base)
        self._options = dict(self._reading.options)
        self.attention = attention
        if attention:
            self._options["output_attentions"] = True
            if (implementation := base.config.get_text_config()._attn_implementation) not in WITH_WEIGHTS:
                raise ValueError(
                    f"the attention of {name} ({implementation}) returns no weights: "
                    'sparsify the model, or load it with attn_implementation="eager"'
                )

    def _check(self, what: str, ids: Sequence[int]) -> None:
        """Raise if ids are not in the vocabulary."""
        if wrong := [number for number in ids if not 0 <= number < self._size]:
            name = type(unwrap(self.model)).__name__
            raise ValueError(f"ids of {what} must be from 0 to {self._size - 1} for {name}, got {wrong[0]}")

    def sources(self, batch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """Convert the output of a tokenizer to ids [batch, src], padded at the end, and their counts [batch].

        Args:
            batch: `input_ids` [batch, src], and an `attention_mask` of ones and zeros if there is padding, on either
                side.

        Raises:
            TypeError: The ids are not integers.
            ValueError: The ids or the mask have another shape, a row has no id, the model lacks an id, or an input is
                not text.
        """
        ids = batch.get("input_ids") if isinstance(batch, Mapping) else batch
        if not isinstance(ids, Tensor) or ids.dim() != 2:
            found = list(ids.shape) if isinstance(ids, Tensor) else describe(ids)
            raise ValueError(
                f"input_ids of the batch must be a tensor of shape [batch, src], got {found}: call the tokenizer with "
                'return_tensors="pt"'
            )
        if ids.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"input_ids must be a tensor of int64 or int32, got {ids.dtype}")
        for key, value in batch.items():
            if value is not None and self._reading.is_unread(key, value):
                raise ValueError(f"a batch of sources must contain only input_ids and attention_mask, got {key}")
        mask = batch.get("attention_mask")
        mask = torch.ones_like(ids) if mask is None else torch.as_tensor(mask, device=ids.device)
        if mask.shape != ids.shape:
            raise ValueError(
                f"attention_mask must have the shape {list(ids.shape)} of input_ids, got {list(mask.shape)}"
            )
        if not ((mask == 0) | (mask == 1)).all():
            value = mask[(mask != 0) & (mask != 1)][0].item()
            raise ValueError(f"attention_mask must contain only 1 for tokens and 0 for padding, got {value:g}")
        mask = mask.bool()
        if (wrong := ids[mask & ((ids < 0) | (ids >= self._source_size))]).numel():
            name = type(unwrap(self.model)).__name__
            raise ValueError(f"input_ids must be from 0 to {self._source_size - 1} for {name}, got {int(wrong[0])}")
        lengths = mask.sum(-1)
        if len(ids) and int(lengths.min()) == 0:
            raise ValueError(
                f"each source must have at least one token, got none in source {int(lengths.argmin())} (counted from 0)"
            )
        order = (~mask).long().argsort(dim=-1, stable=True)[:, : int(lengths.max()) if len(ids) else 0]
        return ids.masked_fill(~mask, 0).long().gather(1, order), lengths

    def ids(self, tokens: Sequence[int]) -> list[int]:
        """Return the tokenizer's ids of the tokens of a hypothesis, without start and end.

        Raises:
            ValueError: A token does not stand for an id.
        """
        for token in tokens:
            check_integer("a token of a hypothesis", token, RESERVED, RESERVED + self._size - 1)
        return [token - RESERVED for token in tokens]

    def symbols(self, ids: Sequence[int]) -> list[int]:
        """Return the symbols of ids, for `prefixes`.

        Raises:
            ValueError: One of the ids is an end, or the vocabulary lacks an id.
        """
        self._check("the output", ids)
        if wrong := set(ids) & set(self.output.ends):
            raise ValueError(f"an output must not contain an end symbol, got {min(wrong)}")
        return [number + RESERVED for number in ids]

    def texts(self, tokenizer: Any) -> TokenTexts:
        """Return the texts of all symbols, a vocabulary for :class:`tsallis.search.Pattern`.

        They are the texts that the tokenizer decodes without special tokens and without clean-up of spaces.
        """
        return TokenTexts(tokenizer, self._size, RESERVED)

    def targets(self, labels: Sequence[Sequence[int]] | Tensor) -> tuple[Tensor, Tensor]:
        """Return decoder inputs and targets [batch, tgt] of outputs to score.

        Args:
            labels: Ids of each output, with or without its end, optionally padded with -100.
        """
        device = labels.device if isinstance(labels, Tensor) else None
        rows = [
            [number for number in row if number != IGNORE_INDEX]
            for row in (labels.tolist() if isinstance(labels, Tensor) else labels)
        ]
        rows = [self.symbols(row[:-1] if row and row[-1] in self.output.ends else row) for row in rows]
        tgt_in, tgt_out = (
            pad_rows([[BOS, *row] for row in rows], PAD),
            pad_rows([[*row, EOS] for row in rows], IGNORE_INDEX),
        )
        return tgt_in.to(device), tgt_out.to(device)

    def encode(self, src: Tensor, src_lengths: Tensor) -> list[tuple[list[int], _Memory]]:
        """Encode ids [batch, src] with counts [batch]. Return pairs: rows that are read together, and their memory.

        Raises:
            ValueError: A source is longer than the model's limit.
        """
        lengths = src_lengths.tolist()
        longest, max_length = max(lengths, default=0), self._reading.num_source_positions
        if self.is_encoder_decoder and max_length is not None and longest > max_length:
            raise ValueError(
                f"a source must have at most {max_length} tokens for {type(unwrap(self.model)).__name__}, got {longest}"
            )
        groups = [list(range(len(lengths)))]
        if not self._reading.skips_padding:
            groups = [[i for i, n in enumerate(lengths) if n == length] for length in sorted(set(lengths))]
        return [(rows, self._encode(src[rows], src_lengths[rows], src.shape[1])) for rows in groups]

    def _encode(self, src: Tensor, src_lengths: Tensor, width: int) -> _Memory:
        """Encode sources that are read together; :meth:`start` reads prompts."""
        src = src[:, : max(src_lengths.tolist(), default=0)]
        mask = source_mask(src_lengths, src)
        if self.is_encoder_decoder:
            encoder = unwrap(self.model).get_encoder()
            outputs = encoder(input_ids=src, attention_mask=mask.long(), return_dict=True)
            return _Memory(src, mask, width, outputs)
        # Align prompts of different lengths at their ends.
        order = mask.long().argsort(dim=-1, stable=True)
        return _Memory(src.gather(1, order), mask.gather(1, order), width)

    def start(self, memory: list[tuple[list[int], _Memory]]) -> _State:
        """Return the state after the start or the prompt."""
        block_rows: dict[int, tuple[_Block, int]] = {}
        for numbers, part in memory:
            rows = torch.arange(len(part.mask), device=part.mask.device)
            start = rows.new_tensor(self.start_ids).expand(len(rows), -1)  # shape [batch, 0] for a causal model
            block, step = self._run(part, rows, start, None)
            block_rows.update({number: (replace(block, step=step), row) for row, number in enumerate(numbers)})
        return _State([block_rows[number] for number in range(len(block_rows))])

    def step(self, state: _State, token: Tensor) -> Step:
        """Read one token per row [rows], and return the scores of the next token."""
        groups: dict[Any, list[int]] = {}
        for i, (block, _) in enumerate(state.rows):
            key = id(block.memory), block.ids.shape[1], block.step is not None, block.pairs is None
            groups.setdefault(key, []).append(i)
        scores: list[Tensor] = []
        attention: list[Tensor] = []
        next_rows: list[tuple[_Block, int]] = list(state.rows)
        for members in groups.values():
            index = torch.tensor(members, device=token.device)
            block = _gather([state.rows[i] for i in members], token.device)
            if block.step is not None:  # the start has already been read
                step, block = block.step, replace(block, step=None)
            else:
                ids = torch.cat([block.ids, (token[index] - RESERVED).clamp(min=0).unsqueeze(1)], 1)
                block, step = self._run(block.memory, block.sources, ids, block.pairs)
            scores.append(step[0])
            attention.append(step[1])
            for row, i in enumerate(members):
                next_rows[i] = (block, row)
        order = torch.tensor([i for members in groups.values() for i in members], device=token.device)
        logits, weights = (_reorder(parts, order.argsort()) for parts in (scores, attention))
        return Step(self.output.scores(logits), weights, _State(next_rows))

    def _run(
        self, memory: _Memory, sources: Tensor, ids: Tensor, pairs: Pairs | None
    ) -> tuple[_Block, tuple[Tensor, Tensor]]:
        """Read ids [rows, length] after the sources; if `pairs` caches the earlier ids, read only the last id.

        Return the logits of the next token [rows, d_vocab] and attention weights [rows, src or 0].

        Raises:
            ValueError: There are more ids than positions, or the model returns no weights.
        """
        length = ids.shape[1]
        if not self.is_encoder_decoder:
            length += int(memory.mask.sum(-1).max()) if len(memory.mask) else 0
        num_positions = self._reading.num_positions
        if num_positions is not None and length > num_positions:
            raise ValueError(
                f"{type(unwrap(self.model)).__name__} has {num_positions} positions, but an output needs {length}: "
                "pass a smaller max_length"
            )
        read_ids = ids if self.is_encoder_decoder else torch.cat([memory.ids[sources], ids], 1)
        caches = self._reading.caches(read_ids, length)
        inputs = self._inputs(memory, sources, ids, pairs if caches else None)
        outputs = self.model(**inputs, use_cache=caches, return_dict=True, **self._options)
        logits = outputs.logits[:, -1]
        if self.suppress:
            logits = logits.index_fill(-1, logits.new_tensor(self.suppress, dtype=torch.long), -torch.inf)
        self_pairs, cross_pairs = _cached_pairs(outputs.get("past_key_values"))
        if self.is_encoder_decoder:
            if ids.shape[1] == len(self.start_ids):  # at the start, there is one row per source
                memory.cross = cross_pairs
            self_pairs = None if memory.cross is None else self_pairs
        return _Block(memory, sources, ids, self_pairs), (logits, self._weights(outputs, memory, sources, ids))

    def _weights(self, outputs: Any, memory: _Memory, sources: Tensor, ids: Tensor) -> Tensor:
        """Return the last token's attention weights to the source [rows, src], or [rows, 0] if not requested.

        Raises:
            ValueError: The model returns no weights.
        """
        if not self.attention:
            return outputs.logits.new_zeros(len(ids), 0)
        layers = outputs.get("cross_attentions" if self.is_encoder_decoder else "attentions")
        width = memory.mask.shape[1]
        columns = width if self.is_encoder_decoder else width + ids.shape[1]
        if not layers or layers[-1] is None or layers[-1].shape[-1] != columns:
            raise ValueError(
                f"the last layer of {type(unwrap(self.model)).__name__} returns no attention weights. To decode "
                "without them, create the decoder with attention=False."
            )
        weights: Tensor = layers[-1][:, :, -1, :width].mean(1)  # [rows, heads, queries, keys] -> [rows, src]
        if not self.is_encoder_decoder:
            counts = memory.mask.sum(-1)[sources]  # prompts are padded at the start
            shift = (torch.arange(width, device=counts.device) - counts.unsqueeze(1)) % max(width, 1)
            weights = weights.gather(1, shift)
        return nn.functional.pad(weights, (0, memory.width - width))

    def _inputs(self, memory: _Memory, sources: Tensor, ids: Tensor, pairs: Pairs | None) -> dict[str, Any]:
        """Return the arguments of the model."""
        mask = memory.mask[sources]
        if self.is_encoder_decoder:
            inputs: dict[str, Any] = {
                "encoder_outputs": memory.outputs_of(sources),
                "attention_mask": mask.long(),
                "decoder_input_ids": ids if pairs is None else ids[:, -1:],
            }
            if self._reading.without_cache:  # FSMT needs the ids to mask later tokens
                inputs["input_ids"] = memory.ids[sources]
            if pairs is not None:
                inputs["past_key_values"] = EncoderDecoderCache(
                    _make_cache(pairs), _make_cache(memory.cross_of(sources))
                )
            return inputs
        mask = torch.cat([mask, mask.new_ones(ids.shape)], 1)
        inputs = {"attention_mask": mask.long()} if self._reading.accepts_mask else {}
        if pairs is None:
            inputs["input_ids"] = torch.cat([memory.ids[sources], ids], 1)
        else:
            inputs["input_ids"], inputs["past_key_values"] = ids[:, -1:], _make_cache(pairs)
        if self._reading.skips_padding:
            positions = (mask.cumsum(-1) - 1).clamp(min=0)
            inputs["position_ids"] = positions if pairs is None else positions[:, -1:]
        return inputs


class TransformersOutput:
    """Output layer of a :class:`TransformersDecoder`: it converts logits to log-probabilities of symbols.

    Args:
        alpha: Alpha of the distribution.
        ends: Ids that end an output; their probabilities are summed.
    """

    normalized = True

    def __init__(self, alpha: float, ends: Sequence[int]) -> None:
        self.alpha, self.ends = alpha, sorted(set(ends))

    def scores(self, logits: Tensor) -> Tensor:
        """Return scores [rows, d_vocab + 3] of symbols from logits [rows, d_vocab].

        The symbols that searches reserve are impossible. However, the end of the search gets the score of the model's
        end if the model has only one end. Several ends keep their scores.

        Example:
            >>> TransformersOutput(2.0, ends=[1]).scores(torch.tensor([[0.5, 1.5, -3.0]]))
            tensor([[   -inf,    -inf,  1.5000,  0.5000,    -inf, -3.0000]])
        """
        scores = torch.nn.functional.pad(logits, (RESERVED, 0), value=-torch.inf)
        if len(self.ends) == 1:
            scores[:, EOS] = logits[:, self.ends[0]]
            scores[:, RESERVED + self.ends[0]] = -torch.inf
        return scores

    def log_probs(self, scores: Tensor) -> Tensor:
        """Return log-probabilities [rows, d_vocab + 3] of scores in float64; -inf for impossible symbols."""
        log_probs = log_entmax(scores, self.alpha)
        if len(self.ends) > 1:
            ends = torch.tensor(self.ends, device=log_probs.device) + RESERVED
            end_log_prob = log_probs[:, ends].logsumexp(-1).clamp(max=0)
            log_probs = log_probs.index_fill(-1, ends, -torch.inf)
            log_probs[:, EOS] = end_log_prob
        return log_probs

    def best_symbols(self, scores: Tensor, count: int, end: int, only: Tensor | None = None) -> BestSymbols:
        """Return the most probable symbols of rows of scores, see :meth:`tsallis.nn.OutputLayer.best_symbols`."""
        if len(self.ends) > 1:
            return best_of_log_probs(self.log_probs(scores), count, end, only, indistinct(scores))
        backend = choose("search", self.alpha, scores)
        return backend.best_symbols(scores.contiguous(), self.alpha, None, count, end, only)


@dataclass
class _Memory:
    """Sources that are read together; prompts are padded at the start."""

    ids: Tensor  # [batch, src]
    mask: Tensor  # boolean [batch, src]
    width: int  # width of the batch, including sources that are read separately
    outputs: Any = None  # output of the encoder
    cross: Pairs | None = None  # keys and values for cross-attention, computed while the start is read
    _last: tuple[list[int], Pairs] | None = field(default=None, repr=False)

    def outputs_of(self, sources: Tensor) -> Any:
        """Return the encoder's outputs for some sources, in the class that the model expects."""
        outputs = copy.copy(self.outputs)
        for name, value in self.outputs.items():
            if isinstance(value, Tensor) and len(value) == len(self.mask):
                outputs[name] = value[sources]
        return outputs

    def cross_of(self, sources: Tensor) -> Pairs:
        """Return cross-attention keys and values; reuse the result of the last step if the sources are the same."""
        assert self.cross is not None
        numbers = sources.tolist()
        if self._last is None or self._last[0] != numbers:
            self._last = numbers, tuple((key[sources], value[sources]) for key, value in self.cross)
        return self._last[1]


@dataclass(frozen=True, eq=False)
class _Block:
    """Prefixes of equal length, which are read together."""

    memory: _Memory
    sources: Tensor  # [rows]
    ids: Tensor  # [rows, length], including the start, without a prompt
    pairs: Pairs | None  # None: nothing is cached, and prefixes are read again
    step: tuple[Tensor, Tensor] | None = None  # logits and weights after the start; the first step uses them


class _State:
    """State of a search: rows of blocks, which may have different lengths. The next step copies these rows."""

    def __init__(self, rows: list[tuple[_Block, int]]) -> None:
        self.rows = rows

    def select(self, index: Tensor) -> _State:
        return _State([self.rows[i] for i in index.tolist()])

    @staticmethod
    def join(states: Sequence[_State]) -> _State:
        return _State([row for state in states for row in state.rows])


def _gather(rows: list[tuple[_Block, int]], device: torch.device) -> _Block:
    """Copy rows of blocks with the same memory and length to one block."""
    blocks = list({id(block): block for block, _ in rows}.values())
    offsets, offset = {}, 0
    for block in blocks:
        offsets[id(block)] = offset
        offset += len(block.ids)
    index = torch.tensor([offsets[id(block)] + row for block, row in rows], device=device)

    def pick(parts: Sequence[Tensor]) -> Tensor:
        return (parts[0] if len(parts) == 1 else torch.cat(list(parts)))[index]

    layers = None
    if blocks[0].pairs is not None:
        layers = tuple(
            (pick([key for key, _ in layer]), pick([value for _, value in layer]))
            for layer in zip(*[block.pairs or () for block in blocks], strict=True)
        )
    steps = [block.step for block in blocks if block.step is not None]
    return _Block(
        blocks[0].memory,
        pick([block.sources for block in blocks]),
        pick([block.ids for block in blocks]),
        layers,
        (pick([logits for logits, _ in steps]), pick([weights for _, weights in steps])) if steps else None,
    )


def _reorder(parts: Sequence[Tensor], index: Tensor) -> Tensor:
    """Pad parts [rows, any width] with zeros to one width, and concatenate their rows in a given order."""
    if len(parts) == 1:
        return parts[0]
    width = max(part.shape[1] for part in parts)
    return torch.cat([nn.functional.pad(part, (0, width - part.shape[1])) for part in parts])[index]


def _make_cache(pairs: Pairs) -> DynamicCache:
    cache = DynamicCache()
    for layer, (key, value) in enumerate(pairs):
        cache.update(key, value, layer)
    return cache


def _cached_pairs(cache: Any) -> tuple[Pairs | None, Pairs | None]:
    """Return the keys and values of self-attention and cross-attention in a cache; None if unsupported."""
    if isinstance(cache, EncoderDecoderCache):
        self_pairs, cross_pairs = _layer_pairs(cache.self_attention_cache), _layer_pairs(cache.cross_attention_cache)
        return (self_pairs, cross_pairs) if self_pairs is not None and cross_pairs is not None else (None, None)
    return _layer_pairs(cache), None


def _layer_pairs(cache: Any) -> Pairs | None:
    if type(cache) is not DynamicCache:
        return None
    layers = cache.layers
    if not layers or any(type(x) is not DynamicLayer or x.keys is None for x in layers):
        return None
    return tuple((x.keys, x.values) for x in layers)


def _setting(model: Any, name: str) -> Any:
    """Return a setting of a model's generation config, or of its config."""
    return first_setting(name, getattr(model, "generation_config", None), model.config)


def _to_ids(value: Any) -> list[int]:
    if value is None:
        return []
    return [value] if isinstance(value, int) else [int(number) for number in value]


def _start_ids(model: Any) -> list[int]:
    start = _setting(model, "decoder_start_token_id")
    if start is not None and not isinstance(start, int):
        raise ValueError(f"decoder_start_token_id must be a single id, got {start}: pass start")
    return [] if start is None else [start, *_to_ids(_setting(model, "forced_bos_token_id"))]


def _suppressed_ids(model: Any, ends: Sequence[int]) -> list[int]:
    # `generate` never excludes an end by `bad_words_ids`.
    words = [word[0] for word in _setting(model, "bad_words_ids") or [] if len(word) == 1]
    return _to_ids(_setting(model, "suppress_tokens")) + [word for word in words if word not in ends]
