"""The embedded English verbs: correct forms, and splits that measure how well rules are learned."""

from __future__ import annotations

import lzma
from collections import Counter

import pytest

from repository_tools import load_program
from tsallis.toolkit.tasks.strings import StringsExample, english_verbs

generator = load_program("tools/english_verbs")
CELLS, SPLITS = generator.CELLS, ("train", "dev", "test")


@pytest.fixture(scope="module")
def verbs() -> dict[str, list[StringsExample]]:
    return english_verbs()


def test_the_embedded_file_matches_the_generator() -> None:
    assert lzma.decompress(generator.TABLE.read_bytes()).decode("ascii") == generator.table()


def test_every_lemma_has_its_four_cells_in_one_split(verbs: dict[str, list[StringsExample]]) -> None:
    assert tuple(verbs) == SPLITS
    lemmas = {split: list(dict.fromkeys(e.source for e in examples)) for split, examples in verbs.items()}
    for split, examples in verbs.items():
        cells = [(lemma, cell) for lemma in lemmas[split] for cell in CELLS]
        assert list(dict.fromkeys((e.source, ";".join(e.features)) for e in examples)) == cells
        assert all(e.target and e.target.isascii() and e.target.islower() and e.language is None for e in examples)
    everywhere = [lemma for split in SPLITS for lemma in lemmas[split]]
    assert len(everywhere) == len(set(everywhere)) >= 900
    assert 0.75 < len(lemmas["train"]) / len(everywhere) < 0.85
    assert all(0.07 < len(lemmas[split]) / len(everywhere) < 0.13 for split in ("dev", "test"))


def test_held_out_irregular_verbs_are_prefixed_training_verbs(verbs: dict[str, list[StringsExample]]) -> None:
    """A held-out irregular verb is a prefix plus a verb whose forms are in the training data."""
    known = {(e.source, e.features): e.target for e in verbs["train"]}
    irregular = {lemma for lemma, kind, _ in generator._read_list() if kind == "irregular"}
    held_out = {e.source for split in ("dev", "test") for e in verbs[split]} & irregular
    assert {"understand", "withhold"} <= held_out
    for example in (e for split in ("dev", "test") for e in verbs[split] if e.source in held_out):
        prefix = next(p for p in generator.PREFIXES if (example.source.removeprefix(p), example.features) in known)
        assert example.target == prefix + str(known[example.source.removeprefix(prefix), example.features])


def test_train_contains_all_symbols_of_dev_and_test(verbs: dict[str, list[StringsExample]]) -> None:
    def record(split: str) -> set[str]:
        return {t for e in verbs[split] for t in (*e.src_tokens(), *e.tgt_tokens())}

    assert record("dev") | record("test") <= record("train")


def test_verbs_with_two_spellings_are_only_in_train(verbs: dict[str, list[StringsExample]]) -> None:
    either = {lemma for lemma, kind, _ in generator._read_list() if kind == "either"}
    counts = {split: Counter((e.source, e.features) for e in examples) for split, examples in verbs.items()}
    twice = {split: {lemma for (lemma, _), n in count.items() if n == 2} for split, count in counts.items()}
    assert twice == {"train": either, "dev": set(), "test": set()} and len(either) > 60
    assert max(counts["train"].values()) == 2
    assert not {"model", "travel"} & {e.source for examples in verbs.values() for e in examples}
