"""`tsallis serve`: its page in a browser, every command of its documentation, signals and mistakes."""

from __future__ import annotations

import http.client
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from process_fork import Ended, run_forked
from process_fork import command as forked_command
from tsallis.search import beam_search
from tsallis.toolkit.evaluation.text_probabilities import complete_results
from tsallis.toolkit.tasks.registry import task_of
from tsallis.toolkit.training import load_run

from .conftest import LONGEST, SCREENS, accessibility_violations, command, environment

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "serve.md"
SOURCE = "Am Montag"  # its outputs have supports of different sizes


class Serving:
    def __init__(self, *arguments: object) -> None:
        self.process = subprocess.Popen(
            command("serve", *arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
        )
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()
        address = re.search(r"http://[\d.]+:(\d+)/", self.line)
        assert address, self.process.communicate()
        self.url, self.port, self.errors = address[0], int(address[1]), ""

    def ask(self, path: str, body: str | None = None, host: str | None = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        kind = {} if body is None else {"content-type": "application/json"}
        kind |= {} if host is None else {"host": host}
        connection.request("GET" if body is None else "POST", path, body and body.encode(), kind)
        answer = connection.getresponse()
        content = json.loads(answer.read())
        connection.close()
        return answer.status, content

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """End the server with a signal; return exit status and standard output, and fail if it printed an error."""
        self.process.send_signal(number)
        out, self.errors = self.process.communicate(timeout=60)
        assert "Traceback" not in self.errors and "rror" not in self.errors
        return self.process.returncode, out


@pytest.fixture(scope="module")
def serving(trained: Path, translator: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("runs")
    shutil.copytree(trained, folder / "english-verbs")
    shutil.copytree(translator, folder / "numbers")
    (folder / "examples").write_text(f"walk\tV;PST\ntry\tV;3;SG;PRS\n{SOURCE}\n", encoding="utf-8")
    serving = Serving(folder / "english-verbs", folder / "numbers", "--port", 0, "--examples", folder / "examples")
    yield serving
    assert serving.end() == (0, "")


@pytest.mark.process
def test_documented_requests_succeed(serving: Serving) -> None:
    text = PAGE.read_text(encoding="utf-8")
    lines = [line for block in re.findall(r"```console\n(.*?)```", text, re.S) for line in block.splitlines()]
    commands = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    assert serving.line.startswith("english-verbs, numbers: http://127.0.0.1:") and "(Ctrl-C ends)\n" in serving.line
    requests = [shlex.split(line) for line in commands if line.startswith("curl ")]
    assert len(requests) > 8
    for request in requests:
        body = request[2] if request[1] == "--json" else None
        status, content = serving.ask(request[-1].removeprefix("http://127.0.0.1:8000"), body)
        assert status == 200, content
    others = [line.split()[0] for line in commands if not line.startswith("curl ")]
    assert others == ["pip", "tsallis"]  # installing, and the command that `serving` runs


@pytest.mark.process
@pytest.mark.parametrize("mode", ["exact", "all"])
def test_exact_searches_match_translate(serving: Serving, translator: Path, tsallis: Any, mode: str) -> None:
    """The run has subwords: the probability of a text is the sum over all its segmentations, as in the command."""
    options = "--json", f"--{mode}", "--budget", 60, "--n-best", 3
    (line,) = tsallis("translate", translator, *options, stdin=f"{SOURCE}\n").stdout.splitlines()
    body = {"run": "numbers", "sources": [SOURCE], "mode": mode, "budget": 60, "n_best": 3}
    status, content = serving.ask("/api/translate", json.dumps(body))
    (answer,) = content["answers"]
    for hypothesis in answer["hypotheses"]:
        del hypothesis["tokens"]
    assert status == 200 and answer == json.loads(line)
    assert any(len(hypothesis["segmentations"]) > 1 for hypothesis in answer["hypotheses"])


@pytest.mark.process
def test_documented_limits_match_the_defaults() -> None:
    from tsallis.toolkit.serve.limits import Limits

    table = dict(re.findall(r"^\| `--([\w-]+)`[^|]* \| ([\d,]+)", PAGE.read_text(encoding="utf-8"), re.M))
    names = {"batch": "sources", "time": "seconds"}
    limits = {names.get(name, name): int(value.replace(",", "")) for name, value in table.items()}
    assert limits == vars(Limits())


@pytest.mark.slow
@pytest.mark.process
def test_sigint_stops_the_server_and_public_hosts_warn(trained: Path) -> None:
    serving = Serving(trained, "--host", "0.0.0.0", "--port", 0)
    assert "http://0.0.0.0:" not in serving.line  # browsers can't open that address
    status, _ = serving.ask("/api/health", host=serving.url.removeprefix("http://").removesuffix("/"))
    assert status == 200
    # A client that keeps its connection open does not delay the end.
    connection = socket.create_connection(("127.0.0.1", serving.port))
    assert serving.ask("/api/health")[0] == 200
    assert serving.end(signal.SIGINT) == (0, "")
    assert f"tsallis: warning: everyone who can reach {serving.url}" in serving.errors
    assert f"--allow-host {socket.gethostname()}" in serving.errors
    connection.close()


def test_invalid_arguments_give_one_line_errors(tsallis: Any, trained: Path, tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken, bad = other.getsockname()[1], tmp_path / "bad"
        bad.write_text("walk\n")
        cases = [
            ((trained, "--port", taken), rf"can't listen on 127.0.0.1, port {taken}: Address already in use"),
            ((tmp_path / "none", "--port", 0), "not a run folder"),
            ((trained, trained, "--port", 0), "this run was given twice"),
            ((trained, "--host", "no such host"), "can't listen on no such host, port 8000: "),
            ((trained, "--port", 70_000), "--port"),
            ((trained, "--time", "nan"), "--time"),
            ((trained, "--batch", 0), "--batch"),
            ((trained, "--device", "x", "--port", 0), "x"),
            ((trained, "--examples", tmp_path / "none", "--port", 0), "none: can't be read: No such file"),
            ((trained, "--examples", bad, "--port", 0), "no run can read any of these lines"),
            ((), "RUN"),
        ]
        for arguments, message in cases:
            ended = tsallis("serve", *arguments, status=2)
            assert ended.stdout == "" and re.search(message, ended.stderr) and ended.stderr.count("\n") == 1, arguments


@pytest.mark.process
def test_missing_packages_give_an_install_hint(trained: Path) -> None:
    code = (
        "import sys; sys.modules['starlette'] = None; sys.modules['starlette.applications'] = None\n"
        f"sys.argv = ['tsallis', 'serve', {str(trained)!r}]\nfrom tsallis.toolkit.cli import main\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment())
    assert done.returncode == 2 and "pip install 'tsallis[serve]'" in done.stderr and done.stderr.count("\n") == 1


def test_full_or_closed_stdout_gives_a_one_line_error(trained: Path) -> None:
    def serve_into(handle: int) -> Ended:
        def work() -> None:
            os.dup2(handle, 1)
            sys.stdout = os.fdopen(os.dup(1), "w")
            forked_command("serve", trained, "--port", 0)()

        return run_forked(work, b"")

    with open("/dev/full", "w") as full:
        ended = serve_into(full.fileno())
    assert ended == Ended(2, "", "tsallis: standard output: No space left on device\n")
    reading, writing = os.pipe()
    os.close(reading)
    ended = serve_into(writing)
    os.close(writing)
    message = "tsallis: standard output is closed, so the server's address can't be printed\n"
    assert ended == Ended(2, "", message)


def test_examples_come_from_the_dev_set_if_it_exists(trained: Path, tmp_path: Path) -> None:
    from tsallis.toolkit.cli.serve import DEV_EXAMPLES, _dev_lines, _is_readable

    run = load_run(trained)
    task = task_of(run.task)
    lines = _dev_lines(run, task)
    assert 0 < len(lines) <= DEV_EXAMPLES and all(_is_readable(run, task, line) for line in lines)
    moved = shutil.copytree(trained, tmp_path / "moved")
    config = (moved / "config.yaml").read_text(encoding="utf-8")
    (moved / "config.yaml").write_text(re.sub(r"folder: .*", "folder: nowhere", config), encoding="utf-8")
    assert "nowhere" in (moved / "config.yaml").read_text() and _dev_lines(load_run(moved), task) == []


@pytest.fixture
def tab(browser: Any, serving: Serving, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Open the page; console messages and requests to other servers fail the test."""
    context, faults = browser.new_context(**getattr(request, "param", {})), []
    tab = context.new_page()
    tab.on("pageerror", lambda error: faults.append(str(error)))
    tab.on("console", lambda message: faults.append(message.text))
    own = (serving.url, "data:", "blob:")
    tab.on("request", lambda asked: None if asked.url.startswith(own) else faults.append(asked.url))
    tab.goto(serving.url)
    tab.wait_for_selector("form input")
    yield tab
    context.close()
    assert [fault for fault in faults if "400 (Bad Request)" not in fault] == []


def ask_numbers(tab: Any) -> None:
    """Choose the translator and type a source; wait until all results are shown."""
    tab.select_option("#runs select", "1")
    tab.fill('input[name="column-0"]', SOURCE)
    tab.wait_for_selector(".proof")
    tab.wait_for_selector("table.steps")
    tab.wait_for_selector("svg.matrix")


@pytest.mark.process
def test_typed_sources_show_proof_tree_steps_and_attention(tab: Any, serving: Serving, translator: Path) -> None:
    from playwright.sync_api import expect

    ask_numbers(tab)
    run = load_run(translator)
    batch = task_of(run.task).read([SOURCE], "here", run, False).corpus.batch([0])
    beam = {"beam_size": 5, "n_best": 5, "end_rule": "competing", "max_length": LONGEST}  # the settings of the run
    found = beam_search(run.model, batch.src, batch.src_lengths, **beam)
    (result,) = complete_results(run.model, batch, found, run.tgt_vocab)  # a text may have a likelier segmentation
    texts = tab.eval_on_selector_all(".outputs .words", "nodes => nodes.map(n => n.innerText)")
    assert texts == [" ".join(run.tgt_vocab.decode(h.tokens).split()) or "(empty)" for h in result.hypotheses]
    assert result.certificate.kind in tab.get_attribute(".proof", "class")
    assert tab.query_selector("svg.tree .word") is not None
    rows = tab.eval_on_selector_all(".steps tbody tr", "rows => rows.map(r => r.cells[3].innerText.replace(',', ''))")
    assert [int(row) for row in rows] == list(result.hypotheses[0].support)
    # Choose another output and another head with the keyboard.
    tab.focus(".outputs input:checked")
    tab.keyboard.press("ArrowDown")
    count = len(result.hypotheses[1].support)
    expect(tab.locator(".steps tbody tr")).to_have_count(count)
    tab.select_option("section:last-of-type select", "encoder.1.1")
    tab.wait_for_selector("text=Matrix of encoder.1.1")
    tab.focus("svg.matrix")
    tab.keyboard.press("ArrowDown")
    assert " keys: " in tab.inner_text(".rowtext")


@pytest.mark.process
def test_clicking_an_example_submits_it(tab: Any) -> None:
    lines = "nodes => nodes.map(n => n.innerText)"
    assert tab.eval_on_selector_all(".example-line", lines)[:2] == ["walk · V;PST", "try · V;3;SG;PRS"]
    tab.click("text=try · V;3;SG;PRS")
    tab.wait_for_selector("table.steps")
    assert [tab.input_value(f'input[name="column-{i}"]') for i in range(2)] == ["try", "V;3;SG;PRS"]


@pytest.mark.slow
@pytest.mark.process
def test_page_runs_every_search_mode(tab: Any) -> None:
    from playwright.sync_api import expect

    ask_numbers(tab)
    for number, search in ((1, "exact"), (2, "all"), (3, "sample")):
        with tab.expect_response("**/api/translate") as answer:
            tab.check(f'input[type="radio"][name^="segments"] >> nth={number}', force=True)
        assert answer.value.json()["mode"] == search
    expect(tab.locator(".pair section").first).to_contain_text("5 samples")
    tab.fill("input.count", "20")
    tab.keyboard.press("Enter")
    expect(tab.locator(".pair section").first).to_contain_text("20 samples")


@pytest.mark.process
def test_an_output_is_completed_with_the_keyboard(tab: Any) -> None:
    tab.fill('input[name="column-0"]', "walk")
    tab.fill('input[name="column-1"]', "V;PST")
    tab.wait_for_selector("#choices li")
    tab.focus("#typed")
    typed = ""
    for _ in range(3):
        tab.keyboard.press("ArrowDown")
        assert tab.get_attribute("#typed", "aria-activedescendant") == "choice-0"
        if (choice := tab.inner_text("#choice-0 .words")).endswith(" end"):
            break
        choice = choice.removesuffix(" …")
        with tab.expect_response("**/api/suggest"):
            tab.keyboard.press("Enter")
        assert tab.input_value("#typed") == choice and len(choice) > len(typed)
        typed = choice
        # Wait for a selector: the page's security policy forbids polling for an expression.
        tab.wait_for_selector("#typed:not([aria-activedescendant])")
    tab.fill("#typed", "#")
    tab.wait_for_selector("text=Impossible: no output of the model starts with this text.")
    tab.fill("#typed", "walk")
    tab.keyboard.press("Enter")
    tab.wait_for_selector("table.steps")


@pytest.mark.process
def test_html_in_error_messages_is_escaped(tab: Any) -> None:
    tab.fill('input[name="column-0"]', "<img src=x onerror=alert(1)>")
    tab.fill('input[name="column-1"]', ";;<b>")
    tab.wait_for_selector(".fault")
    assert "<b>" in tab.inner_text(".fault")
    assert tab.query_selector("main img") is None and tab.query_selector("main b") is None


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("tab", SCREENS, indirect=True)
def test_page_has_no_accessibility_violations(tab: Any) -> None:
    assert accessibility_violations(tab) == []
    ask_numbers(tab)
    tab.fill("#typed", "t")
    tab.wait_for_timeout(500)
    assert accessibility_violations(tab) == []
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
