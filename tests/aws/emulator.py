"""An emulator of AWS for tests: `ministack` in an environment of its own, or the endpoint HOLDFAST_TEST_AWS names.

It is installed at a fixed version on first use and listens on the loopback alone. Where it cannot be installed, the
tests that need it skip and say so.
"""

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from itertools import count
from pathlib import Path
from urllib.parse import quote

import pytest

from holdfast.stores.dynamodb.address import parse
from holdfast.stores.dynamodb.calls import Calls
from tests.servers import free_port

PACKAGE = "ministack==1.5.33"
_PLACE = Path(__file__).parents[2] / ".venv-aws"
_PATIENCE = 60.0
_NUMBERS = count(1)


@contextmanager
def server() -> Iterator[str]:
    """Run an emulator for a while; gives its endpoint."""
    if given := os.environ.get("HOLDFAST_TEST_AWS"):
        yield given
        return
    program = _installed()
    port = free_port()
    settings = {
        "BIND_HOST": "127.0.0.1",
        "MINISTACK_HOST": "127.0.0.1",
        "GATEWAY_PORT": str(port),
        "SERVICES": "dynamodb,sqs,sns,cloudwatch,iam,sts",
        "LOG_LEVEL": "WARNING",
    }
    running = subprocess.Popen(
        [program], env={**os.environ, **settings}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        _await(f"http://127.0.0.1:{port}/_ministack/health", running)
        yield f"http://127.0.0.1:{port}"
    finally:
        running.terminate()
        with suppress(subprocess.TimeoutExpired):
            running.wait(10)
        running.kill()
        running.wait()


def _installed() -> str:
    """Install the emulator, unless it is there."""
    program, stamp = _PLACE / "bin" / "ministack", _PLACE / PACKAGE
    if not stamp.exists():
        pip = (str(_PLACE / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "-qq", "install", PACKAGE)
        try:
            subprocess.run((sys.executable, "-m", "venv", "--clear", str(_PLACE)), check=True, capture_output=True)
            subprocess.run(pip, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"the emulator of AWS, {PACKAGE}, cannot be installed here: {error}")
        stamp.touch()
    return str(program)


def _await(health: str, running: "subprocess.Popen[bytes]") -> None:
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end and running.poll() is None:
        with suppress(OSError), closing(urllib.request.urlopen(health, timeout=5)) as answer:
            if answer.status == 200:
                return
        time.sleep(0.1)
    msg = f"The emulator of AWS did not start within {_PATIENCE:g} s."
    raise RuntimeError(msg)


def table_of(endpoint: str, **options: object) -> str:
    """Give the URL of a table that nobody has used; clocks are the test's own, so there is no skew between them."""
    return f"dynamodb://{_name()}?{_query(endpoint, options)}"


def contract_of(endpoint: str, **options: object) -> str:
    """Give the URL of a table and a queue that nobody has used."""
    name = _name()
    return f"dynamodb+sqs://{name}/{name}?{_query(endpoint, {'shards': 1, **options})}"


def _name() -> str:
    return f"test-{os.getpid()}-{next(_NUMBERS)}"


def _query(endpoint: str, options: dict[str, object]) -> str:
    said = {"region": "eu-central-1", "skew": 0, **options, "endpoint": endpoint}
    return "&".join(f"{name}={quote(str(value), safe=':/')}" for name, value in said.items())


def drop(url: str) -> None:
    """Remove the tables and queues that a test used, if they were ever made."""
    address = parse(url)
    tables, queues = Calls(address, "dynamodb").client, Calls(address, "sqs").client
    for name in {address.table, address.side}:
        with suppress(tables.exceptions.ResourceNotFoundException):
            tables.delete_table(TableName=name)
    for queue in (address.queue, address.dlq):
        with suppress(queues.exceptions.QueueDoesNotExist):
            if queue is not None:
                queues.delete_queue(QueueUrl=queues.get_queue_url(QueueName=queue)["QueueUrl"])
