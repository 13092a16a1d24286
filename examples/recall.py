"""Associative recall: which attention still finds one pair among many more than it was trained with?

A sequence is pairs of a key and a value, a token each, and then queries: keys of which the value is asked. One look at
the right pair answers a query, wherever the pair is, so there are no positions, and a longer sequence is harder for one
reason alone: more pairs to look past. A Transformer of two layers with four heads learns it with 8 to 16 pairs, once
for each kind of attention and seed, and is tested with up to 512.

    python examples/recall.py

Writes recall.csv, a row for each variant, seed and length, and with matplotlib three figures.
docs/results-long-contexts.md has the results.
"""

from __future__ import annotations

import argparse
import csv
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tsallis
from tsallis.nn import MultiheadAttention, PerHeadAlpha, TransformerEncoderLayer

KEYS, VALUES, QUERIES = 1024, 64, 16
SIZE, LAYERS, HEADS = 64, 2, 4
SHORTEST, LONGEST = 8, 16  # pairs in training
BATCH, RATE = 32, 3e-3
TIMES = (1, 2, 4, 8, 16, 32)  # test lengths, times the longest one in training
EXAMPLE = 16 * LONGEST  # pairs in the sequence whose weights are drawn
FASTER = 20  # the learning rate of alphas, times that of the weights


class Variant(NamedTuple):
    alpha: Callable[[], float | PerHeadAlpha]  # of a layer
    faster: float = FASTER


VARIANTS = {
    "softmax": Variant(lambda: 1.0),
    "1.5-entmax": Variant(lambda: 1.5),
    "sparsemax": Variant(lambda: 2.0),
    "learned": Variant(lambda: PerHeadAlpha(HEADS)),  # what alpha="learned" stands for
    "learned from 1.1": Variant(lambda: PerHeadAlpha(HEADS, initial=1.1)),
    "learned slowly": Variant(lambda: PerHeadAlpha(HEADS), faster=1),
}
MAIN = list(VARIANTS)[:4]
NAMES = [f"{layer}.{head}" for layer in range(1, LAYERS + 1) for head in range(1, HEADS + 1)]

Row = dict[str, Any]


class Batch(NamedTuple):
    keys: Tensor  # [batch, pairs], none twice in a sequence
    values: Tensor  # [batch, pairs]
    queries: Tensor  # [batch, queries]: which pair

    @property
    def answers(self) -> Tensor:
        return self.values.gather(1, self.queries)


class Run(NamedTuple):
    """A trained model and how its alphas [layers * heads] came to be."""

    model: Recall
    steps: list[int]
    alphas: list[list[float]]


class Recall(nn.Module):
    """A pair is the sum of two embeddings; a query has an embedding of its own in place of the value's."""

    def __init__(self, alphas: list[float | PerHeadAlpha]) -> None:
        super().__init__()
        self.key, self.value = nn.Embedding(KEYS, SIZE), nn.Embedding(VALUES + 1, SIZE)
        self.layers = nn.ModuleList(
            TransformerEncoderLayer(SIZE, HEADS, 2 * SIZE, 0.0, batch_first=True, norm_first=True, alpha=alpha)
            for alpha in alphas
        )
        self.norm, self.output = nn.LayerNorm(SIZE), nn.Linear(SIZE, VALUES)

    @property
    def attention(self) -> list[MultiheadAttention]:
        return [module for module in self.modules() if isinstance(module, MultiheadAttention)]

    def forward(self, batch: Batch) -> Tensor:
        """Scores of the values [batch, queries, values]."""
        pairs = self.key(batch.keys) + self.value(batch.values)
        queries = self.key(batch.keys.gather(1, batch.queries)) + self.value.weight[VALUES]
        x = torch.cat([pairs, queries], 1)
        for layer in self.layers:
            x = layer(x, is_causal=True)
        scores: Tensor = self.output(self.norm(x[:, pairs.shape[1] :]))
        return scores

    def alphas(self) -> list[float]:
        return [alpha for attention in self.attention for alpha in attention.alphas().tolist()]

    def density(self) -> list[float]:
        return [share for attention in self.attention for share in attention.stats().density.tolist()]

    def weights(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Scores, and what each query's attention puts on each token [batch, layers * heads, queries, tokens]."""
        result: list[Tensor] = []

        def ask(module: nn.Module, args: Any, kwargs: Any) -> Any:
            return args, {**kwargs, "need_weights": True, "average_attn_weights": False}

        def keep(module: nn.Module, args: Any, output: Any) -> None:
            result.append(output[1][:, :, -QUERIES:])

        hooks = [attention.register_forward_pre_hook(ask, with_kwargs=True) for attention in self.attention]
        hooks += [attention.register_forward_hook(keep) for attention in self.attention]
        scores: Tensor = self(batch)
        for hook in hooks:
            hook.remove()
        return scores, torch.cat(result, 1)


def draw(count: int, pairs: int, generator: torch.Generator) -> Batch:
    keys = torch.rand(count, KEYS, generator=generator).topk(pairs).indices
    values = torch.randint(VALUES, (count, pairs), generator=generator)
    return Batch(keys, values, torch.randint(pairs, (count, QUERIES), generator=generator))


def train(variant: Variant, seed: int, steps: int) -> Run:
    """For one seed all variants start with the same weights and see the same data."""
    torch.manual_seed(1000 + seed)
    alphas = [variant.alpha() for _ in range(LAYERS)]
    torch.manual_seed(seed)
    model, data = Recall(alphas), torch.Generator().manual_seed(seed)
    learned = [module.bias for module in model.modules() if isinstance(module, PerHeadAlpha)]
    weights = [weight for weight in model.parameters() if not any(weight is bias for bias in learned)]
    rates = [RATE] + [variant.faster * RATE] * len(learned)
    groups = [{"params": x, "lr": rate} for x, rate in zip([weights, *learned], rates, strict=True)]
    optimizer = torch.optim.Adam(groups)  # no weight decay: it would pull alphas to 1.5
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rates, total_steps=steps + 1, pct_start=0.1)
    run = Run(model, [0], [model.alphas()])
    for step in range(1, steps + 1):
        pairs = int(torch.randint(SHORTEST, LONGEST + 1, (), generator=data))
        batch = draw(BATCH, pairs, data)
        loss = F.cross_entropy(model(batch).flatten(0, 1), batch.answers.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 60 == 0 or step == steps:
            run.steps.append(step)
            run.alphas.append(model.alphas())
    return run


@torch.no_grad()
def test(model: Recall, pairs: int, sequences: int) -> tuple[float, list[float], list[float]]:
    """Accuracy; of each head, the mean weight on the pair asked for, and the density. The same data for all models."""
    data = torch.Generator().manual_seed(10_000 + pairs)
    right, masses, densities = [], [], []
    for _ in range(0, sequences, 8):
        batch = draw(8, pairs, data)
        scores, weights = model.weights(batch)
        index = batch.queries[:, None, :, None].expand(*weights.shape[:3], 1)
        right.append((scores.argmax(-1) == batch.answers).double().mean())
        masses.append(weights.gather(3, index).double().mean((0, 2, 3)))
        densities.append(torch.tensor(model.density(), dtype=torch.float64))
    mass, density = (torch.stack(x).mean(0).tolist() for x in (masses, densities))
    return float(torch.stack(right).mean()), mass, density


def hardware() -> str:
    name, cpuinfo = platform.processor() or platform.machine(), Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        name = lines[0].split(":")[1].strip() if lines else name
    return f"{name}, {torch.get_num_threads()} thread(s)"


def measure(steps: int, seeds: int, sequences: int) -> tuple[list[Row], dict[tuple[str, int], Run]]:
    rows: list[Row] = []
    runs: dict[tuple[str, int], Run] = {}
    versions = {"torch": torch.__version__, "tsallis": tsallis.__version__, "hardware": hardware()}
    for variant, how in VARIANTS.items():
        for seed in range(seeds):
            started = time.perf_counter()
            run = runs[variant, seed] = train(how, seed, steps)
            seconds = time.perf_counter() - started
            for times in TIMES:
                accuracy, mass, density = test(run.model, times * LONGEST, sequences)
                row: Row = {"variant": variant, "seed": seed, "steps": steps, "pairs": times * LONGEST}
                row |= {"accuracy": f"{accuracy:.5f}"}
                for kind, result in (("mass", mass), ("density", density), ("alpha", run.alphas[-1])):
                    row |= {f"{kind}_{name}": f"{x:.5f}" for name, x in zip(NAMES, result, strict=True)}
                row |= {f"start_{name}": f"{x:.5f}" for name, x in zip(NAMES, run.alphas[0], strict=True)}
                rows.append(row | versions)
            shown = " ".join(row["accuracy"][:5] for row in rows[-len(TIMES) :])
            print(f"{variant:16} seed {seed}: accuracy {shown}, {seconds:.0f} s", flush=True)
    return rows, runs


COLOURS = {"softmax": "#d55e00", "1.5-entmax": "#0a84c8", "sparsemax": "#009e73", "learned": "#b565a7"}
MARKERS = {"softmax": "o", "1.5-entmax": "s", "sparsemax": "^", "learned": "D"}
LAYER_COLOURS = ("#0a84c8", "#d55e00")
GREY = "#7a7a7a"  # legible on white and on black, as the colours are


def draw_figures(rows: list[Row], runs: dict[tuple[str, int], Run], out: Path) -> bool:
    """Three SVG files without a date in them; False where there is no matplotlib."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        print("no figures: they need matplotlib (pip install matplotlib); recall.csv was written", file=sys.stderr)
        return False
    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "recall", "svg.fonttype": "none", "font.family": "sans-serif"})
    matplotlib.rcParams.update({"font.size": 9, "legend.frameon": False})
    matplotlib.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})
    for name in ("text.color", "axes.edgecolor", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color"):
        matplotlib.rcParams[name] = GREY
    from matplotlib import pyplot
    from matplotlib.colors import LinearSegmentedColormap, to_rgb
    from matplotlib.ticker import NullLocator

    def save(figure: Any, name: str) -> None:
        figure.tight_layout()
        figure.savefig(out / name, transparent=True, metadata={"Date": None, "Creator": None})
        pyplot.close(figure)

    def panels(count: int, **more: Any) -> Any:
        return pyplot.subplots(1, count, figsize=(7.4, 2.9), **more)

    lengths = [times * LONGEST for times in TIMES]
    figure, (left, right) = panels(2)
    for variant in MAIN:
        own = [row for row in rows if row["variant"] == variant]
        for axes, value in ((left, accuracy_of), (right, best_mass)):
            result = [[value(row) for row in own if row["pairs"] == pairs] for pairs in lengths]
            look = {"color": COLOURS[variant], "marker": MARKERS[variant], "markersize": 4, "label": variant}
            axes.plot(lengths, [statistics.mean(x) for x in result], **look)
            axes.fill_between(
                lengths, [min(x) for x in result], [max(x) for x in result], color=COLOURS[variant], alpha=0.2, lw=0
            )
    for axes, title in ((left, "accuracy"), (right, "weight on the right pair, best head")):
        axes.set(xscale="log", xlabel="pairs (trained with 8 to 16)", title=title, xticks=lengths, xticklabels=lengths)
        axes.xaxis.set_minor_locator(NullLocator())
    left.legend(loc="lower left")
    save(figure, "recall-accuracy.svg")

    figure, (left, middle, right) = panels(3)
    for variant, line in (("learned", "-"), ("learned from 1.1", "--")):
        run = runs[variant, 0]
        for head, curve in enumerate(zip(*run.alphas, strict=True)):
            layer, first = divmod(head, HEADS)
            label = f"layer {layer + 1}" if first == 0 and variant == "learned" else None
            left.plot(run.steps, curve, color=LAYER_COLOURS[layer], lw=0.9, ls=line, label=label)
    trained = [row for row in rows if row["pairs"] == LONGEST]
    for layer, colour in enumerate(LAYER_COLOURS):
        ends = {variant: heads(trained, variant, "alpha", layer) for variant in ("learned", "learned from 1.1")}
        middle.scatter(*ends.values(), s=12, lw=0, color=colour, label=f"layer {layer + 1}")
    middle.plot([1, 2], [1, 2], color=GREY, lw=0.5)
    for variant in MAIN:
        alphas = [x for layer in range(LAYERS) for x in heads(trained, variant, "alpha", layer)]
        shares = [x for layer in range(LAYERS) for x in heads(trained, variant, "density", layer)]
        look = {"color": COLOURS[variant], "marker": MARKERS[variant], "label": variant}
        right.scatter(alphas, shares, s=12, alpha=0.8, lw=0, **look)
    left.set(xlabel="step", title="alphas, seed 0", ylim=(0.97, 2.03))
    left.legend(loc="lower right")
    middle.set(xlabel="random start", ylabel="all from 1.1", title="final alphas, all seeds")
    right.set(xlabel="alpha", title=f"density, {LONGEST} pairs", yscale="log")
    right.legend(loc="upper right")
    save(figure, "recall-heads.svg")

    figure, both = pyplot.subplots(2, 1, figsize=(7.4, 3.3), sharex=True)
    example = draw(1, EXAMPLE, torch.Generator().manual_seed(0))
    pairs = example.queries[0].tolist()
    for axes, variant in zip(both, ("softmax", "learned"), strict=True):
        (row,) = (r for r in rows if (r["variant"], r["seed"], r["pairs"]) == (variant, 0, EXAMPLE))
        head = max(range(len(NAMES)), key=lambda i: float(row[f"mass_{NAMES[i]}"]))
        with torch.no_grad():
            weights = runs[variant, 0].model.weights(example)[1][0, head]
        mass = float(weights[range(QUERIES), pairs].mean())
        shades = LinearSegmentedColormap.from_list("shades", [(*to_rgb(COLOURS[variant]), 0), COLOURS[variant]])
        shown = weights.clamp(min=1e-4).log10().tolist()
        axes.imshow(shown, cmap=shades, vmin=-4, vmax=0, aspect="auto", interpolation="nearest")
        axes.scatter(pairs, range(QUERIES), s=22, lw=0.7, facecolors="none", edgecolors=GREY)
        above = float((weights > 0).sum(-1).double().mean())
        axes.set_title(f"{variant}: {above:.1f} weights above zero a query, {mass:.2f} on the right pair")
        axes.set(ylabel="query", yticks=[])
    both[1].set_xlabel(f"token: {EXAMPLE} pairs, then the queries")
    save(figure, "recall-weights.svg")
    return True


def accuracy_of(row: Row) -> float:
    return float(row["accuracy"])


def heads(rows: list[Row], variant: str, kind: str, layer: int) -> list[float]:
    """One number for each head of a layer and each seed."""
    names = NAMES[layer * HEADS : (layer + 1) * HEADS]
    return [float(row[f"{kind}_{name}"]) for row in rows if row["variant"] == variant for name in names]


def best_mass(row: Row) -> float:
    return max(float(row[f"mass_{name}"]) for name in NAMES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1500, help="training steps of each model (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=3, help="models of each variant (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("docs/figures"), help="folder (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="(default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="a few steps of one seed, to see that it works")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    started = time.perf_counter()
    steps, seeds, sequences = (20, 1, 8) if args.quick else (args.steps, args.seeds, 128)
    rows, runs = measure(steps, seeds, sequences)
    args.out.mkdir(parents=True, exist_ok=True)
    with (args.out / "recall.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    draw_figures(rows, runs, args.out)
    print(f"{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
