"""A worker that reaches its jobs by HTTP alone: it needs a server's address, and no database.

Run `holdfast server` in one terminal and this program in another; it enqueues three jobs, runs them and whatever else
comes, and ends by SIGTERM or Ctrl-C. `--until-idle` ends it when there is nothing more to do.
"""

import os
import sys
from typing import Any

from holdfast import Permanent
from holdfast.remote import Client, Task

client = Client(os.environ.get("HOLDFAST_SERVER", "http://127.0.0.1:8080"), token=os.environ.get("HOLDFAST_TOKEN"))


def fetch(name: str) -> str:
    """Stand for a slow download."""
    return f"the text of {name}"


@client.handles("index")
def index(task: Task) -> dict[str, Any]:
    """Count the different words of a document; the download is done once, however often counting fails."""
    name = task.payload["name"]
    if not name.endswith(".txt"):
        msg = "only texts can be read"
        raise Permanent(msg, code="unsupported_format")
    text = task.step("fetch", fetch, name)
    counted: set[str] = set()
    for word in text.split():
        task.check()  # ends here if somebody has cancelled the job
        counted.add(word)
    return {"words": len(counted)}


if __name__ == "__main__":
    names = ("letter.txt", "minutes.txt", "photo.raw")
    jobs = [client.enqueue("index", {"name": name}, queue="documents", key=f"index:{name}") for name in names]
    client.work(queues=["documents"], concurrency=4, until_idle="--until-idle" in sys.argv)
    for job in jobs:
        now = client.get(job.id, payload=True)
        print(now.payload["name"], now.state, now.failure.code if now.failure else now.fields["result"])
    client.close()
