"""Configurations: checked schemas of YAML files, and the only place that turns them into plain arguments."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tsallis.data import InflectionExample, Vocabulary, english_verbs, read_inflection, read_languages
from tsallis.data.corpus import Corpus
from tsallis.errors import InputError
from tsallis.functional import estimate_tau_from_scores
from tsallis.models import RNNSeq2Seq
from tsallis.training.loop import Settings

EMBEDDED = ("english-verbs",)
SPLITS = ("train", "dev", "test")


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class DataConfig(Section):
    """Where examples come from: files of one or many languages, or embedded data."""

    task: Literal["inflection"] = "inflection"
    embedded: Literal["english-verbs"] | None = None
    folder: str = "."
    train: str | None = None  # file names in the folder; {language} stands for each language's name
    dev: str | None = None
    test: str | None = None
    languages: list[str] | Literal["all"] | None = None  # "all": every language with a training file

    @model_validator(mode="after")
    def _one_source(self) -> DataConfig:
        if self.embedded is not None:
            given = [n for n in ("train", "dev", "test", "languages") if getattr(self, n) is not None]
            if given:
                raise ValueError(f"embedded data takes no {', '.join(given)}")
        elif self.train is None or self.dev is None:
            raise ValueError("train and dev files are needed (or embedded: english-verbs)")
        return self


class ModelConfig(Section):
    """The arguments of `tsallis.models.RNNSeq2Seq`."""

    d_model: int = Field(300, ge=2, multiple_of=2)
    layers: int = Field(2, ge=1)
    dropout: float = Field(0.3, ge=0, lt=1)
    attention: Literal["softmax", "sparsemax", "entmax"] = "entmax"
    attention_alpha: float = Field(1.5, ge=1, allow_inf_nan=False)
    output: Literal["softmax", "sparsemax", "entmax", "alpha_relu"] = "entmax"
    output_alpha: float = Field(1.5, ge=1, allow_inf_nan=False)
    tau: float | Literal["auto"] = "auto"  # for alpha_relu; auto: the first batch's mean entmax threshold
    input_feeding: bool = True


class TrainingConfig(Section):
    """The arguments of `tsallis.training.Settings`."""

    epochs: int = Field(20, ge=1)
    batch_size: int = Field(64, ge=1)
    learning_rate: float = Field(1e-3, gt=0, allow_inf_nan=False)
    schedule: Literal["constant", "halve-on-worse", "inverse-square-root"] = "halve-on-worse"
    warmup: int = Field(4000, ge=1)
    clip: float = Field(5.0, gt=0)
    accumulate: int = Field(1, ge=1)
    validate_every: int = Field(1, ge=1)
    validation_beam: int = Field(1, ge=1)
    patience: int | None = Field(None, ge=1)
    checkpoint_every: int = Field(500, ge=1)
    seed: int = Field(1, ge=0)


class SearchConfig(Section):
    beam_size: int = Field(5, ge=1)


class Config(Section):
    """A whole run."""

    version: Literal[1]
    run_dir: str | None = None
    data: DataConfig
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    search: SearchConfig = SearchConfig()

    def text(self) -> str:
        """The configuration as YAML, every default filled in; without the folder, which may be moved."""
        return yaml.safe_dump(self.model_dump(exclude={"run_dir"}), sort_keys=False, allow_unicode=True)


def load_config(path: Path | str, overrides: Sequence[str] = ()) -> Config:
    """Read a YAML file and apply `key=value` overrides such as `model.output=sparsemax`.

    Raises:
        InputError: with every mistake of the file in one message, each with its path.
    """
    try:
        content = yaml.safe_load(Path(path).read_bytes().decode("utf-8"))
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: expected UTF-8 text, found byte 0x{error.object[error.start]:02x}") from error
    except yaml.YAMLError as error:
        raise InputError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    if content is None:
        raise InputError(f"{path}: the file is empty, expected a configuration (version: 1, data: ...)")
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected keys and values (version: 1, data: ...)")
    for override in overrides:
        _apply(content, override)
    return check_config(content, str(path))


def check_config(content: dict[str, Any], name: str) -> Config:
    """A configuration from its content."""
    try:
        return Config.model_validate(content)
    except ValidationError as error:
        raise InputError(f"{name}: " + "; ".join(_explain(e) for e in error.errors())) from error


def _apply(content: dict[str, Any], override: str) -> None:
    key, equals, value = override.partition("=")
    if not equals or not key:
        raise InputError(f"override {override!r}: expected key=value, such as training.epochs=5")
    parts = key.split(".")
    for part in parts[:-1]:
        content = content.setdefault(part, {})
        if not isinstance(content, dict):
            raise InputError(f"override {override!r}: {part} is no section")
    try:
        content[parts[-1]] = yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise InputError(f"override {override!r}: the value is not YAML") from error


def _explain(error: Any) -> str:
    place = ".".join(str(part) for part in error["loc"]) or "the file"
    if error["type"] == "extra_forbidden":
        section: Any = Config
        for part in error["loc"][:-1]:
            section = section.model_fields[part].annotation
        close = difflib.get_close_matches(str(error["loc"][-1]), section.model_fields, 1)
        return f"{place}: unknown key" + (f" (did you mean {close[0]}?)" if close else "")
    if error["type"] == "missing":
        return f"{place}: missing"
    message = error["msg"].removeprefix("Value error, ")
    found = "" if error["type"] == "value_error" else f", found {error['input']!r}"
    return f"{place}: {message[0].lower()}{message[1:]}{found}"


@dataclass(frozen=True)
class Prepared:
    """What a configuration stands for: data, vocabularies, and plain arguments."""

    train: Corpus
    dev: Corpus
    src_vocab: Vocabulary
    tgt_vocab: Vocabulary
    description: dict[str, Any]  # class and arguments of the model
    task: dict[str, Any]
    settings: Settings


def read_split(data: DataConfig, split: str) -> list[InflectionExample]:
    """The examples of one split."""
    if split not in SPLITS:
        raise InputError(f"split must be train, dev or test, got {split!r}")
    if data.embedded is not None:
        return english_verbs()[split]
    name: str | None = getattr(data, split)
    if name is None:
        raise InputError(f"the configuration names no {split} file (data.{split})")
    path = str(Path(data.folder) / name)
    names = languages(data)
    return read_inflection(path) if names is None else read_languages(path, names)


def languages(data: DataConfig) -> list[str] | None:
    """The languages of a configuration; "all" is looked up in the folder."""
    if data.languages != "all":
        return data.languages
    assert data.train is not None
    if data.train.count("{language}") != 1:
        raise InputError(f"data.train: languages: all needs one {{language}} in the name, found {data.train!r}")
    before, after = data.train.split("{language}")
    found = sorted(p.name[len(before) : len(p.name) - len(after)] for p in Path(data.folder).glob(f"{before}*{after}"))
    if not found:
        raise InputError(f"data.folder: no file {before}*{after} in {data.folder}")
    return found


def prepare(config: Config) -> Prepared:
    """Read the data and work out every argument."""
    train, dev = read_split(config.data, "train"), read_split(config.data, "dev")
    src_vocab = Vocabulary.build(e.src_tokens() for e in train)
    tgt_vocab = Vocabulary.build(e.tgt_tokens() for e in train)
    task = {"task": config.data.task, "languages": languages(config.data)}
    arguments = config.model.model_dump(exclude={"tau"})
    arguments = {"src_vocab": len(src_vocab), "tgt_vocab": len(tgt_vocab), **arguments}
    arguments["tau"] = 0.0 if config.model.tau == "auto" else config.model.tau
    corpus = Corpus.encode(train, src_vocab, tgt_vocab)
    settings = Settings(**config.training.model_dump())
    if config.model.output == "alpha_relu" and config.model.tau == "auto":
        arguments["tau"] = _first_threshold(arguments, corpus, settings)
    return Prepared(
        corpus,
        Corpus.encode(dev, src_vocab, tgt_vocab),
        src_vocab,
        tgt_vocab,
        {"class": "rnn", "arguments": arguments},
        task,
        settings,
    )


@torch.no_grad()
def _first_threshold(arguments: dict[str, Any], corpus: Corpus, settings: Settings) -> float:
    """The mean entmax threshold of the first batch through the untrained network."""
    torch.manual_seed(settings.seed)
    model = RNNSeq2Seq(**arguments).eval()
    batch = corpus.batch(range(min(settings.batch_size, len(corpus))))
    hidden = model(batch.src, batch.src_lengths, batch.tgt_in).hidden
    return estimate_tau_from_scores(model.output.scores(hidden), model.output.alpha)
