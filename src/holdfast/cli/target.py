"""From `MODULE:APP` or `path/to/file.py:app` to the application it names."""

import importlib
import importlib.util
import sys
import traceback
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from holdfast.app import Holdfast
from holdfast.cli.errors import DEBUG, name_of
from holdfast.domain.errors import BadInput, HoldfastError

_FORMS = "MODULE:APP or path/to/file.py:app"


class Target(NamedTuple):
    """Where an application is to be found."""

    place: str
    """A module's name, or a file's path."""
    name: str
    """What the application is called in it."""

    @property
    def file(self) -> Path | None:
        """The file, if one is named."""
        return Path(self.place) if self.place.endswith(".py") else None

    def __str__(self) -> str:
        return f"{self.place}:{self.name}"


def parse(text: str) -> Target:
    """Take a target apart, without looking whether it is there."""
    place, separator, name = text.rpartition(":")
    if not separator or not place or not all(part.isidentifier() for part in name.split(".")):
        msg = f"{text!r} does not name an application; write {_FORMS}."
        raise BadInput(msg)
    if not place.endswith(".py") and not all(part.isidentifier() for part in place.split(".")):
        msg = f"{place!r} is neither the name of a module nor a .py file; write {_FORMS}."
        raise BadInput(msg)
    return Target(place, name)


def load(target: Target) -> Holdfast:
    """Import what a target names; raises a sentence if it is not there, cannot be imported or is something else."""
    module = _import_file(target.file) if target.file else _import_module(target.place)
    try:
        found = reduce(getattr, target.name.split("."), module)
    except AttributeError:
        known = [name for name, value in vars(module).items() if isinstance(value, Holdfast)]
        hint = f"; did you mean {target.place}:{known[0]}?" if known else ", nor any other Holdfast application."
        msg = f"{target.place} has no {target.name!r}{hint}"
        raise BadInput(msg) from None
    if not isinstance(found, Holdfast):
        msg = f"{target} is a {type(found).__name__}, not a Holdfast application; name what Holdfast(...) was given to."
        raise BadInput(msg)
    return found


def folder_of(target: Target) -> Path:
    """Find the folder that holds an application's code, without importing it."""
    if target.file:
        return _existing(target.file).parent
    _look_in(Path.cwd())
    spec = importlib.util.find_spec(target.place.partition(".")[0])
    if spec is None:
        raise _no_module(target.place)
    packages = list(spec.submodule_search_locations or ())
    return Path(packages[0]) if packages else Path(spec.origin or ".").parent


def _import_module(name: str) -> ModuleType:
    _look_in(Path.cwd())
    return _imported(name, name)


def _import_file(path: Path) -> ModuleType:
    """Import a file under the name it would have if its folder were on the path, so that its own imports work."""
    file = _existing(path)
    parts, folder = [file.stem], file.parent
    while (folder / "__init__.py").exists():
        parts.insert(0, folder.name)
        folder = folder.parent
    _look_in(folder)
    name = ".".join(parts)
    if all(part.isidentifier() for part in parts) and _leads_to(name, file):
        return _imported(name, str(path))
    alias = f"holdfast_target_{file.stem}"
    spec = importlib.util.spec_from_file_location(alias, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[alias] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise _failed(str(path), error) from error
    return module


def _leads_to(name: str, file: Path) -> bool:
    """Tell whether importing this name would run this file, and not another one that came first."""
    if name in sys.modules:
        return sys.modules[name].__file__ == str(file)
    try:
        spec = importlib.util.find_spec(name)
    except (Exception, SystemExit):  # noqa: BLE001 - a package's own code may raise anything; importing it will tell
        return True
    return spec is not None and spec.origin == str(file)


def _imported(name: str, shown: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise _no_module(shown) from error
        raise _failed(shown, error) from error
    except (Exception, SystemExit) as error:
        raise _failed(shown, error) from error


def _existing(path: Path) -> Path:
    if not path.is_file():
        msg = f"There is no file {path}; write {_FORMS}."
        raise BadInput(msg)
    return path.resolve()


def _look_in(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _no_module(name: str) -> BadInput:
    return BadInput(f"There is no module {name!r} in {Path.cwd()} or on Python's path; write {_FORMS}.")


def _failed(shown: str, error: BaseException) -> HoldfastError:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "importlib" not in frame.filename and frame.filename != __file__]
    if isinstance(error, SyntaxError):
        place = f", line {error.lineno} of {Path(error.filename or '?').name}"
    else:
        place = f", line {ours[-1].lineno} of {Path(ours[-1].filename).name}" if ours else ""
    what = f"SyntaxError: {error.msg}" if isinstance(error, SyntaxError) else name_of(error)
    return HoldfastError(f"{shown} could not be imported ({what}{place}); {DEBUG}=1 shows the traceback.")
