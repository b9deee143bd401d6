"""Every error as one sentence and an exit code: 2 for wrong use, 1 for failure, 130 for an interrupt.

Never a traceback, unless `HOLDFAST_DEBUG=1` asks for it.
"""

import contextlib
import os
import sys
import traceback
from typing import Any, NoReturn

import click

from holdfast.domain.errors import BadInput, HoldfastError

FAILURE = 1
WRONG_USE = 2
INTERRUPTED = 130
DEBUG = "HOLDFAST_DEBUG"


class Program(click.Group):
    """A group whose errors, and those of every command below it, are told our way."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the commands in the order a newcomer meets them."""
        return list(self.commands)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Explain the program to whoever asks for nothing."""
        return super().parse_args(ctx, args or ["--help"])

    def main(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Run a command line and end the process with its exit code."""
        kwargs["standalone_mode"] = False
        code, sentence = 0, ""
        _fill_in_streams()
        try:
            done = super().main(*args, **kwargs)
            code = done if isinstance(done, int) else 0
            sys.stdout.flush()
        except SystemExit:
            raise
        except BrokenPipeError:
            code = FAILURE
            _let_go_of_stdout()
        except BaseException as error:  # noqa: BLE001 - a person is told of anything in one sentence
            code, sentence = told(error)
            if os.environ.get(DEBUG, "0") not in ("", "0") and sentence:
                traceback.print_exception(error)
        if sentence:
            with contextlib.suppress(OSError):
                click.echo(f"Error: {' '.join(sentence.split())}", err=True)
        sys.exit(code)


def told(error: BaseException) -> tuple[int, str]:
    """Give the exit code for an error and the sentence to print, which may be empty."""
    match error:
        case click.Abort() | KeyboardInterrupt():
            return INTERRUPTED, ""
        case click.UsageError():
            return WRONG_USE, _with_hint(error)
        case click.ClickException():
            return error.exit_code, error.format_message()
        case BadInput():
            return WRONG_USE, str(error)
        case HoldfastError():
            return FAILURE, str(error)
        case _:
            what = f"Something unexpected went wrong ({name_of(error)})"
            return FAILURE, f"{what}; run with {DEBUG}=1 to see the traceback."


def name_of(error: BaseException) -> str:
    """Name an exception and what it says, whatever it does to prevent that."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - __str__ may raise anything
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _with_hint(error: click.UsageError) -> str:
    sentence = error.format_message().rstrip()
    if not sentence.endswith((".", "?", "!")):
        sentence += "."
    return f"{sentence} See '{error.ctx.command_path} --help'." if error.ctx else sentence


def _fill_in_streams() -> None:
    """Give a program that was started with its input, output or errors closed something in their place, so that no
    file it opens gets their numbers.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            mode = os.O_RDONLY if name == "stdin" else os.O_WRONLY
            setattr(sys, name, os.fdopen(os.open(os.devnull, mode), "r" if name == "stdin" else "w", encoding="utf-8"))


def _let_go_of_stdout() -> None:
    """Keep the interpreter from complaining at its end that nobody reads its output any more."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
