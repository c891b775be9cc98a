"""Classifier-free guidance (2207.12598): an LM whose logits are those of two prompts, read side by side in one forward.

Whoever calls it sees R rows; it owns the R rows of the negative prompts. R rows, n nodes, V vocabulary, H hidden size.
"""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import final

import torch
from torch import Tensor

from paceline.core.admission import Admission, Prefix
from paceline.core.batch import Batch
from paceline.core.cache import SlotCache, View
from paceline.core.guidance import GuidanceState
from paceline.core.request import Request
from paceline.core.tree import Resume, Tree
from paceline.models.base import LM, FusedDrafting, LogitsFor, Output, PendingInputs, SharedLayers
from paceline.models.prefill import prefill
from paceline.models.wrapped import WrappedLM


@final
class GuidedView(View):
    """A view of R rows that moves the R rows of their negative prompts with it.

    ``both`` has R rows, one that nobody uses, and the R rows of the negative prompts.
    """

    def __init__(self, both: SlotCache, rows: int, state: GuidanceState) -> None:
        super().__init__(both.part(0, rows), None, tuple(range(both.num_layers)), None)
        self.both, self.state = both.view(), state
        self.negative = both.part(rows + 1, rows).view()
        # The last token of a negative prompt is read in place of the prompt's own, in the first step alone.
        self.last = torch.zeros(rows, dtype=torch.int64, device=both.length.device)
        self.fresh = torch.zeros(rows, dtype=torch.bool, device=both.length.device)

    def commit(self, num_committed: Tensor, path: Tensor | None = None) -> None:
        """As View.commit, in both."""
        super().commit(num_committed, path)
        if self.state.any:
            self.negative.commit(torch.where(self.state.guided, num_committed, 0), path)
            self.fresh.logical_and_(num_committed == 0)

    def clear(self, rows: Sequence[int]) -> None:
        """As View.clear, in both."""
        super().clear(rows)
        self.negative.clear(rows)

    def truncate(self, length: int | Tensor) -> None:
        """As View.truncate; the negative prompts' rows lose as many slots."""
        lost = self.length - length
        super().truncate(length)
        if self.state.any:
            self.negative.truncate(self.negative.length - torch.where(self.state.guided, lost, 0))


class GuidedLM(WrappedLM[LM], FusedDrafting):
    """``lm`` with guided rows, as ``state`` has them. Its ``hidden`` states are those of the prompts themselves.

    While no row is guided, calls go straight to ``lm``; so do those on views that are not of its own caches.
    """

    def __init__(self, lm: LM, state: GuidanceState) -> None:
        super().__init__(lm)
        self.state = state
        if isinstance(lm, FusedDrafting):
            self.fused_draws = lm.fused_draws

    @property
    def slot_bytes(self) -> int:
        return 2 * self.lm.slot_bytes

    def new_view(self, rows: int, capacity: int) -> GuidedView:
        """All of ``rows`` rows and their negative prompts, each of ``capacity`` slots."""
        return GuidedView(self.lm.new_cache(2 * rows + 1, capacity), rows, self.state)

    def admit(self, cache: View, admission: Admission) -> View:
        """As the LM; the negative prompts of guided rows are read whole."""
        view = self.lm.admit(cache, admission)
        if isinstance(cache, GuidedView):
            self._read_negative(cache, admission)
        return view

    def _read_negative(self, cache: GuidedView, admission: Admission) -> None:
        """Read the negative prompts of the admitted rows that are guided, but for their last tokens."""
        cache.fresh[admission.rows] = False
        negative = _negative(admission)
        if negative is None:
            return
        prompts = [list(request.tokens) for request in negative.requests]
        longest = max(map(len, prompts))
        padded = torch.tensor([[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts], device=self.device)
        view = self.lm.admit(cache.negative, negative)
        prefill(self.lm, view, padded, negative.known, negative.unread, taps=())
        cache.last[negative.rows] = padded.gather(1, negative.known[:, None])[:, 0]
        cache.fresh[negative.rows] = True

    def __call__(
        self,
        tree: Tree,
        cache: View,
        *,
        start: int = 0,
        taps: Sequence[int] = (),
        logits_for: LogitsFor = LogitsFor.ALL,
        resume: Resume | None = None,
        last_states: int | None = None,
    ) -> Output:
        """As LM: one forward for both prompts. ``conditional`` holds the logits of the prompts themselves."""
        read = {"taps": taps, "logits_for": logits_for, "last_states": last_states}
        if not self.state.any or not isinstance(cache, GuidedView):
            return self.lm(tree, cache, start=start, resume=resume, **read)
        both, rows = self._both(tree, cache, start), len(tree.tokens)
        resume = None if resume is None else _only_first(resume)
        output = self.lm(both, cache.both, start=start, resume=resume, **read)
        hidden = {tap: states[:rows] for tap, states in output.hidden.items()}
        if output.logits is None:
            return Output(None, hidden)
        own = output.logits[:rows]
        return Output(self.state.combine(own, output.logits[rows + 1 :]), hidden, conditional=own)

    def draft_fused(
        self,
        batch: Batch,
        cache: View,
        pending: PendingInputs,
        tokens: Tensor,
        valid: Tensor,
        *,
        greedy: bool,
        shared_layers: SharedLayers | None = None,
    ) -> bool:
        """By the LM itself while no row is guided."""
        if self.state.any or not isinstance(self.lm, FusedDrafting):
            return False
        return self.lm.draft_fused(batch, cache, pending, tokens, valid, greedy=greedy, shared_layers=shared_layers)

    def _both(self, tree: Tree, cache: GuidedView, start: int) -> Tree:
        """``tree`` [R], a row that is not valid, and ``tree`` again for the negative prompts of guided rows."""

        def twice(values: Tensor) -> Tensor:
            return torch.cat((values, values[:1], values))

        rows = {
            field.name: twice(value)
            for field in fields(Tree)
            if field.name != "probs" and isinstance(value := getattr(tree, field.name), Tensor)
        }
        tokens = tree.tokens
        if start == 0:
            first = torch.where(cache.fresh, cache.last, tokens[:, 0])
            rows["tokens"] = torch.cat((tokens, tokens[:1], torch.cat((first[:, None], tokens[:, 1:]), dim=1)))
        nobody = torch.zeros_like(tree.valid[:1])
        rows["valid"] = torch.cat((tree.valid, nobody, tree.valid & self.state.guided[:, None]))
        return replace(tree, **rows, probs=None, resume=None)


def _negative(admission: Admission) -> Admission | None:
    """The negative prompts of those rows of ``admission`` that are guided, as requests of their own; None without."""
    rows: list[int] = []
    requests: list[Request] = []
    for row, request in zip(admission.row_numbers, admission.requests, strict=True):
        if (guidance := request.guidance) is not None:
            rows.append(row)
            context = request.context if guidance.context is None else guidance.context
            requests.append(Request(tokens=guidance.prompt, max_tokens=request.max_tokens, context=context))
    if not rows:
        return None
    empty = [Prefix(row=row, length=0) for row in rows]
    return Admission(rows=rows, requests=requests, prefixes=empty, device=admission.rows.device)


def _only_first(resume: Resume) -> Resume:
    """``resume`` for the prompts' own rows; the others have not passed its layers."""
    rows = len(resume.hidden) + 1
    hidden = torch.cat((resume.hidden, resume.hidden.new_zeros(rows, *resume.hidden.shape[1:])))
    ready = torch.cat((resume.ready, resume.ready.new_zeros(rows, resume.ready.shape[1])))
    return Resume(layer=resume.layer, hidden=hidden, ready=ready, first=0)
