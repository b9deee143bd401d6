"""What may be declared as a sink, what it is told, and files of lines: whole ones, with nobody else's text touched."""

import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.client.sinks import JsonLines, Sinks, Webhook
from holdfast.client.sinks.shape import shown
from holdfast.domain import events, lifecycle
from holdfast.domain.errors import BadInput
from holdfast.domain.job import Failure, Retention
from holdfast.stores.memory import MemoryStore
from holdfast.testing.clock import ManualClock
from tests.runtime.test_relay import claimed

SECRET = "correct-horse-battery"
HOOK = "https://example.com/hook"


def takes_nothing() -> None: ...


def takes_two(a: Any, b: Any) -> None: ...


def yields(event: Any) -> Iterator[Any]:
    yield event


@pytest.mark.parametrize(
    ("name", "target", "options", "part"),
    [
        ("", print, {}, "1 to 255 printable"),
        (7, print, {}, "1 to 255 printable"),
        ("a\nb", print, {}, "1 to 255 printable"),
        ("holdfast.family", print, {}, "Holdfast's own"),
        ("taken", print, {}, "declared already"),
        ("s", None, {}, "not NoneType"),
        ("s", "file.jsonl", {}, "not str"),
        ("s", JsonLines, {}, "not JsonLines"),
        ("s", takes_nothing, {}, "with one argument"),
        ("s", takes_two, {}, "with one argument"),
        ("s", yields, {}, "generator"),
        ("s", print, {"batch": 1}, "batch is True or False"),
        ("s", Webhook(HOOK, secret=SECRET), {"batch": True}, "only for a callable"),
        ("s", print, {"names": []}, "one or more of"),
        ("s", print, {"names": "job_dead"}, "one or more of"),
        ("s", print, {"names": 5}, "one or more of"),
        ("s", print, {"names": ["job_died"]}, "one or more of"),
        ("s", print, {"names": ["holdfast.child_ended"]}, "one or more of"),
        ("s", print, {"max_tries": 0}, "1 or more"),
        ("s", print, {"max_tries": True}, "1 or more"),
        ("s", print, {"max_tries": 1.5}, "1 or more"),
    ],
)
def test_a_wrong_declaration_is_one_clear_sentence_and_changes_nothing(
    name: Any, target: Any, options: dict[str, Any], part: str
) -> None:
    sinks = Sinks()
    sinks.add("taken", print)
    with pytest.raises(BadInput, match=part) as refused:
        sinks.add(name, target, **options)
    assert str(refused.value).endswith(".")
    assert [sink.name for sink in sinks] == ["taken"]


@pytest.mark.parametrize("path", [None, 7, b"x", "", "a\x00b", "/", "/no/such/folder/events.jsonl"])
def test_a_path_that_cannot_be_a_file_is_refused(path: Any) -> None:
    with pytest.raises(BadInput, match="JsonLines"):
        JsonLines(path)


def test_a_file_is_appended_to_and_may_be_moved_away(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_text("before\n")
    file.chmod(0o640)
    lines = JsonLines(str(file))
    lines.deliver([{"id": "a"}])
    lines.deliver([{"id": "b"}, {"id": "c"}])
    assert file.read_text() == 'before\n{"id":"a"}\n{"id":"b"}\n{"id":"c"}\n'
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    file.rename(tmp_path / "old.jsonl")
    lines.deliver([{"id": "d"}])
    assert file.read_text() == '{"id":"d"}\n'


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('{"id":"x","na', ""),
        ('{"id":"w"}\n{"id":"x","na', '{"id":"w"}\n'),
        ('{"id":"w"}\n{"i', '{"id":"w"}\n'),
        ("somebody's notes", "somebody's notes\n"),
        ('notes\n{"other":1}', 'notes\n{"other":1}\n'),
        ("\n", "\n"),
        ("", ""),
    ],
)
def test_a_line_that_was_cut_off_is_taken_out_and_other_text_stays(tmp_path: Path, before: str, after: str) -> None:
    file = tmp_path / "events.jsonl"
    file.write_text(before)
    JsonLines(file).deliver([{"id": "x"}])
    assert file.read_text() == after + '{"id":"x"}\n'


def test_an_event_says_what_happened_to_whom_and_when() -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    job = claimed(store)
    clock.advance(milliseconds=1_500)
    store.commit([events.told(job, lifecycle.checkpoint(job, "fetch", "1"), public=True)])
    (seen,) = store.read([job.id])
    assert seen is not None
    failure = Failure("flaky", "no", retryable=False)
    store.commit([events.told(seen, lifecycle.fail(seen, failure, draw=0, retention=Retention()), public=True)])
    begun, fetched, completed, dead = told = [shown(record) for record in store.events(0, 10)]
    shared = {
        "at": "2026-01-01T00:00:01.500000+00:00", "job_id": job.id, "kind": "ingest", "queue": "default",
        "tenant": "acme", "trigger": "manual", "generation": 1, "attempt": 1, "credits_spent": 0,
        "created_at": "2026-01-01T00:00:00.000000+00:00", "started_at": "2026-01-01T00:00:00.000000+00:00",
    }  # fmt: skip
    ended = {"state": "dead", "cause": "rejected", "code": "flaky", "duration_ms": 1500}
    ids = {"id": begun["id"], "position": 1}
    assert begun == {**shared, **ids, "name": "workflow_run_started", "state": "running"}
    ids = {"id": fetched["id"], "position": 2}
    step_told = {"name": "workflow_step_completed", "step": "fetch", "state": "running", "duration_ms": 1500}
    assert fetched == {**shared, **ids, **step_told}
    ids = {"id": completed["id"], "position": 3}
    assert completed == {**shared, **ids, **ended, "name": "workflow_run_completed", "success": False}
    assert dead == {**shared, **ended, "id": dead["id"], "position": 4, "name": "job_dead"}
    assert len({event["id"] for event in told}) == 4


@pytest.mark.parametrize("url", ["memory://", "sqlite:///{}/jobs.db"])
def test_a_worker_that_ends_when_idle_has_told_everything(tmp_path: Path, url: str) -> None:
    app = Holdfast(url.format(tmp_path), upkeep=0.05)
    heard: list[dict[str, Any]] = []
    app.sink("heard", heard.append)
    app.sink("ends", JsonLines(tmp_path / "ends.jsonl"), names=["workflow_run_completed"])

    @app.job
    def add(a: int, b: int) -> int:
        return a + b

    @app.job(permanent=(ValueError,))
    def refuse(who: str) -> None:
        raise ValueError(who)

    jobs = [str(add.enqueue(n, n).id) for n in range(20)]
    refused = str(refuse.enqueue("canary").id)
    app.run_worker(until_idle=True)
    app.close()
    names: dict[str, list[str]] = {}
    for event in heard:
        names.setdefault(event["job_id"], []).append(event["name"])
    done = ["workflow_run_started", "workflow_run_completed"]
    assert names == {**dict.fromkeys(jobs, done), refused: [*done, "job_dead"]}
    ends = [json.loads(line) for line in (tmp_path / "ends.jsonl").read_text().splitlines()]
    assert {event["job_id"]: event["success"] for event in ends} == {**dict.fromkeys(jobs, True), refused: False}
    assert "canary" not in repr(heard)
