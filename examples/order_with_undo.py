"""An order is charged, cools off, is approved, picked and shipped; if it cannot be shipped, the money goes back.

python examples/order_with_undo.py

While an order cools off, or waits for approval or for its items, nothing runs and nothing is held: the record knows how
far it is, and any worker goes on from there.
"""

import os
import tempfile
from datetime import timedelta

from pydantic import BaseModel

from holdfast import Context, Holdfast, Permanent

folder = tempfile.TemporaryDirectory()
app = Holdfast(os.environ.get("HOLDFAST_URL") or f"sqlite:///{folder.name}/orders.db")


class Order(BaseModel):
    name: str
    items: list[str]
    cents: int


class Charge(BaseModel):
    number: str
    cents: int


def charge_card(order: Order, ctx: Context) -> Charge:
    """Charge the card. The effect key is what the bank tells repeats by, should this run twice."""
    print(f"{order.name}: charged {order.cents / 100:.2f}")
    return Charge(number=ctx.effect_key, cents=order.cents)


def refund(charge: Charge, order: Order) -> None:
    print(f"{order.name}: refunded {charge.cents / 100:.2f}")


def ship(order: Order, parcel: list[str]) -> str:
    if "piano" in order.items:
        print(f"{order.name}: nobody carries a piano")
        raise Permanent("too heavy for the post", code="too_heavy")
    print(f"{order.name}: shipped {', '.join(parcel)}")
    return f"{len(parcel)} items on their way"


@app.job(queue="orders")
def pick(name: str, item: str) -> str:
    print(f"{name}: picked the {item}")
    return item


@app.workflow(queue="orders")
async def fulfil(order: Order, ctx: Context) -> str:
    await ctx.step("charge", charge_card, order, ctx, undo=refund)
    await ctx.sleep("cool-off", timedelta(seconds=0.5))
    approval = await ctx.wait_for("approval", timeout=timedelta(days=3))
    if approval is None:
        raise Permanent("nobody approved it in time", code="not_approved")
    parcel = await ctx.gather(pick.prepare(order.name, item) for item in order.items)
    return await ctx.step("ship", ship, order, parcel)


def main() -> None:
    orders = [
        Order(name="books", items=["novel", "atlas"], cents=4200),
        Order(name="music", items=["score", "piano"], cents=990000),
    ]
    jobs = {order.name: fulfil.enqueue(order) for order in orders}
    app.run_worker(queues=["orders"], concurrency=1, until_idle=True)  # one slot will do: who waits holds none

    print("\nThe worker has ended, and the orders are at rest.")
    for name, job in jobs.items():
        print(f"{name}: {job.explain()}")
        job.signal("approval", {"by": "ada"})

    print("\nThey are approved, and another worker goes on.")
    app.run_worker(queues=["orders"], concurrency=1, until_idle=True)

    print("\nOn record:")
    for name, job in jobs.items():
        steps = ", ".join(step.name for step in job.steps())
        print(f"{name}: {job.refresh().state} after {steps}")


if __name__ == "__main__":
    main()
    app.close()
    folder.cleanup()
