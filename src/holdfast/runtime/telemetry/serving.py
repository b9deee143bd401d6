"""Where metrics are served: a small HTTP server on a thread of its own, and the way numbers take to it.

Under `--processes`, each worker process writes its totals down a pipe once a second, and the parent adds them up. What
a process had counted when it died stays in the sum, so counters never go back; only its last second may be missing.
"""

import json
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer

from holdfast.domain.errors import BadInput, HoldfastError
from holdfast.runtime.telemetry.tally import NOTHING, Totals, counters, from_json, together

REPORT = 1.0
"""Seconds between two reports of a child."""
_PATIENCE = 5.0


class Server(ThreadingTCPServer):
    """Takes a thread per request, and is silent about clients that hang up."""

    allow_reuse_address = True
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Leave it: a scrape that failed is the scraper's to tell of."""


def serve(host: str, port: int, totals: Callable[[], Totals]) -> Server:
    """Serve metrics from a thread, for as long as the process lives."""
    try:
        from holdfast.runtime.telemetry.exposition import Exposition
    except ModuleNotFoundError as error:
        msg = f"Metrics need {error.name}; install it with: pip install 'holdfast[metrics]'."
        raise BadInput(msg) from error

    exposition = Exposition(totals)

    class Handler(BaseHTTPRequestHandler):
        """Answers to GET /metrics, and to nothing else."""

        timeout = _PATIENCE
        server_version = "holdfast"
        sys_version = ""

        def do_GET(self) -> None:
            """Show the metrics."""
            if self.path.partition("?")[0] != "/metrics":
                self.send_error(404, "Only /metrics is here")
                return
            body = exposition.text()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is http.server's
            """Say nothing of each request."""

    try:
        server = Server((host, port), Handler)
    except (OSError, OverflowError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "there is no such address"
        msg = f"Metrics cannot be served on {host}:{port}: {why}; choose another address with --metrics."
        raise HoldfastError(msg) from error
    threading.Thread(target=server.serve_forever, name="holdfast-metrics", daemon=True).start()
    return server


class Reporter:
    """Writes a process's totals down a pipe, until it ends or nobody reads them any more."""

    def __init__(self, fd: int, totals: Callable[[], Totals]) -> None:
        os.set_inheritable(fd, False)
        self._fd = fd
        self._totals = totals
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._live, name="holdfast-report", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Write the last totals."""
        self._ended.set()
        self._thread.join(REPORT)

    def _live(self) -> None:
        with suppress(OSError), os.fdopen(self._fd, "wb") as pipe:
            while True:
                last = self._ended.wait(REPORT)
                pipe.write(json.dumps(self._totals().as_json()).encode() + b"\n")
                pipe.flush()
                if last:
                    return


class Gathering:
    """Adds up what child processes report."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._living: dict[int, Totals] = {}
        self._ended = NOTHING

    def pipe(self) -> int:
        """Open a pipe for one more child and give the end that it writes to, which is then to be closed here."""
        reader, writer = os.pipe()
        threading.Thread(target=self._read, args=(reader,), name="holdfast-gather", daemon=True).start()
        return writer

    def totals(self) -> Totals:
        """Give what all children have counted, those that have ended included, and how the others are."""
        with self._lock:
            return together([self._ended, *self._living.values()])

    def _read(self, reader: int) -> None:
        with os.fdopen(reader, "rb") as pipe:
            for line in pipe:
                with suppress(ValueError):  # a child died while it wrote
                    totals = from_json(json.loads(line))
                    with self._lock:
                        self._living[reader] = totals
            with self._lock:
                self._ended = together([self._ended, counters(self._living.pop(reader, NOTHING))])
