"""Define the alphas of a sparsified model: fixed or learned modules inside its attentions."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from tsallis.functional.rows import alpha_number
from tsallis.nn import parameter_groups as nn_parameter_groups
from tsallis.nn.alpha import PerHeadAlpha, whole
from tsallis.ops.transforms import exporting_to_onnx, traced, without_numbers

ALPHA = "tsallis_alpha"  # name of the module with the alphas inside an attention
COMPILED = "_orig_mod"  # name of the original module inside a module that `torch.compile` returned


class AttentionAlpha(nn.Module):
    """Base class of modules that store the alphas of an attention, always in float32."""

    meters: tuple[Any, ...] = ()  # count supports while densities are measured
    receive: Callable[[Tensor], None] | None = None  # called with all weights while a model is recorded

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        def keep_dtype(x: Tensor) -> Tensor:
            moved = fn(x)
            return moved if moved.dtype == x.dtype else x.to(moved.device)

        super()._apply(keep_dtype, recurse)
        return self


class FixedAlpha(AttentionAlpha):
    """Fixed alpha for all heads of an attention, or one fixed alpha per head.

    The buffer `value` saves the alphas with the model. A state dict without this buffer, such as that of the original
    model, can be loaded; the buffer then keeps its value.

    Args:
        value: Alpha, or one alpha per head, at least 1.
        device: Device of the buffer.

    Raises:
        ValueError: An alpha is below 1 or not finite, or the sequence is empty.

    Example:
        >>> FixedAlpha(1.5)()
        1.5
        >>> FixedAlpha([1.25, 2.0])()
        tensor([1.2500, 2.0000])
    """

    value: Tensor
    # Cache of the buffer, its version and its value, so that a GPU is read again only after a change.
    _number: tuple[Tensor, int, float] | None = None

    def __init__(self, value: float | Sequence[float] | Tensor, device: Any = None) -> None:
        super().__init__()
        self.register_buffer("value", torch.tensor(fixed_numbers(value), dtype=torch.float32, device=device))
        self.read()

    def forward(self, query: Tensor | None = None) -> Any:
        """Return the alpha, or alphas [heads]. If there are queries, return the scaled queries and the alpha.

        Compiled code gets a tensor [] instead of a number, so that another alpha needs no new compilation. An ONNX
        export gets the number, which needs fewer operations.
        """
        if exporting_to_onnx() and self._number is not None and self._number[0]._version == self._number[1]:
            alpha: float | Tensor = self._number[2]  # during an export, the buffer is a fake tensor without a value
        else:
            alpha = self.value if traced() else self.read()
        return alpha if query is None else (self.scale_queries(query), alpha)

    def scale_queries(self, query: Tensor) -> Tensor:
        """Return the queries, multiplied by the factor of the scores if there is one."""
        return query

    def read(self) -> float | Tensor:
        """Return the alphas, or a number if there is only one alpha. Read a GPU only after a change.

        The version of a tensor does not count changes of its `data`, so a CPU is read every time.
        """
        value, state = self.value, self._number
        if value.dim() or without_numbers(value) or value.is_inference():
            return value
        if state is None or state[0] is not value or state[1] != value._version or value.device.type == "cpu":
            self._number = state = (value, value._version, value.item())
        return state[2]

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "value":
            self._number = None
        super().__setattr__(name, value)

    @torch.no_grad()
    def set(self, alpha: float) -> None:
        """Set the alpha of all heads."""
        self.value.fill_(alpha_number(alpha))
        self.read()

    def extra_repr(self) -> str:
        return "on the device meta" if self.value.is_meta else ", ".join(f"{x:g}" for x in self.value.reshape(-1))

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *arguments: Any) -> None:
        for name, buffer in self._buffers.items():
            if f"{prefix}{name}" not in state_dict and buffer is not None:
                state_dict[f"{prefix}{name}"] = buffer.clone()
        super()._load_from_state_dict(state_dict, prefix, *arguments)


class ScaledAlpha(FixedAlpha):
    """Fixed alpha of an attention whose scores are multiplied by a factor, to attend to a given number of keys.

    Args:
        value: Alpha, above 1.
        device: Device of the buffers.

    Raises:
        ValueError: The alpha is not a number above 1.
    """

    scale: Tensor

    def __init__(self, value: Any, device: Any = None) -> None:
        number = fixed_numbers(value)
        if not isinstance(number, float) or number <= 1:
            raise ValueError(f"alpha must be one number above 1 to set attended, got {number}")
        super().__init__(number, device)
        self.register_buffer("scale", torch.ones((), dtype=torch.float32, device=device))

    def scale_queries(self, query: Tensor) -> Tensor:
        return query * self.scale


def fixed_numbers(alpha: Any) -> float | list[float]:
    """Return a fixed alpha as a number, or one alpha per head as a list.

    Raises:
        ValueError: An alpha is below 1 or not finite, or the sequence is empty.
        TypeError: The value is neither a number nor a sequence of numbers.
    """
    alpha = alpha.tolist() if hasattr(alpha, "tolist") else alpha
    if not isinstance(alpha, Sequence):
        return alpha_number(alpha)
    if not alpha:
        raise ValueError("alpha must have one number per head, got none")
    return [alpha_number(x) for x in alpha]


class LearnedAlpha(AttentionAlpha, PerHeadAlpha):
    """Learned alpha per head, see :class:`tsallis.nn.PerHeadAlpha`, always in float32.

    In bfloat16, rounding would remove an optimizer's small steps. Casting the model does not cast these parameters;
    moving the model to another device moves them.

    Args:
        num_heads, low, high, initial, device, dtype: as in :class:`tsallis.nn.PerHeadAlpha`.

    Example:
        >>> alphas = LearnedAlpha(3, initial=1.5).bfloat16()
        >>> alphas.bias.dtype
        torch.float32
    """

    def forward(self, query: Tensor | None = None) -> Any:
        """Return the alphas [heads]. If there are queries, return the queries and the alphas."""
        alpha = PerHeadAlpha.forward(self)
        return alpha if query is None else (query, alpha)


def alpha_modules(model: nn.Module) -> Iterator[tuple[str, FixedAlpha | LearnedAlpha]]:
    """Yield every sparse attention of a model: its name, and the module with its alphas."""
    for name, module in model.named_modules():
        alpha: Any = getattr(module, ALPHA, None)
        if hasattr(alpha, "modules_to_save"):  # PEFT trains a copy of the module
            copies = [] if alpha.disable_adapters else [x for x in alpha.active_adapters if x in alpha.modules_to_save]
            alpha = alpha.modules_to_save[copies[0]] if copies else alpha.original_module
        if alpha is not None:
            yield name, alpha


def unwrap(model: Any) -> Any:
    """Return the Transformers model inside wrappers of PEFT, `torch.compile` and data parallelism."""
    while True:
        if hasattr(model, "get_base_model"):
            model = model.get_base_model()
        elif hasattr(model, COMPILED):
            model = getattr(model, COMPILED)
        elif not isinstance(model, PreTrainedModel) and isinstance(getattr(model, "module", None), nn.Module):
            model = model.module
        else:
            return model


def base_model(model: Any) -> Any:
    """Return the Transformers model inside wrappers; raise a TypeError if there is none."""
    if not isinstance(base := unwrap(model), PreTrainedModel):
        raise TypeError(
            f"model must be a Transformers model, got {type(model).__name__}; for other models use nn.sparsify_module"
        )
    return base


def alphas(model: nn.Module) -> dict[str, Tensor]:
    """Return the alphas of every sparse attention of a model.

    If the model is sharded (FSDP2), all processes must call this function.

    Args:
        model: Model that :func:`sparsify` has changed.

    Returns:
        Alphas by the name of the attention: [heads], or [] if all heads share one number.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> config = BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8)
        >>> from tsallis.huggingface import alphas, sparsify
        >>> alphas(sparsify(BertModel(config), 1.5))
        {'encoder.layer.0.attention.self': tensor(1.5000)}
    """
    return {
        name: whole(alpha.value if isinstance(alpha, FixedAlpha) else alpha()).detach().clone()
        for name, alpha in alpha_modules(model)
    }


def parameter_groups(
    model: nn.Module, lr: float, *, alpha_lr_scale: float = 20.0, weight_decay: float = 0.0
) -> list[dict[str, Any]]:
    """Return three parameter groups for an optimizer: matrices, vectors and learned alphas.

    Only matrices have weight decay. Alphas need a higher learning rate than pretrained weights. The function warns if
    learned alphas are frozen, for example by PEFT, whose configuration must name them.

    Args:
        model: Model that :func:`sparsify` has changed.
        lr: Learning rate of all parameters except alphas.
        alpha_lr_scale: Learning rate of the alphas as a multiple of `lr`.
        weight_decay: Weight decay of matrices.

    Returns:
        Groups for `torch.optim`; empty groups are left out.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> config = BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8)
        >>> from tsallis.huggingface import parameter_groups, sparsify
        >>> groups = parameter_groups(sparsify(BertModel(config), "learned"), lr=5e-5, weight_decay=0.01)
        >>> [(len(group["params"]), group["lr"], group["weight_decay"]) for group in groups]
        [(10, 5e-05, 0.01), (13, 5e-05, 0.0), (1, 0.001, 0.0)]
    """
    learned = [alpha for _, alpha in alpha_modules(model) if isinstance(alpha, LearnedAlpha)]
    num_frozen = sum(not alpha.bias.requires_grad for alpha in learned)
    if num_frozen:
        warnings.warn(
            f"the learned alphas of {num_frozen} attentions are frozen. To train them and save them with a PEFT "
            f"adapter, create its configuration with modules_to_save=[{ALPHA!r}].",
            stacklevel=2,
        )
    return nn_parameter_groups(model, lr, alpha_lr_scale=alpha_lr_scale, weight_decay=weight_decay)
