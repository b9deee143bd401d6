"""`holdfast limits`, and pauses of tenants and kinds: what operators do while work goes on."""

import json
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from holdfast import Holdfast
from holdfast.cli.main import program


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/jobs.db"
    with closing(Holdfast(url)) as app:

        @app.job(queue="mail")
        def send(n: int) -> None: ...

        send.using(tenant="acme").enqueue(1)
    return url


def ask(url: str, *words: str) -> Result:
    return CliRunner().invoke(program, (*words, "--url", url))


def done(url: str, *words: str) -> str:
    told = ask(url, *words)
    assert (told.exit_code, told.stderr) == (0, "")
    return told.stdout


def test_limits_are_set_listed_and_removed(url: str) -> None:
    said = done(url, "limits", "set", "mail", "--rate", "100/min", "--burst", "20", "--per", "tenant")
    assert said == "The queue 'mail' has 100/min, burst 20 per tenant.\n"
    done(url, "limits", "set", "*", "--concurrency", "50")
    assert done(url, "limits", "set", "ingest", "--weight", "acme=3", "--aging", "60") == (
        "The queue 'ingest' is served tenant by tenant.\n"
    )
    told = json.loads(done(url, "limits", "list", "--json"))
    assert [(one["queue"], one["rate"], one["concurrency"]) for one in told["limits"]] == [
        ("*", None, 50),
        ("mail", "100/min", None),
    ]
    assert told["queues"] == [{"queue": "ingest", "order": "fair", "weights": {"acme": 3}, "aging": 60.0}]
    assert "100/min, burst 20" in done(url, "limits", "list")
    assert "The queue 'ingest': fair (acme 3), aging 60 s." in done(url, "limits", "list")
    assert done(url, "limits", "remove", "mail", "--rate") == "The queue 'mail' is free of its limits.\n"
    assert done(url, "limits", "remove", "ingest", "--order") == "The queue 'ingest' is free of its order.\n"
    assert json.loads(done(url, "limits", "remove", "*", "--json")) == {"queue": "*", "removed": True}
    assert "There are no limits." in done(url, "limits", "list")


def test_what_is_left_of_the_limits_is_told(url: str) -> None:
    done(url, "limits", "set", "mail", "--rate", "10/min", "--per", "tenant")
    done(url, "limits", "set", "mail", "--concurrency", "2", "--per", "key")
    told = done(url, "limits", "remove", "mail", "--rate")
    assert told == "The queue 'mail' is free of it; it keeps 2 at once per key.\n"


def test_credits_are_taken_back_by_a_negative_number(url: str) -> None:
    done(url, "credits", "grant", "acme", "10")
    told = done(url, "credits", "grant", "acme", "-4", "--key", "refund")
    assert told == "The account of 'acme' has 6 credits to spare of 6 granted.\n"
    wrong = ask(url, "credits", "grant", "acme", "--no")
    assert (wrong.exit_code, "Traceback" in wrong.stderr) == (2, False)


def test_what_is_not_named_of_an_order_stays(url: str) -> None:
    done(url, "limits", "set", "ingest", "--weight", "acme=3")
    assert done(url, "limits", "set", "ingest", "--aging", "60") == "The queue 'ingest' is served tenant by tenant.\n"
    done(url, "limits", "set", "ingest", "--weight", "globex=2")
    (queue,) = json.loads(done(url, "limits", "list", "--json"))["queues"]
    assert queue == {"queue": "ingest", "order": "fair", "weights": {"acme": 3, "globex": 2}, "aging": 60.0}
    done(url, "limits", "set", "ingest", "--order", "priority")
    (queue,) = json.loads(done(url, "limits", "list", "--json"))["queues"]
    assert queue == {"queue": "ingest", "order": "priority", "weights": {}, "aging": 60.0}


def test_tenants_and_kinds_are_paused_and_resumed(url: str) -> None:
    assert done(url, "queues", "pause", "--tenant", "acme", "--kind", "send").splitlines() == [
        "The tenant 'acme' is paused.",
        "The kind 'send' is paused.",
    ]
    assert done(url, "queues", "list").splitlines()[-2:] == ["Paused tenants: acme.", "Paused kinds: send."]
    assert json.loads(done(url, "queues", "resume", "--tenant", "acme", "--json")) == [
        {"tenant": "acme", "paused": False}
    ]
    assert "tenants" not in done(url, "queues", "list")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("limits", "set", "mail"), "Say what to set: --rate, --concurrency,"),
        (("limits", "set", "mail", "--burst", "3"), "A limit takes rate=, concurrency= or both."),
        (("limits", "set", "mail", "--rate", "fast"), "A rate is written like 100/min"),
        (("limits", "set", "mail", "--concurrency", "0"), "whole number from 1"),
        (("limits", "set", "mail", "--weight", "acme"), "A weight is written TENANT=N"),
        (("limits", "set", "*", "--order", "fair"), "An order is for one queue"),
        (("limits", "remove", "mail"), "has no such limit"),
        (("queues", "pause"), "Name a queue, or give --tenant or --kind."),
    ],
)
def test_wrong_use_is_one_sentence_and_exit_code_2(url: str, words: tuple[str, ...], sentence: str) -> None:
    told = ask(url, *words)
    assert told.exit_code == 2
    assert sentence in told.stderr
    assert told.stderr.count("\n") == 1
    assert told.stderr.rstrip().endswith(".")
    assert json.loads(done(url, "limits", "list", "--json")) == {"limits": [], "queues": []}
