"""The served page in a browser: its requests, and how it shows answers and errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .conftest import Serve

Visit = Callable[..., Any]
STEPS = "section[aria-labelledby=steps] div"
FAULT = ".pair section .fault"


@pytest.fixture
def visit(browser: Any, serve: Serve) -> Iterator[Visit]:
    """Yield a function that opens the page of a server with given limits; `facts` replace facts of the run."""
    tabs = []

    def start(facts: dict[str, Any] | None = None, **limits: Any) -> Any:
        tab = browser.new_page()
        tabs.append(tab)
        url = f"http://127.0.0.1:{serve(**limits).port}/"

        def change(route: Any) -> None:
            content = route.fetch().json()
            content["runs"] = [{**run, **(facts or {})} for run in content["runs"]]
            route.fulfill(json=content)

        tab.route("**/api/runs", change)
        tab.goto(url)
        tab.wait_for_selector("form input")
        return tab

    yield start
    for tab in tabs:
        tab.close()


def test_result_headings_are_hidden_before_the_first_search(visit: Visit) -> None:
    tab = visit({"columns": ["word", "features"], "examples": ["scan\tV;PST"]})
    assert tab.locator("h2:visible").all_text_contents() == ["Outputs", "Write it yourself"]
    assert tab.locator(".field span").all_text_contents() == ["Word", "Features"]
    names = tab.locator("fieldset.segments label").all_text_contents()
    assert names == ["Fast beam", "Proved best exact", "Everything all", "Random sample"]
    tab.click(".example-line")
    tab.wait_for_selector("svg.matrix")
    assert tab.locator("h2:visible").all_text_contents()[2:] == ["Step by step", "Attention"]


def ask(tab: Any, lemma: str = "scan", tags: str = "V;PST") -> None:
    for number, text in enumerate((lemma, tags)):
        tab.fill(f'input[name="column-{number}"]', text)
    tab.wait_for_selector("table.steps")


def answer(tab: Any, **content: Any) -> None:
    """Answer searches in the browser instead of sending them to the server."""
    tab.route("**/api/translate", lambda route: route.fulfill(**content))


@pytest.mark.parametrize("outputs", [1, 4])
def test_the_page_requests_at_most_the_allowed_outputs(visit: Visit, outputs: int) -> None:
    tab = visit(outputs=outputs)
    with tab.expect_request("**/api/translate") as request:
        ask(tab)
    assert request.value.post_data_json["n_best"] == outputs and "beam_size" not in request.value.post_data_json
    tab.wait_for_selector("#choices li")
    assert tab.locator(".fault").count() == 0
    assert tab.locator("#choices li").count() <= outputs
    assert "at most" not in tab.inner_text("main")


def test_clearing_a_field_clears_the_results(visit: Visit) -> None:
    tab = visit()
    ask(tab)
    tab.wait_for_selector("svg.matrix")
    tab.fill('input[name="column-1"]', "")
    tab.wait_for_selector("text=Please fill in features.")
    assert tab.inner_text(STEPS) == "" and tab.locator("svg.matrix").count() == 0
    assert tab.locator(".proof").count() == 0 and tab.locator("#choices li").count() == 0


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ({"status": 500, "json": {}}, "The server returned status 500 without a message."),
        ({"status": 502, "body": "<html>", "content_type": "text/html"}, "The server returned status 502"),
        ({"status": 200, "body": "<html>", "content_type": "text/html"}, "The server returned status 200"),
        ({"status": 400, "json": {"error": "n_best: at most 4"}}, "n_best: at most 4."),
    ],
)
def test_failed_searches_clear_earlier_results(visit: Visit, content: dict[str, Any], text: str) -> None:
    tab = visit()
    ask(tab)
    answer(tab, **content)
    tab.click("text=Search >> nth=0")
    tab.wait_for_selector(FAULT)
    assert tab.inner_text(FAULT).startswith(text)
    assert tab.inner_text(STEPS) == "" and tab.locator("svg.matrix").count() == 0


def test_searches_without_outputs_clear_earlier_results(visit: Visit) -> None:
    tab = visit()
    ask(tab)
    nothing = {"certificate": "none", "bound": None, "mass": 0.0, "hypotheses": [], "tree": None}
    answer(tab, json={"run": "verbs", "mode": "beam", "answers": [nothing]})
    tab.click("text=Search >> nth=0")
    tab.wait_for_selector("text=The search found no output.")
    assert tab.inner_text(STEPS) == "" and tab.locator("svg.matrix").count() == 0


def test_selected_outputs_keep_the_searched_source(visit: Visit) -> None:
    tab = visit()
    ask(tab)
    tab.wait_for_selector("svg.matrix")
    tab.evaluate("document.querySelector('[name=column-0]').value = 'trap'")
    with tab.expect_request("**/api/attention") as attention, tab.expect_request("**/api/steps") as steps:
        tab.check('.outputs input[type="radio"] >> nth=1', force=True)
    for request in (attention, steps):
        assert request.value.post_data_json["source"] == "scan\tV;PST"


def test_a_prompt_may_be_empty(visit: Visit) -> None:
    tab = visit({"task": "language", "columns": ["prompt"], "attention": []})
    assert "The field may be empty." in tab.inner_text("main")
    with tab.expect_request("**/api/translate") as request:
        tab.click("text=Search >> nth=0")
    assert request.value.post_data_json["sources"] == [""]
    tab = visit()
    tab.click("text=Search >> nth=0")
    tab.wait_for_selector("text=Please fill in source and features.")


def test_tiny_probabilities_are_not_shown_as_zero(visit: Visit) -> None:
    tab = visit()
    draws = [
        {"text": text, "prob": 0.0, "log_prob": log, "support": [2], "num_attended": [1], "tokens": [4], "ended": True}
        for text, log in (("one", -912.0), ("  ", -915.0))
    ]
    answer(tab, json={"run": "verbs", "mode": "sample", "answers": [{"draws": draws}]})
    ask(tab)
    assert tab.locator(".outputs .prob").all_inner_texts() == ["<.001", "<.001"]
    assert tab.locator(".outputs .words").all_inner_texts() == ["one", "␣␣"]
    widths = tab.locator(".outputs .share").evaluate_all("all => all.map(one => parseFloat(one.style.width))")
    assert widths == pytest.approx([100, 4.98], abs=0.01)
