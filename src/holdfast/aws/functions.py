"""Functions for Lambda: one that SQS calls with batches of messages, and one that a schedule calls for upkeep.

The record is the truth and a message is a call to look at it, so each record of a batch goes through `app.process`
and ends in one of two ways: done, and SQS deletes it; or later, and SQS delivers it again. What can never be processed
(a body that is no envelope, a job that is not there) is put into the dead-letter queue with its reason and is done: no
message goes round in a loop. A batch never fails as a whole.
"""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from holdfast.app import Holdfast
from holdfast.aws.postbox import REASON, Postbox, Postboxes
from holdfast.domain.dialects import read_envelope
from holdfast.domain.errors import BadEnvelope, BadInput, HoldfastError, JobNotFound
from holdfast.domain.job import TERMINAL, State
from holdfast.domain.moments import SECOND
from holdfast.domain.move import Answer
from holdfast.runtime.delivery import CLAIMED

log = logging.getLogger("holdfast.aws")
Handler = Callable[..., dict[str, Any]]
"""Called with an event and its context."""
_RESERVE = 5.0
_SHARE = 4
"""Of a short function's time, one part in so many is kept back."""
_TROUBLE = 30
"""Seconds until a message is delivered again whose job could not be looked at."""
_BLOCKED = 30
"""The same for a job that could run by its record and may not: its queue is paused."""


class Later(NamedTuple):
    """The message is to come again, in so many seconds."""

    seconds: int


class Deadline(NamedTuple):
    """When a function must be done, by the monotonic clock."""

    at: float

    @property
    def left(self) -> float:
        """The seconds until then."""
        return self.at - time.monotonic()


def lambda_handler(app: Holdfast, *, reserve: float = _RESERVE, sqs: Any = None) -> Handler:
    """Make the function that an SQS event source calls; turn on its `ReportBatchItemFailures`.

    `reserve` seconds before the function's time is over, messages that have not begun go back, and handlers that still
    run are stopped and their jobs given back. `sqs` is a boto3 client; without one it is made when first needed.
    """
    if not isinstance(app, Holdfast):
        msg = f"lambda_handler takes a Holdfast application, not a {type(app).__name__}."
        raise BadInput(msg)
    postboxes = Postboxes(app.url, sqs)

    def handle(event: Any, context: Any = None) -> dict[str, Any]:
        return _answer(app, _records(event), _deadline(context, reserve), postboxes)

    return handle


def sweep_handler(app: Holdfast) -> Handler:
    """Make the function that a schedule calls, every minute or so, where no worker stays up: one round of upkeep."""
    if not isinstance(app, Holdfast):
        msg = f"sweep_handler takes a Holdfast application, not a {type(app).__name__}."
        raise BadInput(msg)

    def handle(event: Any, context: Any = None) -> dict[str, Any]:  # noqa: ARG001 - a schedule says nothing of use
        deadline = _deadline(context, _RESERVE)
        app.sweep(within=_RESERVE if deadline is None else max(deadline.left, 0.0))
        return {}

    return handle


def _records(event: Any) -> list[Mapping[str, Any]]:
    found = event.get("Records") if isinstance(event, Mapping) else None
    if not isinstance(found, list) or not all(_is_message(one) for one in found):
        msg = "The event is not from SQS, it has no Records with a messageId; connect it to a queue."
        raise BadInput(msg)
    return found


def _is_message(record: Any) -> bool:
    return isinstance(record, Mapping) and isinstance(record.get("messageId"), str)


def _deadline(context: Any, reserve: float) -> Deadline | None:
    remaining = getattr(context, "get_remaining_time_in_millis", None)
    if remaining is None:
        return None
    left = remaining() / 1_000
    return Deadline(time.monotonic() + left - min(reserve, left / _SHARE))


def _answer(
    app: Holdfast, records: list[Mapping[str, Any]], deadline: Deadline | None, postboxes: Postboxes
) -> dict[str, Any]:
    """Process a batch in order; give the messages that are to come again, as SQS wants to hear it."""
    again = []
    for record in records:
        postbox = postboxes.of(record.get("eventSourceARN"))
        later = _delivered(app, record, deadline, postbox)
        if later is not None:
            again.append({"itemIdentifier": record["messageId"]})
            postbox.postpone(record.get("receiptHandle"), later.seconds)
    return {"batchItemFailures": again}


def _delivered(app: Holdfast, record: Mapping[str, Any], deadline: Deadline | None, postbox: Postbox) -> Later | None:
    """Process one message; None if it is done with."""
    if deadline is not None and deadline.left <= 0:
        return Later(0)
    try:
        envelope = read_envelope(record.get("body", ""))
        delivery = app.delivery() if deadline is None else app.delivery(within=deadline.left)
        outcome = delivery.process(envelope)
        if outcome == Answer.NO_OP_TERMINAL:
            return None if _kept(app, envelope.job_id, record, postbox) else Later(_TROUBLE)
        return _settled(app, envelope.job_id, outcome)
    except (BadEnvelope, JobNotFound) as error:
        log.warning("message %s is not for us: %s", record["messageId"], error)
        return None if postbox.bury(record, error.code, str(error)) else Later(_TROUBLE)
    except HoldfastError as error:
        log.error("message %s comes again: %s", record["messageId"], error)  # noqa: TRY400 - a sentence is enough
    except Exception:
        log.exception("message %s comes again", record["messageId"])
    return Later(_TROUBLE)


def _kept(app: Holdfast, job_id: str, record: Mapping[str, Any], postbox: Postbox) -> bool:
    """Put a message back that was moved here from the dead-letter queue, if its job is dead still: a redrive of the
    job is what runs it again, and until then its message is kept where people look.
    """
    said = {name: one.get("stringValue", "") for name, one in (record.get("messageAttributes") or {}).items()}
    if REASON not in said:
        return True
    (job,) = app.store.read([job_id])
    return job is None or job.state is not State.DEAD or postbox.bury(record, said[REASON], said.get("detail", ""))


def _settled(app: Holdfast, job_id: str, outcome: str) -> Later | None:
    """Say what becomes of a message whose job was looked at.

    Where the store sends a message for every attempt, one that was claimed has served. Elsewhere this one is all there
    is, and comes again until its job is finished.
    """
    if outcome == CLAIMED and app.store.capabilities.messages:
        return None
    (job,) = app.store.read([job_id])
    if job is None or job.state in TERMINAL:
        return None
    look = job.lease.expires_at if job.lease else job.available_at
    wait = -(-(look - app.store.now()) // SECOND)
    return Later(wait if wait > 0 or outcome == CLAIMED else _BLOCKED)
