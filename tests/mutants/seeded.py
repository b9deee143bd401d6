"""The seeded bugs: each a small change to product code that breaks a promise, and that some test must notice."""

from typing import NamedTuple

LIFECYCLE = "domain/lifecycle.py"
RETRY = "domain/retry.py"
STATEMENTS = "stores/sqlite/statements.sql"
TRIPS = "stores/sqlite/migrations/0009_census.sql"
CHECKPOINTS = "stores/sqlite/migrations/0008_checkpoints.sql"
SQLITE = "stores/sqlite/store.py"
CLAIMING = "stores/sqlite/claiming.py"
TURNS = "stores/sqlite/turns.py"
GATES = "domain/gates.py"
RING = "domain/ring.py"
SETTLEMENT = "stores/sqlite/settlement.py"
SQLITE_BOOKS = "stores/sqlite/books.py"
OUTBOX = "stores/sqlite/books.sql"
POSTGRES = "stores/postgres/statements.sql"
MOVES = "stores/postgres/moves.sql"
BOOKS = "stores/postgres/books.sql"
PAGES = "stores/postgres/pages.sql"
SQLITE_PAGES = "stores/sqlite/pages.sql"
TOKENS = "client/tokens.py"
INSERTION = "stores/postgres/insertion.py"
CARRYING = "stores/postgres/carrying.py"
LEDGER = "stores/postgres/ledger.py"
DURABLE = "client/durable.py"
FIRING = "runtime/firing.py"
RELAY = "runtime/relay.py"
CLAIMS = "stores/postgres/claiming.py"
BELL = "stores/postgres/bell.py"
GATE = "stores/postgres/gate.py"
ATTEMPT = "runtime/attempt.py"
STAGE = "runtime/stage.py"


class Mutant(NamedTuple):
    """One bug: the text it replaces must occur exactly once in its file (for SQL, in the named block)."""

    bug: str
    promise: str
    file: str
    old: str
    new: str
    block: str | None = None
    raced: bool = False
    """Only a race shows it, so that the races are run first."""


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
        TRIPS,
        " AND job.token = NEW.token AND job.lease_id = NEW.lease_id",
        "",
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
        TRIPS,
        "attempt = attempt + 1,\n    token = token + 1",
        "token = token + 1",
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
        CLAIMING,
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
        CLAIMING,
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
        "a signal that comes between look and suspend is lost",
        "L1",
        LIFECYCLE,
        "now + (0 if _heard_late(job, move) else delay)",
        "now + delay",
    ),
    Mutant(
        "a job goes on waiting for a signal it awaits no longer",
        "S17",
        LIFECYCLE,
        "awaits=move.awaits if move.state is State.RETRYING and move.verb is not Verb.SIGNAL else flow.awaits,",
        "awaits=move.awaits or flow.awaits,",
    ),
    Mutant(
        "a cancelled job is not undone",
        "L3",
        LIFECYCLE,
        "return _ended(job, move._replace(purge_after=retention.cancelled, cancel_requested=True))",
        "return move._replace(purge_after=retention.cancelled, cancel_requested=True)",
    ),
    Mutant(
        "an ended job keeps the credits that were set aside",
        "S28",
        LIFECYCLE,
        "reserved=0 if over else max(flow.reserved - move.spend, 0),",
        "reserved=max(flow.reserved - move.spend, 0),",
    ),
    Mutant(
        "a completion does not say that it gives credits back",
        "S28",
        LIFECYCLE,
        "if spend or job.flow is not None else move",
        "if spend else move",
    ),
    Mutant(
        "a key for one active job is free while that one waits to be retried",
        "S6",
        LIFECYCLE,
        "return owner.state not in TERMINAL",
        "return owner.state in (State.CREATED, State.QUEUED, State.RUNNING)",
    ),
    Mutant(
        "a step that is on record moves the cursor again",
        "S20",
        SETTLEMENT,
        """        if recorded and move.verb is Verb.CHECKPOINT:
            return Answer.OK
""",
        "",
    ),
    Mutant(
        "a step is recorded for whoever asks in SQL",
        "S9",
        CHECKPOINTS,
        " AND job.token = NEW.token AND job.lease_id = NEW.lease_id",
        "",
    ),
    Mutant(
        "children are stored though their parent's move is refused",
        "S3",
        SETTLEMENT,
        "        if job is None or not lifecycle.holds(job, move):\n",
        """        if move.children:
            self._spawn(move)
        if job is None or not lifecycle.holds(job, move):
""",
    ),
    Mutant(
        "a child that waits to be retried does not count as open",
        "S23",
        STATEMENTS,
        "finished_at IS NULL",
        "state IN ('created', 'queued', 'running')",
        "open_children",
    ),
    Mutant(
        "credits are spent that the account does not hold",
        "S28",
        SQLITE_BOOKS,
        """        if not accounts.affords(found, change):
            return False
""",
        "",
    ),
    Mutant(
        "events are told of moves that were refused",
        "S35",
        SETTLEMENT,
        """        if self._told:
            books.tell(self._db, self._told, self._now)
""",
        """        if told := [move for move in moves if move.events]:
            books.tell(self._db, told, self._now)
""",
    ),
    Mutant(
        "events go before the last sink has had them",
        "S35",
        OUTBOX,
        "SELECT min(position) FROM sink",
        "SELECT max(position) FROM sink",
        "trim",
    ),
    Mutant(
        "a parent looks at its first child only",
        "L3",
        DURABLE,
        "for child in found):",
        "for child in found[:1]):",
    ),
    Mutant(
        "a step on record is run again",
        "S21",
        DURABLE,
        "        if record is None:\n            call = ",
        "        if record is None or not self.undoing:\n            call = ",
    ),
    Mutant(
        "two waits take the same signal",
        "S22",
        DURABLE,
        "free = [signal for signal in signals if signal.name == name][taken:]",
        "free = [signal for signal in signals if signal.name == name]",
    ),
    Mutant(
        "steps are undone first to last",
        "S23",
        DURABLE,
        "for step in reversed(self._undos):",
        "for step in self._undos:",
    ),
    Mutant(
        "what was undone is undone again after a crash",
        "S21",
        DURABLE,
        "if key not in self._stage.recorded and step.key not in inherited:",
        "if step.key not in inherited:",
    ),
    Mutant(
        "a schedule moves on before its job is stored",
        "S7",
        FIRING,
        "    stored, done = _insert(insert, record, spec, times)\n",
        """    if next_at != record.next_at:
        last_at = max(times, default=record.last_at)
        store.save_schedule(record._replace(next_at=next_at, last_at=last_at), record.version)
    stored, done = _insert(insert, record, spec, times)
""",
    ),
    Mutant(
        "a sink's position is recorded before the delivery",
        "S35",
        RELAY,
        "            self._refusing = not self._delivered(batch)\n",
        """            self._position = batch[-1].position
            self._record()
            self._refusing = not self._delivered(batch)
""",
    ),
    Mutant(
        "PostgreSQL completes without asking for the token",
        "S9",
        MOVES,
        "(job_id, token, lease_id) IN (",
        "(job_id, token * 0, '') IN (SELECT unnest(CAST(%(ids)s AS uuid[])), 0, '' UNION ALL",
        "endings",
    ),
    Mutant(
        "PostgreSQL extends anybody's lease",
        "S9",
        MOVES,
        "(job_id, token, lease_id) IN (",
        "(job_id, token * 0, '') IN (SELECT unnest(CAST(%(ids)s AS uuid[])), 0, '' UNION ALL",
        "heartbeat",
    ),
    Mutant(
        "PostgreSQL writes over a version it has not seen",
        "S14",
        MOVES,
        " AND version = CAST(%(seen)s AS integer)",
        "",
        "write_from_running",
        raced=True,
    ),
    Mutant(
        "PostgreSQL lets two claim one job",
        "S8",
        POSTGRES,
        "DELETE FROM {schema}.waiting WHERE ctid = ANY (ARRAY({picked})) {allowed} "
        "RETURNING *, (SELECT now FROM clock) AS now",
        "SELECT *, (SELECT now FROM clock) AS now FROM {schema}.waiting WHERE ctid = ANY (ARRAY({picked})) {allowed}",
        "taken",
    ),
    Mutant(
        "PostgreSQL claims before the time",
        "S17",
        POSTGRES,
        "      AND waiting.available_at <= (SELECT now FROM clock) "
        "AND (waiting.expires_at IS NULL OR waiting.expires_at > (SELECT now FROM clock))\n"
        "      AND {tried}\n    ORDER BY waiting.available_at, waiting.job_id LIMIT room.jobs",
        "      AND {tried}\n    ORDER BY waiting.available_at, waiting.job_id LIMIT room.jobs",
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
        """    if not lifecycle.same_request(owner, new):
        raise lifecycle.key_conflict(new, owner)
""",
        "",
    ),
    Mutant(
        "PostgreSQL records a step for whoever asks",
        "S9",
        MOVES,
        "(job_id, token, lease_id) IN (",
        "(job_id, token * 0, '') IN (SELECT unnest(CAST(%(ids)s AS uuid[])), 0, '' UNION ALL",
        "checkpoint",
    ),
    Mutant(
        "PostgreSQL reckons with accounts that others change",
        "S28",
        BOOKS,
        " ORDER BY tenant FOR UPDATE",
        " ORDER BY tenant",
        "lock_accounts",
        raced=True,
    ),
    Mutant(
        "PostgreSQL tells of moves that were not written",
        "S35",
        MOVES,
        "CASE WHEN each.job_id IN (SELECT job_id FROM done) THEN true ELSE false END",
        "true",
        "told",
    ),
    Mutant(
        "PostgreSQL spends credits that the account does not hold",
        "S28",
        LEDGER,
        """        if not accounts.affords(account, change):
            raise InsufficientCredits
""",
        "",
    ),
    Mutant(
        "PostgreSQL moves a schedule on that others have changed",
        "S7",
        BOOKS,
        " AND version = %(seen)s",
        "",
        "change_schedule",
    ),
    Mutant(
        "PostgreSQL writes over a page that others have changed",
        "S7",
        PAGES,
        " AND version = %(seen)s",
        "",
        "change_page",
    ),
    Mutant(
        "SQLite writes over a page that is there",
        "S7",
        SQLITE_PAGES,
        "WHERE page.expires_at <= ?5",
        "WHERE coalesce(page.expires_at, 0) <= ?5",
        "add_page",
    ),
    Mutant(
        "a revoked token goes on letting its holder in",
        "S31",
        TOKENS,
        """        if self.record.state(now) != "active":
            return None
""",
        "",
    ),
    Mutant(
        "PostgreSQL moves the cursor again for a step on record",
        "S20",
        CARRYING,
        """        if move.verb is Verb.CHECKPOINT and (move.id, move.step) in self.steps:
            return Answer.OK
""",
        "",
    ),
    Mutant(
        "PostgreSQL stores children that are not paid for",
        "S3",
        CARRYING,
        "insertion.statements(children, sight.now)",
        "insertion.statements(offered, sight.now)",
    ),
    Mutant(
        "one job too many runs under a limit",
        "S29",
        GATES,
        "if self._count(subject) >= limit.concurrency:",
        "if self._count(subject) > limit.concurrency:",
    ),
    Mutant(
        "a claim draws no tokens",
        "S30",
        GATES,
        "self._levels[subject] = self.drawn[subject] = full_at",
        "self._levels[subject] = full_at",
    ),
    Mutant(
        "what ran before a limit does not count under it",
        "S29",
        TURNS,
        "if claims and laned != stamp:",
        "if claims and laned > stamp:",
    ),
    Mutant(
        "what was claimed while a limit was far does not count when it comes near",
        "S29",
        TURNS,
        "if unnamed and plan.shape:",
        "if unnamed > 1 and plan.shape:",
    ),
    Mutant(
        "a visit to a lane never ends",
        "L4",
        RING,
        "while used < weight and not stand.over:",
        "while not stand.over:",
    ),
    Mutant(
        "a claim that was made ready and found nothing asks for no rules",
        "S29",
        CLAIMS,
        "elif self._turns.knows(ready.known):",
        "elif True:",
    ),
    Mutant(
        "what a step wrote is not committed with its record",
        "S24",
        ATTEMPT,
        "return transaction if transaction is not None and transaction.open else None",
        "return None",
    ),
    Mutant(
        "a step whose commit was lost is run again at once",
        "S24",
        STAGE,
        """            self._attempt.stop = self._attempt.stop or Stop.RELEASE
            raise AttemptStopped
        return Answer.OK
""",
        """            return Answer.OK
        return Answer.OK
""",
    ),
    Mutant(
        "a claim whose line broke does not ask what it got",
        "S1",
        CLAIMS,
        """        except psycopg.Error:
            self._unanswered.add(want.lease_id)
            return None
""",
        """        except psycopg.Error:
            return None
""",
    ),
    Mutant(
        "a call that comes while another is answered is taken for that one",
        "L1",
        BELL,
        """            rung = rung or (heeded and not self._unread)
            self._unread = False
""",
        """            rung = rung or (heeded and not self._unread)
""",
    ),
    Mutant(
        "a call that comes with the answer to a claim is not heard",
        "L1",
        BELL,
        "ears.pgconn.notify_handler = self._overheard.append",
        "ears.pgconn.notify_handler = None",
    ),
    Mutant(
        "a worker that was turned away takes it that there is nothing",
        "L1",
        CLAIMS,
        "return done, TurnedAway()",
        "return done, []",
    ),
    Mutant(
        "a crowd on one queue turns the workers of another away",
        "L1",
        GATE,
        'queues = "*" if want.queues is None else "\\n".join(sorted(want.queues))',
        'queues = "*"',
    ),
)
