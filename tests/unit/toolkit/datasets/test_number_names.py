"""The embedded numbers and dates: reproducible, with splits that share no source."""

from __future__ import annotations

import lzma

from repository_tools import load_program
from tsallis.toolkit.datasets.embedded import german_english_numbers
from tsallis.toolkit.datasets.split_mix import Random

generator = load_program("tools/number_names")
SIZES, TEMPLATES = generator.SIZES, generator.TEMPLATES
CORPUS = german_english_numbers()


def test_the_splits_share_no_source() -> None:
    assert {split: len(pairs) for split, pairs in CORPUS.items()} == SIZES
    assert len({german for pairs in CORPUS.values() for german, _ in pairs}) == sum(SIZES.values())


def test_a_source_has_one_translation() -> None:
    random, result = Random(7), dict(pair for pairs in CORPUS.values() for pair in pairs)
    for i in range(20_000):
        german, english = TEMPLATES[i % len(TEMPLATES)](random)
        assert result.setdefault(german, english) == english, german


def test_the_embedded_file_matches_the_generator() -> None:
    assert lzma.decompress(generator.TABLE.read_bytes()).decode() == generator.table()


def test_random_matches_published_splitmix64_values() -> None:
    # The first values of SplitMix64 with seed 1234567, from the code of its authors.
    random = Random(1234567)
    assert [random.below(1 << 64) for _ in range(3)] == [6457827717110365317, 3203168211198807973, 9817491932198370423]
