"""The metrics: their names, what they count and by what, in one table.

Labels are bounded: queues by the first hundred names that are seen, kinds by the registry, the rest by what Holdfast
itself can say. Whatever lies outside counts as `other`. No metric has a tenant, a key or an id.
"""

from typing import Literal, NamedTuple

OTHER = "other"
QUICK = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
LONG = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 3600.0)
"""Where the buckets of a histogram end, in seconds: of calls, and of jobs."""


class Family(NamedTuple):
    """One metric."""

    name: str
    sort: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    help: str
    buckets: tuple[float, ...] = ()
    together: Literal["sum", "max"] = "sum"
    """What the gauges of several processes are together."""


STORE_UP = Family("holdfast_store_up", "gauge", (), "Whether the store answered when it was last asked.", (), "max")
JOBS = Family("holdfast_jobs", "gauge", ("queue", "state"), "Jobs in the store.", (), "max")
DEAD = Family("holdfast_dead_letter_jobs", "gauge", ("queue",), "Dead jobs that wait for an operator.", (), "max")
OLDEST = Family(
    "holdfast_oldest_due_age_seconds", "gauge", ("queue",), "How long the job that has been due longest is due.", (),
    "max",
)  # fmt: skip
PAUSED = Family("holdfast_queue_paused", "gauge", ("queue",), "Whether a queue is paused.", (), "max")
PAUSES = Family("holdfast_paused", "gauge", ("what",), "How many queues, tenants and kinds are paused.", (), "max")
CAPACITY = Family(
    "holdfast_limit_capacity", "gauge", ("queue", "per", "what"),
    "How many jobs a limit lets run at once, or start at once after a quiet time.", (), "max",
)  # fmt: skip
USED = Family(
    "holdfast_limit_in_use", "gauge", ("queue", "per", "what"),
    "How much of the capacity is taken: by the whole queue, or by the fullest tenant or key.", (), "max",
)  # fmt: skip
FULL = Family(
    "holdfast_limit_full_subjects", "gauge", ("queue", "per", "what"),
    "How many tenants or keys (or the queue itself: 1) are at the limit.", (), "max",
)  # fmt: skip
WORKERS = Family("holdfast_workers", "gauge", (), "Worker processes that are alive by the store's clock.", (), "max")

ENQUEUED = Family("holdfast_jobs_enqueued_total", "counter", ("queue", "kind"), "Jobs stored by this process.")
STARTED = Family("holdfast_attempts_started_total", "counter", ("queue", "kind"), "Attempts whose handler began.")
ENDED = Family(
    "holdfast_attempts_ended_total", "counter", ("queue", "kind", "outcome"), "Attempts whose end was written."
)
RUN = Family("holdfast_attempt_run_seconds", "histogram", ("queue", "kind"), "How long handlers ran.", LONG)
WAIT = Family(
    "holdfast_attempt_wait_seconds", "histogram", ("queue", "kind"), "How long jobs were due before they were claimed.",
    LONG,
)  # fmt: skip
EXPIRED = Family("holdfast_leases_expired_total", "counter", ("queue",), "Leases that ended and were taken back.")
LOST = Family("holdfast_leases_lost_total", "counter", ("queue",), "Handlers stopped because their lease was gone.")
REFUSED = Family("holdfast_writes_refused_total", "counter", ("verb", "reason"), "Late writes that the store refused.")
MISSED = Family("holdfast_heartbeat_failures_total", "counter", (), "Heartbeats that the store did not take.")
CALLS = Family("holdfast_store_call_seconds", "histogram", ("call",), "How long calls to the store took.", QUICK)
SLOTS = Family("holdfast_worker_slots", "gauge", (), "Jobs that this process can run at once.")
BUSY = Family("holdfast_worker_slots_in_use", "gauge", (), "Handlers that are running.")
AGE = Family(
    "holdfast_loop_age_seconds", "gauge", ("loop",), "Seconds since a worker's loop last did what it is for.", (), "max"
)

FAMILIES = {
    family.name: family
    for family in (
        STORE_UP, JOBS, DEAD, OLDEST, PAUSED, PAUSES, CAPACITY, USED, FULL, WORKERS, ENQUEUED, STARTED, ENDED, RUN,
        WAIT, EXPIRED, LOST, REFUSED, MISSED, CALLS, SLOTS, BUSY, AGE,
    )
}  # fmt: skip
