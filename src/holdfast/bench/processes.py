"""Processes under test: they say one JSON object per line, begin when told to, and never outlive their measure.

Each first says `{"ready": true}` and waits for a line on standard input, so that several begin together.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from queue import Empty, Queue
from typing import IO, Any

from holdfast.domain.errors import HoldfastError

_PATIENCE = 120


class Stuck(HoldfastError, RuntimeError):
    """A process under test did not do its part; the message has its last words."""

    code = "stuck"


class Crew:
    """Some processes that run the same command."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], number: int, errors: IO[str]) -> None:
        self.name = " ".join(Path(part).name for part in command[:4])
        self._errors = errors
        self._heard: Queue[tuple[int, dict[str, Any] | None]] = Queue()
        self._processes: list[subprocess.Popen[str]] = []
        self._ears: list[threading.Thread] = []
        try:
            for number_ in range(number):
                self._start(number_, command, environment)
        except BaseException:
            self.end()
            raise

    def _start(self, number: int, command: Sequence[str], environment: Mapping[str, str]) -> None:
        # A session of its own: Ctrl-C is for the benchmark, which then ends its processes itself.
        process = subprocess.Popen(
            command,
            env=os.environ | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,
        )
        self._processes.append(process)
        self._ears.append(threading.Thread(target=self._listen, args=(number,), daemon=True))
        self._ears[-1].start()

    def go(self) -> float:
        """Wait until all are ready, then let all begin; give the processor time that getting ready took."""
        self.answers()
        spent = self.cpu()
        self.tell("go")
        return spent

    def tell(self, word: str) -> None:
        """Say a word to each."""
        for process in self._processes:
            assert process.stdin is not None
            with suppress(BrokenPipeError):  # what it has to say for itself is heard later
                process.stdin.write(f"{word}\n")
                process.stdin.flush()

    def hear(self) -> tuple[int, dict[str, Any]]:
        """Give what is said next, and by which process."""
        speaker, said = self._next()
        if said is None:
            raise Stuck(f"{self.name} ended before it was done{self._complaint()}")
        return speaker, said

    def answers(self) -> list[dict[str, Any]]:
        """Wait until each has said something, after which it may end; give what they said."""
        answers: dict[int, dict[str, Any]] = {}
        while len(answers) < len(self._processes):
            speaker, said = self._next()
            if said is not None:
                answers[speaker] = said
            elif speaker not in answers:
                raise Stuck(f"{self.name} ended before it was done{self._complaint()}")
        return list(answers.values())

    def last_words(self) -> list[dict[str, Any]]:
        """Tell each to stop; give what each has to say about itself."""
        self.tell("stop")
        return self.answers()

    def check(self) -> None:
        """See that none has ended before its time."""
        if any(process.poll() is not None for process in self._processes):
            raise Stuck(f"{self.name} ended before it was done{self._complaint()}")

    def cpu(self) -> float:
        """Add up the seconds of processor time that all have used; 0 where the system does not tell."""
        return sum(_cpu(process.pid) for process in self._processes)

    def end(self) -> None:
        """Kill them all: what they did is recorded, and their store is thrown away."""
        for process in self._processes:
            process.kill()
        for process, ear in zip(self._processes, self._ears, strict=True):
            process.wait()
            ear.join()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                with suppress(BrokenPipeError):
                    pipe.close()

    def _next(self) -> tuple[int, dict[str, Any] | None]:
        try:
            return self._heard.get(timeout=_PATIENCE)
        except Empty:
            raise Stuck(f"{self.name} said nothing for {_PATIENCE} s{self._complaint()}") from None

    def _listen(self, number: int) -> None:
        pipe = self._processes[number].stdout
        assert pipe is not None
        for line in pipe:
            if line.startswith("{"):
                self._heard.put((number, json.loads(line)))
        self._heard.put((number, None))

    def _complaint(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().strip().splitlines()
        return f": {lines[-1]}" if lines else "."


@contextmanager
def crew(command: Sequence[str], environment: Mapping[str, str], number: int = 1) -> Iterator[Crew]:
    """Start processes, and end them whatever happens."""
    with ExitStack() as stack:
        started = Crew(command, environment, number, stack.enter_context(tempfile.TemporaryFile("w+")))
        stack.callback(started.end)
        yield started


def say(**facts: object) -> None:
    """Say something, in a process under test."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def _cpu(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
