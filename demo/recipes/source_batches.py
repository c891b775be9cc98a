"""Pairs of a source and its answer to train an encoder-decoder on: rows that hold both, and the task that reads them.

B rows, S tokens of a source, T of an answer, V vocabulary.
"""

from collections.abc import Sequence
from typing import final

import numpy as np
from edit_batches import END_OF_TEXT_ID, EditTokens
from tokenizers import Tokenizer
from torch import Tensor

from paceline.bench.editing import Edit
from paceline.models.native.encoder_decoder import EncoderDecoderLM
from paceline.train.batches import TrainBatch
from paceline.train.tasks.base import StepRandomness, Task, TaskOutput, sum_terms
from paceline.train.tasks.terms import next_token_term


def paired(edits: Sequence[Edit], tokenizer: Tokenizer, size: int) -> EditTokens:
    """The sources of ``edits`` in ``size`` tokens, and behind them a start token and the answers in as many.

    Both end with the end of text, which is also the start and fills up. Edits that are longer are left out.
    """
    encoded = [[tokenizer.encode(text).ids for text in (edit.prompt, edit.answer)] for edit in edits]
    fitting = [pair for pair in encoded if max(map(len, pair)) <= size]
    tokens = np.full((len(fitting), 2 * size + 1), END_OF_TEXT_ID, dtype=np.uint16)
    for row, (source, answer) in enumerate(fitting):
        tokens[row, : len(source)] = source
        tokens[row, size + 1 : size + 1 + len(answer)] = answer
    starts = np.full(len(fitting), size + 1, dtype=np.int64)
    return EditTokens(tokens=tokens, starts=starts, ends=starts + [len(answer) for _, answer in fitting])


@final
class SourceToAnswer(Task):
    """Next-token prediction of answers, each given its source, in rows as ``paired`` makes them."""

    def __init__(self, *, model: EncoderDecoderLM, size: int) -> None:
        super().__init__()
        self.model, self.size = model.requires_grad_(True), size

    @property
    def frozen(self) -> None:
        return None

    def forward(self, batch: TrainBatch, randomness: StepRandomness) -> TaskOutput:
        """Cross-entropy of every token of an answer, with the end of text behind it."""
        answers = TrainBatch(tokens=batch.tokens[:, self.size :], learned=batch.learned[:, self.size :])
        return sum_terms([next_token_term("loss", self.logits(batch.tokens), answers)])

    def logits(self, tokens: Tensor) -> Tensor:
        """Of the answers [B, T, V] of whole rows [B, S + T + 1]."""
        source, answer = tokens[:, : self.size], tokens[:, self.size :]
        length = (source != END_OF_TEXT_ID).sum(1) + 1
        states = self.model.encode_inputs(source, length)
        logits = self.model.causal(answer[:, :-1], source=self.model.source_of(states, length)).logits
        assert logits is not None
        return logits
