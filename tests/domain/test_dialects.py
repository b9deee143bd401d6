"""Each seed's words, read from the seeds and not from the module: the tables here are written out on purpose."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain import lifecycle
from holdfast.domain.dialects import DIALECTS, Envelope, Form, dialect, envelope, read_envelope, timestamp
from holdfast.domain.errors import BadEnvelope, BadInput
from holdfast.domain.job import Cause, Failure, JobRecord, NewJob, Retention, State
from holdfast.domain.moments import DAY, SECOND, Micros

NOW: Micros = 1_794_787_200 * SECOND  # 2026-11-16T00:00:00Z
ID = "0197f3a0-1111-7abc-8def-0123456789ab"
SECRET = "the-payload-nobody-may-see"
RETENTION = Retention()
TRANSIENT = Failure("timeout", "the printer did not answer", retryable=True)
FATAL = Failure("unsupported_format", "not a document", retryable=False)

NEW = NewJob(
    kind="daily_summary",
    payload=json.dumps({"text": SECRET}),
    tenant="acme",
    user="user-7",
    priority=5,
    trigger="schedule",
    trace_id="trace-1",
    key="summary:7",
    steps_total=3,
)


def created() -> JobRecord:
    return lifecycle.create(ID, NEW._replace(state=State.CREATED), NOW)


def queued() -> JobRecord:
    return lifecycle.create(ID, NEW, NOW)


def claimed(job: JobRecord | None = None, at: Micros = NOW + SECOND) -> JobRecord:
    return lifecycle.claim(job or queued(), lease_id="abc", owner="worker-1", lease=30 * SECOND, now=at)


def begun() -> JobRecord:
    job = claimed()
    return lifecycle.apply(job, lifecycle.start(job), NOW + 2 * SECOND)


def failed(failure: Failure = TRANSIENT) -> JobRecord:
    job = begun()
    return lifecycle.apply(job, lifecycle.fail(job, failure, draw=0.0, retention=RETENTION), NOW + 3 * SECOND)


def retrying() -> JobRecord:
    """Back at NOW + 5 s: two seconds after it failed."""
    return failed()


def succeeded() -> JobRecord:
    job = begun()
    return lifecycle.apply(job, lifecycle.complete(job, f'"{SECRET}"', RETENTION), NOW + 3 * SECOND)


def dead(cause: Cause) -> JobRecord:
    return failed(FATAL)._replace(cause=cause)


def cancelled() -> JobRecord:
    return lifecycle.apply(queued(), lifecycle.cancel(queued(), RETENTION), NOW + 3 * SECOND)


LATER = NOW + 4 * SECOND
DUE = NOW + 5 * SECOND

# One line per row of the design's table, and one more for each part of a row that depends on more than the state.
WORDS = [
    (created(), LATER, ("pending", "queued", "pending", "CREATED", "PENDING")),
    (queued(), LATER, ("queued", "queued", "pending", "QUEUED", "PENDING")),
    (claimed(), LATER, ("running", "claimed", "in_progress", "RUNNING", "LEASED")),
    (begun(), LATER, ("running", "running", "in_progress", "RUNNING", "RUNNING")),
    (retrying(), LATER, ("failed", "queued", "failed", "RETRYING", "FAILED_RETRYABLE")),
    (retrying(), DUE, ("failed", "queued", "failed", "QUEUED", "PENDING")),
    (succeeded(), LATER, ("completed", "succeeded", "completed", "SUCCEEDED", "SUCCEEDED")),
    (dead(Cause.EXHAUSTED), LATER, ("dead", "dead_lettered", "dead_letter", "FAILED", "DLQ")),
    (dead(Cause.CRASHED), LATER, ("dead", "dead_lettered", "dead_letter", "FAILED", "DLQ")),
    (dead(Cause.EXPIRED), LATER, ("dead", "dead_lettered", "dead_letter", "FAILED", "DLQ")),
    (dead(Cause.REJECTED), LATER, ("dead", "failed", "dead_letter", "FAILED", "DLQ")),
    (cancelled(), LATER, ("canceled", "cancelled", "cancelled", "FAILED", "CANCELED")),
]

C, Q, R, T, S, D, X = State
STANDS_FOR: dict[str, dict[str, set[State]]] = {
    "contract": {
        "pending": {C},
        "queued": {Q},
        "running": {R},
        "completed": {S},
        "failed": {T},
        "dead": {D},
        "canceled": {X},
    },
    "idempotency": {
        "queued": {C, Q, T},
        "claimed": {R},
        "running": {R},
        "succeeded": {S},
        "failed": {D},
        "cancelled": {X},
        "dead_lettered": {D},
    },
    "scheduled": {
        "pending": {C, Q},
        "in_progress": {R},
        "completed": {S},
        "failed": {T},
        "dead_letter": {D},
        "cancelled": {X},
    },
    "lifecycle": {
        "CREATED": {C},
        "QUEUED": {Q, T},
        "RUNNING": {R},
        "SUCCEEDED": {S},
        "FAILED": {D, X},
        "RETRYING": {T},
    },
    "leasing": {
        "PENDING": {C, Q, T},
        "LEASED": {R},
        "RUNNING": {R},
        "SUCCEEDED": {S},
        "FAILED_RETRYABLE": {T},
        "DLQ": {D},
        "CANCELED": {X},
    },
}

T0 = "2026-11-16T00:00:00.000000+00:00"
T1 = "2026-11-16T00:00:01.000000+00:00"
T2 = "2026-11-16T00:00:02.000000+00:00"
T3 = "2026-11-16T00:00:03.000000+00:00"
T5 = "2026-11-16T00:00:05.000000+00:00"
LEASE_END = "2026-11-16T00:00:31.000000+00:00"


def test_there_is_one_dialect_per_seed_in_their_order() -> None:
    assert list(DIALECTS) == ["contract", "idempotency", "scheduled", "lifecycle", "leasing"]
    assert all(dialect(name) is DIALECTS[name] and DIALECTS[name].name == name for name in DIALECTS)


def test_an_unknown_dialect_is_bad_input_that_names_the_known_ones() -> None:
    expected = (
        "^'klingon' is not a dialect; the known ones are contract, idempotency, scheduled, lifecycle and leasing[.]$"
    )
    with pytest.raises(BadInput, match=expected):
        dialect("klingon")


def test_a_dialect_cannot_be_changed() -> None:
    spoken = dialect("contract")
    with pytest.raises(AttributeError):
        spoken.name = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        spoken.statuses[State.DEAD] = "gone"  # type: ignore[index]
    with pytest.raises(TypeError):
        DIALECTS["other"] = spoken  # type: ignore[index]


@pytest.mark.parametrize("name", DIALECTS)
def test_every_field_is_read_from_something_a_record_has(name: str) -> None:
    named = {field.source for field in DIALECTS[name].fields.values() if isinstance(field.source, str)}
    assert named <= set(JobRecord._fields)
    assert [field.form for field in DIALECTS[name].fields.values()].count(Form.STATUS) == 1


@pytest.mark.parametrize(("job", "now", "words"), WORDS)
def test_each_row_of_the_table_reads_as_the_seeds_say(job: JobRecord, now: Micros, words: tuple[str, ...]) -> None:
    assert tuple(spoken.status(job, now) for spoken in DIALECTS.values()) == words


@pytest.mark.parametrize(
    ("name", "status", "states"),
    [(name, status, states) for name, table in STANDS_FOR.items() for status, states in table.items()],
)
def test_each_status_stands_for_the_states_it_can_show(name: str, status: str, states: set[State]) -> None:
    assert dialect(name).states(status) == states


@pytest.mark.parametrize("name", DIALECTS)
def test_the_rows_use_every_status_of_the_seed_and_no_other(name: str) -> None:
    spoken = dialect(name)
    assert {spoken.status(job, now) for job, now, _ in WORDS} == set(STANDS_FOR[name])


@pytest.mark.parametrize(
    ("name", "status", "known"),
    [
        ("contract", "cancelled", "pending, queued, running, failed, completed, dead and canceled"),
        ("idempotency", "in_progress", "queued, running, claimed, succeeded, failed, dead_lettered and cancelled"),
        ("scheduled", "PENDING", "pending, in_progress, failed, completed, dead_letter and cancelled"),
        ("lifecycle", "DLQ", "CREATED, QUEUED, RUNNING, RETRYING, SUCCEEDED and FAILED"),
        ("leasing", "", "PENDING, RUNNING, LEASED, FAILED_RETRYABLE, SUCCEEDED, DLQ and CANCELED"),
    ],
)
def test_a_status_of_another_seed_is_bad_input(name: str, status: str, known: str) -> None:
    with pytest.raises(BadInput) as caught:
        dialect(name).states(status)
    assert str(caught.value) == f"{status!r} is not a status of the dialect {name}; it has {known}."


def test_the_contract_has_its_21_core_fields_in_order() -> None:
    record = dialect("contract").render(succeeded(), LATER)
    assert list(record.items()) == [
        ("job_id", ID),
        ("workspace_id", "acme"),
        ("user_id", "user-7"),
        ("workflow_id", "daily_summary"),
        ("trigger_type", "schedule"),
        ("status", "completed"),
        ("attempts", 1),
        ("max_attempts", 5),
        ("step_cursor", 0),
        ("steps_total", 3),
        ("credits_estimate", 0),
        ("credits_reserved", 0),
        ("credits_spent", 0),
        ("idempotency_key", "summary:7"),
        ("last_error_code", None),
        ("last_error_message", None),
        ("created_at", T0),
        ("updated_at", T3),
        ("started_at", T1),
        ("completed_at", T3),
        ("ttl_at", (NOW + 3 * SECOND + 7 * DAY) // SECOND),
    ]
    assert len(record) == 21


def test_the_contract_of_a_waiting_job_has_no_times_that_have_not_come() -> None:
    record = dialect("contract").render(queued(), LATER)
    assert (record["attempts"], record["started_at"], record["completed_at"], record["ttl_at"]) == (0, None, None, None)


def test_the_contract_shows_the_code_and_the_message_of_the_last_failure_apart() -> None:
    record = dialect("contract").render(retrying(), LATER)
    assert (record["last_error_code"], record["last_error_message"]) == (TRANSIENT.code, TRANSIENT.message)


def test_started_at_of_the_contract_is_the_first_pick_up_whatever_follows() -> None:
    again = claimed(retrying(), at=DUE)
    assert dialect("contract").render(again, DUE)["started_at"] == T1


def test_a_ttl_never_ends_before_the_retention_does() -> None:
    job = succeeded()._replace(purge_at=NOW + 1)
    assert dialect("contract").render(job, LATER)["ttl_at"] == NOW // SECOND + 1


def test_idempotency_has_the_four_fields_its_harness_needs() -> None:
    assert list(dialect("idempotency").render(claimed(), LATER).items()) == [
        ("job_id", ID),
        ("status", "claimed"),
        ("version", 2),
        ("locked_by", "worker-1"),
    ]


@pytest.mark.parametrize("name", ["idempotency", "scheduled"])
@pytest.mark.parametrize("job", [queued(), retrying(), succeeded(), failed(FATAL), cancelled()])
def test_a_job_that_does_not_run_is_locked_by_nobody(name: str, job: JobRecord) -> None:
    record = dialect(name).render(job, LATER)
    assert record["locked_by"] is None
    assert record.get("lock_expires_at") is None


def test_scheduled_has_its_twelve_fields_in_order() -> None:
    assert list(dialect("scheduled").render(claimed(), LATER).items()) == [
        ("PK", "job"),
        ("SK", f"scheduled#{T0}#{ID}"),
        ("job_type", "daily_summary"),
        ("payload", json.dumps({"text": SECRET})),
        ("scheduled_for", T0),
        ("status", "in_progress"),
        ("locked_by", "worker-1"),
        ("lock_expires_at", LEASE_END),
        ("attempts", 1),
        ("last_error", None),
        ("created_at", T0),
        ("completed_at", None),
    ]


def test_a_back_off_moves_scheduled_for_and_the_sort_key_together() -> None:
    record = dialect("scheduled").render(retrying(), LATER)
    assert record["scheduled_for"] == T5
    assert record["SK"] == f"scheduled#{T5}#{ID}"
    assert record["last_error"] == "timeout: the printer did not answer"


def test_completed_at_of_scheduled_is_only_for_the_completed() -> None:
    spoken = dialect("scheduled")
    assert spoken.render(succeeded(), LATER)["completed_at"] == T3
    assert spoken.render(failed(FATAL), LATER)["completed_at"] is None
    assert spoken.render(cancelled(), LATER)["completed_at"] is None


def test_an_error_without_a_message_is_told_by_its_code() -> None:
    job = failed(Failure("timeout", "", retryable=True))
    assert dialect("scheduled").render(job, LATER)["last_error"] == "timeout"


def test_lifecycle_has_its_nine_metadata_fields_in_order() -> None:
    assert list(dialect("lifecycle").render(retrying(), LATER).items()) == [
        ("jobId", ID),
        ("state", "RETRYING"),
        ("createdAt", T0),
        ("startedAt", T1),
        ("completedAt", None),
        ("retryCount", 0),
        ("maxRetries", 4),
        ("lastError", "timeout: the printer did not answer"),
        ("errorType", "RETRYABLE"),
    ]


@pytest.mark.parametrize(("attempt", "retries"), [(0, 0), (1, 0), (2, 1), (4, 3)])
def test_retries_are_the_attempts_after_the_first(attempt: int, retries: int) -> None:
    record = dialect("lifecycle").render(claimed()._replace(attempt=attempt, max_attempts=4), LATER)
    assert (record["retryCount"], record["maxRetries"]) == (retries, 3)


def test_lifecycle_calls_a_permanent_error_terminal() -> None:
    record = dialect("lifecycle").render(failed(FATAL), LATER)
    assert (record["errorType"], record["completedAt"]) == ("TERMINAL", T3)


def test_lifecycle_has_no_error_on_success_and_no_start_before_running() -> None:
    done = dialect("lifecycle").render(succeeded(), LATER)
    assert (done["lastError"], done["errorType"], done["completedAt"]) == (None, None, T3)
    assert dialect("lifecycle").render(queued(), LATER)["startedAt"] is None


def test_leasing_has_the_fields_its_design_names_and_shows_the_lease_end_as_available_at() -> None:
    assert list(dialect("leasing").render(begun(), LATER).items()) == [
        ("id", ID),
        ("status", "RUNNING"),
        ("priority", 5),
        ("attempts", 1),
        ("max_attempts", 5),
        ("available_at", LEASE_END),
        ("started_at", T2),
        ("expires_at", LEASE_END),
        ("token", "1.abc"),
        ("idempotency_key", "summary:7"),
        ("tenant", "acme"),
        ("created_at", T0),
    ]


def test_leasing_shows_leased_exactly_while_no_start_is_recorded() -> None:
    record = dialect("leasing").render(claimed(), LATER)
    assert (record["status"], record["started_at"], record["token"]) == ("LEASED", None, "1.abc")


def test_leasing_shows_no_lease_once_it_ended() -> None:
    record = dialect("leasing").render(retrying(), LATER)
    assert (record["available_at"], record["expires_at"], record["token"]) == (T5, None, None)


def test_a_quick_success_started_when_it_was_claimed() -> None:
    job = claimed()
    done = lifecycle.apply(job, lifecycle.complete(job, None, RETENTION), NOW + 3 * SECOND)
    assert dialect("leasing").render(done, LATER)["started_at"] == T1


@given(st.lists(st.integers(0, 200 * 366 * DAY), min_size=2))
def test_the_order_of_timestamps_is_the_order_of_times(times: list[Micros]) -> None:
    assert sorted(map(timestamp, times)) == [timestamp(at) for at in sorted(times)]
    assert {len(timestamp(at)) for at in times} == {32}


moments = st.integers(0, 200 * 366 * DAY)
sometimes = st.none() | moments
words = st.text('az09 -_#:{}[]"\\\n\x7fé漢🙂', max_size=12)
counts = st.integers(0, 10_000)
records = st.builds(
    JobRecord,
    id=st.uuids().map(str), kind=words, queue=words, tenant=words, user=st.none() | words, priority=st.integers(),
    payload=st.just(json.dumps({"text": SECRET})), retry=st.just(NEW.retry), max_attempts=st.integers(1, 10_000),
    crash_cap=counts, trigger=st.sampled_from(["manual", "schedule", "webhook", "file_drop"]),
    trace_id=st.none() | words, key=st.none() | words, created_at=moments, expires_at=sometimes,
    steps_total=counts, state=st.sampled_from(State),
    version=counts, generation=counts, attempt=counts, crashes=counts, available_at=moments, token=counts,
    lease_id=st.none() | words, lease_owner=st.none() | words, lease_expires_at=sometimes, claimed_at=sometimes,
    begun_at=sometimes, started_at=sometimes, finished_at=sometimes, updated_at=moments, purge_at=sometimes,
    cause=st.none() | st.sampled_from([cause.value for cause in Cause]), failure_code=st.none() | words,
    failure_message=st.none() | words, failure_retryable=st.none() | st.booleans(), cancel_requested=st.booleans(),
    step_cursor=counts, result=st.none() | st.just(f'"{SECRET}"'),
)  # fmt: skip


@given(records, moments)
def test_any_job_can_be_rendered_and_only_scheduled_carries_its_payload(job: JobRecord, now: Micros) -> None:
    for name, spoken in DIALECTS.items():
        record = spoken.render(job, now)
        assert list(record) == list(spoken.fields)
        assert json.loads(json.dumps(record)) == record
        assert (SECRET in json.dumps(record)) == (name == "scheduled")


@given(records, moments)
def test_a_status_always_leads_back_to_the_state_it_was_said_of(job: JobRecord, now: Micros) -> None:
    for name, spoken in DIALECTS.items():
        assert job.state in spoken.states(spoken.status(job, now))
        assert spoken.status(job, now) in STANDS_FOR[name]


SENT: dict[str, Any] = {
    "v": 1,
    "job_id": ID,
    "workspace_id": "acme",
    "trigger_type": "schedule",
    "attempt": 1,
    "max_attempts": 5,
    "trace_id": "trace-1",
    "idempotency_key": "summary:7",
}


def test_an_envelope_has_the_eight_fields_of_v1_and_nothing_else() -> None:
    assert list(envelope(queued()).items()) == list(SENT.items())


def test_an_envelope_names_the_attempt_that_its_delivery_would_start() -> None:
    assert envelope(retrying())["attempt"] == 2


def test_the_envelope_of_a_job_that_has_ended_names_its_last_attempt() -> None:
    assert envelope(dead(Cause.REJECTED))["attempt"] == 1
    assert envelope(dead(Cause.EXHAUSTED)._replace(attempt=5))["attempt"] == 5
    assert envelope(dead(Cause.EXPIRED)._replace(attempt=0))["attempt"] == 1


def test_a_job_without_a_trace_is_traced_by_its_id() -> None:
    assert envelope(queued()._replace(trace_id=None))["trace_id"] == ID


@pytest.mark.parametrize("body", [SENT, json.dumps(SENT), json.dumps(SENT).encode()])
def test_an_envelope_is_read_from_text_bytes_or_a_mapping(body: str | bytes | dict[str, Any]) -> None:
    assert read_envelope(body) == Envelope(1, ID, "acme", "schedule", 1, 5, "trace-1", "summary:7")


@given(records)
def test_every_envelope_we_send_can_be_read(job: JobRecord) -> None:
    assert read_envelope(json.dumps(envelope(job)))._asdict() == envelope(job)


def test_unknown_fields_of_an_envelope_are_ignored() -> None:
    assert read_envelope(SENT | {"priority": 9, "": None}) == read_envelope(SENT)


@pytest.mark.parametrize("name", ["trace_id", "idempotency_key"])
def test_other_programs_may_leave_out_the_trace_and_the_key(name: str) -> None:
    absent = {field: value for field, value in SENT.items() if field != name}
    assert getattr(read_envelope(absent), name) is None
    assert read_envelope(SENT | {name: None}) == read_envelope(absent)


@pytest.mark.parametrize("spelling", [ID.upper(), ID.replace("-", ""), f"urn:uuid:{ID}"])
def test_a_job_id_is_read_as_its_canonical_text(spelling: str) -> None:
    assert read_envelope(SENT | {"job_id": spelling}).job_id == ID


@pytest.mark.parametrize("body", ["", "{", "v=1", b"\xff\xfe", '{"v": 1', "[" * 10_000, '"\\ud800"', "\ud800"])
def test_a_body_that_is_not_json_is_refused(body: str | bytes) -> None:
    assert refusal(body) == "The message body is not JSON, so it is not an envelope."


@pytest.mark.parametrize("body", ["null", "[]", "1", '"{}"', b"true", None, 7, [SENT]])
def test_json_that_is_not_an_object_is_refused(body: Any) -> None:
    assert refusal(body) == "The message body is not a JSON object, so it is not an envelope."


@pytest.mark.parametrize("name", ["v", "job_id", "workspace_id", "trigger_type", "attempt", "max_attempts"])
def test_a_missing_field_is_named(name: str) -> None:
    assert refusal({field: value for field, value in SENT.items() if field != name}) == f"The envelope lacks {name}."


def test_all_missing_fields_are_named_at_once() -> None:
    assert refusal({"v": 1, "job_id": ID, "workspace_id": ""}) == (
        "The envelope lacks trigger_type, attempt and max_attempts."
    )


@pytest.mark.parametrize("found", [0, 2, "1", 1.0, True, None, [1]])
def test_another_version_is_told_with_the_one_understood(found: Any) -> None:
    expected = f"The envelope has version {found!r}; only version 1 is understood."
    assert refusal(SENT | {"v": found}) == expected
    assert refusal({"v": found}) == expected


@pytest.mark.parametrize("found", ["", "job-7", ID[:-1], 7, None, [ID], {}])
def test_a_job_id_must_be_a_uuid(found: Any) -> None:
    assert refusal(SENT | {"job_id": found}) == f"The envelope's job_id must be a UUID, not {found!r}."


@pytest.mark.parametrize("name", ["attempt", "max_attempts"])
@pytest.mark.parametrize("found", [0, -1, 1.5, 1.0, "1", True, None, 2**63])
def test_attempts_are_positive_whole_numbers(name: str, found: Any) -> None:
    assert (
        refusal(SENT | {name: found}) == f"The envelope's {name} must be a whole number of at least 1, not {found!r}."
    )


@pytest.mark.parametrize("found", ["cron", "MANUAL", "", None, 1, ["manual"]])
def test_an_unknown_trigger_is_told_with_the_known_ones(found: Any) -> None:
    known = "manual, schedule, webhook and file_drop"
    expected = f"The envelope's trigger_type {found!r} is unknown; the known ones are {known}."
    assert refusal(SENT | {"trigger_type": found}) == expected


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("workspace_id", None),
        ("workspace_id", 7),
        ("workspace_id", "\ud800"),
        ("trace_id", 7),
        ("trace_id", "a\x00b"),
        ("idempotency_key", ["k"]),
        ("idempotency_key", False),
    ],
)
def test_texts_are_texts_that_every_store_can_keep(name: str, found: Any) -> None:
    expected = f"The envelope's {name} must be text that every store can keep, not {found!r}."
    assert refusal(SENT | {name: found}) == expected


def test_a_refusal_stays_short_however_long_the_body() -> None:
    assert len(refusal(SENT | {"job_id": "x" * 100_000})) < 200


scalars = st.none() | st.booleans() | st.integers() | st.floats() | words
json_values = scalars | st.lists(scalars, max_size=2) | st.dictionaries(words, scalars, max_size=2)


@given(st.dictionaries(st.sampled_from(sorted(SENT)), json_values))
def test_any_damage_to_an_envelope_is_either_harmless_or_a_bad_envelope(damage: dict[str, Any]) -> None:
    try:
        read = read_envelope(SENT | damage)
    except BadEnvelope:
        assert refusal(SENT | damage).startswith("The envelope")
    else:
        assert read_envelope(read._asdict()) == read


@given(st.binary() | words)
def test_arbitrary_bodies_are_refused_and_never_crash_the_reader(body: str | bytes) -> None:
    with pytest.raises(BadEnvelope):
        read_envelope(body)


def refusal(body: Any) -> str:
    with pytest.raises(BadEnvelope) as caught:
        read_envelope(body)
    return str(caught.value)
