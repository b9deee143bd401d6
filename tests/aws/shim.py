"""A shim between boto3 and the emulator: adds what no emulator has, and counts what is asked.

Every request comes through here over real HTTP. `plan` is asked for each one, by its operation, and says what becomes
of it: nothing special, refused before it is passed on, or passed on and its reply lost.
"""

import hashlib
import http.client
import json
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

_JSON = ("Content-Type", "application/x-amz-json-1.0")


class Fault(Enum):
    """What may become of a request."""

    THROTTLED = "ProvisionedThroughputExceededException"
    """Refused, and nothing written."""
    CONFLICT = "TransactionConflictException"
    """Refused, because a transaction has the item."""
    BROKEN = "InternalServerError"
    """Written, and answered with an error."""
    LOST = "lost"
    """Written, and never answered."""
    HALVED = "halved"
    """Of a batch only the first half is done; the rest comes back to be asked again."""
    DOUBLED = "doubled"
    """Messages are sent twice."""
    DROPPED = "dropped"
    """Messages are lost, and said to be sent."""
    DELAYED = "delayed"
    """Messages come a second late."""
    TURNED = "turned"
    """Messages come in another order."""
    BEHIND = "behind"
    """An index does not show yet what was written."""


_SENDS = frozenset({Fault.DOUBLED, Fault.DROPPED, Fault.DELAYED})
_ONLY = {Fault.TURNED: "ReceiveMessage", Fault.BEHIND: "Query", **dict.fromkeys(_SENDS, "SendMessageBatch")}


Plan = Callable[[str], Fault | None]


class Shim:
    """What stands between; `endpoint` is where it listens."""

    def __init__(self, upstream: str) -> None:
        self.upstream = urlsplit(upstream)
        self.plan: Plan = lambda _operation: None
        self.asked: Counter[str] = Counter()
        self.done: Counter[Fault] = Counter()
        self.after: Callable[[str], None] = lambda _operation: None
        """Called when a request was passed on, before it is answered."""
        self.lock = threading.Lock()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.server.daemon_threads = True

    @property
    def endpoint(self) -> str:
        """The address to give to a client."""
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def fate(self, operation: str) -> Fault | None:
        """Decide on a request."""
        with self.lock:
            self.asked[operation] += 1
            fault = self.plan(operation)
            if fault is Fault.HALVED and "Batch" not in operation:
                fault = None
            if fault is not None and operation != _ONLY.get(fault, operation):
                fault = None
            if fault:
                self.done[fault] += 1
            return fault


@contextmanager
def between(upstream: str) -> Iterator[Shim]:
    """Stand between for a while."""
    shim = Shim(upstream)
    thread = threading.Thread(target=shim.server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield shim
    finally:
        shim.server.shutdown()
        shim.server.server_close()
        thread.join()


def _handler(shim: Shim) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: Any) -> None:
            """Say nothing."""

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            operation = self.headers.get("X-Amz-Target", ".").rpartition(".")[2]
            fault = shim.fate(operation)
            if instead := _instead(fault, body):
                self._answer(*instead)
                return
            body, held = _changed(fault, operation, body)
            status, answer = self._passed_on(body)
            if fault is Fault.DOUBLED:
                self._passed_on(body)
            shim.after(operation)
            if fault is Fault.TURNED:
                held = {"Messages": json.loads(answer).get("Messages", [])[::-1]}
            if fault is Fault.LOST:
                self.close_connection = True
            elif fault is Fault.BROKEN:
                self._answer(500, _refused(fault))
            else:
                self._answer(status, json.dumps({**json.loads(answer), **held}).encode() if held else answer)

        def _passed_on(self, body: bytes) -> tuple[int, bytes]:
            link = http.client.HTTPConnection(shim.upstream.hostname or "", shim.upstream.port, timeout=60)
            kept = {k: v for k, v in self.headers.items() if k.lower() not in ("host", "content-length", "connection")}
            try:
                link.request("POST", self.path, body, kept)
                answer = link.getresponse()
                return answer.status, answer.read()
            finally:
                link.close()

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header(*_JSON)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("x-amz-crc32", str(zlib.crc32(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler


def _refused(fault: Fault) -> bytes:
    return json.dumps({"__type": f"com.amazonaws.dynamodb.v20120810#{fault.value}", "message": "by the shim"}).encode()


def _instead(fault: Fault | None, body: bytes) -> tuple[int, bytes] | None:
    """Give the answer to a request that is not passed on at all."""
    if fault in (Fault.THROTTLED, Fault.CONFLICT):
        return 400, _refused(fault)
    if fault is Fault.DROPPED or (fault is Fault.BEHIND and b"IndexName" in body):
        return 200, _pretended(fault, body)
    return None


def _pretended(fault: Fault, body: bytes) -> bytes:
    if fault is Fault.BEHIND:
        return json.dumps({"Items": [], "Count": 0, "ScannedCount": 0}).encode()
    sent = [
        {
            "Id": each["Id"],
            "MessageId": each["Id"],
            "MD5OfMessageBody": hashlib.md5(each["MessageBody"].encode()).hexdigest(),
        }
        for each in json.loads(body)["Entries"]
    ]
    return json.dumps({"Successful": sent}).encode()


def _digest(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def _changed(fault: Fault | None, operation: str, body: bytes) -> tuple[bytes, dict[str, Any]]:
    """Give what is passed on instead, and what is added to the answer."""
    if fault is Fault.DELAYED:
        return _delayed(body), {}
    return _halved(operation, body) if fault is Fault.HALVED else (body, {})


def _delayed(body: bytes) -> bytes:
    asked = json.loads(body)
    asked["Entries"] = [{**each, "DelaySeconds": each.get("DelaySeconds", 0) + 1} for each in asked["Entries"]]
    return json.dumps(asked).encode()


def _halved(operation: str, body: bytes) -> tuple[bytes, dict[str, Any]]:
    asked = json.loads(body)
    if "Entries" in asked:
        entries = asked["Entries"]
        half = -(-len(entries) // 2)
        later = [{"Id": each["Id"], "SenderFault": False, "Code": "InternalError"} for each in entries[half:]]
        return json.dumps({**asked, "Entries": entries[:half]}).encode(), {"Failed": later} if later else {}
    now: dict[str, Any] = {}
    rest_of: dict[str, Any] = {}
    for table, wanted in asked["RequestItems"].items():
        if operation == "BatchGetItem":
            keys = wanted["Keys"]
            now[table] = {**wanted, "Keys": keys[: -(-len(keys) // 2)]}
            if rest := keys[-(-len(keys) // 2) :]:
                rest_of[table] = {**wanted, "Keys": rest}
        else:
            now[table] = wanted[: -(-len(wanted) // 2)]
            if rest := wanted[-(-len(wanted) // 2) :]:
                rest_of[table] = rest
    name = "UnprocessedKeys" if operation == "BatchGetItem" else "UnprocessedItems"
    return json.dumps({**asked, "RequestItems": now}).encode(), {name: rest_of} if rest_of else {}
