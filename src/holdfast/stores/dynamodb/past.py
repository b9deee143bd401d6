"""What is kept of a job's past: its attempts, signals and larger steps (see `steps`), each an item beside the job."""

from operator import itemgetter
from typing import Any

from holdfast.domain.job import AttemptRecord, SignalRecord, StepRecord
from holdfast.port.parcel import Parcel
from holdfast.stores.dynamodb import items
from holdfast.stores.dynamodb.items import APART, Item
from holdfast.stores.dynamodb.steps import steps_of
from holdfast.stores.dynamodb.wire import Wire

_BARE: dict[str, Any] = dict.fromkeys(AttemptRecord._fields)


def step_item(id_: str, step: StepRecord, order: int) -> Item:
    """Write a step; `order` tells its place among the job's steps: mostly the version that it left."""
    return items.side(id_, "step", step.name).key | items.attributes({**step._asdict(), "order": order})


def signal_item(id_: str, signal: SignalRecord, order: int) -> Item:
    """Write a signal."""
    return items.side(id_, "signal", signal.id).key | items.attributes({**signal._asdict(), "order": order})


def attempt_items(id_: str, attempt: AttemptRecord) -> list[Item]:
    """Write an attempt; a long traceback goes into an item of its own."""
    place = items.side(id_, "attempt", f"{attempt.token:012d}")
    if attempt.traceback is None or len(attempt.traceback.encode()) <= APART:
        return [place.key | items.attributes(attempt._asdict())]
    trace = items.side(id_, "trace", f"{attempt.token:012d}")
    return [
        place.key | items.attributes({**attempt._asdict(), "traceback": None, "trace_apart": True}),
        trace.key | items.attributes({"token": attempt.token, "traceback": attempt.traceback}),
    ]


def written(parcel: Parcel) -> list[Item]:
    """Write the whole past of a job from another store: in its order, before all that the job records here."""
    id_ = parcel.job.id
    steps = [step_item(id_, step, at) for at, step in _placed(parcel.steps)]
    signals = [signal_item(id_, signal, at) for at, signal in _placed(parcel.signals)]
    attempts = [item for attempt in parcel.attempts for item in attempt_items(id_, attempt)]
    result: list[Item] = []
    if items.apart(parcel.job):
        result.append(items.result_item(parcel.job))
    return [*steps, *signals, *attempts, *result]


def _placed(records: list[Any]) -> list[tuple[int, Any]]:
    return list(enumerate(records, -len(records)))


def attempts(wire: Wire, id_: str) -> list[AttemptRecord]:
    """List the ended attempts of a job, oldest first."""
    found = [{**_BARE, **each} for each in _side(wire, id_, "attempt")]
    if any("trace_apart" in each for each in found):
        traces = {each["token"]: each["traceback"] for each in _side(wire, id_, "trace")}
        found = [{**each, "traceback": traces.get(each["token"], each["traceback"])} for each in found]
    return [AttemptRecord(*(values[name] for name in AttemptRecord._fields)) for values in found]


def steps(wire: Wire, id_: str, item: Item | None) -> list[StepRecord]:
    """List the recorded steps of a job, in order: those in its item, and those apart."""
    apart = [
        (_order(values), StepRecord(values["name"], values.get("result"), values["recorded_at"]))
        for values in _side(wire, id_, "step")
    ]
    names = {step.name for _, step in apart}
    inside = [(order, step) for order, step in steps_of(item or {}).inside if step.name not in names]
    return [step for _, step in sorted((*apart, *inside), key=itemgetter(0))]


def signals(wire: Wire, id_: str) -> list[SignalRecord]:
    """List the signals a job was sent, oldest first."""
    found = sorted(_side(wire, id_, "signal"), key=_order)
    return [SignalRecord(values["id"], values["name"], values.get("payload"), values["sent_at"]) for values in found]


def _side(wire: Wire, id_: str, kind: str) -> list[dict[str, Any]]:
    return [items.plain(item) for item in wire.walk(f"of#{id_}", f"{kind}#", f"{kind}#\U0010ffff")]


def _order(values: dict[str, Any]) -> int:
    return int(values["order"])
