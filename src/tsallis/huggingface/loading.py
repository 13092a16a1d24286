"""Load sparsified models from the folders or names under which they were saved."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import torch
from transformers import AutoConfig, PreTrainedModel

from tsallis.huggingface.alphas import ALPHA, FixedAlpha, alpha_modules
from tsallis.huggingface.settings import SETTINGS, modules_of_settings, version_advice
from tsallis.huggingface.sparsify import install_alphas

# Options of `from_pretrained` that locate a model.
LOCATION = ("cache_dir", "force_download", "local_files_only", "revision", "subfolder", "token", "trust_remote_code")
REMOTE_CODE = ("trust_remote_code", "code_revision")
# Options of `from_pretrained` that are not settings, although the configuration has attributes with these names.
LOADING_OPTIONS = ("attn_implementation", "dtype", "torch_dtype")


def from_pretrained(model_class: Any, path: Any, **options: Any) -> Any:
    """Load a sparsified model that was saved by `save_pretrained`, with its alphas.

    The model's own `from_pretrained` would load it with softmax, and report its alphas as unexpected.

    Args:
        model_class: Class of Transformers, such as `BertModel` or `AutoModelForCausalLM`.
        path: Folder or name, as in `from_pretrained`.
        options: Other options of `from_pretrained`.

    Returns:
        The model; with `output_loading_info=True` also the loading report.

    Raises:
        ValueError: The saved model is not sparsified, the class is only a part of it, or not all alphas can be loaded.

    Example:
        >>> import tempfile
        >>> from transformers import AutoModel, BertConfig, BertModel
        >>> from tsallis.huggingface import from_pretrained, sparsify
        >>> config = BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=2, intermediate_size=8)
        >>> model = sparsify(BertModel(config), "learned", initial=1.1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     model.save_pretrained(folder)
        ...     loaded = from_pretrained(AutoModel, folder)
        >>> loaded.encoder.layer[0].attention.self.tsallis_alpha().detach()
        tensor([1.1000, 1.1000])
    """
    config = options.pop("config", None)
    if config is None or isinstance(config, str | os.PathLike):
        config = AutoConfig.from_pretrained(config or path, **{x: options[x] for x in LOCATION if x in options})
        for name in [name for name in options if hasattr(config, name) and name not in LOADING_OPTIONS]:
            setattr(config, name, options.pop(name))  # such as num_labels
    settings = getattr(config, SETTINGS, None)
    if settings is None:
        raise ValueError(
            f"{path} was saved without the settings of sparsify. Load it as usual, then call sparsify on the whole "
            "model; the argument layers selects attentions."
        )
    wants_info = options.pop("output_loading_info", False)
    cls = model_class
    if not (isinstance(cls, type) and issubclass(cls, PreTrainedModel)):  # `cls` is an Auto class
        with torch.device("meta"):
            cls = type(model_class.from_config(config, **{x: options[x] for x in REMOTE_CODE if x in options}))
    _check_whole(cls, config, path)

    def build(self: Any, *args: Any, **kwargs: Any) -> None:
        cls.__init__(self, *args, **kwargs)
        install_alphas(self, modules_of_settings(self, settings))

    # Add alphas before weights are loaded, so that the alphas are loaded like all other parameters.
    names = {"__init__": build, "__module__": cls.__module__, "__qualname__": cls.__qualname__}
    sparse: Any = type(cls.__name__, (cls,), names)
    model, info = sparse.from_pretrained(path, config=config, output_loading_info=True, **options)
    model.__class__ = cls
    _check_alphas(model, path, info["missing_keys"], info["unexpected_keys"])
    for _, alpha in alpha_modules(model):
        if isinstance(alpha, FixedAlpha):
            alpha.read()  # read the alpha now, because an export can't read it
    return (model, info) if wants_info else model


def _check_whole(cls: Any, config: Any, path: Any) -> None:
    """Raise a ValueError if a class is a part of the saved model, such as one of the towers of CLIP."""
    expected = cls.config_class or object
    parts = [getattr(config, name, None) for name in config.sub_configs]
    if not isinstance(config, expected) and any(isinstance(part, expected) for part in parts):
        raise ValueError(
            f"{cls.__name__} is only a part of the {config.model_type} model in {path}: load the whole model, such as "
            "from_pretrained(AutoModel, ...), and take its part"
        )


def _check_alphas(model: Any, path: Any, missing: Iterable[str], unexpected: Iterable[str]) -> None:
    """Raise a ValueError unless all alphas of the model's attentions were loaded."""
    absent_names = sorted(name for name in missing if f"{ALPHA}." in name)
    if absent_names:
        raise ValueError(f"{path} has no weights for {', '.join(absent_names)}")
    unexpected = list(unexpected)
    attention_names = {name.partition(f".{ALPHA}.")[0] for name in unexpected if f".{ALPHA}." in name}
    # If other weights of an attention are unexpected too, the model does not have this attention.
    lost_names = [
        name
        for name in sorted(attention_names)
        if all(x.startswith(f"{name}.{ALPHA}.") for x in unexpected if x.startswith(f"{name}."))
    ]
    if lost_names:
        raise ValueError(
            f"{path} has alphas of {', '.join(lost_names)}, but the model has no sparse attention with these names. "
            "Before saving, call sparsify on the whole model; the argument layers selects attentions"
            f"{version_advice(model.config)}"
        )
