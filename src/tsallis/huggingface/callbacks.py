"""Define callbacks for Transformers' Trainer that anneal alphas and log alphas and densities."""

from __future__ import annotations

import warnings
from typing import Any

from torch import Tensor, nn
from transformers import TrainerCallback
from transformers.trainer_utils import IntervalStrategy

from tsallis.functional.rows import alpha_number
from tsallis.huggingface.alphas import ALPHA, alphas
from tsallis.huggingface.density import DensityMeter
from tsallis.huggingface.sparsify import set_alpha


class AnnealAlpha(TrainerCallback):
    r"""Callback that raises all fixed alphas from softmax to a target during fine-tuning.

    .. math:: \alpha_t = \mathrm{start} + (\mathrm{target} - \mathrm{start}) \, \min(1, t / (\mathrm{share} \cdot T))

    at step :math:`t` of :math:`T`. A resumed training continues from its step. A checkpoint stores the alpha of its
    step. If Trainer loads the best model at the end, that model keeps the alpha of its checkpoint.

    Args:
        target: Alpha at the end.
        start: Alpha at the first step.
        share: Share of all steps after which the target is reached.

    Raises:
        ValueError: An alpha is below 1, or the share is not above 0 and at most 1.

    Example:
        >>> callback = AnnealAlpha(target=1.5, share=0.5)
        >>> [callback.alpha(step, steps=100) for step in (0, 25, 50, 100)]
        [1.0, 1.25, 1.5, 1.5]
    """

    def __init__(self, target: float = 1.5, *, start: float = 1.0, share: float = 0.5) -> None:
        if not 0 < share <= 1:
            raise ValueError(f"share must be above 0 and at most 1, got {share}")
        self.target, self.start = alpha_number(target), alpha_number(start)
        self.share = share

    def alpha(self, step: int, steps: int) -> float:
        """Return the alpha of a step out of `steps`."""
        if step >= self.share * steps:
            return self.target
        return self.start + (self.target - self.start) * step / (self.share * steps)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Warn if the checkpoints of an adapter would not contain the alphas that `sparsify` has not set."""
        model = kwargs["model"]
        if all(bool((alpha == self.target).all()) for alpha in alphas(model).values()):
            return
        configs = getattr(model, "peft_config", {}).values()
        if any(ALPHA not in (getattr(config, "modules_to_save", None) or ()) for config in configs):
            warnings.warn(
                "the adapter does not save the alphas that AnnealAlpha sets: create its configuration with "
                f"modules_to_save=[{ALPHA!r}]",
                stacklevel=2,
            )

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Set the alpha of the next step."""
        set_alpha(kwargs["model"], self.alpha(state.global_step, state.max_steps))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Set the alpha of the last step, unless the best model was loaded."""
        if args.load_best_model_at_end and state.best_model_checkpoint is not None:
            return
        set_alpha(kwargs["model"], self.alpha(state.global_step, state.max_steps))


class AttentionLog(TrainerCallback):
    """Callback that logs alpha and density of every attention whenever the Trainer logs its loss.

    The entries `alpha/NAME` and `density/NAME` are means over the heads of an attention. The entries `alpha` and
    `density` are means over all attentions. Densities are measured on the training batches of the step before the
    entry; a compiled model runs this step uncompiled. `logging_strategy`, `logging_steps` and `logging_first_step`
    determine the step. Only alphas are logged if the step can't be predicted: at the end of an epoch of unknown length,
    or if another callback requests a log.

    Args:
        trainer: Trainer to which the callback is added.

    Example:
        >>> from transformers import Trainer
        >>> def log_attention(trainer: Trainer) -> None:
        ...     trainer.add_callback(AttentionLog(trainer))
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self._meter: DensityMeter | None = None
        self._densities: dict[str, Tensor] = {}
        self._last_step = 0  # last logged step

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Reset the state of an earlier training, also of an interrupted one."""
        self._last_step = 0
        self._stop()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start measuring if this step will be logged."""
        self._densities = {}
        if _will_log(args, state, kwargs.get("train_dataloader")):
            self._meter = DensityMeter(kwargs["model"]).__enter__()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop measuring, and log if the Trainer logs."""
        if (meter := self._stop()) is not None:
            self._densities = meter.densities()
        self._log(state, control, kwargs["model"])

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Log if the Trainer logs."""
        self._log(state, control, kwargs["model"])

    def _stop(self) -> DensityMeter | None:
        """Stop measuring, and return the meter if it ran."""
        meter, self._meter = self._meter, None
        if meter is not None:
            meter.__exit__(None, None, None)
        return meter

    def _log(self, state: Any, control: Any, model: nn.Module) -> None:
        if not control.should_log or state.global_step == self._last_step:  # log once per step, as Trainer does
            return
        self._last_step = state.global_step
        entries: dict[str, float] = {}
        for title, values in (("alpha", alphas(model)), ("density", self._densities)):
            means = {f"{title}/{name}": float(value.mean()) for name, value in values.items()}
            if means:
                entries |= means | {title: sum(means.values()) / len(means)}
        self.trainer.log(entries)
        control.should_log = True  # set the flag again for the Trainer's own entry, because logging has reset it


def _will_log(args: Any, state: Any, loader: Any) -> bool:
    """Return whether the Trainer will log its loss after the next step."""
    step = state.global_step + 1
    if step == 1 and args.logging_first_step:
        return True
    if args.logging_strategy == IntervalStrategy.STEPS:
        return bool(step % state.logging_steps == 0)
    if args.logging_strategy != IntervalStrategy.EPOCH:
        return False
    try:
        steps = max(-(-len(loader) // args.gradient_accumulation_steps), 1)
    except TypeError:  # the data set has no length
        steps = state.max_steps
    return bool(step % steps == 0 or step == state.max_steps)
