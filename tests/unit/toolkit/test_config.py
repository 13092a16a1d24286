"""Configurations: all errors are reported together with their paths, and settings become arguments."""

from __future__ import annotations

import contextlib
import os
import re
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import yaml

from task_runs import read_split
from tsallis.errors import InputError
from tsallis.models.registry import MODELS
from tsallis.search import beam_search
from tsallis.toolkit.config import Config, refuse_idle
from tsallis.toolkit.data.splits import hold_out
from tsallis.toolkit.data.subwords import Subwords
from tsallis.toolkit.tasks.classification import ClassificationData
from tsallis.toolkit.tasks.prepared import prepare
from tsallis.toolkit.tasks.registry import TASKS, load_config, schema
from tsallis.toolkit.tasks.translation import SubwordsConfig
from tsallis.toolkit.tasks.vqa import VisualData
from tsallis.toolkit.training.run_folder import build_model

BASE = "version: 1\ndata: {embedded: english-verbs}\n"
TRANSFORMER = BASE + "model: {architecture: transformer}\n"
TRANSLATION = "version: 1\ndata: {task: translation}\n"
NUMBERS = "version: 1\ndata: {task: translation, embedded: german-english-numbers}\n"


def config(folder: Path, text: str, *overrides: str) -> Config:
    path = folder / "config.yaml"
    path.write_text(text, encoding="utf-8")
    return load_config(path, overrides)


def test_all_errors_are_reported_on_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        config(
            tmp_path,
            "version: 1\ndata: {embedded: english-verbs, floder: x}\nmodel: {d_modle: 3, dropout: 1.5, tau: many}\n"
            "training: {epochs: none, clip: -1, seed: -1}\nseach: {}\n",
        )
    message = str(caught.value)
    assert "\n" not in message and "config.yaml: " in message
    for words in (
        "data.floder: unknown key (did you mean folder?)",
        "model.d_modle: unknown key (did you mean d_model?)",
        "model.dropout: input should be less than 1, found 1.5",
        "model.tau: ",
        "'auto' or 'formula', found 'many'",
        "training.epochs: ",
        "found 'none'",
        "training.clip: input should be greater than 0, found -1",
        "training.seed: ",
        "seach: unknown key (did you mean search?)",
    ):
        assert words in message
    assert message.count("; ") == 7  # eight mistakes, each reported once


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("version: 1\n", "data: missing"),
        ("data: {embedded: english-verbs}\n", "version: missing"),
        (BASE + "zzz: 1\n", "zzz: unknown key$"),
        ("version: 1\ndata: {}\n", "data: train must be set"),
        ("version: 1\ndata: {embedded: english-verbs, test: t}\n", "test can't be used with embedded data"),
        ("version: 1\ndata: {train: a, dev: b, languages: [x, 2]}\n", r"data.languages.1: .*found 2; .* in quotes"),
        (BASE + "model: {d_model: 7}\n", "model.d_model: input should be a multiple of 2, found 7"),
        (BASE + "model: {output_alpha: .nan}\n", "model.output_alpha: .*found nan"),
        (BASE + "model: {architecture: cnn}\n", "model.architecture: expected .rnn. or .transformer., found .cnn."),
        (BASE + "model: {architecture: rnn, heads: 2}\n", r"model.heads: unknown key \(.* to .*: transformer\)$"),
        (TRANSFORMER + "{cell: gru}\n", r"model.cell: unknown key \(it belongs to architecture: rnn\)$"),
        (BASE + "model: {attention: learned}\n", r"found 'learned' \(it belongs to architecture: transformer\)$"),
        (BASE + "model: {architecture: rnn, attention: lerned}\n", "'softmax', .* found 'lerned'$"),
        (TRANSFORMER + "{heads: 3}\n", "model: d_model must be a multiple of heads, found d_model 512 and heads 3"),
        ("version: 1\ndata: {task: parsing}\n", "data: .*'parsing'.*strings.*translation"),
        (TRANSLATION + "{train: t, dev: d, languages: all}\n", "data.languages: unknown key"),
        (TRANSLATION + "{train: t, dev: d, subwords: {siez: 9}}\n", r"subwords.siez: .* \(did you mean size\?\)"),
        (TRANSLATION + "{train: t, dev: d, subwords: {model: m, size: 9}}\n", "existing model .* leave out size"),
        (TRANSLATION + "{train: t, dev: d, subwords: {src_model: m}}\n", "data.subwords: set either model, or"),
        (TRANSLATION + "{train: t, dev: d, subwords: {kind: word, sample: 0.1}}\n", "subwords: sample .* kind: word"),
        (TRANSLATION + "{train: t, dev: d, lowercase: true, subwords: {model: m}}\n", "lowercase .* existing model"),
        (BASE + "model: {share: target, d_embedding: 8}\n", "d_embedding must equal d_model 300 .* target, found 8"),
        (BASE + "training: {betas: [0.9, 1.0]}\n", "training.betas.1: .*less than 1, found 1.0"),
        (BASE + "training: {sort_by: target, max_tokens: 9}\n", "training: max_tokens 9 can't be used"),
        (BASE + "training: {lowest_learning_rate: 1}\n", "lowest_learning_rate .* learning_rate 0.001, found 1"),
        (BASE + "? [1]\n: 2\n", "not YAML"),
        (BASE + "training: {epochs: 4, epochs: 5}\n", "config.yaml: not YAML: line 3, column 23: duplicate key epochs"),
        (BASE + "training:\n  epochs: 4\n  epochs: 5\n", "line 5, column 3: duplicate key epochs; keep one of them"),
        (BASE + "x: [{a: 1, a: 1}]\n", "duplicate key a"),
        (BASE + "training: &a {epochs: 4, epochs: 5}\nx: *a\n", "duplicate key epochs"),
        (BASE + 'run_dir: "C:\\data"\n', r"line 3, column \d+: .*'d'; write \\\\ for a backslash, or .* quotes"),
        ("", "expected keys and values"),
        ("- 1\n", "expected keys and values"),
    ],
)
def test_invalid_settings_raise(tmp_path: Path, text: str, words: str) -> None:
    text = text.replace("}\n{", ", ")  # merge two sections into one
    with pytest.raises(InputError, match=words) as caught:
        config(tmp_path, text)
    assert "\n" not in str(caught.value)


def test_unreadable_configurations_raise(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="can't be read: No such file"):
        load_config(tmp_path / "absent.yaml")
    with pytest.raises(InputError, match="can't be read"):
        load_config(tmp_path)
    (tmp_path / "latin.yaml").write_bytes("run_dir: façade".encode("latin-1"))
    with pytest.raises(InputError, match="UTF-8 text, found byte 0xe7"):
        load_config(tmp_path / "latin.yaml")


def test_overrides_change_settings(tmp_path: Path) -> None:
    changes = ("training.epochs=3", "model.output=sparsemax", "training.learning_rate=1e-4", "search.beam_size=9")
    loaded = config(tmp_path, BASE + "training:\n", *changes)
    assert loaded.training.epochs == 3 and loaded.model.output == "sparsemax"
    assert loaded.training.learning_rate == 1e-4 and loaded.search.options.beam_size == 9
    files_of = "version: 1\ndata: {train: '{language}-t', dev: '{language}-d'}\n"
    assert config(tmp_path, files_of, "data.languages=spanish").data.languages == ["spanish"]
    assert config(tmp_path, files_of, "data.languages=[a, b]").data.languages == ["a", "b"]
    assert config(tmp_path, files_of, "data.languages=all").data.languages == "all"


def test_overrides_of_string_settings_stay_strings(tmp_path: Path) -> None:
    """If a setting expects a name, text that YAML would parse as a mapping or a number is a name."""
    loaded = config(tmp_path, "version: 1\n", "data.train={language}-train-low", "data.dev={language}")
    assert (loaded.data.train, loaded.data.dev) == ("{language}-train-low", "{language}")
    loaded = config(tmp_path, "version: 1\n", "data={train: a, dev: b}", "data.folder=2018", "data.test=null")
    assert loaded.data.folder == "2018" and loaded.data.test is None


@pytest.mark.parametrize("text", ["no", "on", "010", "1:30", "2020-01-31", "="])
def test_texts_of_yaml_1_1_stay_texts(tmp_path: Path, text: str) -> None:
    for content, overrides in (
        (f"{{train: {text}, languages: [{text}, nb]}}", []),
        ("{}", [f"data.train={text}", f"data.languages=[{text},nb]"]),
    ):
        data = config(tmp_path, f"version: 1\ndata: {content}\n", *overrides).data
        assert (data.train, data.languages) == (text, [text, "nb"])
    assert config(tmp_path, "version: 1\ndata: {train: a}\n", f"data.languages={text}").data.languages == [text]


def test_numbers_with_an_exponent_are_numbers(tmp_path: Path) -> None:
    text = "version: 1\ndata: {train: '1e3'}\ntraining: {updates: 1e4}\nsearch: {length_penalty: 1e-1}\n"
    loaded = config(tmp_path, text, "training.learning_rate=1e-3", "data.dev=1E+5")
    assert (loaded.training.updates, loaded.search.options.length_penalty) == (10_000, 0.1)
    assert (loaded.data.train, loaded.data.dev, loaded.training.learning_rate) == ("1e3", "1E+5", 0.001)
    assert config(tmp_path, loaded.text()) == loaded


def test_truth_values_and_numbers_of_yaml_1_1_are_accepted(tmp_path: Path) -> None:
    text = "version: 1\ndata: {train: a, header: yes}\ntraining: {compile: off, epochs: 010}\n"
    loaded = config(tmp_path, text)
    assert loaded.data.header and not loaded.training.compile and loaded.training.epochs == 10
    with pytest.raises(InputError, match=r"training.epochs: .*found 'yes'"):
        config(tmp_path, text, "training.epochs=yes")


@pytest.mark.parametrize("text", ["#", "|", ">", "!", "-", "?", "::", "#;", "# ", " "])
def test_overrides_accept_yaml_symbols_as_separators(tmp_path: Path, text: str) -> None:
    files = "version: 1\ndata: {train: a}\n"
    loaded = config(tmp_path, files, f"data.feature_separator={text}", f"data.comment={text}")
    assert (loaded.data.feature_separator, loaded.data.comment) == (text, text)
    for nothing in ("", "null", "Null", "NULL", "~"):
        assert config(tmp_path, files, f"data.comment={nothing}").data.comment is None


@pytest.mark.parametrize(
    ("model", "fault"),
    [
        ("attention: softmax, attention_alpha: 2", "attention: softmax; .* set model.attention to entmax"),
        ("attention: sparsemax, monotonic: 1, input_feeding: false, attention_alpha: 2", "attention: sparsemax; "),
        ("attention_alpha: 2", ""),
        ("num_basis: 33", "density: null; leave it out, or set model.density$"),
        ("num_basis: 33, density: gaussian", ""),
        (
            "architecture: transformer, attention: learned, cross_attention: softmax, attention_alpha: 2",
            "attention: learned and cross_attention: softmax; leave it out, or set model.attention to entmax$",
        ),
        ("architecture: transformer, attention: softmax, cross_attention: entmax, attention_alpha: 2", ""),
        (
            "architecture: classifier, attention: discrete, num_basis: 8",
            "attention: discrete; leave it out, or set model.attention to continuous or combined$",
        ),
        ("architecture: classifier, num_basis: 8", ""),
        ("architecture: classifier, attention: continuous, density: laplace, num_basis: 8", ""),
    ],
)
def test_settings_without_effect_raise(tmp_path: Path, model: str, fault: str) -> None:
    data = "{task: classification, train: a}" if "classifier" in model else "{embedded: english-verbs}"
    loaded = config(tmp_path, f"version: 1\ndata: {data}\nmodel: {{{model}}}\n")
    with pytest.raises(InputError, match=f"has no effect with {fault}") if fault else contextlib.nullcontext():
        refuse_idle(loaded)


def test_yaml_merge_keys_can_be_overridden(tmp_path: Path) -> None:
    text = "version: 1\ndata: &d {train: t, dev: d}\n"
    assert config(tmp_path, text + "training: {epochs: 2}\n").training.epochs == 2
    with pytest.raises(InputError, match="other: unknown key") as caught:
        config(tmp_path, text + "other: {<<: *d, train: x}\n")
    assert "twice" not in str(caught.value)


def test_later_overrides_extend_an_overridden_section(tmp_path: Path) -> None:
    later = "training.epochs=2", "training.seed=3", "training.src_embeddings.file=x"
    loaded = config(tmp_path, BASE, "training={epochs: 1}", *later)
    assert (loaded.training.epochs, loaded.training.seed, loaded.training.src_embeddings.file) == (2, 3, "x")


def test_errors_name_the_file_or_override(tmp_path: Path) -> None:
    text = BASE + "model: {layers: 0}\ntraining: {clip: 0}\n"
    with pytest.raises(InputError) as caught:
        config(tmp_path, text, "training.epochs=-1", "training.patience=0")
    assert str(caught.value) == (
        f"{tmp_path}/config.yaml: model.layers: input should be greater than or equal to 1, found 0; "
        "training.clip: input should be greater than 0, found 0; "
        "override 'training.epochs=-1': training.epochs: input should be greater than or equal to 1, found -1; "
        "override 'training.patience=0': training.patience: input should be greater than or equal to 1, found 0"
    )
    with pytest.raises(InputError) as caught:
        config(tmp_path, BASE, "training.schedule=linear", "search.beam_size=3")
    assert str(caught.value) == (
        f"{tmp_path}/config.yaml with override 'training.schedule=linear': training: schedule: linear needs updates "
        "above warmup, found no updates and warmup 4000"
    )
    with pytest.raises(InputError) as caught:
        config(tmp_path, BASE, "training.output_alpha.until=1", "training.updates=9", "model.output=softmax")
    assert str(caught.value) == (
        f"{tmp_path}/config.yaml with override 'training.output_alpha.until=1' with override 'model.output=softmax': "
        "training.output_alpha needs model.output: entmax, found softmax"
    )
    text = BASE + "model: {output: softmax}\ntraining: {updates: 9, output_alpha: {until: 1}}\n"
    for override, is_named in (("model={output: softmax}", True), ("model.output_alpha=1.2", False)):
        with pytest.raises(InputError, match=r"needs model\.output: entmax, found softmax") as caught:
            config(tmp_path, text, override)
        assert (override in str(caught.value)) == is_named


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["epochs"], "expected key=value"),
        (["=3"], "expected key=value"),
        (["training.epochs=[1"], "training.epochs: "),
        (["training.epochs={language}-x"], "override 'training.epochs={language}-x': training.epochs: "),
        (["version.major=1"], "version is not a section"),
        (["training.epocs=3"], "training.epocs: unknown key (did you mean epochs?)"),
        (["training.src_embeddings={fiel: x}"], "src_embeddings.file: missing"),
        (["training={epochs: 1, epochs: 2}"], "override 'training={epochs: 1, epochs: 2}': training: "),
        (["training.epochs=2", "training.epochs=2"], "override 'training.epochs=2': another override sets the same"),
        (["training.epochs=2", "training={seed: 3}"], "override 'training={seed: 3}': another override sets the same"),
    ],
)
def test_invalid_overrides_raise(tmp_path: Path, overrides: list[str], words: str) -> None:
    with pytest.raises(InputError, match=re.escape(words)):
        config(tmp_path, BASE, *overrides)


def test_text_contains_all_settings_except_run_dir(tmp_path: Path) -> None:
    loaded = config(tmp_path, BASE + "run_dir: runs/x\ntraining: {seed: 7}\n")
    assert "run_dir" not in loaded.text() and yaml.safe_load(loaded.text())["model"]["layers"] == 2
    again = config(tmp_path, loaded.text())
    assert again == loaded.model_copy(update={"run_dir": None})


SECTIONS = {name: section for task in TASKS.values() for name, section in task.models.items()}
IMAGES = {"kind": "questions", "image": "features", "d_image": 5}  # settings that the data determines


@pytest.mark.parametrize("architecture", ["rnn", "transformer", "classifier", "answerer"])
def test_model_defaults_match_the_configuration(architecture: str) -> None:
    more = IMAGES if architecture == "answerer" else {}
    inputs = SECTIONS[architecture](architecture=architecture).model_dump(exclude={"architecture"})
    if "tau" in inputs:
        assert inputs.pop("tau") == "auto"  # needs data: the class accepts only the number
    if "copy" in inputs:  # needs data: the class accepts the symbols instead
        assert inputs.pop("copy") is False and inputs.pop("features") == "joined"
    plain, set_ = (MODELS[architecture](20, 20, **more, **settings) for settings in ({}, inputs))
    arguments = [
        getattr(getattr(model, "classifier", model), "answerer", getattr(model, "classifier", model)).arguments
        for model in (plain, set_)
    ]
    assert arguments[0] == arguments[1] and len(arguments[0]) >= len(inputs)


def test_search_and_data_defaults_match_the_functions(tmp_path: Path) -> None:
    def default(function: Any, name: str) -> Any:
        return signature(function).parameters[name].default

    for name in ("beam_size", "min_length", "max_length", "length_penalty", "end_rule"):
        assert config(tmp_path, BASE).search.model_dump()[name] == default(beam_search, name)
    for name in ("kind", "coverage", "split_digits"):
        assert getattr(SubwordsConfig(), name) == default(Subwords.train, name)
    for section in (ClassificationData, VisualData):
        assert section.model_fields["held_out"].default == default(hold_out, "share")
    assert {*SECTIONS} == {*MODELS}


@pytest.mark.parametrize(("text", "competing"), [(BASE, False), (NUMBERS, True)])
def test_translation_defaults_to_the_competing_end_rule(tmp_path: Path, text: str, competing: bool) -> None:
    rule, other = ("competing", "every") if competing else ("every", "competing")

    def ends(*overrides: str) -> tuple[str | None, str]:
        loaded = config(tmp_path, text, *overrides)
        return loaded.search.options.end_rule, loaded.training.validation_end_rule

    assert ends() == ends("search.beam_size=3", "training.epochs=2") == (rule, rule)
    assert ends(f"search.end_rule={other}") == (other, rule)
    assert f"\n  end_rule: {rule}\n" in config(tmp_path, text).text()


def test_only_set_limits_become_search_arguments(tmp_path: Path) -> None:
    """Only limits that are set become arguments of a search. The stored configuration has all of them."""
    loaded = config(tmp_path, BASE, "search.min_length=2", "search.max_length=9", "search.length_penalty=0.6")
    assert loaded.search.options.limits == {"min_length": 2, "max_length": 9, "length_penalty": 0.6}
    for overrides in ((), ("search.min_length=0",)):
        assert config(tmp_path, BASE, *overrides).search.options.limits == {}
    assert "\n  min_length: 0\n  max_length: null\n  length_penalty: 0.0\n" in config(tmp_path, BASE).text()


def write(folder: Path, name: str, *rows: str) -> None:
    (folder / name).write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")


def test_prepare_loads_task_data_and_settings(tmp_path: Path) -> None:
    write(tmp_path, "eo-train", "iri\tiras\tV;PRS", "esti\testas\tV;PRS")
    write(tmp_path, "eo-dev", "vidi\tvidas\tV;PRS")
    text = f"version: 1\ndata: {{folder: {tmp_path}, train: '{{language}}-train', dev: '{{language}}-dev'}}\n"
    prepared = prepare(config(tmp_path, text, "data.languages=eo", "model.d_model=8", "training.seed=3"))
    assert prepared.task.facts() == {
        **{"task": "strings", "languages": ["eo"], "max_length": 256},
        **{"columns": {"source": 1, "target": 2, "features": [3]}, "header": [], "comment": None},
        **{"src_symbols": "characters", "tgt_symbols": "characters"},
        **{"feature_separator": ";", "answer_separator": None, "src_normalization": None, "tgt_normalization": None},
    }
    data = prepared.data
    assert "<lang:eo>" in data.vocabularies.src and "<lang:eo>" not in data.vocabularies.tgt
    assert len(data.train) == 2 and len(data.dev.corpus) == 1 and data.dev.references == ["vidas"]
    assert prepared.settings.seed == 3 and prepared.settings.batch_size == 64
    built = build_model(prepared.description)
    assert built.arguments["src_vocab"] == len(data.vocabularies.src) and built.arguments["d_model"] == 8
    assert 3 in data.dev.corpus.tgt[0]  # "v" is not in the training data, so it is unknown
    everything = prepare(config(tmp_path, text, "data.languages=all", "model.d_model=8"))
    assert everything.task.facts()["languages"] == ["eo"]


def test_missing_splits_raise(tmp_path: Path) -> None:
    write(tmp_path, "train", "iri\tiras\tV;PRS")
    data = config(tmp_path, f"version: 1\ndata: {{folder: {tmp_path}, train: train, dev: train}}\n").data
    assert read_split(data, "dev")[0].target == "iras"
    with pytest.raises(InputError, match=r"data.test is not set"):
        read_split(data, "test")
    with pytest.raises(InputError, match="train, dev or test, got 'tset'"):
        read_split(data, "tset")
    every = config(tmp_path, f"version: 1\ndata: {{folder: {tmp_path}, train: train, dev: d, languages: all}}\n").data
    with pytest.raises(InputError, match=r"must contain \{language\} once"):
        read_split(every, "train")
    none = every.model_copy(update={"train": "{language}-x"})
    with pytest.raises(InputError, match=r"no file \*-x"):
        read_split(none, "train")


@pytest.mark.parametrize(
    "value",
    [
        *("!!timestamp 2001-13-45", "0x_", "9" * 5000, "!!float x", "!!python/object/apply:os.system [ls]", "[" * 2000),
        *("&a [*a]", "? {a: 1}\n: 1", "x" * 200_000, "\x00", '"\\ud800"', "!!set {a, b}"),
    ],
)
def test_invalid_yaml_values_raise_short_errors(tmp_path: Path, value: str) -> None:
    path = tmp_path / "c.yaml"
    for key in ("data.train", "training.epochs", "model.output"):
        section, name = key.split(".")
        path.write_text(f"version: 1\ndata: {{dev: d, train: t}}\n{section}:\n  {name}: {value}\n", encoding="utf-8")
        with pytest.raises(InputError) as caught:
            load_config(path)
        assert str(caught.value).startswith(f"{path}: ") and len(str(caught.value)) < 1000
        path.write_text(BASE)
        with pytest.raises(InputError) as caught:
            load_config(path, [f"{key}={value}"])
        assert len(str(caught.value)) < 1000 and key in str(caught.value)


@pytest.mark.parametrize("kind", ["sequence", "mapping", "merge"])
def test_too_many_yaml_aliases_raise(tmp_path: Path, kind: str) -> None:
    """Each level has ten aliases of the level before: a few hundred bytes would expand to billions of values."""
    forms = {"sequence": "[{}]", "mapping": "{{{}}}", "merge": "{{<<: [{}]}}"}
    lines = ["a0: &a0 {x: 1}"]
    for level in range(1, 12):
        parts = [f"k{i}: *a{level - 1}" if kind == "mapping" else f"*a{level - 1}" for i in range(10)]
        lines.append(f"a{level}: &a{level} " + forms[kind].format(", ".join(parts)))
    with pytest.raises(InputError, match="at most 20 YAML aliases"):
        config(tmp_path, "\n".join(lines))


def integers_without_an_end() -> list[str]:
    """Return the integer settings whose schema has no largest value."""
    result, largest = [], {"maximum", "exclusiveMaximum", "const", "enum"}
    schemas = [schema(task, name) for task in TASKS.values() for name in task.models]
    definitions = {k: v for each in schemas for k, v in each.model_json_schema()["$defs"].items()}
    for name, section in definitions.items():
        for key, content in section["properties"].items():
            kinds = [content, *content.get("anyOf", []), *content.get("prefixItems", [])]
            kinds += [item for kind in kinds for item in kind.get("prefixItems", [])]
            if any(kind.get("type") == "integer" and not largest & set(kind) for kind in kinds):
                result.append(f"{name}.{key}")
    return result


def test_every_integer_setting_has_a_maximum() -> None:
    assert integers_without_an_end() == []


def test_long_error_messages_are_truncated(tmp_path: Path) -> None:
    unknown = "".join(f"{'k' * 500}{i}: 1\n" for i in range(400))
    with pytest.raises(InputError, match="unknown key") as caught:
        config(tmp_path, BASE + unknown)
    assert len(str(caught.value)) < 3000


def test_large_files_pipes_and_invalid_names_raise(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected at most 262144 bytes, found more"):
        config(tmp_path, "#" * 300_000)
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(InputError, match="expected a file, found a pipe or a device"):
            load_config(path)
    for name in ("a\0b", "a\ud800"):
        with pytest.raises(InputError, match="no file can have this name"):
            load_config(tmp_path / name)
