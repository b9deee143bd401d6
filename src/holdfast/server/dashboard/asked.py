"""What a list of jobs is asked for, as it stands in the address of a page."""

from typing import Annotated

from fastapi import Depends, Query

from holdfast.server.dashboard.looking import Filter
from holdfast.server.dashboard.session import Visitor

LONGEST = 255
Text = Annotated[str, Query(max_length=LONGEST)]


def _filter(
    *,
    state: Text = "",
    kind: Text = "",
    queue: Text = "",
    tenant: Text = "",
    error_code: Text = "",
    key: Text = "",
    parent: Text = "",
) -> Filter:
    return Filter(state, kind, queue, tenant, error_code, key, parent)


Filtered = Annotated[Filter, Depends(_filter)]


def within(visitor: Visitor, asked: Filter) -> Filter:
    """Keep a visitor who is bound to a tenant to it."""
    return asked if visitor.tenant is None else asked._replace(tenant=visitor.tenant)
