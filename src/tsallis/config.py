"""Configurations: checked schemas of YAML files. What they stand for is worked out in `tsallis.prepare`.

Defaults are those of the classes and functions that take the settings; a test compares them.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    field_validator,
    model_validator,
)

from tsallis.data.reading import read_bytes
from tsallis.errors import InputError

Alpha = Annotated[float, Field(ge=1, allow_inf_nan=False)]
Map = Literal["softmax", "sparsemax", "entmax"]
Density = Literal["gaussian", "truncated_parabola", "laplace", "triangular"]  # on the line


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class InflectionData(Section):
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
    def _one_source(self) -> InflectionData:
        return _one_source(self, ("train", "dev", "test", "languages"), "english-verbs")


class SubwordsConfig(Section):
    """How sentences become symbols."""

    size: int = Field(8000, ge=8, le=2**31)  # symbols of the vocabulary (of each, unless joint)
    kind: Literal["bpe", "unigram"] = "bpe"
    joint: bool = True  # one vocabulary for both languages
    coverage: float = Field(1.0, ge=0.98, le=1)  # share of characters; a little less than 1 where there are thousands
    split_digits: bool = False  # every digit a symbol of its own
    sample: float = Field(0.0, ge=0, lt=1)  # subword regularisation: 0.1 is usual; 0 segments every time alike


class TranslationData(Section):
    """A parallel corpus: `train: train`, `src: de` and `tgt: en` are the files train.de and train.en of the folder.

    Files may end in .xz or .gz.
    """

    task: Literal["translation"]
    embedded: Literal["german-english-numbers"] | None = None
    folder: str = "."
    train: str | None = None
    dev: str | None = None
    test: str | None = None
    src: str = "de"
    tgt: str = "en"
    subwords: SubwordsConfig = SubwordsConfig()
    max_length: int = Field(256, ge=1)  # pairs of the training data with more symbols on a side are left out
    cache: str | None = None  # of subwords and encoded text; default: tsallis in the user's cache folder

    @model_validator(mode="after")
    def _one_source(self) -> TranslationData:
        return _one_source(self, ("train", "dev", "test"), "german-english-numbers")


class ClassificationData(Section):
    """Documents and their classes: lines of `label<TAB>text`, columns between the two left out.

    `train: train` is the file train of the folder, or train.tsv, each also with .xz or .gz behind it.
    """

    task: Literal["classification"]
    folder: str = "."
    train: str
    dev: str | None = None
    test: str | None = None
    held_out: float = Field(0.1, gt=0, lt=1)  # share of train that is dev where there is no file of it
    max_length: int = Field(256, ge=1)  # words of a document that are read
    min_count: int = Field(5, ge=1)  # of a word in train; rarer ones are unknown


class SplitImages(Section):
    """Where the images of each split are; those of dev are train's if it says nothing."""

    train: str
    dev: str | None = None
    test: str | None = None


class VisualData(Section):
    """Questions about images: lines of `image<TAB>question<TAB>answer`, plain or with .xz or .gz behind the name.

    Images are rows of an array file (.npy, .npy.xz), or JPEG and PNG files in a folder or a .tar.
    """

    task: Literal["visual"]
    folder: str = "."
    train: str
    dev: str | None = None
    test: str | None = None
    images: str | SplitImages
    size: tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]] | None = None  # height, width of photographs
    held_out: float = Field(0.1, gt=0, lt=1)  # share of train's images that are dev where there is no file of it
    max_length: int = Field(32, ge=1)  # words of a question that are read
    min_count: int = Field(1, ge=1)  # of a word in train; rarer ones are unknown
    answers: int | None = Field(None, ge=1)  # only the most frequent ones of train can be given


DataConfig = InflectionData | TranslationData | ClassificationData | VisualData
AnyData = TypeVar("AnyData", InflectionData, TranslationData)


def _one_source(data: AnyData, names: Sequence[str], embedded: str) -> AnyData:
    if data.embedded is not None:
        given = [n for n in names if getattr(data, n) is not None]
        if given:
            raise ValueError(f"embedded data takes no {', '.join(given)}")
    elif data.train is None or data.dev is None:
        raise ValueError(f"train and dev files are needed (or embedded: {embedded})")
    return data


class OutputConfig(Section):
    """What all models have in common."""

    output: Literal["softmax", "sparsemax", "entmax", "alpha_relu"] = "entmax"
    output_alpha: Alpha = 1.5
    # For alpha_relu; auto: the mean entmax threshold of the first batch; formula: from the sizes, without data.
    tau: Annotated[float, Field(allow_inf_nan=False)] | Literal["auto", "formula"] = "auto"


class RNNConfig(OutputConfig):
    """The arguments of `tsallis.models.RNNSeq2Seq`."""

    architecture: Literal["rnn"] = "rnn"
    d_model: int = Field(300, ge=2, multiple_of=2)
    layers: int = Field(2, ge=1)
    dropout: float = Field(0.3, ge=0, lt=1)
    attention: Map = "entmax"
    attention_alpha: Alpha = 1.5
    input_feeding: bool = True
    share: Literal["none", "target"] = "none"
    # Continuous attention, with the moments of the discrete one.
    density: Density | Alpha | None = None
    combine: bool = True
    functions: int = Field(30, ge=3, multiple_of=3)
    matching: Literal["scale", "covariance"] = "covariance"


class TransformerConfig(OutputConfig):
    """The arguments of `tsallis.models.TransformerSeq2Seq`."""

    architecture: Literal["transformer"]
    d_model: int = Field(512, ge=1)
    heads: int = Field(8, ge=1)
    encoder_layers: int = Field(6, ge=1)
    decoder_layers: int = Field(6, ge=1)
    d_ff: int = Field(2048, ge=1)
    dropout: float = Field(0.1, ge=0, lt=1)
    attention_dropout: float = Field(0.0, ge=0, lt=1)
    norm: Literal["post", "pre"] = "post"
    activation: Literal["relu", "gelu"] = "relu"
    attention: Map | Literal["learned"] = "entmax"
    attention_alpha: Alpha = 1.5
    # Where they differ.
    encoder_attention: Map | Literal["learned"] | None = None
    decoder_attention: Map | Literal["learned"] | None = None
    context_attention: Map | Literal["learned"] | None = None
    tie_alphas: Literal["none", "layer", "kind", "global"] = "none"  # learned alphas: one for each head, or for all of
    share: Literal["none", "target", "all"] = "none"
    checkpoint_activations: bool = False


class AttendingConfig(Section):
    """What classifiers of documents and answerers have in common."""

    attention: Literal["discrete", "continuous", "combined"] = "combined"
    transform: Map | Alpha = "sparsemax"
    matching: Literal["scale", "covariance"] = "scale"
    density: Any = None
    penalty: float = Field(0.1, gt=0, allow_inf_nan=False)
    output: Map = "softmax"
    output_alpha: Alpha = 1.5

    @model_validator(mode="after")
    def _density_of_something(self) -> AttendingConfig:
        if self.density is not None and self.attention == "discrete":
            raise ValueError("density is for continuous and combined attention")
        return self


class ClassifierConfig(AttendingConfig):
    """The arguments of `tsallis.models.LabelDecoder` for documents."""

    architecture: Literal["classifier"]
    d_model: int = Field(128, ge=2, multiple_of=2)
    d_embedding: int | None = Field(None, ge=1)
    layers: int = Field(1, ge=1)
    dropout: float = Field(0.3, ge=0, lt=1)
    functions: int = Field(64, ge=2, multiple_of=2)
    density: Density | Alpha | None = None


class AnswererConfig(AttendingConfig):
    """The arguments of `tsallis.models.LabelDecoder` for questions."""

    architecture: Literal["answerer"]
    d_model: int = Field(128, ge=1)
    heads: int = Field(4, ge=1)
    layers: int = Field(2, ge=1)
    d_ff: int | None = Field(None, ge=1)
    dropout: float = Field(0.1, ge=0, lt=1)
    d_embedding: int | None = Field(None, ge=1)
    d_flat: int | None = Field(None, ge=1)
    d_fused: int | None = Field(None, ge=1)
    stages: int = Field(3, ge=1)
    positions: bool = True
    attention: Literal["discrete", "continuous", "combined"] = "continuous"
    transform: Map | Alpha = "softmax"
    functions: int = Field(100, ge=1)
    basis: Literal["image", "image-paper"] = "image"
    matching: Literal["scale", "covariance"] = "covariance"
    density: Literal["gaussian", "truncated_paraboloid"] | Alpha | None = None


class TrainingConfig(Section):
    """The arguments of `tsallis.training.Settings`."""

    epochs: int = Field(20, ge=1)
    updates: int | None = Field(None, ge=1)
    batch_size: int = Field(64, ge=1)
    max_tokens: int | None = Field(None, ge=1)
    learning_rate: float = Field(1e-3, gt=0, allow_inf_nan=False)
    alpha_rate: float = Field(1.0, ge=0, allow_inf_nan=False)
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.999)
    schedule: Literal["constant", "halve-on-worse", "inverse-square-root", "linear"] = "halve-on-worse"
    warmup: int = Field(4000, ge=1)
    clip: float = Field(5.0, gt=0)
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    accumulate: int = Field(1, ge=1)
    precision: Literal["float32", "bfloat16"] = "float32"
    strategy: Literal["ddp", "fsdp"] = "ddp"
    compile: bool = False
    validate_every: int = Field(1, ge=1)
    validate_updates: int | None = Field(None, ge=1)
    validation_beam: int = Field(1, ge=1)
    validation_rows: int | None = Field(None, ge=1)
    patience: int | None = Field(None, ge=1)
    checkpoint_every: int = Field(500, ge=1)
    keep: int = Field(1, ge=1)
    seed: int = Field(1, ge=0, lt=2**63)

    @model_validator(mode="after")
    def _known_end(self) -> TrainingConfig:
        if self.schedule == "linear" and (self.updates is None or self.warmup >= self.updates):
            raise ValueError("schedule linear needs updates, and more of them than of warmup")
        return self


class SearchConfig(Section):
    beam_size: int = Field(5, ge=1)


def _tag(name: str, default: str) -> Discriminator:
    """Which of several sections is meant, by one of its keys; without it, the default."""

    def find(value: Any) -> Any:
        return value.get(name, default) if isinstance(value, dict) else getattr(value, name, default)

    return Discriminator(find)


KINDS: dict[str, dict[str, type[Section]]] = {
    "data": {
        "inflection": InflectionData,
        "translation": TranslationData,
        "classification": ClassificationData,
        "visual": VisualData,
    },
    "model": {
        "rnn": RNNConfig,
        "transformer": TransformerConfig,
        "classifier": ClassifierConfig,
        "answerer": AnswererConfig,
    },
}


class Config(Section):
    """A whole run."""

    version: Literal[1]
    run_dir: str | None = None
    data: Annotated[
        Annotated[InflectionData, Tag("inflection")]
        | Annotated[TranslationData, Tag("translation")]
        | Annotated[ClassificationData, Tag("classification")]
        | Annotated[VisualData, Tag("visual")],
        _tag("task", "inflection"),
    ]
    model: Annotated[
        Annotated[RNNConfig, Tag("rnn")]
        | Annotated[TransformerConfig, Tag("transformer")]
        | Annotated[ClassifierConfig, Tag("classifier")]
        | Annotated[AnswererConfig, Tag("answerer")],
        _tag("architecture", "rnn"),
    ] = RNNConfig()
    training: TrainingConfig = TrainingConfig()
    search: SearchConfig = SearchConfig()

    @model_validator(mode="after")
    def _model_for_the_task(self) -> Config:
        for task, architecture in (("classification", "classifier"), ("visual", "answerer")):
            if (self.data.task == task) != (self.model.architecture == architecture):
                raise ValueError(
                    f"data.task: {task} and model.architecture: {architecture} go together, "
                    f"found {self.data.task} and {self.model.architecture}"
                )
        return self

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
    kinds: dict[str, type[Section]] = {}
    for part in loc:
        if part in kinds:
            section, kinds, inside = kinds[str(part)], {}, True
            continue
        if not inside and isinstance(part, str):
            continue
        parts.append(str(part))
        field = section.model_fields.get(str(part)) if inside else None
        kind = field.annotation if field else None
        kinds = KINDS.get(str(part), {}) if section is Config else {}
        inside = isinstance(kind, type) and issubclass(kind, Section)
        section = kind if isinstance(kind, type) and issubclass(kind, Section) else section
    return ".".join(parts) or "the file", section
