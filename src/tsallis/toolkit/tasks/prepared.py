"""A configuration made ready: data, model and settings, and the parameters that a run begins with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError

from tsallis.analysis.score_names import TEACHER_FORCED
from tsallis.errors import InputError, describe, memory_for
from tsallis.search.texts import merge_texts
from tsallis.toolkit.config import Config as RunConfig
from tsallis.toolkit.config import EmbeddingsConfig, Settings
from tsallis.toolkit.data.io import read_text
from tsallis.toolkit.data.ragged import RaggedRows, Rows
from tsallis.toolkit.data.word_vectors import read_word_vectors
from tsallis.toolkit.data.yaml_text import LARGEST_FILE, parse_yaml
from tsallis.toolkit.old_names import with_new_names
from tsallis.toolkit.tasks.base import Task
from tsallis.toolkit.tasks.registry import task_type
from tsallis.toolkit.tasks.scoring import best_texts, language_scores, score_values
from tsallis.toolkit.tasks.types import Data
from tsallis.toolkit.training.changes import Changes, find_changes
from tsallis.toolkit.training.checkpoint import Checkpoints
from tsallis.toolkit.training.file_names import CHECKPOINTS, CONFIG, TASK
from tsallis.toolkit.training.initial import (
    Start,
    embedding_name,
    load_start,
    set_embeddings,
    symbol_numbers,
    take_parameters,
)
from tsallis.toolkit.training.run_folder import Run, build_model, load_run, read_stored
from tsallis.toolkit.training.tensorboard import require_tensorboard
from tsallis.toolkit.training.trainer import Measure


@dataclass(frozen=True)
class PreparedRun:
    """The task, data, model description and settings that a configuration describes."""

    task: Task
    data: Data
    description: dict[str, Any]  # class and arguments of the model
    settings: Settings
    text: str  # text of the configuration in the run folder
    folder: Path | None = None  # of the run, if it was started before
    source: Run | None = None  # that it starts from, if it was not
    changes: Changes | None = None  # of its settings since it was started

    def build(self) -> Any:
        """Return the model, as the seed makes it."""
        torch.manual_seed(self.settings.seed)
        with memory_for("the model (see the sizes of model)"):
            model = build_model(self.description, "model")
        if self.data.vocabularies.images is not None:
            model.image_store = self.data.vocabularies.images
        return model

    def initialize(self, model: Any) -> Start:
        """Give a new model the parameters of the run that it starts from, and word vectors, as the settings say.

        A resumed run reads both from its own folder.

        Raises:
            InputError: another kind of model or task, other sizes, files that can't be read.
        """
        sides = {side: section for side in ("src", "tgt") if (section := getattr(self.settings, f"{side}_embeddings"))}
        start = Start(model)
        if self.folder is not None:
            if (sides or self.settings.init_from) and Checkpoints(self.folder / CHECKPOINTS).index().last is None:
                start.facts = load_start(model, self.folder)
        else:
            if self.source is not None:
                start.facts["run"] = self._take(self.source, model)
            vectors = {side: self._embed(side, section, model) for side, section in sides.items()}
            start.facts.update({"embeddings": vectors} if vectors else {})
        for side, section in sides.items():
            if section.freeze and (name := embedding_name(model, side)) is not None:
                model.get_parameter(name).requires_grad_(False)
        return start

    def _take(self, source: Run, model: Any) -> dict[str, Any]:
        if source.task["task"] != self.task.name:
            raise InputError(
                f"training.init_from: {source.folder}: a run of the task {source.task['task']}, not {self.task.name}"
            )
        symbols = {"src": self.data.vocabularies.src, "tgt": self.data.vocabularies.tgt}
        facts = take_parameters(model, source, symbols)
        which = {"checkpoint": self.settings.init_checkpoint, "step": source.facts["step"]}
        return {"folder": str(source.folder), **which, **facts}

    def _embed(self, side: str, section: EmbeddingsConfig, model: Any) -> dict[str, Any]:
        origin = f"training.{side}_embeddings: {section.file}"
        symbols = symbol_numbers(getattr(self.data.vocabularies, side))
        vectors = read_word_vectors(section.file, symbols, section.words, section.tensor)
        set_embeddings(model, side, vectors, origin)
        return {
            "file": section.file,
            "symbols": len(vectors.numbers),
            "of": len(symbols),
            "coverage": coverage(getattr(self.data.train, side), vectors.numbers),
            "frozen": section.freeze,
        }

    def measure(self) -> Measure | None:
        """Return a function that scores a search on the development set, without costly scores that decide nothing.

        None if the task has no outputs to search for.
        """
        if not self.task.searched:
            return None
        task, data = self.task, self.data
        quick = (self.settings.select or "").removeprefix("macro_") not in task.costly_scores

        def measure(results: Any) -> dict[str, float]:
            text = task.ambiguous_text(data.vocabularies.tgt)
            if text is not None:
                results = [merge_texts(result, text, normalized=True) for result in results]
            texts = best_texts(results, data.vocabularies.tgt)
            scores = task.score(texts, data.dev.references[: len(texts)], quick)
            return score_values(scores, language_scores(task, texts, data.dev, quick))

        return measure


def prepare(config: RunConfig, folder: Path | None = None) -> PreparedRun:
    """Read the data of a configuration and compute every argument of its run.

    Args:
        config: Of the run.
        folder: Of a run that may have been started with it. Its model then stays as it was described.

    Raises:
        InputError: If settings of the model don't go together, or the data can't be read.
    """
    described = config.model.model_dump(mode="json", exclude={"architecture", "tau"})
    text, changes = (config.text(), None) if folder is None else text_of_run(config, folder)
    texts = [text] if changes is None else [text, changes.before]
    stored = None if folder is None else read_stored(folder, texts, described)
    if stored is None or folder is None:
        config.model.check()
    else:
        task_type(config).restore(stored.task, folder / TASK)
        task_type(config).check_facts(stored.task, config.data, folder / TASK)
    settings = config.training
    if settings.tensorboard:
        require_tensorboard()
    source = read_source(config) if stored is None else None
    task, data = task_type(config).load(config.data)
    check_rows(settings, data)
    check_select(settings.select, task, data)
    if stored is not None:
        return PreparedRun(task, data, stored.description, settings, text, folder, changes=changes)
    arguments = config.model.arguments(data, settings, source)
    description = {"class": config.model.architecture, "arguments": arguments}
    return PreparedRun(task, data, description, settings, text, source=source)


def text_of_run(config: RunConfig, folder: Path) -> tuple[str, Changes | None]:
    """Return the configuration as YAML, and the changed settings with which the run in the folder can be resumed.

    If the folder holds a run of the same configuration, the YAML is the file in it. A file of an earlier version lacks
    later settings; they have their defaults.
    """
    text = config.text()
    if not (folder / CONFIG).exists():
        return text, None
    stored = read_text(folder / CONFIG, LARGEST_FILE)
    try:
        before = type(config).model_validate(with_new_names(parse_yaml(stored, CONFIG)))
    except (InputError, ValidationError):
        return text, None
    if before.text() == text:
        return stored, None
    return text, find_changes(stored, before, config)


def read_source(config: RunConfig) -> Run | None:
    """Return the run that a configuration starts from, if there is one.

    Raises:
        InputError: a folder that holds no run, a damaged checkpoint, a threshold that would be estimated anew.
    """
    folder = config.training.init_from
    if folder is None:
        return None
    try:
        return load_run(folder, config.training.init_checkpoint)
    except InputError as error:
        raise InputError(f"training.init_from: {error}") from error


def coverage(rows: Rows, numbers: Sequence[int]) -> float:
    """Return the share of the symbols in a text that are among some; 0 of no text."""
    text = rows if isinstance(rows, RaggedRows) else RaggedRows.of(rows)
    return int(np.isin(text.tokens, numbers).sum()) / max(len(text.tokens), 1)


def check_rows(settings: Settings, data: Data) -> None:
    """Refuse rows that fit no batch, and fewer rows to validate on than there are languages."""
    count = len(set(data.dev.languages or ()))
    if settings.validation_rows is not None and settings.validation_rows < count:
        raise InputError(
            f"training.validation_rows: {settings.validation_rows} rows can't stand for {count} languages: "
            f"expected at least {count}"
        )
    settings.plan(data.train.lengths())


def check_select(select: str | None, task: Task, data: Data) -> None:
    """Refuse a score that the development set does not have."""
    several = len(set(data.dev.languages or ())) > 1
    macro = [f"macro_{name}" for name in task.scores] if several else []
    names = (*macro, *task.scores, *TEACHER_FORCED)
    if select is not None and select not in names:
        raise InputError(f"training.select: expected one of {', '.join(names)}, found {describe(select)}")
