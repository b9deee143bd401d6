"""`/v1/limits`, and the pauses of tenants and kinds: how the flow of jobs is governed."""

from collections.abc import Iterator
from functools import reduce
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response

from holdfast.client import governed, views
from holdfast.client.governed import Governed
from holdfast.client.limits import Ordered
from holdfast.client.tokens import Principal
from holdfast.domain.errors import BadInput
from holdfast.domain.limits import Limit, Rule, checked, ordered
from holdfast.domain.moments import duration
from holdfast.server.answers import FlowAnswer, GovernedAnswer, PausedAnswer
from holdfast.server.problems import Problem, responses
from holdfast.server.security import Chief, Reader, record
from holdfast.server.shapes import RuleBody
from holdfast.server.surface import reply, surface_of

router = APIRouter(prefix="/v1", tags=["limits"])
Queue = Annotated[str, Path(min_length=1, max_length=255, description="A queue, or `*` for all.", examples=["mailer"])]
Tenant = Annotated[str, Path(min_length=1, max_length=255, examples=["acme"])]
Kind = Annotated[str, Path(min_length=1, max_length=255, examples=["send"])]


@router.get("/limits", summary="List limits", responses={200: {"model": FlowAnswer}, **responses()})
def list_limits(
    request: Request,
    principal: Reader,
    queue: Annotated[str | None, Query(min_length=1, max_length=255, description="This queue alone.")] = None,
) -> Response:
    """List the queues with rules, each with what is in use of its limits and, if it is fair, the shares of tenants;
    and all that is paused. A token that is bound to a tenant is told of that tenant alone.
    """
    flow = governed.flow(surface_of(request).app.store, tenant=principal.tenant, queue=queue)
    paused = {what: sorted(which) for what, which in flow.paused._asdict().items()}
    return reply({"items": [_shown(each) for each in flow.queues], "paused": paused})


@router.put(
    "/limits/{queue:path}", summary="Set a queue's rule", responses={200: {"model": GovernedAnswer}, **responses()}
)
def set_rule(request: Request, principal: Chief, queue: Queue, body: RuleBody) -> Response:
    """Serve a queue in this order and with these limits from now on, in place of all that was said of it before;
    workers follow within a second.
    """
    app, rule = surface_of(request).app, _rule(queue, body)
    app.limits.change(queue, lambda _: rule)
    record(request, principal, "limits.set", queue, **body.model_dump(exclude_defaults=True))
    return reply(_shown(governed.look(app.store, rule)))


@router.delete(
    "/limits/{queue:path}",
    status_code=204,
    summary="Remove a queue's rule",
    responses={204: {"description": "It is gone."}, **responses(404)},
)
def remove_rule(request: Request, principal: Chief, queue: Queue) -> Response:
    """Take all limits of a queue away, and its order. What code declares comes back once it declares something else."""
    if surface_of(request).app.limits.change(queue, lambda _: Rule(queue)).empty:
        raise Problem(404, "limit-not-found", f"The queue {queue!r} has neither limits nor an order of its own.")
    record(request, principal, "limits.remove", queue)
    return Response(status_code=204)


@router.post(
    "/tenants/{tenant:path}/pause", summary="Pause a tenant", responses={200: {"model": PausedAnswer}, **responses(404)}
)
def pause_tenant(request: Request, principal: Chief, tenant: Tenant) -> Response:
    """Let no worker claim jobs of a tenant, in any queue; what is running goes on."""
    return _switched(request, principal, "tenant", tenant, paused=True)


@router.post(
    "/tenants/{tenant:path}/resume",
    summary="Resume a tenant",
    responses={200: {"model": PausedAnswer}, **responses(404)},
)
def resume_tenant(request: Request, principal: Chief, tenant: Tenant) -> Response:
    """Let workers claim jobs of a tenant again."""
    return _switched(request, principal, "tenant", tenant, paused=False)


@router.post(
    "/kinds/{kind:path}/pause", summary="Pause a kind", responses={200: {"model": PausedAnswer}, **responses(404)}
)
def pause_kind(request: Request, principal: Chief, kind: Kind) -> Response:
    """Let no worker claim jobs of a kind, in any queue; what is running goes on."""
    return _switched(request, principal, "kind", kind, paused=True)


@router.post(
    "/kinds/{kind:path}/resume", summary="Resume a kind", responses={200: {"model": PausedAnswer}, **responses(404)}
)
def resume_kind(request: Request, principal: Chief, kind: Kind) -> Response:
    """Let workers claim jobs of a kind again."""
    return _switched(request, principal, "kind", kind, paused=False)


def _switched(request: Request, principal: Principal, what: str, which: str, *, paused: bool) -> Response:
    app = surface_of(request).app
    (app.pause if paused else app.resume)(**{what: which})
    record(request, principal, f"{what}.{'pause' if paused else 'resume'}", which)
    return reply({"name": which, "paused": paused})


def _rule(queue: str, body: RuleBody) -> Rule:
    aging = None if body.aging is None else duration(body.aging, "aging")
    limits = list(_limits(body))
    rule = reduce(Rule.limited, limits, ordered(Rule(queue), body.order, body.weights, aging))
    if len(rule.limits) < len(limits):
        msg = (
            "Two limits are of the same kind; for each of queue, tenant and key there is one rate and one concurrency."
        )
        raise BadInput(msg)
    if rule.empty:
        msg = "A rule says an order, an aging or a limit; to take a queue's rule away, delete it."
        raise BadInput(msg)
    return rule


def _limits(body: RuleBody) -> Iterator[Limit]:
    for each in body.limits:
        yield from checked(**each.model_dump())


def _shown(queue: Governed) -> dict[str, Any]:
    limits = [
        views.limited(each.limit) | {"left_out": each.left_out, "full_subjects": each.full} for each in queue.limits
    ]
    shares = [share._asdict() for share in queue.shares]
    order = views.ordered(Ordered(queue.queue, queue.order, queue.weights, queue.aging))
    return {**order, "limits": limits, "shares": shares, "left_out": queue.left_out}
