"""Define errors for invalid input; each message is one line with the value and the valid values."""

from __future__ import annotations

import math
import operator
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import contextmanager
from numbers import Real
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST_MESSAGE = 2000  # maximum number of characters, including the location
LONGEST_VALUE = 60  # maximum number of characters of a value in a message
LONGEST_LINE = 40  # maximum number of characters of an input line in a message
NO_MEMORY = ("can't allocate memory", "out of memory", "bad_alloc", "not enough memory", "storage size calculation")


class InputError(ValueError):
    """Raised for a file, a setting or an argument that cannot be used.

    The message is one line: the location (file and line, or the path of a setting), the expected value, and the found
    value. The commands print it without a traceback and exit with status 2.

    >>> raise InputError("verbs.tsv:3: expected source<TAB>target<TAB>features, found 1 column")
    Traceback (most recent call last):
    tsallis.errors.InputError: verbs.tsv:3: expected source<TAB>target<TAB>features, found 1 column
    """


class OptionError(InputError):
    """Raised for an option that cannot be used; each interface can spell the option's name in its style.

    The text of the error contains option names as Python and the JSON API spell them. Commands print `spelled(flag)`.

    Args:
        message: Function that returns the message; its argument is a function that spells the name of an option.
        where: Start of the message, such as the folder of a run.

    >>> error = OptionError(lambda spell: f"{spell('beam_size')} must be at least 1, got 0", "runs/verbs")
    >>> print(error)
    runs/verbs: beam_size must be at least 1, got 0
    >>> error.spelled(lambda name: f"--{name.replace('_', '-')}")
    'runs/verbs: --beam-size must be at least 1, got 0'
    """

    def __init__(self, message: Callable[[Callable[[str], str]], str], where: object = None) -> None:
        self.message = message
        self.where = where
        super().__init__(self.spelled(str))

    @property
    def reason(self) -> str:
        """Return the message without its location."""
        return self.message(str)

    def spelled(self, spell: Callable[[str], str]) -> str:
        """Return the message, with each option name written as `spell(name)`."""
        return self.message(spell) if self.where is None else f"{self.where}: {self.message(spell)}"


class IgnoredInputWarning(UserWarning):
    """Warning that a part of a file was ignored, such as blank lines; commands print it as a note."""


def one_line(message: str) -> str:
    r"""Return a message as one line of at most 2,000 characters, without control characters.

    >>> print(one_line("no\nkey '\x1b[2J'"))
    no key '\x1b[2J'
    """
    # Do not convert text that is cut off anyway.
    text = "".join(map(_visible, " ".join(message[: 8 * LONGEST_MESSAGE].split("\n"))))
    return truncate(text, LONGEST_MESSAGE)


def _visible(character: str) -> str:
    return character if character.isprintable() else repr(character)[1:-1]


def without_controls(text: str) -> str:
    r"""Escape control characters and lone surrogates in an output, but keep joiners and similar characters.

    >>> print(without_controls("na\u200dme\x1b[2J"))
    na‍me\x1b[2J
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(repr(c)[1:-1] if unicodedata.category(c) in ("Cc", "Cs") else c for c in text)


def truncate(text: str, longest: int) -> str:
    """Cut a text to at most `longest` characters; if it is cut, it ends in three dots.

    >>> truncate("a lovely film", 8)
    'a lov...'
    """
    return text if len(text) <= longest else text[: longest - 3] + "..."


def shorten(line: str) -> str:
    """Quote a line of input for a message, and cut it if it is long.

    >>> shorten("a lovely film"), shorten("a" * 50)
    ("'a lovely film'", "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa...'")
    """
    return repr(truncate(line, LONGEST_LINE))


def describe(value: Any) -> str:
    """Return the start of a value's representation, at a cost that does not grow with the value.

    >>> describe("none"), describe(1 << 5000), describe([[[0]] * 1000] * 1000)
    ("'none'", 'an integer of 5001 bits', '[[[...], [...], [...], [...], ...], [[...], [...], [...],...')
    """
    return truncate(_describe(value, 3), LONGEST_VALUE)


def _describe(value: Any, levels: int) -> str:
    if isinstance(value, str | bytes):
        return repr(value if len(value) <= LONGEST_VALUE else value[:LONGEST_VALUE])
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    for kind, brackets in ((Mapping, "{}"), (tuple, "()"), (Sequence, "[]"), (Set, "{}")):
        if isinstance(value, kind):
            return brackets[0] + ", ".join(_describe_items(value, levels - 1)) + brackets[1]
    return repr(value)


def _describe_items(values: Any, levels: int) -> Iterator[str]:
    """Yield descriptions of the first few parts of a container."""
    for number, part in enumerate(values):
        if number == 4 or not levels:
            yield "..."
            return
        described = _describe(part, levels)
        yield f"{described}: {_describe(values[part], levels)}" if isinstance(values, Mapping) else described


def check_integer(name: str, value: Any, minimum: int, maximum: int | None = None) -> int:
    """Return a value as an integer within a range.

    Args:
        name: Name of the option or argument.
        value: An `int`, or an object that Python accepts as an index.
        minimum, maximum: Smallest and largest valid value; None: no upper limit.

    Raises:
        TypeError: The value is not an integer, for example True or 2.0.
        ValueError: The integer is outside the range.

    >>> check_integer("beam_size", 0, 1)
    Traceback (most recent call last):
    ValueError: beam_size must be at least 1, got 0
    """
    number = _as_index(value)
    if fault := integer_error(value, minimum, maximum):
        raise (TypeError if number is None else ValueError)(f"{name} {fault}")
    assert number is not None
    return number


def integer_error(value: Any, minimum: int, maximum: int | None = None) -> str:
    """Describe why a value is not an integer in a range; return an empty text if the value is valid.

    >>> integer_error(0, 1)
    'must be at least 1, got 0'
    """
    number = _as_index(value)
    span = f"at least {minimum}" if maximum is None else f"a whole number from {minimum} to {maximum}"
    if number is None:
        kind = "a whole number" if maximum is None else span
        return f"must be {kind}, got {describe(value)}"
    inside = number >= minimum and (maximum is None or number <= maximum)
    return "" if inside else f"must be {span}, got {describe(number)}"


def _as_index(value: Any) -> int | None:
    """Return a value as an integer, or None if it is not an integer."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def check_real(name: str, value: Any, minimum: float = 0, maximum: float = math.inf, *, inside: bool = False) -> float:
    """Return a value as a finite number within a range.

    Args:
        name: Name of the option or argument.
        value: A number.
        minimum, maximum: Limits of the valid range.
        inside: Whether the limits themselves are invalid.

    Raises:
        TypeError: The value is not a number, for example True or a text.
        ValueError: The number is outside the range or not finite.

    >>> check_real("mass", 1, 0, 1, inside=True)
    Traceback (most recent call last):
    ValueError: mass must be above 0 and below 1, got 1
    """
    if fault := real_error(value, minimum, maximum, inside=inside):
        is_number = isinstance(value, Real) and not isinstance(value, bool)
        raise (ValueError if is_number else TypeError)(f"{name} {fault}")
    return float(value)


def real_error(value: Any, minimum: float = 0, maximum: float = math.inf, *, inside: bool = False) -> str:
    """Describe why a value is not a finite number in a range; return an empty text if the value is valid.

    >>> real_error(1, 0, 1, inside=True)
    'must be above 0 and below 1, got 1'
    """
    if not isinstance(value, Real) or isinstance(value, bool):
        return f"must be a number, got {describe(value)}"
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if math.isfinite(number) and (minimum < number < maximum if inside else minimum <= number <= maximum):
        return ""
    if maximum == math.inf:
        span = f"{'above' if inside else 'at least'} {minimum:g} and finite"
    else:
        span = f"above {minimum:g} and below {maximum:g}" if inside else f"from {minimum:g} to {maximum:g}"
    return f"must be {span}, got {describe(value)}"


def choice_error(value: Any, choices: Sequence[str]) -> str:
    """Describe why a value is not one of the choices; return an empty text if the value is valid."""
    if isinstance(value, str) and value in choices:
        return ""
    *others, last = map(repr, choices)
    return f"must be {', '.join(others)} or {last}, got {describe(value)}"


def check_one_of(name: str, value: Any, choices: Iterable[str]) -> None:
    """Raise if a value is not one of the choices.

    Example:
        >>> check_one_of("scorer", "dot", ("bilinear", "additive"))
        Traceback (most recent call last):
            ...
        ValueError: scorer must be one of bilinear, additive, got 'dot'
    """
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


@contextmanager
def memory_for(what: str) -> Iterator[None]:
    """Convert a failed allocation to an :class:`InputError` that names what does not fit.

    >>> with memory_for("the model"):
    ...     raise MemoryError
    Traceback (most recent call last):
    tsallis.errors.InputError: the model does not fit into memory
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        text = str(error)
        if not isinstance(error, MemoryError) and not any(words in text for words in NO_MEMORY):
            raise
        detail = f": {text}" if text else ""
        raise InputError(f"{what} does not fit into memory{detail}") from error
