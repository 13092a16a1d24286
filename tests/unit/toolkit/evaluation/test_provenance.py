"""The origin of a result: the commit, the command and digests of files."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path

import pytest

from tsallis.errors import InputError
from tsallis.toolkit.evaluation import provenance


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a folder with an empty package that replaces the real one."""
    package = tmp_path / "src" / "tsallis"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    monkeypatch.setattr(provenance, "PACKAGE", package)
    provenance.find_commit.cache_clear()
    yield tmp_path
    provenance.find_commit.cache_clear()


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    done = subprocess.run(["git", "-C", str(folder), *identity, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_find_commit_returns_the_commit_and_marks_changes(checkout: Path) -> None:
    assert provenance.find_commit() is None
    git(checkout, "init", "--quiet")
    git(checkout, "add", "src")
    git(checkout, "commit", "--quiet", "-m", "first")
    commit = git(checkout, "rev-parse", "HEAD")
    provenance.find_commit.cache_clear()
    assert provenance.find_commit() == commit
    (checkout / "notes.txt").write_text("outside of the code")
    provenance.find_commit.cache_clear()
    assert provenance.find_commit() == commit
    (checkout / "src" / "tsallis" / "__init__.py").write_text("changed = True\n")
    provenance.find_commit.cache_clear()
    assert provenance.find_commit() == f"{commit}+changes"


def test_digest_matches_sha256sum(tmp_path: Path) -> None:
    for name, text in (("b.en", "two\n"), ("a.de", "eins\nzwei\n")):
        (tmp_path / name).write_text(text)
    command = "sha256sum a.de b.en | sha256sum"
    printed = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, check=True)
    digests = provenance.digest_files([tmp_path / "b.en", tmp_path / "a.de"])
    assert digests == {"files": 2, "bytes": 14, "sha256": printed.stdout.split()[0]}
    with pytest.raises(InputError, match=r"c\.fr: can't be read"):
        provenance.digest_files([tmp_path / "c.fr"])


def test_digest_ignores_order_of_files_with_equal_names(tmp_path: Path) -> None:
    paths = [tmp_path / folder / "train" for folder in "abc"]
    for path in paths:
        path.parent.mkdir()
        path.write_text(path.parent.name)
    digests = [provenance.digest_files(order) for order in permutations(paths)]
    assert digests == [digests[0]] * 6


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("/home/ada/seed=1", "seed=1"),
        ("/home/ada/seed=1/best", "best"),
        ("data.folder=/home/ada/seed=1", "data.folder=seed=1"),
        ("--with=/home/ada/seed=1/best", "--with=best"),
        ("--set=data.folder=/home/ada/data", "--set=data.folder=data"),
        ("runs/seed=1", "runs/seed=1"),
        ("training.seed=1", "training.seed=1"),
        ("data.train=[/home/ada/a b.tsv, more/b.tsv,/c]", "data.train=[a b.tsv, more/b.tsv,c]"),
        ("""x={a: '/home/ada/b', c: [/d/e:f], g: /h}""", """x={a: 'b', c: [e:f], g: h}"""),
        ('data.folder="/home/ada/data"', 'data.folder="data"'),
        ("data.languages=[spanish, german]", "data.languages=[spanish, german]"),
        ("/home/ada/data/", "data/"),
        ("~/x/y", "~/x/y"),
        ("and / or", "and / or"),
        ("=", "="),
        ("", ""),
    ],
)
def test_absolute_paths_are_shortened_to_their_last_part(text: str, short: str) -> None:
    assert provenance.shorten_path(text) == short


def test_a_command_holds_no_absolute_path() -> None:
    program = "/opt/python/tsallis/__main__.py"
    words = [program, "train", "recipes/a.yaml", "data.folder=/home/ada/data", "--run-dir", "/tmp/a b"]
    assert provenance.command_line(words) == "tsallis train recipes/a.yaml data.folder=data --run-dir 'a b'"
