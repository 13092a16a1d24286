"""Set how many keys the queries of a sparsified model attend to, during or after training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainerCallback

from tsallis.huggingface.alphas import ALPHA, FixedAlpha, ScaledAlpha, alpha_modules
from tsallis.huggingface.density import DensityMeter
from tsallis.huggingface.settings import write_settings
from tsallis.nn.attended import calibrate, check_attended, scale_change, warn_unmet
from tsallis.search.step import eval_mode


class ControlAttended(TrainerCallback):
    """Callback that reaches the mean number of attended keys that was set by `sparsify(model, attended=4)`.

    One factor multiplies the queries of all attentions with this setting. After every step, the factor grows if the
    queries of the step attended to too many keys on average, and falls if they attended to too few. The target falls
    gradually from 10 % to 60 % of the steps. The mean is over all heads, layers and queries except padding. A
    checkpoint stores the factor, and a resumed training continues exactly. A warning is given at the end if the target
    was missed by more than 10 %, for example because texts are short.

    In evaluation mode, the mean usually differs because of dropout; :func:`calibrate_attended` corrects this. The best
    model of `load_best_model_at_end` may be one from before the target was reached.

    Attributes:
        mean: Mean number of attended keys in the last step.

    Raises:
        ValueError: At the start of the training: the model has no attention with the setting, attentions have
            different settings, or the model is compiled.

    Example:
        >>> from transformers import Trainer
        >>> def set_attended(trainer: Trainer) -> None:
        ...     trainer.add_callback(ControlAttended())
    """

    def __init__(self) -> None:
        self.mean = 0.0
        self._meter: Any = None
        self._modules: dict[str, ScaledAlpha] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Check the model and the settings."""
        self._modules = {name: x for name, x in alpha_modules(kwargs["model"]) if isinstance(x, ScaledAlpha)}
        if len(targets := {module.attended for module in self._modules.values()}) != 1:
            found = " and ".join(map(str, sorted(targets))) or "none"
            raise ValueError(f"the attentions must have one setting attended: call sparsify with it, got {found}")
        if args.torch_compile:
            raise ValueError("ControlAttended needs torch_compile=False, got True")

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start counting."""
        self._meter = DensityMeter(kwargs["model"])
        self._meter.attach()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Change the factor according to the counts of all processes."""
        self._meter.detach()
        sums = self._meter.sums(self._modules).to(args.device)
        if args.world_size > 1:
            torch.distributed.all_reduce(sums)
        self.mean = float(sums[0] / sums[2].clamp(min=1))
        for module in self._modules.values():
            module.scale.mul_(scale_change(sums, module.attended, state.global_step, state.max_steps))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Warn if the target was missed."""
        warn_unmet(self.mean, next(iter(self._modules.values())).attended)


def calibrate_attended(model: nn.Module, batches: Iterable[Mapping[str, Any]], attended: float) -> float:
    r"""Scale the scores of a trained model so that a query attends to `attended` keys on average.

    .. math:: p_i = \mathrm{entmax}_\alpha\big(s \cdot \mathrm{scale} \cdot Q_i K^\top + \mathrm{mask}_i\big)

    Bisection finds the factor :math:`s`, which is saved with the model. The mean is over all heads, layers and queries
    except padding, in evaluation mode.

    Args:
        model: Model that :func:`sparsify` has changed, with one fixed alpha above 1 in each attention.
        batches: Inputs of the model, such as a list or a `DataLoader`; each pass reads all of them.
        attended: Mean number of attended keys, at least 1.

    Returns:
        The mean that was reached, usually within 1 % of `attended`. A warning is given if it differs by 10 %.

    Raises:
        ValueError: `attended` is below 1 or above the mean number of visible keys, the model is not sparsified, or an
            alpha is learned, differs between heads, or is 1.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> from tsallis.huggingface import sparsify
        >>> config = BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8)
        >>> model = sparsify(BertModel(config))
        >>> round(calibrate_attended(model, [{"input_ids": torch.randint(5, 99, (4, 20))}], 3))
        3
    """
    attended = check_attended(attended)
    DensityMeter(model)  # raise if the model is not sparsified
    modules = {}
    for name, alpha in alpha_modules(model):
        if not isinstance(alpha, FixedAlpha):
            raise ValueError(
                f"calibrate_attended needs fixed alphas, but {name} has learned alphas: call sparsify first"
            )
        modules[name] = ScaledAlpha(alpha.value, attended, alpha.value.device)
        if isinstance(alpha, ScaledAlpha):
            modules[name].scale.copy_(alpha.scale)
    for name, module in modules.items():
        setattr(model.get_submodule(name), ALPHA, module)
    write_settings(model)
    device = next(model.parameters()).device

    def scale(factor: float) -> None:
        for module in modules.values():
            module.scale.mul_(factor)

    def measure() -> Tensor:
        with DensityMeter(model) as meter:
            for batch in batches:
                model(**{name: x.to(device) if isinstance(x, Tensor) else x for name, x in batch.items()})
        return meter.sums(modules)

    with eval_mode(model), torch.no_grad():
        return calibrate(scale, measure, attended)
