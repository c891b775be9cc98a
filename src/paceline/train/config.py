"""The configuration of a training run. The same configuration and data give the same weights."""

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from paceline.train.data.config import DataConfig, FeaturesSource, PairsSource, Section, SoundsSource
from paceline.train.loop.config import LoopConfig, LoopSettings
from paceline.train.tasks.joint import JointSection
from paceline.train.tasks.layer_skip import LayerSkipSection
from paceline.train.tasks.losses import check_terms


class ModelSection(Section):
    """A model: a directory, or ``config`` (a config.json) for one from scratch."""

    path: str | None = None
    config: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _path_or_config(self) -> Self:
        if (self.path is None) == (self.config is None):
            raise ValueError("give either path (a model directory) or config (a config.json, to train from scratch)")
        return self


class DraftSection(Section):
    """A draft model: as other models, or copies of ``layers`` of the decoder of a target with an encoder, which both
    read.
    """

    path: str | None = None
    config: dict[str, Any] | None = None
    layers: tuple[int, ...] | None = None  # of the target, negative ones from its last; None: a model of its own
    vocab_size: PositiveInt | None = None  # tokens that it drafts, the most frequent of the training data; None: all

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if sum(given is not None for given in (self.path, self.config, self.layers)) != 1:
            raise ValueError(
                "give one of path (a model directory), config (a config.json, to train from scratch) and layers (of "
                "the decoder of an encoder-decoder, to train copies of them)"
            )
        return self

    @property
    def model(self) -> ModelSection:
        """The model of its own."""
        return ModelSection(path=self.path, config=self.config)


class TargetSection(ModelSection):
    """The target."""

    trained: bool = False  # trained on the data, with the heads if there are any; one from scratch always is
    weight: PositiveFloat = 1.0  # of its own loss beside the heads'
    source_dropout: float = Field(default=0.0, ge=0, lt=1)  # share of rows without what an encoder reads, for guidance
    joint: JointSection | None = None  # trained after its heads, with them: in two stages
    layer_skip: LayerSkipSection | None = None  # early exits without a head
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"  # of a frozen target in memory

    @model_validator(mode="after")
    def _trained_for_layer_skip(self) -> Self:
        if self.layer_skip is not None and not self.is_trained:
            raise ValueError("layer_skip is for a target that is trained, and this one is frozen: give trained: true")
        return self

    @property
    def is_trained(self) -> bool:
        """Whether the run trains it."""
        return self.trained or self.config is not None


class HeadSection(Section):
    """A draft head: its kind or one that is trained on, its configuration, and its share of the loss."""

    kind: str | None = None  # None: that of ``path``
    path: Path | None = None  # a head of the target, in any format that is read, whose weights it begins with
    name: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_-]+$")  # of its directory; None: the kind
    config: dict[str, Any] = Field(default={})  # what differs from the defaults, or from that of ``path``
    weight: NonNegativeFloat = 1.0  # 0: nothing is trained for it, and it must have no weights of its own
    detach: bool = False  # its gradient stops at the target's hidden states
    depth_weights: tuple[NonNegativeFloat, ...] | None = None

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if (self.kind is None) == (self.path is None):
            raise ValueError("give either kind, of a new head, or path, a directory of one that is trained on")
        return self

    @property
    def directory(self) -> str:
        return self.name or self.kind or (self.path or Path()).name


class BatchSection(Section):
    """One step: ``rows`` of ``length`` tokens over all processes, in ``accumulate`` micro-batches."""

    rows: PositiveInt = 8
    length: PositiveInt = 512
    accumulate: PositiveInt = 1


class LossSection(Section):
    """Weighted losses against the target's distribution; ``chunk`` positions are held in float32 at once."""

    terms: dict[str, PositiveFloat] = Field(default={"kl": 0.5, "argmax": 0.5})
    chunk: PositiveInt | None = None  # None: as many as suit the device
    rows: PositiveInt = 1  # rows that a head unrolls at once

    @model_validator(mode="after")
    def _known_terms(self) -> Self:
        check_terms(self.terms)
        return self


class ValidationSection(Section):
    """Acceptance on ``prompts`` held-out prompts, measured with the decoder that serves."""

    every: PositiveInt = 100
    prompts: PositiveInt = 32
    prompt_tokens: PositiveInt = 48
    tokens: PositiveInt = 64
    k: PositiveInt = 5
    temperature: NonNegativeFloat = 1.0  # measured beside greedy; 0: greedy only


class HiddenStatesSection(Section):
    """The frozen target's hidden states over the training rows, stored at first use and read from then on."""

    folder: Path  # of this target and this data alone; several runs may share it
    max_bytes: PositiveInt | None = None  # of the whole folder; None: what is free on its disk
    taps: tuple[NonNegativeInt, ...] | None = None  # stored beside those that this run reads, for others


class CardSection(Section):
    """What the model cards say that the run does not know."""

    license: str | None = None  # an identifier of the Hub
    note: str | None = None  # a paragraph about the data


class _Models(Section):
    target: TargetSection
    heads: tuple[HeadSection, ...] = ()
    draft: DraftSection | None = None
    data: DataConfig
    batch: BatchSection = BatchSection()
    loss: LossSection = LossSection()


class TrainConfig(LoopSettings, _Models):
    """A whole run. In files its fields have this order: models and data, the loop, and the rest."""

    distributed: Literal["single", "ddp", "fsdp2"] = "single"
    device: str | None = None  # None: the accelerator if there is one
    hidden_states: HiddenStatesSection | None = None  # None: every step runs the target
    validation: ValidationSection = ValidationSection()
    loggers: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = ()
    card: CardSection = CardSection()
    output: Path

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.heads and self.draft is not None:
            raise ValueError("heads and draft: a run trains one or the other; give one of them")
        if not self.heads and self.draft is None and not self.target.is_trained:
            raise ValueError("nothing to train: give heads, a draft, or target.trained: true")
        if self.draft is not None and self.target.is_trained:
            raise ValueError("a draft model is trained on a frozen target; give target.path alone")
        self._check_hidden_states()
        self._check_joint()
        self._check_sources()
        for index, head in enumerate(self.heads):
            if head.path is not None and head.path.absolute().is_relative_to(self.output.absolute()):
                raise ValueError(
                    f"heads.{index}.path={head.path}: this run writes into {self.output}; give another output, so that "
                    "what it began with stays"
                )
        names = [head.directory for head in self.heads]
        duplicates = sorted({name for name in names if names.count(name) > 1})
        if duplicates:
            raise ValueError(f"heads of the same name {', '.join(duplicates)}: give each a name of its own")
        if self.heads and not self.target.is_trained and self.precision == "fp32" and self.target.dtype != "float32":
            raise ValueError(
                f"precision fp32 and target.dtype {self.target.dtype}: heads in float32 read hidden states in float32; "
                "give target.dtype float32, or precision bf16"
            )
        multiple = self.batch.accumulate * self.loss.rows
        if self.batch.rows % multiple:
            raise ValueError(
                f"batch.rows {self.batch.rows} is no multiple of {multiple}, batch.accumulate times loss.rows"
            )
        return self

    def _check_hidden_states(self) -> None:
        if self.hidden_states is None:
            return
        if self.target.is_trained:
            raise ValueError(
                "hidden_states: the target is trained, so its hidden states change in every step; leave hidden_states "
                "out, or freeze the target (target.trained: false)"
            )
        if any(isinstance(source, FeaturesSource) for source in self.data.sources):
            raise ValueError(
                "hidden_states: a source of kind features brings hidden states already; leave one of the two out"
            )

    def _check_joint(self) -> None:
        joint = self.target.joint
        if joint is None:
            return
        if not self.target.trained or self.target.path is None or not self.heads:
            raise ValueError(
                "target.joint trains a target that exists with its heads: give target.path, target.trained: true and "
                "heads, or leave target.joint out"
            )
        if self.target.layer_skip is not None:
            raise ValueError("target.joint and target.layer_skip: a run has one of these recipes; leave one out")
        if self.distributed == "fsdp2":
            raise ValueError(
                "target.joint with distributed=fsdp2: in the first stage the target has no gradients to shard; give ddp"
            )
        if joint.start >= self.schedule.steps:
            raise ValueError(
                f"target.joint.start={joint.start}: the second stage would begin after all {self.schedule.steps} of "
                "schedule.steps; give more steps, or begin earlier"
            )

    def _check_sources(self) -> None:
        """Raise ValueError for what cannot be trained with pairs, or with copied decoder layers."""
        pairs = [source.kind for source in self.data.sources if isinstance(source, PairsSource | SoundsSource)]
        copies = self.draft is not None and self.draft.layers is not None
        if not copies and not pairs:
            if self.target.source_dropout:
                raise ValueError(
                    f"target.source_dropout={self.target.source_dropout}: sources are those of pairs, and data has "
                    "none; leave it out, or give sources of kind pairs"
                )
            return
        if pairs and self.draft is not None and not copies:
            raise ValueError(
                f"data: sources of kind {pairs[0]} are pairs for an encoder-decoder, its draft heads, or a draft with "
                "its encoder; give draft.layers, or texts"
            )
        what = "draft.layers" if copies else "pairs"
        if self.hidden_states is not None:
            raise ValueError(
                f"hidden_states with {what}: the decoder reads the encoder's states, and stored ones are a decoder's "
                "alone; leave hidden_states out"
            )
        if self.distributed == "fsdp2":
            raise ValueError(
                f"{what} with distributed=fsdp2: keys and values of the encoder's states are made outside of the "
                "blocks that it shards; give ddp"
            )
        own = ValidationSection.model_fields["prompt_tokens"].default
        if self.validation.prompt_tokens != own:
            raise ValueError(
                f"validation.prompt_tokens={self.validation.prompt_tokens} with {what}: a validation decodes held-out "
                "sources from their start tokens; leave it out"
            )
        if self.target.source_dropout and not self.target.is_trained:
            raise ValueError(
                f"target.source_dropout={self.target.source_dropout}: the target is frozen; leave it out, or give "
                "trained: true"
            )

    @property
    def loop(self) -> LoopConfig:
        """The settings of the training loop."""
        shared = {name: getattr(self, name) for name in LoopSettings.model_fields}
        return LoopConfig(**shared, accumulate=self.batch.accumulate, validate_every=self.validation.every)
