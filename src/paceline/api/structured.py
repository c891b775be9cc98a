"""Values of ``structured_outputs`` and ``logits_processors``, checked when the parameters are made."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields

from paceline.constraints.external_processors import constraint_of

KINDS = ("json", "regex", "choice", "grammar", "json_object")
NOT_TAKEN = ("disable_additional_properties", "structural_tag")  # of vLLM's


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputs:
    """The format of the output: one of these, as in vLLM's ``StructuredOutputsParams``.

    - ``json``: a JSON schema, as a dictionary or as text; stored as text.
    - ``regex``: a regular expression that the whole output matches, without look-around.
    - ``choice``: the texts that the output is one of.
    - ``grammar``: a context-free grammar, of Lark or of llama.cpp (``root ::= ...``).
    - ``json_object``: any JSON object.

    With ``json`` and ``json_object``, ``disable_any_whitespace`` forbids whitespace between JSON tokens, and
    ``whitespace_pattern`` is a regular expression for it. Raises ValueError for anything else.
    """

    json: str | Mapping[str, object] | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    whitespace_pattern: str | None = None

    def __post_init__(self) -> None:
        given = self._kinds
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise ValueError(f"structured_outputs: {found} of {', '.join(KINDS)}; give exactly one")
        if isinstance(self.json, Mapping):
            object.__setattr__(self, "json", json.dumps(self.json))
        if isinstance(self.choice, Sequence) and not isinstance(self.choice, str | bytes):
            object.__setattr__(self, "choice", tuple(self.choice))
        for name in ("json", "regex", "grammar", "whitespace_pattern"):
            self._check(name, isinstance(getattr(self, name), str | None), "a text")
        texts = isinstance(self.choice, tuple) and self.choice and all(isinstance(one, str) for one in self.choice)
        self._check("choice", self.choice is None or bool(texts), "a list of texts")
        for name in ("json_object", "disable_any_whitespace"):
            self._check(name, getattr(self, name) in (None, True, False), "True or False")
        if self.kind not in ("json", "json_object") and (self.disable_any_whitespace or self.whitespace_pattern):
            raise ValueError("structured_outputs: disable_any_whitespace and whitespace_pattern go with json alone")

    def _check(self, name: str, valid: bool, wanted: str) -> None:
        if not valid:
            raise ValueError(f"structured_outputs: {name}={getattr(self, name)!r}; give {wanted}")

    @property
    def _kinds(self) -> list[str]:
        return [name for name in KINDS if getattr(self, name) not in (None, False)]

    @property
    def kind(self) -> str:
        """The one of KINDS that is given."""
        return self._kinds[0]

    @property
    def spaces(self) -> dict[str, object]:
        """llguidance's options of whitespace in JSON."""
        found: dict[str, object] = {"whitespace_flexible": False} if self.disable_any_whitespace else {}
        return found if self.whitespace_pattern is None else found | {"whitespace_pattern": self.whitespace_pattern}

    @property
    def given(self) -> dict[str, object]:
        """The values that differ from the defaults, with lists instead of tuples."""
        found = {name: value for name, value in asdict(self).items() if value not in (None, False)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}


def read_structured(name: str, value: object) -> StructuredOutputs | None:
    """``structured_outputs`` from a mapping or a StructuredOutputs; None for None. Raises ValueError."""
    if value is None or isinstance(value, StructuredOutputs):
        return value
    if not isinstance(value, Mapping):
        raise ValueError(f"{name}={value!r}: give a mapping such as {{'regex': 'a+'}}")
    taken = [field.name for field in fields(StructuredOutputs)]
    active = {key: one for key, one in value.items() if key not in NOT_TAKEN or one not in (None, False)}
    unknown = [str(key) for key in active if key not in taken]
    if unknown:
        raise ValueError(f"{name}: {', '.join(unknown)} is not supported; known: {', '.join(taken)}")
    return StructuredOutputs(**active)


def read_processors(name: str, value: object) -> tuple[object, ...] | None:
    """Logits processors in their stored form. Raises ValueError for one that cannot be called."""
    if value is None:
        return None
    if not isinstance(value, Sequence):
        raise ValueError(f"{name}={value!r}: give a list of logits processors")
    for index, one in enumerate(value):
        try:
            constraint_of(one)
        except ValueError as error:
            raise ValueError(f"{name}[{index}]: {error}") from error
    return tuple(value) or None
