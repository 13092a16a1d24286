"""Column files of users: formats of the shared tasks, one-command training, and swapped columns."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from task_runs import untrained_run
from tsallis.errors import IgnoredInputWarning, InputError
from tsallis.toolkit.config import Config
from tsallis.toolkit.data.vocabulary import GRAPHEMES, Vocabulary
from tsallis.toolkit.evaluation.text_scores import LineScore
from tsallis.toolkit.tasks.classification import Classification, ClassificationData, LabelColumns, read_labelled
from tsallis.toolkit.tasks.data_file import describe_file, is_data_file
from tsallis.toolkit.tasks.registry import config_of_file, task_of
from tsallis.toolkit.tasks.strings import Columns, Strings, StringsData, StringsExample, split_features

RNN = {"architecture": "rnn", "d_model": 4, "layers": 1}
# Shared task of a year: lines in its format, the settings that read them, and the first example.
FORMATS: dict[str, tuple[list[str], dict[str, Any], StringsExample]] = {
    "2016": (
        ["gehen\tpos=V,mood=IND,num=SG\tgeht", "laufen\tpos=V,mood=IND,num=PL\tlaufen"],
        {"columns": {"source": 1, "features": 2, "target": 3}, "feature_separator": ","},
        StringsExample("gehen", ("pos=V", "mood=IND", "num=SG"), "geht"),
    ),
    "2017 and 2018": (
        ["touch\ttouching\tV;V.PTCP;PRS", "dye\tdyed\tV;PST"],
        {},
        StringsExample("touch", ("V", "V.PTCP", "PRS"), "touching"),
    ),
    "2020 inflection": (
        ["mopa\tmopera\tN;PL\t1", "tasa\ttasara\tN;PL"],  # the fourth column is ignored
        {},
        StringsExample("mopa", ("N", "PL"), "mopera"),
    ),
    "2020 phones": (["ship\tʃ ɪ p", "shoe\tʃ uː"], {"tgt_symbols": "spaces"}, StringsExample("ship", (), "ʃ ɪ p")),
    "2022": (
        ["gatto\tgatti\tN;PL;", "casa\tcase\tN;PL"],  # a trailing separator
        {},
        StringsExample("gatto", ("N", "PL"), "gatti"),
    ),
    "2023": (
        ["lav\tN;ACC(PL;PSS(1,PL))\tlaveinket", "ház\tN;ACC(SG)\tházat"],
        {"columns": {"source": 1, "features": 2, "target": 3}},
        StringsExample("lav", ("N", "ACC(PL)", "ACC(PSS(1))", "ACC(PSS(PL))"), "laveinket"),
    ),
    "several columns of features under a header": (
        ["n\tlemma\tpos\tform\tnumber", "1\tkato\tN\tkatoj\tPL", "2\thundo\tN\thundoj\tPL"],
        {"columns": {"source": 2, "target": 4, "features": [3, 5]}, "header": True},
        StringsExample("kato", ("N", "PL"), "katoj"),
    ),
    "comments and Windows line ends": (
        ["# made by hand\r", "kato\tkatoj\tN,PL\r", "\r", "hundo\thundoj\tN,PL\r"],
        {"comment": "#", "feature_separator": ","},
        StringsExample("kato", ("N", "PL"), "katoj"),
    ),
}


def write(path: Path, lines: Sequence[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="")
    return path


@pytest.mark.filterwarnings("ignore::tsallis.errors.IgnoredInputWarning")
@pytest.mark.parametrize("year", FORMATS)
def test_formats_of_shared_tasks_are_read(year: str, tmp_path: Path) -> None:
    lines, settings, first = FORMATS[year]
    write(tmp_path / "train", lines)
    config = StringsData(folder=str(tmp_path), train="train", dev="train", **settings)
    assert Strings.read_split(config, "train")[0] == first
    run = untrained_run(tmp_path, {"task": "strings", "train": "train", "dev": "train", **settings}, RNN)
    task = task_of(run.task)
    read = task.read(lines, "in", run, gold=True)
    assert len(read.corpus) == 2 and read.count == len(lines)
    # Lines with and without the target column give the same input.
    target = task.columns.target - 1  # type: ignore[attr-defined]
    fields = [line.rstrip("\r").split("\t") for line in lines]
    plain = ["\t".join([*row[:target], *row[target + 1 : task.columns.width]]) for row in fields]  # type: ignore[attr-defined]
    for given in (lines, plain):
        again = task.read(given, "in", run, gold=False)
        assert [list(row) for row in again.corpus.src] == [list(row) for row in read.corpus.src]
        assert again.numbers == read.numbers


@pytest.mark.parametrize(
    ("text", "separator", "features"),
    [
        ("V;PST", ";", ["V", "PST"]),
        ("V;NOM(3,SG);ACC(PL;PSS(1,PL))", ";", ["V", "NOM(3)", "NOM(SG)", "ACC(PL)", "ACC(PSS(1))", "ACC(PSS(PL))"]),
        ("N;(non)NOM;PL", ";", ["N", "(non)NOM", "PL"]),
        ("N;A(B;C", ";", ["N", "A(B", "C"]),  # unbalanced brackets are ordinary characters
        ("pos=V|num=SG", "|", ["pos=V", "num=SG"]),
        (" V ; N(3, SG) ;", ";", ["V", "N(3)", "N(SG)"]),
        ("", ";", []),
        ("V; ;PST", ";", ["V", "", "PST"]),
        ("V;;PST", ";", ["V", "", "PST"]),
    ],
)
def test_split_features_expands_nested_features(text: str, separator: str, features: list[str]) -> None:
    assert split_features(text, separator) == features


def test_vocabularies_split_graphemes_and_normalize(tmp_path: Path) -> None:
    write(tmp_path / "train", ["e\u0301a\tn\u0303a", "\u00e9b\t\u00f1"])
    data = {"task": "strings", "train": "train", "dev": "train", "src_symbols": "graphemes", "tgt_symbols": "graphemes"}
    run = untrained_run(tmp_path, data, RNN)
    assert set(run.src_vocab.symbols) == {"e\u0301", "a", "\u00e9", "b"}
    assert run.tgt_vocab.decode(run.tgt_vocab.encode("n\u0303a")) == "n\u0303a"
    composed = untrained_run(tmp_path, {**data, "src_normalization": "NFC", "tgt_normalization": "NFD"}, RNN)
    assert set(composed.src_vocab.symbols) == {"a", "\u00e9", "b"}
    assert set(composed.tgt_vocab.symbols) == {"n\u0303", "a"}
    vocabulary = Vocabulary.build(["e\u0301a"], separator=GRAPHEMES)
    assert vocabulary.split_typed("ae") == (vocabulary.encode("a"), "e")  # a combining mark may follow the last letter
    assert Vocabulary.from_json(vocabulary.to_json()) == vocabulary


def test_alternative_answers_are_trained_on_and_scored(tmp_path: Path) -> None:
    write(tmp_path / "train", ["color\tcolour/color", "go\twent"])
    data = {"task": "strings", "train": "train", "dev": "train", "answer_separator": "/"}
    config = StringsData(folder=str(tmp_path), **data)
    assert len(Strings.load(config)[1].train) == 3
    task = Strings.of_config(config)
    texts, references = ["color", "colours", "gone"], ["colour/color", "colour/color", "went"]
    scores = {score.name: score for score in task.score(texts, references)}
    assert scores["accuracy"].value == pytest.approx(1 / 3)
    edits, rate = (scores[name].lines for name in ("levenshtein", "symbol_error_rate"))
    assert isinstance(edits, LineScore) and edits.values == [0, 1, 3]
    assert isinstance(rate, LineScore) and rate.weights == [5, 6, 4]


def test_targets_without_an_answer_are_rejected(tmp_path: Path) -> None:
    for target in ("/", " / "):
        write(tmp_path / "train", ["color\tcolour", f"go\t{target}", "be\twas"])
        config = StringsData(folder=str(tmp_path), train="train", dev="train", answer_separator="/")
        with pytest.raises(InputError, match="train:2: expected source<TAB>target, found an empty target"):
            Strings.load(config)
    assert Strings.of_config(config).answers("a/ /b/") == ["a", "b"]


@pytest.mark.parametrize("bad", ["", "ab", "x" * 11])
def test_invalid_separators_are_rejected(bad: str) -> None:
    with pytest.raises(ValidationError, match="expected characters, graphemes, spaces, or a separator"):
        StringsData(train="a", src_symbols=bad)


def test_equal_separators_of_answers_and_symbols_are_rejected() -> None:
    for symbols, separator in (("spaces", " "), ("/", "/")):
        with pytest.raises(ValidationError, match=f"answer_separator must differ .* found '{separator}' for both"):
            StringsData(train="a", tgt_symbols=symbols, answer_separator=separator)


def test_equal_columns_are_rejected() -> None:
    with pytest.raises(ValidationError, match="must be different columns, found 1, 3, 3"):
        StringsData(train="a", columns={"source": 1, "target": 3, "features": 3})


def paradigms(order: str) -> list[str]:
    """Return 24 lines with columns in the given order: s(ource), t(arget), f(eatures)."""
    cells = {"V;PST": "ed", "V;V.PTCP;PRS": "ing", "V;3;SG;PRS": "s", "V;NFIN": ""}
    verbs = ("walk", "talk", "jump", "play", "open", "visit")
    rows = [{"s": verb, "t": verb + end, "f": tags} for verb in verbs for tags, end in cells.items()]
    return ["\t".join(row[column] for column in order) for row in rows]


@pytest.mark.parametrize(
    ("order", "columns", "setting"),
    [
        ("sft", {}, "{source: 1, target: 3, features: 2}"),
        ("stf", {"source": 1, "features": 2, "target": 3}, "{source: 1, target: 2, features: 3}"),
        ("sft", {"source": 2, "features": 1, "target": 3}, "{source: 1, target: 3, features: 2}"),
        ("fst", {}, "{source: 2, target: 3, features: 1}"),
        ("fts", {}, "{source: 2, target: 3, features: 1}"),
    ],
)
@pytest.mark.parametrize("separator", [";", ","])
def test_swapped_columns_raise_before_training(
    order: str, columns: dict[str, int], setting: str, separator: str, tmp_path: Path
) -> None:
    write(tmp_path / "train", [line.replace(";", separator) for line in paradigms(order)])
    config = StringsData(folder=str(tmp_path), train="train", columns=columns)
    with pytest.raises(
        InputError, match=r"train:\d+: .* most features (look like words|occur once)\. .* source '(walk|V[;,]PST)'"
    ) as error:
        Strings.load(config)
    assert f"data.columns='{setting}'" in str(error.value)


def test_swapped_columns_in_input_lines_raise(tmp_path: Path) -> None:
    write(tmp_path / "train", paradigms("stf"))
    run = untrained_run(tmp_path, {"task": "strings", "train": "train", "dev": "train"}, RNN)
    task = task_of(run.task)
    for gold in (True, False):
        with pytest.raises(InputError, match=r"in:1: no feature of this line occurs .* source 'walk', target 'V;PST'"):
            task.read(paradigms("sft"), "in", run, gold=gold)
    with pytest.raises(InputError, match=r"in:1: no feature of this line occurs .* source 'walk', features 'walked'"):
        task.read(["walk\twalked"], "in", run, gold=False)
    for separator in " ,|":  # the separator of the run is a semicolon
        with pytest.raises(InputError, match=r"in:1: no feature of this line occurs .*write ';' between feat"):
            task.read([f"walk\tV{separator}PST"], "in", run, gold=False)
    greek = [f"walk\tπερπάτησα\tV;PST{end}" for end in ("", ";SG", ";3", ";PRS", ";NFIN")]
    with pytest.raises(InputError, match="in:1: most target symbols do not occur in the training data"):
        task.read(greek, "in", run, gold=True)
    assert len(task.read(greek, "in", run, gold=False).corpus) == 5


def test_features_before_the_source_raise(tmp_path: Path) -> None:
    write(tmp_path / "train", ["N\tN\tN", "N\tNs\tPL", *paradigms("stf")])
    run = untrained_run(tmp_path, {"task": "strings", "train": "train", "dev": "train"}, RNN)
    task = task_of(run.task)
    for line, gold in (("V;PST\twalk", False), ("PL\twalk", False), ("V;PST\twalked\twalk", True)):
        with pytest.raises(InputError, match=r"in:1: no feature .* source '(V;PST|PL)'.* for example walk<TAB>"):
            task.read([line], "in", run, gold=gold)
    words = ["N\tPL", "N\tV;PST", "N\tXY"]  # a word that is spelled like a feature
    assert len(task.read(words, "in", run, gold=False).corpus) == 3


def test_swapped_words_and_phones_raise(tmp_path: Path) -> None:
    pairs = [(word, " ".join(word.replace("i", "ɪ"))) for word in ("sip", "kit", "pit", "tip", "pip")]
    swapped = [f"{phones}\t{word}" for word, phones in pairs]
    write(tmp_path / "train", [f"{word}\t{phones}" for word, phones in pairs])
    write(tmp_path / "swapped", swapped)
    data = {"train": "train", "dev": "train", "test": "swapped", "tgt_symbols": "spaces"}
    run = untrained_run(tmp_path, data, RNN)
    task = task_of(run.task)
    match = "1: most target symbols do not occur in the training data.* source 's ɪ p', target 'sip'"
    for gold in (True, False):
        with pytest.raises(InputError, match=f"in:{match}"):
            task.read(swapped, "in", run, gold=gold)
    with pytest.raises(InputError, match=f"swapped:{match}"):
        task.split(run, StringsData(folder=str(tmp_path), **data), "test")
    with pytest.raises(InputError, match=f"swapped:{match}"):
        Strings.load(StringsData(folder=str(tmp_path), **{**data, "dev": "swapped"}))


def test_another_order_of_columns_in_a_split_raises(tmp_path: Path) -> None:
    write(tmp_path / "train", paradigms("stf"))
    write(tmp_path / "other", paradigms("sft"))
    data = {"train": "train", "dev": "train", "test": "other"}
    run = untrained_run(tmp_path, data, RNN)
    match = "other:1: no feature of this line occurs in the training data: source 'walk', target 'V;PST'"
    with pytest.raises(InputError, match=match):
        task_of(run.task).split(run, StringsData(folder=str(tmp_path), **data), "test")
    with pytest.raises(InputError, match=match):
        Strings.load(StringsData(folder=str(tmp_path), **{**data, "dev": "other"}))


def test_single_odd_lines_of_a_split_are_accepted(tmp_path: Path) -> None:
    """An unseen combination of features is normal in development data."""
    write(tmp_path / "train", paradigms("stf"))
    write(tmp_path / "dev", [*paradigms("stf")[:8], "walk\twalking\tV+PROG"])
    data = {"train": "train", "dev": "dev", "test": "dev"}
    Strings.load(StringsData(folder=str(tmp_path), **data))
    run = untrained_run(tmp_path, data, RNN)
    assert len(task_of(run.task).split(run, StringsData(folder=str(tmp_path), **data), "test").corpus) == 9


def test_most_lines_of_a_language_with_another_separator_raise(tmp_path: Path) -> None:
    data: Any = {"train": "{language}", "dev": "{language}.dev", "languages": ["aa", "bb"], "folder": str(tmp_path)}
    for name in ("aa", "aa.dev", "bb"):
        write(tmp_path / name, paradigms("stf"))
    others = [line.replace(";", "+") for line in paradigms("stf")[:4]]
    write(tmp_path / "bb.dev", [*others, *paradigms("stf")[:4]])
    Strings.load(StringsData(**data))
    write(tmp_path / "bb.dev", [*others, *paradigms("stf")[:2]])
    with pytest.raises(InputError, match=r"bb\.dev:1: no feature of this line occurs in the training data"):
        Strings.load(StringsData(**data))


def test_held_out_lines_are_checked_before_training(tmp_path: Path) -> None:
    write(tmp_path / "train", [f"{number}\t{chr(0x4E00 + number)}" for number in range(60)])
    with pytest.raises(InputError, match=r"train:\d+: most target symbols do not occur in the training data"):
        Strings.load(StringsData(folder=str(tmp_path), train="train"))


def test_features_may_resemble_the_target(tmp_path: Path) -> None:
    """For example: historical spelling, modern spelling, lemma."""
    words = ["vnnd", "jhar", "theyl", "weyb", "sunne", "muoter"]
    modern = ["und", "jahre", "teile", "weiber", "sonnen", "mütter"]
    lemmas = ["und", "jahr", "teil", "weib", "sonne", "mutter"]
    rows = ["\t".join(row) for row in zip(words, modern, lemmas, strict=True)] * 3
    write(tmp_path / "train", [*rows, "weyb\tweibe\tweibe"])  # a text repeats words, and some have several lemmas
    data: Any = {"train": "train", "columns": {"source": 1, "target": 2, "features": 3}}
    Strings.load(StringsData(folder=str(tmp_path), **data))


def test_a_label_as_the_source_is_shown(tmp_path: Path) -> None:
    write(tmp_path / "train", [f"{label}\ta {word} film" for label, word in zip("10" * 3, "abcdef", strict=True)])
    match = r"found 2 different sources: .*train:1 is read as source '1', target 'a a film'; if .*, set data\.columns"
    with pytest.raises(InputError, match=match):
        Strings.load(StringsData(folder=str(tmp_path), train="train"))


def test_embedded_verbs_have_no_features_in_a_task_without_features() -> None:
    examples = Strings(columns=Columns(features=())).examples_of(StringsData(embedded="english-verbs"), "dev")
    assert examples and not any(example.features for example in examples)


def test_describe_file_infers_data_settings(tmp_path: Path) -> None:
    phones = write(tmp_path / "phones.tsv", ["ship\tʃ ɪ p", "shoe\tʃ uː", "ah\tɑː"])
    assert describe_file(phones)["data"] == {
        **{"folder": str(tmp_path), "train": "phones.tsv", "tgt_symbols": "spaces"},
        "columns": {"source": 1, "target": 2, "features": None},
    }
    table = write(tmp_path / "table.tsv", ["ID\tForm\tMSD\tLemma", "1\twent\tV,PST\tgo", "2\tran\tV,PST\trun"])
    assert describe_file(table)["data"] == {
        **{"folder": str(tmp_path), "train": "table.tsv", "header": True, "feature_separator": ","},
        "columns": {"source": 4, "target": 2, "features": 3},
    }
    named = write(tmp_path / "named.tsv", ["Word\tTranscription", "ship\tʃ ɪ p"])
    assert describe_file(named)["data"]["header"]
    unusual = write(tmp_path / "unusual.tsv", ["Wort\tForm\tMerkmale", *(f"w{i}\tf{i}\tV;{i % 3}" for i in range(30))])
    with pytest.warns(IgnoredInputWarning, match=r"line 1 is read as an example; if .* set data\.header=true"):
        assert "header" not in describe_file(unusual)["data"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        describe_file(unusual, ["data.header=true"])
    for third in ("tag", "Whatever"):  # the third column has features, as in a file without header
        three = write(tmp_path / "three.tsv", [f"Lemma\tInflected\t{third}", "go\twent\tV;PST"])
        assert describe_file(three)["data"]["columns"] == {"source": 1, "target": 2, "features": 3}
    four = write(tmp_path / "four.tsv", ["lemma\tform\tid\tcount", "go\twent\t1\t2"])
    assert describe_file(four)["data"]["columns"]["features"] is None
    sentences = write(tmp_path / "sentences.txt", ["ein kleines Haus\ta small house"] * 3)
    assert "tgt_symbols" not in describe_file(sentences)["data"]
    nested = write(tmp_path / "nested.tsv", ["lav\tlavat\tN;ACC(PL,PSS(1,PL,2))"])
    assert "feature_separator" not in describe_file(nested)["data"]
    with pytest.raises(InputError, match=r"expected source<TAB>target or .* in most lines, found 'one'"):
        describe_file(write(tmp_path / "odd.txt", ["one", "two", "a\tb"]))
    cells = write(tmp_path / "cells.tsv", ["ship\tʃ ɪ p\t\t", "shoe\tʃ uː\t\t"])  # empty cells of a spreadsheet
    assert describe_file(cells)["data"]["columns"]["features"] is None


def test_the_settings_for_a_file_fit_the_chosen_model(tmp_path: Path) -> None:
    words = write(tmp_path / "words.tsv", ["ship	ʃ ɪ p", "shoe	ʃ uː", "ah	ɑː"])
    hard = {"monotonic": 1, "input_feeding": False, "initial_state": "zeros"}
    soft = {"monotonic": None, "input_feeding": True, "initial_state": "encoder"}
    for changes, expected in (
        ([], hard),
        (["model.monotonic=0"], hard | {"monotonic": 0}),
        (["model.monotonic=null"], soft),
        (["model.copy=true"], soft),
        (["model.input_feeding=false"], soft | {"input_feeding": False}),
    ):
        model = config_of_file(words, changes).model
        assert {name: getattr(model, name) for name in expected} == expected
    transformer = config_of_file(words, ["model.architecture=transformer"]).model
    assert (transformer.encoder_layers, transformer.decoder_layers) == (2, 2)
    others = {"features": ["go	went	V;PST", "run	ran	V;PST"], "sentences": ["so " * 25 + "	thus"] * 3}
    others["many"] = [f"{i}	{i}" for i in range(6000)]
    for name, lines in others.items():
        config = config_of_file(write(tmp_path / f"{name}.tsv", lines))
        assert config.model.monotonic is None
        # A rate that is halved many times must not stop the training.
        assert config.training.lowest_learning_rate == (1e-5 if name == "many" else 0)
    tiny = config_of_file(tmp_path / "many.tsv", ["training.learning_rate=5e-6"]).training
    assert tiny.lowest_learning_rate == tiny.learning_rate == 5e-6
    with pytest.raises(InputError, match="override 'model=3': model: input should be keys and values"):
        config_of_file(words, ["model=3"])


def test_ignored_columns_warn(tmp_path: Path) -> None:
    path = write(tmp_path / "words.tsv", ["a\tb\tN\tsg\tx"] * 3)
    with pytest.warns(IgnoredInputWarning, match="ignored columns 4 to 5; data.columns chooses columns"):
        config_of_file(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config_of_file(path, ["data.columns={source: 1, target: 2}"])


def test_data_files_support_only_the_task_strings(tmp_path: Path) -> None:
    path = write(tmp_path / "texts.tsv", ["1\tgood", "0\tbad"])
    with pytest.raises(InputError, match=r"data\.task=classification needs a YAML file"):
        config_of_file(path, ["data.task=classification"])


def test_is_data_file_recognizes_files_with_tabs(tmp_path: Path) -> None:
    yaml = write(tmp_path / "a.yaml", ["version: 1\t# not a column"])
    assert not is_data_file(yaml) and not is_data_file(tmp_path / "missing.tsv")
    assert is_data_file(write(tmp_path / "a.txt", ["", "a\tb"]))
    assert not is_data_file(write(tmp_path / "config", ["version: 1"]))
    with pytest.raises(InputError, match="columns separated by tabs, found 'a,b'; save the table as text with tabs"):
        is_data_file(write(tmp_path / "a.csv", ["a,b"]))


def test_error_examples_use_the_columns_of_the_run(tmp_path: Path) -> None:
    write(tmp_path / "train", ["kato\tkatoj\tN\tPL", "hundo\thundoj\tN\tPL"])
    data = {"task": "strings", "train": "train", "dev": "train", "columns": {"features": [3, 4]}}
    run = untrained_run(tmp_path, data, RNN)
    with pytest.raises(InputError, match=r"for example kato<TAB>(N<TAB>PL|PL<TAB>N) \(the training data contain"):
        task_of(run.task).read(["kato\tN"], "text", run, False)


def test_long_lines_are_left_out_of_held_out_examples_too(tmp_path: Path) -> None:
    lines = [f"{'ab' * (1 + row % 4)}{row}\tx/{'y' * (row % 7)}" for row in range(200)]
    path = write(tmp_path / "words.tsv", lines)
    config: Config = config_of_file(path, ["data.max_length=5", "data.answer_separator=/"])
    task, data = Strings.load(config.data)
    dev = task.examples_of(config.data, "dev")
    assert 0 < len(dev) == len(data.dev.corpus) and max(map(max, data.dev.corpus.lengths().tolist())) <= 5
    assert all(len(answer) <= 5 for example in dev for answer in task.answers(example.target))
    separate = config_of_file(path, ["data.max_length=5", f"data.dev={path}"])
    with pytest.raises(InputError, match=r"words.tsv:\d+: expected at most 5 symbols \(data.max_length\), found"):
        Strings.load(separate.data)


def test_held_out_examples_share_no_source_with_training(tmp_path: Path) -> None:
    path = write(tmp_path / "verbs.tsv", paradigms("stf"))
    config: Config = config_of_file(path, ["data.held_out=0.2"])
    task, data = Strings.load(config.data)
    sources = {split: {e.source for e in task.read_split(config.data, split)} for split in ("train", "dev")}
    assert len(sources["dev"]) == 1 and not sources["train"] & sources["dev"]
    assert len(data.train) == 20 and len(data.dev.corpus) == 4
    (heading, *examples) = task.preview(data)
    assert heading == "columns: source<TAB>target<TAB>features; as the model sees them:"
    assert examples[0] == "  <tag:V> <tag:PST> w a l k  ->  w a l k e d"


DOCUMENTS = [(label, f"a {word} film") for label, word in zip("10" * 8, "abcdefghijklmnop", strict=True)]


def test_labels_may_be_in_any_column(tmp_path: Path) -> None:
    write(tmp_path / "train.tsv", ["sentence\tlabel", *(f"{text}\t{label}" for label, text in DOCUMENTS)])
    data = {"task": "classification", "folder": str(tmp_path), "train": "train.tsv"}
    columns = {"columns": {"label": 2, "text": 1}, "header": True}
    task, found = Classification.load(ClassificationData(**data, **columns))
    assert found.vocabularies.tgt.symbols == ("0", "1") and task.formats == ("text", "text<TAB>label")
    for settings, fault in (({}, "labels have more words than texts"), ({"header": True}, "labels have more words")):
        with pytest.raises(InputError, match=f"{fault}.*data.columns='{{label: 2, text: 1}}'"):
            Classification.load(ClassificationData(**data, **settings))


def test_too_many_different_labels_raise(tmp_path: Path) -> None:
    write(tmp_path / "train.tsv", [f"w{number}\ta" for number in range(12)])
    config = ClassificationData(task="classification", folder=str(tmp_path), train="train.tsv", min_count=1)
    with pytest.raises(InputError, match="different labels in"):
        Classification.load(config)


@pytest.mark.parametrize("features", ["", "\tV;PST"])
@pytest.mark.parametrize("header", [False, True])
def test_source_and_target_columns_may_be_swapped(features: str, header: bool, tmp_path: Path) -> None:
    names = "Form\tLemma" + ("\tTags" if features else "")
    write(tmp_path / "train", [*([names] if header else []), f"went\tgo{features}"])
    files = {"folder": str(tmp_path), "train": "train", "dev": "train"}
    config = StringsData(**files, columns={"source": 2, "target": 1}, header=header)
    (example,) = Strings.examples(config, "train")
    assert (example.source, example.target, example.features) == ("go", "went", ("V", "PST") if features else ())


def test_describe_file_respects_the_chosen_columns(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", ["1\tship\tʃ ɪ p\tN|SG", "2\tshoes\tʃ uː z\tN|PL"] * 3)
    found = describe_file(path, ["data.columns={source: 2, target: 3, features: 4}"])
    assert found["data"]["tgt_symbols"] == "spaces" and found["data"]["feature_separator"] == "|"
    assert "src_symbols" not in found["data"] and "monotonic" not in found["model"]
    for features in ("[4, 1]", "4", "null"):
        data = describe_file(path, [f"data.columns={{source: 3, target: 2, features: {features}}}"])["data"]
        assert data["src_symbols"] == "spaces" and ("feature_separator" in data) == (features != "null")
    loaded = config_of_file(path, ["data.columns={source: 2, target: 3}"])
    assert loaded.data.tgt_symbols == "spaces" and loaded.model.monotonic == 1
    named = write(tmp_path / "b.tsv", ["lemma\tform\tphones", "ship\tships\tʃ ɪ p s", "shoe\tshoes\tʃ uː z"])
    overrides = ["data.columns.target=3", "data.columns.features=null"]
    assert describe_file(named, overrides)["data"]["tgt_symbols"] == "spaces"
    overrides = "data.columns=3 data.columns.source=x data.columns.features=[a] data=3 data.columns.target=0"
    for wrong in overrides.split():
        describe_file(path, [wrong])
        with pytest.raises(InputError, match="override"):
            config_of_file(path, [wrong])


def test_another_header_is_read_as_an_example_with_a_warning(tmp_path: Path) -> None:
    write(tmp_path / "train", ["source\ttarget ", "a\tb"])
    write(tmp_path / "dev", ["src\ttgt", "c\td"])
    config = StringsData(folder=str(tmp_path), train="train", dev="dev", header=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", IgnoredInputWarning)
        assert [example.source for example in Strings.examples(config, "train")] == ["a"]
    with pytest.warns(IgnoredInputWarning, match="dev: the first line, 'src<TAB>tgt', is read as an example"):
        assert [example.source for example in Strings.examples(config, "dev")] == ["src", "c"]


@pytest.mark.parametrize(
    ("names", "accepted", "plain"),  # `plain`: whether only lines without a target are accepted
    [
        ("lemma form tags", True, False),
        ("lemma form tags note", True, False),
        ("lemma tags", True, True),
        ("lemma tags note", False, False),
        ("form lemma tags", False, False),
        ("lemma tags form", False, False),
        ("form tags", False, True),
    ],
)
def test_headers_with_other_columns_raise(names: str, accepted: bool, plain: bool, tmp_path: Path) -> None:
    row = {"lemma": "walk", "form": "walked", "tags": "V;PST", "note": "x"}
    header, cells = "\t".join(names.split()), "\t".join(row[name] for name in names.split())
    write(tmp_path / "train", ["\t".join(row), *["\t".join(row.values())] * 2])
    write(tmp_path / "other", [header, cells])
    data = {"train": "train", "dev": "train", "header": True}
    run = untrained_run(tmp_path, data, RNN)
    error = r"expected the columns of the training data, lemma<TAB>form<TAB>tags<TAB>note, found the header "
    error += header.replace("\t", "<TAB>")
    if accepted:
        assert len(task_of(run.task).read([header, cells], "in", run, gold=not plain).corpus) == 1
        return
    with pytest.raises(InputError, match=f"in: {error}"):
        task_of(run.task).read([header, cells], "in", run, gold=not plain)
    with pytest.raises(InputError, match=f"other: {error}"):
        Strings.load(StringsData(folder=str(tmp_path), **{**data, "dev": "other"}))


def test_equal_names_in_a_header_are_accepted(tmp_path: Path) -> None:
    path = write(tmp_path / "train", ["form\tid\tform", "a\tb\tc"])
    task = Classification(columns=LabelColumns(1, 3), header=("form", "id", "form"))
    assert [example.text for example in read_labelled(path, task)] == ["c"]
    with pytest.raises(InputError, match=r"expected the columns .* found the header id<TAB>form<TAB>form"):
        read_labelled(write(tmp_path / "train", ["id\tform\tform", "a\tb\tc"]), task)


@pytest.mark.parametrize("header", [[], ["Lemma\tForm\tTags"]])
def test_comments_before_the_header_are_skipped(header: list[str], tmp_path: Path) -> None:
    lines = ["# by hand", *header, *paradigms("stf")]
    path = write(tmp_path / "verbs.txt", lines)
    assert is_data_file(path)
    config = config_of_file(path, ["data.comment=#", "data.held_out=0.2"])
    assert config.data.header == bool(header) and config.data.comment == "#"
    task, data = Strings.load(config.data)
    assert len(data.train) + len(data.dev.corpus) == 24
    assert task.formats[True] == (header[0].replace("\t", "<TAB>") if header else "source<TAB>target<TAB>features")
    with pytest.raises(InputError, match=r"txt:1: expected .* found 1 column: '# by hand'; .* data.comment=#$"):
        Strings.load(config_of_file(path).data)
    with pytest.raises(InputError, match="in most lines, found '# only'"):
        describe_file(write(tmp_path / "none", ["# only"]), ["data.comment=#"])


@pytest.mark.parametrize("first", ["map\tmaps", "map\tmaps\t"])
def test_features_after_a_first_line_without_features_are_reported(tmp_path: Path, first: str) -> None:
    lines = [first, *(f"{word}\t{word}s\tN;PL" for word in ("door", "room", "row", "word", "prom"))]
    data = {"folder": str(tmp_path), "train": "words.tsv", "held_out": 0.4}
    (tmp_path / "words.tsv").write_text("\n".join(lines))
    with pytest.warns(IgnoredInputWarning, match=r"words\.tsv:2: ignored column 3"):
        Strings.load(StringsData(**data))
    with warnings.catch_warnings():  # without a warning if the user has chosen the columns
        warnings.filterwarnings("error", "ignored column")
        warnings.filterwarnings("ignore", ".*separators at the end")
        Strings.load(StringsData(**data, columns={"features": None}))


def test_a_column_that_most_lines_lack_is_reported(tmp_path: Path) -> None:
    (path := tmp_path / "words.tsv").write_text("map\tmaps\nrow\trows\ndoor\tdoors\tN;PL\n")
    with pytest.warns(IgnoredInputWarning, match="ignored column 3"):
        assert describe_file(path)["data"]["columns"]["features"] is None


def test_an_empty_features_column_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="found empty features"):
        Strings().parse("map\tmaps\t", "words.tsv:1", True)


def test_rows_of_a_split_have_the_line_numbers_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "train").write_text("word\tform\nab\tba\nba\tab\n")
    (tmp_path / "test").write_text("word\tform\n\nab\tba\n\nba\tab\n")
    data = {"train": "train", "dev": "train", "test": "test", "header": True}
    run = untrained_run(tmp_path, data, RNN)
    config = StringsData(folder=str(tmp_path), **data)
    with pytest.warns(IgnoredInputWarning, match="blank lines"):
        lines = task_of(run.task).split(run, config, "test")
    assert lines.numbers == [2, 4]
    assert (len(lines.corpus), lines.references) == (2, ["ba", "ab"])


def test_spaces_around_answers_are_not_part_of_them() -> None:
    task = Strings(answer_separator=",")
    assert task.answers("learned, learnt , ") == ["learned", "learnt"]
    with pytest.raises(ValidationError, match=r"feature_separator must not contain ' \+ ', found ' \+ '"):
        StringsData(train="a", feature_separator=" + ")
