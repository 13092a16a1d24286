"""Fetching data sets, without a network: what is known of them, and what is refused."""

from __future__ import annotations

from tsallis.toolkit.datasets.registry import SOURCES


def test_every_data_set_is_listed(tsallis) -> None:
    lines = tsallis("data", "list").stdout.split("\n")
    assert [line.split("\t")[0] for line in lines if line and not line.startswith("\t")] == list(SOURCES)
    assert {"imdb", "sst2", "trec", "easy-vqa", "daquar", "physionet2012"} <= set(SOURCES)
    daquar = lines[[line.split("\t")[0] for line in lines].index("daquar")]
    assert "may come to 1 GB" in daquar
