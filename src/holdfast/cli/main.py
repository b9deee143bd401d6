"""The program `holdfast`: its commands, gathered."""

import contextlib
import io
import sys

import click

from holdfast import __version__
from holdfast.cli.backup import backup
from holdfast.cli.bench import bench
from holdfast.cli.chaos import chaos
from holdfast.cli.check import check
from holdfast.cli.copy import copy
from holdfast.cli.credits import credits as accounts
from holdfast.cli.dead import dead
from holdfast.cli.demo import demo
from holdfast.cli.dev import dev
from holdfast.cli.errors import Program
from holdfast.cli.init import init
from holdfast.cli.jobs import jobs
from holdfast.cli.limits import limits
from holdfast.cli.migrate import migrate
from holdfast.cli.queues import queues
from holdfast.cli.schedules import schedules
from holdfast.cli.server import server
from holdfast.cli.sinks import sinks
from holdfast.cli.tokens import tokens
from holdfast.cli.trail import trail
from holdfast.cli.worker import worker


@click.group(cls=Program, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="holdfast", message="%(prog)s %(version)s")
def program() -> None:
    """Durable jobs that keep their promises through crashes, duplicates, retries and races.

    Start with `holdfast demo`, then `holdfast worker MODULE:APP`.
    """


for command in (
    demo,
    dev,
    worker,
    server,
    migrate,
    init,
    jobs,
    queues,
    limits,
    schedules,
    accounts,
    sinks,
    tokens,
    trail,
    dead,
    check,
    backup,
    copy,
    bench,
    chaos,
):
    program.add_command(command)


def main() -> None:
    """Run the command line of this process."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            with contextlib.suppress(OSError, ValueError):
                stream.reconfigure(errors="backslashreplace")
    program.main(prog_name="holdfast")
