"""Write the English verbs and their forms that `tsallis.toolkit.datasets` contains, `english-verbs.tsv.xz`.

    python tools/english_verbs.py

The lemmas are in `english_verbs.txt`: regular verbs, verbs of more than one syllable that double their last consonant,
verbs with either spelling, and irregular verbs with their two past forms. Spelling is American. If an unstressed last
syllable ends in l, both spellings are valid, as in dictionaries: "canceled or cancelled".
"""

from __future__ import annotations

import hashlib
import lzma
import re
from pathlib import Path

HERE = Path(__file__).parent
TABLE = HERE.parent / "src/tsallis/toolkit/datasets/english-verbs.tsv.xz"
CELLS = ("V;3;SG;PRS", "V;PST", "V;V.PTCP;PST", "V;V.PTCP;PRS")
PREFIXES = ("be", "for", "fore", "inter", "mis", "out", "over", "re", "un", "under", "up", "with")
VOWELS = "aeiou"
DOUBLING_IRREGULAR = ("begin",)
KEEPS_E = ("singe", "tinge", "swinge")  # singeing, not singing


def third_person(lemma: str) -> str:
    """Return the third person singular of the present.

    >>> [third_person(v) for v in ("walk", "try", "play", "catch", "echo", "quiz")]
    ['walks', 'tries', 'plays', 'catches', 'echoes', 'quizzes']
    """
    if lemma == "have":
        return "has"
    if re.search(r"[^aeiou]y$", lemma):
        return lemma[:-1] + "ies"
    if re.search(r"[^aeiou]iz$", lemma) or lemma.endswith("uiz"):
        return lemma + "zes"
    if re.search(r"(s|x|z|ch|sh|[^aeiou]o)$", lemma):
        return lemma + "es"
    return lemma + "s"


def past(lemma: str, doubles: bool = False) -> str:
    """Return the past form of a regular verb.

    >>> past("walk"), past("bake"), past("try"), past("stop"), past("prefer", doubles=True), past("panic")
    ('walked', 'baked', 'tried', 'stopped', 'preferred', 'panicked')
    """
    if lemma.endswith("e"):
        return lemma + "d"
    if re.search(r"[^aeiou]y$", lemma):
        return lemma[:-1] + "ied"
    return _stem(lemma, doubles) + "ed"


def present_participle(lemma: str, doubles: bool = False) -> str:
    """Return the present participle.

    >>> [present_participle(v) for v in ("walk", "bake", "die", "agree", "dye", "stop", "singe")]
    ['walking', 'baking', 'dying', 'agreeing', 'dyeing', 'stopping', 'singeing']
    """
    if lemma.endswith("ie"):
        return lemma[:-2] + "ying"
    if lemma.endswith("e") and not re.search(r"(ee|oe|ye)$", lemma) and lemma not in KEEPS_E:
        return lemma[:-1] + "ing"
    return _stem(lemma, doubles) + "ing"


def either_spelling(lemma: str) -> tuple[tuple[str, ...], ...]:
    """Return all valid forms, for each of the four cells, of a verb that may double its last consonant.

    >>> either_spelling("cancel")[1:3]
    (('canceled', 'cancelled'), ('canceled', 'cancelled'))
    """
    both = (False, True)
    pasts = tuple(past(lemma, doubles) for doubles in both)
    return (third_person(lemma),), pasts, pasts, tuple(present_participle(lemma, doubles) for doubles in both)


def _stem(lemma: str, doubles: bool) -> str:
    """Return the stem before -ed and -ing: double a consonant after a single stressed vowel, and turn c into ck."""
    if lemma.endswith("c"):
        return lemma + "k"
    short = re.fullmatch(rf"(?:[^{VOWELS}]*qu|[^{VOWELS}]*)[{VOWELS}y][^{VOWELS}wxyhc]", lemma)
    return lemma + lemma[-1] if doubles or (short and len(lemma) > 2) else lemma


def paradigms() -> dict[str, tuple[str, tuple[tuple[str, ...], ...]]]:
    """Return the split of every lemma and the valid forms of its four cells."""
    entries: dict[str, tuple[str, tuple[tuple[str, ...], ...]]] = {}
    listed = _read_list()
    irregular = {lemma: (forms[0], forms[-1]) for lemma, kind, forms in listed if kind == "irregular"}
    for lemma, kind, forms in listed:
        doubles = kind == "doubling"
        pasts = irregular.get(lemma, (past(lemma, doubles),) * 2)
        base = next((lemma[len(p) :] for p in PREFIXES if lemma.startswith(p) and lemma[len(p) :] in irregular), "")
        doubles = doubles or bool(forms and base and _stem(base, False) != base) or lemma in DOUBLING_IRREGULAR
        cells = (third_person(lemma), *pasts, present_participle(lemma, doubles))
        right = either_spelling(lemma) if kind == "either" else tuple((form,) for form in cells)
        derived = bool(forms and base)
        in_train = kind == "either" or (kind == "irregular" and not derived)
        entries[lemma] = ("train" if in_train else _split(lemma), right)
    return dict(sorted(entries.items()))


def _split(lemma: str) -> str:
    bucket = int(hashlib.sha256(lemma.encode()).hexdigest(), 16) % 10
    return {0: "dev", 1: "test"}.get(bucket, "train")


def _read_list() -> list[tuple[str, str, list[str]]]:
    """Return the lemma, the kind and the irregular past forms of every entry in `english_verbs.txt`."""
    text = (HERE / "english_verbs.txt").read_text(encoding="utf-8")
    kind, entries = "", []
    for line in text.split("\n"):
        if line.startswith("["):
            kind = line.strip("[]")
        elif kind == "irregular" and line:
            lemma, *forms = line.split()
            entries.append((lemma, kind, forms))
        else:
            entries += [(lemma, kind, []) for lemma in line.split()]
    return entries


def table() -> str:
    """Return the table with one line per form: split, lemma, form and tags."""
    rows = [
        f"{split}\t{lemma}\t{form}\t{tags}\n"
        for lemma, (split, cells) in paradigms().items()
        for forms, tags in zip(cells, CELLS, strict=True)
        for form in forms
    ]
    return "".join(rows)


if __name__ == "__main__":
    TABLE.write_bytes(lzma.compress(table().encode(), preset=9))
