"""Parses "NAME" or "NAME:option=value,option=value" into a registered class and its keyword arguments.

A value is converted to the type that the class annotates.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from inspect import Parameter, isabstract, signature
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from paceline.core.registry import Registry

NOTHING = "none"  # the text form of None
STORE = "store"  # the option of drafters that copy from a store, which may be written NAME:DIRECTORY
FROM_TARGET = ("vocabulary",)  # options that are not written: they are known with the target


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A registered class and its options."""

    kind: type
    options: Mapping[str, object]

    def make(self, **known: object) -> Any:
        """The instance; it is given what it takes of ``known``, values of ``FROM_TARGET``.

        Raises ValueError for options that its class refuses.
        """
        taken = {name: value for name, value in known.items() if name in _options(self.kind)}
        return self.kind(**self.options, **taken)


def name_of(text: str) -> str:
    """The name at the start of ``text``."""
    return text.partition(":")[0]


def read_named(registry: Registry, text: str) -> Named:
    """The class and the options that ``text`` names; no instance is made yet.

    Raises ValueError, with the known names, for an unknown name or option, for a value of another type than the
    option's, for anything not written as option=value, and for missing options without a default.
    """
    name = name_of(text)
    kind = registry.find(name)
    return Named(kind=kind, options=read_options(kind, text, name=name, what=registry.kind, given=FROM_TARGET))


def read_options(
    make: Callable[..., object], text: str, *, name: str, what: str, given: Collection[str] = ()
) -> dict[str, object]:
    """The arguments of ``make``, a class or a function, that follow ``name`` in ``text``.

    ``what`` it makes is for messages; ``given`` are arguments that come from elsewhere. Raises what ``read_named``
    raises of options.
    """
    part = f"{what} {name!r}"
    known = {option: of for option, of in _options(make).items() if option not in given}
    written = {} if text == name else _split(f"{what} {text!r}", _with_store(known, text.removeprefix(f"{name}:")))
    for option in written:
        if option not in known:
            raise ValueError(f"{part} has no option {option!r}; {_describe(known, f'give {name!r} alone')}")
    options = {option: _read(part, make, known[option], value) for option, value in written.items()}
    missing = _missing(known, options)
    if missing:
        raise ValueError(
            f"{part} needs {', '.join(missing)}: give a {make.__name__} instead of the name, or "
            f"{name}:{','.join(f'{option}=VALUE' for option in missing)}"
        )
    return options


def make_from_class(kind: type) -> Any:
    """An instance of a class that was given in place of one. Raises ValueError where it needs arguments for that."""
    missing = _missing(_options(kind), ())
    if missing:
        raise ValueError(
            f"{kind.__name__} is a class; give {kind.__name__}({', '.join(f'{name}=...' for name in missing)})"
        )
    check_complete(kind, kind.__name__)
    return kind()


def check_complete(kind: type, what: str) -> None:
    """Raise ValueError for a class that lacks a method of its interface; the message calls it ``what``."""
    if isabstract(kind):
        raise ValueError(f"{what} is a class that does not implement {', '.join(sorted(kind.__abstractmethods__))}")


def _options(make: Callable[..., object]) -> dict[str, Parameter]:
    """The arguments of a class or function that can be given by name."""
    by_name = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    return {name: option for name, option in signature(make).parameters.items() if option.kind in by_name}


def _missing(known: Mapping[str, Parameter], given: Collection[str]) -> list[str]:
    """The arguments without a default that are not given."""
    return [name for name, option in known.items() if option.default is Parameter.empty and name not in given]


def _with_store(known: Mapping[str, Parameter], text: str) -> str:
    """``text`` with the name of the store's option, if it begins with a store alone."""
    first = text.partition(",")[0]
    return f"{STORE}={text}" if STORE in known and first.strip() and "=" not in first else text


def _split(whole: str, text: str) -> dict[str, str]:
    """The options by name, unconverted. Raises ValueError for syntax errors and for an option given twice."""
    written: dict[str, str] = {}
    for one in text.split(","):
        option, equals, value = (piece.strip() for piece in one.partition("="))
        if not (option and equals and value):
            raise ValueError(f"{whole}: {one.strip()!r} is not an option; write NAME:option=value,option=value")
        if option in written:
            raise ValueError(f"{whole}: {option} is given twice; give it once")
        written[option] = value
    return written


def _describe(known: Mapping[str, Parameter], otherwise: str) -> str:
    if not known:
        return f"it takes none: {otherwise}"
    defaults = ((name, option.default) for name, option in known.items())
    return f"known: {', '.join(name if value is Parameter.empty else f'{name}={value}' for name, value in defaults)}"


def _read(part: str, make: Callable[..., object], option: Parameter, text: str) -> object:
    """``text`` converted to the type of ``option``. Raises ValueError for other types and types without text form."""
    types = _types(make, option)
    unreadable = [one for one in types if one is not NoneType and one not in _READERS]
    if unreadable or not types:
        wanted = " or ".join(getattr(one, "__name__", str(one)) for one in unreadable) or "an object"
        raise ValueError(
            f"{option.name}={text} of the {part}: it takes {wanted}, which cannot be written as text; give a "
            f"{make.__name__} instead of the name"
        )
    if NoneType in types and text.lower() == NOTHING:
        return None
    for one in (kind for kind in _READERS if kind in types):
        try:
            return _READERS[one](text)
        except ValueError:
            continue
    wanted = " or ".join(NOTHING if one is NoneType else _WORDS[one] for one in types)
    raise ValueError(f"{option.name}={text} of the {part}: give {wanted}")


def _types(make: Callable[..., object], option: Parameter) -> tuple[type, ...]:
    """The types in an option's annotation, else the type of its default; () if neither is known."""
    try:
        given = signature(make, eval_str=True).parameters[option.name].annotation
    except NameError:  # the annotation is not importable
        return ()
    if given is Parameter.empty:
        return () if option.default in (Parameter.empty, None) else (type(option.default),)
    return get_args(given) if get_origin(given) in (Union, UnionType) else (given,)


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


# Tried in this order where an option has several types.
_READERS: dict[type, Callable[[str], object]] = {bool: _truth, int: int, float: float, str: str}
_WORDS: dict[type, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}
