"""Processes under test: they say one JSON object per line, begin when told to, and never outlive their measure.

Each first says `{"ready": true}` and waits for a line on standard input, so that several begin together.
"""

import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import Empty, Queue
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[2]
_PATIENCE = 120


class Crew:
    """Some processes that run the same command."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], number: int, errors: IO[str]) -> None:
        self.name = " ".join(Path(part).name for part in command[:3])
        self._errors = errors
        self._heard: Queue[tuple[int, dict[str, Any] | None]] = Queue()
        self._processes = [
            subprocess.Popen(
                command,
                env=os.environ | environment,
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
            for _ in range(number)
        ]
        self._ears = [threading.Thread(target=self._listen, args=(n,), daemon=True) for n in range(number)]
        for ear in self._ears:
            ear.start()

    def go(self) -> float:
        """Wait until all are ready, then let all begin; give the processor time that getting ready took."""
        for _ in self._processes:
            assert "ready" in self.hear()[1]
        spent = self.cpu()
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        return spent

    def hear(self) -> tuple[int, dict[str, Any]]:
        """Give what is said next, and by which process."""
        try:
            speaker, said = self._heard.get(timeout=_PATIENCE)
        except Empty:
            raise RuntimeError(f"{self.name} said nothing for {_PATIENCE} s.{self._complaint()}") from None
        if said is None:
            raise RuntimeError(f"{self.name} ended before it was done.{self._complaint()}")
        return speaker, said

    def cpu(self) -> float:
        """Add up the seconds of processor time that all have used."""
        return sum(_cpu(process.pid) for process in self._processes)

    def end(self) -> None:
        """Kill them all: what they did is recorded, and their database is thrown away."""
        for process in self._processes:
            process.kill()
        for process, ear in zip(self._processes, self._ears, strict=True):
            process.wait()
            ear.join()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()

    def _listen(self, number: int) -> None:
        pipe = self._processes[number].stdout
        assert pipe is not None
        for line in pipe:
            if line.startswith("{"):
                self._heard.put((number, json.loads(line)))
        self._heard.put((number, None))

    def _complaint(self) -> str:
        self._errors.seek(0)
        return f" Its last words:\n{self._errors.read()[-2000:]}"


@contextmanager
def crew(command: Sequence[str], environment: Mapping[str, str], number: int = 1) -> Iterator[Crew]:
    """Start processes, and end them whatever happens."""
    with ExitStack() as stack:
        started = Crew(command, environment, number, stack.enter_context(tempfile.TemporaryFile("w+")))
        stack.callback(started.end)
        yield started


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
