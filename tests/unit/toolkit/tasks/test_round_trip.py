"""Encoding and decoding leave the outputs of every task unchanged: phones, subwords, bytes, labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from task_runs import config_of
from tsallis.toolkit.data.subwords import Subwords
from tsallis.toolkit.tasks.prepared import prepare
from tsallis.toolkit.tasks.registry import TASKS
from tsallis.toolkit.training import Run


class Case(NamedTuple):
    files: dict[str, str]
    outputs: list[str]
    data: dict[str, Any]


SENTENCES = {"train.de": "ein Hut\ndas Haus\n", "train.en": "a  hat, a 帽子\nthe house\n"}
OUTPUTS = ["a hat, a 帽子", "the house"]
PHONES = {"columns": {"features": None}, "tgt_symbols": "spaces"}
CASES = {
    "strings": Case({"train": "draw\tdrew \tV;PST\nsee\ts a w\tV;PST\n"}, ["drew", "s a w"], {}),
    "strings: phones": Case({"train": "ship\tʃ ɪ p\nchurch\ttʃ ɜː  tʃ\n"}, ["ʃ ɪ p", "tʃ ɜː tʃ"], PHONES),
    "translation": Case(SENTENCES, OUTPUTS, {"subwords": {"size": 35}}),
    "translation: words": Case(SENTENCES, OUTPUTS, {"subwords": {"kind": "word"}}),
    "translation: folded": Case(SENTENCES, OUTPUTS, {"subwords": {"size": 35}, "lowercase": True}),
    "translation: bytes": Case(SENTENCES, OUTPUTS, {}),
    "classification": Case({"train": "very good\tfine\nbad\tdull\n"}, ["very good", "bad"], {"min_count": 1}),
    "visual": Case({"train": "0\twhat?\ta box\n1\tred?\tno\n"}, ["a box", "no"], {"images": "images.npy"}),
    "language": Case({"train": "the cat  sat\na dog\n"}, ["the cat  sat", "a dog"], {}),
    "language: subwords": Case({"train": "the cat\na dog\n"}, ["the cat", "a dog"], {"subwords": {"size": 16}}),
}


def test_every_task_is_tested() -> None:
    assert {name.partition(":")[0] for name in CASES} == TASKS.keys()


@pytest.mark.parametrize("name", CASES)
def test_outputs_are_unchanged_by_encoding_and_decoding(name: str, tmp_path: Path) -> None:
    case, task_name = CASES[name], name.partition(":")[0]
    for file, text in case.files.items():
        (tmp_path / file).write_text(text, encoding="utf-8")
    np.save(tmp_path / "images.npy", np.zeros((2, 8, 8, 3), np.uint8))
    sections = {"folder": str(tmp_path), "train": "train", "dev": "train", **case.data}
    if task_name in ("translation", "language"):
        sections["cache"] = str(tmp_path)
    if name == "translation: bytes":
        model = tmp_path / "bytes.model"
        Subwords.train(["ein Hut", "das Haus", "a hat, the house"], 290, byte_fallback=True).save(model)
        sections["subwords"] = {"model": str(model)}
    config = config_of({"version": 1, "data": {"task": task_name, **sections}})
    prepared = prepare(config)
    task, symbols = prepared.task, prepared.data.vocabularies
    lines = task.encode(task.read_split(config.data, "train"), symbols)
    assert [symbols.tgt.decode(row) for row in lines.corpus.tgt] == case.outputs
    run = Run(tmp_path, None, symbols.src, symbols.tgt, task.facts(), {})
    assert [task.spell(text, run) for text in case.outputs] == [[*map(int, row)] for row in lines.corpus.tgt]
    if task.searched:  # decoded outputs are correct answers
        found, expected = (task.score(case.outputs, answers) for answers in (lines.references, case.outputs))
        assert [(score.name, score.value) for score in found] == [(x.name, x.value) for x in expected]
    assert [" ".join(text.split()) for text in lines.references] == [" ".join(text.split()) for text in case.outputs]
