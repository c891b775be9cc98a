"""Tasks that train a language model: next-token prediction, and distillation of a draft model.

B rows, T inputs of a row, V vocabulary.
"""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from paceline.models.base import Output
from paceline.models.native.decoder import DecoderLM
from paceline.models.native.encoder_decoder import EncoderDecoderLM
from paceline.train.batches import TrainBatch
from paceline.train.tasks.base import StepRandomness, Task, TaskOutput, sum_terms
from paceline.train.tasks.layer_skip import LayerSkip
from paceline.train.tasks.losses import DistillationLoss
from paceline.train.tasks.sources import encoded, source_of, without_sources
from paceline.train.tasks.terms import LossTerm, distillation_term, input_segments, learned_mask, next_token_term


@final
class NextToken(Task):
    """Next-token prediction on the data, optionally with the LayerSkip recipe."""

    def __init__(self, *, model: DecoderLM, layer_skip: LayerSkip | None = None, source_dropout: float = 0.0) -> None:
        super().__init__()
        self.model = model.requires_grad_(True)
        self.layer_skip, self.source_dropout = layer_skip, source_dropout

    @property
    def frozen(self) -> None:
        return None

    def forward(self, batch: TrainBatch, randomness: StepRandomness) -> TaskOutput:
        """Cross-entropy of every learned next token, and of the early exits of ``layer_skip``."""
        randomness.seed_device()
        batch = without_sources(batch, randomness, self.source_dropout if self.training else 0.0)
        return sum_terms([trained_forward("loss", self.model, batch, randomness, (), self.layer_skip)[1]])


@final
class Distillation(Task):
    """A draft model trained on its target's distributions.

    One with a decoder alone reads the states of the encoder of its target, which is run once for both and not trained;
    neither is the embedding where the encoder has it too.
    """

    def __init__(self, *, target: DecoderLM, draft: DecoderLM, loss: DistillationLoss) -> None:
        super().__init__()
        self.draft = draft.requires_grad_(True)
        if isinstance(draft, EncoderDecoderLM) and draft.encodes_tokens:
            draft.embed.requires_grad_(False)
        self._target = (target,)  # in a tuple, so that it is not a submodule
        self.loss = loss
        self.draft_ids: Tensor | None = None  # [D] what it drafts once it is trained, of all tokens; None: all

    @property
    def frozen(self) -> DecoderLM:
        return self._target[0]

    def forward(self, batch: TrainBatch, randomness: StepRandomness) -> TaskOutput:
        """The distillation loss at every position whose next token is learned."""
        with torch.no_grad():
            states = encoded(self.frozen, batch)
            target = _frozen_logits(self.frozen, batch, states)
        randomness.seed_device()
        draft = _logits(self.draft, batch, states)
        position = torch.arange(draft.shape[1], device=draft.device).expand(draft.shape[:2])[..., None]
        weight = learned_mask(batch).float()[..., None]
        return sum_terms([distillation_term("draft", self.loss, draft[:, :, None], target, position, weight, batch)])


def next_token_output(model: DecoderLM, batch: TrainBatch) -> TaskOutput:
    """Cross-entropy of every learned next token, with all layers."""
    return sum_terms([next_token_term("loss", _logits(model, batch, encoded(model, batch)), batch)])


def trained_forward(
    name: str,
    model: DecoderLM,
    batch: TrainBatch,
    randomness: StepRandomness,
    taps: Sequence[int],
    layer_skip: LayerSkip | None,
) -> tuple[Output, LossTerm]:
    """The forward pass and loss of a model that is trained on the data. Only training mode skips layers."""
    weights = {model.num_layers: 1.0} if layer_skip is None else layer_skip.weights(randomness.step)
    skipped = None
    if layer_skip is not None and model.training:
        stream = randomness.for_target()
        skipped = layer_skip.skipped(randomness.step, [stream.generator(row) for row in range(len(batch.tokens))])
    output = model.causal(
        batch.tokens[:, :-1],
        taps=sorted({*taps, *weights}),
        segment=input_segments(batch),
        skipped=None if skipped is None else skipped.to(batch.tokens.device),
        source=source_of(model, batch, encoded(model, batch)),
    )
    assert output.logits is not None
    if layer_skip is None:
        return output, next_token_term(name, output.logits, batch)
    return output, layer_skip.loss(name, model, output.logits, output.hidden, batch, weights)


def _frozen_logits(model: DecoderLM, batch: TrainBatch, states: Tensor | None) -> Tensor:
    """Of hidden states that came with the batch, else of a forward pass."""
    if batch.hidden is not None and model.num_layers in batch.hidden:
        return model.compute_logits(batch.hidden[model.num_layers].to(model.dtype))
    return _logits(model, batch, states)


def _logits(model: DecoderLM, batch: TrainBatch, states: Tensor | None = None) -> Tensor:
    source = source_of(model, batch, states)
    logits = model.causal(batch.tokens[:, :-1], segment=input_segments(batch), source=source).logits
    assert logits is not None
    return logits
