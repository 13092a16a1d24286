"""The run folder: everything a trained model needs to be used, in files anyone can read.

config.yaml       the configuration, with every default filled in
model.json        the model's class and arguments
task.json         how a line of input is read
src.vocab.json    source symbols; or src.model, which sentencepiece itself reads
tgt.vocab.json    target symbols; or tgt.model
log.jsonl         one event a line
timing.jsonl      how long each of them took
checkpoints/      see `tsallis.training.checkpoint`
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tsallis.data.reading import read_json
from tsallis.data.subwords import Subwords
from tsallis.data.vocabulary import Vocabulary
from tsallis.errors import InputError
from tsallis.files import write_atomic
from tsallis.models import LabelDecoder, RNNSeq2Seq, TransformerSeq2Seq
from tsallis.training.checkpoint import Checkpoints

MODELS: dict[str, Any] = {
    "rnn": RNNSeq2Seq,
    "transformer": TransformerSeq2Seq,
    "classifier": LabelDecoder,
    "answerer": LabelDecoder,
}
CONFIG, LOCK = "config.yaml", ".lock"
Symbols = Vocabulary | Subwords
SYMBOLS: dict[str, type[Vocabulary] | type[Subwords]] = {"vocab.json": Vocabulary, "model": Subwords}  # by file ending


@dataclass(frozen=True)
class Run:
    """A trained model with what belongs to it."""

    folder: Path
    model: Any
    src_vocab: Symbols
    tgt_vocab: Symbols
    task: dict[str, Any]
    facts: dict[str, Any]  # of the checkpoint: step, epoch, metrics


def load_run(folder: Path | str, which: str = "best") -> Run:
    """The model of a run folder, ready for search.

    Raises:
        InputError: a folder that is no run, a damaged checkpoint, vocabularies that aren't the model's.
    """
    folder = Path(folder)
    if not (folder / "model.json").exists():
        raise InputError(f"{folder}: not a run folder (it has no model.json)")
    description, task = read_json(folder / "model.json"), read_json(folder / "task.json")
    (src_path, src_vocab), (tgt_path, tgt_vocab) = (_load_symbols(folder, name) for name in ("src", "tgt"))
    model = build_model(description, folder / "model.json")
    fingerprints = description.get("vocabularies") or {}
    if not isinstance(fingerprints, dict):
        raise InputError(f"{folder / 'model.json'}: vocabularies must be an object, found {fingerprints!r}")
    for name, path, vocabulary in (("src", src_path, src_vocab), ("tgt", tgt_path, tgt_vocab)):
        expected = model.arguments[f"{name}_vocab"]
        if len(vocabulary) != expected:
            raise InputError(
                f"{path}: the vocabulary has {len(vocabulary)} symbols, the model was trained with {expected}"
            )
        if fingerprints.get(name) not in (None, vocabulary.fingerprint()):
            raise InputError(f"{path}: not the vocabulary the model was trained with")
    checkpoints = Checkpoints(folder / "checkpoints")
    parameters = checkpoints.load_model(which, model)
    try:
        model.load_state_dict(parameters)
    except RuntimeError as error:
        detail = " ".join(str(error).split())
        raise InputError(f"{folder}: the checkpoint does not fit model.json: {detail}") from error
    model.eval()
    return Run(folder, model, src_vocab, tgt_vocab, task, checkpoints.facts(which))


def _load_symbols(folder: Path, name: str) -> tuple[Path, Symbols]:
    for ending, kind in SYMBOLS.items():
        path = folder / f"{name}.{ending}"
        if path.exists():
            return path, kind.load(path)
    raise InputError(f"{folder / name}.vocab.json: can't be read: it is not there, and no {name}.model either")


def _symbols_path(folder: Path, name: str, symbols: Symbols) -> Path:
    ending = next(ending for ending, kind in SYMBOLS.items() if isinstance(symbols, kind))
    return folder / f"{name}.{ending}"


def build_model(description: dict[str, Any], place: Path | str = "model.json") -> Any:
    """A model from `{"class": ..., "arguments": {...}}`."""
    name, arguments = description.get("class"), description.get("arguments") or {}
    if not isinstance(name, str) or name not in MODELS:
        raise InputError(f"{place}: unknown class {name!r}, known: {', '.join(MODELS)}")
    try:
        return MODELS[name](**arguments)
    except (TypeError, ValueError) as error:
        raise InputError(f"{place}: arguments the class does not take: {error}") from error


def start_run(
    folder: Path,
    config: str,
    description: dict[str, Any],
    task: dict[str, Any],
    src_vocab: Symbols,
    tgt_vocab: Symbols,
) -> bool:
    """Write what the folder holds besides checkpoints, or check that it is the same run; whether it was there.

    Raises:
        InputError: a folder with something else in it, another configuration, or other data.
    """
    path = folder / CONFIG
    given = {"src": src_vocab, "tgt": tgt_vocab}
    vocabularies = {_symbols_path(folder, name, symbols): symbols for name, symbols in given.items()}
    if not path.exists():
        prints = {name: symbols.fingerprint() for name, symbols in given.items()}
        model = {**description, "vocabularies": prints}
        texts = {f"{name}.json": json.dumps(x, indent=1) for name, x in (("model", model), ("task", task))}
        if any(not _left_by_a_start(p, texts, vocabularies) for p in folder.iterdir()):
            raise InputError(f"{folder}: the folder is not empty and holds no run; choose another one")
        for name, text in texts.items():
            write_atomic(folder / name, text)
        for place, symbols in vocabularies.items():
            symbols.save(place)
        write_atomic(path, config)  # last: with it the folder is a run
        return False
    before = path.read_text(encoding="utf-8")
    if before != config:
        changed = _difference(before, config)
        raise InputError(f"{folder}: holds a run of another configuration ({changed}); choose another folder")
    for place, symbols in vocabularies.items():
        if type(symbols).load(place) != symbols:
            raise InputError(f"{place}: the training data has changed since the run was started")
    return True


def _left_by_a_start(path: Path, texts: dict[str, str], vocabularies: dict[Path, Symbols]) -> bool:
    """Whether a file is what a start of this very run left that was killed before it wrote the configuration."""
    name = path.name
    if name == LOCK:
        return True
    known = (*texts, *(p.name for p in vocabularies), CONFIG)
    if name.endswith(".tmp") and name.startswith(tuple(f".{n}." for n in known)):
        return True
    try:
        if name in texts:
            return path.read_bytes() == texts[name].encode()
        return path in vocabularies and type(vocabularies[path]).load(path) == vocabularies[path]
    except (OSError, InputError):
        return False


def _difference(old: str, new: str) -> str:
    before, after = set(old.split("\n")), set(new.split("\n"))
    lines = [f"now {line.strip()}" for line in new.split("\n") if line not in before]
    lines += [f"then {line.strip()}" for line in old.split("\n") if line not in after]
    return "; ".join(lines[:4])


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """The folder for one process alone; the lock goes with the process, however it ends.

    Raises:
        InputError: a folder that can't be made or written to, or that another process holds.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stream = (folder / LOCK).open("a")  # nothing is written: a file that was there stays as it was
    except OSError as error:
        raise InputError(f"{folder}: can't be used as a run folder: {error.strerror}") from error
    with stream:
        try:
            import fcntl

            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:  # no advisory locks on this system
            pass
        except BlockingIOError as error:
            raise InputError(f"{folder}: another process is training in this folder") from error
        yield
