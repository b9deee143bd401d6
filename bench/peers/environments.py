"""The peers: what each needs, and its own environment under `.venv-peers`, which is built when first asked for."""

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / ".venv-peers"
SCRIPTS = Path(__file__).parent / "scripts"


class Unavailable(Exception):
    """A peer cannot be installed here; the message says why in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One peer, and how its tables tell that all jobs are recorded as done."""

    name: str
    packages: tuple[str, ...]
    script: str
    left: str
    """The query that counts the jobs not yet recorded as done."""
    tuned_jobs: int
    """Enough for a drain of some seconds."""
    untuned_jobs: int
    python: tuple[int, int] = (3, 11)

    @property
    def node(self) -> bool:
        """Whether it runs on Node rather than on Python."""
        return self.script.endswith(".cjs")

    @property
    def folder(self) -> Path:
        """Where it is installed."""
        return HOME / self.name

    def command(self, *arguments: str) -> list[str]:
        """Write the command that runs its script in its environment."""
        runner = "node" if self.node else str(self.folder / "bin" / "python")
        return [runner, str(SCRIPTS / self.script), *arguments]

    def environment(self, url: str) -> dict[str, str]:
        """Tell its script where the database is, and Node where the packages are."""
        return {"BENCH_URL": url} | ({"NODE_PATH": str(self.folder / "node_modules")} if self.node else {})


PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            name="pgqueuer",
            packages=("pgqueuer", "asyncpg", "uvloop"),
            script="pgqueuer_peer.py",
            left="SELECT count(*) FROM pgqueuer",  # one statement takes a finished job from here into the log
            tuned_jobs=50_000,
            untuned_jobs=10_000,
        ),
        Peer(
            name="procrastinate",
            packages=("procrastinate", "psycopg[binary,pool]"),
            script="procrastinate_peer.py",
            left="SELECT count(*) FROM procrastinate_jobs WHERE status <> 'succeeded'",
            tuned_jobs=3_000,
            untuned_jobs=1_500,
        ),
        Peer(
            name="oban",
            packages=("oban", "psycopg[binary,pool]", "uvloop"),
            script="oban_peer.py",
            left="SELECT count(*) FROM oban_jobs WHERE state <> 'completed'",
            tuned_jobs=10_000,
            untuned_jobs=5_000,
            python=(3, 12),
        ),
        Peer(
            name="graphile-worker",
            packages=("graphile-worker",),
            script="graphile_peer.cjs",
            left="SELECT count(*) FROM graphile_worker._private_jobs",  # a finished job is deleted
            tuned_jobs=50_000,
            untuned_jobs=5_000,
        ),
    )
}


def install(peer: Peer) -> None:
    """Build its environment if that is missing; raise Unavailable if it cannot be built."""
    built = peer.folder / ".built"
    if built.exists():
        return
    shutil.rmtree(peer.folder, ignore_errors=True)
    peer.folder.mkdir(parents=True)
    try:
        if peer.node:
            npm = _found("npm")
            _run(peer, npm, "install", "--no-audit", "--no-fund", "--prefix", str(peer.folder), *peer.packages)
        else:
            _run(peer, _python(peer), "-m", "venv", str(peer.folder))
            pip = (str(peer.folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "-q")
            _run(peer, *pip, "install", *peer.packages)
    except BaseException:
        shutil.rmtree(peer.folder, ignore_errors=True)
        raise
    built.touch()


def _run(peer: Peer, *command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (line for line in done.stderr.splitlines() if line.lower().startswith(("error", "npm error")))
        raise Unavailable(f"{peer.name} could not be installed: {next(said, 'no reason given')}")


def _found(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise Unavailable(f"{program} is not on this machine")
    return path


def _python(peer: Peer) -> str:
    """Find a Python that is new enough: this one, another on the path, or a neighbour of this one (pyenv)."""
    minors = range(peer.python[1], 20)
    named = [shutil.which(f"python3.{minor}") for minor in minors]
    near = [path for minor in minors for path in Path(sys.base_prefix).parent.glob(f"*/bin/python3.{minor}")]
    check = f"import sys; sys.exit(sys.version_info < {peer.python})"
    for candidate in (sys.executable, *named, *map(str, near)):
        if candidate and subprocess.run([candidate, "-c", check], capture_output=True, check=False).returncode == 0:
            return candidate
    raise Unavailable(f"{peer.name} needs Python {'.'.join(map(str, peer.python))} or newer, and there is none here")
