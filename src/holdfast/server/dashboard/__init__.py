"""The dashboard: pages for people about the jobs of one application, at the root of the server.

Templates make the pages, a small script (htmx) sends forms and fetches parts of them, and server-sent events bring the
counters; nothing is built, and nothing comes from elsewhere. No page has a rule of its own: what it shows is read by
the client's calls, and what it does is one of them. What a page reads does not grow with the store.
"""

from fastapi import APIRouter

from holdfast.app import Holdfast
from holdfast.server.dashboard import bulk, door, flow, jobs, overview, places
from holdfast.server.dashboard.panel import Panel
from holdfast.server.dashboard.rendering import Pages
from holdfast.server.dashboard.samples import Sampler


def router(app: Holdfast) -> APIRouter:
    """Make the routes of a dashboard."""
    panel = Panel(app, Pages(), Sampler(app))
    whole = APIRouter()
    for part in (overview, jobs, bulk, places, flow, door):
        whole.include_router(part.routes(panel))
    return whole
