"""Vocabularies, inflection files, batches and the embedded verbs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tsallis.data import BatchPlan, InflectionExample, Vocabulary, english_verbs, make_batch, read_inflection
from tsallis.data.corpus import Corpus
from tsallis.data.inflection import parse_line, read_languages
from tsallis.data.verbs import CELLS, paradigms, past, present_participle, third_person
from tsallis.errors import InputError


def test_vocabulary_numbers_by_frequency_then_code_point() -> None:
    vocabulary = Vocabulary.build([["b", "a"], ["b", "c"], ["é"]])
    assert vocabulary.symbols == ("b", "a", "c", "é") and len(vocabulary) == 8
    assert vocabulary.encode(["c", "zzz", "b"]) == [6, 3, 4]
    assert vocabulary.decode([1, 6, 3, 2, 0]) == ["c", "<unk>"]
    assert Vocabulary.build([["b", "a"], ["b"]], min_count=2).symbols == ("b",)


def test_symbols_that_read_like_special_ones_are_symbols() -> None:
    vocabulary = Vocabulary.build([["<s>", "<pad>", "</s>"]])
    numbers = vocabulary.encode(["<s>", "<pad>", "</s>"])
    assert min(numbers) >= 4 and vocabulary.decode(numbers) == ["<s>", "<pad>", "</s>"]


def test_vocabulary_files(tmp_path: Path) -> None:
    vocabulary = Vocabulary.build([["a", "\u2028", "\t", "ß"]])
    path = tmp_path / "v.json"
    vocabulary.save(path)
    assert Vocabulary.load(path) == vocabulary and Vocabulary.load(path).fingerprint() == vocabulary.fingerprint()
    whole = path.read_text(encoding="utf-8")
    for broken, words in (
        (whole[: len(whole) // 2], "not a vocabulary file"),
        (whole.replace("ß", "s"), "fingerprint"),
        (whole.replace('"format": 1', '"format": 7'), "format 7"),
        ("[]", "not a vocabulary file"),
        (json.dumps({"format": 1, "fingerprint": "", "symbols": [1]}), "list of strings"),
    ):
        path.write_text(broken, encoding="utf-8")
        with pytest.raises(InputError, match=words):
            Vocabulary.load(path)
    with pytest.raises(InputError, match="can't be read"):
        Vocabulary.load(tmp_path / "none.json")


def test_fields_are_taken_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes("a\u2028b\tc \tV;X\nd\x0be\tf\r\tN\n".encode())
    first, second = read_inflection(path, "test")
    assert (first.lemma, first.form, first.tags) == ("a\u2028b", "c ", ("V", "X"))
    assert (second.lemma, second.form) == ("d\x0be", "f\r")
    assert first.src_tokens() == ["<lang:test>", "<tag:V>", "<tag:X>", "a", "\u2028", "b"]
    assert first.tgt_tokens() == ["c", " "]


def test_lines_without_a_form() -> None:
    example = parse_line("walk\tV;PST", "here", need_form=False)
    assert example == InflectionExample("walk", ("V", "PST"))
    with pytest.raises(ValueError, match="no form"):
        example.tgt_tokens()
    for line in ("walk", "a\tb\tc\td", "\tV", "walk\tV;"):
        with pytest.raises(InputError, match="here"):
            parse_line(line, "here", need_form=False)


def test_many_languages(tmp_path: Path) -> None:
    for language in ("one", "two"):
        (tmp_path / f"{language}-dev").write_text(f"{language}\tx\tN\n")
    examples = read_languages(str(tmp_path / "{language}-dev"), ["two", "one"])
    assert [e.language for e in examples] == ["two", "one"]
    with pytest.raises(InputError, match="language"):
        read_languages(str(tmp_path / "one-dev"), ["one"])


def test_an_epoch_is_a_function_of_seed_and_number() -> None:
    lengths = [(i * 7) % 23 + 1 for i in range(1000)]
    plan = BatchPlan(lengths, 16, seed=3)
    for number in (0, 1, 5):
        batches = plan.epoch(number)
        assert batches == BatchPlan(lengths, 16, seed=3).epoch(number)
        assert sorted(i for b in batches for i in b) == list(range(1000))
        assert len(batches) == len(plan) and max(map(len, batches)) == 16
    assert plan.epoch(0) != plan.epoch(1) != BatchPlan(lengths, 16, seed=4).epoch(1)
    spread = [max(lengths[i] for i in b) - min(lengths[i] for i in b) for b in plan.epoch(0)]
    assert sum(spread) / len(spread) < 4
    with pytest.raises(ValueError, match="batch_size"):
        BatchPlan(lengths, 0, 1)
    with pytest.raises(ValueError, match="no rows"):
        BatchPlan([], 4, 1)


def test_batches_are_padded_and_shifted() -> None:
    batch = make_batch([[4], [5, 6, 7]], [[8, 9], []], [0, 1])
    assert batch.src.tolist() == [[4, 0, 0], [5, 6, 7]] and batch.src_lengths.tolist() == [1, 3]
    assert batch.tgt_in.tolist() == [[1, 8, 9], [1, 0, 0]]
    assert batch.tgt_out.tolist() == [[8, 9, 2], [2, -100, -100]]
    assert batch.tokens == 4
    with pytest.raises(ValueError, match="one row"):
        make_batch([[4]], [[5]], [])


def test_a_corpus_comes_back_whole() -> None:
    verbs = english_verbs()["dev"][:50]
    src = Vocabulary.build(e.src_tokens() for e in verbs)
    tgt = Vocabulary.build(e.tgt_tokens() for e in verbs)
    corpus = Corpus.encode(verbs, src, tgt)
    assert sorted(i for b in corpus.batches(7) for i in b.index) == list(range(50))
    assert ["".join(tgt.decode(t)) for t in corpus.tgt] == [e.form for e in verbs]


def test_the_embedded_file_is_what_the_rules_make() -> None:
    verbs = english_verbs()
    found = {(e.lemma, ";".join(e.tags)): (split, e.form) for split, es in verbs.items() for e in es}
    expected = {
        (lemma, tags): (split, form)
        for lemma, (split, forms) in paradigms().items()
        for form, tags in zip(forms, CELLS, strict=True)
    }
    assert found == expected
    assert len(verbs["train"]) > 8000 and len(verbs["dev"]) > 900 and len(verbs["test"]) > 900
    lemmas = {split: {e.lemma for e in es} for split, es in verbs.items()}
    assert not lemmas["train"] & lemmas["dev"] and not lemmas["dev"] & lemmas["test"]


@pytest.mark.parametrize(
    ("lemma", "forms"),
    [
        ("go", "goes went gone going"),
        ("have", "has had had having"),
        ("lie", "lies lay lain lying"),
        ("begin", "begins began begun beginning"),
        ("forget", "forgets forgot forgotten forgetting"),
        ("undo", "undoes undid undone undoing"),
        ("behave", "behaves behaved behaved behaving"),
        ("misunderstand", "misunderstands misunderstood misunderstood misunderstanding"),
        ("overrun", "overruns overran overrun overrunning"),
        ("visit", "visits visited visited visiting"),
        ("permit", "permits permitted permitted permitting"),
        ("travel", "travels traveled traveled traveling"),
        ("panic", "panics panicked panicked panicking"),
        ("quiz", "quizzes quizzed quizzed quizzing"),
        ("dye", "dyes dyed dyed dyeing"),
        ("tie", "ties tied tied tying"),
        ("veto", "vetoes vetoed vetoed vetoing"),
        ("destroy", "destroys destroyed destroyed destroying"),
        ("fix", "fixes fixed fixed fixing"),
        ("free", "frees freed freed freeing"),
    ],
)
def test_english(lemma: str, forms: str) -> None:
    assert " ".join(paradigms()[lemma][1]) == forms


def test_spelling_rules() -> None:
    assert third_person("pass") == "passes" and third_person("waltz") == "waltzes" and third_person("buy") == "buys"
    assert past("argue") == "argued" and past("plan") == "planned" and past("play") == "played"
    assert present_participle("see") == "seeing" and present_participle("ski") == "skiing"
    assert present_participle("rain") == "raining" and present_participle("box") == "boxing"


@pytest.mark.parametrize("language", ["spanish", "khaling", "kurmanji"])
def test_real_files_are_read_whole(shared_data: Path, language: str, tmp_path: Path) -> None:
    import tarfile

    archive = shared_data / "sigmorphon2018_task1" / "task1.tar.xz"
    with tarfile.open(archive) as tar:
        member = tar.extractfile(f"task1/{language}-dev")
        assert member is not None
        blob = member.read()
    path = tmp_path / "dev"
    path.write_bytes(blob)
    examples = read_inflection(path, language)
    rebuilt = "".join(f"{e.lemma}\t{e.form}\t{';'.join(e.tags)}\n" for e in examples)
    assert rebuilt.encode() == blob
