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
    """Yield a function that opens the page of a server with given limits; `facts` replace facts of its run."""
    tabs = []

    def start(facts: dict[str, Any] | None = None, copies: int = 1, **limits: Any) -> Any:
        tab = browser.new_page()
        tabs.append(tab)
        url = f"http://127.0.0.1:{serve(**limits).port}/"

        def change(route: Any) -> None:
            content = route.fetch().json()
            content["runs"] = [{**run, **(facts or {})} for run in content["runs"] * copies]
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


def test_the_certificate_names_the_limits_of_the_search(visit: Visit) -> None:
    tab = visit()
    output = {"text": "a", "prob": 0.5, "log_prob": -0.69, "support": [2], "num_attended": [1], "tokens": [4]}
    content = {"certificate": "optimal", "bound": -1.0, "mass": 0.5, "hypotheses": [output], "tree": None}
    limits = {"length_penalty": 0.6, "min_length": 2}
    effort = {"stopped_by": "length", "expanded": 7, "unknown": 2}
    answer(tab, json={"run": "verbs", "mode": "all", "answers": [{**content, **effort, "limits": limits}]})
    ask(tab)
    text = tab.inner_text("section[aria-labelledby=outputs]")
    assert "no other output of at least 2 symbols has a better score (log-probability / length^0.6)" in text
    assert "The search ended early: after 7 prefixes it reached the length limit." in text
    assert "2 symbols of the source are not in the vocabulary." in text
    assert "no other output of at least 2 symbols" in tab.locator("#say").text_content()


def test_weights_of_causal_heads_are_counted_up_to_the_query(visit: Visit) -> None:
    tab = visit()
    rows = [[[0, 1.0]], [[0, 0.5], [1, 0.5]], [[2, 1.0]]]
    head = {"name": "decoder.1.1", "alpha": 1.5, "queries": list("abc"), "keys": list("abc"), "rows": rows}
    content = {"run": "verbs", "output": "abc", "tokens": [4, 5], "heads": [{**head, "causal": True}]}
    tab.route("**/api/attention", lambda route: route.fulfill(json=content))
    ask(tab)
    tab.wait_for_selector("text=Alpha 1.50; 4 of 6 weights are above zero.")


def complete(tab: Any, **changes: Any) -> None:
    """Answer completions in the browser."""
    choices = [{"text": text, "symbols": [text], "prob": 0.5, "ends": False} for text in ("sa", "sb")]
    content = {"possible": True, "support": 2, "missing": 0.0, "next": choices, **changes}
    tab.route("**/api/suggest", lambda route: route.fulfill(json=content))


def test_typed_text_is_not_replaced_by_earlier_choices(visit: Visit) -> None:
    tab = visit()
    complete(tab)
    ask(tab)
    tab.wait_for_selector("#choices li")
    tab.press("#typed", "ArrowDown")
    tab.route("**/api/suggest", lambda route: None)  # no answer
    tab.type("#typed", "x")
    with tab.expect_request("**/api/steps") as steps:
        tab.press("#typed", "Enter")
    assert steps.value.post_data_json["output"] == "x" and tab.input_value("#typed") == "x"


def test_a_failed_completion_leaves_no_choices(visit: Visit) -> None:
    tab = visit()
    faults: list[Any] = []
    tab.on("pageerror", lambda error: faults.append(error))
    complete(tab)
    ask(tab)
    tab.wait_for_selector("#choices li")
    tab.route("**/api/suggest", lambda route: route.fulfill(status=500, json={"error": "It failed"}))
    tab.type("#typed", "x")
    tab.wait_for_selector("text=It failed.")
    tab.press("#typed", "ArrowDown")
    assert faults == [] and tab.get_attribute("#typed", "aria-expanded") == "false"


def test_keys_of_input_methods_and_touches_choose_nothing(visit: Visit) -> None:
    tab = visit()
    complete(tab)
    ask(tab)
    tab.wait_for_selector("#choices li")
    assert tab.get_attribute("#typed", "dir") == "auto"
    event = "new KeyboardEvent('keydown', { key: 'ArrowDown', isComposing: true, cancelable: true })"
    assert tab.locator("#typed").evaluate(f"node => node.dispatchEvent({event})")  # not prevented
    tab.locator("#choices li >> nth=1").dispatch_event("pointerdown")
    assert tab.input_value("#typed") == ""
    tab.click("#choices li >> nth=1")
    assert tab.input_value("#typed") == "sb"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "2 continuations are possible."),
        ({"missing": 0.25}, "At least 2 continuations are possible."),
        ({"missing": None}, "At least 2 continuations are possible."),
        ({"missing": 0.25, "support": 0, "next": []}, "It is not known which continuations are possible."),
    ],
)
def test_numbers_of_continuations_are_exact_or_lower_bounds(visit: Visit, changes: dict[str, Any], text: str) -> None:
    tab = visit()
    complete(tab, **changes)
    ask(tab)
    tab.wait_for_selector(f"text='{text}'")


def test_enter_and_another_run_replace_the_delayed_search(visit: Visit) -> None:
    tab = visit(copies=2)
    requests: list[str] = []
    tab.on("request", lambda request: requests.append(request.url) if "translate" in request.url else None)
    ask(tab)
    requests.clear()
    tab.fill('input[name="column-0"]', "trap")
    tab.press('input[name="column-0"]', "Enter")
    tab.wait_for_timeout(400)
    assert len(requests) == 1
    tab.fill('input[name="column-0"]', "scan")
    tab.select_option("#runs select", "1")
    tab.wait_for_timeout(400)
    assert len(requests) == 1
