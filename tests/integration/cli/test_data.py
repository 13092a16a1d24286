"""The list of data sets, as text and as JSON."""

from __future__ import annotations

import json

from tsallis.toolkit.datasets.registry import SOURCES


def test_every_data_set_is_listed(tsallis) -> None:
    lines = tsallis("data", "list").stdout.split("\n")
    assert [line.split("\t")[0] for line in lines if line and not line.startswith("\t")] == list(SOURCES)
    assert {"imdb", "sst2", "trec", "easy-vqa", "daquar", "physionet2012"} <= set(SOURCES)
    daquar = lines[[line.split("\t")[0] for line in lines].index("daquar")]
    assert "may come to 1 GB" in daquar


def test_data_sets_by_text_and_language(tsallis) -> None:
    sets = [json.loads(line) for line in tsallis("data", "list", "--json").stdout.splitlines()]
    assert len(sets) > 5 and all(s["licence"] and s["citation"] and s["files"] for s in sets)
    german = [json.loads(x)["name"] for x in tsallis("data", "list", "--language", "de", "--json").stdout.splitlines()]
    assert german == [s["name"] for s in sets if "de" in s["languages"]] and 0 < len(german) < len(sets)
    (one,) = (json.loads(x) for x in tsallis("data", "list", "TASK 1: CAPTIONS", "--json").stdout.splitlines())
    assert one["name"] == "multi30k" and one["bytes"] > 10**6
    assert "no data set matches 'nothing'" in tsallis("data", "list", "nothing", status=2).stderr
