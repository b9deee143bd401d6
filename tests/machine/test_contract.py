"""The store of the contract does as the reference does, whatever it is asked."""

from collections.abc import Iterator

from holdfast.port.clock import Clock
from holdfast.port.store import Finding
from holdfast.stores.dynamodb import ContractStore
from holdfast.testing.machine import compare
from tests.aws import emulator


class Subject(ContractStore):
    """The store without what it tells of dead letters: one outlives its job, once that is purged."""

    def check(self) -> Iterator[Finding]:
        return (found for found in super().check() if "dead-letter queue" not in found.text)


def test_dynamodb_with_sqs_does_as_the_reference_does(aws_endpoint: str) -> None:
    """SQS knows no order, so a claim looks for itself: at every job, which makes the order strict."""

    def fresh(clock: Clock) -> Subject:
        return Subject(emulator.contract_of(aws_endpoint, page=1_000), clock)

    compare(fresh, walks=8)
