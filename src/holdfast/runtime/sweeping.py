"""One round of what workers do beside their jobs, for places where no worker stays up."""

from collections.abc import Mapping

from holdfast.client.settings import Settings
from holdfast.client.sinks import Sinks
from holdfast.domain.schedule import Spec
from holdfast.port.clock import Clock
from holdfast.port.store import Store
from holdfast.runtime.firing import Insert
from holdfast.runtime.relay import Relay
from holdfast.runtime.service import worker_id
from holdfast.runtime.upkeep import Upkeep


def sweep(
    store: Store,
    settings: Settings,
    insert: Insert,
    declared: Mapping[str, Spec],
    *,
    sinks: Sinks,
    clock: Clock,
    within: float,
) -> None:
    """Do upkeep once, unless another process is at it; then deliver events, for `within` seconds at the most."""
    owner = worker_id()
    upkeep = Upkeep(store, settings, owner, insert, declared)
    upkeep.round()
    upkeep.resign()
    relay = Relay(store, sinks, owner, clock)
    relay.start()
    relay.flush(within)
    relay.stop(within)
