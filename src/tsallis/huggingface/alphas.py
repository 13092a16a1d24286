"""The alphas of a sparsified model: modules inside its attentions, fixed or learned."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from tsallis.functional.rows import alpha_number
from tsallis.nn.alpha import PerHeadAlpha
from tsallis.ops.transforms import exporting_to_onnx, traced, without_numbers

ALPHA = "tsallis_alpha"  # the name, in an attention module, of the module that gives its alphas
COMPILED = "_orig_mod"  # the name, in a module that `torch.compile` returns, of the one that it compiles


class AttentionAlpha(nn.Module):
    """What gives an attention its alphas, in float32 whatever the model's dtype."""

    meter: Any = None  # counts supports while densities are measured
    receive: Callable[[Tensor], None] | None = None  # is called with all weights while a model is recorded

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        def keep_dtype(x: Tensor) -> Tensor:
            moved = fn(x)
            return moved if moved.dtype == x.dtype else x.to(moved.device)

        super()._apply(keep_dtype, recurse)
        return self


class FixedAlpha(AttentionAlpha):
    """One alpha for all heads of an attention, or one for each, which no optimizer changes.

    It is saved with the model, in the buffer `value`. A state dict without it, such as that of the model without sparse
    attention, can be loaded; the buffer then stays as it is.

    Args:
        value: the alpha, or as many as the attention has heads, at least 1.
        device: of the buffer.

    Raises:
        ValueError: an alpha below 1 or not finite, an empty sequence.

    Example:
        >>> FixedAlpha(1.5)()
        1.5
        >>> FixedAlpha([1.25, 2.0])()
        tensor([1.2500, 2.0000])
    """

    value: Tensor
    # A state of the buffer, and the number that it had; none once there is another buffer.
    _number: tuple[Tensor, int, float] | None = None

    def __init__(self, value: float | Sequence[float] | Tensor, device: Any = None) -> None:
        super().__init__()
        self.register_buffer("value", torch.tensor(fixed_numbers(value), dtype=torch.float32, device=device))
        self.read()

    def forward(self, query: Tensor | None = None) -> float | Tensor:
        """Return the alpha, or alphas [heads]; what the queries are makes no difference.

        What is compiled gets a tensor [] instead of a number: another alpha then needs no other code. An ONNX file
        gets the number, for which there are fewer operations.
        """
        if exporting_to_onnx() and self._number is not None and self._number[0]._version == self._number[1]:
            return self._number[2]  # there the buffer is a stand-in without numbers
        return self.value if traced() else self.read()

    def read(self) -> float | Tensor:
        """Return the one alpha as a number, if it has one; a GPU's is read only if it has changed."""
        value, state = self.value, self._number
        if value.dim() or without_numbers(value) or value.is_inference():
            return value
        if state is None or state[0] is not value or state[1] != value._version:
            self._number = state = (value, value._version, value.item())
        return state[2]

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "value":
            self._number = None
        super().__setattr__(name, value)

    @torch.no_grad()
    def set(self, alpha: float) -> None:
        """Change the alpha of all heads."""
        self.value.fill_(alpha_number(alpha))
        self.read()

    def extra_repr(self) -> str:
        return "on the device meta" if self.value.is_meta else ", ".join(f"{x:g}" for x in self.value.reshape(-1))

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        if f"{prefix}value" not in state_dict:
            state_dict[f"{prefix}value"] = self.value.clone()
        super()._load_from_state_dict(state_dict, prefix, *rest)


def fixed_numbers(alpha: Any) -> float | list[float]:
    """Return a fixed alpha as a number, or one for each head as a list.

    Raises:
        ValueError: an alpha below 1 or not finite, an empty sequence.
        TypeError: what is neither a number nor a sequence of them.
    """
    alpha = alpha.tolist() if hasattr(alpha, "tolist") else alpha
    if not isinstance(alpha, Sequence):
        return alpha_number(alpha)
    if not alpha:
        raise ValueError("alpha must have a number for each head, got none")
    return [alpha_number(x) for x in alpha]


class LearnedAlpha(AttentionAlpha, PerHeadAlpha):
    """An alpha for each head as in :class:`tsallis.nn.PerHeadAlpha`, in float32 whatever the model's dtype.

    In bfloat16 a step of an optimizer would be lost to rounding. A model that is cast leaves these parameters as they
    are, and moves them to its device alone.

    Args:
        num_heads, low, high, initial, device, dtype: as in :class:`tsallis.nn.PerHeadAlpha`.

    Example:
        >>> alphas = LearnedAlpha(3, initial=1.5).bfloat16()
        >>> alphas.bias.dtype
        torch.float32
    """

    def forward(self, query: Tensor | None = None) -> Tensor:
        """Return the alphas [heads]; what the queries are makes no difference."""
        return PerHeadAlpha.forward(self)


def alpha_modules(model: nn.Module) -> Iterator[tuple[str, FixedAlpha | LearnedAlpha]]:
    """Yield the name of every sparse attention of a model, and the module that gives its alphas."""
    for name, module in model.named_modules():
        alpha: Any = getattr(module, ALPHA, None)
        if hasattr(alpha, "modules_to_save"):  # of PEFT, which keeps a copy and trains that
            alpha = alpha.modules_to_save[alpha.active_adapter]
        if alpha is not None:
            yield name, alpha


def unwrap(model: Any) -> Any:
    """Return the Transformers model inside PEFT's, `torch.compile`'s and the wrappers of several devices."""
    while True:
        if hasattr(model, "get_base_model"):
            model = model.get_base_model()
        elif hasattr(model, COMPILED):
            model = getattr(model, COMPILED)
        elif not isinstance(model, PreTrainedModel) and isinstance(getattr(model, "module", None), nn.Module):
            model = model.module
        else:
            return model


def alphas(model: nn.Module) -> dict[str, Tensor]:
    """Return the alphas of every sparse attention of a model.

    Args:
        model: sparsified by :func:`sparsify`.

    Returns:
        For every attention's name its alphas: [heads], or [] if one number is that of all heads.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> config = BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8)
        >>> from tsallis.huggingface import alphas, sparsify
        >>> alphas(sparsify(BertModel(config), 1.5))
        {'encoder.layer.0.attention.self': tensor(1.5000)}
    """
    return {
        name: (alpha.value if isinstance(alpha, FixedAlpha) else alpha()).detach().clone()
        for name, alpha in alpha_modules(model)
    }


def alpha_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that alphas are learned by, for a group of their own in an optimizer.

    Args:
        model: sparsified by :func:`sparsify`.

    Returns:
        One [heads] for each attention with learned alphas.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> config = BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8)
        >>> from tsallis.huggingface import alpha_parameters, sparsify
        >>> alpha_parameters(sparsify(BertModel(config), "learned", initial=1.5))
        [Parameter containing:
        tensor([0., 0.], requires_grad=True)]
    """
    return [alpha.bias for _, alpha in alpha_modules(model) if isinstance(alpha, LearnedAlpha)]


def parameter_groups(
    model: nn.Module, lr: float, *, alpha_lr_scale: float = 20.0, weight_decay: float = 0.0
) -> list[dict[str, Any]]:
    """Return a model's trainable parameters in three groups for an optimizer: matrices, vectors and alphas.

    Matrices alone decay; alphas follow a higher rate than pretrained weights. A warning tells of learned alphas that
    are not trained, as PEFT leaves them if its configuration does not name them.

    Args:
        model: sparsified by :func:`sparsify`.
        lr: the learning rate of all but the alphas.
        alpha_lr_scale: the alphas' learning rate, as a multiple of `lr`.
        weight_decay: of all but the alphas; biases and norms, which have one dimension, have none.

    Returns:
        Groups as `torch.optim` takes them; without an empty one.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> config = BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8)
        >>> from tsallis.huggingface import parameter_groups, sparsify
        >>> groups = parameter_groups(sparsify(BertModel(config), "learned"), lr=5e-5, weight_decay=0.01)
        >>> [(len(group["params"]), group["lr"], group["weight_decay"]) for group in groups]
        [(10, 5e-05, 0.01), (13, 5e-05, 0.0), (1, 0.001, 0.0)]
    """
    own = alpha_parameters(model)
    frozen_biases = [x for x in own if not x.requires_grad]
    if frozen_biases:
        warnings.warn(
            f"the learned alphas of {len(frozen_biases)} attentions are frozen; PEFT trains and saves them with an "
            f"adapter if its configuration has modules_to_save=[{ALPHA!r}]",
            stacklevel=2,
        )
    known = {id(parameter) for parameter in own}
    rest = [x for x in model.parameters() if x.requires_grad and id(x) not in known]
    groups: list[dict[str, Any]] = [
        {"params": [x for x in rest if x.dim() > 1], "lr": lr, "weight_decay": weight_decay},
        {"params": [x for x in rest if x.dim() <= 1], "lr": lr, "weight_decay": 0.0},
        {"params": [x for x in own if x.requires_grad], "lr": lr * alpha_lr_scale, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
