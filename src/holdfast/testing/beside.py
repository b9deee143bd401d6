"""What a worker does beside its jobs, as the fixture does it: schedules that code declares are stored, and events are
delivered to the sinks. Both when the test says so, and under its clock.
"""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from holdfast.app import Holdfast
from holdfast.domain import schedule
from holdfast.port.clock import Clock
from holdfast.port.store import Store
from holdfast.runtime import firing
from holdfast.runtime.relay import PAUSES, Courier


class Beside:
    """Keeps what has been taken up: each schedule is stored and each sink is registered once."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._stored: dict[str, schedule.Spec] = {}
        self._couriers: dict[str, Courier] = {}

    def take_up(self, apps: Iterable[Holdfast]) -> None:
        """Store the schedules and register the sinks that are new, as a worker does when it starts."""
        for app in apps:
            new = {name: spec for name, spec in app.schedules.declared.items() if self._stored.get(name) != spec}
            firing.store_declared(self._store, new)
            self._stored |= new
            for sink in app.sinks:
                if sink.name not in self._couriers:
                    self._couriers[sink.name] = Courier(self._store, sink, "test", self._clock, PAUSES)
                    self._couriers[sink.name].join()

    def deliver(self) -> None:
        """Give every sink the events there are; one that refuses some is given them again the next time."""
        if self._couriers:
            with ThreadPoolExecutor(1, "holdfast-test") as thread:  # an async sink has a loop of its own
                list(thread.map(_deliver, self._couriers.values()))

    def end(self) -> None:
        """Let go of the sinks."""
        for courier in self._couriers.values():
            courier.leave()


def _deliver(courier: Courier) -> None:
    refused = courier.failures
    while courier.round() and courier.failures == refused:
        pass
