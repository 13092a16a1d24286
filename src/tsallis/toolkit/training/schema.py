"""Schemas of the files in a run folder. Every file is validated when it is read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails

from tsallis.errors import InputError, describe, truncate
from tsallis.toolkit.config import describe_error
from tsallis.toolkit.data.io import read_bytes, without_mark
from tsallis.toolkit.old_names import with_new_names

LARGEST = 1 << 26  # maximum size of a JSON file in bytes; normal files have a few kB
MAX_ERRORS = 3  # maximum number of errors listed in one message
LONGEST_KEY = 80  # maximum number of characters of a key in a message
SIZES = ("layers", "encoder_layers", "decoder_layers", "stages", "num_basis")
LAYERS = SIZES[:3]

Count = Annotated[int, Field(ge=0, lt=2**63)]
Step = Annotated[str, StringConstraints(pattern=r"^step-[0-9]{8,18}$")]
Average = Annotated[str, StringConstraints(pattern=r"^average-[0-9]{8,18}-[0-9]{8,18}$")]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
FileName = Annotated[str, StringConstraints(pattern=r"^[^\x00]+$")]


class Record(BaseModel):
    """Base class of all schemas: frozen, without extra keys, and without type conversion."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


R = TypeVar("R", bound=BaseModel)


class Index(Record):
    """Schema of `checkpoints/index.json`, which names the checkpoint folders and their roles."""

    model_config = ConfigDict(populate_by_name=True)

    last: Step | None = None
    best: Step | None = None
    validated: tuple[Step, ...] = Field((), alias="kept")  # last validated checkpoints, kept for averaging
    average: Average | None = None
    finished: bool
    discard: tuple[Step | Average, ...] = ()  # superseded or incomplete checkpoints, safe to remove

    @model_validator(mode="after")
    def _check_names(self) -> Index:
        if (self.last is None) != (self.best is None) or (self.last is None and (self.validated or self.average)):
            raise ValueError("last and best must both be set if the index names a checkpoint")
        if len(set(self.validated)) != len(self.validated):
            raise ValueError("kept must not name a checkpoint twice")
        if overlap := self.names & set(self.discard):
            raise ValueError(f"{min(overlap)} is named as a checkpoint: it must not be in discard")
        return self

    @property
    def names(self) -> set[str]:
        """Names of all checkpoint folders that must exist."""
        return {name for name in (self.last, self.best, self.average, *self.validated) if name is not None}


class Sum(Record):
    """Size and SHA-256 digest of a file."""

    bytes: Count
    sha256: Digest


class Manifest(Record):
    """Schema of `manifest.json` in a checkpoint folder."""

    step: Count
    epoch: Count = 0
    metrics: dict[str, Any] = {}
    of: list[Step] | None = None  # names of the averaged checkpoints
    files: dict[Literal["model.safetensors", "training.pt"], Sum]


class Fingerprints(Record):
    """Fingerprints of the vocabularies that a model was trained with."""

    src: str | None = None
    tgt: str | None = None
    max_length: Annotated[int, Field(ge=1)] | None = None


class ModelRecord(Record):
    """Schema of `model.json`: class and arguments of a model."""

    name: str = Field(alias="class")  # key in `tsallis.models.registry`
    arguments: dict[str, Any]
    vocabularies: Fingerprints | None = None

    @field_validator("arguments")
    @classmethod
    def _check_arguments(cls, arguments: dict[str, Any]) -> dict[str, Any]:
        for key, value in arguments.items():
            if key in SIZES and type(value) is not int:
                raise ValueError(f"{key} must be a whole number, found {describe(value)}")
            for part in value if isinstance(value, list) else [value]:
                _check_argument(key, part)
        for key in ("vocab",) if "vocab" in arguments else ("src_vocab", "tgt_vocab"):
            if type(arguments.get(key)) is not int or arguments[key] < 1:
                raise ValueError(f"{key} must be a whole number of at least 1, found {describe(arguments.get(key))}")
        return arguments


def _check_argument(key: str, value: Any) -> None:
    """Raise for a value that no model accepts, or a value that would need too much time or memory."""
    if not isinstance(value, (bool, int, float, str, type(None))):
        raise ValueError(
            f"{key} must be a number, a string, true, false, null or a list of these, found {describe(value)}"
        )
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{key} must be finite, found {value}")
    largest = 10_000 if key in SIZES else 2**31 - 1
    if isinstance(value, (int, float)) and not -(2**31) <= value <= largest:
        raise ValueError(f"{key} must be from {-(2**31)} to {largest}, found {describe(value)}")


class TaskRecord(Record):
    """Schema of `task.json`. The class of the task validates all keys except `task`."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    task: str = "strings"

    @model_validator(mode="before")
    @classmethod
    def _rename(cls, content: Any) -> Any:
        return with_new_names(content)


class Event(Record):
    """Schema of a line of `log.jsonl` or `timing.jsonl`. Additional keys are measurements."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    event: Annotated[str, Field(min_length=1)]
    epoch: Count = 0
    step: Count = 0


class OptimizerRecord(Record):
    """State of the optimizer, by parameter name."""

    state: dict[str, dict[str, Any]]
    param_groups: list[dict[str, Any]]


class ScheduleRecord(Record):
    learning_rate: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    previous: float | None = None
    stale: Count = 0  # number of validations since the last best score or the last reduction of the rate


class Position(BaseModel):
    """Position of a run: counts of epochs and updates, sums over the current epoch, and best scores."""

    model_config = ConfigDict(extra="forbid", strict=True)

    epoch: Count = 0
    update: Count = 0  # number of updates in the current epoch
    step: Count = 0  # number of updates in total
    loss: Annotated[float, Field(allow_inf_nan=False)] = 0.0  # sum of the loss over the epoch so far
    symbols: Count = 0  # number of target symbols in the epoch so far
    best_score: float = -math.inf
    best_loss: float = math.inf
    stale: Count = 0  # number of validations since the best score


class TrainingRecord(Record):
    """Schema of the content of `training.pt`, as `torch.load` returns it."""

    optimizer: OptimizerRecord
    schedule: ScheduleRecord
    position: Position
    processes: Annotated[int, Field(ge=1, lt=2**31)]
    log: Count  # size of the log in bytes
    timing: Count | None = None  # present only in checkpoints of earlier versions
    data: str


def read_record(path: Path, kind: type[R]) -> R:
    """Return the validated content of a JSON file in the run folder.

    Raises:
        InputError: If the file can't be read or does not match the schema. The message lists the errors.
    """
    return parse_record(without_mark(read_bytes(path, LARGEST)), kind, str(path))


def parse_record(blob: bytes, kind: type[R], name: str) -> R:
    """Parse and validate JSON; errors begin with `name`."""
    try:
        return kind.model_validate_json(blob)
    except ValidationError as error:
        raise InputError(f"{name}: {explain(error)}") from error


def check_record(content: Any, kind: type[R], name: str) -> R:
    """Validate values and return them as a record; errors begin with `name`."""
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise InputError(f"{name}: {explain(error)}") from error


def as_json(record: BaseModel) -> dict[str, Any]:
    """Return a record as a dictionary, without missing values."""
    return {key: value for key, value in record.model_dump(by_alias=True).items() if value is not None}


def explain(error: ValidationError) -> str:
    """Return a message with the first few errors, each with its path."""
    details = error.errors(include_url=False)
    if details[0]["type"] == "json_invalid":
        return f"not a JSON file: {details[0]['ctx']['error']}"
    texts = list(dict.fromkeys(_describe_error(detail) for detail in details))
    suffix = f"; and {len(texts) - MAX_ERRORS} more errors" if len(texts) > MAX_ERRORS else ""
    return "; ".join(texts[:MAX_ERRORS]) + suffix


def _describe_error(detail: ErrorDetails) -> str:
    if detail["type"] == "model_type" and not detail["loc"]:
        return f"expected a JSON object, found {describe(detail['input'])}"
    return f"{_path(detail['loc'])}: {''.join(describe_error(detail))}"


def _path(loc: Sequence[int | str]) -> str:
    """Return the path of an error in its file; long keys are shortened, and control characters are escaped."""
    text = ".".join(truncate(str(part), LONGEST_KEY) for part in loc)
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text) or "the file"
