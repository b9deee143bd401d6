"""How much a server takes from one caller."""

from dataclasses import dataclass

from holdfast.domain.codec import MAX_BYTES, MAX_RECORD


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one server. Times are in seconds."""

    body: int = MAX_RECORD
    """The largest body of a request, in bytes; refused before it is read."""
    payload: int = MAX_BYTES
    """The largest payload, result or signal of one job, in bytes of JSON."""
    patience: float = 30.0
    """How long a caller may take to send a body."""
    rate: float = 500.0
    """The requests per second that one token (or one address without a valid one) may make in the long run."""
    burst: float = 1_000.0
    """How many requests it may make at once."""
