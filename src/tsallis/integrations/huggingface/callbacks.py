"""Callbacks for Transformers' Trainer: alphas that grow while a model is fine-tuned, a log of alphas and densities."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from tsallis.functional.rows import alpha_number
from tsallis.integrations.huggingface.alphas import alphas
from tsallis.integrations.huggingface.density import DensityMeter
from tsallis.integrations.huggingface.sparsify import set_alpha


class AnnealAlpha(TrainerCallback):
    r"""A callback that leads all fixed alphas from softmax to a sparse map while a model is fine-tuned.

    .. math:: \alpha_t = \mathrm{start} + (\mathrm{target} - \mathrm{start}) \, \min(1, t / (\mathrm{share} \cdot T))

    at step :math:`t` of :math:`T`. A training that is resumed goes on where it was; a checkpoint has the alpha of its
    step.

    Args:
        target: the alpha at the end.
        start: the alpha at the first step.
        share: the share of all steps after which the target is reached.
        every: alphas change every so many steps; a compiled model is compiled again at each change.

    Raises:
        ValueError: an alpha below 1, a share that is not above 0 and at most 1, fewer than one step between changes.

    Example:
        >>> callback = AnnealAlpha(target=1.5, share=0.5)
        >>> [callback.alpha(step, steps=100) for step in (0, 25, 50, 100)]
        [1.0, 1.25, 1.5, 1.5]
    """

    def __init__(self, target: float = 1.5, *, start: float = 1.0, share: float = 0.5, every: int = 1) -> None:
        if not 0 < share <= 1:
            raise ValueError(f"share must be above 0 and at most 1, got {share}")
        if every < 1:
            raise ValueError(f"every must be at least 1, got {every}")
        self.target, self.start = alpha_number(target), alpha_number(start)
        self.share, self.every = share, every

    def alpha(self, step: int, steps: int) -> float:
        """Return the alpha of a step, of so many."""
        if step >= self.share * steps:
            return self.target
        done = step // self.every * self.every / (self.share * steps)
        return self.start + (self.target - self.start) * done

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Set the alpha of the step that begins."""
        set_alpha(kwargs["model"], self.alpha(state.global_step, state.max_steps))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Set the alpha of the last step."""
        set_alpha(kwargs["model"], self.alpha(state.global_step, state.max_steps))


class AttentionLog(TrainerCallback):
    """A callback that logs every attention's alpha and density, wherever the Trainer logs.

    The entries are `alpha/NAME` and `density/NAME`, means of the heads, and `alpha` and `density`, means of all.
    Densities are those of the training batches of the steps that are logged; a compiled model runs these uncompiled.

    Args:
        trainer: the Trainer that the callback is added to.

    Example:
        >>> from transformers import Trainer
        >>> def log_attention(trainer: Trainer) -> None:
        ...     trainer.add_callback(AttentionLog(trainer))
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self._meter: DensityMeter | None = None

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin to count at a step that will be logged."""
        step = state.global_step + 1
        if step % state.logging_steps == 0 or (step == 1 and args.logging_first_step):
            self._meter = DensityMeter(kwargs["model"]).__enter__()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Log what was counted."""
        meter, self._meter = self._meter, None
        if meter is None:
            return
        meter.__exit__(None, None, None)
        entries: dict[str, float] = {}
        for title, values in (("alpha", alphas(kwargs["model"])), ("density", meter.densities())):
            means = {f"{title}/{name}": float(value.mean()) for name, value in values.items()}
            if means:
                entries |= means | {title: sum(means.values()) / len(means)}
        should_log = control.should_log
        self.trainer.log(entries)
        control.should_log = should_log  # logging answers the wish for the Trainer's own entry, which is still to come
