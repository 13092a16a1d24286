"""Tasks read lines, report the location of every error, and score outputs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from task_runs import config_of, encode, evaluate, read_lines, start
from tsallis.errors import InputError
from tsallis.models import RNNSeq2Seq
from tsallis.search import Certificate, Hypothesis, Result
from tsallis.toolkit.cli.input import line_blocks
from tsallis.toolkit.cli.output import score_table
from tsallis.toolkit.data import Vocabulary
from tsallis.toolkit.data.corpus import Corpus
from tsallis.toolkit.data.subwords import Subwords
from tsallis.toolkit.tasks.prepared import prepare
from tsallis.toolkit.tasks.registry import TASKS, task_of
from tsallis.toolkit.tasks.scoring import language_scores, score_values
from tsallis.toolkit.tasks.strings import StringsExample
from tsallis.toolkit.tasks.translation import Translation
from tsallis.toolkit.tasks.types import Lines
from tsallis.toolkit.training import Run

TEXT = ["das Haus ist rot", "the house is red", "ein Hut", "a hat"]


def run(task: dict[str, Any]) -> Run:
    if task["task"] == "translation":
        symbols: Any = Subwords.train(TEXT * 3, 40)
    else:
        symbols = Vocabulary([*"abcdefghijklmnop", "N", "V"])
    model = RNNSeq2Seq(len(symbols), len(symbols), d_model=4, layers=1).eval()
    return Run(Path("runs/x"), model, symbols, symbols, task, {})


def test_translation_reads_sentences_and_pairs() -> None:
    inputs = run({"task": "translation"})
    task = task_of(inputs.task)
    lines = task.read([" ein Hut ", "das Haus"], "in.de", inputs, gold=False)
    assert [list(row) for row in lines.corpus.src] == [inputs.src_vocab.encode(x) for x in ("ein Hut", "das Haus")]
    assert lines.numbers == [0, 1] and lines.count == 2 and [list(row) for row in lines.corpus.tgt] == [[], []]
    known = task.read(["ein Hut\ta hat"], "in.tsv", inputs, gold=True)
    assert list(known.corpus.tgt[0]) == inputs.tgt_vocab.encode("a hat") and known.references == ["a hat"]
    with pytest.raises(InputError, match=r"in\.de:1: expected text, found 2 columns: 'a\\tb'"):
        task.read(["a\tb"], "in.de", inputs, gold=False)  # the second column could be a reference


def test_lines_without_symbols_are_skipped_but_counted() -> None:
    inputs = run({"task": "translation"})
    result = task_of(inputs.task).read(["", "ein Hut", "  ", "\u200b", "das Haus", ""], "in.de", inputs, False)
    assert result.numbers == [1, 4] and result.count == 6 and len(result.corpus) == 2
    assert result.titles == ["ein Hut", "das Haus"]
    nothing = task_of(inputs.task).read(["", ""], "in.de", inputs, False)
    assert nothing.numbers == [] and nothing.count == 2 and len(nothing.corpus) == 0


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["a\tb", "a"], r"in\.tsv:2: expected source<TAB>target, found 1 column: 'a'"),
        (["a\tb\tc"], r"in\.tsv:1: .*found 3 columns"),
        (["a\tb", "a\tb", "\tb"], r"in\.tsv:3: .*found an empty source"),
        (["a\t "], r"in\.tsv:1: .*found an empty target"),
        (["a\t\r"], r"in\.tsv:1: .*found an empty target"),
        (["a\tb", "\u200b\tb", "a\tb"], r"in\.tsv:2: expected a source with at least one subword"),
        (["\u200b\tb"], r"in\.tsv:1: expected a source with at least one subword"),
    ],
)
def test_malformed_translation_pairs_are_rejected(lines: list[str], words: str) -> None:
    inputs = run({"task": "translation"})
    with pytest.raises(InputError, match=words):
        task_of(inputs.task).read(lines, "in.tsv", inputs, gold=True)


def test_an_empty_output_may_be_scored() -> None:
    for name, line in (("strings", "a\t\tN"), ("translation", "ein Hut\t"), ("translation", "ein Hut\t ")):
        inputs = run({"task": name})
        task = task_of(inputs.task)
        assert task.empty_outputs
        lines = task.read([line], "in", inputs, gold=True, empty=True)
        assert [len(row) for row in lines.corpus.tgt] == [0]
        with pytest.raises(InputError, match="found an empty"):
            task.read([line], "in", inputs, gold=True)


def test_language_must_be_one_of_the_run() -> None:
    several = run({"task": "strings", "languages": ["eo", "fi"]})
    one, none = run({"task": "strings", "languages": ["eo"]}), run({"task": "strings"})
    translation = run({"task": "translation"})
    for inputs, language, words in (
        (several, None, "language must be one of eo, fi, got none"),
        (several, "sv", "eo, fi, got 'sv'"),
        (none, "eo", "a run without languages, got 'eo'"),
        (translation, "de", "language can't be used with a run of the task translation, got 'de'"),
    ):
        with pytest.raises(InputError, match=words):
            read_lines(inputs, ["a\tN"], "in", gold=False, language=language)
    for inputs, language in ((several, "fi"), (one, None), (one, "eo"), (none, None)):
        assert len(read_lines(inputs, ["a\tN"], "in", gold=False, language=language).corpus) == 1


def test_translation_scores_join_parts_and_ignore_case() -> None:
    """Word parts are joined and case is ignored; the signatures of the scores show it."""
    texts, references = ["a Ha@@ t and , a STRASSE@@"], ["A hat and , a Straße"]
    folded = {s.name: s for s in Translation("de", "en", None, True, True, "@@").score(texts, references)}
    assert folded["bleu"].value == pytest.approx(100) and folded["exact"].value == 1
    assert "case:lc" in folded["bleu"].signature and "tok:none" in folded["bleu"].signature
    plain = {s.name: s for s in Translation("de", "en").score(texts, references)}
    assert plain["bleu"].value < 30 and plain["exact"].value == 0
    assert "case:mixed" in plain["bleu"].signature and "tok:13a" in plain["bleu"].signature


def lines_of(references: list[str], languages: list[str] | None) -> Lines:
    return Lines(Corpus([], []), references, [], [], len(references), languages)


def scores_of(accuracy: float, edits: float) -> dict[str, float]:
    """Return the expected scores of strings with one symbol."""
    errors = pytest.approx(1 - accuracy)
    return {"accuracy": accuracy, "word_error_rate": errors, "symbol_error_rate": edits, "levenshtein": edits}


def test_languages_have_equal_weight_in_macro_scores() -> None:
    """Languages have equal weight: 1 of 4 right in one and 1 of 1 in the other give 62.5 %, not 40 %."""
    task, texts, references = task_of({}), ["a", "b", "b", "b", "a"], ["a", "a", "a", "a", "a"]
    each = language_scores(task, texts, lines_of(references, ["fi", "fi", "fi", "fi", "eo"]))
    assert each == {"eo": {"samples": 1, **scores_of(1.0, 0.0)}, "fi": {"samples": 4, **scores_of(0.25, 0.75)}}
    values = score_values(task.score(texts, references), each)
    macro = {f"macro_{name}": value for name, value in scores_of(0.625, 0.375).items()}
    assert values == {**macro, **scores_of(0.4, 0.6)}
    assert next(iter(values)) == "macro_accuracy"  # the first score selects the best model
    for one in (None, ["fi"] * 5, []):
        assert language_scores(task, texts, lines_of(references, one)) == {}
    assert score_values(task.score(texts, references), {}) == scores_of(0.4, 0.6)


def test_evaluation_reports_scores_per_language() -> None:
    inputs = run({"task": "strings", "languages": ["eo", "fi"]})
    examples = [StringsExample("abc", ("N",), "b", "fi"), StringsExample("ab", ("V",), "c", "eo")]
    lines = encode(inputs, [*examples, *examples[:1]])
    assert lines.languages == ["fi", "eo", "fi"]
    report = evaluate(inputs, lines, beam_size=2)
    assert {name: row["samples"] for name, row in report["languages"].items()} == {"eo": 1, "fi": 2}
    for name in ("accuracy", "levenshtein"):
        eo, fi = (report["languages"][language][name] for language in ("eo", "fi"))
        assert report[f"macro_{name}"] == pytest.approx((eo + fi) / 2)
        assert report[name] == pytest.approx((eo + 2 * fi) / 3)
    alone = evaluate(inputs, encode(inputs, examples[:1]), beam_size=2)
    assert "languages" not in alone and "macro_accuracy" not in alone
    assert 0 <= alone["symbol_accuracy"] <= 1


EXPECTED = {
    "strings": ("source<TAB>features", "source<TAB>target<TAB>features"),
    "translation": ("text", "source<TAB>target"),
    "classification": ("text", "label<TAB>text"),
    "visual": ("image<TAB>question", "image<TAB>question<TAB>answer"),
}


@pytest.mark.parametrize("gold", [False, True])
@pytest.mark.parametrize("name", EXPECTED)
def test_empty_input_error_states_the_expected_format(name: str, gold: bool, tmp_path: Path) -> None:
    inputs = Run(Path("runs/x"), None, Vocabulary([]), Vocabulary([]), {"task": name}, {})
    (tmp_path / "in").write_bytes(b"")
    with pytest.raises(InputError, match=f"in: the file is empty, expected lines of {EXPECTED[name][gold]}$"):
        list(line_blocks(inputs, task_of(inputs.task), tmp_path / "in", gold))


@pytest.mark.parametrize("name", ["strings", "translation"])
def test_files_are_read_in_blocks(name: str, tmp_path: Path) -> None:
    inputs = run({"task": name})
    line = {"strings": "a\tb\tN", "translation": "ein Hut\ta hat"}[name]
    (tmp_path / "in").write_text(f"{line}\n" * 130 + "\nx\n", encoding="utf-8")
    blocks = line_blocks(inputs, task_of(inputs.task), tmp_path / "in", gold=True)
    parts = [next(blocks), next(blocks)]
    assert [(part.first, len(part.lines.corpus), part.lines.count) for part in parts] == [(0, 64, 64), (64, 64, 64)]
    last = next(blocks)  # the lines before the malformed one
    assert (last.first, len(last.lines.corpus), last.lines.count) == (128, 2, 3)
    with pytest.raises(InputError, match="in:132: expected"):
        next(blocks)


@pytest.mark.parametrize(
    ("task", "lines", "words"),
    [
        ({"task": "strings", "max_length": 9}, ["a\tN", f"{'a' * 9}\tN"], "in:66: .* at most 9 symbols, found 10"),
        ({"task": "strings"}, [f"{'a' * 5000}\tN"], "in:65: expected at most 1024 symbols, found 5001"),
        ({"task": "translation"}, ["", "ein " * 5000], r"in:66: expected at most 1024 symbols, found \d+"),
    ],
)
def test_too_long_lines_are_rejected(task: dict[str, Any], lines: list[str], words: str) -> None:
    inputs = run(task)
    with pytest.raises(InputError, match=words):
        read_lines(inputs, lines, "in", gold=False, first=64)


@pytest.mark.parametrize(
    "facts",
    [
        {
            **{"task": "strings", "languages": ["eo"], "max_length": 9},
            **{"columns": {"source": 1, "target": 3, "features": [2, 4]}, "header": ["a", "b"], "comment": "#"},
            **{"src_symbols": "characters", "tgt_symbols": "spaces", "feature_separator": ",", "answer_separator": "/"},
            **{"src_normalization": "NFC", "tgt_normalization": None},
        },
        {
            **{"task": "translation", "src": "de", "tgt": "en", "max_length": None},
            **{"lowercase": True, "tokenized": False, "joiner": "@@"},
        },
        {"task": "classification", "max_length": 3, "columns": {"label": 2, "text": 1}, "header": []},
        {"task": "visual", "images": "a.npy", "size": [4, 5], "max_length": None},
        {"task": "language", "length": 64, "synthetic": "copy"},
    ],
    ids=lambda facts: facts["task"],
)
def test_a_task_is_restored_from_its_facts(facts: dict[str, Any]) -> None:
    task = task_of(facts)
    assert task.facts() == facts and type(task) is TASKS[facts["task"]] and next(iter(task.facts())) == "task"
    with pytest.raises(InputError, match=r"r/task\.json: expected the task \w+, found 'parsing'; restore the file"):
        task.restore({"task": "parsing"}, "r/task.json")


def test_tasks_return_the_scores_they_declare() -> None:
    for name, task in TASKS.items():
        if not task.searched:
            continue
        scores = task_of({"task": name}).score(["a b c d"], ["a b c d"])
        assert tuple(score.name for score in scores) == task.scores
        quick = task_of({"task": name}).score(["a b c d"], ["a b c d"], quick=True)
        assert [score.name for score in quick] == [x for x in task.scores if x not in task.costly_scores]


def test_costly_scores_are_computed_only_if_selected() -> None:
    data = {"task": "translation", "embedded": "german-english-numbers"}
    model = {"architecture": "rnn", "d_model": 4}
    for select, names in (("chrf", ["bleu", "chrf", "exact"]), ("ter", ["bleu", "chrf", "ter", "exact"])):
        config = {"version": 1, "data": data, "model": model, "training": {"select": select}}
        prepared = prepare(config_of(config))
        result = Result((Hypothesis((4,), -1.0, (), ()),), Certificate("none", 0.0))
        assert [*prepared.measure()([result] * 3)] == names
    config["training"] = {"select": "accuracy"}
    with pytest.raises(InputError, match=r"training.select: expected one of bleu, .*, loss, .*, found 'accuracy'"):
        prepare(config_of(config))


def test_a_run_of_an_earlier_version_resumes(tmp_path: Path) -> None:
    """A run whose configuration lacks newer settings resumes only if they have their default values."""
    content = {"version": 1, "data": {"embedded": "english-verbs"}, "model": {"d_model": 4}}
    config = config_of(content)
    prepared = prepare(config)
    old = config.text().replace("  select: null\n", "")
    assert old != config.text()
    start(replace(prepared, text=old), tmp_path)
    assert start(prepare(config, tmp_path), tmp_path)
    assert (tmp_path / "config.yaml").read_text() == old
    other = prepare(config_of({**content, "training": {"select": "loss"}}), tmp_path)
    with pytest.raises(InputError, match=r"another configuration \(new training.select: loss"):
        start(other, tmp_path)


def test_scores_without_a_title_are_printed_under_their_names() -> None:
    assert score_table({"macro_ter": 25.0}) == f"{'TER, mean of languages':<34}{'25.00':>10}"
    table = score_table({"f1": 0.25, "loss": 1.5, "seconds": 3.0, "signatures": {"f1": "v1"}})
    assert table.split("\n") == [f"{'f1':<34}{'0.2500':>10}", f"{'loss per symbol':<34}{'1.5000':>10}", "f1: v1"]


def test_languages_are_printed_with_the_scores_of_their_task() -> None:
    forms = {"de": {"samples": 7, "accuracy": 0.5, "levenshtein": 1.25}, "eo": {"samples": 12, "accuracy": 1.0}}
    forms["eo"]["levenshtein"] = 0.0
    assert score_table({"languages": forms}).split("\n")[1:] == [
        f"{'language':<34}{'examples':>10}{'accuracy':>10}{'edit distance':>15}",
        f"{'de':<34}{7:>10}{'50.00%':>10}{'1.250':>15}",
        f"{'eo':<34}{12:>10}{'100.00%':>10}{'0.000':>15}",
    ]
    translations = {"de": {"samples": 7, "bleu": 34.5678, "exact": 0.5, "f1": 0.25}}
    assert score_table({"languages": translations}).split("\n")[1:] == [
        f"{'language':<34}{'examples':>10}{'BLEU':>10}  equal to the reference{'f1':>10}",
        f"{'de':<34}{7:>10}{'34.57':>10}{'50.00%':>24}{'0.2500':>10}",
    ]


def test_unknown_gold_symbols_are_printed_where_there_are_any() -> None:
    assert score_table({"loss": 1.5, "unknown_symbols": 0}) == f"{'loss per symbol':<34}{'1.5000':>10}"
    assert score_table({"unknown_symbols": 3}) == f"{'unknown reference symbols':<34}{3:>10}"
