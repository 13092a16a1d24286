"""Count the steps of fused optimizers, which change parameters but not the versions of their tensors."""

from __future__ import annotations

from functools import cache

from torch.optim.optimizer import register_optimizer_step_post_hook


@cache
def _counter() -> list[int]:
    count = [0]

    def add(optimizer: object, *_: object) -> None:
        count[0] += any(group.get("fused") for group in optimizer.param_groups)  # type: ignore[attr-defined]

    register_optimizer_step_post_hook(add)
    return count


def fused_optimizer_steps() -> int:
    """Return the number of steps since the first call. Copies of parameters are stale if the number has changed."""
    return _counter()[0]
