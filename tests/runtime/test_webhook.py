"""Webhooks on real sockets: signed, to checked addresses only, within their time, and with nothing secret let out."""

import json
import logging
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.client.sinks import Sinks, Webhook, verify_webhook
from holdfast.client.sinks.address import objection
from holdfast.client.sinks.shape import Undelivered
from holdfast.client.sinks.signature import signature
from holdfast.domain.errors import BadInput
from holdfast.port.clock import SystemClock
from holdfast.runtime.relay import Relay
from holdfast.stores.memory import MemoryStore
from tests.runtime.test_relay import finish
from tests.workers import LONG

SECRET = "canary-secret-canary"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
EVENTS: list[dict[str, Any]] = [{"id": "a.1", "name": "job_dead"}, {"id": "a.2", "name": "job_dead"}]
Answer = Callable[[socket.socket], None]


class Request:
    """What a receiver was sent."""

    def __init__(self, content: bytes) -> None:
        head, _, self.body = content.partition(b"\r\n\r\n")
        self.line, *lines = head.decode("ascii").split("\r\n")
        self.headers = dict(line.split(": ", 1) for line in lines)


class Receiver:
    """A server on loopback that takes one request per connection and answers as it is told to."""

    def __init__(self, answer: bytes | Answer = OK, context: ssl.SSLContext | None = None) -> None:
        self.answer = answer
        self.requests: list[Request] = []
        self.names: list[str | None] = []
        self._context = context
        if context is not None:
            context.sni_callback = lambda _link, name, _context: self.names.append(name)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/hook?token=canary-query"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(LONG)
        assert not self._thread.is_alive()

    def _serve(self) -> None:
        while True:
            try:
                link, _ = self._listening.accept()
            except OSError:
                return
            try:
                with link if self._context is None else self._context.wrap_socket(link, server_side=True) as open_link:
                    open_link.settimeout(LONG)
                    self._take(open_link)
            except OSError:
                link.close()

    def _take(self, link: socket.socket) -> None:
        content = b""
        while b"\r\n\r\n" not in content or len(content) < _whole(content):
            content += (more := link.recv(65536))
            if not more:
                return
        self.requests.append(Request(content))
        if isinstance(self.answer, bytes):
            link.sendall(self.answer)
        else:
            self.answer(link)


def _whole(content: bytes) -> int:
    head, _, _ = content.partition(b"\r\n\r\n")
    return len(head) + 4 + int(Request(content).headers["Content-Length"])


@contextmanager
def receiving(answer: bytes | Answer = OK, context: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    receiver = Receiver(answer, context)
    try:
        yield receiver
    finally:
        receiver.close()


def hook(url: str, **options: Any) -> Webhook:
    return Webhook(url, **{"secret": SECRET, "allow_http": True, "allow_private": True, **options})


def resolving(*found: str) -> Callable[..., list[tuple[Any, ...]]]:
    """Make a resolver that knows one answer, in the form of `socket.getaddrinfo`."""

    def resolve(host: str, port: int, **kind: Any) -> list[tuple[Any, ...]]:
        return [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", (one, port, 0, 0))
            if ":" in one
            else (socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port))
            for one in found
        ]

    return resolve


def test_a_request_is_json_and_its_signature_can_be_checked() -> None:
    with receiving() as receiver:
        hook(receiver.url, now=lambda: 1_000.9).deliver(EVENTS)
    (request,) = receiver.requests
    assert request.line == "POST /hook?token=canary-query HTTP/1.1"
    assert json.loads(request.body) == {"events": EVENTS}
    assert request.headers["Host"] == f"127.0.0.1:{receiver.port}"
    assert request.headers["Content-Type"] == "application/json"
    assert request.headers["Holdfast-Event-Id"] == "a.1"
    assert request.headers["Holdfast-Signature"].startswith("t=1000,v1=")
    lowered = {name.lower(): value for name, value in request.headers.items()}
    assert verify_webhook(SECRET, lowered, request.body, now=lambda: 1_300) == EVENTS
    assert verify_webhook(SECRET.encode(), request.headers, request.body.decode(), now=lambda: 700) == EVENTS


def test_the_signature_is_the_one_any_other_program_would_make() -> None:
    """The number is what `openssl dgst -sha256 -hmac canary-secret-canary` says of `1000.{}`."""
    made = "36b7c180e894aaadde5352b94f2912d9fced747784327abdd7be2746de545653"
    assert signature(SECRET.encode(), 1_000, b"{}") == f"t=1000,v1={made}"


BODY = b'{"events":[]}'
SIGNED = signature(SECRET.encode(), 1_000, BODY)


@pytest.mark.parametrize(
    ("headers", "body", "secret", "part"),
    [
        ({"Holdfast-Signature": SIGNED}, BODY + b" ", SECRET, "does not fit"),
        ({"Holdfast-Signature": SIGNED}, BODY, "another-secret-of-some-length", "does not fit"),
        ({"Holdfast-Signature": SIGNED.replace("1000", "1001")}, BODY, SECRET, "does not fit"),
        ({"Holdfast-Signature": signature(SECRET.encode(), 600, BODY)}, BODY, SECRET, "not of now"),
        ({"Holdfast-Signature": signature(SECRET.encode(), 1_400, BODY)}, BODY, SECRET, "not of now"),
        ({}, BODY, SECRET, "no Holdfast-Signature"),
        ({"Holdfast-Signature": ""}, BODY, SECRET, "no Holdfast-Signature"),
        ({"Holdfast-Signature": "t=1000"}, BODY, SECRET, "no Holdfast-Signature"),
        ({"Holdfast-Signature": "t=x,v1=" + "0" * 64}, BODY, SECRET, "no Holdfast-Signature"),
        ({"Holdfast-Signature": "t=1000,v1=é"}, BODY, SECRET, "no Holdfast-Signature"),
        ({"Holdfast-Signature": SIGNED + ",t=1000"}, BODY, SECRET, "no Holdfast-Signature"),
        ({"Holdfast-Signature": SIGNED, "holdfast-signature": SIGNED}, BODY, SECRET, "no Holdfast-Signature"),
        ({"Holdfast-Signature": signature(SECRET.encode(), 1_000, b"[]")}, b"[]", SECRET, "not a JSON object"),
        ({"Holdfast-Signature": signature(SECRET.encode(), 1_000, b"\xff")}, b"\xff", SECRET, "not a JSON object"),
        ({"Holdfast-Signature": SIGNED}, {"events": []}, SECRET, "as it came"),
        ({"Holdfast-Signature": SIGNED}, BODY, "short", "16 bytes or more"),
        ({"Holdfast-Signature": SIGNED}, BODY, None, "text or bytes"),
    ],
)
def test_what_is_not_signed_right_and_now_is_refused(
    headers: dict[str, str], body: Any, secret: Any, part: str
) -> None:
    with pytest.raises(BadInput, match=part) as refused:
        verify_webhook(secret, headers, body, now=lambda: 1_000)
    assert "canary" not in str(refused.value)


def test_a_receiver_may_change_its_secret_while_both_are_signed_with() -> None:
    both = f"{signature(b'the-old-secret-of-ours', 1_000, BODY)},{SIGNED.partition(',')[2]}"
    assert verify_webhook(SECRET, {"Holdfast-Signature": both}, BODY, now=lambda: 1_000) == []


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_every_2xx_means_delivered(status: int) -> None:
    with receiving(b"HTTP/1.1 %d Fine\r\n\r\n" % status) as receiver:
        hook(receiver.url).deliver(EVENTS)
    assert len(receiver.requests) == 1


@pytest.mark.parametrize("status", [300, 301, 302, 307, 308, 400, 401, 404, 410, 429, 500, 503])
def test_anything_else_means_failed_and_no_redirect_is_followed(status: int) -> None:
    with receiving() as elsewhere:
        answer = b"HTTP/1.1 %d No\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n" % (status, elsewhere.url.encode())
        with receiving(answer) as receiver, pytest.raises(Undelivered, match=f"answered with status {status}$"):
            hook(receiver.url).deliver(EVENTS)
    assert (len(receiver.requests), elsewhere.requests) == (1, [])


def _drip(link: socket.socket) -> None:
    """Send a header that never ends, a byte at a time."""
    link.sendall(b"HTTP/1.1 200 OK\r\nX: ")
    try:
        while True:
            link.sendall(b"x")
            threading.Event().wait(0.01)
    except OSError:
        return


def _hang(link: socket.socket) -> None:
    link.recv(1)


def _flood(link: socket.socket) -> None:
    """Send headers for ever, as fast as they are taken."""
    link.sendall(b"HTTP/1.1 200 OK\r\n")
    try:
        while True:
            link.sendall(b"X: y\r\n" * 1_000)
    except OSError:
        return


def _endless_waits(link: socket.socket) -> None:
    try:
        while True:
            link.sendall(b"HTTP/1.1 100 Continue\r\n\r\n" * 1_000)
    except OSError:
        return


@pytest.mark.parametrize(
    ("answer", "part"),
    [
        (_hang, "no answer in time"),
        (_drip, "no answer in time"),
        (_flood, "not HTTP, or too long"),
        (_endless_waits, "not HTTP, or too long"),
        (b"HTTP/1.1 200 " + b"x" * 100_000, "not HTTP, or too long"),
        (b"SSH-2.0-OpenSSH\r\n", "not HTTP, or too long"),
        (b"HTTP/1.1 two\r\n\r\n", "not HTTP, or too long"),
        (b"", "no connection"),
    ],
)
def test_an_answer_that_is_late_long_or_none_is_given_up(answer: bytes | Answer, part: str) -> None:
    with receiving(answer) as receiver:
        begun = time.monotonic()
        with pytest.raises(Undelivered, match=part) as failed:
            hook(receiver.url, timeout=0.3).deliver(EVENTS)
        assert time.monotonic() - begun < LONG / 2
    assert "canary" not in str(failed.value)


def test_a_long_body_of_an_answer_is_not_waited_for() -> None:
    def answer(link: socket.socket) -> None:
        link.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n" + b"x" * 1_000)
        try:
            link.recv(1)
        except OSError:
            return

    with receiving(answer) as receiver:
        hook(receiver.url, timeout=LONG).deliver(EVENTS)


def test_nobody_listening_is_a_failure_and_another_address_of_the_host_is_tried() -> None:
    with receiving() as receiver:
        port = receiver.port
        url = f"http://hooks.example:{port}/"
        hook(url, resolve=resolving("127.0.0.2", "127.0.0.1")).deliver(EVENTS)
        assert receiver.requests[0].headers["Host"] == f"hooks.example:{port}"
    with pytest.raises(Undelivered, match=rf"^http://hooks.example:{port}: no connection \(Connection refused\)$"):
        hook(url, resolve=resolving("127.0.0.2", "127.0.0.1")).deliver(EVENTS)


def test_a_name_is_resolved_once_and_the_connection_goes_to_what_was_checked() -> None:
    asked: list[str] = []

    def rebinding(host: str, port: int, **kind: Any) -> list[tuple[Any, ...]]:
        """Answer with the receiver first and with nowhere afterwards."""
        asked.append(host)
        return resolving("127.0.0.1" if len(asked) == 1 else "192.0.2.1")(host, port)

    with receiving() as receiver:
        hook(f"http://hooks.example:{receiver.port}/", resolve=rebinding).deliver(EVENTS)
    assert (asked, len(receiver.requests)) == (["hooks.example"], 1)


def test_an_id_cannot_add_a_header() -> None:
    with receiving() as receiver:
        hook(receiver.url).deliver([{"id": "a.step\r\nX-Evil: 1 %é☃.b"}])
    (request,) = receiver.requests
    assert request.headers["Holdfast-Event-Id"] == "a.step%0D%0AX-Evil:%201%20%25%C3%A9%E2%98%83.b"
    assert "X-Evil" not in request.headers


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a certificate for hooks.example, signed by itself, with its key in the same file."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl to make a certificate")
    folder = tmp_path_factory.mktemp("tls")
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=hooks.example -addext"
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run(
        ["openssl", *words.split(), "subjectAltName=DNS:hooks.example", *files], check=True, capture_output=True
    )
    both = folder / "both.pem"
    both.write_bytes((folder / "cert.pem").read_bytes() + (folder / "key.pem").read_bytes())
    return both


def test_a_secure_connection_is_to_the_name_and_trusts_only_its_certificate(certificate: Path) -> None:
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificate)
    trusting = ssl.create_default_context(cafile=str(certificate))
    local = resolving("127.0.0.1")
    with receiving(context=serving) as receiver:
        url = f"https://hooks.example:{receiver.port}/x"
        hook(url, resolve=local, context=trusting, allow_http=False).deliver(EVENTS)
        assert (receiver.names, receiver.requests[0].headers["Host"]) == (
            ["hooks.example"],
            f"hooks.example:{receiver.port}",
        )
        with pytest.raises(Undelivered, match="certificate is not trusted"):
            hook(url, resolve=local).deliver(EVENTS)
        with pytest.raises(Undelivered, match="certificate is not trusted"):
            hook(url.replace("hooks", "other"), resolve=local, context=trusting).deliver(EVENTS)
        assert len(receiver.requests) == 1
    with receiving(b"HTTP/1.1 200 OK\r\n\r\n") as plain, pytest.raises(Undelivered, match="no "):
        hook(f"https://hooks.example:{plain.port}/", resolve=local, connect_timeout=0.3).deliver(EVENTS)


NEVER = [
    "0.0.0.0", "0.1.2.3", "169.254.169.254", "169.254.0.1", "100.100.100.200", "168.63.129.16", "192.0.0.192",
    "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255", "192.88.99.1",
    "::", "::7f00:1", "::ffff:169.254.169.254", "::ffff:0.0.0.0", "::ffff:224.0.0.1", "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::a00:1", "2002:a9fe:a9fe::1", "2002:7f00:1::", "2002:808:808::1", "2001:0:4136:e378:8000:63bf:80ff:fffe",
    "fe80::1", "fec0::1", "ff02::1", "fd00:ec2::254", "fd20:ce::254", "100::1",
    "3fff::1", "5f00::1", "4000::1", "fe80::1%eth0", "fd12::1%1", "nonsense", "",
]  # fmt: skip
PRIVATE = [
    "127.0.0.1", "127.255.255.254", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1",
    "198.18.0.1", "192.0.2.1", "198.51.100.1", "203.0.113.1", "::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1",
    "::ffff:7f00:1", "64:ff9b::7f00:1", "64:ff9b::a00:1", "fc00::1", "fd12:3456::1", "2001:db8::1",
]  # fmt: skip
PUBLIC = ["8.8.8.8", "1.1.1.1", "93.184.216.34", "2606:4700:4700::1111", "64:ff9b::808:808", "::ffff:8.8.8.8"]


@pytest.mark.parametrize("address", NEVER)
def test_some_addresses_are_no_place_for_a_webhook_whatever_is_allowed(address: str) -> None:
    assert objection(address, allow_private=False)
    assert objection(address, allow_private=True)


@pytest.mark.parametrize("address", PRIVATE)
def test_private_addresses_are_refused_unless_allowed(address: str) -> None:
    assert objection(address, allow_private=False)
    assert objection(address, allow_private=True) is None


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_allowed(address: str) -> None:
    assert objection(address, allow_private=False) is None


@pytest.mark.parametrize("address", [*NEVER, *PRIVATE])
def test_one_bad_address_among_good_ones_is_enough_to_refuse_a_host(address: str) -> None:
    connected = Webhook("https://hooks.example/", secret=SECRET, resolve=resolving("8.8.8.8", address, "1.1.1.1"))
    with pytest.raises(Undelivered, match=r"^https://hooks.example: the host has an? "):
        connected.deliver(EVENTS)


def test_a_host_without_an_address_or_name_is_a_failure() -> None:
    def unknown(host: str, port: int, **kind: Any) -> list[tuple[Any, ...]]:
        raise socket.gaierror(-2, "Name or service not known")

    with pytest.raises(Undelivered, match="has no address"):
        Webhook("https://hooks.example/", secret=SECRET, resolve=resolving()).deliver(EVENTS)
    with pytest.raises(Undelivered, match="could not be resolved"):
        Webhook("https://hooks.example/", secret=SECRET, resolve=unknown).deliver(EVENTS)


HOSTS = [
    "127.0.0.1", "localhost:0", "127.1", "127.0.1", "2130706433", "0x7f000001", "0x7f.0.0.1", "0X7F.1", "017700000001",
    "0177.0.0.1", "127.0.0.01", "127.0.0.1.", "0", "0x", "256.256.256.256", "1.2.3.4.5", "1.2.3", "10.0.0.1",
    "169.254.169.254", "[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[fe80::1%25eth0]", "[fe80::1]",
    "[64:ff9b::7f00:1]", "[::1", "::1", "[1.2.3.4]", "[v1.x]", "", ".", "a..b", ".a", "a.", "-a.b", "a b", "a\tb",
    "a\nb", "a\\b", "①②⑦.⓪.⓪.①", "１２７.0.0.1", "exämple.com", "a%00b", "a%2eb", "a,b", "a:b", "a:99999", "a:",
    "a:-1", "x" * 64 + ".com", "x." * 130 + "com", "user@example.com", "user:canary-pass@example.com", "@example.com",
    "example.com@127.0.0.1", "127.0.0.1#@example.com", "example.com#x",
]  # fmt: skip


@pytest.mark.parametrize("host", HOSTS)
def test_an_odd_host_is_refused_when_it_is_declared_and_not_repeated(host: str) -> None:
    with pytest.raises(BadInput, match=r"^A webhook's URL [^\n]*\.$") as refused:
        Webhook(f"https://{host}/canary-path?canary=1", secret=SECRET)
    assert "canary" not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        None, 7, b"https://example.com/", "", "https://", "https:///x", "example.com", "//example.com/", "/x",
        "http://example.com/", "ftp://example.com/", "file:///etc/passwd", "gopher://example.com/", "javascript:1",
        "https:example.com", "https:/example.com", "https://example.com/a b", "https://example.com/\r\nX-Evil: 1",
        "https://example.com/\x00", "https://example.com/é", " https://example.com/",
        "https://example.com/" + "x" * 2_000,
    ],
)  # fmt: skip
def test_an_odd_url_is_refused(url: Any) -> None:
    with pytest.raises(BadInput, match=r"^A webhook's URL [^\n]*\.$"):
        Webhook(url, secret=SECRET)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://example.com", "https://example.com"),
        ("https://EXAMPLE.com:443/x?y=canary", "https://example.com"),
        ("https://a_b.x-y.example:8443/", "https://a_b.x-y.example:8443"),
        ("https://xn--exmple-cua.com/", "https://xn--exmple-cua.com"),
        ("https://8.8.8.8/", "https://8.8.8.8"),
        ("https://[2606:4700:4700:0::1111]:1/", "https://[2606:4700:4700::1111]:1"),
    ],
)
def test_a_good_url_is_shown_without_what_may_be_secret(url: str, shown: str) -> None:
    assert repr(Webhook(url, secret=SECRET)) == f"Webhook('{shown}')"


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"secret": "canary-short"}, "16 bytes or more"),
        ({"secret": ""}, "16 bytes or more"),
        ({"secret": None}, "text or bytes"),
        ({"timeout": 0}, "more than zero"),
        ({"timeout": -1}, "not be negative"),
        ({"timeout": None}, "number of seconds"),
        ({"connect_timeout": float("nan")}, "number of seconds"),
        ({"allow_private": "false"}, "True or False"),
        ({"allow_http": 1}, "True or False"),
        ({"context": True}, "ssl.SSLContext"),
    ],
)
def test_a_wrong_option_is_refused_and_no_secret_repeated(options: dict[str, Any], part: str) -> None:
    with pytest.raises(BadInput, match=part) as refused:
        Webhook("https://example.com/", **{"secret": SECRET, **options})
    assert "canary" not in str(refused.value)


def test_a_relay_sends_again_until_the_receiver_is_well_and_lets_nothing_secret_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    store, sinks = MemoryStore(), Sinks()
    with receiving(b"HTTP/1.1 503 canary-reason\r\nX: canary-header\r\n\r\ncanary-body") as receiver:
        sink = sinks.add("hook", hook(receiver.url))
        relay = Relay(store, sinks, "ada", SystemClock(), pauses=(0.001, 0.01))
        relay.start()
        for _ in range(120):
            finish(store)
        assert not relay.flush(0.5)
        failed = len(receiver.requests)
        assert failed > 10
        receiver.answer = OK
        assert relay.flush(LONG)
        assert relay.tallies()["hook"][::2] == (240, 0)
        assert relay.stop(LONG)
    taken = [verify_webhook(SECRET, request.headers, request.body) for request in receiver.requests]
    delivered = [event["position"] for batch in taken[failed:] for event in batch]
    assert list(dict.fromkeys(delivered)) == list(range(1, 241))
    assert max(len(batch) for batch in taken) <= 100
    assert f"sink hook: http://127.0.0.1:{receiver.port} answered with status 503; trying again" in caplog.text
    assert caplog.text.count("trying again") == 1
    assert "canary" not in caplog.text + repr(sink) + repr(list(sinks))
