"""The example with a pretrained encoder runs from start to end with a tiny encoder of random weights."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

pytest.importorskip("transformers")  # before the modules that import it
pytest.importorskip("accelerate")

import transformers as tf

from integration.cli.conftest import run_example

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "benchmarks" / "results"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "what", "who", "is", "the", "oldest", "city", "in", "##s", "?"]


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    folder = tmp_path / "encoder"
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(WORDS), encoding="utf-8")
    tf.BertTokenizerFast.from_pretrained(folder).save_pretrained(folder)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
    tf.BertModel(tf.BertConfig(vocab_size=len(WORDS), **sizes)).save_pretrained(folder)
    return folder


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_all_parts_write_rows_like_the_committed_ones(encoder: Path, tmp_path: Path) -> None:
    for split in ("train", "test"):
        lines = [f"{i % 6}\t{('what is the oldest city', 'who is in the citys')[i % 2]} ?" for i in range(24)]
        (tmp_path / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    out, page = tmp_path / "out", tmp_path / "page.html"
    sizes = ["--steps", "4", "--batch", "4", "--seeds", "1", "2", "--sentences", "12"]
    inputs = ["--model", encoder, "--data", tmp_path, *sizes, "--out", out, "--report", page]
    run_example("sparse_minilm", *inputs)
    for part, count in (("similarity", 8), ("questions", 10), ("heads", 8)):
        rows, committed = (rows_of(folder / f"minilm-{part}.csv") for folder in (out, RESULTS))
        assert list(rows[0]) == list(committed[0]) and len(rows) == count
        if part != "heads":
            assert [row["variant"] for row in rows] == [row["variant"] for row in committed]
    first = rows_of(out / "minilm-similarity.csv")[0]
    assert float(first["largest_change"]) < 1e-5 and float(first["cosine"]) == 1
    questions = {row["variant"]: row for row in rows_of(out / "minilm-questions.csv")}
    assert float(questions["softmax"]["density"]) == 1 and float(questions["led to 2"]["alpha"]) == 2
    assert "<title>all-MiniLM-L6-v2<" in page.read_text(encoding="utf-8")
