"""Fetching data sets, without a network: what is known of them, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tsallis.toolkit.datasets.registry import SOURCES


def test_every_data_set_is_listed(tsallis) -> None:
    lines = tsallis("data", "list").stdout.split("\n")
    assert [line.split("\t")[0] for line in lines if line and not line.startswith("\t")] == list(SOURCES)
    assert {"imdb", "sst2", "trec", "easy-vqa", "daquar", "physionet2012"} <= set(SOURCES)
    daquar = lines[[line.split("\t")[0] for line in lines].index("daquar")]
    assert "may come to 1 GB" in daquar


@pytest.mark.parametrize(
    ("name", "file"), [("mr", "train.tsv"), ("sigmorphon2018", SOURCES["sigmorphon2018"].files[0].name)]
)
def test_a_file_of_something_else_is_refused(tsallis, tmp_path: Path, name: str, file: str) -> None:
    (tmp_path / file).write_text("1\tmine\n")
    refused = tsallis("data", "get", name, "--folder", tmp_path, status=2).stderr.strip()
    assert refused.startswith("tsallis: ") and f"{file}: is not the known file" in refused and "\n" not in refused
    assert (tmp_path / file).read_text() == "1\tmine\n"


def test_a_file_that_a_set_lacks(tsallis, tmp_path: Path) -> None:
    refused = tsallis("data", "get", "imdb", "--folder", tmp_path, "--languages", "dev.tsv", status=2).stderr
    assert "imdb has no file 'dev.tsv'; it has test.tsv, train.tsv" in refused
