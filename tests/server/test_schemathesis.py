"""Every route, called with whatever its own description allows and forbids: nothing breaks, and every answer is as
described.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode
from schemathesis.specs.openapi.checks import ignored_auth, positive_data_acceptance

from holdfast import Holdfast
from holdfast.server import Limits, serve

EXAMPLES = int(os.environ.get("HOLDFAST_SCHEMATHESIS", "10"))
"""How many requests of each kind are made of each route; more of them take longer."""
SETTINGS = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    derandomize=EXAMPLES <= 10,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
OPEN = {"/healthz", "/readyz"}


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Serve a store with something in it; gives the address and a token."""
    app = Holdfast(f"sqlite:///{tmp_path}/jobs.db")
    secret, _ = app.tokens.create("all", ["admin"])
    app.grant("acme", 100)
    limits = Limits(rate=1e9, burst=1e9)
    serving = serve(app, port=0, auth=True, dashboard=False, limits=limits)
    yield serving.address, secret
    serving.stop()
    assert serving.join(20)
    app.close()


def operations(address: str) -> Iterator[Any]:
    for found in schemathesis.openapi.from_url(f"{address}/openapi.json").get_all_operations():
        yield found.ok()  # type: ignore[union-attr]


def exercise(operation: Any, mode: GenerationMode, check: Any) -> None:
    """Make requests of one route."""

    @SETTINGS
    @given(case=operation.as_strategy(generation_mode=mode))
    def run(case: "Case[Any]") -> None:
        if isinstance(case.body, dict) and "wait" in case.body:
            case.body["wait"] = 0
        if isinstance(case.body, dict) and "per_second" in case.body:
            case.body["per_second"] = None
        if isinstance(case.query, dict):
            case.query.pop("wait", None)
        check(case)

    try:
        run()
    except Unsatisfiable:
        assert mode is GenerationMode.NEGATIVE  # a route that takes nothing can be given nothing wrong


def test_no_request_breaks_anything_and_every_answer_is_as_described(ground: tuple[str, str]) -> None:
    address, secret = ground
    headers = {"Authorization": f"Bearer {secret}"}
    seen: dict[int, int] = {}

    def check(case: "Case[Any]") -> None:
        answer = case.call(headers=headers, timeout=30)
        seen[answer.status_code] = seen.get(answer.status_code, 0) + 1
        assert answer.status_code < 500, answer.text
        # A name must be printable, which a schema cannot say; and our token takes the place of any that was made up.
        case.validate_response(answer, excluded_checks=[positive_data_acceptance, ignored_auth])

    for operation in operations(address):
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            exercise(operation, mode, check)
    assert {200, 201, 404, 422} <= seen.keys()


def test_without_a_token_every_request_is_refused(ground: tuple[str, str]) -> None:
    address, _ = ground
    for operation in operations(address):
        if operation.path in OPEN:
            continue

        def check(case: "Case[Any]") -> None:
            case.headers.pop("Authorization", None)
            answer = case.call(timeout=30)
            assert answer.status_code in (400, 401, 404, 405, 415), answer.text
            assert answer.status_code != 404 or answer.json()["code"] == "not-found", answer.text
            case.validate_response(answer, excluded_checks=[positive_data_acceptance, ignored_auth])

        exercise(operation, GenerationMode.POSITIVE, check)
