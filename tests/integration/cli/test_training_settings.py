"""Settings of a training, passed to the command."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml

from integration.cli.conftest import Run
from integration.cli.runs import strings
from small_run import contents
from tsallis.errors import InputError
from tsallis.toolkit.config import refuse_idle
from tsallis.toolkit.tasks.prepared import prepare
from tsallis.toolkit.tasks.registry import load_config
from tsallis.toolkit.training.run_folder import start_run


def test_initialized_runs_resume_without_their_source(tsallis: Run, inflector: Path, tmp_path: Path) -> None:
    """A run that was initialized from another run must not need it after the start, even when it is resumed."""
    source, config = tmp_path / "source", strings(tmp_path / "data", lines=40)
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
    prepared = prepare(loaded, tmp_path / "killed")
    begun, symbols = prepared.initialize(prepared.build()), prepared.data.vocabularies
    (tmp_path / "killed").mkdir()
    arguments = (prepared.description, prepared.task.facts(), symbols.src, symbols.tgt, None, begun.blob())
    start_run(tmp_path / "killed", prepared.text, *arguments)
    source.rename(tmp_path / "elsewhere")
    (tmp_path / "vectors.txt").unlink()
    text = tsallis("train", config, *overrides, "--run-dir", tmp_path / "killed").stdout
    assert "Resuming" in text and f"Starts from {source} (best, step " in text
    assert contents(tmp_path / "killed") == expected
    assert "Resuming" in tsallis("train", config, *overrides, "--run-dir", tmp_path / "killed").stdout
    assert tsallis("translate", tmp_path / "killed", stdin="walk\tV;PST\n").stdout.count("\n") == 1


def test_wrong_training_settings_are_rejected(tsallis: Run, inflector: Path, translator: Path, tmp_path: Path) -> None:
    config = strings(tmp_path / "data")
    for overrides, words in (
        ([f"training.init_from={tmp_path}"], "training.init_from: .*: not a run folder"),
        ([f"training.init_from={translator}"], "expected a run of the task strings, found translation"),
        ([f"training.init_from={inflector}", "model.d_model=6"], r"settings of the section model differ: d_model \("),
        ([f"training.init_from={inflector}", "model.output=alpha_relu"], "model.tau: auto can't use"),
        (["training.init_checkpoint=last"], "init_checkpoint: last has no effect with init_from: null; .* set train"),
        (["training.alpha_lr_scale=5"], "training.alpha_lr_scale: 5 has no effect, because no alpha is learned"),
        (["training.warmup=50"], "training.warmup: 50 has no effect with schedule: halve-on-worse"),
        (["training.src_embeddings={fiel: x}"], "training.src_embeddings.file: missing; .*fiel: unknown key"),
    ):
        done = tsallis("train", config, *overrides, "--run-dir", tmp_path / "run", status=2)
        assert re.search(words, done.stderr) and done.stderr.count("\n") == 1, done.stderr
        assert not (tmp_path / "run").exists()


def test_extended_runs_equal_runs_of_the_final_length(tsallis: Run, tmp_path: Path) -> None:
    """An extended run must equal a run with the final length; settings that change its updates are rejected."""
    config, run, long = strings(tmp_path / "data"), tmp_path / "run", tmp_path / "long"
    more = ["training.epochs=4", "training.checkpoint_every=3", "training.keep=1", "search.beam_size=2"]
    tsallis("train", config, *more, "--run-dir", long)
    tsallis("train", config, "--run-dir", run)
    before = contents(run)
    for change, words in (
        ("training.epochs=1", f"{run}: training.epochs must be above 2, because 2 are already done, got 1"),
        ("training.learning_rate=0.5", r"another configuration (new training.learning_rate: 0.5; old training.lear"),
    ):
        assert words in tsallis("train", config, change, "--run-dir", run, status=2).stderr
    assert words in tsallis("train", config, change, "--run-dir", run, "--dry-run", status=2).stderr
    assert contents(run) == before
    plan = tsallis("train", config, *more, "--run-dir", run, "--dry-run").stdout
    assert "training.epochs: changed from 2 to 4" in plan
    assert contents(run) == before
    text = tsallis("train", config, *more, "--run-dir", run).stdout
    assert "\ntraining.epochs: changed from 2 to 4\n" in text and "\nsearch.beam_size: changed from 5 to 2\n" in text
    result, expected = contents(run), contents(long)
    assert result.pop("timing.jsonl") and expected.pop("timing.jsonl") and result == expected
    assert "The run is finished: epoch 4, update 16" in tsallis("train", config, *more, "--run-dir", run).stdout


def test_a_lower_patience_reports_why_nothing_is_trained(tsallis: Run, tmp_path: Path) -> None:
    config, run = strings(tmp_path / "data"), tmp_path / "run"
    settings = ["training.learning_rate=1e-30", "--run-dir", run]  # the weights never change
    tsallis("train", config, *settings, "training.epochs=3")
    index = run / "checkpoints" / "index.json"
    index.write_text(json.dumps({**json.loads(index.read_text()), "finished": False}))  # as if it were stopped here
    text = tsallis("train", config, *settings, "training.epochs=9", "training.patience=1").stdout
    assert "The run is finished: epoch 3" in text and "increase training.epochs" in text
    assert json.loads(index.read_text())["finished"]


def test_epochs_that_end_before_the_schedule_are_reported(tsallis: Run, tmp_path: Path) -> None:
    plan = ["train", strings(tmp_path / "data"), "training.schedule=linear", "training.warmup=1"]
    note = "note: training.epochs=2 ends after about 8 of 9 updates, so schedule: linear will not reach the end"
    assert f"# {note}: increase training.epochs\n" in tsallis(*plan, "training.updates=9", "--dry-run").stdout
    assert "note:" not in tsallis(*plan, "training.updates=8", "--dry-run").stdout
    plan += ["training.output_alpha.start=1", "training.output_alpha.until=0.5"]
    text = tsallis(*plan, "training.updates=17", "--dry-run").stdout
    assert "so schedule: linear and output_alpha will not reach the end" in text
    text = tsallis(*plan, "training.updates=16", "--run-dir", tmp_path / "run").stdout
    assert "so schedule: linear will not reach the end" in text


def test_a_dry_run_writes_nothing(tsallis: Run, tmp_path: Path) -> None:
    config, run = strings(tmp_path / "data"), tmp_path / "run"
    text = tsallis("train", config, "training.seed=7", "--run-dir", run, "--dry-run").stdout
    sizes = "# 32 examples to train on, 6 to validate on\n# 24 source symbols, 20 target symbols\n"
    assert text.startswith(f"{sizes}# columns: source<TAB>target<TAB>features; "), text
    assert "# 4 updates in the first epoch, about 8 in all\n" in text and f"# {run}: a new run\n" in text
    assert yaml.safe_load(text)["training"]["seed"] == 7 and not run.exists()
    (tmp_path / "whole.yaml").write_text(text)
    assert tsallis("train", tmp_path / "whole.yaml", "--run-dir", run, "--dry-run").stdout == text
    tsallis("train", tmp_path / "whole.yaml", "--run-dir", run)
    settings = [line for line in text.splitlines(keepends=True) if not line.startswith("#")]
    assert (run / "config.yaml").read_text() == "".join(settings)
    before = contents(run)
    plan = tsallis("train", tmp_path / "whole.yaml", "--run-dir", run, "--dry-run").stdout
    assert f"# {run}: the run in this folder is resumed" in plan
    assert contents(run) == before
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes").write_text("x")
    done = tsallis("train", config, "--run-dir", tmp_path / "other", "--dry-run", status=2)
    assert "the folder is not empty and contains no run" in done.stderr
    done = tsallis("train", config, "data.max_length=11", "--run-dir", tmp_path / "short", "--dry-run")
    left_out = "# left out of 32 examples: [1-9] longer than data.max_length, 0 with an empty source or target\n"
    assert re.search(left_out, done.stdout)


def test_overrides_may_make_file_settings_ineffective(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("version: 1\ndata: {embedded: english-verbs}\ntraining: {schedule: plateau, plateau_patience: 5}\n")
    for overrides in ([], ["training.schedule=constant"], ["training={schedule: constant}"]):
        refuse_idle(load_config(path, overrides), overrides)
    overrides = ["training.schedule=constant", "training.plateau_patience=4"]
    with pytest.raises(InputError, match=r"training.plateau_patience: 4 has no effect"):
        refuse_idle(load_config(path, overrides), overrides)
    path.write_text(path.read_text().replace("plateau,", "constant,"))
    with pytest.raises(InputError, match=r"training.plateau_patience: 5 has no effect"):
        refuse_idle(load_config(path))
