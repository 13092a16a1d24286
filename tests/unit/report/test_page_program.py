"""The page of a report in a browser: the effects of its controls, and the texts of its figures."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from analysis_samples import SRC, TGT, labels_of, transformer
from tsallis.analysis import draw_density, read_model, summarize_attention, summarize_weights
from tsallis.analysis.contrasts import ModelContrast, WordContrast
from tsallis.analysis.histories import HeadHistory, ValueHistory
from tsallis.analysis.summary_records import ComparisonSummary, ContrastSummary, DensityExample, SearchedAnswer
from tsallis.analysis.tree import BeamTree, Edge
from tsallis.continuous import Gaussian
from tsallis.models import TransformerSeq2Seq
from tsallis.report.page import build_page
from tsallis.toolkit.data.corpus import Corpus
from tsallis.toolkit.data.vocabulary import Vocabulary
from tsallis.toolkit.run_analysis import SweepRun, sweep

from .conftest import Open

Calculate = Callable[..., Any]


@pytest.fixture
def sentences(open_page: Open, summaries: Any) -> Any:
    tab = open_page(build_page(*summaries), "sentence")
    tab.wait_for_selector(".panel svg.lines")
    tab.wait_for_selector(".thumb")
    return tab


def test_the_focus_stays_on_the_control_that_was_used(sentences: Any) -> None:
    for selector in (".panel:first-child select", "section .head select"):
        for place in (0, 1):  # the choice of a run, then of a head or a kind
            control = sentences.locator(f"{selector} >> nth={place}")
            control.focus()
            control.select_option(index=1)
            assert control.evaluate("node => node === document.activeElement"), (selector, place)
    assert "other, encoder layer 1 head 2" in sentences.inner_text(".panel:first-child figure >> nth=0").lower()
    heads = sentences.locator(".panel:first-child select >> nth=1").evaluate("node => node.value")
    assert heads.startswith("1/")  # heads of the other run


def test_removing_a_panel_focuses_a_remaining_panel(sentences: Any) -> None:
    sentences.click("text=Add a head")
    for left in (2, 1):
        sentences.click(".panel:last-child >> text=Remove")
        assert sentences.locator(".panel").count() == left
        inside = "node => node.contains(document.activeElement)"
        assert sentences.locator(f".panel >> nth={left - 1}").evaluate(inside)
    sentences.click(".thumb >> nth=2")
    assert sentences.locator(".panel >> nth=0").evaluate("node => node.contains(document.activeElement)")


def test_a_notebook_shows_the_page(open_page: Open, summaries: Any) -> None:
    """Links between views change only the frame, and the notebook stays in place."""
    page = build_page(*summaries)
    notebook = open_page(f"<!doctype html><title>Notebook</title><p>In [1]:</p>{page._repr_html_()}")
    (frame,) = (frame for frame in notebook.frames if frame.parent_frame is not None)
    for view, selector in (("Heads", "table"), ("Attention", ".panel svg.lines"), ("Heads", "table")):
        frame.click(f"nav a:text-is('{view}')")
        frame.wait_for_selector(selector)
    name = frame.inner_text("th a >> nth=0")  # name of a head
    frame.click("th a >> nth=0")
    frame.wait_for_selector(".crumbs")
    assert frame.inner_text("h1").lower() == name.lower().removeprefix("one: ")
    assert notebook.inner_text("p") == "In [1]:" and len(notebook.frames) == 2


def test_the_last_selected_sentence_is_drawn(sentences: Any, summaries: Any) -> None:
    sentences.locator(".controls select >> nth=0").select_option(index=3)
    sentences.locator(".controls select >> nth=0").select_option(index=1)
    sentences.wait_for_timeout(200)
    assert sentences.locator(".panel:first-child figure").count() == 2
    head = summaries[0][0].sentences[1].text
    assert sentences.locator(".panel:first-child .matrix .row").count() == len(head.target)


SHOWN = [
    (0.0, None, "0"),
    (0.0, -912.0, "<.001"),
    (2e-9, math.log(2e-9), "<.001"),
    (0.001, math.log(0.001), ".001"),
    (0.25, math.log(0.25), ".250"),
    (0.9999, math.log(0.9999), ">.999"),
    (1.0, 0.0, "1"),
]


@pytest.mark.parametrize(("value", "log", "text"), SHOWN)
def test_only_exact_probabilities_are_shown_as_0_or_1(
    calculate: Calculate, value: float, log: float | None, text: str
) -> None:
    assert calculate("probability(it[0], it[1])", [value, log]) == text


def test_the_tree_shows_underflowing_probabilities(calculate: Calculate) -> None:
    edges = [[0, 1, "a", -900.0, -900.0, True], [0, 2, "b", -0.1, -0.1, False], [2, 3, "c", -1000.0, -1000.1, True]]
    text = calculate("treeDrawing(it).textContent", edges)
    assert "= <.001" in text and "= 0" not in text
    blank = [[0, 1, " ", -1.0, -1.0, False], [1, 2, "</s>", -1.0, -2.0, True], [0, 3, "</s>", -1.0, -1.0, True]]
    labels = calculate("[...treeDrawing(it).querySelectorAll('.word')].map((one) => one.textContent)", blank)
    assert sorted(labels) == ["(end)", "␣"]


VISIBLE = [
    ("▁word", "word"),
    ("▁", "▁"),
    (" ", "␣"),
    ("\u00a0", "␣"),
    ("▁ ", "␣"),
    ("\t", "⇥"),
    ("\ufeff", "U+FEFF"),
    ("\n", "⏎"),
    ("\u202e", "U+202E"),
    ("\u200d", "U+200D"),
    ("\u00ad", "U+00AD"),
    ("a\u0001b", "aU+0001b"),
    ("می\u200cخواهم", "می\u200cخواهم"),
    ("<tag:V.PTCP>", "V.PTCP"),
    ("<lang:english>", "english"),
]


@pytest.mark.parametrize(("piece", "text"), VISIBLE)
def test_every_symbol_has_a_visible_name(calculate: Calculate, piece: str, text: str) -> None:
    assert calculate("spell(it)", piece) == text


CERTIFICATES = [
    ("bounded", 0.1234, {}, "The probability of each missing output is at most .124."),
    ("bounded", 1e-9, {}, "The probability of each missing output is at most .001."),
    ("bounded", 0.5, {"length_penalty": 0.6}, " a better output may be missing."),
    ("optimal", 0.5, {"length_penalty": 0.6}, " better score (log-probability / length^0.6) than the best one."),
    ("optimal", 0.5, {"min_length": 2}, " of at least 2 symbols is more probable than the best one."),
    ("complete", 0.5, {"min_length": 1}, " 1 symbol. Every other one has a probability of exactly zero."),
]


@pytest.mark.parametrize(("kind", "bound", "limits", "text"), CERTIFICATES)
def test_certificates_hold_within_the_limits_of_the_search(
    calculate: Calculate, kind: str, bound: float, limits: dict[str, Any], text: str
) -> None:
    assert calculate("certificateText(...it)[1]", [kind, math.log(bound), limits]).endswith(text)


def test_symbols_that_are_not_listed_are_counted(calculate: Calculate) -> None:
    words = [["a", 0.5], ["b", 0.25], ["c", 0.125]]
    assert calculate("shares(it, 'a', 5).querySelector('.words').lastChild.textContent", words) == "and 2 more"


TICKS = [
    (100_000, 102_000, ["100k", "100.5k", "101k", "101.5k", "102k"]),
    (0, 2e9, ["0", "500M", "1G", "1.5G", "2G"]),
    (1000, 1002, ["1000", "1000.5", "1001", "1001.5", "1002"]),
    (0.1, 0.3, ["0.1", "0.15", "0.2", "0.25", "0.3"]),
]


@pytest.mark.parametrize(("low", "high", "labels"), TICKS)
def test_ticks_have_different_labels(calculate: Calculate, low: float, high: float, labels: list[str]) -> None:
    assert calculate("ticks(it[0], it[1], 4).map(label)", [low, high]) == labels


def test_percentages_do_not_round_to_0_or_100(calculate: Calculate) -> None:
    shares = [0, 1e-6, 0.5, 0.9996, 1, 1.2]
    texts = ["0.0 %", "<0.1 %", "50.0 %", ">99.9 %", "100.0 %", "120.0 %"]
    assert calculate("it.map((x) => percent(x, 1))", shares) == texts
    assert calculate("it.map((x) => percent(x))", [0.994, 0.996]) == ["99 %", ">99 %"]


def test_sentence_text_joins_characters_and_subwords(calculate: Calculate) -> None:
    assert calculate("sentenceText(it)", ["𝒳", "𝒴", "z"]) == "𝒳𝒴z"
    assert calculate("sentenceText(it)", ["V", "PST"]) == "V PST"
    assert calculate("sentenceText(it)", ["<tag:V>", "<tag:PST>", "a", "d", "d"]) == "add (V PST)"
    pieces = ["[CLS]", "▁play", "ing", "▁?", "[SEP]", "▁no", "<sep>"]
    assert calculate("sentenceText(it)", pieces) == "[CLS] playing ? [SEP] no <sep>"


def long_history(events: int) -> HeadHistory:
    values = 1 + np.linspace(0, 1, events * 4).reshape(events, 2, 2) ** 2
    return HeadHistory(tuple(range(events)), {"encoder": values, "decoder": values, "cross": values})


def test_long_histories_are_drawn_with_500_points(open_page: Open, summaries: Any) -> None:
    run = replace(summaries[0][0], alphas=long_history(20_000), densities=long_history(3))
    text = build_page([run])
    assert len(text) < 4_000_000
    tab = open_page(text, "training")
    points = tab.locator("figure polyline >> nth=0").get_attribute("points").split()
    assert len(points) == 500 and tab.inner_text("h1") == "Training"
    title = tab.locator("figure polyline title >> nth=3").text_content()
    assert title == "layer 2 head 2: 2.00"  # the chart includes the last event


def test_a_chart_draws_200000_points(calculate: Calculate) -> None:
    lines = "[{ name: 'a', values: Array.from({ length: 200000 }, (_, i) => i), colour: 'red' }]"
    chart = (
        f"lineChart(Array.from({{ length: 200000 }}, (_, i) => i), {lines}, {{}}).querySelectorAll('polyline').length"
    )
    assert calculate(chart) == 1


# Two validations, the name in every table and figure, and the last value as displayed.
SCORES = {
    "dev_loss": ((5.0, 1.98765), "Loss per symbol", "1.988"),
    "dev_bleu": ((9.0, 34.5678), "BLEU", "34.57"),
    "dev_chrf": ((9.0, 55.4321), "chrF", "55.43"),
    "dev_exact": ((0.01, 0.0876), "Equal to the reference", "8.8 %"),
    "dev_macro_accuracy": ((0.2, 0.81234), "Accuracy, mean of languages", "81.2 %"),
    "dev_levenshtein": ((1.1, 0.31234), "Edit distance", "0.312"),
    "dev_epsilon_perplexity": ((200.0, 123.456), "Epsilon-perplexity", "123.5"),
}
OTHERS = {
    "logit_norm": "Norm of the scores",
    "output_threshold": "Output threshold",
    "output_support": "Possible symbols per step",
    "attention_support": "Attended positions per step",
}


def test_views_use_the_score_titles_and_formats(open_page: Open, summaries: Any) -> None:
    values = {name: score[0] for name, score in SCORES.items()} | dict.fromkeys(OTHERS, (2.0, 3.0)) | {"dev_f1": (0, 1)}
    metrics = {name: history[-1] for name, history in values.items()}
    run = replace(summaries[0][0], values=ValueHistory((1, 2), values), metrics=metrics, step=2)
    swept = []
    for alpha in (1.0, 1.5, 2.0):
        scores = {name: (history[-1] * alpha,) for name, history in values.items()}
        swept.append(SweepRun(f"{alpha}", {"model.output_alpha": alpha}, ValueHistory((1,), scores, None, "chrf")))
    tab = open_page(build_page([run], sweep=sweep(swept)), "overview")
    first = tab.inner_text("table.facts >> nth=0 >> tbody tr >> nth=0")
    assert first.split() == ["BLEU", "on", "the", "development", "set", "34.57"]
    assert tab.locator("table.facts >> nth=0 >> tbody tr").count() <= 6
    tab.click("text=All settings and numbers")
    cells = tab.eval_on_selector_all(
        "details table.facts tbody tr", "rows => rows.map(r => [...r.cells].map(c => c.innerText))"
    )
    facts = [(title, value) for title, value in cells if title.endswith(", development set")]
    assert sorted(facts) == sorted((f"{title}, development set", value) for _, title, value in SCORES.values())

    tab.click("nav a >> text=Training")
    tab.wait_for_selector("main h1 >> text=Training")
    titles = [*(title for _, title, _ in SCORES.values()), *OTHERS.values()]
    captions = tab.locator("figcaption span").all_text_contents()[: len(titles)]
    assert captions[0] == "Loss per symbol" and captions[-len(OTHERS) :] == list(OTHERS.values())
    assert sorted(captions) == sorted(titles)

    tab.click("nav a >> text=Sweep")
    tab.wait_for_selector("main h1 >> text=Sweep")
    assert "by chrF on the development set." in tab.inner_text("p.lead")
    headings = tab.eval_on_selector_all("thead th", "cells => cells.map(cell => cell.innerText)")
    assert headings[2] == "chrF" and set(headings[2:]) == {*titles, "dev_f1"}
    captions = tab.eval_on_selector_all("figcaption span", "names => names.map(name => name.innerText)")
    assert set(captions) == {*titles, "dev_f1"}


def test_a_failing_view_shows_its_error(browser: Any, summaries: Any, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(build_page(*summaries).replace('"contrasts":[', '"contrasts":null,"others":['), encoding="utf-8")
    tab = browser.new_page()
    tab.goto(path.as_uri())
    tab.click("nav a >> text=Contrasts")
    tab.wait_for_selector("text=This view can’t be drawn")
    assert tab.inner_text("[role=alert]").startswith("TypeError")
    tab.click("nav a >> text=Heads")
    tab.wait_for_selector("table.heads")
    tab.close()


def test_weights_that_cannot_be_read_show_an_error(browser: Any, summaries: Any, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    head = next(head for head in summaries[0][0].heads if head.examples)
    contrast = ContrastSummary(head.kind, head.layer, head.head, head.alpha, *[head.examples[0]] * 2)
    # Without an example, the overview draws attention.
    runs = [replace(run, example=-1, contrasts=(contrast,)) for run in summaries[0]]
    text = re.sub(r'(id="weights-\d+-\d+">|"weights":")[^"<]+', r"\1?", build_page(runs, summaries[1]))
    path.write_text(text, encoding="utf-8")
    tab = browser.new_page()
    for view, place in (
        ("overview", ".examples"),
        ("contrasts", ".pairs"),
        ("sentence", ".panel .body"),
        ("sentence", ".thumbs"),
        (f"head/0/{head.kind}/{head.layer}/{head.head}", ".examples"),
    ):
        tab.goto(f"{path.as_uri()}#{view}")
        tab.wait_for_selector(f"{place} [role=alert]")
    tab.close()


def test_invalid_addresses_open_a_view(open_page: Open, summaries: Any) -> None:
    tab = open_page(build_page(*summaries))
    addresses = {"head/%": "Head not found", "sentence/length": "Attention", "outputs/constructor": "Outputs"}
    for address, title in {**addresses, "%E0": "Overview", "sentence/99": "Attention"}.items():
        tab.evaluate(f"location.hash = '#{address}'")
        tab.wait_for_selector(f"main h1 >> text={title}")
        if title == "Attention":
            tab.wait_for_selector(".panel figure")


def dense(tokens: int, heads: int = 2) -> Any:
    """Return a summary of softmax attention over a sentence of `tokens` tokens and a short one."""
    torch.manual_seed(0)
    model = TransformerSeq2Seq(len(SRC), len(TGT), d_model=8, heads=heads, layers=1, d_ff=8, attention="softmax")
    row = [4 + i % (len(SRC) - 4) for i in range(tokens)]
    batches = list(Corpus([row, [4, 5]], [[4, 5], [4]]).batches(2))
    return summarize_attention(model, read_model(model, SRC, TGT), batches, name="dense", corpus="samples")


def test_a_long_dense_sentence_is_drawn_with_few_elements(open_page: Open) -> None:
    summary = dense(220)
    tab = open_page(build_page([summary]), "sentence/0/0/encoder/0/0")
    tab.wait_for_selector(".panel:first-child .matrix .tone")
    panel = tab.locator(".panel:first-child")
    assert panel.locator(".lines").count() == 0 and "too long for lines" in panel.inner_text()
    assert panel.locator(".matrix .row").count() == 220 and panel.locator("*").count() < 6000
    # Every weight is greater than zero, so the cells of a row cover it.
    widths = """paths => paths.map(path => [...path.getAttribute("d").matchAll(/h(\\d+)v/g)]
      .reduce((sum, [, width]) => sum + Number(width), 0))"""
    covered = panel.locator(".matrix .row >> nth=7").locator(".tone").evaluate_all(widths)
    assert sum(covered) == 220 * 13
    assert tab.locator(".thumb path").count() <= 8
    assert tab.locator(".thumb svg").first.get_attribute("viewBox") == "0 0 74 3"


def test_hovering_shows_the_weight_under_the_pointer(sentences: Any) -> None:
    matrix = sentences.locator(".panel:first-child svg.matrix")
    field = matrix.locator(".field").bounding_box()
    matrix.hover(position={"x": 1, "y": 1})
    assert matrix.locator("> title").text_content() == ""
    sentences.mouse.move(field["x"] + 8, field["y"] + 8)
    title = matrix.locator("> title").text_content() or "none"
    assert " → " in title or title == "none"
    assert matrix.locator(".row.on").count() == 1 and " keys: " in sentences.inner_text(".rowtext")
    assert matrix.locator(".row.on").get_attribute("data-query") == "0"


def test_hovering_highlights_only_figures_of_the_same_words(sentences: Any) -> None:
    choice = sentences.locator(".panel >> nth=1 >> select >> nth=1")
    shown = choice.evaluate("node => node.value")
    other = "encoder" if "/cross/" in shown else "cross"
    choice.select_option(choice.locator(f'option[value*="/{other}/"]').first.get_attribute("value"))
    sentences.wait_for_timeout(100)
    sentences.locator(".panel:first-child svg.matrix .row .word >> nth=0").hover()
    counts = [sentences.locator(f".panel:nth-child({number}) .row.on").count() for number in (1, 2)]
    assert counts == [2, 0]  # the lines and the matrix of the first panel


def test_sentences_beyond_a_budget_of_weights_are_left_out(
    open_page: Open, summaries: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tsallis.report import page

    runs = [replace(run, heads=tuple(replace(head, examples=()) for head in run.heads)) for run in summaries[0]]
    sizes = [sum(len(w.values) for run in runs for w in run.sentences[i].weights) for i in range(5)]
    for most, count in ((10**6, 5), (sum(sizes[:3]), 3), (sum(sizes[:3]) - 1, 2), (0, 1)):
        monkeypatch.setattr(page, "NON_ZEROS", most)
        assert page.sentences_that_fit(runs) == count
    tab = open_page(build_page(*summaries), "sentence/4")
    assert tab.locator(".controls select >> nth=0 >> option").count() == 1
    assert "4 more examples are left out" in tab.inner_text("main")


@pytest.mark.parametrize(("causal", "counts"), [(True, [1, 2, 3, 3]), (False, [3, 3, 3, 3])])
def test_causal_queries_see_keys_up_to_their_position(calculate: Calculate, causal: bool, counts: list[int]) -> None:
    assert calculate("[0, 1, 2, 3].map((query) => visibleKeys(it, query))", {"keys": 3, "causal": causal}) == counts


@pytest.mark.parametrize(("causal", "note"), [(True, "itself and earlier"), (False, "all")])
def test_the_decoder_hint_depends_on_causality(open_page: Open, causal: bool, note: str) -> None:
    weights = torch.full((2, 2, 3, 3), 1 / 3) if not causal else torch.eye(3).expand(2, 2, 3, 3)
    summary = summarize_weights(decoder_attention=[weights], decoder_tokens=[["▁a", "▁b", "▁c"]] * 2)
    tab = open_page(build_page([summary]), "sentence")
    hint = f"Decoder, from each position of the text to {note} positions. Click a head to show it above."
    assert tab.inner_text("section .hint") == hint
    assert tab.locator("nav a >> text=Contrasts").count() == 1  # because there are two sentences


def test_unknown_alphas_are_shown_as_dashes(open_page: Open, summaries: Any) -> None:
    """Compare a run with weights of the same sentences from another source."""
    run = summaries[0][0]
    heads = tuple(replace(head, alpha=math.nan) for head in run.heads)
    other = replace(run, name="weights", model="", parameters=None, heads=heads, outputs=None)
    tab = open_page(build_page([run, other]), "overview")
    for view in ("overview", "heads", "sentence", "contrasts", "training"):
        tab.evaluate(f"location.hash = '#{view}'")
        tab.wait_for_selector(f'main[data-view="{view}"] h1')
        assert "NaN" not in tab.inner_text("main")
    tab.evaluate("location.hash = '#overview'")
    tab.click("text=All settings and numbers")
    cells = tab.locator("table.facts tbody tr", has_text="Alpha, encoder").locator("td")
    cells.first.wait_for()
    row = cells.all_text_contents()
    assert row[0] != "–" and row[1] == "–"


def test_all_layers_are_labelled_if_depths_differ(open_page: Open) -> None:
    torch.manual_seed(0)
    model = transformer(encoder_layers=1, decoder_layers=3, layers=None)
    batches = list(Corpus([[4, 5]], [[4]]).batches(1))
    summary = summarize_attention(model, read_model(model, SRC, TGT), batches, name="deep", corpus="samples")
    tab = open_page(build_page([summary]))
    labels = tab.locator("svg.map .tick").all_text_contents()
    assert [label for label in labels if label.startswith("layer")] == ["layer 1", "layer 2", "layer 3"]


def test_no_label_is_cut_off(open_page: Open) -> None:
    words = Vocabulary(["▁WWWWWWWWWW", "▁mmmmmmmmmmmm", "▁illi", "世界世界"])
    torch.manual_seed(0)
    model = TransformerSeq2Seq(len(words), len(words), d_model=8, heads=2, layers=1, d_ff=8, attention="softmax")
    batches = list(Corpus([[4, 5, 6, 7]], [[5, 4, 7]]).batches(1))
    summary = summarize_attention(model, read_model(model, words, words), batches, name="wide", corpus="samples")
    tab = open_page(build_page([summary]), "sentence/0/0/encoder/0/0")
    tab.wait_for_selector(".panel svg.matrix")
    for drawing in tab.locator(".panel svg").all():
        drawing.evaluate("svg => svg.querySelectorAll('.row').forEach(row => row.classList.add('on'))")
        beyond = """svg => { const box = svg.getBoundingClientRect();
          return [...svg.querySelectorAll('.word')].flatMap(word => { const one = word.getBoundingClientRect();
            return [box.left - one.left, one.right - box.right, box.top - one.top, one.bottom - box.bottom]; }); }"""
        assert max(drawing.evaluate(beyond)) <= 0.5


def test_figures_with_control_characters_are_well_formed_svg(open_page: Open, tmp_path: Path) -> None:
    words = ("a\u0001b", "c\ufffe", "d")
    density = draw_density(Gaussian(torch.tensor(0.5), torch.tensor(0.01)))
    example = DensityExample(
        0, "a text", words, "neg", "neg", 0.75, (0.2, 0.3, 0.5), None, (0.1, 0.8, 0.1), density, None
    )
    tab = open_page(build_page([], densities=[labels_of(example)]), "densities")
    tab.evaluate("document.querySelector('svg').append(document.createElementNS('http://www.w3.org/2000/svg', 'text'))")
    tab.evaluate("document.querySelector('svg').lastChild.textContent = 'x\\u0001y'")
    with tab.expect_download() as download:
        tab.click(".save >> nth=0")
    download.value.save_as(tmp_path / "figure.svg")
    assert xml.etree.ElementTree.parse(tmp_path / "figure.svg").getroot() is not None


def test_the_density_view_describes_labels_and_regions(open_page: Open) -> None:
    plane = draw_density(Gaussian(torch.tensor([0.5, 0.4]), 0.01 * torch.eye(2), dims=2))
    example = DensityExample(1, "where?", (), "neg", "neg", 1.0, (0.5, 0.0, 0.5, 0.0), (2, 2), (0.25,) * 4, plane, None)
    text = open_page(build_page([], densities=[labels_of(example)]), "densities").inner_text("main")
    assert "no region is excluded" in text and "neg (1), correct" in text and "Neg" not in text
    assert ">99.9 %" in text


def test_answers_used_as_targets_are_not_called_references(open_page: Open, summaries: Any) -> None:
    runs = [replace(run, corpus=replace(run.corpus, target_run="one")) for run in summaries[0]]
    tab = open_page(build_page(runs, summaries[1]), "sentence")
    names = tab.locator("dl.lines dt").all_text_contents()
    assert names == ["Source", "Answer of one (used as target)", "Answer of other"]
    tab = open_page(build_page(runs, summaries[1]), "outputs")
    text = tab.inner_text("main")
    assert "eference" not in text
    hints = tab.locator("main section .hint").all_text_contents()
    assert "exclude" not in hints[0] and "exclude" in hints[1] and "the target’s symbol" in hints[1]
    tab = open_page(build_page(*summaries), "outputs")
    assert "The reference, step by step" in tab.inner_text("main")


def test_printed_pages_fit_the_paper_without_controls(open_page: Open) -> None:
    """Between its margins, A4 is about 700 CSS pixels wide, and 1,040 in landscape."""
    summary = dense(60, heads=4)
    tab = open_page(build_page([summary]), "sentence/0/0/encoder/0/0", viewport={"width": 700, "height": 1000})
    tab.wait_for_selector(".panel:first-child .matrix .tone")
    tab.wait_for_selector(".thumb")
    tab.emulate_media(media="print")
    right = "all => Math.max(...all.map(one => one.getBoundingClientRect().right))"
    assert tab.locator(".panel svg").evaluate_all(right) <= 700
    assert tab.locator("select:visible").count() == tab.locator("button.save:visible").count() == 0
    caption = tab.locator(".panel:first-child figcaption >> nth=0")
    assert "of encoder layer 1 head 1" in caption.inner_text()
    assert caption.locator(".unseen").bounding_box()["width"] > 50
    lefts = tab.locator(".panel").evaluate_all("all => all.map(one => one.getBoundingClientRect().left)")
    assert len(lefts) == 2 and lefts[0] == lefts[1]  # one panel below the other
    pages = tab.pdf(format="A4", print_background=True).count(b"/Type /Page\n")
    assert 0 < pages <= 6
    tab.set_viewport_size({"width": 1040, "height": 700})
    tab.evaluate("location.hash = '#heads'")
    tab.wait_for_selector("table.heads")
    assert tab.locator("table.heads").evaluate_all(right) <= 1040


def answered(index: int, reference: str, answer: str | None, prob: float | None) -> SearchedAnswer:
    return SearchedAnswer(index, ("<tag:V>", "▁a"), reference, answer, answer == reference, prob, "complete")


def test_wrong_answers_are_listed_beside_those_of_the_other_run(open_page: Open, summaries: Any) -> None:
    one, other = summaries[0]
    answers = (answered(0, "x", "x", 0.75), answered(1, "y", "z", 0.25), answered(2, "y", None, None))
    others = (answered(0, "x", "w", 0.5), answered(1, "y", "y", 1.0), answered(2, "y", "y", 1.0))
    tab = open_page(build_page([replace(one, answers=answers), replace(other, answers=others)]), "wrong")
    assert "one: 2 of 3 answers differ from the reference." in tab.inner_text("p.lead")
    rows = tab.eval_on_selector_all("tbody tr", "rows => rows.map(r => [...r.cells].slice(1).map(c => c.innerText))")
    assert rows == [
        ["a (V)", "x", "x correct", "w .500"],
        ["a (V)", "y", "z .250", "y correct"],
        ["a (V)", "y", "none", "y correct"],
    ]
    right = replace(one, answers=answers[:1])
    tab = open_page(build_page([right]), "wrong")
    assert "0 of 1 answers differ" in tab.inner_text("main") and tab.locator("main table").count() == 0
    assert open_page(build_page([replace(one, answers=())])).locator("nav a >> text=Wrong answers").count() == 0


def test_the_overview_leads_with_a_tree_and_its_proof(open_page: Open, summaries: Any) -> None:
    run = summaries[0][0]
    edges = []
    for node, name, p in ((1, "a", 0.75), (3, "b", 0.25)):
        edges.append(Edge(0, node, name, math.log(p), math.log(p), False))
        edges.append(Edge(node, node + 1, "</s>", 0.0, math.log(p), True))
    for kind, words in (
        ("complete", ("the search found all 2 possible outputs", "Proved complete: these are all possible outputs")),
        ("optimal", ("no other output is more probable than the best", "Proved optimal:")),
        ("bounded", ("a limit for the probability of all others", "missing output is at most .125.")),
        ("none", ("found 1 output, and proved nothing about the others", "Nothing proved:")),
    ):
        outputs = 1 if kind == "none" else None  # two segmentations of one text
        tree = BeamTree(tuple(edges), 1.0, kind, math.log(0.125), outputs)
        sentences = (replace(run.sentences[0], tree=tree), *run.sentences[1:])
        example = run.sentences[0].text.index
        tab = open_page(build_page([replace(run, sentences=sentences, example=example)]))
        text = tab.inner_text("main")
        assert all(part in text for part in words) and text.index(words[0]) < text.index("In numbers")
        assert tab.locator("svg.tree .word").all_text_contents() == ["a", "b"]


def test_rounding_hides_no_zero(open_page: Open, summaries: Any) -> None:
    run = summaries[0][0]
    rare = replace(run.outputs, support=run.outputs.symbols - 0.001)
    text = open_page(build_page([replace(run, outputs=rare)])).inner_text("p.lead")
    assert "all others have a probability of exactly zero" in text
    heads = tuple(replace(head, density=0.9999) for head in run.heads)
    text = open_page(build_page([replace(run, outputs=None, heads=heads)])).inner_text("p.lead")
    assert "a head attends to >99 % of the positions; all other weights are zero" in text


def test_unknown_alphas_are_not_counted(open_page: Open, summaries: Any) -> None:
    run = summaries[0][0]
    heads = [replace(head, alpha=math.nan if i % 2 else 1.5 + i / 100) for i, head in enumerate(run.heads)]
    tab = open_page(build_page([replace(run, heads=tuple(heads), step=None)]), "training")
    bars = tab.locator("section >> nth=0").locator("rect title").all_text_contents()
    assert sum(int(bar.split(": ")[1]) for bar in bars) == len(heads[::2])


@pytest.mark.parametrize(("setting", "hint"), [("model.attention_alpha", 0), ("model.output_alpha", 1)])
def test_sweeps_show_scores_that_the_first_run_lacks(open_page: Open, setting: str, hint: int) -> None:
    runs = []
    for alpha in (1.0, 1.5, 2.0):
        values = {"dev_loss": (alpha,), **({"output_support": (10 * alpha,)} if alpha > 1 else {})}
        runs.append(SweepRun(f"{alpha}", {setting: alpha}, ValueHistory((1,), values)))
    tab = open_page(build_page([], sweep=sweep(runs)), "sweep")
    assert "Possible symbols per step" in tab.locator("thead th").all_text_contents()
    assert tab.locator("text=Each alpha has its own loss function").count() == hint


def test_views_and_plots_of_single_values_are_omitted(open_page: Open, summaries: Any) -> None:
    """Show runs with one head and fixed alphas, and a sweep of two runs."""
    torch.manual_seed(0)
    model = transformer(heads=1, layers=1)
    batches = list(Corpus([[4, 5, 6, 7, 8, 9]] * 2, [[4, 5]] * 2).batches(2))
    alone = summarize_attention(model, read_model(model, SRC, TGT), batches, name="one", corpus="samples")
    last = {name: getattr(alone, name)[-1:] for name in ("layers", "heads", "diversity")}
    sentences = tuple(replace(s, weights=s.weights[-1:]) for s in alone.sentences)
    alone = replace(alone, step=1, contrasts=(), sentences=sentences, **last)
    runs = [SweepRun(f"{a}", {"model.output_alpha": a}, ValueHistory((1,), {"dev_loss": (a,)})) for a in (1.0, 1.5)]
    swept = sweep(runs)
    words = tuple(WordContrast(0, 0, "▁a", 0.5, 0.0, 0.0, (("▁a", 1.0),), (("▁b", 1.0),)) for _ in range(2))
    compared = ComparisonSummary("one", "other", (ModelContrast("cross", 2, 0.5, words, words),))
    tab = open_page(build_page([alone, replace(alone, name="other")], [compared], sweep=swept))
    assert tab.locator("nav a").all_text_contents() == ["Overview", "Attention", "Contrasts", "Training"]
    assert tab.locator("svg.map").count() == 0
    tab.click("nav a >> text=Contrasts")
    tab.wait_for_selector("table.contrasts")
    assert "ithin" not in tab.inner_text("main") and tab.locator("table.contrasts thead th").count() == 10
    tab.click("nav a >> text=Training")
    tab.wait_for_selector("main h1 >> text=Training")
    text = tab.inner_text("main")
    assert "lpha" not in text and "Diversity" not in text and "sorted" not in text
    assert open_page(build_page([], sweep=swept)).locator("nav a").all_text_contents() == ["Sweep"]
