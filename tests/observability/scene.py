"""What the tests of telemetry share: an application on disk whose handlers fail in ways worth telling of."""

import json
import urllib.request
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

APPLICATION = """
import logging
import os
import threading
from pathlib import Path

from holdfast import Context, Holdfast, Permanent, Retry

HERE = Path(__file__).parent
app = Holdfast(os.environ.get("SHOP_URL") or f"sqlite:///{HERE}/jobs.db", lease=3, events=True)
log = logging.getLogger("shop")


@app.job
def add(a: int, b: int) -> int:
    return a + b


@app.job(queue="mail", retry=Retry.fixed(0, retries=1))
def greet(name: str) -> None:
    log.warning("greeting somebody")
    raise ConnectionError(f"no answer from {name}")


@app.job(queue="mail")
def refuse(name: str) -> None:
    raise Permanent("nobody of that name is here", code="nobody")


@app.job
def hold(name: str) -> str:
    (HERE / f"{name}.began").write_text(str(os.getpid()))
    while not (HERE / name).exists():
        threading.Event().wait(0.01)
    return name


@app.job(run_in="process", retry=Retry.fixed(0, retries=0))
def apart(name: str) -> None:
    raise RuntimeError(f"apart from {name}")


@app.workflow
def ship(order: int, ctx: Context) -> str:
    ctx.step("pack", lambda: order)
    return ctx.step("send", lambda: "sent")
"""


def write_application(folder: Path, more: str = "") -> str:
    """Write the application into a folder; give the target that names it."""
    (folder / "shop.py").write_text(APPLICATION + more, encoding="utf-8")
    return f"{folder}/shop.py:app"


Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples(text: str) -> Samples:
    """Read metrics as Prometheus does."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(found: Samples, name: str, **labels: str) -> float | None:
    """Give one sample."""
    return found.get((name, frozenset(labels.items())))


def scrape(address: str) -> Samples:
    """Ask for metrics over HTTP."""
    with urllib.request.urlopen(address, timeout=10) as answer:
        return samples(answer.read().decode())


def records(text: str) -> list[dict[str, Any]]:
    """Read a log of JSON lines."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]
