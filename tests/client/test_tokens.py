"""Tokens: whom they let in, for how long, and that nothing stored would let anybody in."""

import asyncio
import hashlib
import json
import re
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast import BadInput, Holdfast, TokenNotFound
from holdfast.client.tokens import BOOK, REMEMBERED, SCOPES, Principal, Tokens
from holdfast.domain.moments import DAY, SECOND
from holdfast.stores.memory import MemoryStore
from holdfast.testing.clock import ManualClock


class Ticks:
    """Seconds that a test lets pass."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock=clock)


@pytest.fixture
def ticks() -> Ticks:
    return Ticks()


@pytest.fixture
def tokens(store: MemoryStore, ticks: Ticks) -> Tokens:
    return Tokens(lambda: store, ticks)


@pytest.fixture
def elsewhere(store: MemoryStore) -> Tokens:
    """The tokens as another process sees them."""
    return Tokens(lambda: store)


def test_a_token_lets_its_holder_in_as_it_was_made(tokens: Tokens, elsewhere: Tokens) -> None:
    secret, record = tokens.create("ci", ["enqueue", "read", "read"], tenant="acme")
    assert (
        tokens.check(secret) == elsewhere.check(secret) == Principal(record.id, "ci", frozenset(record.scopes), "acme")
    )
    assert record.scopes == ("read", "enqueue")
    assert tokens.get(record.id) == record
    assert tokens.list() == [record]


def test_a_token_without_a_tenant_is_good_for_all_and_one_for_the_empty_tenant_is_not(tokens: Tokens) -> None:
    wide, narrow = (tokens.create("t", ["read"], tenant=tenant)[0] for tenant in (None, ""))
    assert [principal and principal.tenant for principal in map(tokens.check, (wide, narrow))] == [None, ""]


def test_a_secret_is_long_and_never_stored(tokens: Tokens, store: MemoryStore) -> None:
    secret, record = tokens.create("ci", ["read"])
    another, _ = tokens.create("ci", ["read"])
    assert re.fullmatch(rf"hf_{record.id}_[\w-]{{43}}", secret)
    assert secret != another
    (page,) = (page for page in store.pages(BOOK) if page.name == record.id)
    assert secret.rpartition(record.id)[2].strip("_") not in page.body
    assert json.loads(page.body)["digest"] == hashlib.sha256(secret.encode()).hexdigest()


def test_only_the_whole_secret_lets_somebody_in(tokens: Tokens) -> None:
    secret, record = tokens.create("ci", ["read"])
    other, _ = tokens.create("other", ["read"])
    mixed = f"hf_{record.id}_{other.partition('_')[2].partition('_')[2]}"
    changed = secret[:-1] + ("A" if secret[-1] != "A" else "B")
    wrong = ["", "hf_", record.id, f"hf_{record.id}_", secret[:-1], secret + "x", f" {secret}", changed, mixed]
    wrong += [f"{secret}\n", secret.upper(), secret.replace(record.id, "0" * 16), "ü" * 60, "x" * 100_000]
    assert [tokens.check(each) for each in wrong] == [None] * len(wrong)
    assert tokens.check(secret)


def test_an_expired_token_lets_nobody_in_though_it_was_checked_just_before(
    tokens: Tokens, clock: ManualClock, ticks: Ticks
) -> None:
    secret, record = tokens.create("ci", ["read"], expires_in=timedelta(seconds=10))
    for passed, holds in ((9, True), (1, False)):
        clock.advance(seconds=passed)
        ticks.now += passed
        assert bool(tokens.check(secret)) is holds
        assert bool(tokens.standing(record.id)) is holds
    assert tokens.list() == []
    assert [each.state(clock.now()) for each in tokens.list(ended=True)] == ["expired"]
    with pytest.raises(BadInput, match="is expired"):
        tokens.rotate(record.id)


def test_a_revoked_token_is_refused_at_once_here_and_within_seconds_elsewhere(
    tokens: Tokens, elsewhere: Tokens, ticks: Ticks, clock: ManualClock
) -> None:
    secret, record = tokens.create("ci", ["read"])
    assert tokens.check(secret)
    revoked = elsewhere.revoke(record.id)
    assert revoked.revoked_at == clock.now()
    assert elsewhere.check(secret) is None
    assert tokens.check(secret), "remembered"
    ticks.now += REMEMBERED
    assert tokens.check(secret) is None
    assert tokens.standing(record.id) is None
    clock.advance(seconds=1)
    assert tokens.revoke(record.id) == revoked
    with pytest.raises(BadInput, match="is revoked"):
        tokens.rotate(record.id)


def test_a_token_that_is_remembered_is_not_looked_up_again(tokens: Tokens, store: MemoryStore, ticks: Ticks) -> None:
    secret, record = tokens.create("ci", ["read"])
    assert tokens.check(secret) == tokens.standing(record.id)
    store.remove_page(BOOK, record.id)
    assert tokens.check(secret)
    assert asyncio.run(tokens.acheck(secret))
    ticks.now += REMEMBERED
    assert tokens.check(secret) is None
    assert asyncio.run(tokens.acheck(secret)) is None


def test_rotation_ends_the_old_secret_at_once_or_after_a_grace(
    tokens: Tokens, elsewhere: Tokens, clock: ManualClock
) -> None:
    first, record = tokens.create("ci", ["read"], tenant="acme")
    second = tokens.rotate(record.id)
    third = tokens.rotate(record.id, grace=timedelta(seconds=3))
    assert [bool(tokens.check(each)) for each in (first, second, third)] == [False, True, True]
    assert tokens.check(third) == Principal(record.id, "ci", frozenset({"read"}), "acme")
    clock.advance(seconds=3)
    assert [bool(elsewhere.check(each)) for each in (second, third)] == [False, True]
    assert tokens.get(record.id).rotated_at == clock.now() - 3 * SECOND
    tokens.revoke(record.id)
    assert elsewhere.check(third)
    assert Tokens(tokens._store).check(third) is None


def test_a_grace_never_outlasts_what_is_remembered_of_it(tokens: Tokens, ticks: Ticks, clock: ManualClock) -> None:
    old, record = tokens.create("ci", ["read"])
    tokens.rotate(record.id, grace=1)
    assert tokens.check(old)
    clock.advance(seconds=1)
    ticks.now += 1
    assert tokens.check(old) is None


def test_revoking_and_rotating_at_the_same_moment_never_leaves_a_secret_that_works(store: MemoryStore) -> None:
    for _ in range(20):
        sides = [Tokens(lambda: store), Tokens(lambda: store)]
        secret, record = sides[0].create("ci", ["read"])

        def rotate(tokens: Tokens = sides[1], id_: str = record.id) -> str | None:
            try:
                return tokens.rotate(id_, grace=60)
            except BadInput:
                return None

        with ThreadPoolExecutor(2) as pool:
            rotated, _ = pool.submit(rotate), pool.submit(sides[0].revoke, record.id).result()
        held = filter(None, (secret, rotated.result()))
        assert [Tokens(lambda: store).check(each) for each in held] in ([None], [None, None])


def test_ended_tokens_are_listed_for_some_months_and_then_purged(
    tokens: Tokens, store: MemoryStore, clock: ManualClock
) -> None:
    _, lasting = tokens.create("lasting", ["read"])
    clock.advance(seconds=1)
    _, expiring = tokens.create("expiring", ["read"], expires_in=1)
    clock.advance(seconds=1)
    _, revoked = tokens.create("revoked", ["read"])
    tokens.revoke(revoked.id)
    assert [each.id for each in tokens.list(ended=True)] == [lasting.id, expiring.id, revoked.id]
    assert [each.id for each in tokens.list()] == [lasting.id]
    clock.advance(microseconds=90 * DAY)
    assert [each.name for each in tokens.list(ended=True)] == ["lasting"]
    assert store.purge(10).pages == 2


@pytest.mark.parametrize(
    ("scopes", "allowed"),
    [
        (["read"], "read"),
        (["enqueue"], "enqueue"),
        (["work"], "work"),
        (["operate"], "read operate"),
        (["enqueue", "work"], "enqueue work"),
        (["admin"], "read enqueue work operate admin"),
    ],
)
def test_scopes_imply_one_another_as_told(scopes: list[str], allowed: str) -> None:
    principal = Principal("id", "name", frozenset(scopes), None)
    assert [scope for scope in SCOPES if principal.may(scope)] == allowed.split()
    assert not principal.may("everything")


def test_what_cannot_be_made_is_refused_and_nothing_is_stored(tokens: Tokens, store: MemoryStore) -> None:
    with pytest.raises(BadInput, match="none was given"):
        tokens.create("ci", [])
    with pytest.raises(BadInput, match="'root' is not one"):
        tokens.create("ci", ["read", "root"])
    with pytest.raises(BadInput, match="token's name"):
        tokens.create("a\nb", ["read"])
    with pytest.raises(BadInput, match="A tenant is"):
        tokens.create("ci", ["read"], tenant="x" * 1000)
    with pytest.raises(BadInput, match="more than nothing"):
        tokens.create("ci", ["read"], expires_in=0)
    with pytest.raises(BadInput, match="negative"):
        tokens.create("ci", ["read"], expires_in=-1)
    assert store.pages(BOOK) == []


@pytest.mark.parametrize("id_", ["", "0123456789abcdef", "x" * 5000, "a\x00b"])
def test_a_token_that_is_not_there_is_said_to_be_absent(tokens: Tokens, id_: str) -> None:
    for ask in (tokens.get, tokens.revoke, tokens.rotate):
        with pytest.raises(TokenNotFound, match="There is no token"):
            ask(id_)
    assert tokens.standing(id_) is None


def test_an_application_has_tokens_that_outlive_it_and_asynchronous_twins(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"

    async def use(app: Holdfast) -> str:
        secret, record = await app.tokens.acreate("ci", ["read"])
        assert await app.tokens.alist() == [record] == [await app.tokens.aget(record.id)]
        assert await app.tokens.acheck(secret) == await app.tokens.astanding(record.id)
        return await app.tokens.arotate(record.id)

    app = Holdfast(url)
    secret = asyncio.run(use(app))
    app.close()
    assert app.tokens is app.tokens
    assert app.tokens.check(secret), "it opens the store again"
    app.close()
    again = Holdfast(url)
    principal = again.tokens.check(secret)
    assert principal
    assert asyncio.run(again.tokens.arevoke(principal.id)).revoked_at
    assert again.tokens.check(secret) is None
    again.close()
