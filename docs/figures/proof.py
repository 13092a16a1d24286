"""Draw the picture of README: attention and proved answers of a sparse model, and answers of a softmax model.

tsallis train recipes/tiny/strings.yaml --run-dir runs/verbs
tsallis train recipes/tiny/strings.yaml model.output=softmax model.attention=softmax --run-dir runs/verbs-softmax
python docs/figures/proof.py runs/verbs docs/figures/proof.svg
"""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path

from tsallis.analysis.record import read_model, record
from tsallis.search import SearchOptions
from tsallis.toolkit.data.corpus import Corpus
from tsallis.toolkit.evaluation import search_corpus
from tsallis.toolkit.tasks.registry import task_of
from tsallis.toolkit.training import Run, load_run

LINE, RIGHT = "travel\tV;PST", ("traveled", "travelled")
SENTENCES = {
    "complete": ("Proved complete:", "no other answer", "is possible."),
    "optimal": ("Proved optimal:", "no other answer", "is more probable."),
}
STYLE = """
  text { font: 14px system-ui, sans-serif; fill: #1b1b1b } .small { font-size: 12px; fill: #555 }
  .bold { font-weight: 600 } .back { fill: #fff } .grid { fill: none; stroke: #ccc }
  .cell { fill: #0a5fb4 } .right { fill: #0a6b2d }
  @media (prefers-color-scheme: dark) {
    text { fill: #eee } .small { fill: #b5b5b5 } .back { fill: #16181c } .grid { stroke: #555 } .cell { fill: #6ab0f3 }
    .right { fill: #58c88a }
  }"""
WIDTH, CELL = 420, 22


def draw(folder: str) -> str:
    """Return the picture as SVG: the attention weights, and below them the answers of both models."""
    sparse, softmax = load_run(Path(folder)), load_run(Path(f"{folder}-softmax"))
    result = answer(sparse)
    assert result.best is not None
    read, written, weights = attention(sparse, result.best.tokens)
    left, top = (WIDTH - CELL * len(read)) // 2 + 16, 64
    parts = [text(12, 24, 'Past tense of "travel": attention of a sparse model', "bold")]
    parts += [text(left + CELL * (i + 0.5), top - 8, name, "small", "middle") for i, name in enumerate(read)]
    for i, symbol in enumerate(written):
        parts.append(text(left - 8, top + CELL * i + 16, symbol, "small", "end"))
        for j, weight in enumerate(weights[i].tolist()):
            box = f'x="{left + CELL * j}" y="{top + CELL * i}" width="{CELL}" height="{CELL}"'
            if weight > 0:
                parts.append(f'<rect class="cell" fill-opacity="{0.15 + 0.85 * weight:.3f}" {box}/>')
            parts.append(f'<rect class="grid" {box}/>')
    y = top + CELL * len(written) + 20
    parts.append(text(WIDTH / 2, y, "An empty cell is exactly zero.", "small", "middle"))
    bottoms = [column(parts, x, y + 36, *named) for x, named in zip((12, 222), answers(sparse, softmax), strict=True)]
    height, body = max(bottoms) + 8, "\n  ".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}">\n'
        f'  <style>{STYLE}\n  </style>\n  <rect class="back" width="100%" height="100%" rx="8"/>\n  {body}\n</svg>\n'
    )


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(words)}</text>'


def answers(sparse: Run, softmax: Run):
    return ("1.5-entmax", sparse, answer(sparse)), ("softmax", softmax, answer(softmax))


def answer(run: Run):
    task = task_of(run.task)
    return search_corpus(run.model, task.read([LINE], "README", run, gold=False).corpus, SearchOptions(beam_size=5))[0]


def attention(run: Run, target):
    """Return the source symbols, the target symbols, and the weights [target, source]."""
    source = task_of(run.task).read([LINE], "README", run, gold=False).corpus.src[0]
    corpus = Corpus([source], [list(target)])
    (sentence,) = record(read_model(run.model, run.src_vocab, run.tgt_vocab), [corpus.batch([0])])
    queries, keys = sentence.text.sides("cross")
    names = [key.removeprefix("<tag:").removesuffix(">") if len(key) > 1 else key for key in keys]
    return names, [*queries[1:], "end"], sentence.weights[-1].head(0).dense()[0]


def column(parts: list[str], x: int, y: int, name: str, run: Run, result) -> int:
    """Add a model's answers with probabilities and its certificate; return the y where they end."""
    parts.append(text(x, y, name, "bold"))
    for hypothesis in result.hypotheses[:4]:
        y += 22
        words = run.tgt_vocab.decode(hypothesis.tokens)
        parts.append(text(x, y, words, "right" if words in RIGHT else "small"))
        parts.append(text(x + 180, y, f"{hypothesis.prob:.4f}", "small", "end"))
    if len(result.hypotheses) > 4:
        y += 22
        parts.append(text(x, y, "and more", "small"))
    y += 8
    for line in SENTENCES.get(result.certificate.kind, (result.certificate.kind,)):
        y += 20
        parts.append(text(x, y, line))
    return y


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(draw(sys.argv[1]), encoding="utf-8")
