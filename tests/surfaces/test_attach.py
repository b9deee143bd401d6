"""`holdfast.attach(app)`: the application under test moves onto the fixture's engine, and back when the test ends."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import BadInput, Holdfast, JobNotFound, ResultTimeout, retention
from holdfast.testing.engine import TestHoldfast

pytest_plugins = ["pytester"]


@pytest.fixture
def engine() -> Iterator[TestHoldfast]:
    app = TestHoldfast()
    yield app
    app.end()


def test_an_attached_application_works_here_and_is_given_back(tmp_path: Path) -> None:
    file = tmp_path / "jobs.db"
    app = Holdfast(f"sqlite:///{file}", lease=6, retention=retention(succeeded=60))

    @app.job
    def add(a: int, b: int) -> int:
        return a + b

    before = dict(vars(app))
    engine = TestHoldfast()
    assert engine.attach(app) is app
    assert engine.attach(app) is app

    @app.job
    def only_in_this_test() -> None: ...

    job = add.enqueue(1, 2)
    engine.crash_after("add")
    assert engine.run_until_idle() == 1
    engine.advance(seconds=6)
    app.close()
    assert engine.run_until_idle() == 1
    assert (job.result(), app.get(job.id).state, engine.get(job.id).state) == (3, "succeeded", "succeeded")
    with pytest.raises(ResultTimeout):
        add.enqueue(1, 2).result()
    engine.advance(seconds=60)
    engine.run_until_idle()
    with pytest.raises(JobNotFound):
        app.get(job.id)

    engine.end()
    assert vars(app) == before
    assert list(app.registry) == ["add"]
    assert not file.exists()
    assert add.enqueue(1, 2).state == "queued"
    assert file.exists()
    app.close()


def test_an_application_that_is_open_already_goes_on_where_it_was(tmp_path: Path) -> None:
    app = Holdfast(f"sqlite:///{tmp_path}/jobs.db")

    @app.job
    def add(a: int) -> int:
        return a

    first = add.enqueue(1)
    engine = TestHoldfast()
    engine.attach(app)
    assert app.find() == []
    second = add.enqueue(2)
    engine.end()
    assert app.find() == [first]
    with pytest.raises(JobNotFound):
        app.get(second.id)
    app.close()


def test_two_applications_share_one_engine_if_their_kinds_differ(engine: TestHoldfast) -> None:
    shop, mail, clash = Holdfast("memory://"), Holdfast("memory://"), Holdfast("memory://")
    ran: list[str] = []

    @mail.job
    def send() -> None:
        ran.append("sent")

    @shop.job
    def order() -> None:
        ran.append("ordered")
        send.enqueue()

    @clash.job(name="send")
    def another() -> None: ...

    engine.attach(shop)
    engine.attach(mail)
    order.enqueue()
    assert engine.run_until_idle() == 2
    assert ran == ["ordered", "sent"]
    with pytest.raises(BadInput, match="'send' is registered already"):
        engine.attach(clash)


def test_only_an_application_can_be_attached(engine: TestHoldfast) -> None:
    for wrong in (engine, "app"):
        with pytest.raises(BadInput, match="attach takes the application under test"):
            engine.attach(wrong)  # type: ignore[arg-type]


def test_pytest_finds_the_fixture_by_itself(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        app="""
        from holdfast import Holdfast

        app = Holdfast("sqlite:///jobs.db")

        @app.job
        def add(a: int, b: int) -> int:
            return a + b
        """,
        test_app="""
        import sys
        from pathlib import Path

        from app import add, app

        def test_the_engine_is_not_imported_before_it_is_asked_for():
            assert "holdfast.testing.plugin" in sys.modules
            assert "holdfast.testing.engine" not in sys.modules
            assert "hypothesis" not in sys.modules

        def test_the_application_runs(holdfast):
            holdfast.attach(app)
            job = add.enqueue(2, 3)
            holdfast.run_until_idle()
            assert job.result() == 5

        def test_the_application_is_given_back():
            assert app.url == "sqlite:///jobs.db"
            assert not Path("jobs.db").exists()

        def test_a_crash_that_never_comes(holdfast):
            holdfast.crash_after("charge")
        """,
    )
    others = ("hypothesispytest", "schemathesis", "cacheprovider")
    outcome = pytester.runpytest_subprocess("-q", *(word for name in others for word in ("-p", f"no:{name}")))
    outcome.assert_outcomes(passed=4, errors=1)
    outcome.stdout.fnmatch_lines("*crash_after('charge') was never reached: no job of that kind ran its body*")
