"""Configurations: checked schemas of YAML files, and the only place that turns them into plain arguments."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from tsallis.data import InflectionExample, Vocabulary, english_verbs, read_inflection, read_languages
from tsallis.data.corpus import Corpus
from tsallis.data.reading import read_bytes
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
    # One name, several, or "all": every language with a training file.
    languages: Annotated[list[str], Field(min_length=1)] | Literal["all"] | None = None

    @field_validator("languages", mode="before")
    @classmethod
    def _one_language(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) and value != "all" else value

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
    # For alpha_relu; auto: the mean entmax threshold of the first batch.
    tau: Annotated[float, Field(allow_inf_nan=False)] | Literal["auto"] = "auto"
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
    seed: int = Field(1, ge=0, lt=2**63)


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
        content = yaml.safe_load(read_bytes(path).decode("utf-8"))
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
        raise InputError(f"{name}: {_explain(error)}") from error


def _apply(content: dict[str, Any], override: str) -> None:
    key, equals, value = override.partition("=")
    if not equals or not key:
        raise InputError(f"override {override!r}: expected key=value, such as training.epochs=5")
    parts = key.split(".")
    for part in parts[:-1]:
        if content.get(part) is None:  # not there, or a section without keys
            content[part] = {}
        content = content[part]
        if not isinstance(content, dict):
            raise InputError(f"override {override!r}: {part} is no section")
    try:
        content[parts[-1]] = yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise InputError(f"override {override!r}: the value is not YAML") from error


def _explain(error: ValidationError) -> str:
    """Every mistake with its path; where a setting may be of several types, all of them in one."""
    found: dict[str, str] = {}
    wanted: dict[str, list[str]] = {}
    for detail in error.errors():
        place, section = _place(detail["loc"])
        message = detail["msg"].removeprefix("Value error, ")
        if detail["type"] == "extra_forbidden":
            close = difflib.get_close_matches(str(detail["loc"][-1]), section.model_fields, 1)
            message = "unknown key" + (f" (did you mean {close[0]}?)" if close else "")
        elif detail["type"] == "missing":
            message = "missing"
        elif detail["type"] != "value_error":
            found[place] = f", found {detail['input']!r}"
        message = message[:1].lower() + message[1:]
        others = wanted.setdefault(place, [])
        others.append(message.removeprefix("input should be ") if others else message)
    return "; ".join(f"{place}: {' or '.join(texts)}{found.get(place, '')}" for place, texts in wanted.items())


def _place(loc: Sequence[int | str]) -> tuple[str, type[Section]]:
    """The path of a setting and its section, without the types that pydantic adds to it."""
    parts: list[str] = []
    section: type[Section] = Config
    inside = True
    for part in loc:
        if not inside and isinstance(part, str):
            continue
        parts.append(str(part))
        field = section.model_fields.get(str(part)) if inside else None
        kind = field.annotation if field else None
        inside = isinstance(kind, type) and issubclass(kind, Section)
        section = kind if isinstance(kind, type) and issubclass(kind, Section) else section
    return ".".join(parts) or "the file", section


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
