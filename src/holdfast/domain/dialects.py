"""The five seeds' vocabularies as data, and the only place that knows their spellings.

A dialect says what one seed calls a job's state, which fields its record has, in which order, and how it writes a
time. `status` and `states` translate one way and the other; `render` gives the whole record as JSON-able values.
Nothing here decides anything about a job: the record is the truth, and a dialect is a way of reading it aloud.

A dialect without a word for `created` shows it as its waiting state (001 `queued`, 002 `pending`, 004 `PENDING`), since
such a job will run and nobody has begun it. Where a seed's status depends on more than the state, the table holds an
`Either` with the condition by name.

The end of the module holds the one message format: the eight-field envelope v1 of seed 000.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any, NamedTuple, assert_never

from holdfast.domain import codec, ids
from holdfast.domain.errors import BadEnvelope, BadInput
from holdfast.domain.job import PLAIN, TERMINAL, Cause, Flow, JobRecord, State, Trigger
from holdfast.domain.moments import SECOND, Micros, to_datetime

ENVELOPE_VERSION = 1
_SHOWN = 80
_UNKEEPABLE = re.compile(r"[\x00\ud800-\udfff]")


class When(Enum):
    """What a status may depend on besides the state."""

    DUE = "due"
    """`available_at` has come."""
    BEGUN = "begun"
    """The start of the present attempt is on record."""
    REJECTED = "rejected"
    """The job died because trying again could not help."""

    def holds(self, job: JobRecord, now: Micros) -> bool:
        """Tell whether the condition is met."""
        match self:
            case When.DUE:
                return job.available_at <= now
            case When.BEGUN:
                return job.begun_at is not None
            case When.REJECTED:
                return job.cause == Cause.REJECTED
            case _:
                assert_never(self)


class Either(NamedTuple):
    """Two statuses for one state, and the condition that picks the first."""

    when: When
    then: str
    otherwise: str


class Form(Enum):
    """How a field's value is written."""

    PLAIN = "plain"
    """As it is."""
    ISO = "iso"
    """A time as ISO 8601 text; see `timestamp`."""
    EPOCH = "epoch"
    """A time as whole seconds since 1970, rounded up: what expires then is never gone early."""
    STATUS = "status"
    """The dialect's own word for the job's state."""


class Field(NamedTuple):
    """One field of a seed's record: its source (a field of `JobRecord`, or a function of it) and how it is written."""

    source: str | Callable[[JobRecord], Any]
    form: Form = Form.PLAIN

    def read(self, job: JobRecord) -> Any:
        """Give the value before it is written in its form."""
        return getattr(job, self.source) if isinstance(self.source, str) else self.source(job)


@dataclass(frozen=True, slots=True, eq=False)
class Dialect:
    """One seed's vocabulary."""

    name: str
    statuses: Mapping[State, str | Either]
    fields: Mapping[str, Field]

    def status(self, job: JobRecord, now: Micros) -> str:
        """Say the job's state in the seed's word."""
        word = self.statuses[job.state]
        if isinstance(word, str):
            return word
        return word.then if word.when.holds(job, now) else word.otherwise

    def states(self, status: str) -> frozenset[State]:
        """Give the states a status may stand for; whoever filters by it asks `status` of each job found."""
        found = frozenset(state for state, word in self.statuses.items() if status in _words(word))
        if not found:
            known = dict.fromkeys(each for word in self.statuses.values() for each in _words(word))
            msg = f"{_shown(status)} is not a status of the dialect {self.name}; it has {_listed(known)}."
            raise BadInput(msg)
        return found

    def render(self, job: JobRecord, now: Micros) -> dict[str, Any]:
        """Give the job as the seed's record: its field names, in its order, with JSON-able values."""
        return {name: self._write(field, job, now) for name, field in self.fields.items()}

    def _write(self, field: Field, job: JobRecord, now: Micros) -> Any:
        if field.form is Form.STATUS:
            return self.status(job, now)
        value = field.read(job)
        if value is None:
            return None
        match field.form:
            case Form.PLAIN:
                return value
            case Form.ISO:
                return timestamp(value)
            case Form.EPOCH:
                return -(-value // SECOND)
            case _:
                assert_never(field.form)


def timestamp(at: Micros) -> str:
    """Write an instant as text of fixed width, in UTC with microseconds, so that text order is time order."""
    return to_datetime(at).isoformat(timespec="microseconds")


def dialect(name: str) -> Dialect:
    """Find a dialect by its name."""
    found = DIALECTS.get(name)
    if found is None:
        msg = f"{_shown(name)} is not a dialect; the known ones are {_listed(DIALECTS)}."
        raise BadInput(msg)
    return found


def _words(word: str | Either) -> tuple[str, ...]:
    return (word,) if isinstance(word, str) else (word.then, word.otherwise)


def _listed(names: Iterable[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _owner(job: JobRecord) -> str | None:
    return job.lease.owner if job.lease else None


def _lease_end(job: JobRecord) -> Micros | None:
    return job.lease.expires_at if job.lease else None


def _lease_token(job: JobRecord) -> str | None:
    return str(job.lease) if job.lease else None


def _flow(job: JobRecord) -> Flow:
    return job.flow or PLAIN


def _error_text(job: JobRecord) -> str | None:
    """Fold code and message into the one text that 002 and 003 have room for."""
    failure = job.failure
    if failure is None:
        return None
    return f"{failure.code}: {failure.message}" if failure.message else failure.code


def _error_type(job: JobRecord) -> str | None:
    """Classify the error, not the outcome: a transient error that used up the last retry is still RETRYABLE."""
    failure = job.failure
    if failure is None:
        return None
    return "RETRYABLE" if failure.retryable else "TERMINAL"


def _sort_key(job: JobRecord) -> str:
    return f"scheduled#{timestamp(job.available_at)}#{job.id}"


def _completed_at(job: JobRecord) -> Micros | None:
    """002 sets it only "when marked completed"; a dead or cancelled job has none."""
    return job.finished_at if job.state is State.SUCCEEDED else None


def _next_look(job: JobRecord) -> Micros:
    """004 sets `available_at` to the end of the lease for as long as there is one."""
    return job.lease.expires_at if job.lease else job.available_at


def _recorded_start(job: JobRecord) -> Micros | None:
    """004's LEASED becomes RUNNING when this is set.

    A quick attempt may end before its start is written down; if it succeeded it did run, and its claim stands in.
    """
    if job.begun_at is None and job.state is State.SUCCEEDED:
        return job.claimed_at
    return job.begun_at


_CLAIM = Either(When.BEGUN, "running", "claimed")
_LEASE = Either(When.BEGUN, "RUNNING", "LEASED")
_BACKOFF_003 = Either(When.DUE, "QUEUED", "RETRYING")
_BACKOFF_004 = Either(When.DUE, "PENDING", "FAILED_RETRYABLE")
_DEATH = Either(When.REJECTED, "failed", "dead_lettered")

_STATUSES: Mapping[State, tuple[str | Either, ...]] = {
    State.CREATED: ("pending", "queued", "pending", "CREATED", "PENDING"),
    State.QUEUED: ("queued", "queued", "pending", "QUEUED", "PENDING"),
    State.RUNNING: ("running", _CLAIM, "in_progress", "RUNNING", _LEASE),
    State.RETRYING: ("failed", "queued", "failed", _BACKOFF_003, _BACKOFF_004),
    State.SUCCEEDED: ("completed", "succeeded", "completed", "SUCCEEDED", "SUCCEEDED"),
    State.DEAD: ("dead", _DEATH, "dead_letter", "FAILED", "DLQ"),
    State.CANCELLED: ("canceled", "cancelled", "cancelled", "FAILED", "CANCELED"),
}
"""The table of the design, row by row; the columns are the dialects in the order of `_FIELDS`."""

_STATUS = Field("state", Form.STATUS)

_FIELDS: Mapping[str, Mapping[str, Field]] = {
    "contract": {
        "job_id": Field("id"),
        "workspace_id": Field("tenant"),
        "user_id": Field("user"),
        "workflow_id": Field("kind"),
        "trigger_type": Field("trigger"),
        "status": _STATUS,
        "attempts": Field("attempt"),
        "max_attempts": Field("max_attempts"),
        "step_cursor": Field("step_cursor"),
        "steps_total": Field("steps_total"),
        "credits_estimate": Field(lambda job: _flow(job).estimate),
        "credits_reserved": Field(lambda job: _flow(job).reserved),
        "credits_spent": Field(lambda job: _flow(job).spent),
        "idempotency_key": Field("key"),
        "last_error_code": Field("failure_code"),
        "last_error_message": Field("failure_message"),
        "created_at": Field("created_at", Form.ISO),
        "updated_at": Field("updated_at", Form.ISO),
        "started_at": Field("started_at", Form.ISO),
        "completed_at": Field("finished_at", Form.ISO),
        "ttl_at": Field("purge_at", Form.EPOCH),
    },
    "idempotency": {
        "job_id": Field("id"),
        "status": _STATUS,
        "version": Field("version"),
        "locked_by": Field(_owner),
    },
    "scheduled": {
        "PK": Field(lambda _job: "job"),
        "SK": Field(_sort_key),
        "job_type": Field("kind"),
        "payload": Field("payload"),  # a JSON blob: the text itself, so that no number is ever rounded
        "scheduled_for": Field("available_at", Form.ISO),
        "status": _STATUS,
        "locked_by": Field(_owner),
        "lock_expires_at": Field(_lease_end, Form.ISO),
        "attempts": Field("attempt"),
        "last_error": Field(_error_text),
        "created_at": Field("created_at", Form.ISO),
        "completed_at": Field(_completed_at, Form.ISO),
    },
    "lifecycle": {
        "jobId": Field("id"),
        "state": _STATUS,
        "createdAt": Field("created_at", Form.ISO),
        "startedAt": Field("started_at", Form.ISO),
        "completedAt": Field("finished_at", Form.ISO),
        "retryCount": Field(lambda job: max(job.attempt - 1, 0)),
        "maxRetries": Field(lambda job: job.max_attempts - 1),
        "lastError": Field(_error_text),
        "errorType": Field(_error_type),
    },
    "leasing": {
        "id": Field("id"),
        "status": _STATUS,
        "priority": Field("priority"),
        "attempts": Field("attempt"),
        "max_attempts": Field("max_attempts"),
        "available_at": Field(_next_look, Form.ISO),
        "started_at": Field(_recorded_start, Form.ISO),
        "expires_at": Field(_lease_end, Form.ISO),
        "token": Field(_lease_token),
        "idempotency_key": Field("key"),
        "tenant": Field("tenant"),
        "created_at": Field("created_at", Form.ISO),
    },
}

DIALECTS: Mapping[str, Dialect] = MappingProxyType(
    {
        name: Dialect(
            name, MappingProxyType({state: _STATUSES[state][column] for state in State}), MappingProxyType(fields)
        )
        for column, (name, fields) in enumerate(_FIELDS.items())
    }
)
"""Every dialect by its name, in the order of the seeds."""


class Envelope(NamedTuple):
    """The body of an SQS message: a thin pointer to the job, whose record holds the full state."""

    v: int
    job_id: str
    workspace_id: str
    trigger_type: str
    attempt: int
    max_attempts: int
    trace_id: str | None
    idempotency_key: str | None


_MAY_BE_NULL = frozenset({"trace_id", "idempotency_key"})


def envelope(job: JobRecord) -> dict[str, Any]:
    """Write the message that would start the job's next attempt; of a job that has ended, that of its last one."""
    trace_id = job.trace_id or job.id
    attempt = max(job.attempt, 1) if job.state in TERMINAL else job.attempt + 1
    sent = Envelope(ENVELOPE_VERSION, job.id, job.tenant, job.trigger, attempt, job.max_attempts, trace_id, job.key)
    return sent._asdict()


def read_envelope(body: str | bytes | Mapping[str, Any]) -> Envelope:
    """Read a message body, or say in one sentence why it is not a version 1 envelope.

    Unknown fields are ignored. Other programs may leave out `trace_id` and `idempotency_key`, or send them as null.
    """
    sent = _parsed(body)
    if "v" in sent and (type(sent["v"]) is not int or sent["v"] != ENVELOPE_VERSION):
        msg = f"The envelope has version {_shown(sent['v'])}; only version {ENVELOPE_VERSION} is understood."
        raise BadEnvelope(msg)
    missing = [name for name in Envelope._fields if name not in sent and name not in _MAY_BE_NULL]
    if missing:
        msg = f"The envelope lacks {_listed(missing)}."
        raise BadEnvelope(msg)
    try:
        job_id = ids.job_id(sent["job_id"])
    except BadInput as error:
        msg = f"The envelope's job_id must be a UUID, not {_shown(sent['job_id'])}."
        raise BadEnvelope(msg) from error
    trigger = sent["trigger_type"]
    if not isinstance(trigger, str) or trigger not in set(Trigger):
        msg = f"The envelope's trigger_type {_shown(trigger)} is unknown; the known ones are {_listed(Trigger)}."
        raise BadEnvelope(msg)
    return Envelope(
        ENVELOPE_VERSION,
        job_id,
        _text(sent, "workspace_id"),
        str(trigger),
        _count(sent, "attempt"),
        _count(sent, "max_attempts"),
        None if sent.get("trace_id") is None else _text(sent, "trace_id"),
        None if sent.get("idempotency_key") is None else _text(sent, "idempotency_key"),
    )


def _parsed(body: str | bytes | Mapping[str, Any]) -> Mapping[str, Any]:
    value: Any = body
    if isinstance(body, str | bytes):
        try:
            value = codec.decode(body if isinstance(body, str) else body.decode())
        except (ValueError, TypeError) as error:  # a lone surrogate is a TypeError there
            msg = "The message body is not JSON, so it is not an envelope."
            raise BadEnvelope(msg) from error
    if not isinstance(value, Mapping):
        msg = "The message body is not a JSON object, so it is not an envelope."
        raise BadEnvelope(msg)
    return value


def _text(sent: Mapping[str, Any], name: str) -> str:
    value = sent[name]
    if not isinstance(value, str) or _UNKEEPABLE.search(value):
        msg = f"The envelope's {name} must be text that every store can keep, not {_shown(value)}."
        raise BadEnvelope(msg)
    return value


def _count(sent: Mapping[str, Any], name: str) -> int:
    value = sent[name]
    if type(value) is not int or not 1 <= value <= codec.MAX_INT:
        msg = f"The envelope's {name} must be a whole number of at least 1, not {_shown(value)}."
        raise BadEnvelope(msg)
    return value
