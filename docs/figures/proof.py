"""Draw the picture of README: what a sparse model attends to, and its answers with their proof, beside softmax's.

tsallis demo
python docs/figures/proof.py runs/demo docs/figures/proof.svg
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from tsallis.analysis.record import read_model, record
from tsallis.search import SearchOptions
from tsallis.toolkit.data.corpus import Corpus
from tsallis.toolkit.evaluation import search_corpus
from tsallis.toolkit.tasks.registry import task_of
from tsallis.toolkit.training import Run, load_run

LINE, RIGHT = "travel\tV;PST", ("traveled", "travelled")
MOST_OUTPUTS = 4


def main(folder: str, picture: str) -> None:
    sparse, softmax = load_run(Path(folder)), load_run(Path(f"{folder}-softmax"))
    plt.rcParams |= {"svg.hashsalt": "proof", "font.size": 9}
    figure = plt.figure(figsize=(7.6, 2.9), layout="constrained")
    left, right = figure.add_gridspec(1, 2, width_ratios=(1, 1.55))
    result = answer(sparse)
    assert result.best is not None
    read, written, weights = attention(sparse, result.best.tokens)
    matrix(figure.add_subplot(left), weights, read, written)
    ax = figure.add_subplot(right)
    ax.axis("off")
    column(ax, 0.0, "1.5-entmax", sparse, result)
    column(ax, 0.52, "softmax", softmax, answer(softmax))
    figure.savefig(picture, metadata={"Date": None})


def answer(run: Run):
    task = task_of(run.task)
    return search_corpus(run.model, task.read([LINE], "README", run, gold=False).corpus, SearchOptions(beam_size=5))[0]


def attention(run: Run, target):
    """Return the symbols that are read, those that are written, and the weights [written, read]."""
    source = task_of(run.task).read([LINE], "README", run, gold=False).corpus.src[0]
    corpus = Corpus([source], [list(target)])
    (sentence,) = record(read_model(run.model, run.src_vocab, run.tgt_vocab), [corpus.batch([0])])
    queries, keys = sentence.text.sides("cross")
    names = [key.removeprefix("<tag:").removesuffix(">") if len(key) > 1 else key for key in keys]
    return names, [*queries[1:], "end"], sentence.weights[-1].head(0).dense()[0]


def matrix(ax, weights, read, written) -> None:
    """Draw weights [written, read], blank where they are exactly zero."""
    ax.imshow(np.ma.masked_equal(weights, 0.0), cmap="magma_r", vmin=0.0, interpolation="nearest", aspect="auto")
    ax.set_xticks(range(len(read)), labels=read, rotation=0 if max(map(len, read)) == 1 else 90)
    ax.set_yticks(range(len(written)), labels=written)
    ax.xaxis.tick_top()
    ax.tick_params(length=0)
    ax.set_title("weights; blank: exactly 0", loc="left")


def column(ax, x: float, name: str, run: Run, result) -> None:
    """Write the answers of a model, their probabilities and the certificate."""
    rows = [(run.tgt_vocab.decode(h.tokens), f"{h.prob:.4f}") for h in result.hypotheses[:MOST_OUTPUTS]]
    if len(result.hypotheses) > MOST_OUTPUTS:
        rows.append(("... and ever more", ""))
    ax.text(x, 0.94, name, weight="bold", transform=ax.transAxes)
    for i, (text, prob) in enumerate(rows):
        y = 0.80 - 0.12 * i
        ax.text(x, y, text, color="#0a6b2d" if text in RIGHT else "#666666", transform=ax.transAxes)
        ax.text(x + 0.42, y, prob, ha="right", family="monospace", transform=ax.transAxes)
    sentences = {
        "complete": "complete: proved to be all\nthat the model holds possible",
        "optimal": "optimal: nothing missing is\nmore probable than the first",
    }
    ax.text(x, 0.06, sentences.get(result.certificate.kind, result.certificate.kind), transform=ax.transAxes)


if __name__ == "__main__":
    main(*sys.argv[1:])
