"""Errors as `application/problem+json`: a status, a stable `code` and a sentence.

Whatever goes wrong inside is told by `told`, in one place, so that no route has rules of its own about it. Text that
came with a request is never repeated where it could be a payload's.
"""

import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import Request, Response
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from holdfast.domain.errors import (
    ArtifactDamaged,
    ArtifactMissing,
    BadInput,
    BadPayload,
    CommitUnknown,
    HoldfastError,
    IllegalMove,
    InsufficientCredits,
    JobNotFound,
    KeyConflict,
    ScheduleNotFound,
    StoreError,
)
from holdfast.domain.job import JobRecord

MEDIA = "application/problem+json"
RETRY_AFTER = 1
"""Seconds after which a caller may ask again when the store was in trouble."""


class Problem(HTTPException):
    """What a route refuses, and why. An exception that the framework lets pass wherever it is raised."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        headers: Mapping[str, str] | None = None,
        reason: str | None = None,
    ) -> None:
        super().__init__(status, detail, dict(headers or {}))
        self.code = code
        self.reason = reason

    def response(self) -> Response:
        """Give the answer that tells of it."""
        body = {
            "type": f"urn:holdfast:problem:{self.code}",
            "title": HTTPStatus(self.status_code).phrase,
            "status": self.status_code,
            "code": self.code,
            "detail": self.detail,
        }
        if self.reason is not None:
            body["reason"] = self.reason
        return Response(json.dumps(body), self.status_code, self.headers, MEDIA)


class ProblemBody(BaseModel):
    """An error: what happened, why, and what to do next."""

    type: str = Field(examples=["urn:holdfast:problem:job-not-found"])
    title: str = Field(description="The status, in words.", examples=["Not Found"])
    status: int = Field(examples=[404])
    code: str = Field(description="What a program may go by; it does not change.", examples=["job-not-found"])
    detail: str = Field(description="A sentence for a person.", examples=["There is no such job."])
    reason: str | None = Field(
        None,
        description="Of a worker's stale token, and of a move the job's state does not allow: whose the job is now.",
    )


def told(error: HoldfastError) -> Problem:
    """Say in HTTP's terms what went wrong."""
    code = error.code.replace("_", "-")
    match error:
        case JobNotFound() | ScheduleNotFound():
            return Problem(404, code, str(error))
        case IllegalMove():
            return Problem(409, code, str(error), reason=error.reason)
        case KeyConflict():
            return Problem(409, code, str(error))
        case InsufficientCredits():
            return Problem(402, code, str(error))
        case BadPayload() | BadInput():
            return Problem(422, code, str(error))
        case ArtifactMissing() | ArtifactDamaged():
            return Problem(410, code, str(error))
        case CommitUnknown():
            detail = f"{error} What was asked for is stored whole or not at all; it is safe to ask again."
            return Problem(503, code, detail, {"Retry-After": str(RETRY_AFTER)})
        case StoreError():
            return Problem(503, code, str(error), {"Retry-After": str(RETRY_AFTER)})
        case _:
            return Problem(409, code, str(error))


def invalid(errors: Sequence[Mapping[str, Any]]) -> Problem:
    """Name the fields of a request that are wrong, without repeating what was sent."""
    if any(each["type"] == "json_invalid" for each in errors):
        return Problem(400, "bad-json", "The body is not JSON that can be read.")
    parts = [f"{'.'.join(map(str, each['loc']))[:120]}: {each['msg'][:120]}" for each in errors[:5]]
    more = f" (and {len(errors) - 5} more)" if len(errors) > 5 else ""  # noqa: PLR2004
    return Problem(422, "bad-request", f"The request is not valid: {'; '.join(parts)}{more}.")


def within(tenant: str | None, id_: str, job: JobRecord | None) -> JobRecord:
    """Give a job behind the walls of a tenant, or anybody's; another tenant's is as absent as one that is not there."""
    if job is None or tenant not in (None, job.tenant):
        raise absent(id_)
    return job


def absent(id_: str) -> Problem:
    """Say that there is no such job: the same of one that is not there and of one behind a tenant's wall."""
    return told(JobNotFound(f"There is no job {id_}; it may have been purged."))


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe the errors that a route may answer with, besides those that every route may."""
    return {status: described(HTTPStatus(status).phrase) for status in sorted({*statuses, *_ANY})}


def described(text: str) -> dict[str, Any]:
    """Describe an answer that is a problem."""
    return {"description": text, "content": {MEDIA: {"schema": {"$ref": "#/components/schemas/ProblemBody"}}}}


_ANY = (400, 401, 403, 408, 413, 415, 421, 422, 429, 503)


async def answered(_request: Request, error: Exception) -> Response:
    """Answer a request that Holdfast refused."""
    if isinstance(error, Problem):
        return error.response()
    assert isinstance(error, HoldfastError)
    return told(error).response()
