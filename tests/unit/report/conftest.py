"""Reports on small untrained runs in a browser, and functions of the page's program."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import torch

from analysis_samples import SRC, TGT, corpus, transformer
from tsallis.analysis import RunSummary
from tsallis.toolkit.data.corpus import Corpus
from tsallis.toolkit.run_analysis import Options, RunInput, summarize_runs
from tsallis.toolkit.training.run_folder import Run

Open = Callable[..., Any]


def summaries_of(folder: Path, data: Corpus, names: tuple[str, ...] = ("one", "other"), **arguments: Any) -> Any:
    """Return summaries and comparisons of runs, with different parameters for each name."""
    inputs = []
    for seed, name in enumerate(names):
        torch.manual_seed(seed)
        model = transformer(**arguments).eval()
        path = folder / name
        path.mkdir()
        (path / "model.json").write_text(json.dumps({"class": "transformer", "arguments": model.arguments}))
        inputs.append(RunInput(Run(path, model, SRC, TGT, {"task": "translation"}, {}), data, "samples"))
    return summarize_runs(inputs, Options(beam_size=2))


@pytest.fixture(scope="module")
def summaries(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[RunSummary], Any]:
    """Return summaries of two runs on the same sentences, and their comparisons."""
    made: tuple[list[RunSummary], Any] = summaries_of(tmp_path_factory.mktemp("runs"), corpus(5))
    return made


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Iterator[Open]:
    """Open the text of a page in a browser; the test fails if the page raises or logs an error."""
    faults: list[str] = []
    contexts = []

    def start(text: str, view: str = "", **options: Any) -> Any:
        path = tmp_path / f"page-{len(contexts)}.html"
        path.write_text(text, encoding="utf-8")
        contexts.append(browser.new_context(**options))
        tab = contexts[-1].new_page()
        tab.on("pageerror", lambda error: faults.append(str(error)))
        tab.on("console", lambda message: faults.append(message.text))
        tab.goto(f"{path.as_uri()}#{view}")
        return tab

    yield start
    for context in contexts:
        context.close()
    assert faults == []


@pytest.fixture
def calculate(browser: Any) -> Iterator[Callable[..., Any]]:
    """Return a function that evaluates expressions with the functions of `dom.js`, `charts.js` and `tree.js`."""
    tab = browser.new_page()
    folder = resources.files("tsallis.report").joinpath("static")
    program = "\n".join(folder.joinpath(f"{name}.js").read_text(encoding="utf-8") for name in ("dom", "charts", "tree"))

    def run(expression: str, argument: Any = None) -> Any:
        return tab.evaluate(f"(it) => {{ const DATA = {{ units: 1000 }};\n{program}\nreturn {expression}; }}", argument)

    yield run
    tab.close()
