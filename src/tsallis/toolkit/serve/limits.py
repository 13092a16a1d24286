"""The limits of requests, and the error for rejected requests."""

from __future__ import annotations

from dataclasses import dataclass

MAX_HEADS = 16  # largest number of heads in a request for weights


@dataclass(frozen=True)
class Limits:
    """Limits of a server.

    Args:
        body: Maximum number of bytes of a request.
        symbols: Maximum number of symbols of a source or output.
        sources: Maximum number of sources in a request, and in a batch of requests.
        outputs: Maximum number of hypotheses, beam prefixes, draws or choices in a request.
        seconds: Time limit of the work on a request, in seconds.
        patience: Maximum time to wait for the model, or for the rest of a request's body, in seconds.

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
        """Return the maximum output length of a request, which is the default limit of a search."""
        return 2 * self.symbols + 20

    @property
    def characters(self) -> int:
        """Return the maximum number of characters per line of a request."""
        return 8 * self.symbols


class Refusal(Exception):
    """Error for a rejected request.

    Args:
        status: HTTP status.
        message: One line that names the error and the valid values.

    Example:
        >>> Refusal(404, "there is no run 'verbs'").status
        404
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message
