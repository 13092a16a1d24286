"""The limits of a request, and the error of one that asks for more or is refused."""

from __future__ import annotations

from dataclasses import dataclass

MOST_HEADS = 16  # whose weights a request may ask for, and an answer holds


@dataclass(frozen=True)
class Limits:
    """The limits of a server.

    Args:
        body: bytes of a request.
        symbols: of a source, or of an output.
        sources: of a request, and of requests that are searched together.
        outputs: hypotheses, prefixes of a beam, draws or choices that a request may ask for.
        seconds: of work on a request.
        patience: seconds that a request waits for the model, or for the rest of its body.

    Example:
        >>> Limits(symbols=100).longest
        220
    """

    body: int = 1 << 16
    symbols: int = 256
    sources: int = 32
    outputs: int = 100
    seconds: float = 10.0
    patience: float = 30.0

    @property
    def longest(self) -> int:
        """Symbols of an output that a request may ask for: as many as a search by itself goes to."""
        return 2 * self.symbols + 20

    @property
    def characters(self) -> int:
        """Characters of a line that a request may hold."""
        return 8 * self.symbols


class Refusal(Exception):
    """A request that is not answered.

    Args:
        status: of HTTP.
        message: what was wrong and what would be right, in one line.

    Example:
        >>> Refusal(404, "there is no run 'verbs'").status
        404
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message
