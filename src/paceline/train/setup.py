"""Builds what a configuration describes: target, draft model, draft heads, and the task that trains them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from paceline.core.noise import split_seed
from paceline.draft_heads import DRAFT_HEADS
from paceline.draft_heads.base import DraftHead
from paceline.draft_heads.draft_vocab import most_frequent
from paceline.draft_heads.files import load_head
from paceline.models import hub
from paceline.models.copied_layers import copy_layers, smaller_config
from paceline.models.directory import is_hub_id, read_config
from paceline.models.loading import ModelError, load
from paceline.models.native.decoder import DecoderLM
from paceline.models.native.encoder_decoder import EncoderDecoderLM
from paceline.train.config import DraftSection, HeadSection, ModelSection, TargetSection, TrainConfig
from paceline.train.config_file import ConfigError, describe_errors
from paceline.train.data import PreparedData
from paceline.train.init_weights import random_model
from paceline.train.tasks import Distillation, DraftHeadTask, NextToken, Task, TrainedHead
from paceline.train.tasks.joint import Joint
from paceline.train.tasks.layer_skip import LayerSkip
from paceline.train.tasks.losses import DistillationLoss

DTYPES: Mapping[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model and its config.json."""

    lm: DecoderLM
    raw: dict[str, Any]
    folder: Path | None  # where it was read from; None: from scratch


def build_target(
    section: TargetSection, *, seed: int, device: torch.device, draft: DraftSection | None = None
) -> LoadedModel:
    """The target, in float32 if it is trained. Raises ModelError, also for one that ``draft`` cannot copy layers of."""
    dtype = torch.float32 if section.is_trained else DTYPES[section.dtype]
    found = _load(section, dtype=dtype, seed=seed, device=device)
    named = found.folder or "a model from scratch"
    if not isinstance(found.lm, EncoderDecoderLM):
        if draft is not None and draft.layers is not None:
            raise ModelError(
                f"draft.layers: {named} has no encoder, and the draft would share it: give draft.config or draft.path"
            )
        return found
    if draft is not None and draft.layers is None:
        raise ModelError(
            f"{named} is an encoder-decoder, for which only a draft of layers of its own decoder is trained: give "
            "draft.layers, such as [0, -1], or heads; or a decoder-only model"
        )
    if section.source_dropout and not found.lm.num_null:
        raise ModelError(
            f"target.source_dropout={section.source_dropout}: {named} reads no empty source: leave it out, or give a "
            "model that does, such as text_to_semantic"
        )
    return found


def build_draft(section: DraftSection, target: LoadedModel, *, seed: int, device: torch.device) -> LoadedModel:
    """The draft model. Raises ValueError if its vocabulary is not the target's, for layers that it has not, and for a
    draft vocabulary that it cannot have.
    """
    if section.vocab_size is not None:
        size, generated = target.lm.vocab_size, target.lm.num_generated
        if section.vocab_size > size or generated is not None:
            why = f"has {size} tokens; give less" if generated is None else f"never generates all of its {size}"
            raise ValueError(f"draft.vocab_size={section.vocab_size}: the target {why}, or leave it out")
    if section.layers is not None:
        return _copied(section.layers, target)
    draft = _load(section.model, dtype=torch.float32, seed=seed, device=device)
    if isinstance(draft.lm, EncoderDecoderLM):
        raise ModelError(
            f"draft: {draft.folder or 'a model from scratch'} is an encoder-decoder: give a decoder-only model"
        )
    size, target_size = draft.lm.vocab_size, target.lm.vocab_size
    if size != target_size:
        raise ValueError(
            f"draft: a vocabulary of {size}, the target has {target_size}: distributions are compared over the same "
            f"tokens; give it vocab_size {target_size}"
        )
    return draft


def build_head(section: HeadSection, target: DecoderLM, *, seed: int, index: int) -> DraftHead:
    """The head at ``index`` of the list; its own parameters in float32. Raises ConfigError naming the field."""
    begun = None if section.path is None else load_head(section.path, target, target_name="this run's target")
    kind: type[DraftHead] = type(begun) if begun is not None else DRAFT_HEADS.find(str(section.kind))
    fields = {} if begun is None else begun.config.model_dump()
    try:
        config = kind.Config.model_validate(fields | section.config)
    except ValidationError as error:
        raise ConfigError("\n".join(describe_errors(error, prefix=("heads", str(index), "config")))) from error
    generator = torch.Generator().manual_seed(split_seed(seed, index + 1))
    head = kind.make(config, target, generator=generator)
    if begun is not None:
        try:
            head.load_own_state(begun.own_state())
        except ValueError as error:
            raise ConfigError(f"heads.{index}.config does not fit the weights of {section.path}: {error}") from error
    for parameter in head.own_state().values():
        if parameter.is_floating_point():
            parameter.data = parameter.data.float()
            parameter.requires_grad_(True)
    if section.weight == 0 and head.own_state():
        raise ConfigError(
            f"heads.{index}.weight=0: this head has weights of its own, which nothing would train; give it more than 0"
        )
    return head


def build_task(config: TrainConfig, target: LoadedModel, draft: LoadedModel | None) -> Task:
    """The task, with its loss. Raises ValueError if it has nothing to train."""
    loss = DistillationLoss(terms=config.loss.terms, chunk=config.loss.chunk)
    for model in (target if config.target.is_trained else None, draft):
        if model is not None:
            model.lm.dropout = config.optimiser.dropout
    if draft is not None:
        return Distillation(target=target.lm, draft=draft.lm, loss=loss)
    section, layer_skip = config.target.layer_skip, None
    if section is not None:
        layer_skip = LayerSkip(section, num_layers=target.lm.num_layers, num_steps=config.schedule.steps)
    if not config.heads:
        return NextToken(model=target.lm, layer_skip=layer_skip, source_dropout=config.target.source_dropout)
    heads = [
        build_trained_head(head, target.lm, seed=config.seed, index=index) for index, head in enumerate(config.heads)
    ]
    joint = None
    if config.target.joint is not None:
        joint = Joint(config.target.joint, rate=config.optimiser.learning_rate, target=target.lm)
    task = DraftHeadTask(
        target=target.lm,
        heads=heads,
        loss=loss,
        target_weight=config.target.weight if config.target.is_trained else None,
        rows=config.loss.rows,
        layer_skip=layer_skip,
        joint=joint,
        source_dropout=config.target.source_dropout,
    )
    if not task.trained():
        raise ValueError(
            "nothing to train: no head has weights of its own, and the target is frozen; train it (target.trained: "
            "true), or give a head weights (num_blocks: 1)"
        )
    return task


def build_trained_head(section: HeadSection, target: DecoderLM, *, seed: int, index: int) -> TrainedHead:
    """The head at ``index`` of the list, with its share of the loss."""
    head = build_head(section, target, seed=seed, index=index)
    return TrainedHead(
        name=section.directory,
        head=head,
        is_new=section.path is None,
        weight=section.weight,
        detach=section.detach,
        depth_weights=head.config.depth_weights if section.depth_weights is None else section.depth_weights,
    )


def choose_draft_vocabs(task: Task, data: PreparedData, draft: DraftSection | None = None) -> None:
    """Give new heads with a draft vocabulary, and a ``draft`` model with one, the tokens that are most frequent in the
    training data (2503.01840, 2502.14856).
    """
    if isinstance(task, Distillation) and draft is not None and draft.vocab_size is not None:
        counts = torch.from_numpy(data.token_counts(task.frozen.vocab_size))
        task.draft_ids = most_frequent(counts, draft.vocab_size)
    if not isinstance(task, DraftHeadTask):
        return
    heads = [trained.head for trained in task.trained_heads if trained.is_new and trained.head.draft_ids is not None]
    if heads:
        counts = torch.from_numpy(data.token_counts(task.target.vocab_size))
        for head in heads:
            assert head.draft_ids is not None
            head.begin_vocab(most_frequent(counts, len(head.draft_ids)), task.target)


def _load(section: ModelSection, *, dtype: torch.dtype, seed: int, device: torch.device) -> LoadedModel:
    if section.path is not None:
        folder = hub.fetch(section.path, None) if is_hub_id(section.path) else Path(section.path)
        found = LoadedModel(lm=load(folder, dtype=dtype, device=device), raw=dict(read_config(folder)), folder=folder)
    else:
        raw = dict(section.config or {})
        found = LoadedModel(lm=random_model(raw, seed).to(device), raw=raw, folder=None)
    return found


def _copied(layers: Sequence[int], target: LoadedModel) -> LoadedModel:
    """The draft of ``layers`` of the decoder of ``target``."""
    lm = in_float32(target)
    try:
        draft = copy_layers(lm, layers)
    except ValueError as error:
        raise ModelError(f"draft.layers={error}") from error
    assert isinstance(target.lm, EncoderDecoderLM)
    draft.share_encoder(target.lm)
    return LoadedModel(lm=draft, raw=smaller_config(target.raw, draft.num_layers), folder=None)


def in_float32(target: LoadedModel) -> EncoderDecoderLM:
    """The encoder-decoder ``target``, from its files again unless it is loaded in float32."""
    lm = target.lm
    if lm.dtype != torch.float32:
        assert target.folder is not None
        lm = load(target.folder, dtype=torch.float32, device=lm.device)
    assert isinstance(lm, EncoderDecoderLM)
    return lm


def check_lengths(config: TrainConfig, longest: int) -> None:
    """Raise ValueError where rows or validations exceed the ``longest`` sequence that the target reads."""
    section = config.validation
    if config.batch.length > longest:
        raise ValueError(f"batch.length={config.batch.length}: the target reads {longest} tokens at most")
    paired = config.data.is_paired
    needed = section.prompt_tokens * (not paired) + section.tokens + section.k
    if paired and needed > longest:
        raise ValueError(
            f"validation: {section.tokens} tokens and {section.k} drafted ones exceed the {longest} that the target's "
            "decoder reads; lower tokens"
        )
    if needed > longest:
        raise ValueError(
            f"validation: {section.prompt_tokens} + {section.tokens} tokens and {section.k} drafted ones exceed the "
            f"{longest} that the target reads; lower prompt_tokens or tokens"
        )
    if section.prompt_tokens > config.batch.length and not paired:
        raise ValueError(
            f"validation.prompt_tokens={section.prompt_tokens}: prompts are prefixes of rows, whose batch.length is "
            f"{config.batch.length}"
        )
