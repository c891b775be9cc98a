"""Drafters made of drafters, as text or JSON: stages, "model:D1 < ngram", and cascades, "model:D1 x2 + ngram".

Nothing is loaded to read them.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias, TypeGuard, cast, final

from paceline.api.named import name_of, read_named
from paceline.drafters import DRAFTERS
from paceline.drafters.base import Drafter
from paceline.drafters.growing import GrowingDrafter
from paceline.models.directory import check_path, is_head

OPTION = re.compile(r"\w+=")
MODEL = "model:"  # before the directory or Hub id of a draft model
STAGE, THEN = re.compile(r"\s+<\s+"), re.compile(r"\s+\+\s+")
COUNT = re.compile(r"\s+x(\d+)$")
STAGED, CASCADE = "staged", "cascade"
HOW = (
    "write 'model:DIR < ngram' for a draft model that prompt lookup drafts for, and 'model:DIR x2 + ngram' for prompt "
    "lookup after two tokens of a draft model"
)
LENGTHS = ("num_inner_tokens", "max_forwards")  # of a staged drafter
KEYS = {
    STAGED: ("method", "drafters", *LENGTHS, "num_speculative_tokens"),
    CASCADE: ("method", "drafters", "counts", "num_speculative_tokens"),
}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A drafter that is not made of others: a draft model's directory or Hub id, or a name with options."""

    text: str
    is_model: bool


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """``draft``, a draft model, and what drafts for it."""

    draft: Leaf
    inner: "Part"
    num_inner_tokens: int | None = None
    max_forwards: int | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Cascade:
    """``num_first`` tokens of ``first``, and then those of ``rest``."""

    first: "Part"
    rest: "Part"
    num_first: int


Part: TypeAlias = Leaf | Stages | Cascade
Build: TypeAlias = Callable[[str], Drafter]  # a drafter by its directory, Hub id or name


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterParts:
    """A drafter made of drafters, and the draft length if its JSON gives one."""

    whole: Part
    num_draft_tokens: int | None = None

    def make(self, build: Build) -> Drafter:
        """The drafter; ``build`` makes those that it consists of. Raises ValueError for parts that do not fit."""
        return _make(self.whole, build)


def is_made_of_drafters(given: object) -> TypeGuard[Mapping[str, object] | str]:
    """Whether ``given`` is text or JSON of this form, "model:DIR" alone among it, or a mapping of such JSON."""
    if isinstance(given, Mapping):
        method = cast("Mapping[str, object]", given).get("method")
        return isinstance(method, str) and method in KEYS
    if not isinstance(given, str):
        return False
    if given.lstrip().startswith("{"):
        return is_made_of_drafters(_parse(given))
    if STAGE.search(given) or THEN.search(given):
        return True
    return given.startswith(MODEL) and _can_be_model(given.removeprefix(MODEL))


def read_drafter_parts(given: Mapping[str, object] | str) -> DrafterParts:
    """The drafter that ``given`` describes.

    As text, "A < B" is the draft model A that B drafts for, and "A xN + B" is B after N tokens of A; "<" binds closer.
    As JSON: ``{"method": "staged", "drafters": [A, B, ...]}`` with ``num_inner_tokens`` and ``max_forwards``, or
    ``{"method": "cascade", "drafters": [A, B, ...], "counts": [N, ...]}``; each drafter is text or such an object.
    ``num_speculative_tokens`` is the draft length of the whole.

    Raises ValueError for syntax, for parts that cannot take part, for directories that hold no model, and for a draft
    model that would draft for itself.
    """
    if isinstance(given, str) and not given.lstrip().startswith("{"):
        parts = DrafterParts(whole=_read_text(given))
    else:
        values = _parse(given) if isinstance(given, str) else given
        if not isinstance(values, Mapping):
            raise ValueError(f"drafter {given!r}: give a JSON object with method, {STAGED!r} or {CASCADE!r}")
        count = _count(values, "num_speculative_tokens")
        parts = DrafterParts(whole=_read_object(values), num_draft_tokens=count)
    _refuse_cycles(parts.whole, ())
    return parts


def refuse_bare(text: str) -> None:
    """Raise ValueError for a drafter that is made of others, by its name alone."""
    name = name_of(text)
    if name in KEYS:
        raise ValueError(f"drafter {text!r} is made of drafters: {HOW}")
    if text == "model":
        raise ValueError(
            "drafter 'model' needs a draft model: give its directory instead of the name, or after it, as model:DIR"
        )


def _read_text(text: str) -> Part:
    *before, last = THEN.split(text.strip())
    part = _read_stages(last)
    for one in reversed(before):
        count = COUNT.search(one)
        if count is None:
            raise ValueError(f"drafter {text!r}: how many tokens does {one!r} draft? {HOW}")
        first = _read_stages(one[: count.start()])
        part = Cascade(first=first, rest=part, num_first=_positive(text, int(count[1])))
    return part


def _read_stages(text: str) -> Part:
    return _stages([_leaf(one) for one in STAGE.split(text.strip())])


def _stages(parts: Sequence[Part]) -> Part:
    *drafts, part = parts
    for one in reversed(drafts):
        if not isinstance(one, Leaf) or not one.is_model:
            raise ValueError(f"{_words(one)} cannot be drafted for: only a draft model can, as in 'model:DIR < ngram'")
        part = Stages(draft=one, inner=part)
    return part


def _read_object(values: Mapping[str, object]) -> Part:
    method = values.get("method")
    if not isinstance(method, str) or method not in KEYS:
        raise ValueError(f"method={method!r} of a part: give {STAGED!r} or {CASCADE!r}, or a drafter as text")
    unknown = [name for name in values if name not in KEYS[method]]
    if unknown:
        raise ValueError(f"method {method!r}: unknown {', '.join(map(repr, unknown))}; give {', '.join(KEYS[method])}")
    given = values.get("drafters")
    if not isinstance(given, list | tuple) or len(cast("list[object]", given)) < 2:
        raise ValueError(f"method {method!r}: drafters={given!r}: give a list of at least 2")
    parts = [_read_part(one) for one in cast("list[object]", given)]
    if method == STAGED:
        lengths = [_count(values, name) for name in LENGTHS]
        whole = _stages(parts)
        assert isinstance(whole, Stages)
        return replace(whole, num_inner_tokens=lengths[0], max_forwards=lengths[1])
    counts = values.get("counts")
    if not isinstance(counts, list | tuple) or len(cast("list[object]", counts)) != len(parts) - 1:
        raise ValueError(
            f"method {method!r}: counts={counts!r}: give the tokens of each drafter but the last, "
            f"{len(parts) - 1} in all"
        )
    *before, part = parts
    for one, count in reversed(list(zip(before, cast("list[object]", counts), strict=True))):
        part = Cascade(first=one, rest=part, num_first=_positive(f"counts of {method!r}", count))
    return part


def _read_part(given: object) -> Part:
    if isinstance(given, Mapping):
        return _read_object(cast("Mapping[str, object]", given))
    if isinstance(given, Path):
        return _leaf(str(given))
    if not isinstance(given, str):
        raise ValueError(f"a part of type {type(given).__name__}: give a drafter as text, or an object with method")
    return _read_text(given)


def _leaf(text: str) -> Leaf:
    """Raises ValueError for what cannot be a part."""
    path = text.removeprefix(MODEL)
    if text.startswith(MODEL) or (name_of(text) not in DRAFTERS and _can_be_model(text)):
        if not _can_be_model(path):
            raise ValueError(f"{text!r}: there is no directory {path!r}; give a draft model's directory or Hub id")
        if is_head(path):
            raise ValueError(
                f"{text!r} is a draft head, which reads its own target's hidden states: give a draft model, or 'ngram'"
            )
        check_path(path)
        return Leaf(text=path, is_model=True)
    refuse_bare(text)
    if name_of(text) not in DRAFTERS:
        raise ValueError(f"{text!r} cannot be a part of a drafter: give 'model:DIR' or 'ngram'")
    kind = DRAFTERS.find(name_of(text))
    if not (isinstance(kind, type) and issubclass(kind, Drafter) and kind.nests):
        raise ValueError(f"{text!r} cannot draft for others, or after them: give 'model:DIR' or 'ngram'")
    read_named(DRAFTERS, text)
    return Leaf(text=text, is_model=False)


def _refuse_cycles(part: Part, above: tuple[str, ...]) -> None:
    """Raise ValueError for a draft model that drafts for itself; ``above`` are those that ``part`` drafts for."""
    if isinstance(part, Cascade):
        _refuse_cycles(part.first, above)
        _refuse_cycles(part.rest, above)
        return
    leaf = part if isinstance(part, Leaf) else part.draft
    name = str(Path(leaf.text).resolve()) if Path(leaf.text).exists() else leaf.text
    if leaf.is_model and name in above:
        raise ValueError(
            f"the draft model {leaf.text!r} would draft for itself: each stage needs a smaller model than the one "
            "before"
        )
    if isinstance(part, Stages):
        _refuse_cycles(part.inner, (*above, name))


def _make(part: Part, build: Build) -> Drafter:
    if isinstance(part, Leaf):
        return build(part.text)
    if isinstance(part, Cascade):
        first, rest = _make(part.first, build), _make(part.rest, build)
        return DRAFTERS.find(CASCADE)(first=first, rest=rest, num_first=part.num_first)
    draft = build(part.draft.text)
    assert isinstance(draft, GrowingDrafter)
    return DRAFTERS.find(STAGED)(
        draft=draft,
        inner=_make(part.inner, build),
        num_inner_tokens=part.num_inner_tokens,
        max_forwards=part.max_forwards,
    )


def _can_be_model(text: str) -> bool:
    """Whether a draft model may lie there; options, as in "draft=DIR", are none."""
    return text != "" and not OPTION.match(text) and ("/" in text or Path(text).is_dir())


def _words(part: Part) -> str:
    return repr(part.text) if isinstance(part, Leaf) else "a drafter that is itself made of drafters"


def _parse(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _count(values: Mapping[str, object], name: str) -> int | None:
    value = values.get(name)
    return None if value is None else _positive(name, value)


def _positive(what: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{what}: {value!r} tokens: give a count of at least 1")
    return value
