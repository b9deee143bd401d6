"""Every user gets one summary a day, however often it is asked for.

python examples/daily_summaries.py

The key `summary:<user>:<day>` stands for the summary of that user and day: who asks for it again is given the job that
is there. Yesterday's are overdue and made now, one of them at the second try; tomorrow's wait for seven in the morning.
"""

import os
import tempfile
from datetime import UTC, date, datetime, time, timedelta

from pydantic import BaseModel

from holdfast import Holdfast, Job, JobHandler, Retry

folder = tempfile.TemporaryDirectory()
app = Holdfast(os.environ.get("HOLDFAST_URL") or f"sqlite:///{folder.name}/summaries.db")

USERS = ["ada", "grace", "alan"]
unreachable = {"grace"}
"""Whose mailbox does not answer the first time."""


class Summary(BaseModel):
    user: str
    day: date


class DailySummary(JobHandler):
    @classmethod
    def payload_model(cls) -> type[Summary]:
        return Summary

    def handle(self, summary: Summary) -> str:
        if summary.user in unreachable:
            unreachable.remove(summary.user)
            print(f"{summary.user}: the mailbox does not answer; tried again later")
            raise ConnectionError
        print(f"{summary.user}: sent")
        return f"summary of {summary.day} for {summary.user}"


daily_summary = app.register(
    "daily_summary", DailySummary, queue="summaries", retry=Retry.exponential(base=0.2, max_attempts=5)
)


def ask_for(day: date) -> list[Job[str]]:
    """Ask for everybody's summary of a day, due at seven in the morning of it."""
    due = datetime.combine(day, time(7), UTC)
    return [
        daily_summary.using(key=f"summary:{user}:{day}", run_at=due).enqueue(Summary(user=user, day=day))
        for user in USERS
    ]


def tell(what: str, jobs: list[Job[str]]) -> None:
    known = sum(job.duplicate for job in jobs)
    print(f"{what}: {len(jobs) - known} enqueued, {known} there already")


def main() -> None:
    today = datetime.now(UTC).date()
    yesterday, tomorrow = today - timedelta(days=1), today + timedelta(days=1)
    overdue = ask_for(yesterday)
    tell("asked for yesterday's", overdue)
    tell("asked for them again", ask_for(yesterday))
    ahead = ask_for(tomorrow)
    tell("asked for tomorrow's", ahead)

    print()
    app.run_worker(queues=["summaries"], concurrency=1, until_idle=True)

    print()
    for job in overdue:
        print(f"{job.refresh().key}: {job.state} at attempt {job.attempt}")
    for job in ahead:
        print(f"{job.refresh().key}: {job.state} until {job.available_at:%H:%M}")


if __name__ == "__main__":
    main()
    app.close()
    folder.cleanup()
