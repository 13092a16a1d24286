"""Record the attention of any PyTorch or Hugging Face model in one call, and return the page of a report."""

from __future__ import annotations

import contextlib
import copy
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from tsallis.analysis import capture_weights, summarize_weights
from tsallis.analysis.spelling import Spelling
from tsallis.analysis.weight_inputs import Pieces, Tokens, read_tokens
from tsallis.analysis.weights import SIDES
from tsallis.models.modes import eval_mode
from tsallis.nn import MultiheadAttention
from tsallis.report.page import Page, build_page

# Attention weights [batch, heads, queries, keys] by argument of `summarize_weights`; None for a layer without attention
Layers = dict[str, list[Tensor | None]]
NUMBERED = re.compile(r"(|.*?\.)(\d+)\.")  # name of a module in a numbered layer


@torch.no_grad()
def show(
    model: nn.Module,
    inputs: Tensor | Sequence[Any] | Mapping[str, Any],
    tokens: Any,
    target_tokens: Tokens | None = None,
    *,
    name: str = "",
    tolerance: float = 0.01,
) -> Page:
    """Run a model once, and return a page that shows what each attention head attends to.

    A notebook displays the page; `show(...).save("heads.html")` writes it to a file. Attention is recorded from
    Hugging Face models, :class:`torch.nn.MultiheadAttention`, :class:`tsallis.nn.MultiheadAttention` and calls of
    :func:`torch.nn.functional.scaled_dot_product_attention`. For any other attention, pass its weights to
    :func:`tsallis.analysis.summarize_weights`.

    Args:
        model: Model to run, in eval mode.
        inputs: Input of the model: a tensor, a sequence of positional arguments, or a mapping of keyword arguments,
            such as a batch from a tokenizer.
        tokens: Strings of one text, or of each text of a batch, without padding; or the tokenizer that made the inputs.
        target_tokens: Strings that the decoder of an encoder-decoder reads, in the form of `tokens`. A tokenizer in
            `tokens` converts `decoder_input_ids` itself.
        name: Name of the model on the page; default: its class.
        tolerance: Maximum difference between the sum of a query's weights and 1. Pass 1 for attention with a sink,
            whose weights sum to less than 1.

    Returns:
        The page.

    Raises:
        ValueError: If no attention was recorded, or its shape doesn't match the tokens.

    Example:
        >>> model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1)
        >>> x, padding = torch.randn(2, 3, 8), torch.tensor([[False, False, False], [False, False, True]])
        >>> page = show(model, {"src": x, "src_key_padding_mask": padding}, [["where", "is", "it"], ["it", "is"]])
        >>> page.startswith("<!doctype html>")
        True
    """
    if hasattr(tokens, "convert_ids_to_tokens"):
        tokens, found_targets = _read_ids(model, inputs, tokens)
        target_tokens = found_targets or target_tokens
    if getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False):
        raise ValueError(f"{type(model).__name__} learns a prompt (PEFT), which has no tokens: it can't be shown")
    kept = {side: _kept(inputs, prefix) for side, prefix in (("source", ""), ("target", "decoder_"))}
    layers = _move_padding(_record(model, inputs, target_tokens is not None), kept)
    _check_tokens(layers, tokens, target_tokens, kept, tolerance)
    texts = {"tokens": tokens} if "attention" in layers else {"encoder_tokens": tokens, "decoder_tokens": target_tokens}
    arguments: Any = {**layers, **texts, "tolerance": tolerance, "name": name or type(model).__name__}
    return build_page([summarize_weights(**arguments)])


def _record(model: nn.Module, inputs: Any, has_target: bool) -> Layers:
    """Return the weights of a model; raise if there are none."""
    with eval_mode(model):
        if hasattr(model, "set_attn_implementation"):
            fault = "returns no attention with output_attentions=True"
            layers = _record_transformers(model, inputs, {})
        else:
            fault = "has no attention that can be recorded"
            layers = _record_modules(model, inputs, has_target)
    if not layers:
        parts = [f"model.{name}" for name, x in model.named_children() if hasattr(x, "set_attn_implementation")]
        advice = f"show {' or '.join(parts)}, or pass" if parts else "pass"
        raise ValueError(f"{type(model).__name__} {fault}: {advice} the weights to summarize_weights")
    return layers


def _read_ids(model: Any, inputs: Any, tokenizer: Any) -> tuple[Pieces, Pieces | None]:
    """Return the tokens of each text, and the target tokens if the inputs have targets."""
    is_pair = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    needed = ["input_ids", "decoder_input_ids"] if is_pair else ["input_ids"]
    if not isinstance(inputs, Mapping) or any(name not in inputs for name in needed):
        got = ", ".join(inputs) if isinstance(inputs, Mapping) else type(inputs).__name__
        raise ValueError(f"inputs must be a mapping with {' and '.join(needed)} if tokens is a tokenizer, got {got}")
    targets = _tokens_of(tokenizer, inputs, "decoder_") if "decoder_input_ids" in inputs else None
    return _tokens_of(tokenizer, inputs), targets


def _tokens_of(tokenizer: Any, inputs: Mapping[str, Any], side: str = "") -> Pieces:
    """Return the pieces of each text without padding."""
    ids, kept = inputs[f"{side}input_ids"], _kept(inputs, side)
    rows = ids if kept is None else [row[mask] for row, mask in zip(ids, kept, strict=True)]
    spelling = Spelling(tokenizer)
    return [spelling.spell(row.tolist()) for row in rows]


def _kept(inputs: Any, side: str) -> Tensor | None:
    """Return which positions of the inputs are not padding [texts, positions], or None if the inputs don't show it."""
    if not isinstance(inputs, Mapping):
        return None
    ids, mask = (inputs.get(f"{side}{name}") for name in ("input_ids", "attention_mask"))
    if not isinstance(ids, Tensor) or (mask is not None and mask.shape != ids.shape):
        return None
    return torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()


def _sides(name: str) -> tuple[str, str]:
    """Return the side of the queries and the side of the keys for an argument of `summarize_weights`."""
    return SIDES.get(name.removesuffix("_attention"), ("source", "source"))


def _move_padding(layers: Layers, kept: Mapping[str, Tensor | None]) -> Layers:
    """Move padding behind the tokens, among the queries and among the keys."""
    masks = {side: mask for side, mask in kept.items() if mask is not None and not mask.all()}
    orders = {side: (~mask).sort(dim=1, stable=True).indices for side, mask in masks.items()}
    moved: Layers = {}
    for name, layer in layers.items():
        for weights in layer:
            for dim, side in enumerate(_sides(name), 2):
                if isinstance(weights, Tensor) and side in orders:
                    weights = _sort(weights, orders[side].to(weights.device), dim)
            moved.setdefault(name, []).append(weights)
    return moved


def _sort(weights: Tensor, order: Tensor, dim: int) -> Tensor:
    """Return the weights in another order of the queries (dimension 2) or the keys (3), if they have as many."""
    if weights.dim() != 4 or (len(weights), weights.shape[dim]) != order.shape:
        return weights
    return weights.take_along_dim(order[:, None, :, None] if dim == 2 else order[:, None, None], dim)


def _check_tokens(
    layers: Layers,
    tokens: Tokens,
    target_tokens: Tokens | None,
    kept: Mapping[str, Tensor | None],
    tolerance: float,
) -> None:
    """Raise if target tokens are missing, or a text has another number of tokens than the model has positions."""
    tensors = {name: [x for x in layer if isinstance(x, Tensor) and x.dim() == 4] for name, layer in layers.items()}
    shapes = [*dict.fromkeys(tuple(weights.shape[-2:]) for weights in tensors.get("attention", ()))]
    if len(shapes) > 1:
        raise ValueError(
            f"attention must have one shape [queries, keys], got {shapes[0]} and {shapes[1]}; "
            "pass target_tokens if the model is an encoder-decoder"
        )
    texts = {"source": ("tokens", read_tokens("tokens", tokens))}
    if {"decoder_attention", "cross_attention"} & tensors.keys():
        texts["target"] = ("target_tokens", read_tokens("target_tokens", target_tokens))
    for name, layer in tensors.items():
        query_side, key_side = _sides(name)
        argument, keys = texts[key_side]
        mask = kept[key_side]
        for weights in layer:
            known = mask is not None and weights.shape[-1] == mask.shape[1]
            counts = mask.sum(1).tolist() if mask is not None and known else [*map(len, keys)]
            rows = zip(weights, texts[query_side][1], keys, counts, strict=False)  # summarize_weights checks the batch
            for number, (row, query, key, count) in enumerate(rows, 1):
                if len(key) != count or not _fits(row, len(query), len(key), tolerance):
                    raise ValueError(
                        f"text {number} of {argument} has {len(key)} strings, but the model attends to "
                        f"{row.shape[-1]} positions: pass one string per position, and a padding mask"
                    )


def _fits(weights: Tensor, queries: int, keys: int, tolerance: float) -> bool:
    """Return whether the queries of a text attend only to its keys; padding may be before or after both."""
    padding = weights.shape[-1] - keys
    rows, columns = (slice(queries), slice(-queries, None)), (slice(keys, None), slice(padding))
    outside = [weights[:, row, column].float().nan_to_num().sum(-1).max() for row in rows for column in columns]
    return padding >= 0 and bool(min(outside) <= tolerance)


def _call(model: nn.Module, inputs: Any, **options: Any) -> Any:
    if isinstance(inputs, Mapping):
        return model(**inputs, **options)
    return model(*((inputs,) if isinstance(inputs, Tensor) else inputs), **options)


def _record_transformers(model: Any, inputs: Any, options: Mapping[str, Any]) -> Layers:
    """Return the weights of a Hugging Face model. Models that are not sparse run with eager attention."""
    implementation = model.config._attn_implementation
    returns_weights = "tsallis" in implementation
    if not returns_weights:
        model.set_attn_implementation("eager")
    try:
        outputs = _call(model, inputs, **{**options, "output_attentions": True, "return_dict": True})
    finally:
        if not returns_weights:
            model.set_attn_implementation(implementation)
    names = ("attention", "encoder_attention", "decoder_attention", "cross_attention")
    layers = {name: list(weights) for name in names if (weights := getattr(outputs, f"{name}s", None))}
    if "attention" in layers:
        return {**layers, "attention": _place_layers(model, layers["attention"])}
    missing = [f"{name}s" for name in names[1:] if name not in layers]
    has_encoder_outputs = isinstance(inputs, Mapping) and inputs.get("encoder_outputs") is not None
    if layers and missing and getattr(model.config, "is_encoder_decoder", False) and not has_encoder_outputs:
        raise ValueError(
            f"{type(model).__name__} returns no {' and no '.join(missing)} with output_attentions=True: "
            "pass the weights of all its attention to summarize_weights"
        )
    return layers


def _place_layers(model: nn.Module, weights: list[Tensor | None]) -> list[Tensor | None]:
    """Put None at the layers without attention, which hybrid models omit, if names show which layers have attention."""
    found: dict[str, set[int]] = {}  # numbers of the layers with attention, by the name before the number
    for name, module in model.named_modules(remove_duplicate=False):
        if "Attention" in type(module).__name__ and (match := NUMBERED.match(name)):
            found.setdefault(match[1], set()).add(int(match[2]))
    candidates = [numbers for numbers in found.values() if len(numbers) == len(weights)]
    if len(candidates) != 1:
        return weights
    placed = dict(zip(sorted(candidates[0]), weights, strict=True))
    return [placed.get(number) for number in range(max(placed) + 1)]


def _record_modules(model: nn.Module, inputs: Any, has_target: bool) -> Layers:
    """Return the weights of modules and functions in the order of their calls, or of an inner Hugging Face model."""
    types = (nn.MultiheadAttention, MultiheadAttention)
    attentions = {name: module for name, module in model.named_modules() if isinstance(module, types)}
    kinds: list[str] = []
    layers: Layers = {}
    calls: list[tuple[nn.Module, Any, Any]] = []  # Hugging Face models with their arguments

    def name_kind(module: str) -> Callable[..., None]:
        def hook(_: nn.Module, args: Any, kwargs: Any) -> None:
            query, key = (kwargs[name] if name in kwargs else args[i] for i, name in enumerate(("query", "key")))
            side = "decoder" if "decoder" in module else "encoder"
            kinds.append("attention" if not has_target else f"{side if query is key else 'cross'}_attention")

        return hook

    def record_call(module: nn.Module, args: Any, kwargs: Any) -> None:
        if not calls:  # the first call is the outermost
            calls.append((module, [*map(_copy_cache, args)], {key: _copy_cache(x) for key, x in kwargs.items()}))

    def receive(weights: Tensor, kind: str) -> None:
        layers.setdefault(kind, []).append(weights if weights.dim() == 4 else weights[None])

    with contextlib.ExitStack() as stack:
        for name, attention in attentions.items():
            handle = attention.register_forward_pre_hook(name_kind(name), with_kwargs=True)
            stack.callback(handle.remove)
        for module in model.modules():
            if hasattr(module, "set_attn_implementation"):
                handle = module.register_forward_pre_hook(record_call, with_kwargs=True)
                stack.callback(handle.remove)
        stack.enter_context(capture_weights([*attentions.values()], lambda _, weights: receive(weights, kinds[-1])))
        stack.enter_context(_slow_path())
        if not has_target:  # a call of the function doesn't show which kind of attention it is
            stack.enter_context(_CapturedFunction(lambda weights: receive(weights, "attention")))
        _call(model, inputs)
    return layers if layers or not calls else _record_transformers(*calls[0])


def _copy_cache(argument: Any) -> Any:
    """Return a copy of a cache, because a call adds its keys to the cache; return other arguments unchanged."""
    return copy.deepcopy(argument) if hasattr(argument, "get_seq_length") else argument


@contextlib.contextmanager
def _slow_path() -> Iterator[None]:
    """Turn off PyTorch's fused encoder layers, which don't call their attention and drop padding."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


class _CapturedFunction(TorchFunctionMode):
    """Mode in which each call of PyTorch's attention function also calls `receive(weights)`."""

    def __init__(self, receive: Callable[[Tensor], None]) -> None:
        super().__init__()
        self.receive = receive

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is scaled_dot_product_attention:
            self.receive(_attention_weights(*args, **(kwargs or {})))
        return func(*args, **(kwargs or {}))


def _attention_weights(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Return the weights of PyTorch's attention function [batch, heads, queries, keys]."""
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    scores = query @ key.transpose(-2, -1) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is not None:
        boolean = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, -torch.inf) if boolean else scores + attn_mask
    weights = scores.softmax(-1).nan_to_num()  # a query without visible keys gets zeros
    return weights.unsqueeze(1) if weights.dim() == 3 else weights
