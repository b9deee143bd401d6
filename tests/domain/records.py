"""Records in every state, made by the lifecycle itself."""

from typing import Any, assert_never

from holdfast.domain import lifecycle
from holdfast.domain.job import Failure, JobRecord, NewJob, Retention, State
from holdfast.domain.moments import MINUTE, Micros

NOW: Micros = 1_767_225_600_000_000
LEASE: Micros = MINUTE
RETENTION = Retention()
FLAKY = Failure("flaky", "the other side hung up", retryable=True)
HOPELESS = Failure("hopeless", "no such document", retryable=False)


def made(**fields: Any) -> JobRecord:
    return lifecycle.create("job-1", NewJob("echo", "{}")._replace(**fields), NOW)


def claimed(job: JobRecord, now: Micros = NOW) -> JobRecord:
    now = max(now, job.available_at)
    return lifecycle.claim(job, lease_id=f"lease-{job.token + 1}", owner="ada", lease=LEASE, now=now)


def in_state(state: State, **fields: Any) -> JobRecord:
    match state:
        case State.CREATED:
            return made(state=State.CREATED, **fields)
        case State.QUEUED:
            return made(**fields)
        case State.RUNNING:
            return claimed(made(**fields))
        case State.RETRYING:
            job = claimed(made(**fields))
            return lifecycle.apply(job, lifecycle.fail(job, FLAKY, draw=0, retention=RETENTION), NOW)
        case State.SUCCEEDED:
            job = claimed(made(**fields))
            return lifecycle.apply(job, lifecycle.complete(job, '"fine"', RETENTION), NOW)
        case State.DEAD:
            job = claimed(made(**fields))
            return lifecycle.apply(job, lifecycle.fail(job, HOPELESS, draw=0, retention=RETENTION), NOW)
        case State.CANCELLED:
            job = made(**fields)
            return lifecycle.apply(job, lifecycle.cancel(job, RETENTION), NOW)
        case _:
            assert_never(state)
