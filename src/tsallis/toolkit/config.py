"""Configurations: YAML files, overrides and schemas. The tasks define the sections `data` and `model`.

The defaults of `model` equal the defaults of the model classes; a test compares them.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, create_model, model_validator
from pydantic_core import ErrorDetails
from torch import Tensor

from tsallis.errors import InputError, describe, truncate
from tsallis.search.options import MAX_COUNT, OPTIONS, TYPES, EndRule, SearchOptions
from tsallis.toolkit.data.batching import BatchPlan
from tsallis.toolkit.data.io import read_text
from tsallis.toolkit.data.yaml_text import LARGEST_FILE, LONGEST_KEY, dump_yaml, parse_yaml
from tsallis.toolkit.old_names import with_new_names

# A setting in this table has an effect only if a setting of the same section that is listed here has one of the listed
# values. None stands for all values except None.
NEEDS: dict[str, dict[str, tuple[str, ...] | None]] = {
    "training.init_checkpoint": {"init_from": None},
    "training.warmup": {"schedule": ("inverse-square-root", "linear")},
    "training.plateau_patience": {"schedule": ("plateau",)},
    "training.plateau_factor": {"schedule": ("plateau",)},
    "training.lowest_learning_rate": {"schedule": ("halve-on-worse", "plateau")},
    "model.output_alpha": {"output": ("entmax", "alpha_relu")},
    "model.attention_alpha": dict.fromkeys(
        ("attention", "encoder_attention", "decoder_attention", "cross_attention"), ("entmax",)
    ),
    "model.num_basis": {"attention": ("continuous", "combined"), "density": None},
}
NOTHING = ("", "null", "Null", "NULL", "~", "''", '""')  # overrides that set a setting to null or to an empty text
PUNCTUATION = re.compile(r"""[^\w~'"\[\]{}]+""")  # such as a separator, which YAML might read as null or a list
ON_RESUME = "may change when a run is resumed"  # description that marks such settings in the schemas
MAX_ERRORS = 20  # maximum number of errors in one message
WHOLE = ""  # path of errors that belong to no setting
ARCHITECTURE = ("model", "architecture")

FileName = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$", max_length=4096)]
# These types have upper limits: larger values would exceed the memory of any machine, or the index type of a kernel.
Count = Annotated[int, Field(ge=1, lt=2**31)]
Size = Annotated[int, Field(ge=1, le=65_536)]  # width of a layer
Depth = Annotated[int, Field(ge=1, le=1_000)]  # number of layers
Beam = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Basis = Annotated[int, Field(ge=1, le=4_096)]  # number of basis functions; the model computes a matrix of all pairs
Pixels = Annotated[int, Field(ge=1, le=8_192)]
Alpha = Annotated[float, Field(ge=1, allow_inf_nan=False)]
Map = Literal["softmax", "sparsemax", "entmax"]
Density = Literal["gaussian", "truncated_parabola", "laplace", "triangular"]  # one-dimensional densities


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class EmbeddingsConfig(Section):
    """Word vectors that initialise the embeddings. A configuration may give just the file name instead of a section."""

    file: FileName  # text file or .safetensors file
    words: FileName | None = None  # file with the word of each row, one per line; default: row i belongs to symbol i
    tensor: str | None = Field(None, max_length=1000)  # name of the tensor to read from a file with several matrices
    freeze: bool = False

    @model_validator(mode="before")
    @classmethod
    def _wrap_file_name(cls, value: Any) -> Any:
        return {"file": value} if isinstance(value, str) else value


class TeacherConfig(Section):
    """Distributions that `tsallis distill` wrote. A configuration may give just the folder instead of a section."""

    folder: FileName  # folder that `tsallis distill` wrote
    weight: float = Field(0.5, ge=0, le=1)  # share of the teacher in the targets; the reference has the rest

    @model_validator(mode="before")
    @classmethod
    def _wrap_folder(cls, value: Any) -> Any:
        return {"folder": value} if isinstance(value, str) else value


class AnnealedAlpha(Section):
    """Alpha of the output during training. It rises linearly from a first value to the alpha of the model.

    Args:
        start: Alpha of the first update.
        until: Share of the updates after which alpha stays at the alpha of the model.
    """

    start: Alpha = 1.0
    until: float = Field(0.9, gt=0, le=1)

    def at(self, step: int, updates: int, last: float) -> float:
        """Return the alpha of the update that follows the first `step` updates, of `updates` in total.

        >>> [AnnealedAlpha(until=0.5).at(step, 100, 1.5) for step in (0, 25, 50, 99)]
        [1.0, 1.25, 1.5, 1.5]
        """
        return self.start + (last - self.start) * min(1.0, step / (self.until * updates))


class Settings(Section):
    """Settings of a training run; they form the section `training` of a configuration.

    Args:
        init_from: Run folder of a trained model, whose parameters initialise the new model. Only `tsallis train` reads
            `init_from`, `init_checkpoint`, `src_embeddings`, `tgt_embeddings` and `teacher`; `Trainer` ignores them.
        init_checkpoint: Checkpoint in `init_from`: "best", "last" or "average".
        src_embeddings: File of word vectors that initialise the source embeddings.
        tgt_embeddings: File of word vectors that initialise the target embeddings.
        teacher: Folder of a teacher's distributions (see `tsallis distill`), which are the targets together with the
            references; `{folder: DIR, weight: 0.5}` sets the share of the teacher.
        epochs: Maximum number of epochs.
        updates: Maximum number of updates; default: only `epochs` limits the run.
        batch_size: Number of rows per batch.
        max_tokens: Maximum number of symbols per batch on each side, including padding; replaces `batch_size`.
        bucket: Number of batches whose rows are sorted by length together. Larger numbers reduce padding.
        sort_by: Length by which rows are sorted, "total" or "target", see
            :class:`tsallis.toolkit.data.batching.BatchPlan`.
        learning_rate: Maximum learning rate.
        alpha_lr_scale: Factor on the learning rate of learned alphas.
        optimizer: Optimizer, "adam" or "adamw".
        weight_decay: Weight decay of matrices; biases, norms and alphas do not decay. "adam" adds the decay to the
            gradient (an L2 penalty). "adamw" applies it to the weights directly (decoupled weight decay).
        betas: Decay rates of the optimizer's two moments.
        schedule: Name of the learning rate schedule, see :mod:`tsallis.toolkit.training.schedules`.
        warmup: Number of warm-up updates, for "inverse-square-root" and "linear".
        plateau_patience: Number of validations without a better score before "plateau" lowers the rate.
        plateau_factor: Factor by which "plateau" multiplies the rate.
        lowest_learning_rate: Minimum learning rate of "halve-on-worse" and "plateau".
        clip: Maximum norm of the gradient; larger gradients are scaled down to this norm.
        label_smoothing: Share of the target probability that is spread over all symbols, at least 0 and below 1.
        output_alpha: Alphas of the output during training, `{start: 1, until: 0.9}`; default: the alpha of the model.
            Validation always uses the alpha of the model.
        accumulate: Number of batches per update and process. The loss is averaged over the symbols of all batches.
        precision: Precision of forward passes, "float32" or "bfloat16" (autocast).
        strategy: Strategy for several processes, "ddp" or "fsdp".
        compile: Whether to compile the model with `torch.compile`.
        validate_every: Number of epochs between validations.
        validate_updates: Number of updates between validations; replaces `validate_every`.
        validation_beam: Beam size of the search in validation.
        validation_end_rule: Rule for finished outputs in validation, see :func:`tsallis.search.beam_search`.
        validation_rows: Number of development-set rows for which validation searches outputs; default: all. The
            loss is always computed on all rows.
        select: Name of the development-set score that selects the best checkpoint; default: the first score of the
            task. If scores are equal, the smaller loss counts.
        patience: Number of validations without a better score before the run ends; default: no limit.
        checkpoint_every: Number of updates between checkpoints. Each validation also saves a checkpoint.
        keep: Number of validated checkpoints kept for averaging.
        tensorboard: Whether to also write the log for TensorBoard (extra `tensorboard`).
        seed: Random seed of the batch order and of dropout.

    Raises:
        pydantic.ValidationError: If a value is out of range, or settings contradict each other.

    Example:
        >>> settings = Settings(epochs=3, batch_size=8, clip=1.0)
        >>> settings.epochs, settings.schedule
        (3, 'halve-on-worse')
    """

    init_from: FileName | None = None  # run folder of a trained model
    init_checkpoint: Literal["best", "last", "average"] = "best"
    src_embeddings: EmbeddingsConfig | None = None
    tgt_embeddings: EmbeddingsConfig | None = None
    teacher: TeacherConfig | None = None

    epochs: Annotated[Count, ON_RESUME] = 20
    updates: Annotated[Count | None, ON_RESUME] = None
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
    lowest_learning_rate: Annotated[float, ON_RESUME] = Field(0.0, ge=0, allow_inf_nan=False)
    clip: float = Field(5.0, gt=0)
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    output_alpha: AnnealedAlpha | None = None
    accumulate: Count = 1
    precision: Literal["float32", "bfloat16"] = "float32"
    strategy: Literal["ddp", "fsdp"] = "ddp"
    compile: bool = False
    validate_every: Count = 1
    validate_updates: Count | None = None
    validation_beam: Beam = 1
    validation_end_rule: EndRule = "every"
    validation_rows: Count | None = None
    select: str | None = Field(None, min_length=1, max_length=100)
    patience: Annotated[Count | None, ON_RESUME] = None
    checkpoint_every: Annotated[Count, ON_RESUME] = 500
    keep: Annotated[Count, ON_RESUME] = 1
    tensorboard: Annotated[bool, ON_RESUME] = False
    seed: int = Field(1, ge=0, lt=2**63)

    @model_validator(mode="after")
    def _check_combinations(self) -> Settings:
        if self.sort_by == "target" and self.max_tokens is not None:
            raise ValueError(f"max_tokens {self.max_tokens} can't be used with sort_by: target; set batch_size instead")
        if self.lowest_learning_rate > self.learning_rate:
            raise ValueError(
                f"lowest_learning_rate must be at most learning_rate {self.learning_rate:g}, "
                f"found {self.lowest_learning_rate:g}"
            )
        if self.schedule == "linear" and (self.updates is None or self.warmup >= self.updates):
            updates = "no updates" if self.updates is None else f"updates {self.updates}"
            raise ValueError(f"schedule: linear needs updates above warmup, found {updates} and warmup {self.warmup}")
        if self.teacher is not None and self.label_smoothing:
            raise ValueError(f"label_smoothing must be 0 with a teacher, found {self.label_smoothing:g}")
        if self.output_alpha is not None and self.updates is None:
            raise ValueError("output_alpha needs updates: set the number of updates")
        if self.output_alpha is not None and self.compile:
            raise ValueError("output_alpha needs compile: false, found true")
        return self

    def plan(self, lengths: Tensor) -> BatchPlan:
        """Return the plan of all batches for rows of the given lengths."""
        return BatchPlan(lengths, self.batch_size, self.max_tokens, self.seed, self.bucket, self.sort_by)


def option_fields(defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a pydantic model for search options, each with its type, range and default.

    Args:
        defaults: Default values by option name, as in :class:`tsallis.search.SearchOptions`.
    """
    result = {}
    for name, default in defaults.items():
        info, kind = OPTIONS[name], TYPES[name]
        if kind in (int, float):
            bounds: dict[str, Any] = {"strict": True, "gt" if info.inside else "ge": kind(info.minimum)}
            if math.isfinite(info.maximum):
                bounds["lt" if info.inside else "le"] = kind(info.maximum)
            if kind is float:
                bounds["allow_inf_nan"] = False
            kind = Annotated[kind, Field(**bounds)]
        result[name] = (kind | None if default is None else kind, default)
    return result


class _SearchSection(Section):
    """The section `search`: default values of search options. A command may override them."""

    @model_validator(mode="after")
    def _check_together(self) -> _SearchSection:
        _ = self.options
        return self

    @property
    def options(self) -> SearchOptions:
        """The search options that the configuration sets; a limit of 0 means no limit.

        Raises:
            OptionError: If options contradict each other.
        """
        values: dict[str, Any] = {name: value or None for name, value in self.model_dump().items()}
        return SearchOptions(**values)


def search_section(task_options: SearchOptions) -> type[_SearchSection]:
    """Return the schema of the section `search` with the default options of a task."""
    defaults = {name: info.default for name, info in OPTIONS.items() if info.of_runs} | task_options.given
    options: Any = option_fields(defaults)
    return create_model("SearchConfig", __base__=_SearchSection, __module__=__name__, **options)


class Config(Section):
    """Configuration of a run. The task defines the sections `data` and `model`, see :func:`make_schema`."""

    models: ClassVar[Mapping[str, type[Section]]] = {}  # schemas of the section `model` by `architecture`

    version: Literal[1]
    run_dir: FileName | None = None
    data: Any
    model: Any
    training: Settings = Settings()
    search: Annotated[_SearchSection, ON_RESUME] = _SearchSection()

    @model_validator(mode="after")
    def _check_output_alpha(self) -> Config:
        output = getattr(self.model, "output", None)
        if self.training.output_alpha is not None and output != "entmax":
            raise ValueError(f"training.output_alpha needs model.output: entmax, found {output}")
        return self

    def text(self) -> str:
        """Return the configuration as YAML with all defaults. It omits `run_dir`, because the folder may be moved."""
        return dump_yaml(self.model_dump(exclude={"run_dir"}))


def make_schema(
    data: type[Section], models: Mapping[str, type[Section]], architecture: str, searches: SearchOptions
) -> type[Config]:
    """Return the configuration schema of a task.

    Args:
        data: Schema of the section `data`.
        models: Schemas of the section `model` by `architecture`.
        architecture: Key in `models` of the schema to use.
        searches: Default search options of the task. Other options keep the defaults of :mod:`tsallis.search`.
    """
    model = models[architecture]
    search: Any = search_section(searches)
    rule: Any = searches.end_rule or OPTIONS["end_rule"].default
    training = create_model("Settings", __base__=Settings, validation_end_rule=(EndRule, rule))
    schema = create_model(
        "Config",
        __base__=Config,
        data=(data, ...),
        model=(model, Field(default_factory=model)),
        training=(training, training()),
        search=(Annotated[search, ON_RESUME], search()),
    )
    schema.models = models
    return schema


def read_content(path: Path | str, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Read a YAML file, also a recipe of this package, and apply overrides, see :func:`apply_overrides`.

    Returns:
        The content. It is not yet checked against a schema.

    Raises:
        InputError: If the file cannot be read or contains no settings, or an override is malformed.
    """
    path = _find_recipe(Path(path))
    try:
        content = with_new_names(parse_yaml(read_text(path, LARGEST_FILE), str(path)))
        if not isinstance(content, dict):
            raise InputError(f"{path}: expected keys and values, such as version: 1")
    except InputError as error:
        if not path.is_file() or path.suffix in (".yaml", ".yml"):
            raise
        hint = "if this is a data file, separate its columns by tabs, or name it as data.train in a YAML file"
        raise InputError(f"{error}; {hint}") from error
    apply_overrides(content, overrides)
    return content


def _find_recipe(path: Path) -> Path:
    """Return `path`, or if it does not exist and begins with "recipes/", the recipe of that name in this package."""
    if path.parts[:1] == ("recipes",) and not path.exists():
        places = (Path(__file__).parent, Path(__file__).parents[3])  # an installed wheel, a clone of the repository
        return next((place / path for place in places if (place / path).is_file()), path)
    return path


def apply_overrides(content: dict[str, Any], overrides: Sequence[str]) -> None:
    """Apply overrides `key=value`, such as `model.output=sparsemax`, to the content of a file.

    A value is YAML. Separators such as `#` and `|`, which are nothing in YAML, are texts.

    Raises:
        InputError: If a text is not an override, or two overrides set the same value.
    """
    keys: list[str] = []
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not all(key.split(".")):
            raise InputError(f"{_describe_override(override)}: expected key=value, such as training.epochs=5")
        if any(f"{other}.".startswith(f"{key}.") for other in keys):
            raise InputError(
                f"{_describe_override(override)}: another override sets the same setting; keep one of them"
            )
        try:
            value = parse_yaml(text, "")
        except InputError:
            value = text
        if (value in (None, "") and text not in NOTHING) or PUNCTUATION.fullmatch(text):
            value = text
        _apply_override(content, override, value)
        keys.append(key)


def _describe_override(override: str) -> str:
    """Return the name of an override in messages."""
    return f"override {describe(override)}"


def _apply_override(content: dict[str, Any], override: str, value: Any) -> None:
    """Set the setting that an override names to `value`."""
    *sections, last = override.partition("=")[0].split(".")
    for section in sections:
        if content.get(section) is None:  # the section is missing or has no keys
            content[section] = {}
        content = content[section]
        if not isinstance(content, dict):
            problem = f"{describe(section)[1:-1]} is not a section; its value is {describe(content)}"
            raise InputError(f"{_describe_override(override)}: {problem}")
    content[last] = value


def flat_settings(content: Any, path: str = "") -> dict[str, Any]:
    """Return every setting in the content of a configuration file by its path.

    >>> flat_settings({"version": 1, "model": {"output": "entmax"}})
    {'version': 1, 'model.output': 'entmax'}
    """
    settings: dict[str, Any] = {}
    for key, value in content.items() if isinstance(content, dict) else ():
        nested = isinstance(value, dict)
        settings |= flat_settings(value, f"{path}{key}.") if nested else {f"{path}{key}": value}
    return settings


def refuse_idle(config: Config, overrides: Sequence[str] = ()) -> None:
    """Raise if a setting has no effect because of the value of another setting.

    For example, `training.warmup` has no effect if `training.schedule` is "constant". A setting with its default value
    is accepted. A setting in the file is also accepted if it has no effect only because an override changes the other
    setting.

    Raises:
        InputError: If a setting has no effect. The message names the values of the other setting that would give it an
            effect.
    """
    keys = [override.partition("=")[0] for override in overrides]

    def is_overridden(path: str) -> bool:
        return any(f"{path}.".startswith(f"{key}.") for key in keys)

    scale = "training.alpha_lr_scale"
    excused = not is_overridden(scale) and any(key.partition(".")[0] == "model" for key in keys)
    if config.training.alpha_lr_scale != 1 and not excused and "learned" not in config.model.model_dump().values():
        raise InputError(f"{scale}: {config.training.alpha_lr_scale:g} has no effect, because no alpha is learned")
    for path, needs in NEEDS.items():
        name, key = path.split(".")
        section = getattr(config, name)
        if key not in section.model_fields_set or getattr(section, key) == type(section).model_fields[key].default:
            continue
        switches = _available_switches(section, needs)
        actual = {switch: getattr(section, switch) for switch in switches}
        if any(actual[s] is not None if values is None else actual[s] in values for s, values in switches.items()):
            continue
        if is_overridden(path) or not any(is_overridden(f"{name}.{switch}") for switch in switches):
            shown = {switch: value for switch, value in actual.items() if value is not None} or actual
            switch, values = next(iter(switches.items()))
            raise InputError(
                f"{path}: {getattr(section, key)} has no effect with "
                f"{' and '.join(f'{s}: {v}' for s, v in shown.items()).replace('None', 'null')}; leave it out, or set "
                f"{name}.{switch}{' to ' * bool(values)}{' or '.join(values or ())}"
            )


def _available_switches(
    section: Section, needs: Mapping[str, tuple[str, ...] | None]
) -> dict[str, tuple[str, ...] | None]:
    """Return the part of an entry of `NEEDS` that a section can fulfil: its settings and their values."""
    switches: dict[str, tuple[str, ...] | None] = {}
    for switch, values in needs.items():
        if (field := type(section).model_fields.get(switch)) is None:
            continue
        allowed = values and tuple(value for value in values if value in _choices(field.annotation))
        if values is None or allowed:
            switches[switch] = allowed
    return switches


def _choices(kind: Any) -> list[Any]:
    """Return the values of a literal type, or of a union of literal types."""
    return [choice for part in get_args(kind) for choice in _choices(part) or [part]]


def check_content(content: dict[str, Any], name: str, schema: type[Config], overrides: Sequence[str] = ()) -> Config:
    """Check the content of a configuration file and return the configuration.

    Args:
        content: Content of a file, with overrides applied to it.
        name: Name of the file.
        schema: Schema of the task's configurations.
        overrides: The overrides that were applied.

    Raises:
        InputError: If there are errors. The message lists every error with its path and with its file or override.
    """
    try:
        return schema.model_validate(content)
    except ValidationError as error:
        errors, string_paths = _find_errors(error, schema, content)
        text_overrides = [override for override in overrides if override.partition("=")[0] in string_paths]
        if not text_overrides:
            raise InputError(_explain(errors, name, overrides)) from error
    for override in text_overrides:  # use the text itself: YAML parses a text such as 2018 as another type
        _apply_override(content, override, override.partition("=")[2])
    return check_content(content, name, schema, overrides)


def _explain(errors: Mapping[str, str], name: str, overrides: Sequence[str]) -> str:
    """Return a message that lists every error with its path and with its file or override."""
    texts: dict[str, list[str]] = {}
    for path, message in errors.items():
        keys = {override: override.partition("=")[0] for override in overrides}
        origins = [_describe_override(override) for override, key in keys.items() if f"{path}.".startswith(f"{key}.")]
        # If a section or the file has a contradiction, name the overrides inside the section or in the message.
        paths = re.findall(r"\w+(?:\.\w+)+", message) if path == WHOLE else [path]
        inner = [
            _describe_override(override)
            for override, key in keys.items()
            if any(f"{key}.".startswith(f"{p}.") or f"{p}.".startswith(f"{key}.") for p in paths)
        ]
        origin = origins[0] if origins else " with ".join([name, *inner])
        texts.setdefault(origin, []).append(message if path == WHOLE else f"{truncate(path, LONGEST_KEY)}: {message}")
    return "; ".join(f"{origin}: {'; '.join(lines)}" for origin, lines in texts.items())


def _find_errors(
    error: ValidationError, schema: type[Config], content: Mapping[str, Any]
) -> tuple[dict[str, str], set[str]]:
    """Return all errors by path, and the paths at which a string was expected.

    If a setting allows several types, the errors of all types are combined into one.
    """
    errors = [(d, _path(d, content)) for d in error.errors(include_url=False, include_context=False)]
    if any(path == ARCHITECTURE for _, path in errors):  # the schema of `model` is unknown: drop its other errors
        errors = [(d, path) for d, path in errors if path == ARCHITECTURE or path[:1] != ("model",)]
    expected: dict[str, list[str]] = {}
    endings: dict[str, str] = {}
    for detail, path in errors[:MAX_ERRORS]:
        key = ".".join(map(str, path)) or WHOLE
        message, ending = describe_error(detail)
        if path == ARCHITECTURE:
            message = f"expected {' or '.join(map(repr, schema.models))}"
        lines = expected.setdefault(key, [])
        lines.append(message.removeprefix("input should be ") if lines else message)
        endings[key] = ending + _hint(path, detail, schema)
    string_paths = {".".join(map(str, path)) for detail, path in errors if detail["type"] == "string_type"}
    return {key: " or ".join(lines) + endings[key] for key, lines in expected.items()}, string_paths


def _path(detail: ErrorDetails, content: Any) -> tuple[int | str, ...]:
    """Return the path of an error without the type names that pydantic adds to it."""
    path: tuple[int | str, ...] = ()
    for part in detail["loc"]:
        is_key = isinstance(content, Mapping) and part in content
        if is_key or (isinstance(content, list) and part in range(len(content))):
            content = content[part]
            path += (part,)
    return (*path, detail["loc"][-1]) if detail["type"] == "missing" else path


def describe_error(detail: ErrorDetails) -> tuple[str, str]:
    """Return two parts of the error message for a wrong value in a file. The second part contains the value."""
    if detail["type"] in ("missing", "extra_forbidden", "unexpected_keyword_argument"):
        return "missing" if detail["type"] == "missing" else "unknown key", ""
    message = detail["msg"].removeprefix("Value error, ")
    message = "Input should be keys and values" if detail["type"] == "model_type" else message
    found = "" if detail["type"] == "value_error" else f", found {describe(detail['input'])}"
    if detail["type"] == "string_type" and isinstance(detail["input"], int | float):
        found += "; write it in quotes"
    return message[:1].lower() + message[1:], found


def _hint(path: Sequence[int | str], detail: ErrorDetails, schema: type[Config]) -> str:
    """Return a hint for an unknown key or choice: the architectures that have it, or a similar key."""
    unknown_key = detail["type"] == "extra_forbidden"
    if not unknown_key and detail["type"] != "literal_error":
        return ""
    *sections, key = map(str, path)
    fields = {name: section.model_fields.get(key) for name, section in schema.models.items() if sections == ["model"]}
    architectures = [
        name
        for name, field in fields.items()
        if field and (unknown_key or detail["input"] in _choices(field.annotation))
    ]
    if architectures:
        return f" (it belongs to {' or '.join(f'architecture: {name}' for name in architectures)})"
    known = _section(schema, sections).model_fields if unknown_key else ()
    close = difflib.get_close_matches(key[:LONGEST_KEY], known, 1)
    if unknown_key and not sections:
        inner = [name for name in ("training", "search") if key in _section(schema, [name]).model_fields]
        close = [f"{name}.{key}" for name in inner] or close
    return f" (did you mean {close[0]}?)" if close else ""


def _section(section: type[Section], path: Sequence[str]) -> type[Section]:
    """Return the section at a path."""
    for key in path:
        kind = section.model_fields[key].annotation
        section = next(k for k in (kind, *get_args(kind)) if isinstance(k, type) and issubclass(k, Section))
    return section
