"""Inflection files: every character of a field counts, and errors name the malformed line."""

from __future__ import annotations

import re
import tarfile
import warnings
from pathlib import Path

import pytest
from pydantic import ValidationError

from task_runs import untrained_run
from tsallis.errors import InputError
from tsallis.search import SearchOptions
from tsallis.toolkit.data import Vocabulary
from tsallis.toolkit.inference import TextRun
from tsallis.toolkit.tasks.registry import task_of
from tsallis.toolkit.tasks.strings import Columns, Strings, StringsData, StringsExample, find_languages, read_strings
from tsallis.toolkit.tasks.types import Vocabularies
from tsallis.toolkit.training import Run

# Line ends of str.splitlines, white space that str.strip removes, and a zero-width space.
SEPARATORS = ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\r", "\u00a0", " ", "\u200b"]


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_read_strings_returns_examples(tmp_path: Path) -> None:
    path = write(tmp_path / "a", "draw\tdrew\tV;PST\nser\tfui\tV;IND;PST;1;SG\n")
    assert read_strings(path, "spanish") == [
        StringsExample("draw", ("V", "PST"), "drew", "spanish"),
        StringsExample("ser", ("V", "IND", "PST", "1", "SG"), "fui", "spanish"),
    ]
    assert [e.language for e in read_strings(str(path))] == [None, None]


def test_tokens_keep_the_order_of_the_file() -> None:
    example = StringsExample("no uno", ("PRO", "3", "SG"), "n’a", "italian")
    assert example.src_tokens() == ["<lang:italian>", "<tag:PRO>", "<tag:3>", "<tag:SG>", *"no uno"]
    assert StringsExample("a", ("V",)).src_tokens() == ["<tag:V>", "a"]
    assert example.tgt_tokens() == ["n", "’", "a"]
    with pytest.raises(ValueError, match="'a' has no target"):
        StringsExample("a", ("V",)).tgt_tokens()


def test_a_lemma_can_not_pass_for_a_tag() -> None:
    lemma = StringsExample("<tag:V>", ("N",), "x").src_tokens()
    assert lemma.count("<tag:V>") == 0 and lemma[1:] == list("<tag:V>")
    vocabulary = Vocabulary.build([lemma, ["<tag:V>"]])
    assert vocabulary.encode(["<tag:V>"])[0] not in vocabulary.encode(lemma)


@pytest.mark.parametrize("separator", SEPARATORS, ids=lambda s: f"U+{ord(s):04X}")
def test_unicode_separators_in_fields_are_kept_as_characters(tmp_path: Path, separator: str) -> None:
    s = separator
    path = write(tmp_path / "a", f"{s}a{s}b{s}\t{s}c{s}d{s}\tV;{s}X\nwalk\twalked\tV;PST\n")
    first, second = read_strings(path)
    o = "" if s == " " else s  # spaces around fields are ignored
    assert (first.source, first.target, first.features) == (f"{o}a{s}b{o}", f"{o}c{s}d{o}", ("V", f"{o}X"))
    assert first.src_tokens()[2:] == list(first.source) and first.tgt_tokens() == list(first.target)
    assert second.source == "walk"


def test_spaces_around_cells_are_ignored_in_input_lines() -> None:
    for line in (" a b \tV", "a b \t c \tV", "a b\tc\t V"):
        example = Strings(src_normalization="NFKC").parse(line, "in:1", gold=False)
        assert (example.source, example.target) in (("a b", None), ("a b", "c"))
    assert Strings(src_normalization="NFKC").parse("\u00a0a\tV", "in:1", gold=False).source == "a"


@pytest.mark.parametrize(
    ("separator", "text", "hint"),
    [
        (None, "a\tb\tV\na\tc\tV\na\tb\tV\na\td\tN\n", "1, such as 'a . V'; at most 3 of 4 lines"),
        ("/", "a\tb/c\tV\na\tc\tV\n", None),
        ("/", "a\tb/c\tV\na\td/c\tV\na\te\tV\nf\t\tV\n", "at most 3 of 4 lines"),
    ],
)
def test_targets_on_different_lines_are_reported(separator: str | None, text: str, hint: str | None) -> None:
    task = Strings(answer_separator=separator)
    examples = [task.parse(line, "in:1", gold=True, empty=True) for line in text.splitlines()]
    symbols = Vocabulary.build(["abcdef"])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        task.warn_variants(task.encode(examples, Vocabularies(symbols, symbols)), "in")
    messages = [str(warning.message) for warning in caught]
    assert bool(messages) == (hint is not None) and all(re.search(hint or "", message) for message in messages)


def test_unicode_is_not_normalized(tmp_path: Path) -> None:
    path = write(tmp_path / "a", "e\u0301\t\u00e9\tV\n")
    (example,) = read_strings(path)
    assert example.src_tokens() == ["<tag:V>", "e", "\u0301"] and example.tgt_tokens() == ["\u00e9"]


def test_lines_without_a_target_are_rejected(tmp_path: Path) -> None:
    path = write(tmp_path / "a", "walk\tV;PST\nrun\tran\tV;PST\n")
    with pytest.raises(InputError, match=r"a:1: expected .*<TAB>features, found 2 columns: 'walk\\tV;PST'"):
        read_strings(path)
    assert Strings().parse("walk\tV;PST", "stdin:1", gold=False, language="english").language == "english"


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("walk\n", 1, "expected source<TAB>target<TAB>features, found 1 column: 'walk'"),
        ("a\tb\tV\n\nc\td\n", 3, "found 2 columns: 'c\\td'"),
        ("a\tb\tV\n" + "x" * 50 + "\n", 2, "found 1 column: '" + "x" * 37 + "...'"),
        ("\tb\tV\n", 1, "found an empty source"),
        (" \tb\tV\n", 1, "found an empty source"),
        ("a\t\tV\n", 1, "found an empty target"),
        ("a\t \tV\n", 1, "found an empty target"),
        ("a\tb\t\n", 1, "expected source<TAB>target<TAB>features, found empty features"),
        ("a\tb\t; ;\n", 1, "found '; ;'"),
        ("a\tb\tV;;N\n", 1, "found 'V;;N'"),
        ("\ufeffa\tb\n", 1, "found 2 columns: 'a\\tb'"),
        ("a\tb\tV\n".encode("utf-16"), 1, "found byte 0xff at byte 0 of the line: a byte order mark of UTF-16"),
        ("a\tb\tV\n".encode("utf-32"), 1, "a byte order mark of UTF-32"),
        (b"a\tb\tV\nc\t\xe9\tV\n", 2, "expected UTF-8 text, found byte 0xe9 at byte 2 of the line"),
        (b"a\tb\tV\nc\td\tV\xe2\x80", 2, "found byte 0xe2 at byte 5 of the line"),
    ],
)
def test_malformed_lines_are_rejected(tmp_path: Path, text: str | bytes, line: int, message: str) -> None:
    path = write(tmp_path / "a", text)
    with pytest.raises(InputError) as error:
        read_strings(path)
    assert str(error.value).startswith(f"{path}:{line}: ") and message in str(error.value)
    assert "\n" not in str(error.value)


def test_missing_files_raise(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing: can't be read: No such file"):
        read_strings(tmp_path / "nothing")
    with pytest.raises(InputError, match="can't be read: Is a directory"):
        read_strings(tmp_path)


def test_several_languages_are_read_from_a_folder(tmp_path: Path) -> None:
    write(tmp_path / "spanish-train-high", "ser\tfue\tV\n")
    write(tmp_path / "norwegian-bokmal-train-high", "se\tså\tV\n")

    def read(name: str, *languages: str) -> list[StringsExample]:
        config = StringsData(folder=str(tmp_path), train=name, dev=name, languages=[*languages])
        return Strings.read_split(config, "train")

    examples = read("{language}-train-high", "norwegian-bokmal", "spanish")
    assert [(e.language, e.target) for e in examples] == [("norwegian-bokmal", "så"), ("spanish", "fue")]
    assert examples[0].src_tokens()[0] == "<lang:norwegian-bokmal>"
    with pytest.raises(InputError, match="finnish-train-high: can't be read"):
        read("{language}-train-high", "spanish", "finnish")
    with pytest.raises(InputError, match=r"must contain \{language\}"):
        read("spanish-train-high", "spanish")


@pytest.mark.parametrize(
    ("name", "other"),  # `other` belongs to no language
    [
        ("{language}-train-high", "-train-high"),
        ("high/{language}.tsv", "high/older/dutch.tsv"),
        ("{language}/train.tsv", "train.tsv"),
        ("files/{language}-high/train", "files/-high/train"),
        ("./high//{language}.tsv", "dutch.tsv"),
        ("../data/{language}.tsv", "dutch"),
        ("[high] {language}?.tsv", "h dutch1.tsv"),
        ("high*/{language}", "higher/dutch"),
    ],
)
def test_all_languages_are_found_by_the_name_of_their_file(tmp_path: Path, name: str, other: str) -> None:
    folder, names = tmp_path / "data", ["english", "norwegian-bokmal", "x [y]"]
    for path in [folder / other, *(folder / name.replace("{language}", language) for language in names)]:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, "draw\tdrew\tV;PST\n")
    for train in (name, str(folder / name)):
        config = StringsData(folder=str(folder), train=train, dev=train, languages="all")
        assert find_languages(config) == names
        assert [example.language for example in Strings.read_split(config, "train")] == names


def test_published_files_round_trip(shared_data: Path, tmp_path: Path) -> None:
    archive = shared_data / "sigmorphon2018_task1" / "task1.tar.xz"
    if not archive.is_file():
        pytest.skip(f"needs data: {archive}")
    counts = {"spanish-dev": 1000, "kurmanji-dev": 1000, "khaling-dev": 1000, "telugu-train-low": 61}
    with tarfile.open(archive) as tar:
        for member in tar:
            name = Path(member.name).name
            stream = tar.extractfile(member) if name in counts else None
            if stream is not None:
                write(tmp_path / name, stream.read())
    for name, count in counts.items():
        examples = read_strings(tmp_path / name)
        assert len(examples) == count
        again = "".join("\t".join(f for f in (e.source, e.target, ";".join(e.features)) if f) + "\n" for e in examples)
        assert again.encode() == (tmp_path / name).read_bytes().replace(b" \t", b"\t")


PHONES = {"task": "strings", "train": "train", "dev": "train", "tgt_symbols": "spaces"}
RNN = {"architecture": "rnn", "d_model": 8, "layers": 1}


@pytest.fixture
def phones(tmp_path: Path) -> Run:
    """Return an untrained run that reads words and writes phones."""
    write(tmp_path / "train", "ship\tʃ ɪ p\nchurch\ttʃ ɜː tʃ \nsit\ts ɪ  t\n")
    write(tmp_path / "config.yaml", "version: 1\ndata: {tgt_symbols: spaces, train: train, dev: train}\n")
    return untrained_run(tmp_path, PHONES, RNN)


def test_outputs_of_phones_are_joined_by_spaces(phones: Run) -> None:
    assert set(phones.tgt_vocab.symbols) == {"ʃ", "ɪ", "p", "tʃ", "ɜː", "s", "t"}
    text = TextRun(phones, task_of(phones.task))
    answers = text.translate(["ship", "", "sit"], SearchOptions(n_best=3, min_length=2))
    outputs = [output for answer in answers for output in answer.outputs]
    assert any(len(output.tokens) > 1 for output in outputs)
    assert all(output.text == " ".join(output.tokens) for output in outputs)
    assert text.score(["sit\ts ɪ t"])[0].tokens == ("s", "ɪ", "t", "</s>")
    assert text.score(["\ufeffsit"], ["\ufeffs ɪ t"])[0].tokens == ("s", "ɪ", "t", "</s>")  # byte order marks
    assert text.translate(["\ufeffsit"])[0].unknown == 0
    (begun,) = text.translate(["ship"], SearchOptions(prefix="tʃ ɜː"))
    assert begun.text.startswith("tʃ ɜː")


def test_suggestions_continue_typed_phones(phones: Run) -> None:
    text = TextRun(phones, task_of(phones.task))
    for typed in ("", "ʃ ", "ʃ t", "tʃ", "tʃ ɜː"):
        (found,) = text.suggest(["ship"], [typed], n_best=20)
        texts = [suggestion.text for suggestion in found.next]
        assert len(texts) >= len(phones.tgt_vocab.symbols)
        assert all(written.startswith(typed) for written in texts)
        assert all(symbol in phones.tgt_vocab.symbols for written in texts for symbol in written.split())
    (found,) = text.suggest(["ship"], ["ʃ t"], n_best=20)
    assert {"ʃ t", "ʃ tʃ"} < {suggestion.text for suggestion in found.next}
    assert found.characters is not None and {"ʃ", " ", ""} <= set(found.characters.probs)  # "ʃ tʃ", "ʃ t s" or the end
    alpha_relu = untrained_run(phones.folder, PHONES, {**RNN, "output": "alpha_relu"})
    (found,) = TextRun(alpha_relu, task_of(alpha_relu.task)).suggest(["ship"], ["ʃ t"])
    assert found.characters is None and found.to_dict()["characters"] is None


def test_scores_count_phones(phones: Run) -> None:
    task = task_of(phones.task)
    scores = {score.name: score.value for score in task.score(["tʃ ɜː tʃ"], ["tʃ ɪ tʃ"])}
    assert scores == {"accuracy": 0, "word_error_rate": 1, "symbol_error_rate": 1 / 3, "levenshtein": 1}
    assert task.utility("tʃ ɜː tʃ", "tʃ ɪ tʃ") == pytest.approx(2 / 3)


def test_the_interval_of_the_edit_distance_is_not_that_of_a_share(phones: Run) -> None:
    scores = {score.name: score.lines for score in task_of(phones.task).score(["tʃ ɜː tʃ"], ["tʃ ɪ tʃ"])}
    assert scores["word_error_rate"].interval() == (pytest.approx(0.025), 1)  # of a share
    assert scores["levenshtein"].interval() == (1, 1)  # a line may have more than one edit


@pytest.mark.parametrize(
    ("line", "gold", "message"),
    [
        ("ship", True, "expected source<TAB>target, found 1 column: 'ship'"),
        ("ship\t \tV", True, "found an empty target"),
        ("\tʃ", True, "found an empty source"),
        ("ship\t  ", True, "found an empty target"),
    ],
)
def test_malformed_lines_of_words_are_rejected(line: str, gold: bool, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Strings(columns=Columns(features=()), tgt_symbols="spaces").parse(line, "in:1", gold)


def test_embedded_data_rejects_columns_and_header() -> None:
    for columns in ({"features": None}, {"source": 2, "target": 1}):
        with pytest.raises(ValidationError, match="header, columns can't be used with embedded data"):
            StringsData(embedded="english-verbs", columns=columns, header=True)
