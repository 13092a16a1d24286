"""Build the page of a report: one offline HTML file with styles, scripts, and data without zero weights."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import zlib
from collections.abc import Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsallis.analysis.density_shapes import SignalDensity
from tsallis.analysis.head_roles import ROLES
from tsallis.analysis.histories import ON_DEV, VALUES, Sweep
from tsallis.analysis.score_names import SCORES, ScoreFormat
from tsallis.analysis.summary_records import (
    ComparisonSummary,
    ContrastSummary,
    DensitySummary,
    HeadExample,
    HeadSummary,
    RunSummary,
    SentenceSummary,
)
from tsallis.analysis.tables import plain
from tsallis.analysis.tree import BeamTree
from tsallis.analysis.weights import SIDES, SparseWeights
from tsallis.errors import InputError

UNITS = 1000  # number of units of a weight of 1 on the page; positive weights have at least one unit
EVENTS = 500  # largest number of points of a curve on the page
MAX_KEYS = (1 << 16) - 1  # largest number of keys per row, because gaps and counts are stored in 16 bits
NON_ZEROS = 1 << 24  # largest number of weights on the page, about 20 megabytes
VIEWS = ("overview", "heads", "sentences", "wrong", "contrasts", "training", "outputs", "densities", "sweep")
SCRIPTS = tuple(f"{name}.js" for name in ("dom", "data", "charts", "tree", "theme", *VIEWS))
MAIN = "main.js"


class Page(str):
    """HTML text of a page; notebooks display it as a page.

    Example:
        >>> page = Page("<html><head></head><body>Heads</body></html>")
        >>> page
        <Page of 44 characters>
        >>> page.endswith("</html>")
        True
    """

    __slots__ = ()

    def save(self, path: Path | str) -> None:
        """Write the page to a file."""
        Path(path).write_text(self, encoding="utf-8")

    def __repr__(self) -> str:
        return f"<Page of {len(self):,} characters>"  # notebooks also save the repr, so keep it short

    def _repr_html_(self) -> str:
        # Links to views begin with #. Without this base, a notebook's frame would load the notebook instead.
        text = html.escape(self.replace("<head>", '<head><base href="about:srcdoc">', 1))
        return f'<iframe srcdoc="{text}" title="Report" style="width: 100%; height: 50em; border: 0"></iframe>'


def build_page(
    runs: Sequence[RunSummary],
    comparisons: Sequence[ComparisonSummary] = (),
    sweep: Sweep | None = None,
    densities: Sequence[DensitySummary] = (),
    signals: Sequence[SignalDensity] = (),
    title: str = "",
    note: str = "",
) -> Page:
    """Return the HTML of a report on runs, which needs no other files and no network.

    Args:
        runs: Summaries of the same sentences. The page shows the first `sentences_that_fit(runs)` of them.
        comparisons: Comparisons of the first run with other runs.
        sweep: Scores of a sweep; without `runs` the page shows only the sweep.
        densities: Summaries of classifiers on the same examples.
        signals: Densities over time, from a classifier of time series.
        title: Title of the page (default: the names of the runs, or the sweep's setting).
        note: Text at the end of the page, such as the command that created it.

    Returns:
        The text of the file; notebooks display it as a page.

    Raises:
        InputError: If Jinja2 is missing.
        ValueError: If there is nothing to show, or the runs have different sentences.

    Example:
        >>> import torch
        >>> from tsallis.analysis import summarize_weights
        >>> weights = torch.tensor([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [0.0, 0.2, 0.8]])  # of one head
        >>> page = build_page([summarize_weights([weights.expand(1, 2, 3, 3)], ["where", "is", "it"])])
        >>> page.startswith("<!")
        True
    """
    if not (runs or sweep or densities or signals):
        raise ValueError("a report needs at least one of runs, sweep, densities and signals, got none")
    numbers = [[sentence.text.index for sentence in run.sentences] for run in runs]
    for run, own in zip(runs, numbers, strict=True):
        if own != numbers[0]:
            raise ValueError(
                f"all runs must have the same sentences, but those of {run.name} and {runs[0].name} differ"
            )
    count = sentences_that_fit(runs)
    parts = {
        "runs": [_run(replace(run, sentences=run.sentences[:count])) for run in runs],
        "comparisons": list(comparisons),
        "sweep": sweep and _sweep(sweep),
        "densities": list(densities),
        "signals": list(signals),
        "omitted_sentences": len(runs[0].sentences) - count if runs else 0,
    }
    weights = [
        (f"weights-{number}-{row}", encode_weights(sentence.weights))
        for number, run in enumerate(runs)
        for row, sentence in enumerate(run.sentences[:count])
    ]
    data = embed_json({"units": UNITS, **_tables(), **parts})
    return _render(title=title or _title([*runs, *densities], sweep), note=note, data=data, weights=weights)


def _render(**values: Any) -> Page:
    """Render the template of the page with values, styles and scripts."""
    try:
        import jinja2
    except ImportError as error:
        raise InputError("reports need Jinja2: pip install 'tsallis[toolkit]'") from error
    folder = resources.files("tsallis.report").joinpath("static")
    style, template, *scripts = (
        folder.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.html.jinja", *SCRIPTS, MAIN)
    )
    program = "\n".join(["'use strict';\n(() => {", *scripts, "})();\n"])
    page = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(template)
    text = page.render(style=style, script=program, script_hash=_digest(program), **values)
    return Page(text.encode("utf-8", "backslashreplace").decode("utf-8"))  # titles can contain lone surrogates


def sentences_that_fit(runs: Sequence[RunSummary]) -> int:
    """Return the number of sentences that fit on a page, at least one.

    The limit applies to the total number of non-zero weights of all runs.

    Args:
        runs: Summaries of the same sentences.
    """
    examples = [example for run in runs for head in run.heads for example in head.examples]
    examples += [example for run in runs for pair in run.contrasts for example in (pair.sparse, pair.dense)]
    total = sum(len(example.weights.values) for example in examples)
    for count, versions in enumerate(zip(*(run.sentences for run in runs), strict=True)):
        total += sum(len(weights.values) for sentence in versions for weights in sentence.weights)
        if count and total > NON_ZEROS:
            return count
    return len(runs[0].sentences) if runs else 0


def _title(runs: Sequence[RunSummary | DensitySummary], sweep: Sweep | None) -> str:
    if runs:
        return ", ".join(run.name for run in runs)
    return "Densities over time" if sweep is None else f"Scores against {sweep.setting}"


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _tables() -> dict[str, Any]:
    """Return the tables of sides, roles and scores for the page; scores have the same names as in logs."""
    roles = {name: {"threshold": role.threshold, "phrase": role.phrase} for name, role in ROLES.items()}
    scores = {name if name in VALUES else f"{ON_DEV}{name}": _score(score) for name, score in SCORES.items()}
    return {"sides": SIDES, "roles": roles, "scores": scores}


def _score(score: ScoreFormat) -> dict[str, str]:
    """Return the name and the format of a score in tables and figures."""
    title = score.title[0].upper() + score.title[1:] if score.title.split()[0].islower() else score.title
    return {"title": title, "format": score.brief or score.format}


def encode_weights(weights: Sequence[SparseWeights]) -> str:
    """Encode the non-zero weights of several attentions as text, in base64 of deflated bytes.

    The bytes are three 16-bit arrays, each with all low bytes before all high bytes: the number of non-zeros per row;
    the number of zeros skipped before each non-zero; each weight in thousandths, at least one.

    Raises:
        ValueError: If there are more than 65,535 keys.

    Example:
        >>> len(encode_weights([SparseWeights.of(np.eye(50)[None])])) < 200
        True
    """
    most_keys = max((part.shape[2] for part in weights), default=0)
    if most_keys > MAX_KEYS:
        raise ValueError(f"a page can show at most {MAX_KEYS:,} keys per row, got {most_keys:,}: shorten the texts")
    support = np.concatenate([np.diff(part.offsets) for part in weights] or [np.zeros(0, np.int64)])
    columns = np.concatenate([part.columns for part in weights] or [np.zeros(0, np.int32)]).astype(np.int64)
    values = np.concatenate([part.values for part in weights] or [np.zeros(0, np.float32)])
    firsts = np.cumsum(support) - support
    gaps = np.diff(columns, prepend=-1) - 1
    starts = firsts[support > 0]
    gaps[starts] = columns[starts]
    units = np.maximum(np.rint(values.astype(np.float64) * UNITS), 1)
    blob = b"".join(_byte_planes(array) for array in (support, gaps, units))
    deflate = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    return base64.b64encode(deflate.compress(blob) + deflate.flush()).decode("ascii")


def _byte_planes(numbers: NDArray[Any]) -> bytes:
    unsigned = numbers.astype("<u2")
    return (unsigned & 255).astype(np.uint8).tobytes() + (unsigned >> 8).astype(np.uint8).tobytes()


def embed_json(value: Any) -> str:
    r"""Return JSON that is safe inside a script element, because no data can end the element.

    Example:
        >>> embed_json({"text": "</script>", "log_prob": -math.inf, "third": 1 / 3})
        '{"text":"\\u003c/script>","log_prob":null,"third":0.333333333}'
    """
    text = json.dumps(_round(plain(value)), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    # Escape lone surrogates, which can't be encoded as UTF-8.
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _round(value: Any) -> Any:
    """Round floats to nine digits; infinities and NaN become None, because JSON has neither."""
    if isinstance(value, float):
        return float(f"{value:.9g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _round(part) for key, part in value.items()}
    return [_round(part) for part in value] if isinstance(value, list) else value


def _thin(history: Any) -> Any:
    """Shorten lists to at most `EVENTS` numbers, including the first and the last."""
    if isinstance(history, dict):
        return {name: _thin(values) for name, values in history.items()}
    if not isinstance(history, list) or len(history) <= EVENTS:
        return history
    return [history[int(number)] for number in np.linspace(0, len(history) - 1, EVENTS).round()]


def _sweep(sweep: Sweep) -> dict[str, Any]:
    content = sweep.to_dict()
    for point in content["points"]:
        point["steps"] = [_thin(steps) for steps in point["steps"]]
        point["curves"] = {name: [_thin(run) for run in runs] for name, runs in point["curves"].items()}
    return content


def _run(run: RunSummary) -> dict[str, Any]:
    histories = {"alphas": run.alphas, "densities": run.densities, "values": run.values}
    layers = [{name: getattr(layer, name) for name in ("kind", "layer", "heads", "causal")} for layer in run.layers]
    return {
        **vars(run),
        **{name: history and _thin(history.to_dict()) for name, history in histories.items()},
        "layers": layers,
        "outputs": run.outputs and {**run.outputs.to_dict(), "sparsity": run.outputs.sparsity},
        "heads": [_head(head) for head in run.heads],
        "contrasts": [_contrast(contrast) for contrast in run.contrasts],
        "sentences": [_sentence(sentence) for sentence in run.sentences],
    }


def _head(head: HeadSummary) -> dict[str, Any]:
    return {**vars(head), "histogram": head.histogram.counts, "examples": [_example(e) for e in head.examples]}


def _example(example: HeadExample) -> dict[str, Any]:
    return {**vars(example.text), "score": example.score, "weights": encode_weights([example.weights])}


def _contrast(contrast: ContrastSummary) -> dict[str, Any]:
    return {**vars(contrast), "sparse": _example(contrast.sparse), "dense": _example(contrast.dense)}


def _sentence(sentence: SentenceSummary) -> dict[str, Any]:
    return {
        **vars(sentence.text),
        "steps": [[step.gold, step.prob, step.support, step.words] for step in sentence.steps],
        "answer": sentence.answer,
        "tree": sentence.tree and _tree(sentence.tree),
    }


def _tree(tree: BeamTree) -> dict[str, Any]:
    edges = [[e.parent, e.node, e.symbol, e.log_prob, e.total, e.end] for e in tree.edges]
    outputs = tree.outputs or sum(edge.end for edge in tree.edges)
    return {**vars(tree), "edges": edges, "outputs": outputs}
