"""A workflow's code changes while runs of it are under way."""

from typing import Any

import pytest

from holdfast import BadInput, Context
from holdfast.testing.engine import TestHoldfast
from tests.workflows.reading import OFTEN, names


def forget(holdfast: TestHoldfast) -> None:
    """Take all code away, as a deployment does."""
    holdfast.registry.__init__()  # type: ignore[misc]


def stopped_after(holdfast: TestHoldfast, step: str, job: Any) -> None:
    """Let a run come to this step, whose worker then dies."""
    holdfast.crash_after(step)
    holdfast.run_until_idle()
    assert step in names(job)
    forget(holdfast)
    holdfast.advance(minutes=1)


@pytest.fixture
def ran() -> list[str]:
    return []


def test_a_recorded_step_that_is_no_longer_asked_for_is_of_no_account(holdfast: TestHoldfast, ran: list[str]) -> None:
    @holdfast.workflow(name="flow", retry=OFTEN)
    def old(ctx: Context) -> str:
        ctx.step("a", ran.append, "a")
        ctx.step("b", ran.append, "b")
        ctx.step("c", ran.append, "c")
        return "old"

    job = old.enqueue()
    stopped_after(holdfast, "b", job)

    @holdfast.workflow(name="flow", retry=OFTEN)
    def new(ctx: Context) -> str:
        ctx.step("a", ran.append, "a")
        ctx.step("c", ran.append, "c")
        return "new"

    holdfast.run_until_idle()
    assert (job.result(), ran, names(job)) == ("new", ["a", "b", "c"], ["a", "b", "c"])


def test_a_new_step_before_a_recorded_one_is_run_once_and_the_recorded_one_is_not(
    holdfast: TestHoldfast, ran: list[str]
) -> None:
    @holdfast.workflow(name="flow", retry=OFTEN)
    def old(ctx: Context) -> str:
        ctx.step("b", ran.append, "b")
        ctx.step("c", ran.append, "c")
        return "old"

    job = old.enqueue()
    stopped_after(holdfast, "b", job)

    @holdfast.workflow(name="flow", retry=OFTEN)
    def new(ctx: Context) -> str:
        ctx.step("a", ran.append, "a")
        ctx.step("b", ran.append, "b")
        ctx.step("c", ran.append, "c")
        return "new"

    holdfast.run_until_idle()
    assert (job.result(), ran, names(job)) == ("new", ["b", "a", "c"], ["b", "a", "c"])


def test_a_sleep_or_a_wait_that_is_gone_does_not_hold_the_run_up(holdfast: TestHoldfast, ran: list[str]) -> None:
    @holdfast.workflow(name="flow", retry=OFTEN)
    def old(ctx: Context) -> str:
        ctx.wait_for("approval")
        return "old"

    job = old.enqueue()
    holdfast.run_until_idle()
    forget(holdfast)

    @holdfast.workflow(name="flow", retry=OFTEN)
    def new(ctx: Context) -> str:
        ctx.step("a", ran.append, "a")
        return "new"

    assert job.refresh().state == "retrying"
    job.signal("approval")
    holdfast.run_until_idle()
    assert (job.result(), ran) == ("new", ["a"])


class TestVersions:
    """`version=`: a run ends on the code that it began with."""

    def register(self, holdfast: TestHoldfast, version: int | None, ran: list[str]) -> Any:
        def flow(ctx: Context) -> str:
            ctx.step("a", ran.append, f"a{version}")
            ctx.wait_for("go")
            ctx.step("b", ran.append, f"b{version}")
            return f"version {version}"

        return holdfast.workflow(name="flow", retry=OFTEN, version=version)(flow)

    def test_old_runs_finish_on_the_old_function_and_new_ones_begin_on_the_new(
        self, holdfast: TestHoldfast, ran: list[str]
    ) -> None:
        first = self.register(holdfast, None, ran).enqueue()
        holdfast.run_until_idle()
        second_kind = self.register(holdfast, 2, ran)
        second = second_kind.enqueue()
        third = holdfast.enqueue("flow", {})
        holdfast.run_until_idle()
        for job in (first, second, third):
            job.signal("go")
        holdfast.run_until_idle()
        assert [job.result() for job in (first, second, third)] == ["version None", "version 2", "version 2"]
        assert ran == ["aNone", "a2", "a2", "bNone", "b2", "b2"]
        assert [job.record.code_version for job in (first, second, third)] == [0, 2, 2]

    def test_the_highest_version_is_for_new_runs_in_whatever_order_they_are_registered(
        self, holdfast: TestHoldfast, ran: list[str]
    ) -> None:
        self.register(holdfast, 3, ran)
        old = self.register(holdfast, 1, ran)
        assert holdfast.enqueue("flow", {}).record.code_version == 3
        assert old.enqueue().record.code_version == 1, "whoever names the old function gets it"

    @pytest.mark.parametrize("begun", [True, False])
    @pytest.mark.parametrize("missing", [None, 1, 3])
    def test_a_run_whose_version_is_not_deployed_waits_and_is_not_rejected(
        self, holdfast: TestHoldfast, ran: list[str], begun: bool, missing: int | None
    ) -> None:
        job = self.register(holdfast, missing, ran).enqueue()
        if begun:
            holdfast.run_until_idle()
        job.signal("go")
        forget(holdfast)
        self.register(holdfast, 2, ran)
        for _ in range(20):
            holdfast.run_until_idle()
            holdfast.advance(hours=1)
        assert (job.refresh().state, job.attempt, job.failure) == ("retrying", 0, None)
        self.register(holdfast, missing, ran)
        holdfast.run_until_idle()
        assert job.result() == f"version {missing}"
        assert ran == [f"a{missing}", f"b{missing}"]

    def test_a_run_that_has_begun_waits_even_if_nothing_of_its_kind_is_there(
        self, holdfast: TestHoldfast, ran: list[str]
    ) -> None:
        job = self.register(holdfast, 1, ran).enqueue()
        holdfast.run_until_idle()
        job.signal("go")
        forget(holdfast)
        for _ in range(5):
            holdfast.run_until_idle()
            holdfast.advance(hours=1)
        assert job.refresh().state == "retrying"

    @pytest.mark.parametrize("version", [-1, 1.5, "2", True, 10**12])
    def test_a_version_is_a_whole_number(self, holdfast: TestHoldfast, version: Any) -> None:
        with pytest.raises(BadInput, match="version"):
            self.register(holdfast, version, [])

    def test_a_version_is_given_once(self, holdfast: TestHoldfast, ran: list[str]) -> None:
        self.register(holdfast, 2, ran)
        with pytest.raises(BadInput, match="version 2"):
            self.register(holdfast, 2, ran)
