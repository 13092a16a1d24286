"""The page of a report: weights are packed and unpacked, data is escaped, and the size is limited."""

from __future__ import annotations

import base64
import html
import json
import math
import re
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tsallis.analysis.histories import VALUES, HeadHistory, ValueHistory
from tsallis.analysis.score_names import SCORES
from tsallis.analysis.weights import SparseWeights
from tsallis.report import page as page_module
from tsallis.report.page import build_page, embed_json, encode_weights, sentences_that_fit
from tsallis.toolkit.run_analysis import SweepRun, sweep


def unpack(text: str, shapes: list[tuple[int, int, int]]) -> list[np.ndarray]:
    """Decode the output of `encode_weights` as its docstring describes."""
    blob = np.frombuffer(zlib.decompress(base64.b64decode(text), -zlib.MAX_WBITS), np.uint8).astype(np.int64)
    rows = sum(heads * queries for heads, queries, _ in shapes)
    support, blob = blob[:rows] + 256 * blob[rows : 2 * rows], blob[2 * rows :]
    count = int(support.sum())
    gaps, units = (blob[i : i + count] + 256 * blob[i + count : i + 2 * count] for i in (0, 2 * count))
    assert len(blob) == 4 * count
    dense, row, cell = [], 0, 0
    for heads, queries, keys in shapes:
        weights = np.zeros((heads * queries, keys))
        for own in weights:
            key = -1
            for _ in range(support[row]):
                key += gaps[cell] + 1
                own[key] = units[cell] / 1000
                cell += 1
            row += 1
        dense.append(weights.reshape(heads, queries, keys))
    return dense


def sparse(shape: tuple[int, int, int], density: float, seed: int) -> np.ndarray:
    """Return rows that sum to one, with about this share of non-zeros."""
    random = np.random.default_rng(seed)
    weights = random.random(shape) ** 3 * (random.random(shape) < density)
    sums = weights.sum(2, keepdims=True)
    return np.divide(weights, sums, out=np.zeros(shape), where=sums > 0)


@pytest.mark.parametrize("density", [0.05, 0.5, 1.0])
def test_weights_are_packed_to_a_thousandth_and_zeros_stay_zeros(density: float) -> None:
    shapes = [(2, 3, 4), (1, 5, 300), (3, 1, 1)]
    dense = [sparse(shape, density, seed) for seed, shape in enumerate(shapes)]
    unpacked = unpack(encode_weights([SparseWeights.of(weights) for weights in dense]), shapes)
    for before, after in zip(dense, unpacked, strict=True):
        assert ((before > 0) == (after > 0)).all()
        assert np.abs(before - after).max() <= 0.001


def test_tiny_weights_are_not_rounded_to_zero() -> None:
    (weights,) = unpack(encode_weights([SparseWeights.of(np.array([[[1e-12, 1.0]]]))]), [(1, 1, 2)])
    assert weights.tolist() == [[[0.001, 1.0]]]


def test_packing_reaches_the_last_of_65535_keys() -> None:
    dense = np.zeros((1, 2, page_module.MAX_KEYS))
    dense[0, 0, -1], dense[0, 1] = 1, 1 / page_module.MAX_KEYS
    (unpacked,) = unpack(encode_weights([SparseWeights.of(dense)]), [dense.shape])
    assert unpacked[0, 0].nonzero()[0].tolist() == [65534] and (unpacked[0, 1] > 0).all()
    with pytest.raises(ValueError, match="at most 65,535 keys per row, got 65,536"):
        encode_weights([SparseWeights.of(np.pad(dense, ((0, 0), (0, 0), (0, 1))))])


def test_packing_accepts_no_weights() -> None:
    assert unpack(encode_weights([]), []) == []


@pytest.mark.parametrize("scale", [0.0, 1.0, 3.0])
def test_a_long_sentence_of_many_dense_heads_stays_below_half_a_megabyte(scale: float) -> None:
    """The worst case is softmax over 60 tokens, with 6 layers of 8 heads of each kind."""
    random = np.random.default_rng(0)
    weights = []
    for kind in range(3):
        scores = scale * random.normal(size=(6, 8, 60, 60))
        if kind == 1:
            scores[..., np.triu(np.ones((60, 60), bool), 1)] = -np.inf
        exp = np.exp(scores - scores.max(-1, keepdims=True))
        weights += [SparseWeights.of(layer) for layer in exp / exp.sum(-1, keepdims=True)]
    assert len(encode_weights(weights)) < 500_000


@pytest.mark.parametrize(
    "text", ["</script><script>alert(1)</script>", "<!--", "\u2028", "\ud800", 'quote " and \\', "مرحبا 世界 ▁"]
)
def test_embedded_json_cannot_close_its_script_element(text: str) -> None:
    embedded = embed_json({"text": [text]})
    assert "<" not in embedded and embedded.encode("utf-8")
    assert json.loads(embedded) == {"text": [text]}


def test_numbers_are_short_and_finite() -> None:
    values = {"a": 1 / 3, "b": math.inf, "c": math.nan, "d": np.float64(2 / 3), "e": np.arange(2), "f": 10**9}
    short = {"a": 0.333333333, "b": None, "c": None, "d": 0.666666667, "e": [0, 1], "f": 10**9}
    assert json.loads(embed_json(values)) == short


def test_a_page_without_runs_raises() -> None:
    with pytest.raises(ValueError, match="at least one of runs"):
        build_page([])


def test_runs_with_different_sentences_raise(summaries: Any) -> None:
    one, other = summaries[0]
    for sentences in (other.sentences[:-1], other.sentences[::-1]):
        with pytest.raises(ValueError, match="the same sentences, but those of other and one differ"):
            build_page([one, replace(other, sentences=sentences)])


def test_a_notebook_output_contains_the_page_once(summaries: Any) -> None:
    page = build_page(*summaries)
    assert len(page) > 10_000 and len(repr(page)) < 40 and str(page) == page
    shown = page._repr_html_()
    framed = html.unescape(re.search('srcdoc="([^"]*)"', shown)[1])
    assert framed.replace('<base href="about:srcdoc">', "") == page


def data_of(page: str) -> Any:
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1])


def test_the_page_contains_score_titles_by_log_name() -> None:
    runs = [SweepRun(f"{a}", {"model.output_alpha": a}, ValueHistory((1,), {"dev_loss": (a,)})) for a in (1.0, 2.0)]
    scores = data_of(build_page([], sweep=sweep(runs)))["scores"]
    assert {name.removeprefix("dev_") for name in scores} == set(SCORES)
    assert {name for name in scores if not name.startswith("dev_")} == set(VALUES) - {"tau"}
    for name, score in scores.items():
        assert score["title"].lower() == SCORES[name.removeprefix("dev_")].title.lower()
        assert re.fullmatch(r"d|\.\d[f%]", score["format"])


@pytest.mark.parametrize("count", [1, 500, 2000])
def test_long_histories_keep_500_points_and_both_ends(count: int) -> None:
    steps, losses = tuple(range(10, count + 10)), tuple(float(i) for i in range(count))
    history = ValueHistory(steps, {"dev_loss": losses})
    runs = [SweepRun(str(a), {"training.seed": 1, "model.output_alpha": a}, history) for a in (1.25, 1.5)]
    (point, _) = data_of(build_page([], sweep=sweep(runs)))["sweep"]["points"]
    assert len(point["steps"][0]) == len(point["curves"]["dev_loss"][0]) == min(count, 500)
    assert (point["steps"][0][0], point["steps"][0][-1]) == (10, count + 9)
    assert [step - 10 for step in point["steps"][0]] == point["curves"]["dev_loss"][0]


def test_values_and_alphas_are_thinned_to_the_same_steps(summaries: Any) -> None:
    steps, numbers = tuple(range(1001)), tuple(map(float, range(1001)))
    values = ValueHistory(steps, {"dev_loss": numbers}, numbers)
    heads = HeadHistory(steps, {"encoder": np.arange(2002.0).reshape(1001, 1, 2)})
    run = replace(summaries[0][0], values=values, alphas=heads, densities=None)
    (content,) = data_of(build_page([run]))["runs"]
    assert content["values"]["steps"] == content["alphas"]["steps"] == content["values"]["seconds"]
    assert content["values"]["values"]["dev_loss"] == content["values"]["steps"] and content["densities"] is None
    assert [event[0][0] / 2 for event in content["alphas"]["values"]["encoder"]] == content["alphas"]["steps"]


def test_the_page_loads_no_external_resources() -> None:
    import tsallis.report

    for path in (Path(tsallis.report.__file__).parent / "static").iterdir():
        addresses = re.findall(r"(?:https?:)?//[\w.]+\.\w+[^\s\"']*", path.read_text(encoding="utf-8"))
        assert set(addresses) <= {"http://www.w3.org/2000/svg"}, path
        assert "innerHTML" not in path.read_text(encoding="utf-8")


def test_names_that_are_not_unicode_are_escaped(summaries: Any) -> None:
    page = build_page([replace(summaries[0][0], name="run\udce9")], note="\udce9")
    assert page.encode("utf-8") and data_of(page)["runs"][0]["name"] == "run\udce9"


def test_examples_of_heads_count_for_the_size_of_a_page(summaries: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (run, *_), count = summaries[0], len(summaries[0][0].sentences)
    weights = sum(len(w.values) for sentence in run.sentences for w in sentence.weights)
    examples = sum(len(example.weights.values) for head in run.heads for example in head.examples)
    assert examples > 0 and count > 1
    monkeypatch.setattr(page_module, "NON_ZEROS", weights)
    bare = replace(run, heads=(), contrasts=())
    assert sentences_that_fit([bare]) == count > sentences_that_fit([run])
