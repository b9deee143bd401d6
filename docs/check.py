"""Checks that these pages are true: every name and command is in the reference, links lead somewhere, examples run.

Run as `python docs/check.py`; prints what is wrong and ends with 1, or says nothing and ends with 0. A block fenced as
`python` runs, all blocks of a page together and in order; one fenced as `python no-run` is compiled only. A block
fenced as `sql` runs, in a schema of its own, if HOLDFAST_TEST_POSTGRES names a server.
"""

import inspect
import os
import re
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import holdfast

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]

_FENCE = re.compile(r"^```python( no-run)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SQL = re.compile(r"^```sql\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ANY_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_ANCHOR = re.compile(r'<a id="([^"]+)">')
_PATIENCE = 60


def names() -> Iterator[str]:
    """Name what the Python reference leaves out: public names, and settings."""
    text = (DOCS / "reference" / "python.md").read_text(encoding="utf-8")
    for name in holdfast.__all__:
        if not re.search(rf"\b{name}\b", text):
            yield f"reference/python.md does not mention {name}"
    for kind in (holdfast.Holdfast, holdfast.Job, holdfast.Context, holdfast.JobFunction):
        for name, value in vars(kind).items():
            twin = name.startswith("a") and name[1:] in vars(kind)
            if not name.startswith("_") and not twin and not re.search(rf"\b{name}\b", text):
                yield f"reference/python.md does not mention {kind.__name__}.{name} ({type(value).__name__})"
    text = (DOCS / "reference" / "settings.md").read_text(encoding="utf-8")
    for name in inspect.signature(holdfast.Holdfast).parameters:
        if f"`{name}`" not in text:
            yield f"reference/settings.md does not mention {name}"


def generated() -> Iterator[str]:
    """Tell whether what is generated is what the program says of itself."""
    generate = runpy.run_path(str(DOCS / "reference" / "generate.py"))
    if generate["page"]() != (DOCS / "reference" / "cli.md").read_text(encoding="utf-8"):
        yield "reference/cli.md is not up to date; run: python docs/reference/generate.py"
    text = (DOCS / "concepts" / "stores.md").read_text(encoding="utf-8")
    if generate["stores"](text) != text:
        yield "concepts/stores.md has an old table of capabilities; run: python docs/reference/generate.py"


def links() -> Iterator[str]:
    """Name the links inside these pages that lead nowhere."""
    for page in PAGES:
        for target in _LINK.findall(_ANY_FENCE.sub("", page.read_text(encoding="utf-8"))):
            if "://" in target:
                continue
            path, _, anchor = target.partition("#")
            goal = (page.parent / path).resolve() if path else page
            if not goal.exists():
                yield f"{_shown(page)} links to {target}, which is not there"
            elif anchor and anchor not in anchors(goal):
                yield f"{_shown(page)} links to {target}, but no heading there is called that"


def anchors(page: Path) -> set[str]:
    """Give the anchors of a page: its headings as links spell them, and those set by hand."""
    text = _ANY_FENCE.sub("", page.read_text(encoding="utf-8"))
    spelled = {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in _HEADING.findall(text)}
    return spelled | set(_ANCHOR.findall(text))


def examples() -> Iterator[str]:
    """Name the pages whose Python does not run, or does not compile."""
    for page in PAGES:
        blocks = _FENCE.findall(page.read_text(encoding="utf-8"))
        for _, block in blocks:
            try:
                compile(block, _shown(page), "exec")
            except SyntaxError as error:
                yield f"{_shown(page)}: a Python block does not compile: {error}"
        program = "\n".join(block for no_run, block in blocks if not no_run)
        if program and (complaint := run(program)):
            yield f"{_shown(page)}: its Python blocks do not run: {complaint}"


def queries() -> Iterator[str]:
    """Name the pages whose SQL does not run."""
    server = os.environ.get("HOLDFAST_TEST_POSTGRES")
    if not server:
        return
    import psycopg

    schema = f"holdfast_docs_{os.getpid()}"
    holdfast.Holdfast(f"{server}{'&' if '?' in server else '?'}schema={schema}").store.close()
    with psycopg.connect(server, autocommit=True) as db:
        try:
            for page in PAGES:
                for block in _SQL.findall(page.read_text(encoding="utf-8")):
                    try:
                        db.execute(re.sub(r"\bholdfast(?=[.'])", schema, block).encode())
                    except psycopg.Error as error:
                        yield f"{_shown(page)}: its SQL does not run: {error}"
        finally:
            db.execute(f"DROP SCHEMA {schema} CASCADE".encode())


def quickstart() -> Iterator[str]:
    """Tell whether the README shows the example as it is."""
    example = re.sub(
        r'\A""".*?"""\n+', "", (ROOT / "examples" / "quickstart.py").read_text(encoding="utf-8"), flags=re.DOTALL
    )
    if example not in (ROOT / "README.md").read_text(encoding="utf-8"):
        yield "README.md does not show examples/quickstart.py as it is"


def run(program: str) -> str:
    """Run a program in an empty folder; give its last complaint, or nothing."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "page.py"
        file.write_text(program, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-W", "error", str(file)],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
            check=False,
        )
    return "" if done.returncode == 0 else (done.stderr.strip() or "no reason given").splitlines()[-1]


def problems() -> list[str]:
    """List all that is wrong."""
    return [*names(), *generated(), *links(), *quickstart(), *queries(), *examples()]


def _shown(page: Path) -> str:
    return str(page.relative_to(ROOT))


if __name__ == "__main__":
    found = problems()
    print("\n".join(found), file=sys.stderr)
    sys.exit(bool(found))
