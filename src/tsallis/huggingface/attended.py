"""Set how many keys the queries of a trained, sparsified model attend to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tsallis.errors import check_real
from tsallis.huggingface.alphas import ALPHA, FixedAlpha, ScaledAlpha, alpha_modules, unwrap
from tsallis.huggingface.density import DensityMeter
from tsallis.huggingface.offloading import input_device
from tsallis.huggingface.settings import write_settings
from tsallis.models.modes import eval_mode
from tsallis.nn.attended import calibrate


def calibrate_attended(model: nn.Module, batches: Iterable[Mapping[str, Any]], attended: float) -> float:
    r"""Scale the scores of a trained model so that a query attends to `attended` keys on average.

    .. math:: p_i = \mathrm{entmax}_\alpha\big(s \cdot \mathrm{scale} \cdot Q_i K^\top + \mathrm{mask}_i\big)

    Bisection finds the factor :math:`s`, which is saved with the model; a later :func:`sparsify` discards it. The mean
    is over all heads, layers and queries except padding, in evaluation mode.

    Args:
        model: Model that :func:`sparsify` has changed, with one fixed alpha above 1 in each attention.
        batches: Inputs of the model, such as a list or a `DataLoader`; each pass reads all of them.
        attended: Mean number of attended keys, at least 1.

    Returns:
        The mean that was reached, usually within 1 % of `attended`. The function warns if it differs by more than 10 %.

    Raises:
        ValueError: `attended` is below 1 or above the mean number of visible keys, the model is not sparsified or has
            an adapter of PEFT, or an alpha is learned, differs between heads, or is 1.
        TypeError: A batch is not a mapping.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> from tsallis.huggingface import sparsify
        >>> config = BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8)
        >>> model = sparsify(BertModel(config))
        >>> round(calibrate_attended(model, [{"input_ids": torch.randint(5, 99, (4, 20))}], 3))
        3
    """
    attended = check_real("attended", attended, 1)
    if hasattr(model, "get_base_model") or getattr(unwrap(model), "peft_config", None):
        raise ValueError("the factor can't be saved with an adapter: call calibrate_attended before you add adapters")
    DensityMeter(model)  # raise if the model is not sparsified
    modules = {}
    for name, alpha in alpha_modules(model):
        if not isinstance(alpha, FixedAlpha):
            raise ValueError(
                f"calibrate_attended needs fixed alphas, but {name} has learned alphas: call sparsify first"
            )
        modules[name] = ScaledAlpha(alpha.value, alpha.value.device)
        if isinstance(alpha, ScaledAlpha):
            modules[name].scale.copy_(alpha.scale)
    device = input_device(model)

    def scale(factor: float) -> None:
        for name, module in modules.items():
            module.scale.mul_(factor)
            setattr(model.get_submodule(name), ALPHA, module)

    def measure(batch: Mapping[str, Any]) -> Tensor:
        if not isinstance(batch, Mapping):
            raise TypeError(f"batches must be mappings of model inputs, got {type(batch).__name__}")
        with DensityMeter(model) as meter:
            model(**{name: x.to(device) if isinstance(x, Tensor) else x for name, x in batch.items()})
        return meter.sums(modules)

    with eval_mode(model), torch.no_grad():
        reached = calibrate(scale, measure, batches, attended)
    write_settings(model)
    return reached
