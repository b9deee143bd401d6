"""`holdfast jobs`: look at jobs, ask why one does not run, cancel and redrive them."""

import json
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click

from holdfast.app import Holdfast
from holdfast.cli.errors import FAILURE
from holdfast.cli.output import printable, show_fields, show_json, show_table
from holdfast.cli.store import json_option, opened, url_option
from holdfast.client import views
from holdfast.client.job import Job
from holdfast.client.operator import LARGEST_PAGE
from holdfast.domain.ids import job_id
from holdfast.domain.job import JobRecord, State
from holdfast.domain.moments import to_datetime

F = TypeVar("F", bound=Callable[..., Any])
Filters = dict[str, str | None]
DEFAULT_LIMIT = 50


def filter_options(command: F) -> F:
    """Let a command choose jobs."""
    for name, text in (
        ("error-code", "Only jobs whose last failure has this code."),
        ("tenant", "Only jobs of this tenant."),
        ("queue", "Only jobs of this queue."),
        ("kind", "Only jobs of this kind."),
    ):
        command = click.option(f"--{name}", help=text)(command)
    return command


def payload_option(command: F) -> F:
    """Let a command show what is left out otherwise."""
    return click.option("--payload", is_flag=True, help="Show payloads and results as well.")(command)


def limit_option(command: F) -> F:
    """Let a listing be as long as wanted."""
    return click.option(
        "-n",
        "--limit",
        type=click.IntRange(min=1),
        default=DEFAULT_LIMIT,
        show_default=True,
        help="The most jobs to list.",
    )(command)


def found(app: Holdfast, limit: int, before: str | None = None, **filters: Any) -> Iterator[Job[Any]]:
    """List jobs, newest first, however many are wanted."""
    while limit > 0:
        page = app.find(before=before, limit=min(limit, LARGEST_PAGE), **filters)
        yield from page
        if len(page) < min(limit, LARGEST_PAGE):
            return
        limit -= len(page)
        before = str(page[-1].id)


@click.group(no_args_is_help=False)
def jobs() -> None:
    """Look at jobs, cancel and redrive them."""


@jobs.command("list")
@click.option("--state", type=click.Choice([state.value for state in State]), help="Only jobs in this state.")
@filter_options
@click.option("--key", help="Only the jobs with this idempotency key.")
@click.option("--parent", metavar="ID", help="Only the children of this job.")
@click.option("--before", metavar="ID", help="Continue after the last job of the page before.")
@limit_option
@payload_option
@json_option
@url_option
def list_jobs(url: str, *, as_json: bool, payload: bool, limit: int, before: str | None, **filters: str | None) -> None:
    """List jobs, newest first."""
    with opened(url) as app:
        listed = [job.record for job in found(app, limit, before, **filters)]
    if as_json:
        show_json([views.job(record, payload=payload) for record in listed])
        return
    columns = [
        "id",
        "state",
        "kind",
        "queue",
        "attempt",
        "created",
        "note",
        *(["payload", "result"] if payload else []),
    ]
    rows = ([*_row(record), *([record.payload, record.result] if payload else [])] for record in listed)
    show_table(columns, rows, empty="There are no such jobs.")


def _row(record: JobRecord) -> list[object]:
    note = record.cause or ""
    if record.failure_code:
        note = f"{note}: {record.failure_code}" if note else record.failure_code
    if record.cancel_requested and record.state is State.RUNNING:
        note = "cancelling"
    attempt = f"{record.attempt}/{record.max_attempts}"
    return [record.id, record.state.value, record.kind, record.queue, attempt, to_datetime(record.created_at), note]


@jobs.command("show")
@click.argument("id_", metavar="ID")
@payload_option
@click.option("--traceback", is_flag=True, help="Show the tracebacks of failed attempts as well.")
@json_option
@url_option
def show_job(id_: str, url: str, *, as_json: bool, payload: bool, traceback: bool) -> None:
    """Show all there is to know of one job, with its attempts and steps."""
    with opened(url) as app:
        record = app.get(id_).record
        attempts = [views.attempt(each, traceback=traceback) for each in app.attempts(id_)]
        steps = [views.step(each, payload=payload) for each in app.steps(record.id)]
    job = views.job(record, payload=payload)
    if as_json:
        show_json(job | {"attempts": attempts, "steps": steps})
        return
    if lease := job["lease"]:
        job["lease"] = f"token {lease['token']}, held by {lease['owner']} until {lease['expires_at']}"
    if progress := job["progress"]:
        job["progress"] = f"{progress[0]:.0%} {progress[1]}".strip()
    spent = job["credits"]
    job["credits"] = ", ".join(f"{number} {what}" for what, number in spent.items() if number) or None
    if failure := job["failure"]:
        job["failure"] = f"{failure['code']}: {failure['message']}"
    if payload:
        job |= {"payload": record.payload, "result": record.result}
    show_fields(job.items())
    _show_history(
        "attempts", ("token", "generation", "attempt", "outcome", "code", "owner", "ended_at", "message"), attempts
    )
    _show_history("steps", ("name", "recorded_at"), steps)
    for each in attempts:
        if each.get("traceback"):
            click.echo(f"\nattempt {each['attempt']}, token {each['token']}:\n{_safe_lines(each['traceback'])}")


def _show_history(title: str, columns: tuple[str, ...], rows: list[dict[str, Any]]) -> None:
    if rows:
        click.echo(f"\n{title}")
        show_table(columns, ([row[column] for column in columns] for row in rows), empty="")


def _safe_lines(text: str) -> str:
    return "\n".join(printable(line) for line in text.splitlines())


@jobs.command("why")
@click.argument("id_", metavar="ID")
@json_option
@url_option
def why_job(id_: str, url: str, *, as_json: bool) -> None:
    """Say why a job is not running."""
    with opened(url) as app:
        job = app.get(id_)
        because = app.explain(id_)
    if as_json:
        told = {"id": str(job.id), "state": job.state, "reason": because.reason, "text": because.text}
        show_json(told | {"details": because.details})
    else:
        click.echo(because.text)


@jobs.command("cancel")
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@json_option
@url_option
def cancel_jobs(ids: tuple[str, ...], url: str, *, as_json: bool) -> None:
    """Cancel jobs: at once while they wait, by asking their worker while they run."""
    wanted = [job_id(each) for each in ids]
    with opened(url) as app:
        done = [app.cancel(each) for each in wanted]
    told = {
        State.CANCELLED.value: "is cancelled",
        State.RUNNING.value: "is running; its worker has been asked to stop",
        State.RETRYING.value: "comes to its end; its steps are being undone first",
    }
    refused = [job for job in done if job.state not in told]
    _report(
        done, lambda job: told.get(job.state, f"had ended before: {job.state}; nothing was changed"), as_json=as_json
    )
    if refused:
        raise click.exceptions.Exit(FAILURE)


@jobs.command("signal")
@click.argument("id_", metavar="ID")
@click.argument("name")
@click.option("--payload", default="true", show_default=True, help="What the signal carries, as JSON.")
@json_option
@url_option
def signal_job(id_: str, name: str, payload: str, url: str, *, as_json: bool) -> None:
    """Send a job a signal that it waits for, now or later."""
    try:
        carried = json.loads(payload)
    except ValueError:
        msg = f"--payload takes JSON, and {payload[:60]!r} is not; text needs quotes of its own, as in '\"yes\"'."
        raise click.UsageError(msg) from None
    with opened(url) as app:
        job = app.signal(id_, name, carried)
    _report([job], lambda job: f"is {job.state}; it has the signal {name!r}", as_json=as_json)


@jobs.command("fork")
@click.argument("id_", metavar="ID")
@click.argument("step")
@json_option
@url_option
def fork_job(id_: str, step: str, url: str, *, as_json: bool) -> None:
    """Run a job again as a new one, from one of its recorded steps on."""
    with opened(url) as app:
        job = app.fork(id_, step)
    _report([job], lambda job: f"is {job.state}; it starts at {step!r} with what job {id_} had before", as_json=as_json)


@jobs.command("redrive")
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@json_option
@url_option
def redrive_jobs(ids: tuple[str, ...], url: str, *, as_json: bool) -> None:
    """Run dead jobs again, each as a new generation."""
    wanted = [job_id(each) for each in ids]
    with opened(url) as app:
        before = [app.get(each) for each in wanted]
        refused = {job.id for job in before if job.state != State.DEAD}
        done = [job if job.id in refused else app.redrive(job.id) for job in before]
    told = "only a dead job can be redriven; nothing was changed"
    _report(
        done,
        lambda job: (
            f"is {job.state}; {told}" if job.id in refused else f"is {job.state} as generation {job.generation}"
        ),
        as_json=as_json,
    )
    if refused:
        raise click.exceptions.Exit(FAILURE)


def _report(done: list[Job[Any]], say: Callable[[Job[Any]], str], *, as_json: bool) -> None:
    if as_json:
        show_json(
            [{"id": str(job.id), "state": job.state, "generation": job.generation, "text": say(job)} for job in done]
        )
        return
    for job in done:
        click.echo(f"{job.id} {say(job)}.")
