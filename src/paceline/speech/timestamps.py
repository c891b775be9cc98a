"""The rules of timestamps, as a constraint: which tokens may follow at every node of a draft, by the path to it.

The rules are those of transformers' ``WhisperTimeStampLogitsProcessor``, and their order: after suppressed tokens,
before temperatures. V vocabulary.
"""

from collections.abc import Sequence
from typing import final

from torch import Tensor

from paceline.core.constraint import Constraint, Processor
from paceline.core.request import NEVER
from paceline.speech.checkpoint import Checkpoint


@final
class Timestamps(Constraint):
    """Timestamps open the output, come in pairs or end it, and do not fall."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def begin(self, prompt: Sequence[int]) -> Processor:
        """Only what follows ``prompt`` is looked at."""
        return _Rules(self._checkpoint, len(prompt))


class _Rules(Processor):
    def __init__(self, checkpoint: Checkpoint, num_prompt: int) -> None:
        self._num_prompt = num_prompt
        self._first, self._eos = checkpoint.first_timestamp, checkpoint.eos
        self._no_timestamps = checkpoint.no_timestamps
        self._by_probability = checkpoint.by_probability
        most = checkpoint.max_initial_timestamp
        self._end = None if most is None else self._first + most + 1  # of those that may open the output

    def process(self, tokens: Tensor, logits: Tensor) -> Tensor:
        """See Processor; ``logits`` are changed in place."""
        first, output = self._first, tokens[self._num_prompt :].tolist()
        logits[self._no_timestamps] = NEVER
        if output:
            self._mask_pairs(output, logits)
        else:
            logits[:first] = NEVER
            if self._end is not None:
                logits[self._end :] = NEVER
        if self._by_probability:
            # In float32 and in this form, as transformers: which side of a near tie is taken depends on it.
            logprobs = logits.float().log_softmax(-1)
            if bool(logprobs[first:].logsumexp(-1) > logprobs[:first].max()):
                logits[:first] = NEVER
        return logits

    def _mask_pairs(self, output: list[int], logits: Tensor) -> None:
        first = self._first
        last_is = output[-1] >= first
        opened = len(output) < 2 or output[-2] >= first  # the last timestamp, if it is one, opens a segment
        if last_is and opened:
            logits[first:] = NEVER
        elif last_is:
            logits[: self._eos] = NEVER
        latest = next((token for token in reversed(output) if token >= first), None)
        if latest is not None:
            # One that closes a segment may open the next; otherwise none is given twice.
            least = latest if last_is and not opened else latest + 1
            logits[first:least] = NEVER
