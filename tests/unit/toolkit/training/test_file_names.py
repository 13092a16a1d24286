"""The files of a run folder have one name each, and a training writes no others."""

from __future__ import annotations

from pathlib import Path

from small_run import contents, train
from tsallis.toolkit.training import file_names

NAMES = {name: value for name, value in vars(file_names).items() if name.isupper()}
SYMBOLS = {"src.vocab.json", "tgt.vocab.json"}


def test_a_training_writes_no_other_files(tmp_path: Path) -> None:
    train(tmp_path / "run")
    written = {part for path in contents(tmp_path / "run") for part in Path(path).parts if not part.startswith("step-")}
    # A start of random parameters has no file of them, and TensorBoard is not asked for.
    assert written == {*NAMES.values(), *SYMBOLS} - {file_names.START, file_names.BOARD}
