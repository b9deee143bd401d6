"""Whatever interrupts a caller that shares commits, and wherever: nobody else is left waiting."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.client import sharing
from holdfast.client.sharing import Sharing
from tests.interrupted import in_process, interrupted

MOST_STEPS = 2_000


class Shared(Sharing[int, int]):
    """Writes nowhere; the first write lets others come meanwhile."""

    def __init__(self, meanwhile: Callable[[], object] = int) -> None:
        super().__init__()
        self._meanwhile = meanwhile

    def _write(self, batch: Sequence[int]) -> Sequence[int]:
        meanwhile, self._meanwhile = self._meanwhile, int
        meanwhile()
        return batch


def stopped(call: Callable[[], object], at: int) -> bool:
    """Make a call that is interrupted at the step of this number, if it has so many."""
    return interrupted(call, "opcode", at, lambda frame: frame.f_code.co_filename == sharing.__file__)


def in_thread(call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


def require_end(thread: threading.Thread) -> None:
    thread.join(10)
    assert not thread.is_alive()


def by_thread(shared: Shared) -> threading.Thread:
    return in_thread(lambda: shared.share(2))


def by_task(shared: Shared) -> threading.Thread:
    return in_thread(lambda: asyncio.run(shared.ashare(2)))


def until_waiting(shared: Shared) -> None:
    while not shared._pending:
        threading.Event().wait(0.001)


def interrupt_a_writer(other: Callable[[Shared], threading.Thread]) -> None:
    for at in range(MOST_STEPS):
        others: list[threading.Thread] = []

        def meanwhile() -> None:
            others.append(other(shared))  # noqa: B023 - called in this round
            until_waiting(shared)  # noqa: B023

        shared = Shared(meanwhile)
        more = stopped(lambda: shared.share(1), at)  # noqa: B023
        require_end(by_thread(shared))
        for thread in others:
            require_end(thread)
        if not more:
            return
    pytest.fail("it has more steps than were tried")


@pytest.mark.parametrize("other", [by_thread, by_task])
def test_a_writer_that_is_interrupted_anywhere_gives_up_the_turn(
    other: Callable[[Shared], threading.Thread],
) -> None:
    in_process(interrupt_a_writer, other)


def interrupt_one_who_waits() -> None:
    for at in range(MOST_STEPS):
        go, entered = threading.Event(), threading.Event()

        def meanwhile() -> None:
            entered.set()  # noqa: B023
            assert go.wait(10)  # noqa: B023

        shared = Shared(meanwhile)
        leader = by_thread(shared)
        assert entered.wait(10)
        threading.Timer(0.001, go.set).start()
        more = stopped(lambda: shared.share(1), at)  # noqa: B023
        for thread in (leader, by_thread(shared)):
            require_end(thread)
        if not more:
            return
    pytest.fail("it has more steps than were tried")


def test_a_main_thread_that_is_interrupted_while_it_waits_holds_nobody_up() -> None:
    in_process(interrupt_one_who_waits)


def test_threads_of_a_loop_that_share_do_not_wait_for_a_task_that_waits_for_one_of_them() -> None:
    shared = Shared()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        go = threading.Event()

        def enqueue() -> int:
            assert go.wait(10)
            return shared.share(1)

        thread = asyncio.create_task(asyncio.to_thread(enqueue))
        await asyncio.sleep(0)
        task = asyncio.create_task(shared.ashare(2))
        await asyncio.sleep(0)
        go.set()
        assert list(await asyncio.wait_for(asyncio.gather(thread, task), 10)) == [1, 2]

    require_end(in_thread(lambda: asyncio.run(main())))


def test_a_loop_whose_threads_are_gone_is_served_as_well() -> None:
    shared = Shared()

    async def main() -> None:
        await asyncio.get_running_loop().shutdown_default_executor()
        assert await shared.ashare(1) == 1

    asyncio.run(main())
    require_end(by_thread(shared))
    require_end(by_task(shared))
