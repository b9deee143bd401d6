"""The demo's dashboard: served on a free port of this machine while the demo runs, to look and not to touch."""

from collections.abc import Iterator
from contextlib import closing, contextmanager

from holdfast.app import Holdfast
from holdfast.domain.errors import HoldfastError
from holdfast.server import serve

_STOP_SECONDS = 2.0


@contextmanager
def window(url: str) -> Iterator[str | None]:
    """Serve the dashboard of a store and give its address; None where the server is not installed or cannot listen.

    It only shows: a job that was cancelled by hand would break the proof.
    """
    with closing(Holdfast(url)) as app:
        try:
            serving = serve(app, port=0, auth=False, read_only=True)
        except HoldfastError:
            yield None
            return
        try:
            yield serving.address
        finally:
            serving.stop()
            if not serving.join(_STOP_SECONDS):
                serving.stop()
                serving.join(_STOP_SECONDS)
