"""Find the attention modules of a Transformers model, and select some of them."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Literal

from torch import nn

from tsallis.nn import MultiheadAttention

Kind = Literal["self", "cross"]
Layer = int | str
CROSS = re.compile(r"cross|encoder_attn|encdec", re.IGNORECASE)  # names of attentions to an encoder's output
HEAD_COUNTS = ("num_heads", "num_attention_heads", "n_heads")


def attention_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield every attention that uses Transformers' `AttentionInterface`, with its name."""
    for name, module in model.named_modules():
        code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
        if code is not None and "ALL_ATTENTION_FUNCTIONS" in code.co_names:
            yield name, module


def unsupported_attentions(model: nn.Module) -> Iterator[str]:
    """Yield the names of attentions that do not use Transformers' `AttentionInterface`.

    Attentions are recognized by their class names; if attentions are nested, only the innermost attention is returned.
    Attentions that `nn.sparsify_module` has replaced are skipped.
    """
    replaceable = [name for name, _ in attention_modules(model)]
    replaceable += [name for name, x in model.named_modules() if isinstance(x, MultiheadAttention)]
    candidates = [name for name, x in model.named_modules() if name and "Attention" in type(x).__name__]
    for name in candidates:
        is_outer = any(other.startswith(f"{name}.") for other in (*replaceable, *candidates))
        is_inner = any(name == other or name.startswith(f"{other}.") for other in replaceable)
        if not is_outer and not is_inner:
            yield name


def learns_prompt(model: object) -> bool:
    """Return whether a model has an adapter of PEFT that adds learned positions to every text."""
    return bool(getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False))


def warn_about_unsupported(model: nn.Module, layers: Layer | Iterable[Layer] | None, kind: Kind | None) -> None:
    """Warn about selected attentions whose function can't be replaced."""
    requests = [layers] if isinstance(layers, int | str) else layers
    names = [
        name
        for name in unsupported_attentions(model)
        if (requests is None or any(_matches(name, request) for request in requests))
        and kind in (None, attention_kind(name))
    ]
    if names:
        warnings.warn(
            f"these attentions of {type(model).__name__} stay unchanged, because they do not use Transformers' "
            f"AttentionInterface: {', '.join(names)}",
            stacklevel=3,
        )


def choose_attentions(
    model: nn.Module, layers: Layer | Iterable[Layer] | None = None, kind: Kind | None = None
) -> dict[str, nn.Module]:
    """Select attentions of a model by layer and kind.

    Args:
        model: Transformers model.
        layers: Numbers of layers from 0, or patterns of attentions' names such as "*.decoder.*"; None: all. An empty
            list is an error.
        kind: "self", or "cross" for attention to an encoder's output; None: both.

    Returns:
        Attentions by name.

    Raises:
        ValueError: A layer or pattern matches no attention, there are no layers, the kind is unknown, or the model has
            no attention.
    """
    if kind not in (None, "self", "cross"):
        raise ValueError(f"kind must be 'self', 'cross' or None, got {kind!r}")
    attentions = dict(attention_modules(model))
    if not attentions:
        raise ValueError(
            f"can't replace the attention of {type(model).__name__}: none of it uses Transformers' AttentionInterface"
        )
    if layers is not None:
        if not isinstance(layers, int | str) and not (layers := list(layers)):
            raise ValueError(f"layers must name at least one of {', '.join(attentions)}, got none")
        requests = [layers] if isinstance(layers, int | str) else list(layers)
        for request in requests:
            if not any(_matches(name, request) for name in attentions):
                raise ValueError(f"layers must match one of {', '.join(attentions)}, got {request!r}")
        attentions = {name: x for name, x in attentions.items() if any(_matches(name, request) for request in requests)}
    selection = {name: x for name, x in attentions.items() if kind is None or attention_kind(name) == kind}
    if not selection:
        raise ValueError(f"kind {kind!r} matches none of the attentions {', '.join(attentions)}")
    return selection


def _matches(name: str, layer: Layer) -> bool:
    if isinstance(layer, str):
        return fnmatchcase(name, layer)
    return layer_number(name) == layer


def layer_number(name: str) -> int | None:
    """Return the layer number of an attention: the first number in its name. T5 also numbers parts of layers."""
    number = re.search(r"(?:^|\.)(\d+)(?:\.|$)", name)
    return None if number is None else int(number[1])


def attention_kind(name: str) -> Kind:
    """Return the kind of an attention from its name."""
    return "cross" if CROSS.search(".".join(name.split(".")[-2:])) else "self"


def count_heads(module: nn.Module) -> int:
    """Return the number of query heads of an attention.

    Raises:
        ValueError: The module has no known attribute for this number.
    """
    for owner in (module, getattr(module, "config", None)):
        for name in HEAD_COUNTS:
            count = getattr(owner, name, None)
            if isinstance(count, int):
                return count
    raise ValueError(f"{type(module).__name__} has no number of heads: it must have one of {', '.join(HEAD_COUNTS)}")


def score_obstacle(module: nn.Module) -> str:
    """Return how an attention changes its scores in an unsupported way; "" if it does not."""
    config = getattr(module, "config", None)
    cap = getattr(module, "attn_logit_softcapping", None) or getattr(config, "attn_logit_softcapping", None)
    if cap is not None:
        return f"uses a soft cap of the scores ({cap}), which entmax attention does not support"
    if getattr(module, "sinks", None) is not None:
        return "has attention sinks, which entmax attention does not support"
    return ""


def check_scores(name: str, module: nn.Module, selected: bool) -> None:
    """Raise a ValueError if an attention, selected or not, changes its scores in an unsupported way."""
    obstacle = score_obstacle(module)
    if obstacle:
        advice = "" if selected else ". Instead of layers or kind, pass a part of the model that does not contain it"
        raise ValueError(f"{name} {obstacle}{advice}")
