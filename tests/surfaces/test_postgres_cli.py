"""The command line on PostgreSQL: every command, migrations, and each trouble as one sentence without the password."""

import json
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from click.testing import CliRunner, Result

from holdfast import BadInput, Holdfast, Permanent, StoreUnusable
from holdfast.cli.main import program
from holdfast.cli.store import masked
from holdfast.port.store import Claim
from holdfast.stores.postgres.schema import MIGRATIONS, VERSION
from tests import servers
from tests.surfaces.processes import command, output, run, started, until

SECRET = "hunter2"
ABSENT = "01234567-89ab-7def-8123-456789abcdef"
GONE_SOON = 8.0
READERS = [
    ("jobs", "list"),
    ("jobs", "show", ABSENT),
    ("jobs", "why", ABSENT),
    ("jobs", "cancel", ABSENT),
    ("jobs", "redrive", ABSENT),
    ("queues", "list"),
    ("queues", "pause", "mail"),
    ("queues", "resume", "mail"),
    ("dead", "list"),
    ("dead", "redrive", "--all", "--yes"),
    ("check",),
    ("backup", "copy.db"),
]
SHOP = """
import os
from holdfast import Holdfast

app = Holdfast(os.environ["SHOP_URL"], grace=5)

@app.job
def add(a: int, b: int) -> int:
    return a + b
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to be in, with an application, and no store chosen by the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    monkeypatch.delenv("HOLDFAST_DEBUG", raising=False)
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path


def shop(url: str) -> Holdfast:
    app = Holdfast(url)

    @app.job
    def add(a: int, b: int) -> int:
        return a + b

    @app.job(queue="mail")
    def reject(who: str) -> None:
        raise Permanent(who, code="nobody")

    return app


@pytest.fixture
def app(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Holdfast]:
    """A store with some jobs, chosen by HOLDFAST_URL."""
    monkeypatch.setenv("HOLDFAST_URL", postgres_url)
    with closing(shop(postgres_url)) as opened:
        opened.enqueue_many([opened.prepare("add", {"a": n, "b": n}) for n in range(3)])
        opened.enqueue_many([opened.prepare("reject", {"who": SECRET}) for _ in range(2)])
        opened.run_worker(until_idle=True)
        opened.enqueue("add", {"a": 1, "b": 1}, run_after=3600)
        yield opened


def ask(*words: str) -> Result:
    return CliRunner().invoke(program, words)


def done(*words: str) -> str:
    result = ask(*words)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return result.stdout


def listed(*words: str) -> Any:
    return json.loads(done(*words, "--json"))


def refused(*words: str, code: int = 1) -> str:
    """Ask for something that cannot be done; give the one sentence that says so."""
    told = ask(*words)
    assert (told.exit_code, told.stdout) == (code, ""), told.output
    assert told.stderr.startswith("Error: ")
    assert told.stderr.count("\n") == 1, told.stderr
    assert told.stderr.rstrip().endswith(".")
    assert SECRET not in told.stderr
    return told.stderr


def schema_of(url: str) -> str:
    return url.rpartition("=")[2]


def execute(server: str, statement: str) -> list[Any]:
    with psycopg.connect(server, autocommit=True) as db:
        cursor = db.execute(statement)
        return cursor.fetchall() if cursor.description else []


def shape(server: str, schema: str) -> list[str]:
    """Describe all that a schema holds, without its name."""
    told = execute(
        server,
        f"""SELECT relkind::text || ' ' || relname::text || ' ' || coalesce(pg_get_viewdef(oid), '') FROM pg_class
            WHERE relnamespace = '{schema}'::regnamespace
            UNION ALL SELECT concat(attrelid::regclass, ' ', attname, ' ', atttypid::regtype, ' ', attnotnull)
            FROM pg_attribute WHERE attrelid::regclass::text LIKE '{schema}.%' AND attnum > 0
            UNION ALL SELECT pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = '{schema}'::regnamespace
            UNION ALL SELECT pg_get_indexdef(indexrelid) FROM pg_index
            WHERE indexrelid::regclass::text LIKE '{schema}.%'
            UNION ALL SELECT tgname::text FROM pg_trigger WHERE tgrelid::regclass::text LIKE '{schema}.%'
            UNION ALL SELECT concat(version, ' ', name) FROM {schema}.migration""",
    )
    return sorted(text.replace(schema, "it") for (text,) in told)


def as_version(server: str, schema: str, version: int) -> None:
    """Make a schema look as another version of Holdfast would leave it."""
    execute(server, f"DELETE FROM {schema}.migration WHERE version > {version}")
    if version < VERSION:
        for thing in ("VIEW {}.jobs", "VIEW {}.counts", "FUNCTION {}.moment"):
            execute(server, f"DROP {thing.format(schema)}")
    for number in range(VERSION + 1, version + 1):
        execute(server, f"INSERT INTO {schema}.migration VALUES ({number}, 'from the future')")


def test_jobs_are_listed_shown_explained_cancelled_and_redriven(app: Holdfast) -> None:
    assert len(listed("jobs", "list")) == 6
    assert len(done("jobs", "list").splitlines()) == 7
    first = listed("jobs", "list", "-n", "2")
    assert len(listed("jobs", "list", "--before", first[-1]["id"])) == 4
    (waiting,) = listed("jobs", "list", "--state", "queued")
    assert listed("jobs", "why", waiting["id"])["reason"] == "not-due"
    assert done("jobs", "cancel", waiting["id"]) == f"{waiting['id']} is cancelled.\n"
    assert listed("jobs", "show", waiting["id"])["state"] == "cancelled"
    dead = listed("jobs", "list", "--error-code", "nobody", "--queue", "mail", "--kind", "reject")
    assert len(dead) == 2
    assert dead[0]["failure"]["code"] == "nobody"
    assert done("jobs", "redrive", dead[0]["id"]) == f"{dead[0]['id']} is queued as generation 2.\n"
    app.enqueue("add", {"a": 1, "b": 2})
    claimed = app.store.claim(Claim("ada", "lease", 60_000_000, 2))
    assert "held by ada" in done("jobs", "show", claimed[0].id)
    assert "has been asked to stop" in done("jobs", "cancel", claimed[0].id)


def test_queues_and_dead_letters_are_looked_after(app: Holdfast) -> None:
    assert listed("queues", "pause", "mail") == [{"queue": "mail", "paused": True}]
    told = {queue["queue"]: queue for queue in listed("queues", "list")}
    assert (told["mail"]["paused"], told["mail"]["jobs"]["dead"], told["default"]["jobs"]["succeeded"]) == (True, 2, 3)
    assert done("queues", "resume", "mail") == "The queue 'mail' is served again.\n"
    assert len(listed("dead", "list")) == 2
    assert listed("dead", "redrive", "--all", "--yes") == {"redriven": 2}
    assert done("dead", "list") == "There are no such dead jobs.\n"


def test_a_healthy_store_is_found_to_be_so_and_a_spoilt_one_is_not(app: Holdfast, postgres_server: str) -> None:
    assert done("check").endswith("Nothing is wrong.\n")
    report = listed("check")
    assert (report["clean"], report["jobs"]) == (True, 6)
    assert "S4" not in {each["promise"] for each in report["promises"]}, "there is no file to be whole"
    execute(postgres_server, f"INSERT INTO {schema_of(app.url)}.tally VALUES ('mail', 'dead', 1)")
    told = ask("check", "--json")
    assert told.exit_code == 1
    assert [finding["promise"] for finding in json.loads(told.stdout)["findings"]] == ["S36"]


def test_a_backup_is_postgresqls_own_business(app: Holdfast, here: Path) -> None:
    assert "is backed up with pg_dump" in refused("backup", "copy.db")
    assert not (here / "copy.db").exists()


def test_a_worker_drains_and_ends_when_idle(app: Holdfast, here: Path) -> None:
    jobs = [app.enqueue("add", {"a": n, "b": n}) for n in range(20)]
    ended = run("worker", "shop:app", "--processes", "2", "--until-idle", cwd=here, SHOP_URL=app.url)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert [job.result() for job in jobs] == [2 * n for n in range(20)]


def test_looking_at_a_schema_that_is_not_there_does_not_make_it(postgres_url: str, postgres_server: str) -> None:
    for words in READERS:
        said = refused(*words, "--url", postgres_url)
        assert f"There is no Holdfast schema '{schema_of(postgres_url)}' in postgresql://" in said
        assert said.endswith("or make it with: holdfast migrate.\n")
    assert execute(postgres_server, f"SELECT to_regnamespace('{schema_of(postgres_url)}')") == [(None,)]


def test_a_schema_is_planned_made_and_then_left_alone(postgres_url: str, postgres_server: str) -> None:
    url = ("--url", postgres_url)
    every = ", ".join(MIGRATIONS)
    name = f"'{schema_of(postgres_url)}' in {masked(postgres_url)}"
    assert done("migrate", "--plan", *url) == f"There was no schema {name}; to be applied: {every}.\n"
    plan = listed("migrate", "--plan", *url)
    assert (plan["version"], plan["latest"], plan["pending"], plan["applied"]) == (None, VERSION, [*MIGRATIONS], [])
    assert execute(postgres_server, f"SELECT to_regnamespace('{schema_of(postgres_url)}')") == [(None,)]
    assert done("migrate", *url).endswith(f"; applied {every}, and the schema is now {VERSION}.\n")
    made = shape(postgres_server, schema_of(postgres_url))
    assert done("migrate", *url) == f"The schema {name} has version {VERSION} of {VERSION}; nothing is to be done.\n"
    again = listed("migrate", *url)
    assert (again["version"], again["pending"], again["applied"]) == (VERSION, [], [])
    assert shape(postgres_server, schema_of(postgres_url)) == made
    assert done("jobs", "list", *url) == "There are no such jobs.\n"


def test_the_printed_sql_does_what_migrate_does(postgres_url: str, postgres_server: str) -> None:
    schema = schema_of(postgres_url)
    printed = done("migrate", "--sql", "--url", postgres_url)
    assert listed("migrate", "--sql", "--url", postgres_url)["sql"] == printed
    assert execute(postgres_server, f"SELECT to_regnamespace('{schema}')") == [(None,)]
    execute(postgres_server, printed)
    by_hand = shape(postgres_server, schema)
    assert "nothing is to be done" in done("migrate", "--url", postgres_url)
    with pytest.raises(psycopg.errors.DuplicateFunction):
        execute(postgres_server, printed)
    assert shape(postgres_server, schema) == by_hand, "a second run changes nothing"
    execute(postgres_server, f"DROP SCHEMA {schema} CASCADE")
    done("migrate", "--url", postgres_url)
    assert shape(postgres_server, schema) == by_hand
    as_version(postgres_server, schema, 2)
    execute(postgres_server, done("migrate", "--sql", "--url", postgres_url))
    assert shape(postgres_server, schema) == by_hand, "from an older version too"
    nothing = done("migrate", "--sql", "--url", postgres_url)
    assert nothing == f"-- The schema {schema} is at version {VERSION}; nothing is to be done.\n"
    execute(postgres_server, nothing)


def test_sql_is_printed_for_postgresql_only() -> None:
    assert "--sql is for PostgreSQL" in refused("migrate", "--sql", "--url", "sqlite:///jobs.db", code=2)


def test_processes_that_migrate_at_once_all_succeed(postgres_url: str, here: Path) -> None:
    words = command("migrate", "--json", "--url", postgres_url)
    with ExitStack() as running:
        started = [running.enter_context(subprocess.Popen(words, cwd=here, stdout=subprocess.PIPE)) for _ in range(4)]
        applied = [json.loads(each.communicate(timeout=30)[0])["applied"] for each in started]
        assert {each.returncode for each in started} == {0}
    assert sorted(applied, key=len) == [[], [], [], [*MIGRATIONS]]
    with closing(shop(postgres_url)) as app:
        assert list(app.store.check()) == []


def test_a_schema_is_migrated_while_workers_run(app: Holdfast, postgres_server: str) -> None:
    with servers.working(app):
        as_version(postgres_server, schema_of(app.url), 2)
        jobs = [app.enqueue("add", {"a": n, "b": n}) for n in range(200)]
        assert done("migrate").endswith(f"applied {', '.join(MIGRATIONS[2:])}, and the schema is now {VERSION}.\n")
        jobs += [app.enqueue("add", {"a": n, "b": n}) for n in range(200)]
        assert [job.result(timeout=20) for job in jobs] == [2 * n for n in range(200)] * 2
    assert done("check").endswith("Nothing is wrong.\n")


def test_an_older_schema_is_refused_until_it_is_migrated(
    app: Holdfast, postgres_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_URL", app.url)
    as_version(postgres_server, schema_of(app.url), 2)
    for words in (*READERS, ("worker", "shop.py:app")):
        said = refused(*words)
        assert f"is of an older Holdfast (version 2 of {VERSION})" in said
        assert said.endswith("bring it up to date with: holdfast migrate.\n")
    with closing(Holdfast(app.url)) as again, pytest.raises(StoreUnusable, match="is of an older Holdfast"):
        again.counts()
    assert f"has version 2 of {VERSION}; to be applied: {', '.join(MIGRATIONS[2:])}." in done("migrate", "--plan")
    assert listed("migrate")["applied"] == [*MIGRATIONS[2:]]
    assert len(listed("jobs", "list")) == 6


def test_a_newer_schema_is_refused_and_left_alone(
    app: Holdfast, postgres_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_URL", app.url)
    as_version(postgres_server, schema_of(app.url), VERSION + 1)
    before = shape(postgres_server, schema_of(app.url))
    for words in (*READERS, ("worker", "shop.py:app"), ("migrate",), ("migrate", "--plan"), ("migrate", "--sql")):
        said = refused(*words)
        assert f"is of a newer Holdfast (version {VERSION + 1}, and this one knows {VERSION})" in said
        assert said.endswith("; upgrade Holdfast.\n")
    assert shape(postgres_server, schema_of(app.url)) == before


@pytest.fixture(scope="module")
def strict() -> Iterator[servers.Server]:
    """A server that asks one user for a password, and turns another away."""
    with servers.own() as server:
        rules = Path(server._found.pgdata) / "pg_hba.conf"
        asked = "host all locked 127.0.0.1/32 scram-sha-256\nhost all banned 127.0.0.1/32 reject\n"
        rules.write_text(asked + rules.read_text())
        for statement in (
            f"CREATE ROLE locked LOGIN PASSWORD '{SECRET}'",
            "CREATE ROLE banned LOGIN",
            "CREATE ROLE weak LOGIN",
            "CREATE ROLE reader SUPERUSER LOGIN",
            "ALTER ROLE reader SET default_transaction_read_only = on",
            "SELECT pg_reload_conf()",
        ):
            execute(server.address, statement)
        assert ask("migrate", "--url", server.address).exit_code == 0
        yield server


def at(server: servers.Server, user: str, rest: str = "postgres") -> str:
    return f"postgresql://{user}@127.0.0.1:{server.port}/{rest}"


@pytest.mark.parametrize(
    ("user", "rest", "sentence"),
    [
        (f"locked:wrong-{SECRET}", "postgres", "refused the user or the password"),
        ("locked", f"postgres?password=wrong-{SECRET}", "refused the user or the password"),
        ("locked", "postgres", "asks for a password, and the URL has none"),
        (f"nobody:{SECRET}", "postgres", "refused the user or the password"),
        (f"banned:{SECRET}", "postgres", "lets nobody in from here"),
        (f"postgres:{SECRET}", "nowhere", "/nowhere; create it first, or name another"),
        (f"locked:{SECRET}", "postgres", "has not the right to do this in the schema 'holdfast'"),
        ("weak", "postgres", "(permission denied for schema holdfast); grant it, or give another user"),
        ("postgres", "postgres?sslmode=require", "does not speak TLS, and the URL asks for it"),
    ],
)
def test_whoever_is_turned_away_is_told_why(
    strict: servers.Server, monkeypatch: pytest.MonkeyPatch, user: str, rest: str, sentence: str
) -> None:
    url = at(strict, user, rest)
    for words in (("jobs", "list"), ("queues", "pause", "mail"), ("check",), ("migrate",), ("migrate", "--plan")):
        assert sentence in refused(*words, "--url", url)
    monkeypatch.setenv("SHOP_URL", url)
    assert sentence in refused("worker", "shop.py:app"), "asking again would not help, so a worker does not"
    monkeypatch.setenv("HOLDFAST_DEBUG", "1")
    debugged = ask("jobs", "list", "--url", url).stderr
    assert "Traceback" in debugged
    assert SECRET not in debugged


def test_a_server_that_takes_no_changes_can_be_looked_at(strict: servers.Server) -> None:
    url = ("--url", at(strict, "reader"))
    assert done("jobs", "list", *url) == "There are no such jobs.\n"
    assert done("check", *url).endswith("Nothing is wrong.\n")
    assert "nothing is to be done" in done("migrate", *url)
    for words in (("queues", "pause", "mail"), ("migrate",)):
        other = ("--url", at(strict, "reader", rest="postgres?schema=other")) if words == ("migrate",) else url
        assert "takes no changes: it is a read-only replica" in refused(*words, *other)


def test_a_schema_named_by_a_word_of_sql_is_refused(strict: servers.Server) -> None:
    url = at(strict, strict.user, rest="postgres?schema=user")
    assert "is named by a word that SQL keeps for itself" in refused("migrate", "--url", url, code=2)
    with closing(Holdfast(url)) as app, pytest.raises(BadInput, match="name another with"):
        app.counts()


def test_a_failover_that_is_not_over_is_told(strict: servers.Server) -> None:
    """One host is gone, and the other is not the primary yet."""
    url = f"postgresql://reader@{closed_port()},127.0.0.1:{strict.port}/postgres?target_session_attrs=read-write"
    assert "cannot be reached: no server there takes changes" in refused("jobs", "list", "--url", url)


def test_a_user_who_owns_the_schema_needs_no_right_to_the_database(strict: servers.Server) -> None:
    url = at(strict, "weak", rest="postgres?schema=theirs")
    assert "has not the right to do this in the schema 'theirs'" in refused("migrate", "--url", url)
    assert "There is no Holdfast schema 'theirs'" in refused("jobs", "list", "--url", url)
    with closing(Holdfast(url)) as app, pytest.raises(StoreUnusable, match="There is no Holdfast schema 'theirs'"):
        app.counts()
    execute(strict.address, "CREATE SCHEMA theirs AUTHORIZATION weak")
    assert "applied" in done("migrate", "--url", url)
    with closing(shop(url)) as app:
        assert app.enqueue("add", {"a": 1, "b": 2}).state == "queued"


def test_what_the_owner_made_by_the_printed_sql_others_may_use(strict: servers.Server) -> None:
    url = at(strict, "weak", rest="postgres?schema=granted")
    execute(strict.address, done("migrate", "--sql", "--url", url))
    for right in (
        "USAGE ON SCHEMA granted",
        "SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA granted",
    ):
        execute(strict.address, f"GRANT {right} TO weak")
    with closing(shop(url)) as app:
        job = app.enqueue("add", {"a": 1, "b": 2})
        app.run_worker(until_idle=True)
        assert job.result() == 3
    assert done("check", "--url", url).endswith("Nothing is wrong.\n")


def closed_port() -> str:
    return f"127.0.0.1:{servers.free_port()}"


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ("", "cannot be reached: the connection was refused"),
        ("nowhere.invalid", "cannot be reached: the host is not known"),
    ],
)
def test_a_server_that_is_not_there_is_told_at_once(place: str, sentence: str) -> None:
    url = f"postgresql://ada:{SECRET}@{place or closed_port()}/jobs"
    for words in (*READERS, ("migrate",), ("migrate", "--plan"), ("migrate", "--sql")):
        assert sentence in refused(*words, "--url", url)


def test_a_socket_that_is_not_there_is_told(here: Path) -> None:
    assert "cannot be reached: nobody listens there" in refused("jobs", "list", "--url", f"postgresql:///x?host={here}")


def test_a_server_that_never_answers_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = f"127.0.0.1:{silent.getsockname()[1]}"
        url = f"postgresql://ada:{SECRET}@{place}/jobs?connect_timeout=2"
        assert "cannot be reached: it did not answer in time" in refused("jobs", "list", "--url", url)


@pytest.mark.parametrize("words", [(), ("--processes", "2")], ids=["alone", "supervised"])
def test_a_worker_waits_for_its_server_and_says_so_once(here: Path, words: tuple[str, ...]) -> None:
    with servers.own() as server:
        url = f"{server.address.replace('@', f':{SECRET}@')}"
        done("migrate", "--url", url)
        server.stop()
        with started("worker", "shop:app", *words, "--log-level", "debug", cwd=here, SHOP_URL=url) as worker:
            until(lambda: "Trying again" in output(here, "err"))
            threading.Event().wait(1)  # several more tries
            assert output(here, "err").count("Trying again") == 1
            assert output(here) == ""
            server.start()
            with closing(shop(url)) as app:
                assert app.enqueue("add", {"a": 1, "b": 2}).result(timeout=20) == 3
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(GONE_SOON) == 0
        assert "cannot be reached: the connection was refused. Trying again." in output(here, "err")
        assert SECRET not in output(here) + output(here, "err")
        assert "Traceback" not in output(here, "err")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["term", "int"])
@pytest.mark.parametrize("words", [(), ("--processes", "2")], ids=["alone", "supervised"])
def test_a_worker_that_waits_for_its_server_can_be_stopped(
    here: Path, words: tuple[str, ...], number: signal.Signals
) -> None:
    url = f"postgresql://ada:{SECRET}@{closed_port()}/jobs"
    with started("worker", "shop:app", *words, cwd=here, SHOP_URL=url) as worker:
        until(lambda: "Trying again" in output(here, "err"))
        worker.send_signal(number)
        assert worker.wait(GONE_SOON) == 0
    assert output(here, "err").count("\n") == 1


def test_a_worker_is_stopped_while_its_server_keeps_it_waiting(here: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(20)
        url = f"postgresql://ada@127.0.0.1:{silent.getsockname()[1]}/jobs?connect_timeout=60"
        with started("worker", "shop:app", cwd=here, SHOP_URL=url) as worker:
            held, _ = silent.accept()
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(GONE_SOON) == 0
            held.close()
    assert output(here, "err") == ""


def test_the_user_is_shown_and_the_password_is_not(strict: servers.Server, here: Path) -> None:
    execute(strict.address, "GRANT ALL ON SCHEMA holdfast TO locked")
    execute(strict.address, "GRANT ALL ON ALL TABLES IN SCHEMA holdfast TO locked")
    url = at(strict, f"locked:{SECRET}")
    shown = at(strict, "locked:***")
    assert listed("migrate", "--url", url)["url"] == shown
    assert done("check", "--url", url).startswith(f"{shown}: 0 jobs")
    ended = run("worker", "shop:app", "--until-idle", "--log-level", "debug", cwd=here, SHOP_URL=url)
    assert ended.returncode == 0
    assert ended.stdout.endswith(f" on {shown}\n")
    assert SECRET not in ended.stdout + ended.stderr
    assert urlsplit(url).password == SECRET
