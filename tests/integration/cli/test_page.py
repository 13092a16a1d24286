"""The page in a browser: no errors, no requests, the same numbers as the functions, no accessibility problems."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from analysis_samples import labels_of
from integration.cli.conftest import SCREENS, accessibility_violations
from tsallis import entmax
from tsallis.analysis import Histogram, SignalDensity, draw_density, read_model, summarize_attention, summarize_weights
from tsallis.analysis.histories import ValueHistory
from tsallis.analysis.summary_records import DensityExample
from tsallis.continuous import Gaussian, TruncatedParabola, TruncatedParaboloid
from tsallis.models import TransformerSeq2Seq
from tsallis.report.page import build_page
from tsallis.toolkit.data.corpus import Corpus
from tsallis.toolkit.data.packing import TextCorpus
from tsallis.toolkit.data.vocabulary import Vocabulary
from tsallis.toolkit.run_analysis import Options, SweepRun, summarize, sweep
from tsallis.toolkit.training.run_folder import Run, build_model

pytest.importorskip("playwright")
pytest.importorskip("axe_playwright_python.sync_playwright")

VIEWS = ("overview", "outputs", "wrong", "sentence", "heads", "contrasts", "training")


class Visit:
    """A page in a browser, and the problems that occurred in it."""

    def __init__(self, browser: Any, path: Path, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.tab, self.path, self.faults = self.context.new_page(), path, []
        self.tab.on("pageerror", lambda error: self.faults.append(str(error)))
        self.tab.on("console", lambda message: self.faults.append(message.text))
        self.tab.on("request", lambda request: self.faults.append(request.url) if self.is_foreign(request.url) else 0)

    def is_foreign(self, url: str) -> bool:
        return not url.startswith(("data:", "blob:", self.path.as_uri()))

    def open(self, view: str) -> Any:
        self.tab.goto(f"{self.path.as_uri()}#{view}")
        self.tab.wait_for_selector("h1")
        return self.tab

    def check_accessibility(self) -> None:
        assert accessibility_violations(self.tab) == [], self.tab.url

    def check_views(self, *views: str) -> Any:
        """Open views and check their accessibility; return the tab with the last one."""
        for view in views:
            self.open(view).wait_for_selector(f'main[data-view="{view}"] h1')
            self.check_accessibility()
        return self.tab


def cells_of(tab: Any, rows: str, *columns: int) -> list[list[str]]:
    """Return the texts of the cells of each row in these columns."""
    cells = ", ".join(f"row.cells[{column}].innerText" for column in columns)
    return tab.eval_on_selector_all(rows, f"rows => rows.map(row => [{cells}])")


@pytest.fixture
def visits(browser: Any) -> Iterator[Callable[..., Visit]]:
    """Return a function that opens pages; problems in a page fail the test."""
    made: list[Visit] = []

    def make(path: Path, **options: Any) -> Visit:
        made.append(Visit(browser, path, **options))
        return made[-1]

    yield make
    for visit in made:
        visit.context.close()
        assert visit.faults == []


@pytest.fixture
def visit(visits: Callable[..., Visit], report: tuple[Path, Any], request: pytest.FixtureRequest) -> Visit:
    return visits(report[0], **getattr(request, "param", {}))


def test_every_view_opens_by_its_link(visit: Visit) -> None:
    tab = visit.open("outputs")
    for view in VIEWS:
        tab.click(f'nav a[href="#{view}"]')
        tab.wait_for_selector(f'main[data-view="{view}"] h1')
        assert tab.get_attribute(f'nav a[href="#{view}"]', "aria-current") == "page"
        assert tab.evaluate("document.activeElement.tagName") == "H1"


def test_head_map_labels_are_not_cut_off(visit: Visit) -> None:
    texts = visit.open("overview").locator("svg.map text.kind")
    beyond = "t => t.getBoundingClientRect().right - t.ownerSVGElement.getBoundingClientRect().right"
    assert texts.count() > 0 and max(text.evaluate(beyond) for text in texts.all()) <= 0


def test_heads_table_is_sorted_and_matches_records(visit: Visit, report: tuple[Path, Any]) -> None:
    tab = visit.open("heads")
    tab.click('[data-key="density"]')
    for ascending in (False, True):
        if ascending:
            tab.click('[data-key="density"]')
        shown = cells_of(tab, "tbody tr", 2)
        heads = [head for run in report[1] for head in run["heads"]]
        expected = sorted((head["density"] for head in heads), reverse=not ascending)
        for (density,), exact in zip(shown, expected, strict=True):
            margin = 1 if density.startswith(">") else 0.5
            assert abs(float(density.removesuffix(" %").strip("<>")) - 100 * exact) <= margin + 1e-9
    assert tab.get_attribute("th[aria-sort]", "aria-sort") == "ascending"
    tab.select_option("main select >> nth=0", "cross")
    assert len(tab.query_selector_all("tbody tr")) == sum(head["kind"] == "cross" for head in heads)


def test_head_page_shows_values_of_its_record(visit: Visit, report: tuple[Path, Any]) -> None:
    head = report[1][0]["heads"][3]
    tab = visit.open(f"head/0/{head['kind']}/{head['layer']}/{head['head']}")
    text = tab.inner_text("main")
    assert f"{head['alpha']:.2f}" in text and head["title"].split(" head ", 1)[1][2:] in text[:500].lower()
    tab.wait_for_selector(".example svg")
    assert len(tab.query_selector_all("figure")) >= 3


def test_explorer_weights_match_records(visit: Visit, report: tuple[Path, Any]) -> None:
    """The weights appear in a table, as cells and as lines; zeros are not shown."""
    run = report[1][0]
    tab = visit.open("sentence/1/0/cross/1/0")
    tab.wait_for_selector(".panel:first-child .matrix .tone")
    number = next(i for i, layer in enumerate(run["layers"]) if (layer["kind"], layer["layer"]) == ("cross", 1))
    weights = run["sentences"][1]["weights"][number]
    heads, queries, keys = weights["shape"]
    dense = np.zeros((heads * queries, keys))
    rows = np.repeat(np.arange(heads * queries), np.diff(weights["offsets"]))
    dense[rows, weights["columns"]] = weights["values"]
    first = dense[:queries]
    pieces = "paths => paths.map(path => path.getAttribute('d').split('M').length - 1).reduce((a, b) => a + b, 0)"
    for drawing in (".matrix .tone", ".lines .thread"):
        assert tab.eval_on_selector_all(f".panel:first-child {drawing}", pieces) == (first > 0).sum()
    tab.click(".panel:first-child summary")
    tab.wait_for_selector(".panel:first-child tbody tr")
    shown = cells_of(tab, ".panel:first-child tbody tr", 1, 2)
    for (count, listed), row in zip(shown, first, strict=True):
        assert count == f"{(row > 0).sum()} of {keys}"
        values = [part.rpartition(" ")[2] for part in listed.split(", ")]
        for value, weight in zip(values, row[row > 0].tolist(), strict=True):
            bound = float(value.removeprefix("<"))
            assert weight < bound if value.startswith("<") else weight == pytest.approx(bound, abs=0.0005 + 1e-9)


def test_the_explorer_follows_keys_and_controls(visit: Visit) -> None:
    tab = visit.open("sentence")
    tab.wait_for_selector(".panel svg.lines")
    tab.focus(".panel svg.lines")
    tab.keyboard.press("ArrowDown")
    assert " keys: " in tab.inner_text(".rowtext") and tab.query_selector(".row.on")
    tab.check("input[type=radio] >> nth=2", force=True)
    tab.wait_for_selector(".panel svg.matrix")
    assert tab.query_selector(".panel svg.lines") is None
    tab.wait_for_selector(".thumb")
    tab.click(".thumb >> nth=2")
    tab.wait_for_selector(".panel svg.matrix")


def test_steps_and_trees_match_records(visit: Visit, report: tuple[Path, Any]) -> None:
    sentences = report[1][0]["sentences"]
    number = next(i for i, sentence in enumerate(sentences) if i > 1 and sentence["tree"]["edges"])
    tab, sentence = visit.open(f"outputs/{number}"), sentences[number]
    cells = cells_of(tab, "section:nth-of-type(1) .steps tbody tr", 2, 3)[: len(sentence["steps"])]
    for (prob, support), step in zip(cells, sentence["steps"], strict=True):
        assert support == str(step["support"])
        assert (prob == "impossible") == (step["prob"] == 0)
        if prob[0] == ".":
            assert float(prob) == pytest.approx(step["prob"], abs=5e-4)
    names = {"complete": "Proved complete", "optimal": "Proved optimal", "bounded": "Bounded", "none": "Nothing proved"}
    assert tab.inner_text(".certificate >> nth=0").startswith(names[sentence["tree"]["certificate"]])
    ends = sum(edge["end"] for edge in sentence["tree"]["edges"])
    assert len(tab.query_selector_all("section:nth-of-type(1) .tree .value")) >= ends > 0


def test_contrasts_match_records(visit: Visit, report: tuple[Path, Any]) -> None:
    tab = visit.open("contrasts")
    run = report[1][0]
    if run["contrasts"]:
        tab.wait_for_selector(".pair svg")
        pair = run["contrasts"][0]
        title = tab.inner_text(".pair >> nth=0").lower()
        assert f"{pair['kind']} layer {pair['layer'] + 1} head {pair['head'] + 1}" in title
        shown = [int(number) for number in re.findall(r"(?:sparse|dense): density (\d+) %", title)]
        assert shown == pytest.approx([100 * pair[side]["score"] for side in ("sparse", "dense")], abs=0.5)
    rows = cells_of(tab, "table.contrasts >> nth=0 >> tbody tr", 2)
    assert rows and {text for (text,) in rows} == {"0.000"}  # the page compares a run with itself


def test_curves_match_the_training_log(visit: Visit, report: tuple[Path, Any]) -> None:
    tab = visit.open("training")
    titles = tab.eval_on_selector_all("figcaption", "captions => captions.map(c => c.innerText)")
    assert any("Norm of the scores" in title for title in titles)
    loss = report[1][0]["values"]["values"]["dev_loss"]
    shown = tab.eval_on_selector_all("figure >> nth=0 >> polyline title", "titles => titles.map(t => t.textContent)")
    assert len(shown) == 2 and shown[0].endswith(f": {loss[-1]:.2f}")


def test_curves_are_drawn_over_updates_or_over_time(visit: Visit) -> None:
    tab = visit.open("training")
    axis = "figure >> nth=0 >> text.name >> nth=0"
    assert tab.text_content(axis) == "update"
    tab.check("fieldset.segments input >> nth=1", force=True)
    assert tab.text_content(axis) == "minutes of training"
    assert len(tab.query_selector_all("figure >> nth=0 >> polyline")) == 2
    tab.check("fieldset.segments input >> nth=0", force=True)
    assert tab.text_content(axis) == "update"


def test_a_figure_is_saved_as_svg(visit: Visit, tmp_path: Path) -> None:
    import xml.etree.ElementTree

    tab = visit.open("training")
    with tab.expect_download() as download:
        tab.click(".save >> nth=0")
    download.value.save_as(tmp_path / "figure.svg")
    root = xml.etree.ElementTree.parse(tmp_path / "figure.svg").getroot()
    lines = root.findall(".//{http://www.w3.org/2000/svg}polyline")
    assert lines and all(line.get("stroke", "").startswith("rgb") for line in lines)


@pytest.mark.parametrize("visit", SCREENS, indirect=True)
@pytest.mark.parametrize("view", [*VIEWS, "head/0/encoder/0/0"])
def test_views_have_no_accessibility_violations(visit: Visit, view: str) -> None:
    tab = visit.open(view)
    tab.wait_for_timeout(150)
    visit.check_accessibility()
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.fixture(scope="module")
def densities(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a page of densities over words, images and time."""
    line = draw_density(TruncatedParabola(torch.tensor(0.4), torch.tensor(0.005)))
    plane = draw_density(TruncatedParaboloid(torch.tensor([0.5, 0.4]), 0.01 * torch.eye(2)))
    words = ("a", "fine", "film")
    examples = (
        DensityExample(0, "a fine film", words, "pos", "neg", 0.75, (0.0, 1.0, 0.0), None, (0.1, 0.8, 0.1), line, None),
        DensityExample(1, "where?", (), "here", "here", 1.0, (0.5, 0.0, 0.5, 0.0), (2, 2), (0.25,) * 4, plane, None),
    )
    summary = replace(labels_of(*examples), zeros=0.5, size=0.3, sizes=Histogram.of([0.4, 0.5], 20))
    gaussian = draw_density(Gaussian(torch.tensor(0.5), torch.tensor(0.01)))
    signals = [SignalDensity("pulse", 0, line), SignalDensity("pulse", 1, gaussian), SignalDensity("age", 0, line)]
    path = tmp_path_factory.mktemp("densities") / "page.html"
    path.write_text(build_page([], densities=[summary], signals=signals), encoding="utf-8")
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_densities_are_drawn_with_their_supports(visits: Callable[..., Visit], densities: Path, scheme: str) -> None:
    visit = visits(densities, color_scheme=scheme)
    tab = visit.open("densities")
    assert len(tab.query_selector_all("svg rect.bars")) == 1  # zero weights have no bars
    assert len(tab.query_selector_all("svg .support")) == 1 and "neg (.750), correct: pos" in tab.inner_text("main")
    tab.click("summary")
    tab.wait_for_selector("table.weights tbody tr")
    rows = cells_of(tab, "table.weights tbody tr", 0, 1, 2)
    assert rows == [["a", "0", ".100"], ["fine", "1.000", ".800"], ["film", "0", ".100"]]
    visit.check_accessibility()
    tab.select_option("main select >> nth=0", "1")
    assert len(tab.query_selector_all("svg .outline")) == 1 and len(tab.query_selector_all("svg .region.empty")) == 2
    visit.check_accessibility()
    tab = visit.open("signals")
    assert len(tab.query_selector_all("svg .support")) == 3 and len(tab.query_selector_all("svg .support.dashed")) == 1
    visit.check_accessibility()


@pytest.fixture(scope="module")
def sweep_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    scores = {1.0: (20.0, 21.0), 1.5: (25.0,), 2.0: (22.0, 24.0)}
    runs = [
        SweepRun(
            f"{alpha}-{seed}",
            {"training.seed": seed, "model.output_alpha": alpha},
            ValueHistory((10, 20), {"dev_loss": (2.0, 20 / score), "dev_bleu": (10.0, score)}),
        )
        for alpha, values in scores.items()
        for seed, score in enumerate(values)
    ]
    path = tmp_path_factory.mktemp("sweep") / "page.html"
    path.write_text(build_page([], sweep=sweep(runs)), encoding="utf-8")
    return path


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_a_sweep_shows_runs_and_means(visits: Callable[..., Visit], sweep_page: Path, scheme: str, width: int) -> None:
    visit = visits(sweep_page, color_scheme=scheme, viewport={"width": width, "height": 800})
    tab = visit.open("sweep")
    assert "5 runs that differ in one setting, the alpha of the output" in tab.inner_text("main")
    assert len(tab.query_selector_all("figure >> nth=0 >> circle")) == 5
    assert len(tab.query_selector_all("figure >> nth=0 >> line.threshold")) == 2  # deviations of two seeds each
    rows = [" | ".join(row) for row in cells_of(tab, "tbody tr", 0, 1, 2)]
    assert rows == ["1 | 2 | 20.500 ± 0.707", "1.5 | 1 | 25.000", "2 | 2 | 23.000 ± 1.414"]
    visit.check_accessibility()
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.fixture(scope="module")
def attention_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    vocabulary = Vocabulary(["▁a", "▁b", "c", "?"])
    torch.manual_seed(0)
    sizes = {"d_model": 16, "heads": 2, "layers": 2, "d_ff": 16}
    model = TransformerSeq2Seq(8, 8, **sizes, attention="learned").eval()
    batches = list(Corpus([[4, 5, 6, 7]] * 5 + [[5, 4, 6]] * 4, [[5, 6]] * 9).batches(4))
    reader = read_model(model, vocabulary, vocabulary)
    path = tmp_path_factory.mktemp("attention") / "page.html"
    summary = summarize_attention(model, reader, batches, name="a model", corpus="nine sentences")
    path.write_text(build_page([summary]), encoding="utf-8")
    return path


def test_attention_only_page_has_no_outputs_or_training(visits: Callable[..., Visit], attention_page: Path) -> None:
    visit = visits(attention_page)
    tab = visit.open("overview")
    links = tab.eval_on_selector_all("nav a", "links => links.map(link => link.innerText)")
    assert links == ["Overview", "Attention", "Heads", "Contrasts", "Layers"]
    tab.click("text=All settings and numbers")
    facts = tab.inner_text("details table.facts")
    assert "parameters" in facts and "updates" not in facts and "Possible symbols" not in facts
    visit.check_views("overview", *VIEWS[3:])


@pytest.fixture(scope="module")
def texts_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a page on a language model: its texts have no source, and there is no search."""
    folder, vocabulary = tmp_path_factory.mktemp("texts"), Vocabulary(["▁a", "▁b"])
    sizes = {"vocab": 6, "d_model": 8, "heads": 2, "layers": 1, "d_ff": 8}
    description = {"class": "language", "arguments": sizes}
    (folder / "model.json").write_text(json.dumps(description))
    torch.manual_seed(0)
    run = Run(folder, build_model(description).eval(), vocabulary, vocabulary, {"task": "language"}, {})
    corpus = TextCorpus([[], []], [[4, 5, 4], [5, 4]])
    path = folder / "page.html"
    path.write_text(build_page([summarize(run, corpus, "two texts", Options(sentences=2))]), encoding="utf-8")
    return path


def test_language_model_page_shows_steps_and_no_search(visits: Callable[..., Visit], texts_page: Path) -> None:
    visit = visits(texts_page)
    tab = visit.check_views("overview", "heads", "sentence", "contrasts", "outputs")
    assert len(tab.query_selector_all("table.steps tbody tr")) == 4  # three symbols and the end
    text = tab.inner_text("main")
    assert "Source" not in text and "search" not in text
    tab = visit.open("sentence")
    assert tab.locator("dl.lines dt").all_text_contents() == ["Text"]  # no source, and no answer


def weights_of(heads: int, queries: int, keys: int, causal: bool = False) -> torch.Tensor:
    scores = torch.randn(1, heads, queries, keys, generator=torch.Generator().manual_seed(heads))
    hidden = torch.ones(queries, keys).triu(1).bool() & causal
    weights = entmax(scores.masked_fill(hidden, -torch.inf), 1.5)
    weights[0, 0] = torch.eye(queries, keys)  # exact zeros, and a role in self-attention
    return weights.to(torch.bfloat16)


@pytest.fixture
def weight_page(tmp_path: Path) -> Path:
    """Write a page from tensors and tokens only; the second layer is missing."""
    summary = summarize_weights(
        encoder_attention=[weights_of(2, 5, 5), None, weights_of(3, 5, 5)],
        decoder_attention=[weights_of(2, 4, 4, causal=True), None, weights_of(3, 4, 4, causal=True)],
        cross_attention=[weights_of(2, 4, 5), None, weights_of(3, 4, 5)],
        encoder_tokens=["▁die", "▁Lampe", "n", "▁brennen", "</s>"],
        decoder_tokens=["<s>", "▁lamps", "▁burn", "."],
    )
    (tmp_path / "page.html").write_text(build_page([summary]), encoding="utf-8")
    return tmp_path / "page.html"


def test_weights_only_page_has_views_that_need_no_model(visits: Callable[..., Visit], weight_page: Path) -> None:
    shares = {"encoder": ["1 of 5"] * 5, "decoder": [f"1 of {i}" for i in (1, 2, 3, 4)], "cross": ["1 of 5"] * 4}
    visit = visits(weight_page)
    tab = visit.open("overview")
    assert tab.locator("nav a").all_text_contents() == ["Overview", "Attention", "Heads", "Layers"]
    tab.click("text=All settings and numbers")
    tab.wait_for_selector("details table.facts tbody th")
    facts = tab.locator("details table.facts tbody th").all_text_contents()
    assert facts == [*(f"Density, {name}" for name in shares), "Heads with a role", "Rare tokens"]
    assert tab.locator("svg.map text.tick").all_text_contents()[:2] == ["layer 1", "layer 3"]
    assert tab.locator("svg.map .cell").count() == 5 * len(shares)
    assert "lpha" not in tab.inner_text("main") and "NaN" not in tab.inner_text("main")
    for name, counts in shares.items():
        tab = visit.open(f"sentence/0/0/{name}/2/0")
        assert tab.locator("dl.lines dt").all_text_contents() == ["Source", "Target"]
        texts = [text.strip() for text in tab.locator("dd").all_text_contents()]
        assert texts == ["die Lampen brennen", "lamps burn."]
        tab.wait_for_selector(".panel:first-child svg.matrix")
        tab.click(".panel:first-child summary")
        tab.wait_for_selector(".panel:first-child tbody tr")
        assert tab.locator(".panel:first-child td.number").all_text_contents() == counts
        tab = visit.open(f"head/0/{name}/2/0")
        tab.wait_for_selector(".example svg")
        assert "lpha" not in tab.inner_text("main")
    tab = visit.check_views("overview", "heads", "sentence", "training")
    titles = tab.locator("figure >> nth=-2 >> rect title").all_text_contents()  # densities by layer
    assert titles and {title.split(" head ")[0] for title in titles} == {f"{name} layer {n}" for n in (1, 3)}
    ticks = tab.locator("figure >> nth=-2 >> text.tick[text-anchor=middle]").all_text_contents()
    assert ticks == ["1", "2", "3"]


@pytest.mark.parametrize("visit", [{"color_scheme": "dark"}], indirect=True)
def test_printed_page_is_white_and_has_no_controls(visit: Visit) -> None:
    """Printed pages must be white without controls, even in dark mode, and contain all rows of long tables."""
    tab = visit.open("heads")
    tab.click("#theme")
    tab.click("#theme")
    colour = "getComputedStyle(document.body).backgroundColor"
    assert tab.evaluate(colour) != "rgb(255, 255, 255)"
    tab.emulate_media(media="print")
    assert tab.evaluate(colour) == "rgb(255, 255, 255)"
    assert not any(tab.is_visible(part) for part in ("header", ".controls", ".save"))
    assert tab.locator(".scroll").first.evaluate("table => table.scrollHeight <= table.clientHeight")


@pytest.mark.parametrize("visit", [{"viewport": {"width": 390, "height": 800}}], indirect=True)
def test_narrow_screens_show_the_current_link_and_symbols(visit: Visit) -> None:
    tab = visit.open("outputs")
    for part in ('nav a[aria-current="page"]', ".steps tbody tr:first-child .words span:first-child"):
        box = tab.locator(part).first.bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= 390, part
