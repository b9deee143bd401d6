"""Steps in a job's own item: small ones, for as long as there is room for them.

A step in an item of its own is one item more and makes a transaction of the write, which is billed double; a step in
the job's item costs nothing beside the write that moves the cursor. But every later write of the job is billed by the
size of its item, so the room is small. Once a step had to be put apart, those after it are put apart too; whoever
records one then need only ask the job's item, which he guards, and the item that he is about to write.
"""

from typing import Any, NamedTuple

from holdfast.domain.job import JobRecord, StepRecord
from holdfast.stores.dynamodb.items import Item

STEPS = "steps"
"""The attribute that has a list of them; each is a list of name, order, time and result."""
APART = "steps_apart"
ROOM = 4 * 1024
"""The bytes of all steps in an item. With more, the writes of a long workflow would cost more than transactions do."""
_LARGE = 300 * 1024
"""A payload that leaves no room for steps: an item holds 400 KB."""
_NUMBERS = 24
"""The bytes that a step takes beside its name and its result."""


class Steps(NamedTuple):
    """The steps in an item; `apart` tells that there are others, or will be."""

    inside: tuple[tuple[int, StepRecord], ...] = ()
    apart: bool = False

    def has(self, name: str) -> bool:
        """Tell whether a step of this name is among them."""
        return any(step.name == name for _, step in self.inside)

    def takes(self, job: JobRecord, step: StepRecord) -> bool:
        """Tell whether there is room for another step."""
        if self.apart or len(step.result or "") > ROOM or len(job.payload.encode()) > _LARGE:
            return False
        return sum(map(_weight, (step, *(each for _, each in self.inside)))) <= ROOM

    def plus(self, step: StepRecord, order: int) -> "Steps":
        """Add a step; `order` tells its place among the job's steps: the version that it left."""
        return self._replace(inside=(*self.inside, (order, step)))

    @property
    def attributes(self) -> Item:
        """The steps as attributes of the item."""
        listed = {STEPS: {"L": [_written(order, step) for order, step in self.inside]}} if self.inside else {}
        return listed | ({APART: {"BOOL": True}} if self.apart else {})


def steps_of(item: Item) -> Steps:
    """Read the steps in an item."""
    return Steps(tuple(map(_read, item.get(STEPS, {"L": ()})["L"])), APART in item)


def _written(order: int, step: StepRecord) -> Item:
    values: list[Item] = [{"S": step.name}, {"N": str(order)}, {"N": str(step.recorded_at)}]
    return {"L": values if step.result is None else [*values, {"S": step.result}]}


def _read(typed: dict[str, Any]) -> tuple[int, StepRecord]:
    name, order, at, *result = typed["L"]
    return int(order["N"]), StepRecord(name["S"], result[0]["S"] if result else None, int(at["N"]))


def _weight(step: StepRecord) -> int:
    return len(step.name.encode()) + len((step.result or "").encode()) + _NUMBERS
