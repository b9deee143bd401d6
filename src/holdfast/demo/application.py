"""The demo's application: the jobs of a small document archive.

Waiting stands for the work, so that any machine is fast enough.
"""

import asyncio
import os
import signal
import time
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from holdfast.app import Holdfast
from holdfast.client.context import Context
from holdfast.client.job import Job
from holdfast.demo.ledger import Ledger
from holdfast.demo.plan import CALLS, POISON, STAGES, SUMMARY_AFTER, Call, Document, Plan, Summary, key_of
from holdfast.domain.errors import Permanent

LEASE = 3.0
"""Short, so that a killed worker's jobs can be seen to come back; the default is 15 s."""
UPKEEP = 0.5


def application(url: str | None, ledger: Ledger) -> Holdfast:
    """Make the application; workers and servers make the same one."""
    app = Holdfast(url, lease=LEASE, upkeep=UPKEEP, grace=2)

    # Later stages go first, so that documents come out one by one instead of all at the end.
    @app.job(queue="documents", retry=STAGES)
    def fetch(document: Document, ctx: Context) -> str:
        with ledger.run(ctx) as receipt:
            time.sleep(document.effort)
            if ctx.attempt <= document.misses:
                raise TimeoutError
            ledger.sent(ctx, ocr.using(key=f"ocr:{document.name}").enqueue(document))
            return receipt

    @app.job(queue="documents", retry=STAGES, priority=1)
    def ocr(document: Document, ctx: Context) -> str:
        with ledger.run(ctx) as receipt:
            time.sleep(document.effort)
            if document.name == POISON:
                ledger.fatal(ctx)
                os.kill(os.getpid(), signal.SIGKILL)
            if document.format == "wordperfect":
                msg = "no reader for WordPerfect files"
                raise Permanent(msg, code="unsupported_format")
            ledger.sent(ctx, index.using(key=f"index:{document.name}").enqueue(document))
            return receipt

    @app.job(queue="documents", retry=STAGES, priority=2)
    def index(document: Document, ctx: Context) -> str:
        with ledger.run(ctx) as receipt:
            time.sleep(document.effort / 2)
            return receipt

    @app.job(queue="webhooks", retry=CALLS)
    async def webhook(call: Call, ctx: Context) -> str:
        with ledger.run(ctx) as receipt:
            await asyncio.sleep(call.effort)
            if ctx.attempt <= call.misses:
                raise ConnectionRefusedError(call.url)
            return receipt

    @app.job(queue="summaries", retry=CALLS)
    async def summary(summary: Summary, ctx: Context) -> str:  # noqa: ARG001
        with ledger.run(ctx) as receipt:
            await asyncio.sleep(0.05)
            return receipt

    return app


def enqueue_backlog(app: Holdfast, plan: Plan) -> list[Job[Any]]:
    """Store every document and every webhook in one batch, all or none."""
    documents = [
        app.prepare("fetch", document.model_dump(), key=f"fetch:{document.name}") for document in plan.documents
    ]
    calls = [app.prepare("webhook", call.model_dump(), key=f"webhook:{call.number}") for call in plan.calls]
    return app.enqueue_many(documents + calls)


def enqueue_summaries(app: Holdfast, summaries: Iterable[Summary]) -> list[Job[Any]]:
    """Store the day's summaries one by one, to run later."""
    later = timedelta(microseconds=SUMMARY_AFTER)
    return [app.enqueue("summary", each.model_dump(), key=key_of(each), run_after=later) for each in summaries]
