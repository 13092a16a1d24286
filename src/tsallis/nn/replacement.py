"""Replace PyTorch's attention in any module by sparse attention, and undo the replacement."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.utils.parametrize import is_parametrized

from tsallis.functional.rows import alpha_number
from tsallis.nn.alpha import PerHeadAlpha
from tsallis.nn.multihead_attention import MultiheadAttention
from tsallis.nn.output import is_linear
from tsallis.nn.transformer_layers import TransformerDecoderLayer, TransformerEncoderLayer
from tsallis.ops.constants import materialise_constants

Module = TypeVar("Module", bound=nn.Module)
HOOKS = tuple(
    name for name in vars(nn.Module()) if name.endswith("_hooks") or "_hooks_" in name or name.endswith("_hook")
)
Attention = nn.MultiheadAttention | MultiheadAttention
NewAttention = TypeVar("NewAttention", nn.MultiheadAttention, MultiheadAttention)
LAYERS = (TransformerEncoderLayer, TransformerDecoderLayer)
PARAMETERS = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight", "in_proj_bias", "bias_k", "bias_v")


def sparsify_module(
    module: Module,
    alpha: float | Literal["learned"] = 1.5,
    *,
    names: str | Iterable[str] | None = None,
    initial: float | None = None,
) -> Module | MultiheadAttention:
    r"""Replace every PyTorch attention in a module, such as `torch.nn.Transformer`, by sparse attention.

    .. math:: p_i = \mathrm{entmax}_{\alpha_h}\big(Q_i K^\top / \sqrt{d}\big)

    replaces softmax (Correia et al. 2019, eq. 8). Each `torch.nn.MultiheadAttention` becomes a
    :class:`MultiheadAttention` with the same parameters, so an existing optimizer keeps working. The layers around it
    stay the same, but PyTorch's fast path for encoders is switched off, because it computes softmax. At alpha 1 the
    outputs are the same, with three exceptions. PyTorch returns NaN for queries without a key. Its fast path returns
    zeros for padding. PyTorch ignores adapters and hooks of `out_proj`; sparse attention runs them. Hooks and added
    attributes move to the new attention. An attention that is sparse already gets the new alpha; a second "learned"
    creates new parameters, so create the optimizer afterwards. :func:`densify_module` undoes the replacement.

    Args:
        module: module to change in place, or an attention to replace.
        alpha: at least 1: a number, or "learned" for a learned alpha per head.
        names: patterns of the names of attentions, such as "encoder.*"; None: all.
        initial: initial learned alpha, strictly between 1 and 2, such as 1.1, which is near softmax; None draws it at
            random for each head (:class:`PerHeadAlpha`). No effect on a fixed alpha.

    Returns:
        The module, or its replacement if the module is an attention.

    Raises:
        ValueError: no attention to replace, a bad alpha.
        TypeError: a subclass of PyTorch's attention or an attention with a replaced `forward`, because that code would
            be lost; parameters that are computed by pruning or a parametrization; an added attribute that can't be
            moved.

    Example:
        >>> import torch
        >>> model = sparsify_module(nn.Transformer(16, 4, 1, 1, 32, batch_first=True), alpha=1.5)
        >>> model(torch.randn(3, 5, 16), torch.randn(3, 4, 16)).shape
        torch.Size([3, 4, 16])
        >>> model.decoder.layers[0].multihead_attn.stats().density.shape
        torch.Size([4])
    """
    if isinstance(alpha, str) and alpha != "learned":
        raise ValueError(f"alpha must be a number or 'learned', got {alpha!r}")
    patterns = _patterns(names)
    attentions = dict(_attentions(module, patterns))
    if not attentions:
        raise ValueError(f"{type(module).__name__} has no torch.nn.MultiheadAttention{_describe_patterns(patterns)}")
    replacements: dict[nn.Module, nn.Module] = {
        old: _to_sparse(old, _new_alpha(alpha, initial, old), name)
        for name, old in attentions.items()
        if isinstance(old, nn.MultiheadAttention)
    }
    for old in attentions.values():
        if isinstance(old, MultiheadAttention):
            old.set_alpha(_new_alpha(alpha, initial, old))
    return cast(Module | MultiheadAttention, _swap(module, replacements))


def densify_module(module: Module, *, names: str | Iterable[str] | None = None) -> Module | nn.MultiheadAttention:
    r"""Replace every sparse attention in a module by PyTorch's: undo :func:`sparsify_module`.

    Each :class:`MultiheadAttention` becomes a `torch.nn.MultiheadAttention` with the same parameters; learned alphas
    are discarded. Attentions in layers of this package are kept, because these layers need their extra features.

    Args:
        module: module to change in place, or an attention to replace.
        names: patterns of the names of attentions, such as "encoder.*"; None: all.

    Returns:
        The module, or its replacement if the module is an attention.

    Raises:
        ValueError: no attention to replace.
        TypeError: an attention with positions, a length scale or shared key heads, which PyTorch does not support; an
            `out_proj` with an adapter or hooks, which PyTorch ignores.

    Example:
        >>> import torch
        >>> model = sparsify_module(nn.TransformerEncoderLayer(16, 4, batch_first=True), alpha=1.5)
        >>> type(densify_module(model).self_attn)
        <class 'torch.nn.modules.activation.MultiheadAttention'>
    """
    layer_children = {part for layer in module.modules() if isinstance(layer, LAYERS) for part in layer.children()}
    patterns = _patterns(names)
    attentions = {
        name: part
        for name, part in module.named_modules()
        if type(part) is MultiheadAttention and part not in layer_children and _matches(name, patterns)
    }
    if not attentions:
        raise ValueError(
            f"{type(module).__name__} has no replaceable tsallis.nn.MultiheadAttention{_describe_patterns(patterns)}"
        )
    return cast(
        Module | nn.MultiheadAttention, _swap(module, {old: _to_dense(old, n) for n, old in attentions.items()})
    )


def _patterns(names: str | Iterable[str] | None) -> list[str] | None:
    return [names] if isinstance(names, str) else names if names is None else list(names)


def _matches(name: str, patterns: list[str] | None) -> bool:
    return patterns is None or any(fnmatchcase(name, pattern) for pattern in patterns)


def _describe_patterns(patterns: list[str] | None) -> str:
    return "" if patterns is None else f" whose name matches {', '.join(patterns)}"


def _swap(module: nn.Module, replacements: dict[nn.Module, nn.Module]) -> nn.Module:
    """Replace modules everywhere in a module, and return the new outermost module."""
    for new in replacements.values():
        hooks: Iterable[Any] = new._load_state_dict_pre_hooks.values()
        for hook in hooks:
            if getattr(hook, "with_module", False):  # the hook stores a reference to its module
                hook.module = weakref.ref(new)
    if module in replacements:
        return replacements[module]
    for parent in list(module.modules()):
        for name, child in parent._modules.items():  # `named_children` would skip modules that are used twice
            if child in replacements:
                setattr(parent, name, replacements[child])
    for encoder in module.modules():
        if isinstance(encoder, nn.TransformerEncoder):
            _set_nested(encoder)
    return module


def _set_nested(encoder: Any) -> None:
    """Allow a PyTorch encoder to use nested tensors only if all its attentions are PyTorch's."""
    sparse = any(isinstance(x, MultiheadAttention) for x in encoder.modules())
    if sparse and getattr(encoder, "use_nested_tensor", False):
        encoder.use_nested_tensor, encoder.nested_when_dense = False, True
    elif not sparse and getattr(encoder, "nested_when_dense", False):
        encoder.use_nested_tensor, encoder.nested_when_dense = True, False


def _attentions(module: nn.Module, patterns: list[str] | None) -> Iterator[tuple[str, Attention]]:
    """Yield names and attentions that match a pattern; raise if an attention can't be replaced."""
    for name, part in module.named_modules():
        if not isinstance(part, Attention) or not _matches(name, patterns):
            continue
        if isinstance(part, MultiheadAttention):
            yield name, part
            continue
        if is_parametrized(part):
            tensors = ", ".join(part.parametrizations)  # type: ignore[arg-type]
            raise TypeError(
                f"{name or 'module'} has parametrizations of {tensors}, which would be lost: "
                "call torch.nn.utils.parametrize.remove_parametrizations first"
            )
        if type(part) is not nn.MultiheadAttention:
            raise TypeError(
                f"{name or 'module'} must be a torch.nn.MultiheadAttention, not a subclass, got {type(part).__name__}"
            )
        yield name, part


def _new_alpha(alpha: float | str, initial: float | None, attention: Attention) -> float | PerHeadAlpha:
    """Return the alpha of a new attention: a number or a module with an alpha per head."""
    if not isinstance(alpha, str):
        return alpha_number(alpha)
    device = next(attention.parameters()).device  # a quantized `out_proj` has no parameters
    return PerHeadAlpha(attention.num_heads, initial=initial, device=device, dtype=torch.float32)


def _to_sparse(old: nn.MultiheadAttention, alpha: float | PerHeadAlpha, name: str) -> MultiheadAttention:
    """Return a sparse attention with the same parameters."""
    return _move_parts(MultiheadAttention(**_arguments(old), alpha=alpha), old, name)


def _to_dense(old: MultiheadAttention, name: str) -> nn.MultiheadAttention:
    """Return an attention of PyTorch with the same parameters."""
    settings = {
        f"positions {old.positions!r}": old.positions != "none",
        "a length scale": old.length_scale is not None,
        f"{old.num_kv_heads} key heads for {old.num_heads} query heads": old.num_kv_heads != old.num_heads,
    }
    for setting, is_set in settings.items():
        if is_set:
            raise TypeError(f"{name or 'module'} has {setting}, which torch.nn.MultiheadAttention does not support")
    layer = old.out_proj
    if not is_linear(layer):
        raise TypeError(
            f"{name or 'module'}.out_proj must be a torch.nn.Linear without hooks, because torch.nn.MultiheadAttention "
            f"reads only its weight and bias, got {type(layer).__module__}.{type(layer).__name__}: merge adapters and "
            "remove hooks first"
        )
    if type(layer) is nn.Linear:  # quantize_dynamic would remove the weight that PyTorch's attention reads
        layer.__class__ = NonDynamicallyQuantizableLinear
    return _move_parts(nn.MultiheadAttention(**_arguments(old)), old, name)


def _arguments(old: Attention) -> dict[str, Any]:
    return {
        "embed_dim": old.embed_dim,
        "num_heads": old.num_heads,
        "dropout": old.dropout,
        "bias": old.in_proj_bias is not None,
        "add_bias_kv": old.bias_k is not None,
        "add_zero_attn": old.add_zero_attn,
        "kdim": old.kdim,
        "vdim": old.vdim,
        "batch_first": old.batch_first,
        "device": "meta",
    }


def _move_parts(new: NewAttention, old: Attention, path: str) -> NewAttention:
    """Move parameters, hooks and added attributes from an old attention to a new one."""
    path = path or "module"
    for name in (*PARAMETERS, "out_proj"):
        part = getattr(old, name)
        if isinstance(part, Tensor) and name not in old._parameters:
            raise TypeError(
                f"{path}.{name} must be a parameter, got a computed tensor; if it is pruned, call "
                "torch.nn.utils.prune.remove first"
            )
        setattr(new, name, part)
    if "forward" in vars(old):
        raise TypeError(
            f"{path}.forward was replaced, and the replacement would be lost: restore the original forward first"
        )
    _add_extras(new, old, path)
    for name in HOOKS:  # share the dictionaries, so that handles of hooks still work
        setattr(new, name, getattr(old, name))
    hooks = new._load_state_dict_post_hooks
    for key in [key for key, hook in hooks.items() if hook is materialise_constants]:
        del hooks[key]  # it belongs to the sparse class
    if isinstance(new, MultiheadAttention):
        new.register_load_state_dict_post_hook(materialise_constants)
    return new.train(old.training)


def _add_extras(new: NewAttention, old: Attention, path: str) -> None:
    """Add the attributes, parameters, buffers and modules that were added to the old attention."""
    default_names = _attribute_names(type(old)(**_arguments(old)))
    existing_names = _attribute_names(new)
    for kind in ("_parameters", "_buffers", "_modules", "__dict__"):
        for name, value in getattr(old, kind).items():
            if name in default_names:
                continue
            if name in existing_names:
                raise TypeError(
                    f"{path}.{name} was added to a {type(old).__name__}, but {type(new).__name__} already has a {name}"
                )
            getattr(new, kind)[name] = value
            if kind == "_buffers" and name in old._non_persistent_buffers_set:
                new._non_persistent_buffers_set.add(name)


def _attribute_names(module: nn.Module) -> set[str]:
    return {*vars(module), *dir(type(module)), *module._parameters, *module._buffers, *module._modules}
