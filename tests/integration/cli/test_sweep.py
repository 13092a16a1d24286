"""`tsallis sweep`: parallel runs, their results, resuming and failures."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from integration.cli.conftest import Run, command, environment, train_here
from integration.cli.runs import strings
from tsallis.errors import IgnoredInputWarning, InputError
from tsallis.toolkit.cli.sweep import _results, _write_charts, combinations, name_runs, run_name, split_settings
from tsallis.toolkit.training import Checkpoints, load_run
from tsallis.toolkit.training.log import Log

pytestmark = pytest.mark.process
SWEEP = "model.dropout=[0.0,0.4]", "training.seed=[1]", "training.epochs=1"


def test_a_sweep_trains_compares_and_resumes(tmp_path: Path, tsallis: Run) -> None:
    config, folder = strings(tmp_path / "data"), tmp_path / "out"
    sweep = "sweep", config, *SWEEP, "--run-dir", folder, "--workers", 2, "--device", "cpu"
    out = tsallis(*sweep).stdout.splitlines()
    results = json.loads((folder / "sweep.json").read_text())
    names = [f"model.dropout={dropout},training.seed=1" for dropout in (0.0, 0.4)]
    assert sorted(result["run"] for result in results) == names
    assert out[0] == "run\tscore\tvalue\tupdates" and out[-1] == str(folder / "model.dropout.html")
    assert [line.split("\t")[0] for line in out[1:3]] == [result["run"] for result in results]
    values = [result["value"] for result in results]
    assert values == sorted(values, reverse=True) and {result["score"] for result in results} == {"accuracy"}
    page = (folder / "model.dropout.html").read_text()
    assert all(name in page for name in names)
    # More epochs resume the runs. Each run equals that of `tsallis train` with the same settings.
    longer = [setting.replace("epochs=1", "epochs=2") for setting in map(str, sweep)]
    assert tsallis(*longer).stdout.splitlines()[0] == out[0]
    settings = "model.dropout=0.4", "training.seed=1", "training.epochs=2"
    train_here(config, tmp_path / "alone", *settings)
    ours, expected = (Checkpoints(run / "checkpoints") for run in (folder / names[1], tmp_path / "alone"))
    assert ours.index() == expected.index() and ours.index().finished
    for name, value in load_run(tmp_path / "alone", "last").model.state_dict().items():
        assert value.equal(load_run(folder / names[1], "last").model.state_dict()[name])


def test_runs_with_different_losses_are_ranked_by_another_score(tmp_path: Path) -> None:
    swept = {"model.output": ["softmax", "sparsemax"], "model.layers": [1, 2]}
    runs = name_runs(combinations(swept, None, 1))
    for number, (name, values) in enumerate(runs.items()):
        (tmp_path / name).mkdir()
        model = {key.removeprefix("model."): value for key, value in values.items()}
        config = {"version": 1, "data": {"task": "language", "embedded": "german-numbers"}, "model": model}
        (tmp_path / name / "config.yaml").write_text(json.dumps(config))
        scores = {"dev_loss": 9 - number, "dev_epsilon_perplexity": 9 - number, "dev_sparsemax_score": 0.5 - number / 9}
        Log(tmp_path / name / "log.jsonl").write("epoch", step=1, select="loss", **scores)
    with pytest.warns(IgnoredInputWarning, match=r"model\.tau: compared by sparsemax_score"):
        results = _results(runs, tmp_path)
        paths = _write_charts(swept, results, tmp_path)
    assert [result["run"] for result in results] == [*runs]
    assert {result["score"] for result in results} == {"sparsemax_score"} and results[0]["value"] == 0.5
    pages = [path.read_text() for path in paths]
    assert len(pages) == 2 and all('"score":"dev_sparsemax_score"' in page.replace(": ", ":") for page in pages)


@pytest.mark.slow
def test_failed_runs_are_reported_and_other_runs_finish(tmp_path: Path, tsallis: Run) -> None:
    config, folder = strings(tmp_path / "data"), tmp_path / "out"
    settings = "data.train=[train.tsv,missing.tsv]", "training.epochs=1"
    done = tsallis("sweep", config, *settings, "--run-dir", folder, "--device", "cpu", status=1)
    assert "data.train=missing.tsv\tfailed\ttsallis: " in done.stdout and "2/2" in done.stderr
    good, bad = json.loads((folder / "sweep.json").read_text())
    assert good["settings"] == {"data.train": "train.tsv"} and "missing.tsv" in bad["error"]


@pytest.mark.slow
def test_sigterm_stops_the_sweep_and_its_runs(tmp_path: Path, tsallis: Run) -> None:
    config, folder = strings(tmp_path / "data"), tmp_path / "out"
    settings = "model.dropout=[0.0]", "training.epochs=10000"
    line = command("sweep", config, *settings, "--run-dir", folder, "--device", "cpu")
    process = subprocess.Popen(line, env=environment())
    log = folder / "model.dropout=0.0" / "timing.jsonl"
    limit = time.monotonic() + 300
    while not log.exists() and time.monotonic() < limit:
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(300) == 128 + signal.SIGTERM
    assert "Stopped by SIGTERM" in (folder / "model.dropout=0.0.log").read_text()
    assert not (folder / "sweep.json").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["training.epochs=1"], "a sweep needs at least one setting with a list of values"),
        (["model.dropout=[]"], "the list has no values"),
        (["model.dropout=[0.1,0.2]", "model.dropout=[0.3]"], "another list sets the same setting"),
        (["model.dropout=[0.1,7]"], "model.dropout: .*less than 1"),
        (["model.nothing=[1,2]"], "model.nothing: unknown key"),
        (["run_dir=[a,b]"], "run_dir can't have several values"),
    ],
)
def test_invalid_settings_start_no_run(tmp_path: Path, tsallis: Run, settings: list[str], message: str) -> None:
    folder = tmp_path / "out"
    errors = tsallis("sweep", strings(tmp_path / "data"), *settings, "--run-dir", folder, status=2).stderr
    assert re.search(message, errors), errors
    assert not folder.exists()


def test_a_sweep_with_other_settings_is_rejected_and_changes_nothing(tmp_path: Path, tsallis: Run) -> None:
    config, folder = strings(tmp_path / "data"), tmp_path / "out"
    train_here(config, folder / "training.seed=1", "training.seed=1", "model.dropout=0.1")
    (folder / "sweep.json").write_text("results")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    sweep = "sweep", config, "training.seed=[1]", "--run-dir", folder, "--device", "cpu"
    for setting, message in (
        ("model.dropout=0.2", "new model.dropout: 0.2; old model.dropout: 0.1"),
        ("model.dropout=0.1 training.epochs=1", "training.epochs must be above 2"),
    ):
        errors = tsallis(*sweep, *setting.split(), status=2).stderr
        assert str(folder / "training.seed=1") in errors and message in errors
        assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_random_combinations_are_distinct_and_seeded() -> None:
    swept = {"a": list(range(10)), "b": list(range(10)), "c": ["x"]}
    drawn = combinations(swept, 20, 1)
    assert len({run_name(values) for values in drawn}) == 20 and drawn == combinations(swept, 20, 1)
    assert drawn != combinations(swept, 20, 2)
    assert combinations(swept, 1000, 1) == combinations(swept, None, 1)
    assert len({run_name(values) for values in combinations(swept, None, 1)}) == 100


def test_nested_lists_are_single_values() -> None:
    betas = [[0.9, 0.98], [0.9, 0.999]]
    assert split_settings([f"training.betas={betas}"])[1] == {"training.betas": betas}
    with pytest.raises(InputError, match="override 'a=\\[1'"):
        split_settings(["a=[1"])


def test_every_combination_gets_a_distinct_folder_name() -> None:
    long = [{"training.init_from": "x" * 250}, {"training.init_from": f"{'x' * 250}y"}]
    for values in ([{"data.comment": c} for c in "#%;"], [{"a": "b/c"}, {"a": "b_c"}], long):
        runs = name_runs(values)
        assert [*runs.values()] == values and all(len(name.encode()) < 256 for name in runs)
    assert [*name_runs([{"a": 1}, {"a": 1}])] == ["a=1"]


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (("--device", "gpu"), "device must be cpu, cuda or auto, got 'gpu'"),
        (("--seed", "7"), "--seed 7 needs --random; for the seed of the runs, use training.seed=7"),
        (("run_dir=there",), "use --run-dir for the folder of all runs"),
    ],
)
def test_invalid_options_start_no_run(tmp_path: Path, tsallis: Run, extra: tuple[str, ...], message: str) -> None:
    sweep = "sweep", strings(tmp_path / "data"), "training.seed=[1]", "--run-dir", tmp_path / "out"
    assert message in tsallis(*sweep, *extra, status=2).stderr
    assert not (tmp_path / "out").exists()
