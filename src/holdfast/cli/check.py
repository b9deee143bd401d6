"""`holdfast check`: verify the promises of a live store, job by job, while work goes on.

Every job is judged by what its record says (`domain.audit`), then the engine by what only it can see. A job may move
while it is being looked at, so a doubt counts only if the record stood still while its history was read.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import click

from holdfast.cli.errors import FAILURE
from holdfast.cli.output import plural, progress, show_json, show_table
from holdfast.cli.store import json_option, masked, opened, url_option
from holdfast.domain import audit
from holdfast.domain.job import JobRecord, State
from holdfast.domain.moments import SECOND, Micros
from holdfast.port.store import Finding, Query, Store

PAGE = 1_000
SHOWN = 50
ENGINE = {
    "S4": "the file is whole",
    "S7": "a key points to its job",
    "S36": "counters equal a recount",
}
"""What only the engine can see, on top of what the records tell."""
_LOOKS = 5


@dataclass
class Report:
    """What a check has seen."""

    jobs: int = 0
    states: Counter[State] = field(default_factory=Counter)
    broken: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    """The first of them."""

    def add(self, finding: Finding) -> None:
        """Count a finding, and keep it while there are few."""
        self.broken[finding.promise] += 1
        if len(self.findings) < SHOWN:
            self.findings.append(finding)

    @property
    def number(self) -> int:
        """How many findings there are."""
        return self.broken.total()


@click.command("check")
@click.option(
    "--patience",
    type=click.FloatRange(min=0),
    default=audit.PATIENCE / SECOND,
    show_default=True,
    help="Seconds that upkeep may take before a job counts as forgotten.",
)
@json_option
@url_option
def check(url: str, *, as_json: bool, patience: float) -> None:
    """Verify the promises of a live store.

    Ends with exit code 1 if any is broken. Work may go on meanwhile.
    """
    report = Report()
    with opened(url) as app:
        watched_since = _watched_since(app.store)
        with progress("checking", app.counts().total) as advance:
            for finding in _walk(app.store, watched_since, round(patience * SECOND), report, advance):
                report.add(finding)
        for finding in app.store.check():
            report.add(finding)
    if as_json:
        show_json(_as_json(url, report, watched=watched_since is not None))
    else:
        _show(url, report, watched=watched_since is not None)
    if report.number:
        raise click.exceptions.Exit(FAILURE)


def _watched_since(store: Store) -> Micros | None:
    """Since when some worker has been up to do the upkeep; None if there is none."""
    return min((worker.started_at for worker in store.workers()), default=None)


def _walk(
    store: Store, watched_since: Micros | None, patience: Micros, report: Report, advance: Callable[[int], None]
) -> Iterator[Finding]:
    before: str | None = None
    while page := store.find(Query(before=before, limit=PAGE)):
        now = store.now()
        for job in page:
            report.jobs += 1
            report.states[job.state] += 1
            if _doubtful(store, job, now, watched_since, patience):
                yield from _judged(store, job.id, watched_since, patience)
        advance(len(page))
        before = page[-1].id


def _doubtful(store: Store, job: JobRecord, now: Micros, watched_since: Micros | None, patience: Micros) -> bool:
    ended = store.attempts(job.id) if audit.expects_history(job) else None
    return bool(audit.violations(job, ended, now, watched_since=watched_since, patience=patience))


def _judged(store: Store, id_: str, watched_since: Micros | None, patience: Micros) -> Iterator[Finding]:
    """Look again until the record stands still while its history is read; a job that keeps moving is alive and well."""
    for _ in range(_LOOKS):
        now = store.now()
        (job,) = store.read([id_])
        ended = store.attempts(id_)
        (after,) = store.read([id_])
        if job is None or after is None:
            return
        if job.version == after.version:
            broken = audit.violations(job, ended, now, watched_since=watched_since, patience=patience)
            yield from (Finding(promise, id_, sentence) for promise, sentence in broken)
            return


def _promises(url: str, report: Report, *, watched: bool) -> dict[str, str]:
    """What was looked at: orphans only if somebody was there to take care of them, or the engine found one; a file
    only if there is one.
    """
    looked_at = audit.PROMISES | ENGINE
    if not url.startswith("sqlite:"):
        del looked_at["S4"]
    if not watched and not report.broken["L3"]:
        del looked_at["L3"]
    return looked_at


def _as_json(url: str, report: Report, *, watched: bool) -> dict[str, Any]:
    return {
        "url": masked(url),
        "clean": not report.number,
        "jobs": report.jobs,
        "states": {state.value: report.states[state] for state in State},
        "promises": [
            {"promise": promise, "title": title, "findings": report.broken[promise]}
            for promise, title in _promises(url, report, watched=watched).items()
        ],
        "number_of_findings": report.number,
        "findings": [finding._asdict() for finding in report.findings],
    }


def _show(url: str, report: Report, *, watched: bool) -> None:
    states = ", ".join(f"{report.states[state]:,} {state}" for state in State if report.states[state])
    click.echo(f"{masked(url)}: {plural(report.jobs, 'job')}{f' ({states})' if states else ''}")
    if not watched:
        click.echo("No worker is up, so nothing counts as forgotten (L3 is left out).")
    rows = (
        [promise, title, plural(report.broken[promise], "finding") if report.broken[promise] else "ok"]
        for promise, title in _promises(url, report, watched=watched).items()
    )
    show_table(["promise", "what it says", "found"], rows, empty="")
    if not report.number:
        click.echo("Nothing is wrong.")
        return
    shown = f", the first {SHOWN}" if report.number > SHOWN else ""
    click.echo(f"\n{plural(report.number, 'finding')}{shown}:")
    show_table(
        ["job", "promise", "what is wrong"], ([f.job or "-", f.promise, f.text] for f in report.findings), empty=""
    )
