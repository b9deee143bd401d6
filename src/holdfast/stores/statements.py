"""SQL lives in files of named blocks; this reads them.

A block starts with `-- name: claim` and runs to the next one; the comment lines under the name say why it is written
the way it is.
"""

import re
from functools import cache
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


@cache
def load(package: str, file: str) -> dict[str, str]:
    """Read every named block of an SQL file inside a package."""
    parts = _NAME.split(files(package).joinpath(file).read_text(encoding="utf-8"))
    return {name: body.strip().rstrip(";") for name, body in zip(parts[1::2], parts[2::2], strict=True)}


def script(package: str, file: str) -> str:
    """Read an SQL file whole."""
    return files(package).joinpath(file).read_text(encoding="utf-8")
