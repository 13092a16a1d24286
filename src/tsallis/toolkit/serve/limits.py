"""The limits of a request, and the error of one that asks for more or is refused."""

from __future__ import annotations

from dataclasses import dataclass

MOST_HEADS = 16  # whose weights a request may ask for, and an answer holds


@dataclass(frozen=True)
class Limits:
    """The limits of a server.

    Args:
        body: bytes of a request.
        characters: of a source, or of an output.
        symbols: of a source, or of an output.
        sources: of a request, and of requests that are searched together.
        outputs: hypotheses, prefixes of a beam, draws or choices that a request may ask for.
        seconds: of work on a request.
        waiting: requests that wait for the model.
        patience: seconds that a request waits for the model, or for the rest of its body.

    Example:
        >>> Limits(symbols=100).longest
        220
    """

    body: int = 1 << 16
    characters: int = 2000
    symbols: int = 256
    sources: int = 32
    outputs: int = 100
    seconds: float = 10.0
    waiting: int = 128
    patience: float = 30.0

    @property
    def longest(self) -> int:
        """Symbols of an output that a request may ask for: as many as a search by itself goes to."""
        return 2 * self.symbols + 20


class Refusal(Exception):
    """A request that is not answered.

    Args:
        status: of HTTP.
        message: what was wrong and what would be right, in one line.
        retry_after: seconds after which the same request may be answered; None: it would be refused again.

    Example:
        >>> Refusal(404, "there is no run 'verbs'").status
        404
    """

    def __init__(self, status: int, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.retry_after = status, message, retry_after
