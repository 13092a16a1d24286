"""Summaries of runs that answer with labels, compared with single examples."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tsallis.continuous import Interval
from tsallis.errors import InputError
from tsallis.models import LabelDecoder, RNNSeq2Seq
from tsallis.toolkit.data.corpus import Corpus
from tsallis.toolkit.data.vocabulary import Vocabulary
from tsallis.toolkit.run_analysis import Options, summarize_densities
from tsallis.toolkit.training import Run

WORDS = Vocabulary(["fine", "bad", "film", "a", "the", "not"])


LABELS = Vocabulary(["neg", "pos"])


def labels_run(folder: Path, model: Any, task: str) -> Run:
    (folder / "model.json").write_text(json.dumps({"class": "classifier", "arguments": model.arguments}))
    return Run(folder, model.eval(), WORDS, LABELS, {"task": task}, {})


def documents(rows: int = 40) -> Corpus:
    random = np.random.default_rng(0)
    src = [random.integers(4, len(WORDS), random.integers(1, 9)).tolist() for _ in range(rows)]
    return Corpus(src, [[int(random.integers(4, 6))] if row % 5 else [] for row in range(rows)])


@pytest.mark.parametrize(
    "arguments",
    [
        {"attention": "combined", "transform": "sparsemax"},
        {"attention": "continuous", "transform": "softmax", "density": "gaussian"},
        {"attention": "discrete", "transform": "sparsemax"},
    ],
)
def test_document_summaries_match_single_examples(arguments: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, corpus = LabelDecoder(len(WORDS), len(LABELS), d_model=8, num_basis=8, **arguments), documents()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(12)
    titles = [" ".join(map(WORDS.name, row)) for row in corpus.src]
    run = labels_run(tmp_path, model, "classification")
    progress: list[Any] = []
    options = Options(sentences=6)
    summary = summarize_densities(run, corpus, "reviews", titles, options, advance=lambda *work: progress.append(work))
    zeros, zero_masses, sizes, right = [], [], [], []
    for row in range(len(corpus)):
        batch = corpus.batch([row])
        attention = model.classifier.attention(batch.src, batch.src_lengths)
        probs = model.classifier.probs(batch.src, batch.src_lengths)[0]
        if attention.weights is not None:
            zeros.append(float((attention.weights == 0).float().mean()))
        if attention.density is not None:
            zero_masses.append(float((attention.masses == 0).float().mean()))
            support = attention.density.support
            lower, upper = (support.lower, support.upper) if isinstance(support, Interval) else (0.0, 1.0)
            sizes.append(min(float(upper), 1.0) - max(float(lower), 0.0))
        if corpus.tgt[row]:
            right.append(int(probs.argmax()) + 4 == corpus.tgt[row][0])
    for own, alone in ((summary.zeros, zeros), (summary.zero_masses, zero_masses), (summary.size, sizes)):
        assert own == (pytest.approx(np.mean(alone), abs=1e-5) if alone else None)
    assert summary.accuracy == pytest.approx(np.mean(right)) and summary.examples == 40
    assert len(summary.shown) == 6 and progress[-1] == (0, "attention", 40, 40)
    for example in summary.shown:
        assert len(example.words) == len(corpus.src[example.index]) and example.title == titles[example.index]
        assert (example.density is None) == (arguments["attention"] == "discrete")
        assert (len(example.weights) == 0) == (arguments["attention"] == "continuous")
        assert sum(example.weights or (1.0,)) == pytest.approx(1, abs=1e-5) and example.answer in ("neg", "pos")
    assert len(summary.centres) == len(sizes[:1]) and sum(summary.sizes.counts if summary.sizes else (40,)) == 40
    assert json.loads(json.dumps(summary.to_dict()))["shown"][0]["index"] == 0


def test_image_examples_contain_picture_and_outline(tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes = {"d_model": 8, "heads": 2, "layers": 1, "num_basis": 16, "transform": "sparsemax"}
    model = LabelDecoder(len(WORDS), len(LABELS), kind="questions", **sizes)
    pictures = torch.randint(0, 256, (4, 16, 24, 3), dtype=torch.uint8)
    model.image_store = lambda rows: pictures[rows]
    corpus = Corpus([[row, 4, 5] for row in range(4)], [[5]] * 4)
    run = labels_run(tmp_path, model, "visual")
    summary = summarize_densities(run, corpus, "questions", ["1: a?"] * 4)
    assert len(summary.shown) == 4 and len(summary.centres) == 2
    for row, example in enumerate(summary.shown):
        assert example.grid == (2, 3) and len(example.weights) == 6 == len(example.masses) and example.words == ()
        assert example.density is not None and example.density.outlines
        assert example.image is not None
        blob = base64.b64decode(example.image.removeprefix("data:image/png;base64,"))
        assert blob[:8] == b"\x89PNG\r\n\x1a\n" and struct.unpack(">II", blob[16:24]) == (24, 16)
        length = struct.unpack(">I", blob[33:37])[0]
        rows = np.frombuffer(zlib.decompress(blob[41 : 41 + length]), np.uint8).reshape(16, 1 + 24 * 3)
        assert (rows[:, 1:].reshape(16, 24, 3) == pictures[row].numpy()).all()


def test_other_tasks_and_empty_corpora_raise(tmp_path: Path) -> None:
    run = labels_run(tmp_path, LabelDecoder(len(WORDS), len(LABELS), d_model=8, num_basis=8), "classification")
    with pytest.raises(InputError, match="reviews: there are no examples to analyse"):
        summarize_densities(run, Corpus([], []), "reviews", [])
    other = Run(tmp_path, RNNSeq2Seq(6, 6, d_model=8), WORDS, LABELS, {"task": "strings"}, {})
    with pytest.raises(InputError, match="densities over words or images, found the task strings"):
        summarize_densities(other, documents(), "verbs", [""] * 40)
