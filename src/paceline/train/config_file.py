"""Reads a training configuration from YAML, with overrides; every error names its field."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from paceline.train.config import TrainConfig


class ConfigError(ValueError):
    """What is wrong with a configuration, one line per field."""


class _Loader(yaml.SafeLoader):
    """Safe YAML that reads 3e-4 as a number, as YAML 1.2 does."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def read_train_config(path: Path, settings: Sequence[str] = ()) -> TrainConfig:
    """The configuration in the YAML file ``path``, with the fields ``a.b=value`` of ``settings`` replaced.

    Raises ConfigError with a line for each wrong field, or for a file that is not a YAML mapping.
    """
    return validate(read_raw(path, settings))


def read_raw(path: Path, settings: Sequence[str] = ()) -> dict[str, Any]:
    """The fields of the file, not checked. Raises ConfigError for a file that is not a YAML mapping."""
    try:
        raw = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"{path} is not a mapping; its top level has sections such as target, data, schedule")
    for setting in settings:
        _set_field(raw, setting)
    return raw


def validate(raw: Mapping[str, Any]) -> TrainConfig:
    """The configuration with these fields. Raises ConfigError with a line for each wrong one."""
    try:
        return TrainConfig.model_validate(raw)
    except ValidationError as error:
        raise ConfigError("\n".join(describe_errors(error))) from error


def dump(config: BaseModel) -> str:
    """The configuration as YAML with all defaults filled in; reading it again gives the same one."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def describe_errors(error: ValidationError, *, prefix: Sequence[str] = ()) -> list[str]:
    """A line for each field: its name, its value and what is allowed."""
    lines = []
    for one in error.errors(include_url=False):
        name = ".".join([*prefix, *(str(part) for part in one["loc"])]) or "configuration"
        message = one["msg"].removeprefix("Value error, ")
        value = one["input"]
        if one["type"] == "missing" or isinstance(value, Mapping | BaseModel):
            lines.append(f"{name}: {message}")
        else:
            lines.append(f"{name}={value!r}: {message}")
    return lines


def _set_field(raw: dict[str, Any], setting: str) -> None:
    """Set one field of the nested mapping. List entries are named by their index: ``heads.0.weight=2``."""
    name, separator, text = setting.partition("=")
    if not separator or not name:
        raise ConfigError(f"--set {setting}: write it as section.field=value")
    try:
        value = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise ConfigError(f"--set {setting}: {text!r} is not YAML") from error
    *parents, last = name.split(".")
    place: Any = raw
    for part in parents:
        place = _enter(place, part, setting)
    if isinstance(place, list):
        place[_index(place, last, setting)] = value
    else:
        place[last] = value


def _enter(place: Any, part: str, setting: str) -> Any:
    if isinstance(place, list):
        return place[_index(place, part, setting)]
    below = place.get(part)
    if below is None:
        below = place[part] = {}
    if not isinstance(below, dict | list):
        raise ConfigError(f"--set {setting}: {part} is {below!r}, which has no fields")
    return below


def _index(place: list[Any], part: str, setting: str) -> int:
    if not part.isdigit() or int(part) >= len(place):
        raise ConfigError(f"--set {setting}: {part} is no entry of a list of {len(place)}; the first one is 0")
    return int(part)
