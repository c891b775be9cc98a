"""Registries of names to classes, imported on demand: built-in ones and those of installed packages."""

from collections.abc import Iterator
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from inspect import isabstract
from typing import cast


class Registry:
    """A table of ``name -> "module:Class"`` and the entry points of installed packages under ``group``, if given.

    ``base``, "module:Class" too, is what a class of another package must derive from. Entry points are looked up when
    names are first asked for, and once; a package is imported only by ``find``.
    """

    def __init__(
        self, kind: str, entries: dict[str, str], *, group: str | None = None, base: str | None = None
    ) -> None:
        self.kind = kind
        self.entries = entries
        self.group = group
        self.base = base

    def __iter__(self) -> Iterator[str]:
        """All names, the built-in ones and those of other packages, sorted."""
        return iter(sorted(self.entries.keys() | self._plugins.keys()))

    def __contains__(self, name: str) -> bool:
        return name in self.entries or name in self._plugins

    @property
    def builtin(self) -> tuple[str, ...]:
        """The names of the table itself, sorted: the same wherever Paceline is installed."""
        return tuple(sorted(self.entries))

    def refresh(self) -> None:
        """Look up entry points again after packages were installed or removed."""
        self.__dict__.pop("_plugins", None)

    def find(self, name: str) -> type:
        """The class called ``name``.

        Raises ValueError for an unknown name, for one that several packages claim, and for a package that cannot be
        imported or whose class is not of the right kind.
        """
        plugins = self._plugins.get(name, ())
        if name not in self:
            raise ValueError(f"unknown {self.kind} {name!r}; known: {', '.join(self)}")
        claims = [_origin(entry) for entry in plugins]
        if name in self.entries:
            claims = [f"paceline ({self.entries[name]})", *claims]
        if len(claims) > 1:
            raise ValueError(
                f"the {self.kind} name {name!r} is claimed by {' and by '.join(claims)}; uninstall all but one of "
                "them, or give the others another name in their pyproject.toml"
            )
        return self._find_plugin(plugins[0]) if plugins else _import(self.entries[name])

    def name_of(self, kind: type) -> str:
        """The name of a class, for messages; that of the class itself where it has none here. Imports nothing."""
        entry = f"{kind.__module__}:{kind.__name__}"
        known = {**self.entries, **{name: entries[0].value for name, entries in self._plugins.items()}}
        return next((name for name, value in known.items() if value == entry), kind.__name__)

    @cached_property
    def _plugins(self) -> dict[str, tuple[EntryPoint, ...]]:
        """Entry points by name. Reads what is installed, imports nothing of it."""
        if self.group is None:
            return {}
        found: dict[str, tuple[EntryPoint, ...]] = {}
        for entry in entry_points(group=self.group):
            found[entry.name] = (*found.get(entry.name, ()), entry)
        return found

    def _find_plugin(self, entry: EntryPoint) -> type:
        """The class of an entry point. Raises ValueError naming the package, the entry and what is wrong."""
        origin = f"{self.kind} {entry.name!r} of {_origin(entry)}"
        try:
            found = entry.load()
        except Exception as error:  # importing somebody else's code may raise anything
            raise ValueError(
                f"{origin} cannot be imported: {type(error).__name__}: {error}; repair the package or uninstall it"
            ) from error
        if not isinstance(found, type):
            raise ValueError(f"{origin} is {found!r}; name a class there")
        if self.base is not None and _import(self.base) not in found.__mro__:
            raise ValueError(f"{origin} does not derive from {self.base.replace(':', '.')}, as every {self.kind} must")
        if isabstract(found):
            missing = cast("frozenset[str]", found.__abstractmethods__)  # pyright: ignore[reportUnknownMemberType]
            raise ValueError(
                f"{origin} does not implement {', '.join(sorted(missing))}; is it written for this version of Paceline?"
            )
        return found


def _import(entry: str) -> type:
    """The class that "module:Class" names."""
    module, _, attribute = entry.partition(":")
    return getattr(import_module(module), attribute)


def _origin(entry: EntryPoint) -> str:
    """The package and version of an entry point, and its value."""
    package = "a package without a name" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"
    return f"{package} ({entry.value})"
