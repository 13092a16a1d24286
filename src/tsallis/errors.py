"""The errors a user can cause: each says what was wrong and what would be right, in one line."""

from __future__ import annotations

import math
import operator
import unicodedata
from collections.abc import Mapping, Sequence, Set
from contextlib import contextmanager
from numbers import Real
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST_MESSAGE = 2000  # characters, what stands before it included
LONGEST_VALUE = 60  # characters of a value in a message
LONGEST_LINE = 40  # characters of a line of input in a message
NO_MEMORY = ("can't allocate memory", "out of memory", "bad_alloc", "not enough memory", "storage size calculation")


class InputError(ValueError):
    """A file, a setting or an argument that cannot be used as it is.

    The message is one line and complete: where it is (file and line, or the path of a setting), what was found,
    and what was expected. The commands print it without a traceback and leave with exit status 2.

    >>> raise InputError("verbs.tsv:3: expected lemma<TAB>form<TAB>tags, found 1 column")
    Traceback (most recent call last):
    tsallis.errors.InputError: verbs.tsv:3: expected lemma<TAB>form<TAB>tags, found 1 column
    """


class IgnoredInputWarning(UserWarning):
    """A part of a file was ignored, such as blank lines. The commands print it as a note on standard error."""


def one_line(message: str) -> str:
    r"""Return a message as one line of at most 2,000 characters that a terminal shows as it is.

    >>> print(one_line("no\nkey '\x1b[2J'"))
    no key '\x1b[2J'
    """
    # Nothing of what is cut away anyway is looked at.
    text = "".join(map(_visible, " ".join(message[: 8 * LONGEST_MESSAGE].split("\n"))))
    return truncate(text, LONGEST_MESSAGE)


def _visible(character: str) -> str:
    return character if character.isprintable() else repr(character)[1:-1]


def without_controls(text: str) -> str:
    r"""Return an output with its control characters and lone surrogates escaped; joiners and the like stay.

    >>> print(without_controls("na\u200dme\x1b[2J"))
    na‍me\x1b[2J
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(repr(c)[1:-1] if unicodedata.category(c) in ("Cc", "Cs") else c for c in text)


def truncate(text: str, longest: int) -> str:
    """Return a text as it is, or the beginning of one that is longer, with three dots for the rest.

    >>> truncate("a lovely film", 8)
    'a lov...'
    """
    return text if len(text) <= longest else text[: longest - 3] + "..."


def shorten(line: str) -> str:
    """Return a line of input as a message repeats it: quoted, and its beginning alone if it is long.

    >>> shorten("a lovely film"), shorten("a" * 50)
    ("'a lovely film'", "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa...'")
    """
    return repr(truncate(line, LONGEST_LINE))


def describe(value: Any) -> str:
    """Return the beginning of a value's representation, at a cost that does not grow with the value.

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
            return brackets[0] + ", ".join(_parts(value, levels - 1)) + brackets[1]
    return repr(value)


def _parts(values: Any, levels: int) -> Iterator[str]:
    """Yield the first few parts of a container."""
    for number, part in enumerate(values):
        if number == 4 or not levels:
            yield "..."
            return
        described = _describe(part, levels)
        yield f"{described}: {_describe(values[part], levels)}" if isinstance(values, Mapping) else described


def check_whole(name: str, value: Any, least: int, most: int | None = None) -> int:
    """Return an option's value as an integer within a range.

    Args:
        name: of the option.
        value: an `int`, or what Python takes for an index.
        least, most: the range; None: without an end.

    Raises:
        TypeError: anything but an integer, such as True or 2.0.
        ValueError: an integer outside the range.

    >>> check_whole("beam_size", 0, 1)
    Traceback (most recent call last):
    ValueError: beam_size must be at least 1, got 0
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    span = f"at least {least}" if most is None else f"a whole number from {least} to {most}"
    if number is None:
        kind = "a whole number" if most is None else span
        raise TypeError(f"{name} must be {kind}, got {describe(value)}")
    if number < least or (most is not None and number > most):
        raise ValueError(f"{name} must be {span}, got {describe(number)}")
    return number


def check_real(name: str, value: Any, least: float = 0, most: float = math.inf, *, inside: bool = False) -> float:
    """Return an option's value as a finite number within a range.

    Args:
        name: of the option.
        value: a number.
        least, most: the range.
        inside: whether its two ends are outside.

    Raises:
        TypeError: anything but a number, such as True or a text.
        ValueError: a number outside the range, or one that is not finite.

    >>> check_real("mass", 1, 0, 1, inside=True)
    Traceback (most recent call last):
    ValueError: mass must be above 0 and below 1, got 1
    """
    if not isinstance(value, Real) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number, got {describe(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if math.isfinite(number) and (least < number < most if inside else least <= number <= most):
        return number
    if most == math.inf:
        span = f"{'above' if inside else 'at least'} {least:g} and finite"
    else:
        span = f"above {least:g} and below {most:g}" if inside else f"from {least:g} to {most:g}"
    raise ValueError(f"{name} must be {span}, got {describe(value)}")


@contextmanager
def memory_for(what: str) -> Iterator[None]:
    """Make a failed allocation an :class:`InputError` that says what does not fit.

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
