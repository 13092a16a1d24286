"""The requests of the API: JSON fields and checks of their values."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, create_model

from tsallis.errors import describe
from tsallis.search.options import EXPANSIONS, OPTIONS, PROOF_OPTIONS, SearchOptions
from tsallis.toolkit.config import option_fields
from tsallis.toolkit.inference.proofs import AT_LEAST, Rule
from tsallis.toolkit.serve.limits import MAX_HEADS, Limits, Refusal
from tsallis.toolkit.training.schema import explain

Text = Annotated[str, AfterValidator(lambda text: text.removeprefix("\ufeff"))]  # without a byte order mark
Positive = Annotated[int, Field(ge=1)]  # the server's limits set the maximum


class Request(BaseModel):
    """Base class of requests, with the run and, for multilingual runs, the language of the lines."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    run: str | None = None
    language: str | None = None

    def check(self, limits: Limits) -> None:
        """Raise if values exceed the server's limits or contradict each other.

        Raises:
            Refusal: If a value exceeds a limit.
            OptionError: If options contradict each other.
        """


class SourceRequest(Request):
    """Base class of requests about one source."""

    source: Text

    def check(self, limits: Limits) -> None:
        check_line(self.source, "a source", limits)


class SourcesRequest(Request):
    """Base class of requests about several sources."""

    sources: list[Text]

    def check(self, limits: Limits) -> None:
        check_count("sources", self.sources, limits.sources)
        for text in self.sources:
            check_line(text, "a source", limits)


class SearchRequest(SourcesRequest):
    """Request to search or sample outputs of sources. `TranslateRequest` adds the fields of `SearchOptions`."""

    tree: bool = False

    @property
    def options(self) -> SearchOptions:
        """Return the options of the search. An empty `prefix` counts as not given.

        Raises:
            OptionError: If options contradict each other.
        """
        values = {name: getattr(self, name) for name in OPTIONS}
        return SearchOptions(**{**values, "prefix": values["prefix"] or None})

    def check(self, limits: Limits) -> None:
        super().check(limits)
        options = self.options
        if self.tree and options.mode == "sample":
            raise Refusal(400, "tree can't be used with mode sample")
        check_maximums(options, limits)
        for name in ("prefix", "pattern"):
            if getattr(options, name) is not None:
                check_line(getattr(options, name), f"the {name}", limits)

    @property
    def key(self) -> Hashable:
        """Return all values except the sources; requests with equal keys can be searched together."""
        return self.options, self.tree, self.language


TranslateRequest = create_model("TranslateRequest", __base__=SearchRequest, **option_fields(vars(SearchOptions())))


class RuleRequest(SourcesRequest):
    """Request for proofs of a rule about the outputs of sources. `ProveRequest` adds the limits of the search."""

    never: str | list[str] | None = None
    always: str | list[str] | None = None
    at_least: float = AT_LEAST

    @property
    def rule(self) -> Rule:
        """Return the rule.

        Raises:
            OptionError: If there is not exactly one pattern, or a value is out of range.
        """
        limits = SearchOptions(mode="all", **{name: getattr(self, name) for name in PROOF_OPTIONS})
        return Rule.of(self.never, self.always, self.at_least, limits)

    def check(self, limits: Limits) -> None:
        super().check(limits)
        rule = self.rule
        for text in (rule.pattern,) if isinstance(rule.pattern, str) else rule.pattern:
            check_line(text, "a pattern", limits)
        check_maximums(rule.options, limits)


ProveRequest = create_model("ProveRequest", __base__=RuleRequest, **option_fields(dict.fromkeys(PROOF_OPTIONS)))


class SuggestRequest(SourceRequest):
    """Request for the continuations of a partly typed output."""

    typed: Text = ""
    n_best: Positive | None = None  # default: LISTED, or the server's limit if that is lower

    def check(self, limits: Limits) -> None:
        super().check(limits)
        check_line(self.typed, "the typed text", limits)
        check_maximum("n_best", self.n_best, limits.outputs)


class OutputRequest(SourceRequest):
    """Request about a source and an output.

    The output is a text or a list of symbols. By default, it is the best output of a search.
    """

    output: Text | None = None
    tokens: list[int] | None = None

    def check(self, limits: Limits) -> None:
        super().check(limits)
        if self.output is not None and self.tokens is not None:
            raise Refusal(400, "send either output or tokens, not both")
        if self.output is not None:
            check_line(self.output, "an output", limits)
        check_maximum("the number of tokens", len(self.tokens or ()), limits.longest)


class StepsRequest(OutputRequest):
    """Request for the possible symbols at each step of an output."""

    n_best: Positive | None = None  # default: LISTED, or the server's limit if that is lower

    def check(self, limits: Limits) -> None:
        super().check(limits)
        check_maximum("n_best", self.n_best, limits.outputs)


class AttentionRequest(OutputRequest):
    """Request for the attention weights of heads over a source and an output."""

    heads: list[str] | None = None

    def check(self, limits: Limits) -> None:
        super().check(limits)
        if self.heads is not None:
            check_count("heads", self.heads, MAX_HEADS)


# Each key is the last part of a URL, and the name of the method of `ServedRun` that answers the request.
QUESTIONS: dict[str, type[Request]] = {
    "translate": TranslateRequest,
    "prove": ProveRequest,
    "suggest": SuggestRequest,
    "steps": StepsRequest,
    "attention": AttentionRequest,
}
Schema = TypeVar("Schema", bound=Request)


def parse_request(body: bytes, schema: type[Schema], limits: Limits) -> Schema:
    """Parse and check a JSON request.

    Raises:
        Refusal: If the request is not JSON, doesn't match the schema, or exceeds the limits.
    """
    try:
        request = schema.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        if first["type"] == "json_invalid":
            raise Refusal(400, f"the request is not JSON: {first['ctx']['error']}") from None
        raise Refusal(400, explain(error)) from None
    json.loads(body, object_pairs_hook=_refuse_repeated, parse_int=str)  # pydantic keeps the last of equal keys
    request.check(limits)
    return request


def _refuse_repeated(fields: Sequence[tuple[str, object]]) -> None:
    """Raise if an object has two fields of the same name.

    Raises:
        Refusal: If a name is repeated.
    """
    counts = Counter(name for name, _ in fields)
    if (repeated := next((name for name, count in counts.items() if count > 1), None)) is not None:
        raise Refusal(400, f"{repeated} must occur once, got {counts[repeated]} values")


def check_line(text: str, what: str, limits: Limits) -> None:
    """Raise if a text is too long or not a single line.

    Raises:
        Refusal: If the text is too long, or has a line break or null character.
    """
    if len(text) > limits.characters:
        raise Refusal(400, f"{what} must have at most {limits.characters} characters, got {len(text)}")
    if "\n" in text or "\r" in text:
        raise Refusal(400, f"{what} must be one line, got a line break")
    if "\0" in text:
        raise Refusal(400, f"{what} must not contain a null character")


def check_count(name: str, items: Sequence[str], maximum: int) -> None:
    """Raise unless a list has from one item to `maximum` items.

    Raises:
        Refusal: If the list is empty or too long.
    """
    if not items:
        raise Refusal(400, f"{name} must not be empty, got []")
    check_maximum(f"the number of {name}", len(items), maximum)


def check_maximums(options: SearchOptions, limits: Limits) -> None:
    """Raise if an option exceeds a limit.

    Raises:
        Refusal: If a number is too large.
    """
    maximums: dict[str, float] = dict.fromkeys(("n_best", "beam_size", "num_samples"), limits.outputs)
    maximums |= {"min_length": limits.longest, "max_length": limits.longest, "budget": EXPANSIONS}
    maximums |= {"time_limit": limits.seconds}
    for name, maximum in maximums.items():
        check_maximum(name, getattr(options, name), maximum)


def check_maximum(name: str, value: float | None, maximum: float) -> None:
    """Raise if a number exceeds a limit.

    Raises:
        Refusal: If the number is too large.
    """
    if value is not None and value > maximum:
        raise Refusal(400, f"{name} must be at most {maximum:g}, got {describe(value)}")
