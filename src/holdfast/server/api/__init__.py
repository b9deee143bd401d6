"""The routes under `/v1`, one module for each noun, and those that tell how the server is."""

from fastapi import APIRouter

from holdfast.server.api import credits as accounts
from holdfast.server.api import health, jobs, limits, operations, queues, schedules, trail, work

__all__ = ["routers"]


def routers() -> list[APIRouter]:
    """Give all of them."""
    modules = (jobs, operations, work, queues, limits, schedules, accounts, trail, health)
    return [module.router for module in modules]
