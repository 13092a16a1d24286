"""Helpers for tests of the analysis: models with zeros in their attention, corpora, sentences with known weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from tsallis.analysis import AttentionLayer, Histogram, Recording, Sentence, read_model, record
from tsallis.analysis.summary_records import DensityExample, DensitySummary
from tsallis.analysis.weights import SparseWeights, Text
from tsallis.models import RNNSeq2Seq, TransformerSeq2Seq
from tsallis.symbols import EOS
from tsallis.toolkit.data.corpus import Corpus
from tsallis.toolkit.data.vocabulary import Vocabulary

SRC = Vocabulary(["▁a", "▁b", "c", "▁d", "e", "?", ".", "▁what"])
TGT = Vocabulary(["▁x", "▁y", "z", "."])


def corpus(rows: int = 7, seed: int = 0) -> Corpus:
    """Return a random corpus; sources have 1 to 6 symbols, targets 0 to 5."""
    random = np.random.default_rng(seed)
    src = [random.integers(4, len(SRC), random.integers(1, 7)).tolist() for _ in range(rows)]
    tgt = [random.integers(4, len(TGT), random.integers(0, 6)).tolist() for _ in range(rows)]
    return Corpus(src, tgt)


def transformer(**arguments: Any) -> TransformerSeq2Seq:
    """Return a float64 Transformer with one alpha per head and scores far enough apart for zero weights."""
    sizes = {"d_model": 8, "heads": 2, "layers": 2, "d_ff": 12, "dropout": 0.3, "attention": "learned"}
    model = TransformerSeq2Seq(len(SRC), len(TGT), **{**sizes, **arguments}).double()  # type: ignore[arg-type]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("in_proj_weight"):
                parameter.mul_(8)
    return model


def lstm(**arguments: Any) -> RNNSeq2Seq:
    model = RNNSeq2Seq(len(SRC), len(TGT), **{"d_model": 8, **arguments}).double()
    with torch.no_grad():
        for parameter in model.attention.parameters():
            parameter.mul_(50)
    return model


def sharp(make: Any, **arguments: Any) -> Any:
    """Return a model whose output distributions contain zeros and whose end symbol is likely."""
    model = make(**arguments)
    with torch.no_grad():
        model.output.weight.mul_(4)
        model.output.bias[EOS] += 1
    return model


def recording_of(model: Any, data: Corpus, size: int = 3) -> Recording:
    return record(read_model(model, SRC, TGT), data.batches(size))


def encoder(*sentences: Any, pieces: Sequence[Sequence[str]] | None = None, alpha: float = 1.5) -> Recording:
    """Return a recording of one encoder layer from the weights [heads, queries, keys] of each sentence."""
    texts = pieces or [None] * len(sentences)
    rows = zip(sentences, texts, strict=True)
    read = [Sentence.of(weights, pieces=text, index=number) for number, (weights, text) in enumerate(rows)]
    heads = read[0].weights[0].shape[0]
    return Recording([AttentionLayer("encoder", 0, (alpha,) * heads)], read)


def random_sentences(count: int, layers: Sequence[AttentionLayer], seed: int = 0) -> Iterable[Sentence]:
    """Yield random sentences with sparse weights for the given layers."""
    random = np.random.default_rng(seed)
    for index in range(count):
        source = tuple(f"▁{number}" for number in range(random.integers(1, 9)))
        target = ("<s>", *(f"▁{number}" for number in range(random.integers(0, 8))))
        text = Text(index, source, target)
        weights = []
        for layer in layers:
            queries, keys = map(len, text.sides(layer.kind))
            dense = random.random((layer.heads, queries, keys)) ** 4
            dense *= np.arange(keys) < layer.visible(queries, keys)[:, None]
            dense *= (random.random(dense.shape) > 0.4) | (dense == dense.max(2, keepdims=True))
            weights.append(SparseWeights.of(dense / dense.sum(2, keepdims=True)))
        yield Sentence(text, tuple(weights))


LAYERS = (
    AttentionLayer("encoder", 0, (1.5, 2.0)),
    AttentionLayer("decoder", 0, (1.5, 1.1, 1.9), causal=True),
    AttentionLayer("cross", 0, (1.2,)),
)


def labels_of(*examples: DensityExample) -> DensitySummary:
    """Return a summary of attention densities that shows these examples."""
    histogram = Histogram.of([0.4, 0.5], 20)
    return DensitySummary(
        name="run",
        task="classification",
        model="classifier",
        arguments={"attention": "combined"},
        corpus="the dev split",
        examples=len(examples),
        accuracy=0.5,
        zeros=0.9996,
        zero_masses=0.0,
        size=None,
        centres=(histogram,),
        sizes=None,
        shown=examples,
    )
