"""Configurations: YAML files, overrides and checked schemas. What `data` and `model` may hold, the tasks know.

Defaults are those of the classes and functions that take the settings; a test compares them.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    create_model,
    model_validator,
)

from tsallis.data.io import read_text
from tsallis.data.yaml_text import LARGEST_FILE, LONGEST_KEY, parse_yaml
from tsallis.errors import InputError, describe, truncate
from tsallis.search_budget import LENGTH, PENALTY
from tsallis.training.schema import NEW_NAMES


def _check_name(name: str) -> str:
    """Refuse what no file can be called."""
    if "\0" in name or len(name) > 4096:
        raise ValueError("a file name has at most 4096 characters, none of them null")
    if any("\ud800" <= character <= "\udfff" for character in name):
        raise ValueError("a file name is text, without half surrogate pairs")
    return name


# Settings that have an effect with some values of another one of their section alone.
NEEDS = {
    "training.warmup": ("schedule", ("inverse-square-root", "linear")),
    "training.plateau_patience": ("schedule", ("plateau",)),
    "training.plateau_factor": ("schedule", ("plateau",)),
    "training.lowest_learning_rate": ("schedule", ("plateau",)),
    "model.output_alpha": ("output", ("entmax", "alpha_relu")),
}
MOST_BEAMS = 1_000
MOST_MISTAKES = 20  # in one message

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


class EmbeddingsConfig(Section):
    """The file of word vectors that embeddings begin with; a name alone is that of the file."""

    file: FileName  # text, or .safetensors
    words: FileName | None = None  # of a matrix: the word of each row, one a line; default: rows are symbols in order
    tensor: str | None = Field(None, max_length=1000)  # of a file with several matrices
    freeze: bool = False

    @model_validator(mode="before")
    @classmethod
    def _wrap_file_name(cls, value: Any) -> Any:
        return {"file": value} if isinstance(value, str) else value


class TrainingConfig(Section):
    """The arguments of `tsallis.training.Settings`, and the parameters that a run begins with."""

    init_from: FileName | None = None  # a run folder
    init_checkpoint: Literal["best", "last", "average"] = "best"
    src_embeddings: EmbeddingsConfig | None = None
    tgt_embeddings: EmbeddingsConfig | None = None

    epochs: Count = 20
    updates: Count | None = None
    batch_size: Count = 64
    max_tokens: Count | None = None
    bucket: Annotated[int, Field(ge=1, le=1_000_000)] = 40
    sort_by: Literal["total", "target"] = "total"
    learning_rate: float = Field(1e-3, gt=0, allow_inf_nan=False)
    alpha_lr_scale: float = Field(1.0, ge=0, allow_inf_nan=False)
    optimizer: Literal["adam", "adamw"] = "adam"
    weight_decay: float = Field(0.0, ge=0, allow_inf_nan=False)
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.999)
    schedule: Literal["constant", "halve-on-worse", "plateau", "inverse-square-root", "linear"] = "halve-on-worse"
    warmup: Count = 4000
    plateau_patience: Count = 2
    plateau_factor: float = Field(0.5, gt=0, lt=1)
    lowest_learning_rate: float = Field(0.0, ge=0, allow_inf_nan=False)
    clip: float = Field(5.0, gt=0)
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    accumulate: Count = 1
    precision: Literal["float32", "bfloat16"] = "float32"
    strategy: Literal["ddp", "fsdp"] = "ddp"
    compile: bool = False
    validate_every: Count = 1
    validate_updates: Count | None = None
    validation_beam: Beam = 1
    validation_competing_ends: bool = False
    validation_rows: Count | None = None
    select: str | None = Field(None, min_length=1, max_length=100)
    patience: Count | None = None
    checkpoint_every: Count = 500
    keep: Count = 1
    tensorboard: bool = False
    seed: int = Field(1, ge=0, lt=2**63)

    @model_validator(mode="after")
    def _check_combinations(self) -> TrainingConfig:
        if self.sort_by == "target" and self.max_tokens is not None:
            raise ValueError("sort_by: target is for batches of batch_size rows, without max_tokens")
        if self.lowest_learning_rate > self.learning_rate:
            raise ValueError(f"lowest_learning_rate {self.lowest_learning_rate:g} is above {self.learning_rate:g}")
        if self.schedule == "linear" and (self.updates is None or self.warmup >= self.updates):
            raise ValueError("schedule linear needs updates, and more of them than of warmup")
        return self

    def settings(self) -> dict[str, Any]:
        """Return the arguments of `tsallis.training.Settings`."""
        return self.model_dump(exclude={"init_from", "init_checkpoint", "src_embeddings", "tgt_embeddings"})


class SearchConfig(Section):
    beam_size: Beam = 5
    competing_ends: bool = False
    # Of the outputs that are searched for, where a command does not say it.
    min_length: int = Field(0, ge=0, le=LENGTH)
    max_length: Annotated[int, Field(ge=1, le=LENGTH)] | None = None  # default: by the source's length
    length_penalty: float = Field(0.0, ge=0, le=PENALTY, allow_inf_nan=False)

    @model_validator(mode="after")
    def _check_lengths(self) -> SearchConfig:
        if self.max_length is not None and self.min_length > self.max_length:
            raise ValueError(f"min_length {self.min_length} is above max_length {self.max_length}")
        return self

    @property
    def limits(self) -> dict[str, Any]:
        """The limits that the configuration sets, as arguments of a search."""
        limits = {"min_length": self.min_length, "max_length": self.max_length, "length_penalty": self.length_penalty}
        return {name: value for name, value in limits.items() if value}

    def beam(self, size: int | None = None, competing_ends: bool | None = None, n_best: int = 1) -> dict[str, Any]:
        """Return arguments of a beam search; what a command or a request leaves open is the configuration's.

        Args:
            size: of the beam; by default the configuration's, or as wide as the list is long.
            competing_ends: whether outputs must end among the beam's best continuations.
            n_best: how many outputs the list has.
        """
        return {
            "beam_size": size or max(self.beam_size, n_best),
            "competing_ends": self.competing_ends if competing_ends is None else competing_ends,
        }


class Config(Section):
    """A whole run. The sections `data` and `model` are the task's: see :func:`make_schema`."""

    version: Literal[1]
    run_dir: FileName | None = None
    data: Any
    model: Any
    training: TrainingConfig = TrainingConfig()
    search: SearchConfig = SearchConfig()

    def text(self) -> str:
        """Return the configuration as YAML, every default filled in; without the folder, which may be moved."""
        return yaml.safe_dump(self.model_dump(exclude={"run_dir"}), sort_keys=False, allow_unicode=True)


# Finds the schema for the content of a file of some name.
ChooseSchema = Callable[[Mapping[str, Any], str], type[Config]]


def make_schema(data: type[Section], models: Mapping[str, type[Section]], competing_ends: bool = False) -> type[Config]:
    """Return the schema of one task's configurations.

    Args:
        data: the section `data`.
        models: the sections that `model` may be, by its key `architecture`; without that key it is the first.
        competing_ends: whether outputs of searches must end among the beam's best continuations, by default.
    """
    first = next(iter(models))

    def architecture(value: Any) -> Any:
        return value.get("architecture", first) if isinstance(value, dict) else getattr(value, "architecture", first)

    model: Any = models[first]
    if len(models) > 1:
        union: Any = Union[tuple(Annotated[section, Tag(key)] for key, section in models.items())]  # noqa: UP007
        model = Annotated[union, Discriminator(architecture)]
    fields: dict[str, Any] = {"data": (data, ...), "model": (model, Field(default_factory=models[first]))}
    for key, section, name in (
        ("training", TrainingConfig, "validation_competing_ends"),
        ("search", SearchConfig, "competing_ends"),
    ):
        default: Any = {name: (bool, competing_ends)}
        of_task = create_model(section.__name__, __base__=section, __module__=__name__, **default)
        fields[key] = (of_task, of_task())
    return create_model("Config", __base__=Config, __module__=__name__, **fields)


def read_config(path: Path | str, overrides: Sequence[str], choose_schema: ChooseSchema) -> Config:
    """Read a YAML file and apply `key=value` overrides such as `model.output=sparsemax`.

    Raises:
        InputError: with every mistake in one message, each with its path and the file or the override it stands in.
    """
    text = ""
    try:
        text = read_text(path, LARGEST_FILE)
        content = parse_yaml(text, str(path))
    except InputError as error:
        raise InputError(f"{error}{_data_hint(path, text)}") from error
    if content is None:
        raise InputError(f"{path}: the file is empty, expected a configuration (version: 1, data: ...)")
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected keys and values (version: 1, data: ...){_data_hint(path, text)}")
    return check_content(content, str(path), choose_schema, _apply_overrides(content, overrides))


def _data_hint(path: Path | str, text: str) -> str:
    """Return what a message adds where a file of data may stand in the place of a configuration."""
    if not Path(path).is_file() or (Path(path).suffix in (".yaml", ".yml") and "\t" not in text.partition("\n")[0]):
        return ""
    return f"; if it holds data, write a YAML file with data.train: {Path(path).name} and give that file"


def refuse_idle(config: Config, overrides: Sequence[str] = ()) -> None:
    """Refuse a setting with a value of its own that has no effect, because of another setting of its section.

    That of a file may stay where an override changes the other setting.

    Raises:
        InputError: with the setting, and what would give it an effect.
    """
    keys = [override.partition("=")[0] for override in overrides]

    def is_overridden(path: str) -> bool:
        return any(f"{path}.".startswith(f"{key}.") for key in keys)

    for path, (switch, values) in NEEDS.items():
        name, key = path.split(".")
        section = getattr(config, name)
        if key not in section.model_fields_set or getattr(section, switch) in values:
            continue
        value = getattr(section, key)
        if value == type(section).model_fields[key].default:
            continue
        if is_overridden(path) or not is_overridden(f"{name}.{switch}"):
            raise InputError(
                f"{path}: {value} has no effect with {switch}: {getattr(section, switch)}; "
                f"leave it out, or set {name}.{switch} to {' or '.join(values)}"
            )


class Override(NamedTuple):
    """A `key=value` that changes a setting."""

    whole: str
    key: str
    text: str  # of the value
    value: Any  # of the text as YAML, or a :class:`_NotYaml`

    @property
    def name(self) -> str:
        """What a message calls it."""
        return f"override {describe(self.whole)}"


class _NotYaml:
    """A value that is not YAML, which only a setting that is a text can have."""

    def __init__(self, text: str, mistake: str) -> None:
        self.text, self.mistake = text, mistake

    def __repr__(self) -> str:
        return repr(self.text)


def check_content(
    content: dict[str, Any], name: str, choose_schema: ChooseSchema, overrides: Sequence[Override] = ()
) -> Config:
    """Return a configuration from its content; its task, which `choose_schema` finds in it, says which keys there are.

    Args:
        content: of a file, with overrides applied to it.
        name: of the file.
        choose_schema: finds the schema.
        overrides: those that were applied.

    Raises:
        InputError: with every mistake in one message, each with its path, behind `name` or the override it stands in.
    """
    schema = choose_schema(content, name)
    try:
        return schema.model_validate(content)
    except ValidationError as error:
        mistakes, texts = _find_mistakes(error, schema)
        plain = [override for override in overrides if override.key in texts and not isinstance(override.value, str)]
        if not plain:
            raise InputError(_explain(mistakes, name, overrides)) from error
    for override in plain:  # a text that YAML takes for something else, such as {language}-train
        _set(content, override.key, override.text)
    changed = [override._replace(value=override.text) if override in plain else override for override in overrides]
    return check_content(content, name, choose_schema, changed)


def _apply_overrides(content: dict[str, Any], overrides: Sequence[str]) -> list[Override]:
    """Apply overrides to the content of a file, and return them.

    Raises:
        InputError: what is no override, or sets what another one has set.
    """
    applied: list[Override] = []
    for whole in overrides:
        override = _parse_override(whole)
        for other in applied:
            inner = override.key.removeprefix(f"{other.key}.")
            replaced = f"{other.key}.".startswith(f"{override.key}.")
            if replaced or (inner != override.key and _holds(other.value, inner.split("."))):
                raise InputError(f"{override.name}: {describe(other.whole)} sets that, too; leave one of them")
        _set(content, override.key, override.value, override.name)
        applied.append(override)
    return applied


def _parse_override(whole: str) -> Override:
    key, equals, text = whole.partition("=")
    override = Override(whole, key, text, None)
    if not equals or not key:
        raise InputError(f"{override.name}: expected key=value, such as training.epochs=5")
    if len(text) > LARGEST_FILE:
        raise InputError(f"{override.name}: expected at most {LARGEST_FILE} characters, found {len(text)}")
    try:
        return override._replace(value=parse_yaml(text, override.name))
    except InputError as error:
        return override._replace(value=_NotYaml(text, str(error)))


def _holds(value: Any, keys: Sequence[str]) -> bool:
    """Tell whether nested sections have a key."""
    for key in keys:
        if not isinstance(value, dict) or key not in value:
            return False
        value = value[key]
    return True


def _set(content: dict[str, Any], key: str, value: Any, name: str = "") -> None:
    """Give a setting a value; errors begin with `name`."""
    *sections, last = key.split(".")
    for section in sections:
        if content.get(section) is None:  # not there, or a section without keys
            content[section] = {}
        content = content[section]
        if not isinstance(content, dict):
            raise InputError(f"{name}: {describe(section)[1:-1]} is no section")
    content[last] = value


def _explain(mistakes: Mapping[str, str], name: str, overrides: Sequence[Override]) -> str:
    """Return every mistake with its path, behind the file or the override that it stands in."""
    texts: dict[str, list[str]] = {}
    for key, mistake in mistakes.items():
        own = next((o for o in overrides if f"{key}.".startswith(f"{o.key}.")), None)
        if own is not None and isinstance(own.value, _NotYaml):
            texts[own.value.mistake] = []
            continue
        inner = [o.name for o in overrides if o.key.startswith(f"{key}.")]  # where settings don't go together
        origin = own.name if own is not None else " with ".join([name, ", ".join(inner)] if inner else [name])
        texts.setdefault(origin, []).append(f"{truncate(key, LONGEST_KEY)}: {mistake}")
    return "; ".join(f"{origin}: {'; '.join(lines)}" if lines else origin for origin, lines in texts.items())


def _find_mistakes(error: ValidationError, schema: type[Section]) -> tuple[dict[str, str], set[str]]:
    """Return every mistake by its path, and the paths where a text was expected.

    Where a setting may be of several types, they are one mistake.
    """
    inputs: dict[str, str] = {}
    hints: dict[str, str] = {}
    expected: dict[str, list[str]] = {}
    texts: set[str] = set()
    for detail in error.errors(include_url=False, include_context=False):
        key, section = _find_section(detail["loc"], schema)
        others = _accepted_by(detail, schema)
        if detail["type"] == "union_tag_invalid":  # pydantic's message speaks of tags
            key, detail["input"] = f"{key}.architecture", detail["input"]["architecture"]
            detail["msg"] = f"expected {detail['msg'].rpartition(': ')[2].replace(', ', ' or ')}"
        if key not in expected and len(expected) == MOST_MISTAKES:
            expected["and more"] = [f"these are the first {MOST_MISTAKES} mistakes"]
            break
        message = detail["msg"].removeprefix("Value error, ")
        if detail["type"] == "string_type":
            texts.add(key)
        if detail["type"] == "extra_forbidden":
            close = difflib.get_close_matches(str(detail["loc"][-1])[:LONGEST_KEY], section.model_fields, 1)
            message = "unknown key" + (f" (did you mean {close[0]}?)" if close else "")
            if NEW_NAMES.get(str(detail["loc"][-1])) in section.model_fields:
                message = f"now called {NEW_NAMES[str(detail['loc'][-1])]}: rename it in the file"
        elif detail["type"] == "missing":
            message = "missing"
        elif detail["type"] != "value_error":
            inputs[key] = f", found {describe(detail['input'])}"
        if others:
            hints[key] = f"; {others} accepts it" if detail["type"] != "extra_forbidden" else ""
            message = message if hints[key] else f"unknown key (it belongs to {others})"
        message = message[:1].lower() + message[1:]
        lines = expected.setdefault(key, [])
        lines.append(message.removeprefix("input should be ") if lines else message)
    nested = {key for key in texts if any(other.startswith(f"{key}.") for other in expected)}  # a section is possible
    mistakes = {key: " or ".join(lines) + inputs.get(key, "") + hints.get(key, "") for key, lines in expected.items()}
    return mistakes, texts - nested


def _accepted_by(detail: Any, schema: type[Section]) -> str:
    """Return the choices of a section, such as `architecture: transformer`, that take a setting this one refuses."""
    loc = detail["loc"]
    field = schema.model_fields.get(str(loc[0])) if len(loc) >= 3 else None
    members = _tagged_members(_section_of(field.annotation)) if field else []
    found = []
    for section, tag in members:
        if tag.tag == loc[1] or loc[2] not in section.model_fields:
            continue
        try:
            section.model_validate({"architecture": tag.tag, loc[2]: detail["input"]})
        except ValidationError as error:
            if any(other["loc"][:1] == loc[2:3] for other in error.errors(include_url=False, include_context=False)):
                continue
        found.append(f"architecture: {tag.tag}")
    return " or ".join(found)


def _find_section(loc: Sequence[int | str], section: type[Section]) -> tuple[str, type[Section]]:
    """Return the path of a setting and its section, without the types that pydantic adds to it."""
    parts: list[str] = []
    inside = True
    sections: dict[str, type[Section]] = {}  # of a union, by the tags in the path
    for part in loc:
        if part in sections:
            section, sections, inside = sections[str(part)], {}, True
            continue
        if not inside and isinstance(part, str):
            continue
        parts.append(str(part))
        field = section.model_fields.get(str(part)) if inside else None
        kind = _section_of(field.annotation) if field else None
        sections = {tag.tag: member for member, tag in _tagged_members(kind)}
        inside = isinstance(kind, type) and issubclass(kind, Section)
        section = kind if isinstance(kind, type) and issubclass(kind, Section) else section
    return ".".join(parts) or "the file", section


def _section_of(kind: Any) -> Any:
    """Return the section of a field that is one or nothing; of any other field its type."""
    members = [member for member in get_args(kind) if member is not type(None)]
    alone = len(members) == 1 and len(get_args(kind)) == 2
    return members[0] if alone and isinstance(members[0], type) and issubclass(members[0], Section) else kind


def _tagged_members(kind: Any) -> list[tuple[type[Section], Tag]]:
    """Return the tagged members of a union of sections; none of anything else."""
    members = [get_args(member) for member in get_args(kind)]
    return [(member[0], member[1]) for member in members if len(member) == 2 and isinstance(member[1], Tag)]
