"""Learned alphas over a training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tsallis.errors import InputError
from tsallis.report import style as canvas
from tsallis.report.style import GREY, SMALL, WIDTH

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PREFIX = "alpha_"


def learned_alphas(log: Path | str, *, width: float = WIDTH) -> Figure:
    """Draw the alpha of each head over the updates of a training, a panel for each kind of attention.

    The first values are those before the first update. The heads of the first layer are light, those of the last dark.
    An alpha of 1 is softmax, one of 2 sparsemax; alphas that are not learned are level lines.

    Args:
        log: `log.jsonl` of a run, or the run's folder.
        width: in inches.

    Returns:
        The figure.

    Raises:
        InputError: a file that can't be read, or the log of a model whose heads have no alphas.

    Example:
        >>> import json, pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "log.jsonl"
        >>> events = [{"event": "start", "alpha_encoder": [[1.5, 1.5]]}]
        >>> events += [{"event": "epoch", "step": s, "alpha_encoder": [[1.5, 1.5 + s / 100]]} for s in (10, 20)]
        >>> _ = path.write_text("".join(json.dumps(event) + "\\n" for event in events))
        >>> [line.get_ydata().tolist() for line in learned_alphas(path).axes[0].lines]
        [[1.5, 1.5, 1.5], [1.5, 1.6, 1.7]]
    """
    steps, kinds = _read(Path(log))
    figure = canvas.blank(width, 2.4)
    shared: Any = None
    layers = max(values.shape[1] for values in kinds.values())
    shade = canvas.shades("viridis_r", 0.25, 1.0)
    for column, (kind, values) in enumerate(kinds.items()):
        ax = shared = figure.add_subplot(1, len(kinds), column + 1, sharey=shared)
        canvas.quiet(ax, ("left", "bottom"))
        for layer in range(values.shape[1]):
            for head in range(values.shape[2]):
                color = shade(layer / max(layers - 1, 1))
                label = f"layer {layer + 1}, head {head + 1}"
                ax.plot(steps, values[:, layer, head].numpy(), color=color, linewidth=1.1, label=label)
        canvas.heading(ax, kind, f"{values.shape[1]} layers, {values.shape[2]} heads")
        ax.set_xlabel("update", **canvas.lettering(SMALL, GREY))
        if column:
            ax.tick_params(labelleft=False)
        else:
            ax.set_ylabel("alpha", **canvas.lettering(SMALL, GREY))
    if layers > 1:
        _name_layers(shared, [shade(layer / (layers - 1)) for layer in range(layers)])
    return figure


def _name_layers(ax: Axes, colours: Sequence[Any]) -> None:
    """A legend at the right of axes."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=c, linewidth=2, label=f"layer {i + 1}") for i, c in enumerate(colours)]
    style = {"family": canvas.families(), "size": SMALL}
    ax.legend(handles=handles, prop=style, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5), handlelength=1.2)


def _read(path: Path) -> tuple[list[int], dict[str, Tensor]]:
    """Updates, and by kind the alphas [updates, layers, heads]."""
    path = path / "log.jsonl" if path.is_dir() else path
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
        events: list[Any] = [json.loads(line) for line in lines if line]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {getattr(error, 'strerror', None) or 'not UTF-8 text'}") from error
    except json.JSONDecodeError as error:
        raise InputError(f"{path}: expected one JSON object a line: {error}") from error
    with_alphas = [
        event for event in events if isinstance(event, dict) and any(name.startswith(PREFIX) for name in event)
    ]
    if not with_alphas:
        raise InputError(f"{path}: no alphas in this log: they are written where a model's heads have alphas")
    names = [name for name in with_alphas[0] if name.startswith(PREFIX)]
    try:
        steps = [_step(event) for event in with_alphas]
        kinds = {
            name.removeprefix(PREFIX): torch.tensor([event[name] for event in with_alphas], dtype=torch.float64)
            for name in names
        }
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: events with alphas must have a step and [layers, heads] numbers: {error}") from error
    if any(values.dim() != 3 for values in kinds.values()):
        raise InputError(f"{path}: alphas must be [layers, heads] in each event")
    return steps, kinds


def _step(event: dict[str, Any]) -> int:
    """Return the number of updates before an event: none before the start, which says no step."""
    return int(event.get("step", 0) if event.get("event") == "start" else event["step"])
