"""The application under test, as a user would write it; `python -m bench.application take N` is a worker process."""

import json
import os
import resource
import sys
import threading
import time

from holdfast import Holdfast

app = Holdfast(os.environ.get("BENCH_URL", "memory://"))


@app.job
def add(a: int, b: int) -> int:
    """Do next to nothing."""
    return a + b


@app.job
def stamp(sent: float) -> None:
    """Say how long the job waited, on standard output."""
    print(f"{(time.time() - sent) * 1000:.3f}", flush=True)


def take(jobs: int) -> dict[str, float]:
    """Work off this many jobs with a worker of default options, and say how fast that was."""
    before = app.counts()["succeeded"]
    service = app.service()
    worker = threading.Thread(target=service.run)
    pause = threading.Event()
    started, cpu = time.perf_counter(), time.process_time()
    worker.start()
    while app.counts()["succeeded"] - before < jobs:
        pause.wait(0.02)
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    service.stop()
    worker.join()
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"jobs": jobs, "seconds": seconds, "rate": jobs / seconds, "cpu_us": cpu / jobs * 1e6, "rss_mb": rss}


if __name__ == "__main__":
    if sys.argv[1] == "take":
        print(json.dumps(take(int(sys.argv[2]))))
    else:
        app.run_worker()
