"""The application whose limits are tested by real worker processes; what it runs leaves no trace but the store's."""

import os
import random
import time

from holdfast import Holdfast, Retry

app = Holdfast(os.environ.get("CHAOS_URL", "memory://"), lease=1, heartbeat=0.3, upkeep=0.2, grace=5)


@app.job(retry=Retry.fixed(0, retries=90), crash_cap=90)
def work(n: int) -> int:
    """Take a moment."""
    time.sleep(random.uniform(0, 0.02))
    return n
