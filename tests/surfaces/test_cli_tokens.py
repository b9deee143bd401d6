"""`holdfast tokens` and `holdfast trail`, for people and for programs, and what they say when they are used wrongly."""

import getpass
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from holdfast import Holdfast
from holdfast.cli.main import program
from holdfast.client.tokens import Principal
from holdfast.domain.moments import DAY, HOUR


@pytest.fixture(autouse=True)
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Holdfast]:
    """A store that is there, and that the environment names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_URL", f"sqlite:///{tmp_path}/jobs.db")
    monkeypatch.delenv("HOLDFAST_DEBUG", raising=False)
    with closing(Holdfast()) as opened:
        opened.counts()
        yield opened


def ask(*words: str) -> Result:
    return CliRunner().invoke(program, words)


def done(*words: str) -> Result:
    result = ask(*words)
    assert result.exit_code == 0, result.output
    return result


def answered(*words: str) -> Any:
    result = done(*words, "--json")
    assert result.stderr == ""
    return json.loads(result.stdout)


def refused(code: int, *words: str) -> str:
    """Ask for something that cannot be done; give the one sentence that says so."""
    told = ask(*words)
    assert (told.exit_code, told.stdout) == (code, ""), told.output
    assert told.stderr.startswith("Error: ")
    assert told.stderr.count("\n") == 1, told.stderr
    assert told.stderr.rstrip().endswith("."), told.stderr
    return told.stderr


def test_a_new_token_is_printed_alone_and_said_to_be_shown_once(app: Holdfast) -> None:
    words = ("--scope", "enqueue", "--scope", "read", "--tenant", "acme", "--expires", "30d")
    result = done("tokens", "create", "ci", *words)
    secret = result.stdout.removesuffix("\n")
    (record,) = app.tokens.list()
    assert app.tokens.check(secret) == Principal(record.id, "ci", frozenset({"read", "enqueue"}), "acme")
    assert record.expires_at == record.created_at + 30 * DAY
    assert result.stderr.startswith(f"The token {record.id} allows read, enqueue for tenant 'acme' and expires 20")
    assert "It is shown this once" in result.stderr
    assert secret not in result.stderr


def test_a_program_is_given_the_secret_beside_the_fields(app: Holdfast) -> None:
    made = answered("tokens", "create", "ops", "--scope", "admin")
    assert app.tokens.check(made.pop("token"))
    assert (made["name"], made["scopes"], made["tenant"], made["expires_at"]) == ("ops", ["admin"], None, None)
    assert answered("tokens", "list") == [made]


def test_tokens_are_listed_without_anything_that_lets_somebody_in(app: Holdfast) -> None:
    assert done("tokens", "list").stdout == (
        "There are no tokens; make one with: holdfast tokens create NAME --scope read.\n"
    )
    secret, record = app.tokens.create("ci", ["read", "work"], tenant="")
    app.tokens.revoke(app.tokens.create("old", ["read"])[1].id)
    listed = done("tokens", "list").stdout
    assert [line.split()[:5] for line in listed.splitlines()[1:]] == [[record.id, "ci", "active", "read", "work"]]
    assert "jobs without a tenant" in listed
    whole = done("tokens", "list", "--all").stdout + json.dumps(answered("tokens", "list", "--all"))
    assert "revoked" in whole
    digest = json.loads(app.store.pages("tokens")[0].body)["digest"]
    assert not any(part in whole for part in (secret, secret.rpartition(record.id)[2], digest))


def test_a_token_is_revoked(app: Holdfast) -> None:
    secret, record = app.tokens.create("ci", ["read"])
    told = done("tokens", "revoke", record.id).stdout
    assert told == f"The token {record.id} is revoked; servers refuse it within 5 seconds.\n"
    assert app.tokens.check(secret) is None
    assert answered("tokens", "revoke", record.id)["state"] == "revoked"
    assert answered("tokens", "list") == []


def test_a_token_is_rotated_with_and_without_grace(app: Holdfast) -> None:
    first, record = app.tokens.create("ci", ["read"])
    result = done("tokens", "rotate", record.id)
    second = result.stdout.strip()
    assert f"The token {record.id} has this secret now, and the old one ended." in result.stderr
    rotated = answered("tokens", "rotate", record.id, "--grace", "12h")
    assert [bool(app.tokens.check(each)) for each in (first, second, rotated["token"])] == [False, True, True]
    until = json.loads(app.store.pages("tokens")[0].body)["former"][1]
    assert 11 * HOUR < until - app.store.now() <= 12 * HOUR


def test_what_was_done_is_on_the_trail_without_secrets(app: Holdfast) -> None:
    assert done("trail", "list").stdout == "Nothing is on the trail.\n"
    made = answered("tokens", "create", "ci", "--scope", "read")
    again = answered("tokens", "rotate", made["id"])
    answered("tokens", "revoke", made["id"])
    deeds = answered("trail", "list")
    assert [deed["what"] for deed in deeds] == ["token.revoke", "token.rotate", "token.create"]
    assert {(deed["who"], deed["target"]) for deed in deeds} == {(f"{getpass.getuser()} (command line)", made["id"])}
    assert deeds[-1]["detail"] == {"name": "ci", "scopes": ["read"], "tenant": None}
    assert answered("trail", "list", "-n", "1", "--before", deeds[0]["id"]) == deeds[1:2]
    table = done("trail", "list").stdout
    assert len(table.splitlines()) == 4
    assert not any(secret in table + json.dumps(deeds) for secret in (made["token"], again["token"]))


def test_nothing_on_the_trail_can_steer_a_terminal(app: Holdfast) -> None:
    app.trail.record("\x1b[2Jada", "did\n", "it\x07")
    assert not set("\x1b\x07") & set(done("trail", "list").stdout)


def test_wrong_use_is_one_sentence_and_makes_nothing(app: Holdfast) -> None:
    assert "none was given" in refused(2, "tokens", "create", "ci")
    assert "'root'" in refused(2, "tokens", "create", "ci", "--scope", "root")
    for span in ("30", "d", "-1d", "1.5h", "30 d", "9999999w"):
        assert "is not a span of time" in refused(2, "tokens", "create", "ci", "--scope", "read", "--expires", span)
    assert "more than nothing" in refused(2, "tokens", "create", "ci", "--scope", "read", "--expires", "0s")
    assert "a hundred years" in refused(2, "tokens", "create", "ci", "--scope", "read", "--expires", "999999w")
    assert "token's name" in refused(2, "tokens", "create", "", "--scope", "read")
    assert app.tokens.list(ended=True) == []
    assert app.trail.list() == []


def test_what_is_not_there_is_one_sentence(app: Holdfast, tmp_path: Path) -> None:
    assert "There is no token 'nobody'" in refused(1, "tokens", "revoke", "nobody")
    assert "There is no token" in refused(1, "tokens", "rotate", "nobody")
    _, record = app.tokens.create("ci", ["read"])
    app.tokens.revoke(record.id)
    assert "is revoked, so it has no use" in refused(2, "tokens", "rotate", record.id)
    elsewhere = f"sqlite:///{tmp_path}/none.db"
    assert "There is no database" in refused(1, "tokens", "create", "ci", "--scope", "read", "--url", elsewhere)
    assert not (tmp_path / "none.db").exists()
