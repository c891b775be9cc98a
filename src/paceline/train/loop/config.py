"""The settings of the training loop."""

from typing import Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from paceline.train.data.config import Section


class OptimiserSection(Section):
    """AdamW, or Muon for hidden matrices beside AdamW for the rest; only matrices have weight decay."""

    kind: Literal["adamw", "muon"] = "adamw"
    learning_rate: PositiveFloat
    muon_learning_rate: PositiveFloat | None = None  # of the matrices that Muon updates; None: learning_rate
    weight_decay: NonNegativeFloat = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    clip: PositiveFloat = 1.0  # largest norm of all gradients
    dropout: float = Field(default=0.0, ge=0, lt=1)  # of a model that is trained

    @model_validator(mode="after")
    def _rate_of_muon(self) -> Self:
        if self.muon_learning_rate is not None and self.kind != "muon":
            raise ValueError(
                f"muon_learning_rate={self.muon_learning_rate:g} with kind={self.kind}: Muon updates no matrix; give "
                "kind: muon, or leave muon_learning_rate out"
            )
        return self


class ScheduleSection(Section):
    """Linear warm-up, then a cosine to ``floor`` of the rate."""

    steps: PositiveInt
    warmup: NonNegativeInt = 100
    floor: float = Field(default=0.1, ge=0, le=1)


class CheckpointSection(Section):
    """When checkpoints are written, and how many of the last are kept."""

    every: PositiveInt = 100
    keep: PositiveInt = 2


class LoopSettings(Section):
    """What a run and its training loop both say."""

    optimiser: OptimiserSection
    schedule: ScheduleSection
    precision: Literal["bf16", "fp32"] = "bf16"
    ema: float | None = Field(default=None, gt=0, lt=1)  # decay of the moving average of the weights
    compile: bool = False
    checkpoints: CheckpointSection = CheckpointSection()
    log_every: PositiveInt = 20
    seed: int = Field(default=0, ge=0, lt=2**31)


class LoopConfig(LoopSettings):
    """The settings of the training loop."""

    accumulate: PositiveInt = 1
    validate_every: PositiveInt = 100
