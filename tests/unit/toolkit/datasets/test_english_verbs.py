"""The embedded English verbs: right forms, and splits that measure the rules."""

from __future__ import annotations

import lzma
from collections import Counter

import pytest

from repository_tools import load_tool
from tsallis.toolkit.tasks.strings import StringsExample, english_verbs

generator = load_tool("english_verbs")
CELLS, SPLITS = generator.CELLS, ("train", "dev", "test")

# he ..., yesterday, has ..., is ...: written by hand, one for every rule and for what the rules must leave alone.
FORMS = """
walk walks walked walked walking
bake bakes baked baked baking
agree agrees agreed agreed agreeing
eye eyes eyed eyed eyeing
dye dyes dyed dyed dyeing
die dies died died dying
argue argues argued argued arguing
singe singes singed singed singeing
try tries tried tried trying
play plays played played playing
parody parodies parodied parodied parodying
catalog catalogs cataloged cataloged cataloging
kiss kisses kissed kissed kissing
quiz quizzes quizzed quizzed quizzing
waltz waltzes waltzed waltzed waltzing
focus focuses focused focused focusing
reach reaches reached reached reaching
ache aches ached ached aching
echo echoes echoed echoed echoing
ski skis skied skied skiing
panic panics panicked panicked panicking
stop stops stopped stopped stopping
equip equips equipped equipped equipping
visit visits visited visited visiting
prefer prefers preferred preferred preferring
offer offers offered offered offering
develop develops developed developed developing
signal signals signaled/signalled signaled/signalled signaling/signalling
control controls controlled controlled controlling
cancel cancels canceled/cancelled canceled/cancelled canceling/cancelling
compel compels compelled compelled compelling
format formats formatted formatted formatting
transfer transfers transferred transferred transferring
crochet crochets crocheted crocheted crocheting
add adds added added adding
row rows rowed rowed rowing
have has had had having
do does did done doing
go goes went gone going
undo undoes undid undone undoing
see sees saw seen seeing
lie lies lay lain lying
quit quits quit quit quitting
begin begins began begun beginning
fly flies flew flown flying
broadcast broadcasts broadcast broadcast broadcasting
withhold withholds withheld withheld withholding
behave behaves behaved behaved behaving
welcome welcomes welcomed welcomed welcoming
"""


@pytest.fixture(scope="module")
def verbs() -> dict[str, list[StringsExample]]:
    return english_verbs()


@pytest.mark.parametrize("line", FORMS.split("\n")[1:-1], ids=lambda line: line.split()[0])
def test_forms(line: str) -> None:
    lemma, *forms = line.split()
    assert generator.paradigms()[lemma][1] == tuple(tuple(form.split("/")) for form in forms)


def test_the_file_is_what_the_rules_write() -> None:
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


def test_what_no_rule_predicts_is_in_train(verbs: dict[str, list[StringsExample]]) -> None:
    """A held-out irregular verb is a prefix on one whose forms training has shown."""
    known = {(e.source, e.features): e.target for e in verbs["train"]}
    irregular = {lemma for lemma, kind, _ in generator._read_list() if kind == "irregular"}
    held_out = {e.source for split in ("dev", "test") for e in verbs[split]} & irregular
    assert {"understand", "withhold"} <= held_out
    for example in (e for split in ("dev", "test") for e in verbs[split] if e.source in held_out):
        prefix = next(p for p in generator.PREFIXES if (example.source.removeprefix(p), example.features) in known)
        assert example.target == prefix + str(known[example.source.removeprefix(prefix), example.features])


def test_training_shows_every_letter_and_tag_of_the_others(verbs: dict[str, list[StringsExample]]) -> None:
    def record(split: str) -> set[str]:
        return {t for e in verbs[split] for t in (*e.src_tokens(), *e.tgt_tokens())}

    assert record("dev") | record("test") <= record("train")


def test_two_right_spellings_are_rows_of_train_alone(verbs: dict[str, list[StringsExample]]) -> None:
    either = {lemma for lemma, kind, _ in generator._read_list() if kind == "either"}
    counts = {split: Counter((e.source, e.features) for e in examples) for split, examples in verbs.items()}
    twice = {split: {lemma for (lemma, _), n in count.items() if n == 2} for split, count in counts.items()}
    assert twice == {"train": either, "dev": set(), "test": set()} and len(either) > 60
    assert max(counts["train"].values()) == 2
    assert not {"model", "travel"} & {e.source for examples in verbs.values() for e in examples}


def test_the_list_names_no_verb_twice() -> None:
    counts = Counter(lemma for lemma, _, _ in generator._read_list())
    assert [lemma for lemma, n in counts.items() if n > 1] == []


def test_forms_follow_from_the_lemma(verbs: dict[str, list[StringsExample]]) -> None:
    """Slips of the rules that no list of examples would catch: a lost stem, a tripled letter, a stray ending."""
    endings = {"V;3;SG;PRS": "s", "V;V.PTCP;PRS": "ing"}
    for example in (e for examples in verbs.values() for e in examples):
        form, ending = str(example.target), endings.get(";".join(example.features), "")
        assert form.endswith(ending) and (not ending or form != example.source)
        assert not any(c * 3 in form for c in form), form
        stem = example.source[:-2] if example.source.endswith("ie") else example.source.rstrip("ey")
        assert not ending or example.source == "have" or form.startswith(stem), form
