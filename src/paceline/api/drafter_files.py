"""Drafters in files of users: "FILE.py:NAME" or "FILE.py:NAME:option=value,option=value".

NAME is a class that derives from Drafter or HostDrafter, an instance of one, or a function that returns one.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from hashlib import sha256
from importlib.util import module_from_spec, spec_from_file_location
from inspect import signature
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import Any, final

from paceline.api.loading import Loaded
from paceline.api.named import check_complete, read_options
from paceline.drafters.base import Drafter
from paceline.drafters.host import HostDrafter

SUFFIX = ".py"
TARGET = "target"  # an argument of this name is given the loaded target
KINDS = (Drafter, HostDrafter)
FORM = "give FILE.py:NAME, where NAME is a class that derives from Drafter or HostDrafter, or a function that makes one"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterInFile:
    """A drafter of a file, or what makes it, and its options."""

    path: Path
    name: str  # FILE.py:NAME
    found: Drafter | HostDrafter | Callable[..., object]
    options: Mapping[str, object]

    def make(self, target: Loaded) -> Drafter | HostDrafter:
        """The drafter; an instance is returned as it is. Raises ValueError for what its maker raises."""
        if isinstance(self.found, KINDS):
            return self.found
        given = {TARGET: target} if TARGET in signature(self.found).parameters else {}
        try:
            made = self.found(**given, **self.options)
        except Exception as error:  # of somebody else's code
            raise ValueError(f"drafter {self.name!r} cannot be made: {_describe(error, self.path)}") from error
        if not isinstance(made, KINDS):
            raise ValueError(
                f"drafter {self.name!r}: what it returned is {_type(made)}; return a Drafter or HostDrafter"
            )
        return made


def is_drafter_file(text: str) -> bool:
    """Whether ``text`` names a file of Python, with something in it or not."""
    return f"{SUFFIX}:" in text or (text.endswith(SUFFIX) and not Path(text).is_dir())


def file_digest(text: str) -> str | None:
    """A hash of the file that ``text`` names; None if it names none."""
    if not is_drafter_file(text):
        return None
    return sha256(_path_of(text).read_bytes()).hexdigest()[:16]


def read_drafter_file(text: str) -> DrafterInFile:
    """Import the file and find what ``text`` names in it. A file is imported once unless it has changed.

    Raises ValueError for a file that is missing or cannot be imported, which is given with line and reason; for a name
    that is missing or no drafter, with those that are there; and for options as ``read_named`` does.
    """
    path, rest = _path_of(text), text.partition(f"{SUFFIX}:")[2]
    attribute = rest.partition(":")[0]
    name = text[: len(text) - len(rest)] + attribute
    if not path.is_file():
        raise ValueError(f"drafter {text!r}: no such file: {path}")
    module = _import(path)
    there = [one for one, value in vars(module).items() if _is_drafter(value, module)]
    known = f"in it are {', '.join(there)}" if there else f"there is no drafter in it; {FORM}"
    if not attribute:
        raise ValueError(f"drafter {text!r}: give a name in the file, {path}:NAME; {known}")
    if attribute not in vars(module):
        near = get_close_matches(attribute, [one for one in vars(module) if not one.startswith("_")], n=1)
        raise ValueError(
            f"drafter {text!r}: no {attribute!r} in {path}"
            + (f", did you mean {near[0]}" if near else "")
            + f"; {known}"
        )
    found: Any = getattr(module, attribute)
    if isinstance(found, KINDS):
        if text != name:
            raise ValueError(f"drafter {text!r}: {name} is an instance, which has its options; give {name} alone")
        return DrafterInFile(path=path, name=name, found=found, options={})
    if isinstance(found, type) and issubclass(found, KINDS):
        check_complete(found, f"drafter {text!r}: {attribute}")
    elif isinstance(found, type) or not callable(found):
        raise ValueError(f"drafter {text!r}: {attribute} is {_type(found)} and no drafter; {known}")
    options = read_options(found, text, name=name, what="drafter", given=(TARGET,))
    return DrafterInFile(path=path, name=name, found=found, options=options)


def _path_of(text: str) -> Path:
    path, colon, _ = text.partition(f"{SUFFIX}:")
    return Path(path + SUFFIX if colon else text)


def _import(path: Path) -> ModuleType:
    facts = path.stat()
    return _imported(path.resolve(), facts.st_mtime_ns, facts.st_size)


@cache
def _imported(path: Path, _changed: int, _size: int) -> ModuleType:
    """The module of a file, which may import others beside it."""
    name = f"paceline_drafter_{sha256(str(path).encode()).hexdigest()[:8]}_{path.stem}"
    spec = spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    beside = str(path.parent)
    sys.modules[name] = module  # dataclasses and annotations look it up
    sys.path.append(beside)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # importing somebody else's code may raise anything
        del sys.modules[name]
        raise ValueError(f"{path} cannot be imported: {_describe(error, path)}") from error
    finally:
        sys.path.remove(beside)
    return module


def _is_drafter(value: object, module: ModuleType) -> bool:
    """Whether it is a drafter, or a class of one that the module defines itself."""
    if isinstance(value, type):
        return issubclass(value, KINDS) and value.__module__ == module.__name__
    return isinstance(value, KINDS)


def _type(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"of type {type(value).__name__}"


def _describe(error: BaseException, path: Path) -> str:
    """The exception in one line, with the last line of the file that it came through."""
    if isinstance(error, SyntaxError):
        line, reason = (error.lineno if error.filename == str(path.resolve()) else None), error.msg
    else:
        lines = [frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == str(path.resolve())]
        line, reason = (lines[-1] if lines else None), " ".join(str(error).split())
    said = f"{type(error).__name__}: {reason}" if reason else type(error).__name__
    return said if line is None else f"line {line}: {said}"
