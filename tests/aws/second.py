"""A second pair of emulators: `dynoxide` for DynamoDB and `local-aws-sqs` for SQS, both from npm, behind one endpoint.

`python -m tests.aws.second COMMAND …` runs a command while they are there, with HOLDFAST_TEST_AWS naming the endpoint.
They know nothing of policies and alarms, so what needs these is not for them.
"""

import http.client
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import create_connection

from tests.servers import free_port

PACKAGES = ("@dynoxide/linux-x64@1.2.1", "local-aws-sqs@2.0.2")
_PLACE = Path(__file__).parents[2] / ".venv-aws" / "second"
_PATIENCE = 60.0
_QUEUES = """
const settings = {port: +process.argv[1], hostname: "127.0.0.1", emulateQueueCreationLifecycle: false}
require("local-aws-sqs").createSqsServer(settings)
"""
_OURS = frozenset({"host", "connection", "transfer-encoding", "content-length"})
"""Headers that are each connection's own."""


@contextmanager
def _running(command: Sequence[str], port: int) -> Iterator[None]:
    process = subprocess.Popen(command, cwd=_PLACE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + _PATIENCE
        while process.poll() is None and time.monotonic() < end:
            with suppress(OSError), create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.1)
        else:
            msg = f"{command[0]} did not start within {_PATIENCE:g} s."
            raise RuntimeError(msg)
        yield
    finally:
        process.kill()
        process.wait()


class _Door(BaseHTTPRequestHandler):
    """Hands each request to the emulator of its service."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    tables = queues = 0

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        port = self.tables if self.headers.get("X-Amz-Target", "").startswith("DynamoDB") else self.queues
        behind = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _OURS}
        behind.request("POST", self.path, body, headers)
        answer = behind.getresponse()
        text = answer.read()
        behind.close()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in _OURS:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None: ...


class _Doors(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


@contextmanager
def server() -> Iterator[str]:
    """Run both for a while; gives their endpoint."""
    _install()
    tables, queues = free_port(), free_port()
    program = str(_PLACE / "node_modules/@dynoxide/linux-x64/dynoxide")
    with ExitStack() as stack:
        stack.enter_context(_running((program, "--host", "127.0.0.1", "--port", str(tables)), tables))
        stack.enter_context(_running(("node", "-e", _QUEUES, str(queues)), queues))
        door = type("Door", (_Door,), {"tables": tables, "queues": queues})
        doors = stack.enter_context(_Doors(("127.0.0.1", 0), door))
        threading.Thread(target=doors.serve_forever, daemon=True).start()
        stack.callback(doors.shutdown)
        yield f"http://127.0.0.1:{doors.server_address[1]}"


def _install() -> None:
    """Install both at fixed versions, unless they are there."""
    if (_PLACE / "node_modules" / "local-aws-sqs").exists():
        return
    _PLACE.mkdir(parents=True, exist_ok=True)
    (_PLACE / "package.json").write_text('{"name": "second", "private": true}')
    subprocess.run(("npm", "install", "--no-audit", "--no-fund", "--silent", *PACKAGES), cwd=_PLACE, check=True)


def main(command: Sequence[str]) -> int:
    """Run a command beside them; nothing, where there is no Node."""
    if shutil.which("npm") is None:
        sys.stderr.write("no Node here, and so no second pair of emulators: skipped\n")
        return 0
    with server() as endpoint:
        return subprocess.run(command, env={**os.environ, "HOLDFAST_TEST_AWS": endpoint}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
