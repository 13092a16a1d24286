"""The pages build without a warning, none hides another, and all their formulas are converted."""

from __future__ import annotations

import json
import math
import re
import runpy
import shutil
import subprocess
import sys
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from public_names import PUBLIC_NAMES

DOCS = Path(__file__).resolve().parents[2] / "docs"
HOW_TO = DOCS / "how-to"


def contents(page: Path) -> list[str]:
    """Return the tables of contents of a page."""
    return re.findall(r"```\{toctree\}\n(.*?)```", page.read_text(encoding="utf-8"), re.S)


def listed(tree: str) -> list[str]:
    return [line for line in tree.splitlines() if line and not line.startswith(":")]


TREES = contents(DOCS / "index.md")
PAGES = [page for tree in TREES for page in listed(tree)]
PAGES += [f"how-to/{page}" for tree in contents(HOW_TO / "index.md") for page in listed(tree)]
# Sphinx creates pages with these names and silently overwrites ours.
RESERVED = {"search", "genindex", "modindex", "py-modindex"}


def build(source: Path, out: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", str(source), str(out)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the HTML pages, built as `make docs` does."""
    for package in ("sphinx", "furo", "myst_parser", "latex2mathml", "numpy"):
        pytest.importorskip(package)
    out = tmp_path_factory.mktemp("site")
    done = build(DOCS, out)
    assert done.returncode == 0, done.stderr
    return out


def test_no_page_has_a_name_reserved_by_sphinx() -> None:
    assert {path.stem for path in DOCS.rglob("*.md")} & RESERVED == set()


def test_every_page_is_in_the_contents_once_under_a_caption() -> None:
    assert sorted(PAGES) == sorted(
        {str(path.relative_to(DOCS).with_suffix("")) for path in DOCS.rglob("*.md")} - {"index"}
    )
    assert all(":caption: " in tree for tree in TREES)


def test_the_table_lists_every_page_on_adding_a_part() -> None:
    pages = {path.stem for path in HOW_TO.glob("add-*.md")}
    table = (HOW_TO / "index.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| a.* \| \[.*\]\((add-a-[\w-]+)\.md\) \|", table, re.M)) == sorted(pages)


@pytest.mark.parametrize("page", [*DOCS.glob("*.md"), *HOW_TO.glob("*.md")], ids=lambda path: path.stem)
def test_links_work_without_sphinx(page: Path) -> None:
    """Pages must work on sites that show Markdown without Sphinx roles; only the reference uses roles."""
    text = page.read_text(encoding="utf-8")
    assert "{doc}" not in text and (page.stem == "api" or not re.search(r"\{\w+\}`", text))
    links = re.findall(r"\]\(((?!https?:)[^)#\s]+)", re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.S))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_architecture_page_names_existing_files() -> None:
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    package = DOCS.parent / "src" / "tsallis"
    paths = set(re.findall(r"`([\w/]+\.(?:py|cpp|md))`", text))
    assert len(paths) > 15
    assert [path for path in paths if not ((package / path).is_file() or (DOCS.parent / path).is_file())] == []
    floors = {
        word for line in re.findall(r"```text\n(.*?)```", text, re.S)[0].splitlines() for word in line[:28].split()
    }
    there = {path.name for path in package.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert there - floors - {f"{word}.py" for word in floors} == {"__init__.py", "__main__.py"}


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_html_pages_contain_the_sections_of_their_source(site: Path, page: str) -> None:
    """Check that the HTML file contains the page, with its title and its sections."""
    ours = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    if mark := re.search("^<!-- (commands|settings) -->$", ours, re.M):
        ours = ours.replace(mark[0], runpy.run_path(str(DOCS / "reference.py"))[mark[1]]())
    titles = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", ours, flags=re.S), re.M)
    headings = re.findall(r"<h[1-6]>(.*?)<a class=", (site / f"{page}.html").read_text(encoding="utf-8"), re.S)
    shown = [unescape(re.sub(r"<[^>]+>", "", heading)) for heading in headings]
    assert titles
    assert [plain(title) for title in titles] == [plain(title) for title in shown]


def test_the_reference_describes_exactly_the_public_names() -> None:
    module, names = "", {name: set[str]() for name in PUBLIC_NAMES}
    for line in (DOCS / "api.md").read_text(encoding="utf-8").splitlines():
        if match := re.fullmatch(r"\.\. currentmodule:: (\S+)", line):
            module = match[1]
        elif match := re.match(r"\.\. (?:autofunction|autoclass|py:function|py:data):: (\w+)(?:\(.*\))?$", line):
            names[module].add(match[1])
    names["tsallis.functional"] = names["tsallis"]  # the same functions
    modules = {name.removeprefix("tsallis.") for name in PUBLIC_NAMES}
    assert names == {name: set(public) - modules for name, public in PUBLIC_NAMES.items()}


@pytest.mark.slow
def test_functions_are_in_the_reference_with_types_and_source(site: Path) -> None:
    import tsallis

    html = (site / "api.html").read_text(encoding="utf-8")
    for name in set(tsallis.__all__) - {"nn", "compat", "continuous", "distributions", "backend"}:
        entry = re.search(rf'<dt class="sig[^>]*id="tsallis\.{name}">(.*?)</dt>', html, re.S)
        assert entry, name
        assert "viewcode-link" in entry[1], name
        signature = unescape(re.sub(r"<[^>]+>", "", entry[1]))
        assert re.search(r"\w+: (Tensor|int)", signature), signature
        assert ("→" in signature) != isinstance(getattr(tsallis, name), type), signature


@pytest.mark.slow
def test_types_are_shown_by_their_names(site: Path) -> None:
    """Signatures contain no expanded types, no internals of Sphinx, and no memory addresses of defaults."""
    html = (site / "api.html").read_text(encoding="utf-8")
    signatures = [unescape(re.sub(r"<[^>]+>", "", sig)) for sig in re.findall(r'<dt class="sig.*?</dt>', html, re.S)]
    assert [sig for sig in signatures if re.search(r"~|\b_[A-Z]|ForwardRef| at 0x", sig)] == []


@pytest.mark.slow
@pytest.mark.usefixtures("site")
@pytest.mark.parametrize(
    ("formula", "warning"),
    [(r"\arg\max_p p^\top z", ""), (r"\frac{1}{2} \argh_p z", r"latex2mathml does not know \argh in")],
)
def test_unknown_latex_commands_fail_the_build(tmp_path: Path, formula: str, warning: str) -> None:
    (tmp_path / "docs").mkdir()
    shutil.copy(DOCS / "conf.py", tmp_path / "docs")
    shutil.copytree(DOCS / "_static", tmp_path / "docs" / "_static")
    (tmp_path / "docs" / "index.md").write_text(f"# A formula\n\n$$ {formula} $$\n\nand ${formula}$.\n")
    done = build(tmp_path / "docs", tmp_path / "site")
    html = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert html.count("<math ") == 2
    assert bool(done.returncode) == bool(warning), done.stderr
    assert done.stderr.count(warning) == 2 if warning else not done.stderr
    assert ("\\arg" in re.sub(r"<annotation.*?</annotation>", "", html, flags=re.S)) == bool(warning)


def plain(title: str) -> str:
    """Return the words of a title without the marks of code and formulas."""
    return re.sub(r"[`$\\*]", "", title).replace("’", "'").strip()


@pytest.mark.slow
def test_every_link_within_the_site_leads_somewhere(site: Path) -> None:
    pages = {path: path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    anchors = {path: set(re.findall(r'\bid="([^"]+)"', text)) for path, text in pages.items()}
    dead, count = [], 0
    for path, text in pages.items():
        for link in re.findall(r'(?:href|src)="([^"]+)"', text):
            address, _, anchor = unescape(link).partition("#")
            if re.match(r"[a-z]+:", address) or path.parent.name == "_modules":
                continue
            target = (path.parent / address.partition("?")[0]).resolve() if address else path
            target = target / "index.html" if target.is_dir() else target
            count += 1
            if not target.is_file() or (anchor and target in anchors and anchor not in anchors[target]):
                dead.append(f"{path.relative_to(site)}: {link}")
    assert count > 1000 and dead == []


@pytest.mark.slow
@pytest.mark.parametrize("alpha", ["1", "1.25", "1.5", "2"])
def test_the_interactive_picture_computes_entmax(site: Path, browser: Any, alpha: str) -> None:
    import torch

    import tsallis

    tab = browser.new_page()
    tab.goto((site / "family.html").as_uri())
    scores = [1.5, 1.2, 0.5, -0.25, -3]
    for name, value in zip(("alpha", *"abcde"), (alpha, *scores), strict=True):
        tab.fill(f'.family input[data-name="{name}"]', str(value))
    shown = [float(text) for text in tab.locator(".family output").all_inner_texts()]
    expected = tsallis.entmax(torch.tensor(scores, dtype=torch.float64), float(alpha))
    assert shown == pytest.approx(expected.tolist(), abs=5e-5 + 1e-9)
    assert [text == "0" for text in tab.locator(".family output").all_inner_texts()] == (expected == 0).tolist()
    assert tab.inner_text(".family p").startswith(f"{int((expected > 0).sum())} of 5 ")
    tab.close()


@pytest.mark.slow
@pytest.mark.parametrize("page", ["index", "family", "results", "api"])
def test_pages_are_accessible_and_fit_a_phone(site: Path, browser: Any, page: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    context = browser.new_context(viewport={"width": 390, "height": 800})
    tab, requests = context.new_page(), []
    tab.on("request", lambda request: requests.append(request.url))
    tab.goto((site / f"{page}.html").as_uri())
    faults = axe.Axe().run(tab).response["violations"]
    serious = [(f["id"], f["nodes"][0]["html"]) for f in faults if f["impact"] in ("serious", "critical")]
    overflow = tab.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    context.close()
    assert serious == [] and overflow <= 0
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []


@pytest.mark.slow
def test_the_pages_show_all_gallery_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(str(DOCS / "figures"))
    page = "".join((DOCS / f"{name}.md").read_text(encoding="utf-8") for name in ("family", "continuous"))
    script = DOCS / "figures" / "gallery.py"
    runpy.run_path(str(script))["main"](str(tmp_path))
    names = [path.name for path in tmp_path.iterdir()]
    assert len(names) == 3 and all(f"(figures/{name})" in page for name in names)
    assert {path.name for path in DOCS.glob("figures/gallery-*")} == set(names)


@pytest.mark.slow
def test_paper_figures_are_drawn_from_report_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(str(DOCS / "figures"))
    sure, half = (0.0, 1.0), (math.log(0.5), 0.5)
    edges = [(0, 1, "▁in", *sure), (1, 2, "to", *half), (1, 3, "side", *half), (2, 4, "</s>", *sure)]
    names = ("parent", "node", "symbol", "log_prob", "total", "end")
    tree = [dict(zip(names, (*edge[:4], edge[3], edge[2] == "</s>"), strict=True)) for edge in edges]
    steps = [
        {"gold": "▁in", "prob": 1.0, "support": 1, "words": [["▁in", 1.0]]},
        {"gold": "x", "prob": 0.0, "support": 7, "words": [["b", 0.75], ["c", 0.25]]},
    ] * 40
    sentence = {"tree": {"edges": tree, "mass": 1.0, "certificate": "complete", "bound": None}, "steps": steps}
    numbers = tmp_path / "numbers.json"
    numbers.write_text(json.dumps({"runs": [{"sentences": [sentence]}]}), encoding="utf-8")
    main = runpy.run_path(str(DOCS / "figures" / "papers.py"))["main"]
    for name in ("tree", "steps"):
        main(str(numbers), name, str(tmp_path / f"{name}.svg"))
        assert (tmp_path / f"{name}.svg").read_text(encoding="utf-8").startswith("<?xml")


def test_the_reference_pages_describe_every_command_and_setting() -> None:
    for package in ("typer", "pydantic"):
        pytest.importorskip(package)
    import typer

    from tsallis.toolkit.cli import app
    from tsallis.toolkit.tasks.registry import TASKS

    reference = runpy.run_path(str(DOCS / "reference.py"))
    described = reference["commands"]()
    commands = typer.main.get_command(app).commands
    sections = {part.split("\n")[0]: part for part in described.split("## tsallis ")}
    for name, command in commands.items():
        if not hasattr(command, "commands"):
            assert all(f"`{option}`" in sections[name] for p in command.params for option in p.opts if option[0] == "-")
    settings = reference["settings"]()
    for task in TASKS.values():
        fields = [name for section in (task.Config, *task.models.values()) for name in section.model_fields]
        assert all(f"`{name}` " in settings for name in fields)
    for name, meaning in re.findall(r"^(`\S+`).*\n: (.*)$", settings, re.M):
        assert not meaning.startswith(("*", "A text.")), f"{name} needs a description"
        assert "None" not in meaning, f"{name}: YAML has null, not None: {meaning}"
    assert "<!-- commands -->" in (DOCS / "command-line.md").read_text(encoding="utf-8")
    assert "<!-- settings -->" in (DOCS / "settings.md").read_text(encoding="utf-8")


def test_every_score_is_explained() -> None:
    from tsallis.analysis.score_names import TEXT_SCORES
    from tsallis.toolkit.evaluation import Evaluation
    from tsallis.toolkit.tasks.registry import TASKS

    text = (DOCS / "command-line.md").read_text(encoding="utf-8").partition("## Scores")[2]
    tasks = {name for task in TASKS.values() for name in task.scores}
    names = {name.removeprefix("macro_") for name in {*tasks, *TEXT_SCORES, *Evaluation.__dataclass_fields__}}
    assert not [name for name in sorted(names - {"seconds"}) if f"`{name}`" not in text]
