"""`holdfast demo`: the demonstration, started from here."""

import click


@click.command("demo")
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    envvar="HOLDFAST_DEMO_JOBS",
    default=400,
    show_default=True,
    show_envvar=True,
    help="How many jobs to run.",
)
@click.option("--no-live", is_flag=True, help="Print the proof at the end only, without the live display.")
def demo(jobs: int, *, no_live: bool) -> None:
    """Watch several hundred jobs survive a killed worker."""
    from holdfast.demo import run

    raise SystemExit(run(jobs=jobs, live=not no_live))
