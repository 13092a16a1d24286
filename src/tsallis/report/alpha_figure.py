"""Learned alphas over a training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tsallis.analysis import alpha_history
from tsallis.report import style as canvas
from tsallis.report.style import GREY, SMALL, WIDTH

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
    history = alpha_history(log)
    figure = canvas.blank(width, 2.4)
    shared: Any = None
    layers = max(values.shape[1] for values in history.values.values())
    colours = canvas.layer_shades(layers)
    for column, (kind, values) in enumerate(history.values.items()):
        ax = shared = figure.add_subplot(1, len(history.values), column + 1, sharey=shared)
        canvas.quiet(ax, ("left", "bottom"))
        for layer in range(values.shape[1]):
            for head in range(values.shape[2]):
                label = f"layer {layer + 1}, head {head + 1}"
                ax.plot(history.steps, values[:, layer, head], color=colours[layer], linewidth=1.1, label=label)
        canvas.heading(ax, kind, f"{values.shape[1]} layers, {values.shape[2]} heads")
        ax.set_xlabel("update", **canvas.lettering(SMALL, GREY))
        if column:
            ax.tick_params(labelleft=False)
        else:
            ax.set_ylabel("alpha", **canvas.lettering(SMALL, GREY))
    if layers > 1:
        canvas.name_lines(shared, [(f"layer {i + 1}", colour) for i, colour in enumerate(colours)])
    return figure
