"""The sequences of a batch with drafted tokens after them, as a drafter that drafts for another one sees them.

B rows, D tokens that may be drafted after a sequence, d tokens of a piece.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import final

import torch
from torch import Tensor

from paceline.core.admission import Admission
from paceline.core.batch import Batch
from paceline.core.request import Request
from paceline.drafters.base import DrafterContext


@final
class StageBatch:
    """A batch of its own for the rows of ``context``, whose drafts are at most ``max_depth`` tokens deep.

    Rows begin a step with the sequences of the outer batch, and are extended by up to D + 1 tokens each; afterwards
    those that the outer batch does not have are forgotten. Stop tokens end nothing here. What is drawn here shares no
    noise with the outer batch but the target's: it has a stage and steps of its own.
    """

    def __init__(self, context: DrafterContext, *, max_depth: int) -> None:
        self.batch = Batch(
            rows=context.rows,
            max_length=context.max_length,
            max_depth=max_depth,
            vocab_size=context.vocab_size,
            device=context.device,
            noise=context.noise,
            ops=context.ops,
            stage=next(context.stages),
        )
        self.start = torch.ones_like(self.batch.length)  # [B] tokens of the outer batch at the last ``begin``
        self.room = torch.zeros_like(self.start)  # [B] tokens that each row was to gain
        self._index = torch.arange(context.max_draft_tokens + 1, device=context.device)  # [D + 1]

    def admit(self, admission: Admission) -> None:
        """Rows begin with the prompts of ``admission``."""
        self.batch.admit(admission.row_numbers, [_of_stage(request) for request in admission.requests], active=False)
        self.start.index_copy_(0, admission.rows, self.batch.length[admission.rows])

    def release(self, rows: Sequence[int]) -> None:
        """As Batch.release."""
        self.batch.release(rows)

    def begin(self, outer: Batch, room: Tensor, *, spare: int = 1) -> None:
        """Take the sequences of ``outer``; each row is to gain ``room`` [B] tokens, and rows of 0 are idle.

        Rows may be drafted for up to ``room + spare - 1`` tokens: a drafter has a draft for every row that is not idle,
        and so reads all of them.
        """
        own = self.batch
        own.tokens.copy_(outer.tokens)
        own.length.copy_(outer.length)
        own.limit.copy_(outer.length + room + spare)
        # Numbers for D + 1 steps in each of the outer batch: those of a row depend on no neighbour.
        own.steps.copy_(outer.steps * len(self._index))
        own.finish.zero_()
        own.active.copy_(room > 0)
        self.start.copy_(outer.length)
        self.room.copy_(room)
        if own.processing.any_counts and own.processing.counts is not None and outer.processing.counts is not None:
            own.processing.counts.copy_(outer.processing.counts)

    def append(self, tokens: Tensor, count: Tensor) -> None:
        """Append the first ``count`` [B] of ``tokens`` [B, d] to each row."""
        own = self.batch
        index = torch.arange(tokens.shape[1], device=tokens.device)
        real = index < count[:, None]
        own.tokens.scatter_(1, torch.where(real, own.length[:, None] + index, own.max_length), tokens)
        own.processing.count(tokens, real)
        own.length.add_(count)

    def rest(self) -> None:
        """Let rows be idle that have gained what they were to."""
        self.batch.active.logical_and_(self.num_gained < self.room)

    @property
    def num_gained(self) -> Tensor:
        """Tokens of each row [B] since ``begin``."""
        return self.batch.length - self.start

    def gained(self, depth: int) -> tuple[Tensor, Tensor]:
        """The first ``depth`` tokens since ``begin`` [B, depth], and which there are and are wanted [B, depth]."""
        index = self._index[:depth]
        at = (self.start[:, None] + index).clamp(max=self.batch.max_length)
        return self.batch.tokens.gather(1, at), index < torch.minimum(self.num_gained, self.room)[:, None]

    def settle(self, outer: Batch) -> Tensor:
        """Forget the tokens that the extended ``outer`` does not have; the tokens [B] of each row that it has."""
        own, at = self.batch, self.start[:, None] + self._index
        known = at < torch.minimum(own.length, outer.length)[:, None]
        at = at.clamp(max=own.max_length)
        same = known & (own.tokens.gather(1, at) == outer.tokens.gather(1, at))
        own.length.copy_(torch.minimum(own.length, self.start + same.long().cumprod(-1).sum(-1)))
        return own.length

    def rewind(self, length: Tensor) -> None:
        """Forget the tokens from ``length`` [B] on."""
        for known in (self.batch.length, self.start):
            known.copy_(torch.minimum(known, length))


def _of_stage(request: Request) -> Request:
    """``request`` with what matters to a draft: its tokens, its sampling, and its logits processors."""
    return replace(
        request,
        processing=request.processors,
        stop_tokens=(),
        min_tokens=0,
        constraints=(),
        logprobs=None,
        keep_scores=False,
        prompt_logprobs=None,
        drafts=False,
        num_draft_tokens=0 if request.num_draft_tokens == 0 else None,
    )
