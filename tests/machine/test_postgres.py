"""PostgreSQL does as the reference does, whatever it is asked."""

from holdfast.port.clock import Clock
from holdfast.stores.postgres import PostgresStore
from holdfast.testing.machine import compare
from tests import postgres


def test_postgres_does_as_the_reference_does(postgres_server: str) -> None:
    def fresh(clock: Clock) -> PostgresStore:
        return PostgresStore(postgres.schema_of(postgres_server), clock)

    compare(fresh, walks=40)  # a walk takes long here
