"""What only the host can say of a text, as it is given: a form that it must have, and processors of the caller's."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields

from paceline.constraints.external_processors import constraint_of

KINDS = ("json", "regex", "choice", "grammar", "json_object")
NOT_TAKEN = ("disable_additional_properties", "structural_tag")  # of vLLM's


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputs:
    """One of these, as in vLLM's ``StructuredOutputsParams``.

    - ``json``: a JSON schema, as a dictionary or as text; kept as text.
    - ``regex``: a regular expression of the whole text, without look-around.
    - ``choice``: texts, one of which it is.
    - ``grammar``: a context-free grammar, of Lark or of llama.cpp (``root ::= ...``).
    - ``json_object``: any JSON object.

    With ``json`` and ``json_object``, ``disable_any_whitespace`` forbids space between tokens of JSON, and
    ``whitespace_pattern`` says as a regular expression what it may be. Raises ValueError for anything else.
    """

    json: str | Mapping[str, object] | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    whitespace_pattern: str | None = None

    def __post_init__(self) -> None:
        given = [name for name in KINDS if getattr(self, name) not in (None, False)]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise ValueError(f"structured_outputs: {found} of {', '.join(KINDS)}; give exactly one")
        if isinstance(self.json, Mapping):
            object.__setattr__(self, "json", json.dumps(self.json))
        if self.choice is not None:
            object.__setattr__(self, "choice", tuple(self.choice) if _is_list(self.choice) else self.choice)
        for name in ("json", "regex", "grammar", "whitespace_pattern"):
            if getattr(self, name) is not None and not isinstance(getattr(self, name), str):
                raise ValueError(f"structured_outputs: {name}={getattr(self, name)!r}; give a text")
        if self.choice is not None and not (
            isinstance(self.choice, tuple) and self.choice and all(isinstance(one, str) for one in self.choice)
        ):
            raise ValueError(f"structured_outputs: choice={self.choice!r}; give a list of texts")
        for name in ("json_object", "disable_any_whitespace"):
            if getattr(self, name) not in (None, True, False):
                raise ValueError(f"structured_outputs: {name}={getattr(self, name)!r}; give True or False")
        if self.kind not in ("json", "json_object") and (self.disable_any_whitespace or self.whitespace_pattern):
            raise ValueError("structured_outputs: disable_any_whitespace and whitespace_pattern go with json alone")

    @property
    def kind(self) -> str:
        """Which of them it is."""
        return next(name for name in KINDS if getattr(self, name) not in (None, False))

    @property
    def given(self) -> dict[str, object]:
        """What differs from the defaults, with lists for tuples."""
        found = {name: value for name, value in asdict(self).items() if value not in (None, False)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}


def read_structured(value: object) -> StructuredOutputs | None:
    """``structured_outputs`` as it was given: None, a mapping, or a StructuredOutputs. Raises ValueError."""
    if value is None or isinstance(value, StructuredOutputs):
        return value
    if not isinstance(value, Mapping):
        raise ValueError(f"structured_outputs={value!r}: give a mapping such as {{'regex': 'a+'}}")
    taken = [field.name for field in fields(StructuredOutputs)]
    active = {name: one for name, one in value.items() if name not in NOT_TAKEN or one not in (None, False)}
    unknown = [str(name) for name in active if name not in taken]
    if unknown:
        raise ValueError(f"structured_outputs: {', '.join(unknown)} is not supported; known: {', '.join(taken)}")
    return StructuredOutputs(**{name: one for name, one in active.items() if name in taken})


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def read_processors(value: object) -> tuple[object, ...] | None:
    """Logits processors in the form in which they are stored. Raises ValueError naming one that cannot be called."""
    if value is None:
        return None
    if not isinstance(value, Sequence):
        raise ValueError(f"logits_processors={value!r}: give a list of logits processors")
    for index, one in enumerate(value):
        try:
            constraint_of(one)
        except ValueError as error:
            raise ValueError(f"logits_processors[{index}]: {error}") from error
    return tuple(value) or None
