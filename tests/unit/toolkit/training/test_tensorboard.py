"""TensorBoard shows the numbers of the log, even if a run was killed and resumed."""

from __future__ import annotations

import errno
import json
import sys
from pathlib import Path

import pytest

from small_run import DEV, SETTINGS, SRC, TGT, TRAIN, Killed, at, changed, kill
from task_runs import config_of
from tsallis.errors import InputError
from tsallis.models import TransformerSeq2Seq
from tsallis.toolkit.tasks.prepared import prepare
from tsallis.toolkit.training import Settings, Trainer

pytest.importorskip("tensorboard", reason="needs tensorboard: of the extra tensorboard")
ALL = changed(SETTINGS, tensorboard=True, epochs=2, checkpoint_every=1)


def train(folder: Path, settings: Settings = ALL, last: int = -1) -> None:
    sizes = {"d_model": 8, "heads": 2, "layers": 2, "d_ff": 8}
    model = TransformerSeq2Seq(len(SRC), len(TGT), attention="learned", **sizes)
    Trainer(model, TRAIN, DEV, folder, settings, watch=at(last, kill)).run()


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_curves_match_the_log(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        train(tmp_path, last=6)
    train(tmp_path)
    _, *events = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    shown = curves(tmp_path)
    for tag, key in (("train/loss", "loss"), ("dev/loss", "dev_loss"), ("dev/accuracy", "dev_accuracy")):
        assert shown[tag] == [(e["step"], pytest.approx(e[key])) for e in events]
    for kind in ("alpha", "density"):
        for layer in (1, 2):
            values = [(e["step"], pytest.approx(e[f"{kind}_cross"][layer - 1][1])) for e in events]
            assert shown[f"{kind}_cross/layer{layer}_head2"] == values
    assert {"train/learning_rate", "train/output_support", "batch/accuracy"} <= set(shown)


@pytest.mark.parametrize("call", ["add_scalar", "flush", "close"])
def test_a_full_disk_is_reported_with_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    from torch.utils.tensorboard import SummaryWriter

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(SummaryWriter, call, fail)
    with pytest.raises(InputError, match=r"/tensorboard: can't be written: No space left on device"):
        train(tmp_path, changed(ALL, epochs=1))


def test_a_missing_package_is_named_before_data_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    data = {"folder": str(tmp_path), "train": "none", "dev": "none"}
    config = config_of({"version": 1, "data": data, "training": {"tensorboard": True}})
    with pytest.raises(InputError, match=r"training.tensorboard needs the package tensorboard: pip install"):
        prepare(config)
