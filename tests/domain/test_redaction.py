"""What redaction takes out, what it leaves, and that no text takes it long."""

import time

import pytest

from holdfast.domain.redaction import REDACTED, Redaction, without_password, without_person

PLAIN = Redaction()
CANARY = "c4n4ry-7f3a9"


@pytest.mark.parametrize(
    "text",
    [
        f"password={CANARY}",
        f"PGPASSWORD: {CANARY}",
        f'{{"api_key": "{CANARY}"}}',
        f"{{'Api-Key': '{CANARY} with spaces'}}",
        f'{{\\"client_secret\\": \\"{CANARY}\\"}}',
        f"Authorization: Bearer {CANARY}",
        f"Authorization: Basic {CANARY}",
        f"sent with bearer {CANARY}",
        f"GET https://example.org/?page=2&access_token={CANARY}&sort=up",
        f"https://bucket.example.org/object?X-Amz-Signature={CANARY}",
        f"cannot connect to postgresql://ada:{CANARY}@db.example.org/jobs",
        f"redis://:{CANARY}@localhost",
        f"amqp://ada:p@ss/{CANARY}@broker/vhost",
        f"Set-Cookie: {CANARY}",
        f"eyJhbGciOiJIUzI1NiJ9.{CANARY}.{CANARY}",
        f"ghp_{CANARY.replace('-', '')}0123456789",
        f"hf_01a2b3_{CANARY}0123456789abcdef",
        f"{CANARY}@example.org",
        f"-----BEGIN RSA PRIVATE KEY-----\n{CANARY.replace('-', '')}\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_a_secret_in_a_text_is_taken_out(text: str) -> None:
    shown = PLAIN.text(text)
    assert CANARY not in shown
    assert CANARY.replace("-", "") not in shown
    assert REDACTED in shown


@pytest.mark.parametrize("card", ["4111111111111111", "4111 1111 1111 1111", "5500-0000-0000-0004", "378282246310005"])
def test_a_card_number_is_taken_out_and_other_numbers_stay(card: str) -> None:
    assert PLAIN.text(f"paid with {card} today") == f"paid with {REDACTED} today"
    assert PLAIN.text("order 4111111111111112") == "order 4111111111111112"
    assert PLAIN.value({"card": int(card.replace(" ", "").replace("-", ""))}) == {"card": REDACTED}


@pytest.mark.parametrize(
    "text",
    [
        'File "/srv/app/tasks.py", line 31, in deliver',
        "01a1e439-f7df-7521-800b-2d0586ae207a at 1763325600000000",
        "ConnectionError: [Errno 111] Connection refused",
        "a ratio of 3:4, and https://example.org/a/b?page=2",
        "2026-11-16T20:24:12+00:00",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert PLAIN.text(text) == text


def test_values_under_the_name_of_a_secret_are_taken_out_however_deep_they_lie() -> None:
    payload = {
        "user": "ada",
        "Password": CANARY,
        "headers": [{"X-Api-Key": CANARY}, {"authorization": [CANARY]}],
        "note": f"token={CANARY}",
        "count": 3,
        "exact": True,
        "nothing": None,
    }
    assert PLAIN.value(payload) == {
        "user": "ada",
        "Password": REDACTED,
        "headers": [{"X-Api-Key": REDACTED}, {"authorization": REDACTED}],
        "note": f"token={REDACTED}",
        "count": 3,
        "exact": True,
        "nothing": None,
    }


def test_a_value_deeper_than_any_payload_is_taken_out_whole() -> None:
    deep: object = CANARY
    for _ in range(5_000):
        deep = [deep]
    assert CANARY not in str(PLAIN.value(deep))


def test_names_and_patterns_of_the_users_own_are_taken_out_too() -> None:
    own = Redaction(keys=("national id",), patterns=(r"\bEMP-\d+\b",), emails=False)
    assert own.value({"National_ID": CANARY, "who": "EMP-1234 ada@example.org"}) == {
        "National_ID": REDACTED,
        "who": f"{REDACTED} ada@example.org",
    }
    assert own.text(f"national-id: {CANARY}") == f"national-id: {REDACTED}"


@pytest.mark.parametrize(
    "text",
    ["password" * 4_000, "token=" * 4_000, "eyJ" * 8_000, "a@" * 8_000, "4 " * 8_000, "://a:" * 4_000, "x" * 32_000,
     "bearer " * 4_000, "-----BEGIN PRIVATE KEY-----" * 1_000, "secret\\" * 4_000],
    ids=lambda text: text[:12],
)  # fmt: skip
def test_no_text_takes_long(text: str) -> None:
    began = time.process_time()
    PLAIN.text(text)
    assert time.process_time() - began < 1.0


@pytest.mark.parametrize(
    ("url", "named", "bare"),
    [
        ("postgresql://ada:pw@host/db", "postgresql://ada:***@host/db", "postgresql://***@host/db"),
        ("postgresql://ada:p@ss@host/db", "postgresql://ada:***@host/db", "postgresql://***@host/db"),
        ("postgresql://ada@host/db?password=pw", "postgresql://ada@host/db?password=***", None),
        ("postgresql://host/db", "postgresql://host/db", "postgresql://host/db"),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, named: str, bare: str | None) -> None:
    assert without_password(url) == named
    if bare is not None:
        assert without_person(url) == bare
