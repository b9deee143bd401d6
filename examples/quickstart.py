"""Three kinds of job.

python examples/quickstart.py                enqueues one of each
holdfast worker examples/quickstart.py:app   runs them
"""

import asyncio

from pydantic import BaseModel

from holdfast import Context, Holdfast, Retry

app = Holdfast()  # HOLDFAST_URL, or else the file holdfast.db in this folder


class Signup(BaseModel):
    name: str
    email: str


@app.job
def add(a: int, b: int) -> int:
    return a + b


@app.job(queue="mail")
async def welcome(signup: Signup) -> str:
    await asyncio.sleep(0.1)  # the mail server takes its time
    return f"Welcome, {signup.name}!"


@app.job(queue="webhooks", retry=Retry.exponential(base=0.2, max_attempts=5))
def notify(url: str, ctx: Context) -> str:
    if ctx.attempt == 1:
        raise ConnectionError(url)  # recorded, and tried again 0.2 s later
    return f"delivered at attempt {ctx.attempt}"


if __name__ == "__main__":
    ada = Signup(name="Ada", email="ada@example.org")
    jobs = [
        add.enqueue(2, 3),
        welcome.using(key="welcome:ada").enqueue(ada),  # stored once, however often it is asked for
        notify.enqueue("https://example.org/hook"),
    ]
    for job in jobs:
        print(job.id, job.kind, "was there already" if job.duplicate else job.state)
