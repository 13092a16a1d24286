"""The requests of the API: the fields of their JSON, and the values that go together."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tsallis.errors import describe
from tsallis.search_budget import EXPANSIONS, PENALTY
from tsallis.serve.limits import MOST_HEADS, Limits, Refusal
from tsallis.training.schema import explain

Positive = Annotated[int, Field(ge=1)]  # how many at most, the server's limits say
Length = Annotated[int, Field(ge=0)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
CHOICES = 10  # continuations, or symbols of a step, that are listed by default, as far as the server's limits allow

# The searches that a value of a request is for.
SEARCHES = {
    "nbest": ("beam", "exact", "all"),
    "beam": ("beam",),
    "competing_ends": ("beam",),
    "budget": ("exact", "all"),
    "time": ("exact", "all"),
    "mass": ("exact", "all"),
    "draws": ("sample",),
    "seed": ("sample",),
    "min_length": ("beam", "exact", "all"),
    "length_penalty": ("beam", "exact", "all"),
    "tree": ("beam", "exact", "all"),
}


class Request(BaseModel):
    """The common base of requests: one of the runs, and the language of its lines where it knows several."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    run: str | None = None
    language: str | None = None

    def check(self, limits: Limits) -> None:
        """Refuse values that go beyond the server's limits, or say nothing beside each other.

        Raises:
            Refusal: the first of them.
        """
        for text in self.sources_of():
            check_line(text, "a source", limits)

    def sources_of(self) -> list[str]:
        """Return the lines that the request holds."""
        return []


class SourceRequest(Request):
    """A request about one source."""

    source: str

    def sources_of(self) -> list[str]:
        return [self.source]


class TranslateRequest(Request):
    """A search for the outputs of some sources, or draws."""

    sources: Annotated[list[str], Field(min_length=1)]
    search: Literal["beam", "exact", "all", "sample"] = "beam"
    nbest: Positive | None = None
    beam: Positive | None = None
    competing_ends: bool | None = None
    budget: Annotated[int, Field(ge=1, le=EXPANSIONS)] | None = None
    time: Annotated[Finite, Field(ge=0)] | None = None
    mass: Annotated[Finite, Field(gt=0, lt=1)] | None = None
    draws: Positive | None = None
    seed: Annotated[int, Field(ge=0, le=2**62)] | None = None
    prefix: str | None = None
    min_length: Length | None = None
    max_length: Positive | None = None
    length_penalty: Annotated[Finite, Field(ge=0, le=PENALTY)] | None = None
    tree: bool = False

    def sources_of(self) -> list[str]:
        return self.sources

    def check(self, limits: Limits) -> None:
        if len(self.sources) > limits.sources:
            raise Refusal(400, f"sources: at most {limits.sources}, found {len(self.sources)}")
        super().check(limits)
        for name, searches in SEARCHES.items():
            unset = type(self).model_fields[name].default
            if getattr(self, name) != unset and self.search not in searches:
                raise Refusal(400, f"{name}: is for the search {' or '.join(searches)}, not for {self.search}")
        if self.mass is not None and self.search == "exact" and (self.nbest or 1) == 1:
            raise Refusal(400, "mass: is for lists: exact ends once its output is proved (nbest, or the search all)")
        for name in ("nbest", "beam", "draws"):
            check_most(name, getattr(self, name), limits.outputs)
        for name in ("min_length", "max_length"):
            check_most(name, getattr(self, name), limits.longest)
        if self.prefix is not None:
            check_line(self.prefix, "the prefix", limits)
        if self.min_length is not None and self.max_length is not None and self.min_length > self.max_length:
            raise Refusal(400, f"min_length: {self.min_length} is above max_length {self.max_length}")

    def options(self) -> tuple[tuple[str, Any], ...]:
        """Return all but the sources: requests in which these are equal can be searched together."""
        return tuple(sorted(self.model_dump(exclude={"sources"}).items()))


class SuggestRequest(SourceRequest):
    """A request for the continuations of the beginning of an output."""

    typed: str = ""
    nbest: Positive | None = None  # CHOICES

    def check(self, limits: Limits) -> None:
        super().check(limits)
        check_line(self.typed, "what is typed", limits)
        check_most("nbest", self.nbest, limits.outputs)


class OutputRequest(SourceRequest):
    """A request about a source and an output of it, as text or as symbols; by default the best of the run's beam."""

    output: str | None = None
    tokens: list[int] | None = None

    def check(self, limits: Limits) -> None:
        super().check(limits)
        if self.output is not None and self.tokens is not None:
            raise Refusal(400, "output: is the same as tokens, both were sent: one of the two")
        if self.output is not None:
            check_line(self.output, "an output", limits)
        check_most("tokens", len(self.tokens or ()), limits.longest)


class StepsRequest(OutputRequest):
    """The symbols that are possible at each step of an output."""

    nbest: Positive | None = None  # CHOICES

    def check(self, limits: Limits) -> None:
        super().check(limits)
        check_most("nbest", self.nbest, limits.outputs)


class AttentionRequest(OutputRequest):
    """The weights of heads over a source and an output."""

    heads: Annotated[list[str], Field(min_length=1, max_length=MOST_HEADS)] | None = None


# By the end of their address, which is also the method of a run that answers them.
QUESTIONS: dict[str, type[Request]] = {
    "translate": TranslateRequest,
    "suggest": SuggestRequest,
    "steps": StepsRequest,
    "attention": AttentionRequest,
}
Schema = TypeVar("Schema", bound=Request)


def parse_request(body: bytes, schema: type[Schema], limits: Limits) -> Schema:
    """Return a request from the bytes that hold it as JSON.

    Raises:
        Refusal: what is no JSON, or not what the schema says; with the first mistakes, each with its path.
    """
    try:
        request = schema.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        if first["type"] == "json_invalid":
            raise Refusal(400, f"the request is no JSON: {first['ctx']['error']}") from None
        raise Refusal(400, explain(error)) from None
    request.check(limits)
    return request


def check_line(text: str, what: str, limits: Limits) -> None:
    """Refuse a text that is too long, or more than a line.

    Raises:
        Refusal: such a text.
    """
    if len(text) > limits.characters:
        raise Refusal(400, f"{what} has at most {limits.characters} characters, found {len(text)}")
    if "\n" in text or "\r" in text:
        raise Refusal(400, f"{what} is one line, found a line break")
    if "\0" in text:
        raise Refusal(400, f"{what} is text, found a null character")


def check_most(name: str, value: int | None, most: int) -> None:
    """Refuse a number that is too large.

    Raises:
        Refusal: such a number.
    """
    if value is not None and value > most:
        raise Refusal(400, f"{name}: at most {most}, found {describe(value)}")
