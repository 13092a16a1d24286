"""Draw figures like those in the papers, from the JSON output of `tsallis analyze`.

tsallis analyze runs/forms --text draw.tsv --language english --json draw.json
python docs/figures/papers.py draw.json tree docs/figures/paper-tree.svg
python docs/figures/papers.py draw.json steps docs/figures/paper-steps.svg

tsallis analyze runs/softmax runs/1.5-entmax runs/1.5-relu --json training.json
python docs/figures/papers.py training.json scores docs/figures/paper-scores.svg
python docs/figures/papers.py training.json outputs docs/figures/paper-outputs.svg

tsallis analyze runs/1.5-entmax --json entmax.json && tsallis analyze runs/1.5-relu --json relu.json
python docs/figures/papers.py entmax.json support docs/figures/paper-support.svg
python docs/figures/papers.py relu.json sums docs/figures/paper-sums.svg

tsallis analyze runs/kftt-learned runs/kftt-softmax --json heads.json
python docs/figures/papers.py heads.json alphas docs/figures/paper-alphas.svg
python docs/figures/papers.py heads.json density-histograms docs/figures/paper-density-histograms.svg
python docs/figures/papers.py heads.json densities docs/figures/paper-densities.svg
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import outputs
import style

from tsallis.analysis import BeamTree, Edge, Histogram, TeacherForcedStep

COLUMN, PAGE, HEIGHT = 3.3, 6.8, 1.7  # in inches: width of one column, width of both columns, height of a row of panels
BARS = 40
SCORES = {"dev_loss": "loss per symbol", "dev_bleu": "BLEU", "dev_symbol_accuracy": "next-symbol accuracy"}
OUTPUTS = {"logit_norm": "norm of the scores", "output_threshold": "threshold", "output_support": "words above zero"}


def main(numbers: str, figure: str, picture: str) -> None:
    runs = json.loads(Path(numbers).read_text(encoding="utf-8"))["runs"]
    style.save(FIGURES[figure](runs), picture)


def label(ax: Any, x: str, y: str, title: str = "") -> None:
    style.quiet(ax, ("left", "bottom"))
    ax.set_xlabel(x, **style.lettering(style.SMALL, style.GREY))
    ax.set_ylabel(y, **style.lettering(style.SMALL, style.GREY))
    style.heading(ax, title)


def shades(count: int) -> list[Any]:
    colours = style.shades("viridis_r", 0.25, 1.0)
    return [colours(number / max(count - 1, 1)) for number in range(count)]


def kinds_of(run: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Group the heads by the kind of their attention."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for head in run["heads"]:
        kinds.setdefault(head["kind"], []).append(head)
    return kinds


def draw_tree(runs: Sequence[dict[str, Any]]) -> Any:
    tree = runs[0]["sentences"][0]["tree"]
    return outputs.output_tree(BeamTree(**{**tree, "edges": tuple(Edge(**edge) for edge in tree["edges"])}))


def draw_steps(runs: Sequence[dict[str, Any]]) -> Any:
    return outputs.output_steps([TeacherForcedStep(**step) for step in runs[0]["sentences"][0]["steps"]])


def curves_of(names: dict[str, str]) -> Callable[[Sequence[dict[str, Any]]], Any]:
    """Return a function that draws values of all runs against the updates."""

    def draw(runs: Sequence[dict[str, Any]]) -> Any:
        figure = style.blank(PAGE, HEIGHT)
        colours = shades(len(runs))
        for column, (name, title) in enumerate(names.items(), 1):
            ax = figure.add_subplot(1, len(names), column)
            for run, colour in zip(runs, colours, strict=True):
                history = run["values"]
                own = "tau" if name == "output_threshold" and name not in history["values"] else name
                points = zip(history["steps"], history["values"].get(own, ()), strict=False)
                points = [point for point in points if point[1] is not None]
                ax.plot(*np.reshape(points, (-1, 2)).T, color=colour, marker="o", markersize=2.2, linewidth=1.0)
            if name == "output_support":
                ax.set_yscale("log")
            label(ax, "update", title)
        style.name_lines(ax, [(run["name"], colour) for run, colour in zip(runs, colours, strict=True)])
        return figure

    return draw


def draw_support(runs: Sequence[dict[str, Any]]) -> Any:
    outputs = runs[0]["outputs"]
    counts = outputs["support_counts"]
    figure = style.blank(COLUMN, HEIGHT)
    ax = figure.add_subplot()
    ax.stairs(counts, np.arange(len(counts) + 1) - 0.5, fill=True, color=style.WEIGHTS, baseline=0.5)
    ax.set_yscale("log")
    ax.set_ylim(bottom=0.5)
    if len(counts) > 50:
        ax.set_xscale("symlog", linthresh=10)
    ax.set_xlim(left=0)
    label(ax, f"symbols above zero, of {outputs['symbols']:,}", "steps")
    return figure


def bars(ax: Any, histogram: Histogram, colour: str, x: str, y: str, title: str) -> None:
    edges = np.array(histogram.edges)
    ax.bar(edges[:-1], histogram.counts, np.diff(edges), align="edge", color=colour, edgecolor="white", linewidth=0.4)
    label(ax, x, y, title)


def draw_sums(runs: Sequence[dict[str, Any]]) -> Any:
    total = runs[0]["outputs"]["total"]
    histogram = Histogram(**total["histogram"]).coarser(BARS)
    figure = style.blank(COLUMN, HEIGHT)
    bars(figure.add_subplot(), histogram, style.WEIGHTS, "sum of the values", "steps", f"mean {total['mean']:.3g}")
    return figure


def draw_alphas(runs: Sequence[dict[str, Any]]) -> Any:
    """Draw the alphas of all heads against the updates, with one panel per kind of attention."""
    history = runs[0]["alphas"]
    figure = style.blank(COLUMN, HEIGHT * len(history["values"]))
    for number, (kind, values) in enumerate(history["values"].items(), 1):
        ax = figure.add_subplot(len(history["values"]), 1, number)
        layers = shades(len(values[0]))
        for layer, colour in enumerate(layers):
            ax.plot(history["steps"], [event[layer] for event in values], color=colour, linewidth=0.9)
        ax.set_ylim(0.98, max(2.0, np.max(values)) + 0.02)
        label(ax, "update", "alpha", kind)
        style.name_lines(ax, [(f"layer {i + 1}", colour) for i, colour in enumerate(layers)])
    return figure


def draw_density_histograms(runs: Sequence[dict[str, Any]]) -> Any:
    kinds = kinds_of(runs[0])
    figure = style.blank(PAGE, HEIGHT)
    for number, (kind, heads) in enumerate(kinds.items(), 1):
        counts = np.sum([head["histogram"]["counts"] for head in heads], 0)
        histogram = Histogram(heads[0]["histogram"]["edges"], counts)
        ax = figure.add_subplot(1, len(kinds), number)
        bars(ax, histogram, style.KINDS[kind], "density", "heads × sentences", kind)
    return figure


def draw_densities(runs: Sequence[dict[str, Any]]) -> Any:
    """Draw the sorted densities of the heads of each layer, with one panel per kind of attention."""
    kinds = kinds_of(runs[0])
    figure = style.blank(PAGE, HEIGHT)
    for number, (kind, heads) in enumerate(kinds.items(), 1):
        ax = figure.add_subplot(1, len(kinds), number)
        layers = sorted({head["layer"] for head in heads})
        for layer in layers:
            densities = sorted(head["density"] for head in heads if head["layer"] == layer)
            width = 0.8 / len(densities)
            lefts = layer + 0.6 + width * np.arange(len(densities))
            ax.bar(lefts, densities, width * 0.9, align="edge", color=style.KINDS[kind])
        ax.set_xticks([layer + 1 for layer in layers])
        ax.set_ylim(0, 1)
        label(ax, "layer", "density", kind)
    return figure


FIGURES: dict[str, Callable[[Sequence[dict[str, Any]]], Any]] = {
    "tree": draw_tree,
    "steps": draw_steps,
    "scores": curves_of(SCORES),
    "outputs": curves_of(OUTPUTS),
    "support": draw_support,
    "sums": draw_sums,
    "alphas": draw_alphas,
    "density-histograms": draw_density_histograms,
    "densities": draw_densities,
}

if __name__ == "__main__":
    main(*sys.argv[1:])
