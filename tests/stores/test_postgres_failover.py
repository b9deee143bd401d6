"""A primary and its standby, both real: who looks at the standby, and what a failover to it costs."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from holdfast import Holdfast, JobFunction, StoreUnavailable
from holdfast.domain.errors import StoreError
from tests.servers import Server, own, until

JOBS = 60_000
APPLICATION = """
import os
from holdfast import Holdfast

app = Holdfast(os.environ["FAILOVER_URL"], lease=3, heartbeat=0.5, grace=5, upkeep=0.2)

@app.job
def noop(n: int) -> None: ...
"""


@pytest.fixture
def primary() -> Iterator[Server]:
    with own() as server:
        yield server


@pytest.fixture
def standby(primary: Server) -> Iterator[Server]:
    """A standby for which every commit waits: so it has all that was acknowledged."""
    with own(primary=primary) as server:
        with psycopg.connect(primary.address, autocommit=True) as db:
            db.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        primary.stop()  # what is only reloaded, commits heed a moment later
        primary.start()
        with psycopg.connect(primary.address, autocommit=True) as db:
            until(lambda: _is_synchronous(db), "the standby")
        yield server


def _is_synchronous(db: psycopg.Connection) -> bool:
    query = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
    return db.execute(query).fetchone() == (1,)


def test_l10_a_failover_under_load_is_survived_without_a_hand(primary: Server, standby: Server, tmp_path: Path) -> None:
    """S1, S15: all that was acknowledged before it or after it is done, once; and what was final stays as it was."""
    url = (
        f"postgresql://{primary.user}@127.0.0.1:{primary.port},127.0.0.1:{standby.port}/postgres"
        "?target_session_attrs=read-write"
    )
    (tmp_path / "shop.py").write_text(APPLICATION)
    with closing(Holdfast(url)) as app:
        noop = _with_noop(app)
        accepted = {str(job.id) for job in app.enqueue_many([noop.prepare(n) for n in range(JOBS)])}
        words = [sys.executable, "-m", "holdfast", "worker", f"{tmp_path}/shop.py:app"]
        with (tmp_path / "err").open("w") as err:
            worker = subprocess.Popen(words, env={**os.environ, "FAILOVER_URL": url}, stderr=err)
        try:
            until(lambda: app.counts().unfinished < JOBS, "the start")
            primary.stop("immediate")
            seen = _outcomes(standby)
            with pytest.raises(StoreUnavailable, match=r"cannot be reached|takes no changes"):
                noop.enqueue(0)
            standby.promote()
            accepted.add(until(lambda: _enqueued(noop), "an enqueue after the failover"))
            until(lambda: app.counts().unfinished == 0, "the end")
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(20) == 0
        finally:
            worker.kill()
            worker.wait()
        final = _outcomes(standby)
        assert set(final) >= accepted
        assert {id_: final[id_] for id_ in seen} == seen, "a terminal record changed"
        assert app.counts()["succeeded"] == len(final)
        assert list(app.store.check()) == []
    assert 0 < len(seen) < JOBS, "the failover was not under load"
    assert "Traceback" not in (tmp_path / "err").read_text()


def _outcomes(server: Server) -> dict[str, str]:
    with psycopg.connect(server.address) as db:
        return dict(db.execute("SELECT job_id::text, md5(outcome::text) FROM holdfast.outcome AS outcome").fetchall())


def _enqueued(noop: "JobFunction[[int], None]") -> str | None:
    try:
        return str(noop.enqueue(-1).id)
    except StoreError:
        return None


def test_a_standby_can_be_looked_at_and_takes_nothing(primary: Server, standby: Server) -> None:
    with closing(Holdfast(primary.address)) as app:
        id_ = _with_noop(app).enqueue(1).id
    until(lambda: _replayed(primary, standby), "what was written last")
    with closing(Holdfast(standby.address)) as app:
        noop = _with_noop(app)
        assert app.get(id_).state == "queued"
        assert app.counts()["queued"] == 1
        assert [job.id for job in app.find(state="queued")] == [id_]
        assert list(app.store.check()) == []
        for change in (lambda: noop.enqueue(2), lambda: app.cancel(id_), lambda: app.pause("default")):
            with pytest.raises(StoreUnavailable, match="takes no changes: it is a read-only replica"):
                change()


def _replayed(primary: Server, standby: Server) -> bool:
    """Tell whether a standby shows all that its primary has written."""
    with psycopg.connect(primary.address) as db, psycopg.connect(standby.address) as late:
        (written,) = db.execute("SELECT pg_current_wal_insert_lsn()").fetchone() or (None,)
        return late.execute("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", (written,)).fetchone() == (True,)


def _with_noop(app: Holdfast) -> "JobFunction[[int], None]":
    @app.job
    def noop(n: int) -> None: ...

    return noop
