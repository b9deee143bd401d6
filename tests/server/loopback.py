"""A real server on a loopback port, in a thread of the test."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from holdfast import Holdfast
from holdfast.server import serve


@contextmanager
def serving(app: Holdfast, *, port: int = 0, **options: Any) -> Iterator[str]:
    """Serve an application's jobs; gives the server's address. It is gone at the end, or the test fails."""
    server = serve(app, port=port, **{"dashboard": False, **options})
    try:
        yield server.address
    finally:
        server.stop()
        assert server.join(20), "the server did not stop"
