"""The how-to pages: their blocks run in order and print the documented output, and their extensions work."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import tsallis
from pages import DOCS, run_blocks
from run_seed import SEED
from task_runs import encode, evaluate, read_lines, read_split, train, weights_of
from tsallis.continuous import GaussianBasis
from tsallis.continuous.densities import named
from tsallis.errors import InputError
from tsallis.ops.registry import BACKENDS, Entry, load
from tsallis.toolkit.inference import TextRun
from tsallis.toolkit.tasks import registry
from tsallis.toolkit.tasks.prepared import prepare

PAGES = DOCS / "how-to"
PAGE = PAGES / "add-a-task.md"
BACKEND = PAGES / "add-a-backend.md"
DENSITY = PAGES / "add-a-density.md"


def with_code(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.md") if "```python" in path.read_text(encoding="utf-8"))


# Pages for users; the pages on Hugging Face models and on clusters have separate tests.
ELSEWHERE = ("add-", "index", "hugging-face", "cluster")
USERS = [page for page in with_code(PAGES) if not page.startswith(ELSEWHERE)]
# Pages on single topics, without those on run folders (needs a run) and analysis (prints more than its comments).
TOPICS = [page for page in with_code(DOCS) if page not in ("analysis", "run-folder")]
# Required by single pages.
PACKAGES = {"export": ("onnxruntime", "onnxscript"), "distributions": ("pyro",)}
PACKAGES["distill"] = ("transformers", "accelerate")
LONG = ("export", "distributions", "distill", "own-models")  # more than five seconds each
Y = torch.tensor([2])


def module_of(page: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import the module that a page shows: its Python block that begins with a docstring."""
    blocks = page.read_text(encoding="utf-8").split("```python\n")[1:]
    (code,) = (text.split("```")[0] for text in blocks if text.startswith('"""'))
    module = ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)
    exec(compile(code, str(page), "exec"), module.__dict__)
    return module


@pytest.fixture
def pronunciation(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Register the task that the page defines."""
    module = module_of(PAGE, "tsallis.toolkit.tasks.pronunciation", monkeypatch)
    monkeypatch.setitem(registry.TASKS, module.Pronunciation.name, module.Pronunciation)
    return module.Pronunciation


@pytest.fixture
def sorting(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Register the backend that the page defines."""
    module = module_of(BACKEND, "tsallis.ops.sorting", monkeypatch)
    monkeypatch.setitem(BACKENDS, "sorting", Entry(module.__name__, ()))
    yield module
    load.cache_clear()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_documented_backend_matches_eager(
    sorting: ModuleType, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = torch.randn(6, 9, dtype=dtype)
    scores[1, 3:], scores[2], scores[3, 4], scores[4, 0] = -torch.inf, -torch.inf, torch.nan, torch.inf
    scores[5] += 1e6
    scores.requires_grad_()
    with tsallis.backend("eager"):
        expected = tsallis.sparsemax(scores)
        (right,) = torch.autograd.grad(expected[:, ::2].sum(), scores)
        others = tsallis.entmax15(scores), tsallis.sparsemax(scores.bfloat16()), tsallis.entmax_loss(scores[:1], Y)
    calls = []
    compute = sorting.entmax
    monkeypatch.setattr(sorting, "entmax", lambda *args: calls.append(args) or compute(*args))
    with tsallis.backend("sorting"):
        actual = tsallis.sparsemax(scores)
        (gradient,) = torch.autograd.grad(actual[:, ::2].sum(), scores)
        assert len(calls) == 1
        again = tsallis.entmax15(scores), tsallis.sparsemax(scores.bfloat16()), tsallis.entmax_loss(scores[:1], Y)
        attended = tsallis.entmax_attention(*torch.ones(3, 1, 2, 4, dtype=dtype), alpha=2.0)
    assert len(calls) == 2  # from attention; half precision uses the eager backend
    torch.testing.assert_close((actual, gradient), (expected, right), equal_nan=True)
    torch.testing.assert_close(again, others, equal_nan=True)
    torch.testing.assert_close(attended, torch.ones_like(attended))


def test_the_documented_density_matches_numerical_integrals(monkeypatch: pytest.MonkeyPatch) -> None:
    module = module_of(DENSITY, "tsallis.continuous.densities.raised_cosine", monkeypatch)
    (code,) = re.findall(r"```python\n(class .*?)```", DENSITY.read_text(encoding="utf-8"), re.S)
    scope = {**vars(named), "raised_cosine": module}
    exec(compile(code, str(DENSITY), "exec"), scope)
    density = scope["RaisedCosine"](torch.tensor(0.4, dtype=torch.float64), 0.02)
    basis = GaussianBasis(torch.tensor([0.1, 0.5, 0.6], dtype=torch.float64), 0.01)
    points = torch.linspace(-1, 2, 30_001, dtype=torch.float64)
    masses = density.pdf(points) * (points[1] - points[0])
    moments = masses @ torch.stack([points**0, points, (points - 0.4) ** 2], 1)
    torch.testing.assert_close(moments, torch.tensor([1, 0.4, 0.02], dtype=torch.float64), atol=1e-7, rtol=0)
    torch.testing.assert_close(density.expect(basis), masses @ basis(points), atol=1e-7, rtol=0)


@pytest.mark.slow
def test_the_documented_task_trains_and_answers(pronunciation: Any, tmp_path: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    (words,) = re.findall(r"printf '(.*)' > words\.tsv", page)
    words = words.replace("\\t", "\t").replace("\\n", "\n")
    (tmp_path / "words.tsv").write_text(words, encoding="utf-8")
    pairs = dict(line.split("\t") for line in words.splitlines())
    (content,) = re.findall(r"cat pronunciation\.yaml\n(.*?)\$", page, re.S)
    path = tmp_path / "pronunciation.yaml"
    path.write_text(content, encoding="utf-8")
    config = registry.load_config(path, [f"data.folder={tmp_path}", f"training.seed={SEED}"])
    prepared = prepare(config)
    assert prepared.task == pronunciation() and prepared.description["class"] == "rnn"
    run = train(prepared, tmp_path / "run")
    assert registry.task_of(run.task) == pronunciation()
    report = evaluate(run, encode(run, read_split(config.data, "dev")), beam_size=2)
    assert report["accuracy"] == 1.0
    text = TextRun(run, registry.task_of(run.task))
    assert [answer.text for answer in text.translate(pairs)] == [*pairs.values()]
    assert [found.text for found in text.suggest(["church"], ["tʃ ɜː"])[0].next][:1] == ["tʃ ɜː tʃ"]
    lines = read_lines(run, ["chip", "ship"], "in", gold=False)
    assert lines.titles == ["chip", "ship"] and lines.references == ["", ""]
    for line in ("chip", "chip\t ", "\ttʃ", "chip\ttʃ\tp"):
        with pytest.raises(InputError, match=r"in:1: expected word<TAB>phones, found '"):
            read_lines(run, [line], "in", gold=True)
    assert [number for number, _ in weights_of(run, lines)] == [0, 1]


def test_the_configuration_of_from_toolkits_is_valid(tmp_path: Path) -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", (PAGES / "from-toolkits.md").read_text(encoding="utf-8"), re.S)
    path = tmp_path / "config.yaml"
    path.write_text(block, encoding="utf-8")
    config = registry.load_config(path, ["model.attention=learned", "model.output=entmax"])
    assert config.model.encoder_layers == 6 and config.training.select == "bleu"


@pytest.mark.parametrize("page", [pytest.param(x, marks=[pytest.mark.slow] * (x in LONG)) for x in USERS])
def test_how_to_blocks_run_and_print_the_documented_output(page: str) -> None:
    for package in PACKAGES.get(page, ()):
        pytest.importorskip(package)
    assert run_blocks(PAGES / f"{page}.md")


@pytest.mark.parametrize("page", TOPICS)
def test_topic_blocks_run_and_print_the_documented_output(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # one page saves a figure
    assert run_blocks(DOCS / f"{page}.md")
