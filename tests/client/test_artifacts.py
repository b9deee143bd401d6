"""What is too large for a record lies outside the store: whole, private, verified, and never mistaken for anything."""

import asyncio
import errno
import json
import logging
import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import BadInput, BadPayload, HoldfastError, StoreError, StoreUnavailable
from holdfast.client.artifacts import LARGEST, Artifacts, default_url
from holdfast.domain import codec, lifecycle
from holdfast.domain.errors import ArtifactDamaged, ArtifactMissing, ArtifactsUnavailable, KeyConflict
from holdfast.domain.job import NewJob
from holdfast.stores.memory import MemoryStore
from holdfast.testing.clock import ManualClock

LIMIT = 100
LARGE = json.dumps({"text": "é" * LIMIT}, ensure_ascii=False)


@pytest.fixture(params=["file", "memory"])
def artifacts(request: pytest.FixtureRequest, tmp_path: Path) -> Artifacts:
    """Give a place of each sort: a folder, and one that fsspec reaches."""
    url = (tmp_path / "kept").as_uri() if request.param == "file" else f"memory://{tmp_path.name}"
    return Artifacts(url, LIMIT, clock=ManualClock())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "kept"


@pytest.fixture
def filed(folder: Path) -> Artifacts:
    return Artifacts(folder.as_uri(), LIMIT, clock=ManualClock())


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def fields(reference: str) -> dict[str, Any]:
    (only,) = json.loads(reference).items()
    assert only[0] == "$artifact"
    return dict(only[1])


def refused(call: Any, error: type[HoldfastError]) -> str:
    with pytest.raises(error) as caught:
        call()
    assert caught.type is error
    text = str(caught.value)
    assert text.endswith(".")
    assert "\n" not in text
    return text


def test_a_large_text_is_kept_by_reference_and_comes_back(artifacts: Artifacts) -> None:
    reference = artifacts.keep(LARGE, "The payload")
    assert set(fields(reference)) == {"name", "bytes", "sha256"}
    assert fields(reference)["bytes"] == len(LARGE.encode())
    assert fields(reference)["name"].startswith("2026/01/01/")
    assert artifacts.load(reference) == LARGE
    assert artifacts.get(reference) == LARGE


def test_every_artifact_has_a_name_of_its_own(artifacts: Artifacts) -> None:
    references = [artifacts.keep(LARGE, "The payload") for _ in range(20)]
    assert len({fields(reference)["name"] for reference in references}) == 20


@pytest.mark.parametrize("character", ["x", "é", "€", "🦀"])
def test_the_limit_counts_bytes(filed: Artifacts, folder: Path, character: str) -> None:
    wide = len(character.encode())
    within = '"' + character * ((LIMIT - 2) // wide) + '"'
    beyond = '"' + character * ((LIMIT - 2) // wide + 1) + '"'
    assert filed.keep(within, "The result") is within
    assert filed.load(within) is within
    assert not folder.exists(), "nothing is made before it is needed"
    assert filed.load(filed.keep(beyond, "The result")) == beyond


def test_only_the_owner_can_read_a_file_and_no_draft_stays(filed: Artifacts, folder: Path) -> None:
    filed.put(LARGE)
    (file,) = files(folder)
    assert file.read_text(encoding="utf-8") == LARGE
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    for made in (folder, folder / "2026", folder / "2026/01", folder / "2026/01/01"):
        assert stat.S_IMODE(made.stat().st_mode) == 0o700


def test_a_file_is_durable_before_it_has_its_name_and_its_name_before_put_returns(
    filed: Artifacts, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[tuple[str, int]] = []
    sync = os.fsync

    def observed(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        done.append((path.suffix or str(path.relative_to(folder.parent)), len(list(folder.rglob("*.json")))))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", observed)
    filed.put(LARGE)
    made = [(".", 0), ("kept", 0), ("kept/2026", 0), ("kept/2026/01", 0)]
    assert done == [*made, (".part", 0), ("kept/2026/01/01", 1)]
    done.clear()
    filed.put(LARGE)
    assert done == [(".part", 1), ("kept/2026/01/01", 2)], "what is known to last is not synced level by level again"


def test_a_folder_that_was_cleared_away_is_made_again(filed: Artifacts, folder: Path) -> None:
    filed.remove([filed.put(LARGE)])
    for empty in ("2026/01/01", "2026/01", "2026", "."):
        (folder / empty).rmdir()
    assert filed.get(filed.put(LARGE)) == LARGE


def test_a_full_disk_is_told_and_leaves_nothing(
    filed: Artifacts, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filed.put(LARGE)
    before = files(folder)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    said = refused(lambda: filed.keep(LARGE, "The result"), ArtifactsUnavailable)
    assert said == f"The artifacts in {folder} cannot be reached: No space left on device."
    assert files(folder) == before


def test_a_folder_is_made_but_not_the_way_to_it(tmp_path: Path) -> None:
    lost = Artifacts((tmp_path / "no" / "kept").as_uri(), LIMIT)
    assert f"The folder {tmp_path / 'no'} does not exist" in refused(lambda: lost.put(LARGE), ArtifactsUnavailable)
    assert list(tmp_path.iterdir()) == []


def test_many_threads_may_begin_a_day_together(filed: Artifacts) -> None:
    texts = [f'"{number}"' + " " * LIMIT for number in range(64)]
    with ThreadPoolExecutor(8) as pool:
        references = list(pool.map(filed.put, texts))
        assert list(pool.map(filed.get, references)) == texts


def test_another_process_reads_what_this_one_put(filed: Artifacts, folder: Path) -> None:
    program = (
        "import sys; from holdfast.client.artifacts import Artifacts; print(Artifacts(sys.argv[1]).get(sys.argv[2]))"
    )
    reference = filed.put('"from here"')
    done = subprocess.run(
        [sys.executable, "-c", program, folder.as_uri(), reference], capture_output=True, text=True, check=True
    )
    assert done.stdout == '"from here"\n'


def test_what_is_not_there_is_missing_and_may_come_back(filed: Artifacts, folder: Path) -> None:
    reference = filed.put(LARGE)
    (file,) = files(folder)
    away = file.rename(folder / "away")
    said = refused(lambda: filed.load(reference), ArtifactMissing)
    assert fields(reference)["name"] in said
    assert str(folder) in said
    away.rename(file)
    assert filed.load(reference) == LARGE


def test_what_was_removed_is_missing_everywhere(artifacts: Artifacts) -> None:
    reference, other = artifacts.put(LARGE), artifacts.put(LARGE)
    artifacts.remove([reference])
    refused(lambda: artifacts.load(reference), ArtifactMissing)
    artifacts.remove([reference, other])
    refused(lambda: artifacts.load(other), ArtifactMissing)
    artifacts.remove([])


@pytest.mark.parametrize(
    "damage",
    [b"", LARGE.encode()[:-1], LARGE.encode() + b" ", LARGE.encode().replace(b"text", b"test"), b"\xff" * 8],
    ids=["empty", "short", "long", "changed", "not text"],
)
def test_what_is_not_what_was_put_there_is_damaged(filed: Artifacts, folder: Path, damage: bytes) -> None:
    reference = filed.put(LARGE)
    (file,) = files(folder)
    file.write_bytes(damage)
    assert "is not what was put there" in refused(lambda: filed.load(reference), ArtifactDamaged)


def test_a_place_that_cannot_be_reached_is_told_as_trouble_of_the_store(filed: Artifacts, folder: Path) -> None:
    reference = filed.put(LARGE)
    (file,) = files(folder)
    file.unlink()
    file.mkdir()
    assert "Is a directory" in refused(lambda: filed.get(reference), ArtifactsUnavailable)
    assert issubclass(ArtifactsUnavailable, StoreUnavailable)
    assert issubclass(ArtifactMissing, StoreError)
    assert not issubclass(ArtifactDamaged, StoreUnavailable)


SHA = "0" * 64
NAME = "2026/01/01/" + "0" * 32 + ".json"


def spelled(name: str, size: object = 5, sha: str = SHA) -> str:
    return f'{{"$artifact":{{"name":"{name}","bytes":{size},"sha256":"{sha}"}}}}'


FOREIGN = [
    spelled("../../../../etc/passwd"),
    spelled("2026/01/../" + "0" * 32 + ".json"),
    spelled("/etc/passwd"),
    spelled("/" + NAME),
    spelled("s3://other/" + NAME),
    spelled("file:///" + NAME),
    spelled(NAME.replace("0.json", "0.txt")),
    spelled(NAME + "\\u0000"),
    spelled(NAME.upper()),
    spelled(NAME, size=-1),
    spelled(NAME, size=0),
    spelled(NAME, size='"5"'),
    spelled(NAME, size="9" * 30),
    spelled(NAME, sha="0" * 63),
    spelled(NAME, sha="Z" * 64),
    spelled(NAME) + "\n",
    spelled(NAME).replace(":", ": "),
    spelled(NAME)[:-1] + ',"more":1}',
    "{}",
    "",
    '{"$artifact":',
    '{"$artifact":null}',
]


@pytest.mark.parametrize("text", FOREIGN)
def test_what_is_no_reference_of_ours_leads_nowhere(filed: Artifacts, folder: Path, text: str) -> None:
    kept = filed.put(LARGE)
    refused(lambda: filed.get(text), BadInput)
    refused(lambda: filed.remove([kept, text]), BadInput)
    filed.forget([text])
    assert filed.load(text) is text, "a text that somebody else stored is what it is"
    assert filed.get(kept) == LARGE, "nothing is removed if one of several is refused"


def test_a_reference_is_read_back_as_it_was_spelled() -> None:
    assert codec.reference(spelled(NAME)) == (NAME, 5, SHA)
    assert codec.Reference(NAME, 5, SHA).text == spelled(NAME)


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=300))
def test_a_users_own_json_is_never_taken_for_a_reference(rest: str) -> None:
    artifacts = Artifacts("memory://own", LIMIT)
    for text in (codec.ARTIFACT + rest, rest):
        stored = artifacts.keep(text, "The result")
        assert artifacts.load(stored) == text
        assert codec.reference(stored) is not None or stored == text


def test_a_users_own_reference_is_kept_as_the_text_it_is(artifacts: Artifacts) -> None:
    inner = artifacts.put(LARGE)
    outer = artifacts.keep(inner, "The result")
    assert outer != inner
    assert artifacts.load(outer) == inner, "one job's result cannot lead to another's"
    artifacts.forget([outer])
    assert artifacts.load(inner) == LARGE


def test_without_a_place_what_is_large_or_looks_like_a_reference_is_refused() -> None:
    nowhere = Artifacts(None, LIMIT)
    assert nowhere.largest == LIMIT
    assert nowhere.keep('"small"', "The result") == '"small"'
    said = refused(lambda: nowhere.keep(LARGE, "The payload of add"), BadPayload)
    assert said.startswith("The payload of add is 212 bytes of JSON, and at most 100 are kept;")
    assert said.endswith("pass artifacts=URL.")
    said = refused(lambda: nowhere.keep('{"$artifact":1}', "The result"), BadPayload)
    assert said.startswith('The result begins with the key "$artifact"')
    assert "artifacts=URL" in refused(lambda: nowhere.load(spelled(NAME)), ArtifactsUnavailable)


def test_an_artifact_has_a_limit_too(filed: Artifacts, folder: Path) -> None:
    assert filed.largest == LARGEST == 64 * 1024 * 1024
    small = Artifacts(folder.as_uri(), LIMIT, largest=1024 * 1024 + 1)
    text = '"' + "x" * (1024 * 1024 - 1) + '"'
    assert small.load(small.keep(text, "The result")) == text
    said = refused(lambda: small.keep(text + " ", "The result"), BadPayload)
    assert said.startswith("The result is 1,048,578 bytes of JSON, and at most 1,048,577 are kept;")
    assert "artifacts=" not in said
    assert len(files(folder)) == 1


@pytest.mark.parametrize("largest", [0, 1024 * 1024, 2**31, True, 1e9, None])
def test_the_limit_of_an_artifact_is_checked(largest: Any) -> None:
    assert "An artifact may be 1,048,577 to" in refused(lambda: Artifacts(None, LIMIT, largest), BadInput)


def test_forgetting_takes_only_references_and_never_fails(
    filed: Artifacts, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gone, kept = filed.put(LARGE), filed.put(LARGE)
    filed.forget([gone, '{"a":1}', "null"])
    filed.forget([gone])
    assert len(files(folder)) == 1
    assert caplog.record_tuples == []
    (file,) = files(folder)
    file.unlink()
    file.mkdir()
    filed.forget([kept])
    Artifacts(None, LIMIT).forget([kept])
    assert [level for _, level, _ in caplog.record_tuples] == [logging.WARNING] * 2
    assert all(fields(kept)["name"] in text for _, _, text in caplog.record_tuples)


def test_the_asynchronous_twins_do_the_same(artifacts: Artifacts) -> None:
    async def both() -> None:
        assert await artifacts.akeep("1", "The result") == "1"
        assert await artifacts.aload("1") == "1"
        assert await artifacts.aload(await artifacts.akeep(LARGE, "The result")) == LARGE

    asyncio.run(both())


def test_equal_payloads_are_the_same_request_wherever_they_lie(artifacts: Artifacts) -> None:
    first, second = artifacts.put(LARGE), artifacts.put(LARGE)
    other = artifacts.put(LARGE.replace("text", "test"))
    assert first != second
    assert codec.same(first, second)
    assert codec.same(first, LARGE)
    assert codec.same(LARGE, second)
    assert not codec.same(first, other)
    assert not codec.same(first, LARGE + " ")
    assert not codec.same(spelled("../x"), first)
    assert codec.same('{"$artifact":{"a":1,"b":2}}', '{"$artifact":{"b":2,"a":1}}'), "stored by others: plain JSON"


def test_a_key_is_kept_by_a_large_payload_as_by_a_small_one(artifacts: Artifacts) -> None:
    first, again = (NewJob("add", artifacts.put(LARGE), key="once") for _ in range(2))
    other = NewJob("add", artifacts.put(LARGE.replace("text", "test")), key="once")
    with closing(MemoryStore("memory://")) as store:
        taken, repeated, conflict = store.insert([[("1", first)], [("2", again)], [("3", other)]])
        assert isinstance(taken, list)
        assert isinstance(repeated, list)
        (stored,), (found,) = taken, repeated
        assert not stored.duplicate
        assert found.duplicate
        assert found.job.payload == first.payload
        assert isinstance(conflict, KeyConflict)
        assert lifecycle.same_request(stored.job, again)


def test_artifacts_lie_beside_a_sqlite_file_unless_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert default_url("sqlite:////x/y.db") == "file:///x/y.db-artifacts"
    assert default_url("sqlite:///y.db") == f"file://{tmp_path.resolve()}/y.db-artifacts"
    assert default_url("postgresql://host/jobs") is None
    assert default_url("memory://") is None
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert default_url("sqlite:///link/y.db") == default_url("sqlite:///real/y.db"), "one file has one place"


def test_a_folder_may_have_any_name(tmp_path: Path) -> None:
    url = default_url(f"sqlite:///{tmp_path}/a%20b%3F%23%25 é.db")
    assert url is not None
    artifacts = Artifacts(url, LIMIT)
    assert artifacts.get(artifacts.put(LARGE)) == LARGE
    assert [path.name for path in tmp_path.iterdir()] == ["a b?#% é.db-artifacts"]


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("/srv/artifacts", "takes a URL like file:///srv/artifacts or s3://bucket/folder, not '/srv/artifacts'"),
        ("", "takes a URL like"),
        (7, "takes a URL like"),
        ("file://", "takes a URL like"),
        ("s3://", "takes a URL like"),
        ("local:///srv", "takes a URL like"),
        ("simplecache::s3://bucket", "takes a URL like"),
        ("file://srv/artifacts", "names no folder of this machine"),
        ("file://./artifacts", "names no folder of this machine"),
        ("file:///srv?mode=1", "names no folder of this machine"),
        ("nowhere://a/b", "cannot be kept in nowhere://a/b: Protocol not known"),
        ("nowhere://me:secret@a/b?token=secret", "cannot be kept in nowhere://***@a/b: Protocol not known"),
    ],
)
def test_a_place_that_is_none_is_refused_at_once(url: Any, said: str) -> None:
    told = refused(lambda: Artifacts(url, LIMIT), BadInput)
    assert said in told
    assert "secret" not in told


def test_a_folder_needs_nothing_installed_and_other_places_say_what_they_need(folder: Path) -> None:
    program = """
import sys
sys.modules["fsspec"] = None
from holdfast.client.artifacts import Artifacts
from holdfast.domain.errors import BadInput
here = Artifacts(sys.argv[1])
assert here.get(here.put("1")) == "1"
try:
    Artifacts("s3://bucket/jobs")
except BadInput as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program, folder.as_uri()], capture_output=True, text=True, check=True)
    assert (
        done.stdout
        == 'Artifacts in s3://bucket/jobs need fsspec; install it with: pip install "holdfast[artifacts]".\n'
    )
