"""A place that speaks Sentry's envelope protocol: takes envelopes over HTTP and keeps the events in them."""

import gzip
import json
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PROJECT = "42"
KEY = "0123456789abcdef0123456789abcdef"


class Sink:
    """What was received."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.raw = b""
        """Every byte of every envelope."""
        self.wrong: list[str] = []
        """What did not follow the protocol."""
        self.dsn = ""

    def take(self, path: str, headers: dict[str, str], body: bytes) -> None:
        """Take an envelope: a line of headers, then for each item a line of headers and its payload."""
        if path != f"/api/{PROJECT}/envelope/":
            self.wrong.append(f"a request to {path}")
        if f"sentry_key={KEY}" not in headers.get("x-sentry-auth", ""):
            self.wrong.append("no key")
        self.raw += body
        envelope, _, rest = body.partition(b"\n")
        json.loads(envelope)
        while rest:
            line, _, rest = rest.partition(b"\n")
            item = json.loads(line)
            length = item.get("length")
            payload, rest = (rest[:length], rest[length + 1 :]) if length is not None else _line(rest)
            if item["type"] == "event":
                self.events.append(json.loads(payload))


def _line(text: bytes) -> tuple[bytes, bytes]:
    line, _, rest = text.partition(b"\n")
    return line, rest


@contextmanager
def sink() -> Iterator[Sink]:
    """Run a sink on a loopback port."""
    received = Sink()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            match self.headers.get("content-encoding"):
                case "gzip":
                    body = gzip.decompress(body)
                case "deflate":
                    body = zlib.decompress(body)
                case None:
                    pass
                case other:
                    received.wrong.append(f"an encoding {other}")
            received.take(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"id": "0"}')

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is http.server's
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    received.dsn = f"http://{KEY}@127.0.0.1:{server.server_address[1]}/{PROJECT}"
    try:
        yield received
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
