"""From a configuration to what the loop needs: target, what is trained, loss. Trains nothing, writes nothing."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from paceline.core.noise import split_seed
from paceline.draft_heads import DRAFT_HEADS
from paceline.draft_heads.base import DraftHead
from paceline.models import hub
from paceline.models.loading import load, read_config
from paceline.models.native.decoder import DecoderLM
from paceline.train.config import ConfigError, DraftSection, HeadSection, TargetSection, TrainConfig, describe
from paceline.train.init_weights import fresh
from paceline.train.layer_skip import LayerSkip
from paceline.train.losses import Comparison
from paceline.train.tasks import Distillation, Heads, NextToken, Task, Trained

DTYPES: Mapping[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model and what its config.json says."""

    lm: DecoderLM
    raw: dict[str, Any]
    folder: Path | None  # where it was read from; None: from scratch


def build_target(section: TargetSection, *, seed: int, device: torch.device) -> Model:
    """The target, in float32 where it learns. Raises ModelError."""
    dtype = torch.float32 if section.learns else DTYPES[section.dtype]
    return _model(section, dtype=dtype, seed=seed, device=device)


def build_draft(section: DraftSection, target: Model, *, seed: int, device: torch.device) -> Model:
    """The draft model. Raises ValueError for another vocabulary than the target's."""
    draft = _model(section, dtype=torch.float32, seed=seed, device=device)
    own, wanted = draft.lm.vocab_size, target.lm.vocab_size
    if own != wanted:
        raise ValueError(
            f"draft: a vocabulary of {own}, the target has {wanted}: laws can be compared over one alone; give it "
            f"vocab_size {wanted}"
        )
    return draft


def build_head(section: HeadSection, target: DecoderLM, *, seed: int, place: int) -> DraftHead:
    """The head at ``place`` of the list; its own parameters in float32. Raises ConfigError naming the field."""
    found: type[DraftHead] = DRAFT_HEADS.find(section.kind)
    try:
        config = found.Config.model_validate(section.config)
    except ValidationError as error:
        lines = describe(error, prefix=("heads", str(place), "config"))
        raise ConfigError("\n".join(lines)) from error
    generator = torch.Generator().manual_seed(split_seed(seed, place + 1))
    head = found.make(config, target, generator=generator)
    shared = {id(parameter) for parameter in target.parameters()}
    for parameter in head.parameters():
        if id(parameter) not in shared:
            parameter.data = parameter.data.float()
            parameter.requires_grad_(True)
    if section.weight == 0 and head.own_state():
        raise ConfigError(
            f"heads.{place}.weight=0: this head has weights of its own, which nothing would train; give it more than 0"
        )
    return head


def build_task(config: TrainConfig, target: Model, draft: Model | None) -> Task:
    """What is trained, with its loss."""
    comparison = Comparison(terms=config.loss.terms, chunk=config.loss.chunk)
    learning = [model.lm for model in (target if config.target.learns else None, draft) if model is not None]
    for lm in learning:
        lm.dropout = config.optimiser.dropout
    if draft is not None:
        return Distillation(target=target.lm, draft=draft.lm, comparison=comparison)
    if not config.heads:
        return NextToken(model=target.lm, layer_skip=_layer_skip(config, target.lm))
    heads = [
        Trained(
            name=section.called,
            head=build_head(section, target.lm, seed=config.seed, place=place),
            weight=section.weight,
            detach=section.detach,
            depth_weights=section.depth_weights,
        )
        for place, section in enumerate(config.heads)
    ]
    weight = config.target.weight if config.target.learns else None
    task = Heads(
        target=target.lm,
        heads=heads,
        comparison=comparison,
        text_weight=weight,
        rows=config.loss.rows,
        layer_skip=_layer_skip(config, target.lm),
    )
    if not task.trained():
        raise ValueError(
            "nothing to train: no head has weights of its own, and the target stands still; let it learn "
            "(target.trained: true), or give a head some (num_blocks: 1)"
        )
    return task


def _layer_skip(config: TrainConfig, target: DecoderLM) -> LayerSkip | None:
    section = config.target.layer_skip
    if section is None:
        return None
    return LayerSkip(section, num_layers=target.num_layers, num_steps=config.schedule.steps)


def _model(section: TargetSection | DraftSection, *, dtype: torch.dtype, seed: int, device: torch.device) -> Model:
    if section.path is not None:
        folder = hub.fetch(section.path, None) if hub.is_hub_id(section.path) else Path(section.path)
        return Model(lm=load(folder, dtype=dtype, device=device), raw=dict(read_config(folder)), folder=folder)
    raw = dict(section.config or {})
    return Model(lm=fresh(raw, seed).to(device), raw=raw, folder=None)
