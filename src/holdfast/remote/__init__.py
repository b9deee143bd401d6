"""Holdfast by HTTP: a client for programs that have no store of their own, and workers beside it.

`Client` blocks, `AsyncClient` is awaited; both say the same to `holdfast server`. `RemoteWorker` runs jobs that it
claims from a server. Needs httpx: `pip install 'holdfast[remote]'`.
"""

try:
    import httpx  # noqa: F401 - the one thing that may be missing, told here
except ModuleNotFoundError as error:
    msg = "holdfast.remote needs httpx; install it with: pip install 'holdfast[remote]'."
    raise ModuleNotFoundError(msg, name="httpx") from error

from holdfast.remote.asynchronous import AsyncClient
from holdfast.remote.client import Client
from holdfast.remote.errors import NotAllowed, Refused
from holdfast.remote.shapes import Beat, Claimed, PreparedJob, RemoteJob
from holdfast.remote.worker import RemoteWorker, Stopped, Task

__all__ = [
    "AsyncClient",
    "Beat",
    "Claimed",
    "Client",
    "NotAllowed",
    "PreparedJob",
    "Refused",
    "RemoteJob",
    "RemoteWorker",
    "Stopped",
    "Task",
]
