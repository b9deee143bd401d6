"""DynamoDB does as the reference does, whatever it is asked."""

from holdfast.port.clock import Clock
from holdfast.stores.dynamodb import DynamoStore
from holdfast.testing.machine import compare
from tests.aws import emulator


def test_dynamodb_does_as_the_reference_does(aws_endpoint: str) -> None:
    """Within one look the best go first, so a look that shows every job makes the order strict."""

    def fresh(clock: Clock) -> DynamoStore:
        return DynamoStore(emulator.table_of(aws_endpoint, page=1_000), clock)

    compare(fresh, walks=12)
