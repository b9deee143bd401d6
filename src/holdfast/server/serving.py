"""The server as a thread of this process: its address, how patient it is with callers, and how it stops.

Beside it runs upkeep, as in every worker: workers that come by HTTP have none of their own, and leases that they lost
must be taken back.

Stopping lets requests under way finish, for a few seconds; those that wait for something are answered at once.
"""

import asyncio
import logging
import socket
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from holdfast.app import Holdfast
from holdfast.client.family import listened
from holdfast.client.inserter import Inserter
from holdfast.domain.errors import HoldfastError
from holdfast.port.clock import SystemClock
from holdfast.runtime.service import worker_id
from holdfast.runtime.upkeep import Upkeep

if TYPE_CHECKING:
    from fastapi import FastAPI

log = logging.getLogger("holdfast.server")
HEADERS = 10.0
"""The seconds that a caller has for the head of a request."""
GRACE = 10
"""The seconds that requests under way have to finish when the server stops."""
_IDLE = 60
_LARGEST_HEAD = 32 * 1024
_MOST_CONNECTIONS = 2_000
_BACKLOG = 1_024


class Unavailable(HoldfastError):
    """The address cannot be listened on."""

    code = "address_unavailable"


class Patience(H11Protocol):
    """A connection that waits only so long for the head of a request."""

    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Wait on if a head is still unfinished."""
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._wait()
        else:
            self._stop()

    def on_response_complete(self) -> None:
        """Wait on if the head of the next request has begun to come."""
        super().on_response_complete()
        if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing more."""
        self._stop()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self._waiting is None:
            self._waiting = self.loop.call_later(HEADERS, self.transport.close)

    def _stop(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None


class _Server(uvicorn.Server):
    """A server that lets waiting requests go before it stops."""

    def __init__(self, config: uvicorn.Config, served: "FastAPI") -> None:
        super().__init__(config)
        self._served = served

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop, in order."""
        self._served.state.surface.close()
        await super().shutdown(sockets)


def upkeep_of(app: Holdfast) -> Upkeep:
    """Make the upkeep of a server's store."""
    store = app.store
    settings = replace(app.settings, events=app.settings.events or listened(store))
    watch = app.telemetry.of_worker()
    inserter = Inserter(store, SystemClock(), watch)
    return Upkeep(store, settings, f"{worker_id()}:server", inserter.insert, watch=watch)


class Serving:
    """A server that can be started and stopped."""

    def __init__(
        self,
        served: "FastAPI",
        host: str,
        port: int,
        *,
        auth: bool,
        root_path: str = "",
        upkeep: Upkeep | None = None,
    ) -> None:
        self.auth = auth
        """Whether it asks for tokens."""
        self._socket = _bound(host, port)
        config = uvicorn.Config(
            served,
            http=Patience,
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            root_path=root_path,
            timeout_keep_alive=_IDLE,
            timeout_graceful_shutdown=GRACE,
            limit_concurrency=_MOST_CONNECTIONS,
            h11_max_incomplete_event_size=_LARGEST_HEAD,
        )
        self._server = _Server(config, served)
        self._upkeep = upkeep
        if upkeep is not None:
            served.state.surface.pulse.follow("upkeep", lambda: upkeep.reached, upkeep.rests)
        self._thread = threading.Thread(target=self._run, name="holdfast-server", daemon=True)

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._socket.getsockname()[1])

    @property
    def address(self) -> str:
        """Where it is to be found."""
        host = self._socket.getsockname()[0]
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    def start(self) -> None:
        """Begin to serve; callers are let in from now on."""
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
        self._socket.listen(_BACKLOG)
        self._thread.start()
        if self._upkeep is not None:
            self._upkeep.start()

    def stop(self) -> None:
        """Ask once to finish what is under way, ask again to leave at once."""
        self._server.force_exit = self._server.should_exit
        self._server.should_exit = True
        if self._upkeep is not None:
            self._upkeep.stop()

    def join(self, timeout: float | None = None) -> bool:
        """Wait until it has stopped; false if it has not within the timeout."""
        threads = [self._thread, *(() if self._upkeep is None else [self._upkeep.thread])]
        for thread in threads:
            thread.join(timeout)
        return not any(thread.is_alive() for thread in threads)

    def _run(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._socket]))


def _bound(host: str, port: int) -> socket.socket:
    try:
        found: list[Any] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        msg = f"There is no address {host!r} to listen on ({error.strerror}); name another with --host."
        raise Unavailable(msg) from error
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address)
    except OSError as error:
        bound.close()
        msg = f"Nobody can listen on port {port} of {host} ({error.strerror}); choose another with --port."
        raise Unavailable(msg) from error
    return bound
