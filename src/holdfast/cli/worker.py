"""`holdfast worker`: one worker in this process, or several under a parent that keeps them up."""

import logging
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import click

from holdfast.app import DEFAULT_CONCURRENCY, MAX_CONCURRENCY, Holdfast
from holdfast.cli.output import plural
from holdfast.cli.store import masked
from holdfast.cli.target import load, parse
from holdfast.client.logs import JsonFormatter, PlainFormatter
from holdfast.client.registry import queue_name
from holdfast.client.settings import here
from holdfast.domain.errors import BadInput
from holdfast.runtime.service import patiently
from holdfast.runtime.signals import stopping_by_signal, wait_heedful
from holdfast.runtime.supervisor import Supervisor, follow_parent, parent_id
from holdfast.runtime.telemetry.serving import Gathering, Reporter, serve
from holdfast.runtime.telemetry.tally import Totals, together

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
_LAST_PORT = 65_535
LEVELS = ("debug", "info", "warning", "error")
log = logging.getLogger("holdfast")


class Work(NamedTuple):
    """What a worker is asked to do; the same for each process of several."""

    target: str
    queue: tuple[str, ...]
    concurrency: int
    log_level: str
    log_json: bool = False
    until_idle: bool = False

    @property
    def queues(self) -> dict[str, int | None] | None:
        """The queues to serve, each with the most jobs of it at once; None for every queue."""
        return dict(map(_queue, self.queue)) or None

    def command(self, worker_id: str, parent_fd: int, metrics_fd: int | None = None) -> list[str]:
        """Give the command line of one process that does this."""
        queues = [word for each in self.queue for word in ("--queue", each)]
        return [
            sys.executable, "-m", "holdfast", "worker", self.target, *queues, "--concurrency", str(self.concurrency),
            "--log-level", self.log_level, *(["--until-idle"] if self.until_idle else []),
            *(["--log-json"] if self.log_json else []), "--worker-id", worker_id, "--parent-fd", str(parent_fd),
            *([] if metrics_fd is None else ["--metrics-fd", str(metrics_fd)]),
        ]  # fmt: skip


def work_options(command: F) -> F:
    """Let a command say what a worker does."""
    for option in (
        click.option("--log-json", is_flag=True, help="Log a JSON object per line, with the job that it is about."),
        click.option("--log-level", type=click.Choice(LEVELS), default="info", show_default=True, help="What to log."),
        click.option(
            "-c", "--concurrency", type=click.IntRange(1, MAX_CONCURRENCY), default=DEFAULT_CONCURRENCY,
            show_default=True, help="The most jobs at once in one process.",
        ),
        click.option(
            "-q", "--queue", multiple=True, metavar="NAME[=MAX]", callback=_checked_queues,
            help="A queue to serve, and the most jobs of it at once; every queue if not given. May be repeated.",
        ),
        click.argument("target", metavar="MODULE:APP"),
    ):  # fmt: skip
        command = option(command)
    return command


def _checked_queues(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    for each in value:
        try:
            queue_name(_queue(each)[0], "leave --queue out to serve every queue")
        except (ValueError, BadInput) as error:
            raise click.BadParameter(str(error), ctx, param) from None
    return value


def _checked_address(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, int] | None:
    if value is None:
        return None
    host, _, port = value.rpartition(":")
    if not port.isdecimal() or int(port) > _LAST_PORT:
        msg = f"{value!r} is not PORT or HOST:PORT with a PORT of 0 to {_LAST_PORT}."
        raise click.BadParameter(msg, ctx, param)
    return host.strip("[]") or "127.0.0.1", int(port)


def _queue(text: str) -> tuple[str, int | None]:
    name, separator, most = text.rpartition("=")
    if not separator:
        return text, None
    if not name or not most.isdecimal() or int(most) < 1:
        msg = f"{text!r} is not NAME or NAME=MAX with a MAX of 1 or more."
        raise ValueError(msg)
    return name, int(most)


@click.command("worker")
@work_options
@click.option(
    "--processes", type=click.IntRange(min=1), help="Keep this many worker processes up, replacing any that dies."
)
@click.option("--until-idle", is_flag=True, help="End once nothing is running or comes due within a second.")
@click.option(
    "--metrics",
    metavar="[HOST:]PORT",
    callback=_checked_address,
    help="Serve metrics for Prometheus there, of all processes together; on this machine alone if no host is named.",
)
@click.option("--metrics-fd", type=int, hidden=True, help="A pipe to write metrics to.")
@click.option("--worker-id", hidden=True, help="The name to work under.")
@click.option("--parent-fd", type=int, hidden=True, help="A pipe that closes when the supervising process is gone.")
def worker(
    processes: int | None,
    metrics: tuple[str, int] | None,
    metrics_fd: int | None,
    worker_id: str | None,
    parent_fd: int | None,
    **work: Any,
) -> None:
    """Run the jobs of an application until SIGTERM or SIGINT.

    MODULE:APP names it, as in shop.tasks:app or path/to/file.py:app. The first signal lets running jobs finish, the
    second gives them back and ends at once.
    """
    asked, folder = Work(**work), here()
    app = load(parse(asked.target))
    set_up_logging(asked.log_level, app, as_json=asked.log_json)
    if metrics is not None or metrics_fd is not None:
        app.instrument(metrics=True)
    if not len(app.registry):
        log.warning("%s has no jobs registered; import the modules that define them", asked.target)
    start = Start()
    if parent_fd is not None:
        follow_parent(parent_fd, start.stop)
    with stopping_by_signal(start.stop):
        if processes is not None:
            raise click.exceptions.Exit(_supervise(app, asked, processes, start, metrics, folder))
        service = start.open(
            lambda: app.service(queues=asked.queues, concurrency=asked.concurrency, worker_id=worker_id)
        )
        start.hand_over(service.stop)
        click.echo(f"worker {service.id} {_told(asked.queues, asked.concurrency)} on {masked(app.url)}")
        if metrics is not None:
            _serve_metrics(metrics, app.telemetry.totals)
        sys.stdout.flush()
        with _reporting(app, metrics_fd):
            service.run(until_idle=asked.until_idle)


@contextmanager
def _reporting(app: Holdfast, fd: int | None) -> Iterator[None]:
    """Write the metrics of this process to whoever adds them up."""
    if fd is None or app.telemetry.metrics is None:
        yield
        return
    reporter = Reporter(fd, app.telemetry.metrics.totals)
    try:
        yield
    finally:
        reporter.end()


def _serve_metrics(address: tuple[str, int], totals: Callable[[], Totals]) -> None:
    host, port = serve(*address, totals).server_address[:2]
    click.echo(f"metrics at http://{host if isinstance(host, str) else host.decode()}:{port}/metrics")


class Start:
    """The time before a worker is up. Its server may be long in coming, and until then it must be possible to stop."""

    def __init__(self) -> None:
        self._stopped = threading.Event()
        self._woken = threading.Event()
        self._stop_next: Callable[[], None] | None = None

    def stop(self) -> None:
        """Wait no longer; or stop what has taken over."""
        self._stopped.set()
        self._woken.set()
        if self._stop_next is not None:
            self._stop_next()

    def open(self, make: Callable[[], T]) -> T:
        """Open something, on a thread that is left behind if we are told to stop first."""
        made: list[T] = []
        failure: list[BaseException] = []

        def work() -> None:
            try:
                made.append(make())
            except BaseException as error:  # noqa: BLE001 - raised again below, in the caller's thread
                failure.append(error)
            self._woken.set()

        threading.Thread(target=work, name="holdfast-start", daemon=True).start()
        wait_heedful(self._woken)
        if failure:
            raise failure[0]
        self._go_on()
        return made[0]

    def hand_over(self, stop: Callable[[], None]) -> None:
        """From now on, let another be stopped; unless we have been."""
        self._stop_next = stop
        self._go_on()

    def _go_on(self) -> None:
        if self._stopped.is_set():
            raise click.exceptions.Exit(0)


def _supervise(  # noqa: PLR0917 - all of it is what the command was told
    app: Holdfast, asked: Work, processes: int, start: Start, metrics: tuple[str, int] | None, folder: str | None
) -> int:
    store = start.open(lambda: patiently(lambda: app.store))
    if not store.capabilities.shared:
        msg = f"{masked(app.url)} cannot be shared by several processes; leave --processes out, or use sqlite:///."
        raise BadInput(msg)
    gathering = None if metrics is None else Gathering()
    supervisor = Supervisor(
        command=asked.command,
        processes=processes,
        store=store,
        settings=app.settings,
        until_idle=asked.until_idle,
        gathering=gathering,
        watch=app.telemetry.watch,
        folder=folder,
    )
    start.hand_over(supervisor.stop)
    many = "1 process, which" if processes == 1 else f"{processes} processes, each of which"
    click.echo(f"supervisor {parent_id()} of {many} {_told(asked.queues, asked.concurrency)} on {masked(app.url)}")
    if metrics is not None and gathering is not None:
        _serve_metrics(metrics, lambda: together([app.telemetry.totals(), gathering.totals()]))
    sys.stdout.flush()
    return supervisor.run()


def _told(queues: Mapping[str, int | None] | None, concurrency: int) -> str:
    if queues is None:
        served = "all queues"
    else:
        served = ", ".join(name if most is None else f"{name} (at most {most})" for name, most in queues.items())
    return f"serves {served}, {plural(concurrency, 'job')} at once,"


def set_up_logging(level: str, app: Holdfast, *, as_json: bool = False) -> None:
    """Log to standard error, unless the application has set up logging itself; JSON if that is asked for, in any
    case.
    """
    written = logging.StreamHandler(sys.stderr)
    redaction = app.settings.redaction
    written.setFormatter(JsonFormatter(redaction) if as_json else PlainFormatter(redaction))
    logging.basicConfig(handlers=[written], force=as_json)
    log.setLevel(level.upper())
    if as_json:
        app.instrument(logs=True)
