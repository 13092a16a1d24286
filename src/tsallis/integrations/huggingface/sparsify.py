"""Sparse attention in a Transformers model, and softmax again; saved with the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar

import torch
from torch import nn
from transformers import AutoConfig, PreTrainedModel

from tsallis.functional.rows import alpha_number
from tsallis.integrations.huggingface.alphas import ALPHA, COMPILED, FixedAlpha, LearnedAlpha, alpha_modules, unwrap
from tsallis.integrations.huggingface.attention import implementation_name
from tsallis.integrations.huggingface.modules import (
    Kind,
    Layer,
    check_scores,
    choose_attentions,
    count_heads,
    warn_of_others,
)

Alpha = float | Literal["learned"]
Model = TypeVar("Model", bound=nn.Module)
SETTINGS = "tsallis"  # the name of the attribute of a model's configuration
DENSE = "_tsallis_dense_attention"  # the attribute of a model that remembers how it attended before
# The options of `from_pretrained` that say where a model lies.
LOCATION = ("cache_dir", "force_download", "local_files_only", "revision", "subfolder", "token", "trust_remote_code")
# Options of `from_pretrained` that configurations know by the same names, but that a model is loaded by.
NOT_OF_CONFIG = ("attn_implementation", "dtype", "torch_dtype")


def sparsify(
    model: Model,
    alpha: Alpha | Mapping[Layer, Alpha] = 1.5,
    *,
    layers: Layer | Iterable[Layer] | None = None,
    kind: Kind | None = None,
    initial: float = 1.1,
    low: float = 1.0,
    high: float = 2.0,
) -> Model:
    r"""Give the attentions of a Transformers model sparse weights, with alphas that are fixed or learned.

    .. math:: p_i = \mathrm{entmax}_{\alpha_h}\big(\mathrm{scale} \cdot Q_i K^\top + \mathrm{mask}_i\big)

    in place of softmax (Correia et al. 2019, eq. 8). At alpha 1 the outputs are the model's own. Padding, causal and
    sliding masks, grouped queries, caches and `generate` stay as they are. Alphas lie inside the attentions, under
    `tsallis_alpha`: `save_pretrained` saves them, and :func:`from_pretrained` loads them. A second call changes
    the attentions that it chooses and leaves the others as they are. A warning names attentions that are meant, too,
    but are computed in a way of their own and stay as they are, such as those of LongT5's encoder.

    Args:
        model: a Transformers model whose attentions use its `AttentionInterface`; it is changed in place.
        alpha: at least 1: a number, "learned" for an alpha of each head that is trained with the model, or a mapping
            from layers, as in `layers`, to either; layers that it does not name stay as they are.
        layers: numbers of layers from 0, or patterns of attentions' names such as "*.decoder.*"; None: all.
        kind: "self", or "cross" for attention to an encoder's output; None: both.
        initial: the alpha that learned ones start with, between `low` and `high`; near 1 the model starts as it was.
        low, high: the bounds of learned alphas.

    Returns:
        The model.

    Raises:
        ValueError: a model or an attention whose function cannot be replaced, a layer that is not there, a bad alpha.
        TypeError: what is no Transformers model.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> config = BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=2, intermediate_size=8)
        >>> model = sparsify(BertModel(config), alpha=1.5)
        >>> model(torch.tensor([[5, 6, 7]]), output_attentions=True).attentions[0].shape
        torch.Size([1, 2, 3, 3])
    """
    if not isinstance(model, PreTrainedModel):
        raise TypeError(
            f"model must be a Transformers model, got {type(model).__name__}; for others nn.sparsify_module"
        )
    if isinstance(alpha, Mapping):
        if layers is not None:
            raise ValueError("alpha names the layers itself: leave layers out")
        layers = list(alpha)
        requests = [(value, choose_attentions(model, layer, kind)) for layer, value in alpha.items()]
    else:
        layers = layers if layers is None or isinstance(layers, int | str) else list(layers)
        requests = [(alpha, choose_attentions(model, layers, kind))]
    modules: dict[str, tuple[nn.Module, FixedAlpha | LearnedAlpha]] = {}
    for value, attentions in requests:
        for name, attention in attentions.items():
            check_scores(name, attention)
            modules[name] = (attention, _alpha_module(value, attention, initial, low, high))
    _switch(model)
    for attention, alpha_module in modules.values():
        setattr(attention, ALPHA, alpha_module)
    _keep_in_float32(model)
    write_settings(model)
    warn_of_others(model, layers, kind)
    return model


def densify(model: Model) -> Model:
    """Give a sparsified model softmax attention again; its alphas are gone, its other weights stay.

    Args:
        model: sparsified by :func:`sparsify`; it is changed in place.

    Returns:
        The model.

    Raises:
        ValueError: a model that is not sparsified.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> config = BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=2, intermediate_size=8)
        >>> densify(sparsify(BertModel(config))).config._attn_implementation
        'sdpa'
    """
    dense = getattr(model, DENSE, None)
    if dense is None:
        raise ValueError(f"{type(model).__name__} is not sparsified")
    for module in model.modules():
        if hasattr(module, ALPHA):
            delattr(module, ALPHA)
    model.set_attn_implementation(dense)  # type: ignore[operator]
    delattr(model, DENSE)
    delattr(model.config, SETTINGS)
    return model


def from_pretrained(model_class: Any, path: Any, **options: Any) -> Any:
    """Load a sparsified model that `save_pretrained` saved, alphas included.

    The model class's own `from_pretrained` would load it with softmax, and leave its alphas out.

    Args:
        model_class: a class of Transformers, such as `BertModel` or `AutoModelForCausalLM`.
        path: a folder or a name, as its `from_pretrained` takes them.
        options: what that takes besides.

    Returns:
        The model.

    Raises:
        ValueError: a model that was not sparsified when it was saved, or whose alphas are not there.

    Example:
        >>> import tempfile
        >>> from transformers import AutoModel, BertConfig, BertModel
        >>> config = BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=2, intermediate_size=8)
        >>> model = sparsify(BertModel(config), "learned")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     model.save_pretrained(folder)
        ...     loaded = from_pretrained(AutoModel, folder)
        >>> loaded.encoder.layer[0].attention.self.tsallis_alpha().detach()
        tensor([1.1000, 1.1000])
    """
    config = options.pop("config", None)
    if config is None:
        config = AutoConfig.from_pretrained(path, **{name: options[name] for name in LOCATION if name in options})
        for name in [name for name in options if hasattr(config, name) and name not in NOT_OF_CONFIG]:
            setattr(config, name, options.pop(name))  # such as num_labels
    settings = getattr(config, SETTINGS, None)
    if settings is None:
        raise ValueError(f"{path} was not sparsified when it was saved: load it as usual, then sparsify it")
    wants_info = options.pop("output_loading_info", False)
    cls = model_class
    if not (isinstance(cls, type) and issubclass(cls, PreTrainedModel)):  # one of the Auto classes
        with torch.device("meta"):
            cls = type(model_class.from_config(config))

    def build(self: Any, *args: Any, **kwargs: Any) -> None:
        cls.__init__(self, *args, **kwargs)
        _apply_settings(self, settings)

    # A model that has its alphas before weights are loaded: those are then loaded like all others, wherever they lie.
    names = {"__init__": build, "__module__": cls.__module__, "__qualname__": cls.__qualname__}
    sparse: Any = type(cls.__name__, (cls,), names)
    model, info = sparse.from_pretrained(path, config=config, output_loading_info=True, **options)
    model.__class__ = cls
    missing = sorted(name for name in info["missing_keys"] if f"{ALPHA}." in name)
    if missing:
        raise ValueError(f"{path} has no weights for {', '.join(missing)}")
    return (model, info) if wants_info else model


def set_alpha(model: nn.Module, alpha: float) -> None:
    """Change all fixed alphas of a sparsified model; learned ones stay as they are.

    Args:
        model: sparsified by :func:`sparsify`.
        alpha: at least 1.

    Raises:
        ValueError: a bad alpha, a model without a fixed one.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> config = BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8)
        >>> model = sparsify(BertModel(config), 1.0)
        >>> set_alpha(model, 1.25)
        >>> model.encoder.layer[0].attention.self.tsallis_alpha
        FixedAlpha(1.25)
    """
    number = alpha_number(alpha)
    modules = [x for _, x in alpha_modules(model) if isinstance(x, FixedAlpha)]
    if not modules:
        raise ValueError(f"{type(model).__name__} has no attention with a fixed alpha")
    for module in modules:
        module.value = number
    write_settings(model)


def write_settings(model: Any) -> None:
    """Write into the model's configuration which attentions are sparse: a number each, or two bounds."""
    model = unwrap(model)
    settings: dict[str, float | list[float]] = {}
    for name, alpha in alpha_modules(model):
        settings[_in_base(model, name)] = [alpha.low, alpha.high] if isinstance(alpha, LearnedAlpha) else alpha.value
    model.config.tsallis = settings


def _apply_settings(model: Any, settings: Mapping[str, float | list[float]]) -> None:
    """Sparsify a model as its configuration says.

    Raises:
        ValueError: settings of which none is of an attention of the model.
    """
    settings = {_in_base(model, name): setting for name, setting in settings.items()}
    names = choose_attentions(model)
    if settings and not any(_in_base(model, name) in settings for name in names):
        raise ValueError(f"{type(model).__name__} has none of the sparse attentions {', '.join(sorted(settings))}")
    for name in names:
        setting = settings.get(_in_base(model, name))
        if isinstance(setting, list):
            low, high = setting
            sparsify(model, "learned", layers=name, initial=(low + high) / 2, low=low, high=high)
        elif setting is not None:
            sparsify(model, setting, layers=name)


def _alpha_module(
    alpha: Alpha, attention: nn.Module, initial: float, low: float, high: float
) -> FixedAlpha | LearnedAlpha:
    if not isinstance(alpha, str):
        return FixedAlpha(alpha)
    if alpha != "learned":
        raise ValueError(f"alpha must be a number or 'learned', got {alpha!r}")
    device = next(attention.parameters()).device
    return LearnedAlpha(count_heads(attention), low, high, initial, device=device, dtype=torch.float32)


def _switch(model: Any) -> None:
    """Let a model's attentions call ours, and remember what they called before."""
    if hasattr(model, DENSE):
        return
    before, name = _implementations(model), implementation_name(model)
    model.set_attn_implementation(name)
    others = sorted({type(x).__name__ for x in _models(model) if x.config._attn_implementation != name})
    if others:
        model.set_attn_implementation(before)
        raise ValueError(f"Transformers does not let the attention function of {', '.join(others)} be replaced")
    setattr(model, DENSE, before)


def _implementations(model: Any) -> str | dict[str, str]:
    own: str = model.config._attn_implementation
    parts = {name: getattr(model.config, name, None) for name in model.config.sub_configs}
    others = {name: part._attn_implementation for name, part in parts.items() if part is not None}
    return {"": own, **others} if others else own


def _models(model: nn.Module) -> list[Any]:
    return [module for module in model.modules() if isinstance(module, PreTrainedModel)]


def _keep_in_float32(model: Any) -> None:
    """Tell Transformers that alphas are float32 in a checkpoint of half precision, too."""
    names = set(model._keep_in_fp32_modules_strict or ())
    model._keep_in_fp32_modules_strict = names | {ALPHA}


def _in_base(model: Any, name: str) -> str:
    """Return the name that a module has in the model without its head, which other heads may be put on."""
    return name.replace(f"{COMPILED}.", "").removeprefix(f"{model.base_model_prefix}.")
