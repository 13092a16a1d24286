"""Train a small run, read its files, and change them."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from run_seed import SEED
from tsallis.toolkit.data import Vocabulary
from tsallis.toolkit.tasks.strings import encode_examples, english_verbs
from tsallis.toolkit.training import Progress, Settings, Trainer
from tsallis.toolkit.training.lock import locked
from tsallis.toolkit.training.run_folder import build_model, start_run

EXAMPLES = english_verbs()["train"][:40]
SRC = Vocabulary.build(e.src_tokens() for e in EXAMPLES)
TGT = Vocabulary.build(e.tgt_tokens() for e in EXAMPLES)
TRAIN, DEV = (encode_examples(part, SRC, TGT) for part in (EXAMPLES[:32], EXAMPLES[32:]))
SETTINGS = Settings(epochs=3, batch_size=8, learning_rate=0.01, checkpoint_every=3, seed=SEED, keep=2)
DESCRIPTION = {
    "class": "rnn",
    "arguments": {"src_vocab": len(SRC), "tgt_vocab": len(TGT), "d_model": 8, "layers": 1, "tau": 0.0},
}
TASK = {"task": "strings", "languages": None}


def changed(settings: Settings, **values: Any) -> Settings:
    """Return the settings with some values changed; the result is validated."""
    return Settings(**{**settings.model_dump(), **values})


class Killed(BaseException):
    """Simulates a kill: no handler in the tested code catches this exception."""


def train(folder: Path, watch: Callable[[Progress], None] = lambda _: None, settings: Settings = SETTINGS) -> Trainer:
    """Train as the command does, without a display."""
    with locked(folder) as lock:
        start_run(folder, "version: 1\n", DESCRIPTION, TASK, SRC, TGT, lock)
        torch.manual_seed(settings.seed)
        made = Trainer(build_model(DESCRIPTION), TRAIN, DEV, folder, settings, watch=watch, lock=lock)
        made.run()
    return made


def at(step: int, work: Callable[[], object]) -> Callable[[Progress], None]:
    """Return a `watch` function that calls `work` after the given update of a training."""

    def watch(progress: Progress) -> None:
        if progress.position.step == step and progress.validation is None:
            work()

    return watch


def kill() -> None:
    raise Killed


def contents(folder: Path) -> dict[str, Any]:
    """Return the files and folders below a folder with their contents, without the seconds in `timing.jsonl`."""
    files: dict[str, Any] = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    if (times := files.get("timing.jsonl")) is not None:
        events = [json.loads(line) for line in times.splitlines()]
        files["timing.jsonl"] = [{k: v for k, v in event.items() if k != "seconds"} for event in events]
    return files | {str(p.relative_to(folder)): None for p in folder.rglob("*") if p.is_dir()}


def index_of(run: Path) -> dict[str, Any]:
    return dict(json.loads((run / "checkpoints" / "index.json").read_text()))


def checkpoint_of(run: Path, which: str = "last") -> Path:
    return run / "checkpoints" / str(index_of(run)[which])


def change_json(path: Path, **changes: Any) -> None:
    """Change values in a JSON file; None removes the key."""
    content = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def replace(path: Path, blob: bytes) -> None:
    """Replace the content of a checkpoint's file and update the manifest."""
    path.write_bytes(blob)
    manifest = path.parent / "manifest.json"
    sums = json.loads(manifest.read_text())["files"]
    sums[path.name] = {"bytes": len(blob), "sha256": hashlib.sha256(blob).hexdigest()}
    change_json(manifest, files=sums)


def change_state(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Replace the training state by what `change` returns, or change it in place if that is None."""
    state = torch.load(path, weights_only=True)
    changed = change(state)
    stream = io.BytesIO()
    torch.save(state if changed is None else changed, stream)
    replace(path, stream.getvalue())


def age(run: Path) -> None:
    """Convert a run folder to the first version: no list of removable checkpoints, and `timing` as a size in bytes."""
    path = run / "checkpoints" / "index.json"
    content = json.loads(path.read_text())
    del content["discard"]
    path.write_text(json.dumps(content, indent=1))
    for state in run.glob("checkpoints/step-*/training.pt"):
        change_state(state, lambda result: result.update(timing=(run / "timing.jsonl").stat().st_size))
