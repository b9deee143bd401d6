"""The child process of a process lane: reads one job per line, runs its handler, writes one verdict per line.

Run as `python -m holdfast.runtime.child FD`. It imports the module that defined the handler, as the parent did, and
finds the kind in it by name.
"""

import asyncio
import importlib
import importlib.util
import inspect
import json
import os
import random
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import ModuleType
from typing import Any

from holdfast.client.function import JobFunction
from holdfast.client.registry import Kind, Registry
from holdfast.client.settings import here, settings
from holdfast.domain import codec
from holdfast.domain.errors import BadPayload, Snooze
from holdfast.domain.job import Failure, JobRecord, State
from holdfast.runtime.attempt import Attempt
from holdfast.runtime.executor import Executor, failure_of, trace
from holdfast.runtime.verdict import Verdict


def judge(kind: Kind, job: JobRecord, limit: int) -> Verdict:
    """Run a handler to its end, whatever that is; its result may be as large as the parent can keep."""
    attempt = Attempt(job, kind, 0.0)
    try:
        fn, arguments = Executor(settings(), random.random).bind(attempt)
        result = fn(**arguments)
        if inspect.iscoroutine(result):
            result = asyncio.run(_awaited(result))
        return _returned(kind, result, limit)
    except BadPayload as error:
        return Verdict(failure=failure_of(error, kind))
    except Snooze as error:
        return Verdict(snooze=error.seconds)
    except BaseException as error:  # noqa: BLE001 - a handler may raise anything, and its result while it is written
        return Verdict(failure=failure_of(error, kind), traceback=trace(error))


def _returned(kind: Kind, result: object, limit: int) -> Verdict:
    try:
        return Verdict(None if result is None else codec.encode(result, "The result", limit))
    except BadPayload as error:
        return Verdict(failure=failure_of(error, kind)._replace(code="bad_result"))


async def _awaited(coroutine: Any) -> Any:
    return await coroutine


def _continuing(context: str | None) -> AbstractContextManager[None]:
    """Let what the handler does belong to the trace of its attempt, if there is one."""
    if context is None:
        return nullcontext()
    from holdfast.runtime.telemetry.tracing import continuing

    return continuing(context)


def find_kind(module: ModuleType, name: str, version: int) -> Kind:
    """Find a kind among a module's decorated functions and applications."""
    for value in vars(module).values():
        if isinstance(value, JobFunction) and (value.kind.name, value.kind.code_version) == (name, version):
            return value.kind
        registry = getattr(value, "registry", None)
        if isinstance(registry, Registry) and (kind := registry.get(name, version)) is not None:
            return kind
    msg = f"{module.__name__} does not define the kind {name}"
    raise LookupError(msg)


def load(name: str, file: str | None) -> ModuleType:
    """Import a module as the parent did: by name, or from its file if it was run as a script."""
    if name in sys.modules and name != "__main__":
        return sys.modules[name]
    if name != "__main__" and importlib.util.find_spec(name) is not None:
        return importlib.import_module(name)
    alias = "holdfast_main" if name == "__main__" else name
    if alias in sys.modules:
        return sys.modules[alias]
    spec = importlib.util.spec_from_file_location(alias, file) if file else None
    if spec is None or spec.loader is None:
        msg = f"the module {name} cannot be imported in a handler process"
        raise ImportError(msg)
    module = sys.modules[alias] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def _being_in(folder: str | None) -> Iterator[None]:
    """Be in a folder for a while, unless it or the one to come back to is gone."""
    back = here()
    if folder is None or back is None or not os.path.isdir(folder):  # noqa: PTH112 - it came as text
        yield
        return
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(back)


def serve(line: socket.socket) -> None:
    """Answer requests until the parent hangs up."""
    stream = line.makefile("rwb")
    folder, *sys.path[:] = json.loads(stream.readline())
    for request in stream:
        asked = json.loads(request)
        job = JobRecord(*asked["job"])
        job = job._replace(state=State(job.state))
        try:
            with _being_in(folder):
                module = load(asked["module"], asked["file"])
            kind = find_kind(module, asked["kind"], job.code_version)
            with _continuing(asked["context"]):
                verdict = judge(kind, job, asked["limit"])
        except BaseException as error:  # noqa: BLE001 - the module's own code may raise anything
            verdict = Verdict(
                failure=Failure("handler_import", f"{type(error).__name__} while importing the handler", retryable=True)
            )
        stream.write(json.dumps(verdict).encode() + b"\n")
        stream.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(socket.socket(fileno=int(sys.argv[1])))
    os._exit(0)
