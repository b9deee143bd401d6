"""What a job costs on AWS, in capacity units and requests: a change that makes it dearer is noticed here."""

from collections.abc import Callable

import pytest

from bench.aws import STEPS, Cost, lives
from tests.aws import emulator

JOBS = 20
START = Cost(1, 3, 1)
"""What the start and the end of a worker may take, for each of so few jobs: with a round of upkeep, because whoever led
it before has resigned.
"""


@pytest.mark.parametrize(
    ("make", "steps", "enqueued", "worked"),
    [
        (emulator.table_of, 0, Cost(4, 0), Cost(9, 0)),
        (emulator.table_of, STEPS, Cost(6, 0), Cost(13, 0)),
        (emulator.contract_of, 0, Cost(6, 0, 1), Cost(5, 0, 0.3)),
        (emulator.contract_of, STEPS, Cost(7, 0, 1), Cost(7, 0, 0.3)),
    ],
    ids=["dynamodb", "dynamodb, steps", "dynamodb+sqs", "dynamodb+sqs, steps"],
)
def test_a_job_costs_no_more_than_it_did(
    aws_endpoint: str, make: Callable[[str], str], steps: int, enqueued: Cost, worked: Cost
) -> None:
    costs = lives(lambda: make(aws_endpoint), JOBS, steps=steps)
    for cost, most in zip(costs, (enqueued, worked), strict=True):
        assert cost.writes <= most.writes + START.writes
        assert cost.reads <= most.reads + START.reads
        assert cost.requests <= most.requests + START.requests
