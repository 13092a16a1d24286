"""The alphas of a sparsified model: modules inside its attentions, fixed or learned."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from tsallis.functional.rows import alpha_number
from tsallis.nn.alpha import PerHeadAlpha

ALPHA = "tsallis_alpha"  # the name, in an attention module, of the module that gives its alphas
COMPILED = "_orig_mod"  # the name, in a module that `torch.compile` returns, of the one that it compiles


class FixedAlpha(nn.Module):
    """One alpha for all heads of an attention, which no optimizer changes.

    Args:
        value: the alpha, at least 1.

    Raises:
        ValueError: an alpha below 1 or not finite.

    Example:
        >>> FixedAlpha(1.5)()
        1.5
    """

    meter: Any = None  # counts supports while densities are measured
    receive: Callable[[Tensor], None] | None = None  # is called with all weights while a model is recorded

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = alpha_number(value)

    def forward(self, query: Tensor | None = None) -> float:
        """Return the alpha; what the queries are makes no difference."""
        return self.value

    def extra_repr(self) -> str:
        return f"{self.value:g}"


class LearnedAlpha(PerHeadAlpha):
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

    meter: Any = None
    receive: Callable[[Tensor], None] | None = None

    def forward(self, query: Tensor | None = None) -> Tensor:
        """Return the alphas [heads]; what the queries are makes no difference."""
        return super().forward()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> LearnedAlpha:
        def keep_dtype(x: Tensor) -> Tensor:
            moved = fn(x)
            return moved if moved.dtype == x.dtype else x.to(moved.device)

        super()._apply(keep_dtype, recurse)
        return self


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
        For every attention's name its alphas: [heads] if they are learned, [] if they are fixed.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> config = BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8)
        >>> from tsallis.integrations.huggingface import alphas, sparsify
        >>> alphas(sparsify(BertModel(config), 1.5))
        {'encoder.layer.0.attention.self': tensor(1.5000)}
    """
    return {name: torch.as_tensor(alpha()).detach().clone() for name, alpha in alpha_modules(model)}


def alpha_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that alphas are learned by, for a group of their own in an optimizer.

    Args:
        model: sparsified by :func:`sparsify`.

    Returns:
        One [heads] for each attention with learned alphas.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> config = BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8)
        >>> from tsallis.integrations.huggingface import alpha_parameters, sparsify
        >>> alpha_parameters(sparsify(BertModel(config), "learned", initial=1.5))
        [Parameter containing:
        tensor([0., 0.], requires_grad=True)]
    """
    return [alpha.bias for _, alpha in alpha_modules(model) if isinstance(alpha, LearnedAlpha)]


def parameter_groups(
    model: nn.Module, lr: float, *, alpha_lr_scale: float = 20.0, weight_decay: float = 0.0
) -> list[dict[str, Any]]:
    """Return a model's trainable parameters in three groups for an optimizer: matrices, vectors and alphas.

    Matrices alone decay; alphas follow a higher rate than pretrained weights.

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
        >>> from tsallis.integrations.huggingface import parameter_groups, sparsify
        >>> groups = parameter_groups(sparsify(BertModel(config), "learned"), lr=5e-5, weight_decay=0.01)
        >>> [(len(group["params"]), group["lr"], group["weight_decay"]) for group in groups]
        [(10, 5e-05, 0.01), (13, 5e-05, 0.0), (1, 0.001, 0.0)]
    """
    own = alpha_parameters(model)
    known = {id(parameter) for parameter in own}
    rest = [x for x in model.parameters() if x.requires_grad and id(x) not in known]
    groups: list[dict[str, Any]] = [
        {"params": [x for x in rest if x.dim() > 1], "lr": lr, "weight_decay": weight_decay},
        {"params": [x for x in rest if x.dim() <= 1], "lr": lr, "weight_decay": 0.0},
        {"params": [x for x in own if x.requires_grad], "lr": lr * alpha_lr_scale, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
