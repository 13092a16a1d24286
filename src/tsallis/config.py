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
    AfterValidator,
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
from tsallis.errors import InputError, describe
from tsallis.training.schema import RENAMED


def _check_name(name: str) -> str:
    """Refuse what no file can be called."""
    if "\0" in name or len(name) > 4096:
        raise ValueError("a file name has at most 4096 characters, none of them null")
    if any("\ud800" <= character <= "\udfff" for character in name):
        raise ValueError("a file name is text, without half surrogate pairs")
    return name


LARGEST_FILE = 1 << 18  # bytes
LARGEST_TREE = 20_000  # keys and values, each as often as aliases repeat it
MOST_BEAMS = 1_000
LONGEST_KEY = 60  # characters of a key in a message
MOST_MISTAKES = 20  # in one message
# What constructing values raises besides: impossible dates, numbers that are none, a depth without end.
NOT_YAML = (yaml.YAMLError, ValueError, KeyError, AttributeError, TypeError, OverflowError, RecursionError)

FileName = Annotated[str, AfterValidator(_check_name)]
# What no machine has room for, and no kernel's indices reach, is a mistake.
Count = Annotated[int, Field(ge=1, lt=2**31)]
Size = Annotated[int, Field(ge=1, le=65_536)]  # of a layer
Depth = Annotated[int, Field(ge=1, le=1_000)]  # layers
Beam = Annotated[int, Field(ge=1, le=MOST_BEAMS)]
Basis = Annotated[int, Field(ge=1, le=4_096)]  # functions, of which a matrix of all pairs is made
Pixels = Annotated[int, Field(ge=1, le=8_192)]
Alpha = Annotated[float, Field(ge=1, allow_inf_nan=False)]
Map = Literal["softmax", "sparsemax", "entmax"]
Density = Literal["gaussian", "truncated_parabola", "laplace", "triangular"]  # on the line


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class InflectionData(Section):
    """The source of inflection examples: files of one or many languages, or embedded data."""

    task: Literal["inflection"] = "inflection"
    embedded: Literal["english-verbs"] | None = None
    folder: FileName = "."
    train: FileName | None = None  # file names in the folder; {language} stands for each language's name
    dev: FileName | None = None
    test: FileName | None = None
    # One name, several, or "all": every language with a training file.
    languages: Annotated[list[FileName], Field(min_length=1)] | Literal["all"] | None = None
    max_length: Count = 256  # examples of the training data with more symbols on a side are left out

    @field_validator("languages", mode="before")
    @classmethod
    def _one_language(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) and value != "all" else value

    @model_validator(mode="after")
    def _one_source(self) -> InflectionData:
        return _one_source(self, ("train", "dev", "test", "languages"), "english-verbs")


class SubwordsConfig(Section):
    """The options of the subword models that turn sentences into symbols."""

    size: int = Field(8000, ge=8, lt=2**31)  # symbols of the vocabulary (of each, unless joint)
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
    folder: FileName = "."
    train: FileName | None = None
    dev: FileName | None = None
    test: FileName | None = None
    src: FileName = "de"
    tgt: FileName = "en"
    subwords: SubwordsConfig = SubwordsConfig()
    max_length: Count = 256  # pairs of the training data with more symbols on a side are left out
    cache: FileName | None = None  # of subwords and encoded text; default: tsallis in the user's cache folder

    @model_validator(mode="after")
    def _one_source(self) -> TranslationData:
        return _one_source(self, ("train", "dev", "test"), "german-english-numbers")


class ClassificationData(Section):
    """Documents and their classes: lines of `label<TAB>text`, columns between the two left out.

    `train: train` is the file train of the folder, or train.tsv, each also with .xz or .gz behind it.
    """

    task: Literal["classification"]
    folder: FileName = "."
    train: FileName
    dev: FileName | None = None
    test: FileName | None = None
    held_out: float = Field(0.1, gt=0, lt=1)  # share of train that is dev where there is no file of it
    max_length: Count = 256  # words of a document that are read
    min_count: Count = 5  # of a word in train; rarer ones are unknown


class SplitImages(Section):
    """The paths of each split's images; dev uses train's unless it names its own."""

    train: FileName
    dev: FileName | None = None
    test: FileName | None = None


class VisualData(Section):
    """Questions about images: lines of `image<TAB>question<TAB>answer`, plain or with .xz or .gz behind the name.

    Images are rows of an array file (.npy, .npy.xz), or JPEG and PNG files in a folder or a .tar.
    """

    task: Literal["visual"]
    folder: FileName = "."
    train: FileName
    dev: FileName | None = None
    test: FileName | None = None
    images: FileName | SplitImages
    size: tuple[Pixels, Pixels] | None = None  # height, width of photographs
    held_out: float = Field(0.1, gt=0, lt=1)  # share of train's images that are dev where there is no file of it
    max_length: Count = 32  # words of a question that are read
    min_count: Count = 1  # of a word in train; rarer ones are unknown
    answers: Count | None = None  # only the most frequent ones of train can be given


DataConfig = InflectionData | TranslationData | ClassificationData | VisualData
AnyData = TypeVar("AnyData", InflectionData, TranslationData)


def _one_source(data: AnyData, names: Sequence[str], embedded: str) -> AnyData:
    if data.embedded is not None:
        sources = [n for n in names if getattr(data, n) is not None]
        if sources:
            raise ValueError(f"embedded data takes no {', '.join(sources)}")
    elif data.train is None or data.dev is None:
        raise ValueError(f"train and dev files are needed (or embedded: {embedded})")
    return data


class OutputConfig(Section):
    """The output options that all models share."""

    output: Literal["softmax", "sparsemax", "entmax", "alpha_relu"] = "entmax"
    output_alpha: Alpha = 1.5
    # For alpha_relu; auto: the mean entmax threshold of the first batch; formula: from the sizes, without data.
    tau: Annotated[float, Field(allow_inf_nan=False)] | Literal["auto", "formula"] = "auto"


class RNNConfig(OutputConfig):
    """The arguments of `tsallis.models.RNNSeq2Seq`."""

    architecture: Literal["rnn"] = "rnn"
    d_model: Size = Field(300, multiple_of=2)
    layers: Depth = 2
    dropout: float = Field(0.3, ge=0, lt=1)
    attention: Map = "entmax"
    attention_alpha: Alpha = 1.5
    input_feeding: bool = True
    share: Literal["none", "target"] = "none"
    # Continuous attention, with the moments of the discrete one.
    density: Density | Alpha | None = None
    combine: bool = True
    num_basis: Basis = Field(30, multiple_of=3)
    matching: Literal["scale", "covariance"] = "covariance"


class TransformerConfig(OutputConfig):
    """The arguments of `tsallis.models.TransformerSeq2Seq`."""

    architecture: Literal["transformer"]
    d_model: Size = 512
    heads: Size = 8
    encoder_layers: Depth = 6
    decoder_layers: Depth = 6
    d_ff: Size = 2048
    dropout: float = Field(0.1, ge=0, lt=1)
    attention_dropout: float = Field(0.0, ge=0, lt=1)
    norm: Literal["post", "pre"] = "post"
    activation: Literal["relu", "gelu"] = "relu"
    attention: Map | Literal["learned"] = "entmax"
    attention_alpha: Alpha = 1.5
    # Where they differ.
    encoder_attention: Map | Literal["learned"] | None = None
    decoder_attention: Map | Literal["learned"] | None = None
    cross_attention: Map | Literal["learned"] | None = None
    tie_alphas: Literal["none", "layer", "kind", "global"] = "none"  # learned alphas: one for each head, or for all of
    share: Literal["none", "target", "all"] = "none"
    checkpoint_activations: bool = False


class AttendingConfig(Section):
    """The attention options that document classifiers and visual question answerers share."""

    attention: Literal["discrete", "continuous", "combined"] = "combined"
    transform: Map | Alpha = "sparsemax"
    matching: Literal["scale", "covariance"] = "scale"
    density: Any = None
    ridge: float = Field(0.1, gt=0, allow_inf_nan=False)
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
    d_model: Size = Field(128, multiple_of=2)
    d_embedding: Size | None = None
    layers: Depth = 1
    dropout: float = Field(0.3, ge=0, lt=1)
    num_basis: Basis = Field(64, multiple_of=2)
    density: Density | Alpha | None = None


class AnswererConfig(AttendingConfig):
    """The arguments of `tsallis.models.LabelDecoder` for questions."""

    architecture: Literal["answerer"]
    d_model: Size = 128
    heads: Size = 4
    layers: Depth = 2
    d_ff: Size | None = None
    dropout: float = Field(0.1, ge=0, lt=1)
    d_embedding: Size | None = None
    d_flat: Size | None = None
    d_fused: Size | None = None
    stages: Depth = 3
    positions: bool = True
    attention: Literal["discrete", "continuous", "combined"] = "continuous"
    transform: Map | Alpha = "softmax"
    num_basis: Basis = 100
    basis: Literal["image", "image-paper"] = "image"
    matching: Literal["scale", "covariance"] = "covariance"
    density: Literal["gaussian", "truncated_paraboloid"] | Alpha | None = None


class TrainingConfig(Section):
    """The arguments of `tsallis.training.Settings`."""

    epochs: Count = 20
    updates: Count | None = None
    batch_size: Count = 64
    max_tokens: Count | None = None
    learning_rate: float = Field(1e-3, gt=0, allow_inf_nan=False)
    alpha_lr_scale: float = Field(1.0, ge=0, allow_inf_nan=False)
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.999)
    schedule: Literal["constant", "halve-on-worse", "inverse-square-root", "linear"] = "halve-on-worse"
    warmup: Count = 4000
    clip: float = Field(5.0, gt=0)
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    accumulate: Count = 1
    precision: Literal["float32", "bfloat16"] = "float32"
    strategy: Literal["ddp", "fsdp"] = "ddp"
    compile: bool = False
    validate_every: Count = 1
    validate_updates: Count | None = None
    validation_beam: Beam = 1
    validation_rows: Count | None = None
    patience: Count | None = None
    checkpoint_every: Count = 500
    keep: Count = 1
    seed: int = Field(1, ge=0, lt=2**63)

    @model_validator(mode="after")
    def _known_end(self) -> TrainingConfig:
        if self.schedule == "linear" and (self.updates is None or self.warmup >= self.updates):
            raise ValueError("schedule linear needs updates, and more of them than of warmup")
        return self


class SearchConfig(Section):
    beam_size: Beam = 5


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
    run_dir: FileName | None = None
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
        """Return the configuration as YAML, every default filled in; without the folder, which may be moved."""
        return yaml.safe_dump(self.model_dump(exclude={"run_dir"}), sort_keys=False, allow_unicode=True)


def load_config(path: Path | str, overrides: Sequence[str] = ()) -> Config:
    """Read a YAML file and apply `key=value` overrides such as `model.output=sparsemax`.

    Raises:
        InputError: with every mistake of the file in one message, each with its path.
    """
    try:
        text = read_bytes(path, LARGEST_FILE).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: expected UTF-8 text, found byte 0x{error.object[error.start]:02x}") from error
    content = parse_yaml(text, str(path))
    if content is None:
        raise InputError(f"{path}: the file is empty, expected a configuration (version: 1, data: ...)")
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected keys and values (version: 1, data: ...)")
    for override in overrides:
        _apply(content, override)
    return check_config(content, str(path))


def parse_yaml(text: str, name: str) -> Any:
    """Return the value that a YAML text stands for.

    Raises:
        InputError: what is not YAML, or holds more than a configuration can; `name` is what it is called.
    """
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        if _weight(node, {}) > LARGEST_TREE:
            raise InputError(f"{name}: not a configuration: more than {LARGEST_TREE} keys and values, aliases resolved")
        return loader.construct_document(node)
    except InputError:
        raise
    except RecursionError as error:
        raise InputError(f"{name}: not a configuration: nested too deeply") from error
    except NOT_YAML as error:
        detail = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{name}: not YAML: {detail}") from error


def _weight(node: yaml.Node, weights: dict[int, int]) -> int:
    """Count a tree's nodes with every alias expanded to a copy; more than LARGEST_TREE where a node holds itself."""
    if isinstance(node, yaml.ScalarNode):
        return 1
    if id(node) not in weights:
        weights[id(node)] = LARGEST_TREE + 1  # until it is known: inside of itself
        parts = [part for pair in node.value for part in (pair if isinstance(pair, tuple) else (pair,))]
        weights[id(node)] = 1 + sum(_weight(part, weights) for part in parts)
    return weights[id(node)]


def check_config(content: dict[str, Any], name: str) -> Config:
    """Return a configuration from its content."""
    try:
        return Config.model_validate(content)
    except ValidationError as error:
        raise InputError(f"{name}: {_explain(error)}") from error


def _apply(content: dict[str, Any], override: str) -> None:
    key, equals, value = override.partition("=")
    name = f"override {describe(override)}"
    if not equals or not key:
        raise InputError(f"{name}: expected key=value, such as training.epochs=5")
    parts = key.split(".")
    for part in parts[:-1]:
        if content.get(part) is None:  # not there, or a section without keys
            content[part] = {}
        content = content[part]
        if not isinstance(content, dict):
            raise InputError(f"{name}: {describe(part)[1:-1]} is no section")
    if len(value) > LARGEST_FILE:
        raise InputError(f"{name}: expected at most {LARGEST_FILE} characters, found {len(value)}")
    content[parts[-1]] = parse_yaml(value, name)


def _explain(error: ValidationError) -> str:
    """Return every mistake with its path; where a setting may be of several types, all of them in one."""
    inputs: dict[str, str] = {}
    expected: dict[str, list[str]] = {}
    for detail in error.errors(include_url=False, include_context=False):
        key, section = _place(detail["loc"])
        if key not in expected and len(expected) == MOST_MISTAKES:
            expected["and more"] = [f"these are the first {MOST_MISTAKES} mistakes"]
            break
        message = detail["msg"].removeprefix("Value error, ")
        if detail["type"] == "extra_forbidden":
            close = difflib.get_close_matches(str(detail["loc"][-1])[:LONGEST_KEY], section.model_fields, 1)
            message = "unknown key" + (f" (did you mean {close[0]}?)" if close else "")
            if RENAMED.get(str(detail["loc"][-1])) in section.model_fields:
                message = f"now called {RENAMED[str(detail['loc'][-1])]}: rename it in the file"
        elif detail["type"] == "missing":
            message = "missing"
        elif detail["type"] != "value_error":
            inputs[key] = f", found {describe(detail['input'])}"
        message = message[:1].lower() + message[1:]
        others = expected.setdefault(key, [])
        others.append(message.removeprefix("input should be ") if others else message)
    return "; ".join(f"{_cut(key)}: {' or '.join(texts)}{inputs.get(key, '')}" for key, texts in expected.items())


def _cut(key: str) -> str:
    return key if len(key) <= LONGEST_KEY else key[: LONGEST_KEY - 3] + "..."


def _place(loc: Sequence[int | str]) -> tuple[str, type[Section]]:
    """Return the path of a setting and its section, without the types that pydantic adds to it."""
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
