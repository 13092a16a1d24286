"""Settings of a training, as the command takes them."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml

from integration.cli.conftest import Run
from integration.cli.runs import contents, inflection, translation
from tsallis.data.subwords import Subwords
from tsallis.tasks.registry import load_config, task_type
from tsallis.training.run_folder import start_run


def last_line(path: Path) -> dict[str, object]:
    return dict(json.loads(path.read_text().splitlines()[-1]))


def test_optimizer_schedule_and_curves(tsallis: Run, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs tensorboard: of the extra tensorboard")
    config = inflection(tmp_path / "data")
    settings = {
        "optimizer": "adamw",
        "weight_decay": 0.1,
        "schedule": "plateau",
        "plateau_patience": 1,
        "select": "levenshtein",
        "tensorboard": "true",
        "epochs": 3,
    }
    overrides = [f"training.{key}={value}" for key, value in settings.items()]
    run = tmp_path / "run"
    text = tsallis("train", config, *overrides, "--run-dir", run).stdout
    event = last_line(run / "log.jsonl")
    assert event["select"] == "levenshtein" and "dev levenshtein" in text
    assert list((run / "tensorboard").glob("events.out.tfevents.*"))
    assert "Going on" in tsallis("train", config, *overrides, "--run-dir", run).stdout
    assert last_line(run / "log.jsonl") == event


def test_a_run_that_starts_from_another_one(tsallis: Run, inflector: Path, tmp_path: Path) -> None:
    """Once started it needs the other one no more, and ends the same wherever it is stopped."""
    source, config = tmp_path / "source", inflection(tmp_path / "data", lines=40)
    shutil.copytree(inflector, source)
    (tmp_path / "vectors.txt").write_text("<tag:V> 1 2 3 4\na .1 .2 .3 .4\nb 0 0 0 1\n")
    vectors = f"{{file: {tmp_path}/vectors.txt, freeze: true}}"
    overrides = [f"training.init_from={source}", f"training.src_embeddings={vectors}", "training.seed=5"]
    text = tsallis("train", config, *overrides, "--run-dir", tmp_path / "whole").stdout
    assert f"Starts from {source} (best, step " in text and "of src from" in text and "frozen" in text
    expected = contents(tmp_path / "whole")
    start = json.loads((tmp_path / "whole" / "log.jsonl").read_text().splitlines()[0])
    assert start["init"]["run"]["random"] == start["init"]["run"]["unused"] == []
    assert start["init"]["embeddings"]["src"]["symbols"] == 3

    loaded = load_config(config, overrides)
    prepared = task_type(loaded).prepare(loaded, tmp_path / "killed")
    begun, symbols = prepared.initialize(prepared.build()), prepared.data.vocabularies
    (tmp_path / "killed").mkdir()
    arguments = (prepared.description, prepared.task.facts(), symbols.src, symbols.tgt, None, begun.blob())
    start_run(tmp_path / "killed", prepared.text, *arguments)
    source.rename(tmp_path / "elsewhere")
    (tmp_path / "vectors.txt").unlink()
    text = tsallis("train", config, *overrides, "--run-dir", tmp_path / "killed").stdout
    assert "Going on" in text and f"Starts from {source} (best, step " in text
    assert contents(tmp_path / "killed") == expected
    assert "Going on" in tsallis("train", config, *overrides, "--run-dir", tmp_path / "killed").stdout
    assert tsallis("translate", tmp_path / "killed", stdin="walk\tV;PST\n").stdout.count("\n") == 1


def test_a_source_that_does_not_fit_is_refused(tsallis: Run, inflector: Path, translator: Path, tmp_path: Path) -> None:
    config = inflection(tmp_path / "data")
    (tmp_path / "v.txt").write_text("a 1 2 3\n")
    for overrides, words in (
        ([f"training.init_from={tmp_path}"], "training.init_from: .*: not a run folder"),
        ([f"training.init_from={translator}"], "a run of the task translation, not inflection"),
        ([f"training.init_from={inflector}", "model.d_model=6"], "sizes of model must be the same"),
        (
            [f"training.init_from={inflector}", "model.output=alpha_relu"],
            "model.tau: auto estimates the threshold of an untrained network, .*: give a number",
        ),
        ([f"training.src_embeddings={tmp_path}/v.txt"], "vectors of 3 numbers, the model's embeddings have 4"),
        ([f"training.src_embeddings={tmp_path}/w.txt"], "w.txt: can't be read: No such file"),
        (["training.src_embeddings={fiel: x}"], "training.src_embeddings.file: missing; .*fiel: unknown key"),
    ):
        done = tsallis("train", config, *overrides, "--run-dir", tmp_path / "run", status=2)
        assert re.search(words, done.stderr) and done.stderr.count("\n") == 1, done.stderr


def test_existing_subwords_and_folded_case(tsallis: Run, tmp_path: Path) -> None:
    """A model that numbers its symbols otherwise, and words in the place of subwords."""
    sentencepiece = pytest.importorskip("sentencepiece")
    config = translation(tmp_path / "data")
    lines = [line for side in ("de", "en") for line in (tmp_path / "data" / f"train.{side}").read_text().splitlines()]
    own = {"sentence_iterator": iter(lines), "model_prefix": str(tmp_path / "own"), "vocab_size": 80}
    sentencepiece.SentencePieceTrainer.train(**own, minloglevel=2)
    text = yaml.safe_load(config.read_text())
    text["training"]["epochs"] = 1
    for name, data in (
        ("own", {"subwords": {"model": f"{tmp_path}/own.model"}}),
        ("folded", {"subwords": {"size": 90}, "lowercase": True}),
        ("words", {"subwords": {"size": 300, "kind": "word"}, "tokenized": True, "joiner": "@@"}),
    ):
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump({**text, "data": {**text["data"], **data}}))
        tsallis("train", path, "--run-dir", tmp_path / name)
        assert tsallis("translate", tmp_path / name, stdin="der erste Mai\n").stdout.count("\n") == 1
        assert "BLEU" in tsallis("evaluate", tmp_path / name, "--split", "dev").stdout
    folded = Subwords.load(tmp_path / "folded" / "src.model")
    assert folded.encode("Der ERSTE") == folded.encode("der erste")
    own_model = Subwords.load(tmp_path / "own" / "src.model")
    assert own_model.encode("der") and len(own_model) == 81  # with padding, which it lacked
    assert Subwords.load(tmp_path / "words" / "src.model").name(5).startswith("▁")


def test_a_recurrent_model_as_martins_have_it(tsallis: Run, tmp_path: Path) -> None:
    config = inflection(tmp_path / "data")
    settings = ["model.cell=gru", "model.scorer=additive", "model.d_embedding=6", "model.density=gaussian"]
    run = tmp_path / "run"
    tsallis("train", config, *settings, "model.attention=softmax", "model.num_basis=6", "--run-dir", run)
    assert json.loads((run / "model.json").read_text())["arguments"]["scorer"] == "additive"
    assert tsallis("translate", run, stdin="walk\tV;PST\n").stdout.count("\n") == 1


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("optimizer=sgd", "training.optimizer: input should be 'adam' or 'adamw', found 'sgd'"),
        ("weight_decay=-1", "training.weight_decay: input should be greater than or equal to 0, found -1"),
        ("schedule=cosine", "training.schedule: input should be 'constant'"),
        ("plateau_factor=2", "training.plateau_factor: input should be less than 1, found 2"),
        ("select=bleu", "training.select: expected one of accuracy, levenshtein, loss, "),
    ],
)
def test_bad_values_end_in_one_line(tsallis: Run, tmp_path: Path, setting: str, words: str) -> None:
    config = inflection(tmp_path / "data")
    done = tsallis("train", config, f"training.{setting}", "--run-dir", tmp_path / "run", status=2)
    assert words in done.stderr and done.stderr.count("\n") == 1
