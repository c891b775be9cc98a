"""What a training run is, as values read from YAML; every error names its field. Builds nothing.

The whole run is in one file: the same file, data and seed give the same weights.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)

from paceline.train.data.config import DataConfig
from paceline.train.layer_skip import LayerSkipSection
from paceline.train.losses import LOSSES


class _Loader(yaml.SafeLoader):
    """Safe YAML that takes 3e-4 for a number, as YAML 1.2 and everybody does."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


class ConfigError(ValueError):
    """What is wrong with a configuration, a line for each field."""


class Section(BaseModel):
    """A part of the configuration: nothing changes it, and nothing unknown is taken."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class TargetSection(Section):
    """The model that is drafted for: a directory, or ``config`` (a config.json) for one from scratch."""

    path: str | None = None
    config: dict[str, Any] | None = None
    trained: bool = False  # learns the text, beside the heads if there are any; one from scratch always does
    weight: PositiveFloat = 1.0  # of its own loss beside the heads'
    layer_skip: LayerSkipSection | None = None  # early exits without a head
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"  # of a frozen one in memory

    @model_validator(mode="after")
    def _one_of_two(self) -> "TargetSection":
        if (self.path is None) == (self.config is None):
            raise ValueError("give either path (a model directory) or config (a config.json, to train from scratch)")
        if self.layer_skip is not None and not self.learns:
            raise ValueError("layer_skip is how a target learns, and this one stands still: give trained: true")
        return self

    @property
    def learns(self) -> bool:
        """Whether the run changes it."""
        return self.trained or self.config is not None


class HeadSection(Section):
    """A head: its kind, what shapes it, and its part in the loss."""

    kind: str
    name: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_-]+$")  # of its directory; None: its kind
    config: dict[str, Any] = {}
    weight: NonNegativeFloat = 1.0  # 0: nothing learns for it, and it must have no weights of its own
    detach: bool = False  # its loss ends at the target's hidden states
    depth_weights: tuple[NonNegativeFloat, ...] | None = None

    @property
    def called(self) -> str:
        return self.name or self.kind


class DraftSection(Section):
    """A draft model: a directory to go on from, or a config.json."""

    path: str | None = None
    config: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _one_of_two(self) -> "DraftSection":
        if (self.path is None) == (self.config is None):
            raise ValueError("give either path (a model directory) or config (a config.json, to train from scratch)")
        return self


class BatchSection(Section):
    """One step: ``rows`` of ``length`` tokens over all processes, in ``accumulate`` parts one after another."""

    rows: PositiveInt = 8
    length: PositiveInt = 512
    accumulate: PositiveInt = 1


class LossSection(Section):
    """A mixture of losses against the target's law; ``chunk`` entries are held in float32 at once."""

    terms: dict[str, PositiveFloat] = {"kl": 0.5, "argmax": 0.5}
    chunk: PositiveInt = 1024
    rows: PositiveInt = 1  # that a head unrolls at once, with random numbers of their own

    @model_validator(mode="after")
    def _known(self) -> "LossSection":
        unknown = sorted(self.terms.keys() - LOSSES.keys())
        if unknown or not self.terms:
            raise ValueError(f"unknown terms {unknown}; give some of {', '.join(LOSSES)} with their weights")
        return self


class OptimiserSection(Section):
    """AdamW; matrices alone decay."""

    learning_rate: PositiveFloat
    weight_decay: NonNegativeFloat = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    clip: PositiveFloat = 1.0  # of the norm of all gradients
    dropout: float = Field(default=0.0, ge=0, lt=1)  # of a model that learns


class ScheduleSection(Section):
    """Linear warm-up, then a cosine to ``floor`` of the rate."""

    steps: PositiveInt
    warmup: NonNegativeInt = 100
    floor: float = Field(default=0.1, ge=0, le=1)


class CheckpointSection(Section):
    """When a run is kept, so that it can go on: the last ``keep`` and the best."""

    every: PositiveInt = 100
    keep: PositiveInt = 2


class ValidationSection(Section):
    """How well what is trained drafts: the real decoder on ``prompts`` held-out prompts."""

    every: PositiveInt = 100
    prompts: PositiveInt = 32
    prompt_tokens: PositiveInt = 48
    tokens: PositiveInt = 64
    k: PositiveInt = 5
    temperature: NonNegativeFloat = 1.0  # measured beside greedy; 0: greedy alone


class CardSection(Section):
    """What the model cards say that no run can find out."""

    license: str | None = None  # an identifier of the Hub
    note: str | None = None  # a paragraph about the data


class LoopConfig(Section):
    """What the loop itself must know, whatever it trains."""

    schedule: ScheduleSection
    optimiser: OptimiserSection
    checkpoints: CheckpointSection = CheckpointSection()
    precision: Literal["bf16", "fp32"] = "bf16"
    accumulate: PositiveInt = 1
    ema: float | None = Field(default=None, gt=0, lt=1)  # decay of the mean of weights that is validated and kept
    seed: int = Field(default=0, ge=0, lt=2**31)
    log_every: PositiveInt = 20
    validate_every: PositiveInt = 100
    compile: bool = False


class TrainConfig(Section):
    """A whole run."""

    target: TargetSection
    heads: tuple[HeadSection, ...] = ()
    draft: DraftSection | None = None
    data: DataConfig
    batch: BatchSection = BatchSection()
    loss: LossSection = LossSection()
    optimiser: OptimiserSection
    schedule: ScheduleSection
    precision: Literal["bf16", "fp32"] = "bf16"
    ema: float | None = Field(default=None, gt=0, lt=1)
    compile: bool = False
    distributed: Literal["single", "ddp", "fsdp2"] = "single"
    device: str | None = None  # None: the accelerator if there is one
    validation: ValidationSection = ValidationSection()
    checkpoints: CheckpointSection = CheckpointSection()
    loggers: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = ()
    log_every: PositiveInt = 20
    card: CardSection = CardSection()
    seed: int = Field(default=0, ge=0, lt=2**31)
    output: Path

    @model_validator(mode="after")
    def _consistent(self) -> "TrainConfig":
        if self.heads and self.draft is not None:
            raise ValueError("heads and draft: a run trains either; give one of them")
        if not self.heads and self.draft is None and not self.target.learns:
            raise ValueError("nothing to train: give heads, a draft, or target.trained: true")
        if self.draft is not None and self.target.learns:
            raise ValueError("a draft model learns from a target that stands still; give target.path alone")
        names = [head.called for head in self.heads]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"heads of the same name {', '.join(twice)}: give each a name of its own")
        parts = self.batch.accumulate * self.loss.rows
        if self.batch.rows % parts:
            raise ValueError(
                f"batch.rows {self.batch.rows} is no multiple of {parts}, batch.accumulate times loss.rows"
            )
        return self

    @property
    def loop(self) -> LoopConfig:
        """The part of the loop."""
        return LoopConfig(
            schedule=self.schedule,
            optimiser=self.optimiser,
            checkpoints=self.checkpoints,
            precision=self.precision,
            accumulate=self.batch.accumulate,
            ema=self.ema,
            seed=self.seed,
            log_every=self.log_every,
            validate_every=self.validation.every,
            compile=self.compile,
        )


def read_train_config(path: Path, settings: Sequence[str] = ()) -> TrainConfig:
    """The configuration in the YAML file ``path``, with ``a.b=value`` of ``settings`` put over it.

    Raises ConfigError with a line for each field that is wrong, and for a file that is no YAML mapping.
    """
    try:
        raw = _parse(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"{path} holds no mapping; its top level are sections such as target, data, schedule")
    for setting in settings:
        _put(raw, setting)
    try:
        return TrainConfig.model_validate(raw)
    except ValidationError as error:
        raise ConfigError("\n".join(describe(error))) from error


def dump(config: BaseModel) -> str:
    """The configuration as YAML with all defaults filled in; reading it again gives the same one."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def describe(error: ValidationError, *, prefix: Sequence[str] = ()) -> list[str]:
    """A line for each field: its name, what it was given and what is allowed."""
    lines = []
    for one in error.errors(include_url=False):
        name = ".".join([*prefix, *(str(part) for part in one["loc"])]) or "configuration"
        message = one["msg"].removeprefix("Value error, ")
        given = one["input"]
        if one["type"] == "missing" or isinstance(given, Mapping | BaseModel):
            lines.append(f"{name}: {message}")
        else:
            lines.append(f"{name}={given!r}: {message}")
    return lines


def _parse(text: str) -> Any:
    return yaml.load(text, _Loader)


def _put(raw: dict[str, Any], setting: str) -> None:
    """Set one field of the nested mapping. List entries are named by their number: ``heads.0.weight=2``."""
    name, separator, text = setting.partition("=")
    if not separator or not name:
        raise ConfigError(f"--set {setting}: write it as section.field=value")
    try:
        value = _parse(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"--set {setting}: {text!r} is not YAML") from error
    *above, last = name.split(".")
    place: Any = raw
    for part in above:
        place = _inside(place, part, setting)
    if isinstance(place, list):
        place[_index(place, last, setting)] = value
    else:
        place[last] = value


def _inside(place: Any, part: str, setting: str) -> Any:
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
