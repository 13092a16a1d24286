"""Prepare a run from its configuration: data, model, settings and initial parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError

from tsallis.analysis.score_names import TEACHER_FORCED
from tsallis.errors import InputError, describe
from tsallis.models.copying import with_unknown
from tsallis.nn import OutputLayer
from tsallis.search.texts import merge_texts
from tsallis.toolkit.config import Config as RunConfig
from tsallis.toolkit.config import EmbeddingsConfig, Settings
from tsallis.toolkit.data.corpus import SampledCorpus
from tsallis.toolkit.data.io import read_text
from tsallis.toolkit.data.ragged import RaggedRows, Rows
from tsallis.toolkit.data.word_vectors import read_word_vectors
from tsallis.toolkit.data.yaml_text import LARGEST_FILE, parse_yaml
from tsallis.toolkit.old_names import with_new_names
from tsallis.toolkit.tasks.base import Task
from tsallis.toolkit.tasks.registry import task_type
from tsallis.toolkit.tasks.scoring import best_texts, language_scores, score_values
from tsallis.toolkit.tasks.types import FROM_DATA, Data
from tsallis.toolkit.training import initial
from tsallis.toolkit.training.changes import Changes, find_changes
from tsallis.toolkit.training.checkpoint import Checkpoints
from tsallis.toolkit.training.file_names import CHECKPOINTS, CONFIG, TASK
from tsallis.toolkit.training.initial import Start
from tsallis.toolkit.training.run_folder import Run, build_model, load_run, read_stored
from tsallis.toolkit.training.teacher import Teacher, read_teacher
from tsallis.toolkit.training.tensorboard import require_tensorboard
from tsallis.toolkit.training.trainer import Measure


@dataclass(frozen=True)
class PreparedRun:
    """Task, data, model description and settings of a run."""

    task: Task
    data: Data
    description: dict[str, Any]  # class and arguments of the model
    settings: Settings
    text: str  # text of the configuration in the run folder
    folder: Path | None = None  # folder of the run, if the run already exists
    source: Run | None = None  # run that provides the initial parameters of a new run
    changes: Changes | None = None  # changed settings of a resumed run

    def teacher(self, model: Any) -> Teacher | None:
        """Read the teacher's distributions for a model, or return None if the references are the only targets.

        Raises:
            InputError: If the distributions are damaged or belong to other data, or the model can't learn from them.
        """
        section = self.settings.teacher
        if section is None:
            return None
        try:
            if not isinstance(model.output, OutputLayer):
                raise InputError(f"runs of the task {self.task.name} can't be students: they predict labels")
            vocabulary = self.data.vocabularies.tgt.fingerprint()
            teacher = read_teacher(Path(section.folder), self.data.train, vocabulary, section.weight)
        except InputError as error:
            raise InputError(f"training.teacher: {error}") from error
        return teacher if section.weight or teacher.corpus is not self.data.train else None

    def build(self) -> Any:
        """Build the model with random parameters from the seed."""
        torch.manual_seed(self.settings.seed)
        model = build_model(self.description, "model")
        if self.data.vocabularies.images is not None:
            model.image_store = self.data.vocabularies.images
        return model if self.data.extended_vocabulary is None else with_unknown(model, self.data.extended_vocabulary[1])

    def initialize(self, model: Any) -> Start:
        """Set the initial parameters of a new model from another run and from word vectors, as configured.

        If the run exists but has no checkpoint, its initial parameters are loaded from its folder.

        Raises:
            InputError: If the other run has a different model, task or size, or a file can't be read.
        """
        sides = {side: section for side in ("src", "tgt") if (section := getattr(self.settings, f"{side}_embeddings"))}
        start = Start(model)
        if self.folder is not None:
            if (sides or self.settings.init_from) and Checkpoints(self.folder / CHECKPOINTS).index().last is None:
                start.facts = initial.load_start(model, self.folder)
        else:
            if self.source is not None:
                start.facts["run"] = self._take_parameters(self.source, model)
            vectors = {side: self._set_embeddings(side, section, model) for side, section in sides.items()}
            start.facts.update({"embeddings": vectors} if vectors else {})
        for side, section in sides.items():
            if section.freeze and (name := initial.embedding_name(model, side)) is not None:
                model.get_parameter(name).requires_grad_(False)
        return start

    def _take_parameters(self, source: Run, model: Any) -> dict[str, Any]:
        if source.task["task"] != self.task.name:
            tasks = f"expected a run of the task {self.task.name}, found {source.task['task']}"
            raise InputError(f"training.init_from: {source.folder}: {tasks}")
        vocabularies = {"src": self.data.vocabularies.src, "tgt": self.data.vocabularies.tgt}
        facts = initial.take_parameters(model, source, vocabularies)
        checkpoint = {"checkpoint": self.settings.init_checkpoint, "step": source.facts["step"]}
        return {"folder": str(source.folder), **checkpoint, **facts}

    def _set_embeddings(self, side: str, section: EmbeddingsConfig, model: Any) -> dict[str, Any]:
        origin = f"training.{side}_embeddings: {section.file}"
        symbols = initial.symbol_numbers(getattr(self.data.vocabularies, side))
        vectors = read_word_vectors(section.file, symbols, section.words, section.tensor)
        initial.set_embeddings(model, side, vectors, origin)
        return {
            "file": section.file,
            "symbols": len(vectors.numbers),
            "of": len(symbols),
            "coverage": coverage(getattr(self.data.train, side), vectors.numbers),
            "frozen": section.freeze,
        }

    def measure(self) -> Measure | None:
        """Return the function that scores search results on the development set.

        The function skips costly scores that do not select the best checkpoint. If the task has no outputs to
        search for, return None.
        """
        if not self.task.searched:
            return None
        task, data = self.task, self.data
        symbols = data.vocabularies.tgt if data.extended_vocabulary is None else data.extended_vocabulary[0]
        quick = (self.settings.select or "").removeprefix("macro_") not in task.costly_scores

        def measure(results: Any) -> dict[str, float]:
            text = task.ambiguous_text(symbols)
            if text is not None:
                results = [merge_texts(result, text, normalized=True) for result in results]
            texts = best_texts(results, symbols)
            scores = task.score(texts, data.dev.references[: len(texts)], quick)
            return score_values(scores, language_scores(task, texts, data.dev, quick))

        return measure


def prepare(config: RunConfig, folder: Path | None = None) -> PreparedRun:
    """Read the data of a configuration and compute all arguments of its model.

    Args:
        config: Configuration of the run.
        folder: Run folder. If a run with this configuration exists there, its model description is reused.

    Raises:
        InputError: If settings contradict each other, or the data can't be read.
    """
    model_settings = config.model.model_dump(mode="json", exclude={"architecture", "tau", *FROM_DATA})
    text, changes = (config.text(), None) if folder is None else text_of_run(config, folder)
    texts = [text] if changes is None else [text, changes.before]
    stored = None if folder is None else read_stored(folder, texts, model_settings)
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
    if isinstance(data.train, SampledCorpus):
        data = replace(data, train=replace(data.train, seed=settings.seed))
    data = config.model.adapt(task, data)
    check_rows(settings, data)
    check_select(settings.select, task, data)
    if stored is not None:
        return PreparedRun(task, data, stored.description, settings, text, folder, changes=changes)
    arguments = config.model.arguments(data, settings, source)
    description = {"class": config.model.architecture, "arguments": arguments}
    return PreparedRun(task, data, description, settings, text, source=source)


def training_data(config: RunConfig, run: Run) -> Data:
    """Read the training data of a run, with the best segmentations if the run sampled them.

    Raises:
        InputError: If the data can't be read, or have changed so that the vocabulary is another one.
    """
    task, data = task_type(config).load(config.data)
    data = config.model.adapt(task, data)
    for side, name in (("src", "source"), ("tgt", "target")):
        if getattr(data.vocabularies, side) != getattr(run, f"{side}_vocab"):
            found = f"data with another {name} vocabulary"
            raise InputError(f"{run.folder}: expected a run with its training data, found {found}")
    if data.vocabularies.images is not None:
        run.model.image_store = data.vocabularies.images
    return replace(data, train=data.train.best) if isinstance(data.train, SampledCorpus) else data


def text_of_run(config: RunConfig, folder: Path) -> tuple[str, Changes | None]:
    """Return the configuration as YAML, and the settings that change when the run in the folder is resumed.

    If the folder contains a run with the same configuration, the text is that of the stored file. Settings that are
    missing in the file of an earlier version have their defaults. The changes are None if no setting changes, or if a
    changed setting does not allow the run to resume.
    """
    text = config.text()
    if not (folder / CONFIG).exists():
        return text, None
    stored = read_text(folder / CONFIG, LARGEST_FILE)
    try:
        stored_config = type(config).model_validate(with_new_names(parse_yaml(stored, CONFIG)))
    except (InputError, ValidationError):
        return text, None
    if stored_config.text() == text:
        return stored, None
    return text, find_changes(stored, stored_config, config)


def read_source(config: RunConfig) -> Run | None:
    """Return the run that provides the initial parameters, or None if the configuration names none.

    Raises:
        InputError: If the folder is not a run folder, or the checkpoint is damaged.
    """
    if config.training.init_from is None:
        return None
    try:
        return load_run(config.training.init_from, config.training.init_checkpoint)
    except InputError as error:
        raise InputError(f"training.init_from: {error}") from error


def coverage(rows: Rows, numbers: Sequence[int]) -> float:
    """Return the share of symbols in `rows` that occur in `numbers`; 0 if `rows` has no symbols."""
    text = rows if isinstance(rows, RaggedRows) else RaggedRows.of(rows)
    return int(np.isin(text.tokens, numbers).sum()) / max(len(text.tokens), 1)


def check_rows(settings: Settings, data: Data) -> None:
    """Raise if a row does not fit into a batch, or if `validation_rows` is below the number of languages."""
    count = len(set(data.dev.languages or ()))
    if settings.validation_rows is not None and settings.validation_rows < count:
        found = f"expected at least {count}, one per language, found {settings.validation_rows}"
        raise InputError(f"training.validation_rows: {found}")
    settings.plan(data.train.lengths())


def check_select(select: str | None, task: Task, data: Data) -> None:
    """Raise if `select` is not a score of the development set."""
    is_multilingual = len(set(data.dev.languages or ())) > 1
    macro = [f"macro_{name}" for name in task.scores] if is_multilingual else []
    names = (*macro, *task.scores, *TEACHER_FORCED)
    if select is not None and select not in names:
        raise InputError(f"training.select: expected one of {', '.join(names)}, found {describe(select)}")
