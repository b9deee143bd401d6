"""The seeded bugs: each a small change to product code that breaks a promise, and that some test must notice."""

from typing import NamedTuple

LIFECYCLE = "domain/lifecycle.py"
RETRY = "domain/retry.py"
STATEMENTS = "stores/sqlite/statements.sql"
SQLITE = "stores/sqlite/store.py"
POSTGRES = "stores/postgres/statements.sql"
INSERTION = "stores/postgres/insertion.py"


class Mutant(NamedTuple):
    """One bug: the text it replaces must occur exactly once in its file (for SQL, in the named block)."""

    bug: str
    promise: str
    file: str
    old: str
    new: str
    block: str | None = None


MUTANTS = (
    Mutant(
        "a holder's moves are not fenced by its token",
        "S9",
        LIFECYCLE,
        """    if (job.token, job.lease_id) != move.guard:
        return False
""",
        "",
    ),
    Mutant(
        "complete is not fenced by the token in SQL",
        "S9",
        STATEMENTS,
        "job.token = ?3 AND job.lease_id = ?4",
        "coalesce(?3, ?4) IS NOT NULL",
        "complete",
    ),
    Mutant(
        "heartbeat is not fenced by the token in SQL",
        "S9",
        STATEMENTS,
        " AND job.token = beat.token AND job.lease_id = beat.lease_id",
        "",
        "heartbeat",
    ),
    Mutant(
        "reap is not guarded by the version",
        "S9",
        LIFECYCLE,
        "return job.version == move.guard.version",
        "return job.version == move.guard.version or move.verb is Verb.REAP",
    ),
    Mutant(
        "redrive is not guarded by the version",
        "S27",
        LIFECYCLE,
        "return job.version == move.guard.version",
        "return job.version == move.guard.version or move.verb is Verb.REDRIVE",
    ),
    Mutant(
        "cancel overwrites a finished job",
        "S15",
        LIFECYCLE,
        "return job.version == move.guard.version",
        "return job.version == move.guard.version or move.verb is Verb.CANCEL",
    ),
    Mutant(
        "attempts are not counted at claim",
        "S18",
        LIFECYCLE,
        "attempt=job.attempt + 1,",
        "attempt=job.attempt,",
    ),
    Mutant(
        "attempts are not counted at claim in SQL",
        "S18",
        STATEMENTS,
        "attempt = attempt + 1, token = token + 1",
        "token = token + 1",
        "claim",
    ),
    Mutant(
        "the crash-loop cap is ignored",
        "S18",
        LIFECYCLE,
        "if crashes >= job.crash_cap:",
        "if crashes >= 1_000_000:",
    ),
    Mutant(
        "a give-back keeps the attempt",
        "S18",
        LIFECYCLE,
        "return _held(job, Verb.RELEASE, State.RETRYING, delay=0, yields=True)._replace(attempt=job.attempt - 1)",
        "return _held(job, Verb.RELEASE, State.RETRYING, delay=0, yields=True)",
    ),
    Mutant(
        "the backoff is ignored",
        "S17",
        LIFECYCLE,
        "delay = retry.parse(job.retry, job.max_attempts).delay(job.attempt, draw)",
        "delay = 0",
    ),
    Mutant(
        "the jitter is never added",
        "S17",
        RETRY,
        "return low + int((high - low) * draw)",
        "return low",
    ),
    Mutant(
        "a permanent failure is retried",
        "S19",
        LIFECYCLE,
        "    if not failure.retryable:\n",
        "    if failure.code == EXPIRED:\n",
    ),
    Mutant(
        "a key conflict is taken for a duplicate",
        "S6",
        LIFECYCLE,
        "return job.kind == new.kind and codec.same(job.payload, new.payload)",
        "return job.kind == new.kind",
    ),
    Mutant(
        "a claim takes more than its limit",
        "S11",
        SQLITE,
        "best = sorted(found)[:limit]",
        "best = sorted(found)",
    ),
    Mutant(
        "a queue gives more than is wanted from it",
        "S11",
        STATEMENTS,
        "LIMIT ?3",
        "LIMIT ?3 + 1",
        "pick",
    ),
    Mutant(
        "a job is claimed before it is due",
        "S17",
        STATEMENTS,
        "available_at <= ?2",
        "available_at <= ?2 + 5000000",
        "promote",
    ),
    Mutant(
        "a paused queue is claimed from",
        "S11",
        SQLITE,
        "for queue, most in room.items() if queue not in paused}",
        "for queue, most in room.items()}",
    ),
    Mutant(
        "a lease never expires",
        "S12",
        STATEMENTS,
        "lease_expires_at <= ?1",
        "lease_expires_at <= ?1 - 9000000000000000",
        "expired_leases",
    ),
    Mutant(
        "purge does not wait for its time",
        "S1",
        STATEMENTS,
        "purge_at <= ?1",
        "purge_at <= ?1 + 9000000000000000",
        "purgeable",
    ),
    Mutant(
        "a recorded step is written over",
        "S22",
        STATEMENTS,
        "INSERT OR IGNORE INTO step",
        "INSERT OR REPLACE INTO step",
        "record_step",
    ),
    Mutant(
        "abandoning one owner ends everybody's leases",
        "S12",
        STATEMENTS,
        "lease_owner = ?1",
        "?1 IS NOT NULL",
        "abandon",
    ),
    Mutant(
        "PostgreSQL completes without asking for the token",
        "S9",
        POSTGRES,
        "(job_id, token, lease_id) IN (",
        "(job_id, token * 0, '') IN (SELECT unnest(CAST(%(ids)s AS uuid[])), 0, '' UNION ALL",
        "complete",
    ),
    Mutant(
        "PostgreSQL extends anybody's lease",
        "S9",
        POSTGRES,
        "(job_id, token, lease_id) IN (",
        "(job_id, token * 0, '') IN (SELECT unnest(CAST(%(ids)s AS uuid[])), 0, '' UNION ALL",
        "heartbeat",
    ),
    Mutant(
        "PostgreSQL writes over a version it has not seen",
        "S14",
        POSTGRES,
        " AND version = CAST(%(seen)s AS integer)",
        "",
        "write_from_running",
    ),
    Mutant(
        "PostgreSQL lets two claim one job",
        "S8",
        POSTGRES,
        "DELETE FROM {schema}.waiting WHERE ctid = ANY (ARRAY(SELECT place FROM picked)) RETURNING *",
        "SELECT * FROM {schema}.waiting WHERE ctid = ANY (ARRAY(SELECT place FROM picked))",
        "taken",
    ),
    Mutant(
        "PostgreSQL claims before the time",
        "S17",
        POSTGRES,
        "      AND waiting.available_at <= (SELECT now FROM clock) "
        "AND (waiting.expires_at IS NULL OR waiting.expires_at > (SELECT now FROM clock))\n"
        "    ORDER BY waiting.available_at, waiting.job_id LIMIT room.jobs",
        "    ORDER BY waiting.available_at, waiting.job_id LIMIT room.jobs",
        "claim",
    ),
    Mutant(
        "PostgreSQL takes a key that is held",
        "S6",
        POSTGRES,
        "WHERE held.expires_at <= ",
        "WHERE held.tenant IS NOT NULL OR held.expires_at <= ",
        "take_keys",
    ),
    Mutant(
        "PostgreSQL overlooks a conflict of keys",
        "S6",
        INSERTION,
        """                if not lifecycle.same_request(owner, new):
                    raise lifecycle.key_conflict(new, owner)
""",
        "",
    ),
)
