"""The how-to pages: their blocks run in order and print what they say; the task that one of them adds works."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pages import DOCS, run_blocks
from run_seed import SEED
from task_runs import encode, evaluate, figures, read_lines, read_split
from tsallis.errors import InputError
from tsallis.inference import TextRun
from tsallis.tasks import registry
from tsallis.tasks.prepared import prepare
from tsallis.training import Trainer, load_run
from tsallis.training.run_folder import start_run

PAGES = DOCS / "how-to"
PAGE = PAGES / "add-a-task.md"
# Those for users; the page on Hugging Face models has a test of its own.
ELSEWHERE = ("add-", "index", "hugging-face")
USERS = sorted(
    path.stem
    for path in PAGES.glob("*.md")
    if not path.stem.startswith(ELSEWHERE) and "```python" in path.read_text(encoding="utf-8")
)
# Pages on single topics; that on run folders needs a run, and the one on analysis prints more than its comments.
TOPICS = sorted(
    path.stem
    for path in DOCS.glob("*.md")
    if path.stem not in ("analysis", "run-folder") and "```python" in path.read_text(encoding="utf-8")
)
PACKAGES = {"export": ("onnxruntime", "onnxscript"), "own-models": ("pyro",)}  # of their own
PHONES = {
    "church": "tʃ ɜː tʃ",
    "chip": "tʃ ɪ p",
    "ship": "ʃ ɪ p",
    "sheep": "ʃ iː p",
    "peach": "p iː tʃ",
    "sip": "s ɪ p",
    "sir": "s ɜː",
    "see": "s iː",
}


@pytest.fixture
def pronunciation(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The task of the page, among the others."""
    blocks = PAGE.read_text(encoding="utf-8").split("```python\n")[1:]
    (code,) = (text.split("```")[0] for text in blocks if text.startswith('"""'))
    module = ModuleType("tsallis.tasks.pronunciation")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(code, str(PAGE), "exec"), module.__dict__)
    monkeypatch.setitem(registry.TASKS, module.Pronunciation.name, module.Pronunciation)
    return module.Pronunciation


def test_the_task_of_the_page(pronunciation: Any, tmp_path: Path) -> None:
    pairs = "".join(f"{word}\t{phones}\n" for word, phones in PHONES.items())
    for split in ("train", "dev"):
        (tmp_path / f"{split}.tsv").write_text(pairs, encoding="utf-8")
    path = tmp_path / "pronunciation.yaml"
    path.write_text(
        "version: 1\ndata: {task: pronunciation, train: train.tsv, dev: dev.tsv}\n"
        "model: {d_model: 32, layers: 1, dropout: 0.0}\n"
        "training: {epochs: 150, learning_rate: 0.01, validate_every: 50}\n",
        encoding="utf-8",
    )
    config = registry.load_config(path, [f"data.folder={tmp_path}", f"training.seed={SEED}"])
    prepared = prepare(config)
    assert prepared.task == pronunciation() and prepared.description["class"] == "rnn"
    symbols, data, folder = prepared.data.vocabularies, prepared.data, tmp_path / "run"
    folder.mkdir()
    start_run(folder, config.text(), prepared.description, prepared.task.facts(), symbols.src, symbols.tgt)
    parts = (data.train, data.dev.corpus, folder, prepared.settings)
    Trainer(prepared.build(), *parts, measure=prepared.measure()).run()
    run = load_run(folder)
    assert registry.task_of(run.task) == pronunciation()
    report = evaluate(run, encode(run, read_split(config.data, "dev")), beam_size=2)
    assert report["accuracy"] == 1.0
    text = TextRun(run, registry.task_of(run.task))
    assert [answer.text for answer in text.translate(PHONES)] == [*PHONES.values()]
    assert [found.text for found in text.suggest(["church"], ["tʃ ɜː"])[0].next][:1] == ["tʃ ɜː tʃ"]
    lines = read_lines(run, ["chip", "ship"], "in", gold=False)
    assert lines.titles == ["chip", "ship"] and lines.references == ["", ""]
    with pytest.raises(InputError, match=r"in:1: expected word<TAB>phones, found 'chip'"):
        read_lines(run, ["chip"], "in", gold=True)
    pytest.importorskip("matplotlib")
    assert [number for number, _ in figures(run, lines)] == [0, 1]


def test_the_configuration_for_users_of_toolkits_is_whole(tmp_path: Path) -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", (PAGES / "from-toolkits.md").read_text(encoding="utf-8"), re.S)
    path = tmp_path / "config.yaml"
    path.write_text(block, encoding="utf-8")
    config = registry.load_config(path, ["model.attention=learned", "model.output=entmax"])
    assert config.model.encoder_layers == 6 and config.training.select == "bleu"


@pytest.mark.parametrize("page", [pytest.param(x, marks=[pytest.mark.slow] * (x == "export")) for x in USERS])
def test_every_block_runs_and_prints_what_it_says(page: str) -> None:
    for package in PACKAGES.get(page, ()):
        pytest.importorskip(package)
    assert run_blocks(PAGES / f"{page}.md")


@pytest.mark.parametrize("page", TOPICS)
def test_every_block_of_a_topic_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # one saves a figure
    assert run_blocks(DOCS / f"{page}.md")
