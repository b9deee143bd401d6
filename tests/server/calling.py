"""A real server on a port of this machine, and a caller of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from holdfast import Holdfast
from holdfast.server import serve


@contextmanager
def called(app: Holdfast, token: str | None = None, **options: Any) -> Iterator[httpx.Client]:
    """Serve an application, and give a caller."""
    serving = serve(app, port=0, **{"dashboard": False, **options})
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        with httpx.Client(base_url=serving.address, headers=headers, timeout=40) as caller:
            yield caller
    finally:
        serving.stop()
        assert serving.join(15), "the server did not stop"


def problem(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """Check that a request was refused as it should be, in one sentence, and give what was said."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    said: dict[str, Any] = answer.json()
    assert (said["status"], said["code"]) == (status, code)
    assert said["detail"].endswith(".")
    return said
