"""A handler that runs in a process of its own and asks for a step all the same."""

from holdfast import Context, Holdfast, Retry

app = Holdfast("memory://")


@app.job(run_in="process", retry=Retry.fixed(0, retries=0))
def apart(ctx: Context) -> None:
    """Ask for what is not there."""
    ctx.step("a", lambda: 1)
