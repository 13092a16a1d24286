"""Single heads of an encoder-decoder on one line, a panel each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from tsallis.analysis import read_model, record
from tsallis.analysis.head_names import Head
from tsallis.data.corpus import Corpus
from tsallis.report.heatmap import matrix_panels
from tsallis.report.views import View
from tsallis.training.run_folder import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

END = "(end)"  # the row of the end of an output


def head_panels(
    run: Run, source: Iterable[int], target: Iterable[int], heads: Sequence[Head]
) -> Iterator[tuple[str, Figure]]:
    """Draw heads on a pair of sentences, a figure for each kind of attention.

    Args:
        run: of an encoder-decoder with discrete attention.
        source: symbols of the source.
        target: symbols of the output, without start and end.
        heads: of the run, see :func:`tsallis.analysis.head_names.choose_heads`.

    Yields:
        The kind of attention, and its figure.
    """
    reader = read_model(run.model, run.src_vocab, run.tgt_vocab)
    corpus = Corpus([[int(symbol) for symbol in source]], [[int(symbol) for symbol in target]])
    (sentence,) = record(reader, [corpus.batch([0])])
    for kind in dict.fromkeys(layer.kind for layer, _ in heads):
        queries, keys = sentence.text.sides(kind)
        if kind == "cross":  # a row is the word that is predicted, not the one that was read
            queries = (*queries[1:], END)
        views = []
        for layer, head in heads:
            if layer.kind == kind:
                weights = sentence.weights[reader.layers.index(layer)].head(head).dense()[0]
                views.append(View(f"{layer.name} head {head + 1}, alpha {layer.alphas[head]:.2f}", weights))
        yield kind, matrix_panels(views, keys, queries)
