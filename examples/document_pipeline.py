"""Documents are fetched, read and indexed: a pipeline, whose steps are recorded one by one.

python examples/document_pipeline.py

One document cannot be read at first: it is tried again after a second, and not fetched again. Another is of a format
that nobody can read: it is rejected at once.
"""

import os
import tempfile

from pydantic import BaseModel

from holdfast import Context, Holdfast, Permanent, Retry

folder = tempfile.TemporaryDirectory()
app = Holdfast(os.environ.get("HOLDFAST_URL") or f"sqlite:///{folder.name}/documents.db")

SHELF = {
    "letter.txt": "the harbour is frozen",
    "minutes.txt": "the board met and the board agreed",
    "photo.raw": "\x89\x10\x07",
}


class Document(BaseModel):
    name: str


def fetch(document: Document) -> str:
    print(f"{document.name}: fetched")
    return SHELF[document.name]


def read(document: Document, results: dict[str, str], ctx: Context) -> list[str]:
    if not document.name.endswith(".txt"):
        raise Permanent("only text can be read", code="unsupported_format")
    if document.name == "minutes.txt" and ctx.attempt == 1:
        print(f"{document.name}: the reader is busy; again in a second")
        raise TimeoutError
    print(f"{document.name}: read")
    return results["fetch"].split()


def index(document: Document, results: dict[str, list[str]]) -> int:
    words = set(results["read"])
    print(f"{document.name}: indexed")
    return len(words)


ingest = app.pipeline("ingest", [fetch, read, index], queue="documents", retry=Retry.fixed(1, retries=3))


def main() -> None:
    jobs = {name: ingest.enqueue(Document(name=name)) for name in SHELF}
    app.run_worker(queues=["documents"], concurrency=1, until_idle=True)  # one by one, for the sake of the reader

    print()
    for name, job in jobs.items():
        job.refresh()
        outcome = f"{job.cause}: {job.failure.code}" if job.failure else f"{job.result()} words"
        print(f"{name}: {job.state}, {outcome}; attempts: {job.attempt}, steps: {job.step_cursor} of {job.steps_total}")


if __name__ == "__main__":
    main()
    app.close()
    folder.cleanup()
