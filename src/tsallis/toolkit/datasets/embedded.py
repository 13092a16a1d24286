"""Data that comes with the package: forms of English verbs, and German numbers and dates with their English names.

`tools/english_verbs.py` and `tools/number_names.py` in the repository write the files.
"""

from __future__ import annotations

import lzma
from importlib.resources import files


def read_embedded(name: str) -> dict[str, list[list[str]]]:
    """Return the lines of an embedded file, each as a list of columns, by split ("train", "dev" and "test").

    >>> read_embedded("english-verbs")["dev"][0]
    ['abet', 'abets', 'V;3;SG;PRS']
    """
    packed = files("tsallis.toolkit.datasets").joinpath(f"{name}.tsv.xz").read_bytes()
    splits: dict[str, list[list[str]]] = {"train": [], "dev": [], "test": []}
    for line in lzma.decompress(packed).decode("utf-8").splitlines():
        split, *columns = line.split("\t")
        splits[split].append(columns)
    return splits


def german_english_numbers() -> dict[str, list[tuple[str, str]]]:
    """Return pairs of German and English texts by split ("train", "dev" and "test"). Splits share no German text.

    >>> german_english_numbers()["test"][0]
    ('Am Montag haben wir 44 kleine Äpfel gezählt.', 'We counted 44 small apples on Monday.')
    """
    return {
        split: [(german, english) for german, english in rows]
        for split, rows in read_embedded("german-english-numbers").items()
    }
