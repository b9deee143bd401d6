"""Plant the seeded bugs one by one, each in a copy of the product; each must make a test fail within two minutes.

    python tests/mutants/run.py            all of them
    HOLDFAST_MUTANTS=3 python tests/…      three, others every day

Exits with 1 if a bug survives, if its text is no longer in the product, or if the tests fail without any bug at all.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.mutants.seeded import MUTANTS, Mutant  # noqa: E402 - found once the path is set

POSTGRES = ("tests/conformance/test_postgres.py", "tests/races/test_postgres.py")
AWS = tuple(
    f"tests/{suite}/test_{store}.py" for suite in ("conformance", "races") for store in ("dynamodb", "contract")
)
TESTS = (
    "tests/domain/test_lifecycle.py",
    "tests/domain/test_retry.py",
    "tests/domain/test_flow.py",
    "tests/domain/test_accounts.py",
    "tests/conformance",
    "tests/races",
    *(f"--ignore={file}" for file in (*POSTGRES, *AWS)),
)
WORKFLOWS = tuple(f"tests/workflows/test_{part}.py" for part in ("steps", "undo", "families", "waiting"))
HERE = ("-k", "not postgres")
STEPS = ("tests/stores/test_postgres_steps.py",)
CALLS = ("tests/stores/test_postgres_calls.py", "tests/stores/test_postgres_gate.py")
SUITES = {
    "stores/postgres/claiming.py": CALLS,
    "stores/postgres/bell.py": CALLS,
    "stores/postgres/gate.py": CALLS,
    "stores/postgres/": POSTGRES,
    "client/durable.py": (*WORKFLOWS, *HERE),
    "client/tokens.py": ("tests/client/test_tokens.py",),
    "runtime/attempt.py": STEPS,
    "runtime/stage.py": STEPS,
    "runtime/firing.py": ("tests/runtime/test_firing.py", *HERE),
    "runtime/relay.py": ("tests/runtime/test_relay.py", "-k", "always_refused or stopped_relay or bad_event"),
}
"""The tests that look for the bugs of a part of the product; `TESTS`, which are quick, look for all others."""
MOST = 120.0


def main() -> int:
    """Print a table, one line per bug as its verdict comes in."""
    chosen = chosen_today(os.environ.get("HOLDFAST_MUTANTS"))
    width = max(len(mutant.bug) for mutant in chosen)
    with tempfile.TemporaryDirectory(prefix="holdfast-mutants-") as folder:
        copy = Path(folder) / "src"
        shutil.copytree(ROOT / "src", copy, ignore=shutil.ignore_patterns("__pycache__"))
        print(f"{'without a bug':{width}}        ", end="", flush=True)
        for tests in {frozenset(tests): tests for tests in map(tests_for, chosen)}.values():
            if (code := run(copy, tests, 3 * MOST)[0]) != 0:
                print(f"the tests fail by themselves (pytest exit code {code}); no verdict is possible")
                return 1
        print("every test passes")
        verdicts = [judged(mutant, copy, width) for mutant in chosen]
    survived = verdicts.count(False)
    print(f"{len(chosen)} of {len(MUTANTS)} seeded bugs planted, {len(chosen) - survived} caught, {survived} not")
    return 1 if survived else 0


def chosen_today(number: str | None) -> tuple[Mutant, ...]:
    """Choose as many as asked for; the choice moves on every day, so that each has its turn."""
    if number is None:
        return MUTANTS
    most = min(int(number), len(MUTANTS))
    first = datetime.now(UTC).date().toordinal() * most % len(MUTANTS)
    return (MUTANTS * 2)[first : first + most]


def judged(mutant: Mutant, copy: Path, width: int) -> bool:
    """Plant one bug, run the tests, take it out again; tell whether a test failed."""
    print(f"{mutant.bug:{width}}  {mutant.promise:4}  ", end="", flush=True)
    file = copy / "holdfast" / mutant.file
    sound = file.read_text(encoding="utf-8")
    spoilt = planted(sound, mutant)
    if spoilt is None:
        print(f"NOT FOUND: its text does not occur exactly once in {mutant.file}")
        return False
    begun = monotonic()
    file.write_text(spoilt, encoding="utf-8")
    try:
        code, output = run(copy, tests_for(mutant))
    except subprocess.TimeoutExpired:
        print("SURVIVED: no test had failed after two minutes")
        return False
    finally:
        file.write_text(sound, encoding="utf-8")
    took = monotonic() - begun
    match code:
        case 0:
            print(f"SURVIVED every test ({took:.0f} s)")
        case 1:
            print(f"caught in {took:4.1f} s by {killer(output)}")
        case _:
            print(f"BROKEN: pytest could not run (exit code {code}); a bug must fail a test, not the import")
    return code == 1


def planted(text: str, mutant: Mutant) -> str | None:
    """Give the file with the bug in it, or nothing if the text to replace is not there exactly once."""
    start, end = 0, len(text)
    if mutant.block:
        start = text.find(f"-- name: {mutant.block}\n")
        if start < 0:
            return None
        following = text.find("\n-- name: ", start)
        end = len(text) if following < 0 else following
    part = text[start:end]
    return text[:start] + part.replace(mutant.old, mutant.new) + text[end:] if part.count(mutant.old) == 1 else None


def tests_for(mutant: Mutant) -> tuple[str, ...]:
    """Choose the tests that are to notice a bug, in the order in which they do so soonest."""
    tests = next((tests for part, tests in SUITES.items() if mutant.file.startswith(part)), TESTS)
    return tuple(sorted(tests, key=lambda test: not test.startswith("tests/races/"))) if mutant.raced else tests


def run(copy: Path, tests: tuple[str, ...], most: float = MOST) -> tuple[int, str]:
    """Run the chosen tests against a copy of the product."""
    command = [sys.executable, "-m", "pytest", *tests, "-x", "-q", "--tb=no", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=most, check=False)
    return done.returncode, done.stdout


def killer(output: str) -> str:
    """Name the test that failed, by its sentence."""
    failed = re.search(r"^FAILED (\S+)", output, re.MULTILINE)
    if not failed:
        return "a test"
    file, _, test = failed[1].partition("::")
    return f"{Path(file).parent.name}/{Path(file).stem}: {test.partition('[')[2].rstrip(']') or test}"


if __name__ == "__main__":
    sys.exit(main())
