"""A second, smaller language model drafts a chain with a cache of its own.

B rows, k draft tokens, V the target's vocabulary.
"""

from typing import final

import torch
from torch import Tensor

from paceline.core.admission import Admission
from paceline.core.batch import Batch
from paceline.core.noise import Stream
from paceline.core.plan import StepPlan
from paceline.core.tree import Draw, NoDraft, Outcome, Tree
from paceline.drafters.base import Drafter, Setting
from paceline.models.base import LM, Head, Output, longest_text
from paceline.models.prefill import feed, prefill

ORDINARY_LAG = 2  # the root, and the last drafted token when the whole draft was accepted
CATCH_UP = (8, 64, 256)  # chunk sizes for rows that fell behind


@final
class ModelDrafter(Drafter):
    """A second, smaller language model with the target's vocabulary and a cache of its own.

    Vocabulary sizes may differ by padding at the end, which is cut or filled. Its cache commits the root itself, so
    after an ordinary step it lags by the root and, when the whole draft was accepted, by the last drafted token, which
    it never read. A row that outgrows the draft's context drafts no more.
    """

    origins = ("model",)

    def __init__(self, *, lm: LM, draws: frozenset[Draw] = frozenset({Draw.SHARED, Draw.IID, Draw.FIXED})) -> None:
        self.lm = lm
        self.draws = draws

    @property
    def slot_bytes(self) -> int:
        return self.lm.slot_bytes

    def start(self, setting: Setting) -> None:
        """A cache for the longest text that both the target's rows and the draft's context allow."""
        self.setting = setting
        ahead = max(ORDINARY_LAG, setting.max_draft_tokens)
        self.reach = longest_text(self.lm, num_nodes=ahead)
        if self.reach < 1:
            raise ValueError(
                f"{setting.max_draft_tokens} draft tokens leave no room in the {self.lm.max_slots} slots of the "
                "draft model's window: lower num_draft_tokens"
            )
        self.cache = self.lm.new_cache(setting.rows, min(setting.max_length, self.reach) + ahead).view()
        self.lag = ORDINARY_LAG  # host's bound on the tokens that any row has yet to read, the root included

    def prefill(self, batch: Batch, admission: Admission, hidden: dict[int, Tensor]) -> None:
        """Read the prompts up to their roots, each from where its own cache ends."""
        storage, known = self.cache.storage, admission.known.clamp(max=self.reach)
        view = storage.begin(admission, torch.minimum(admission.forked, storage.length[admission.source]))
        # Its cache may hold less of a prefix than the target's; how much less is not known on the host.
        unread = int((known - view.length).max()) if admission.longest_forked else admission.unread
        text = self._readable(batch)[admission.rows]
        prefill(self.lm, view, text, known, min(unread, self.reach), taps=())

    def propose(self, batch: Batch, plan: StepPlan) -> Tree:
        """A chain [B, k + 1], each token drawn as the verifier asked."""
        if plan.num_draft_tokens == 0:
            return Tree.make_chain(batch.root[:, None], batch.active[:, None], blame=NoDraft.OFF)
        draw = self.setting.draw
        logits = self._read_text(batch)
        room = torch.minimum(batch.draft_room, self.reach - batch.length + 1)
        room = torch.where(batch.active, room, 0)
        index = torch.arange(plan.num_draft_tokens, device=batch.device)
        valid = index < room[:, None]  # [B, k]
        tokens, laws = [], []
        for lane in range(plan.num_draft_tokens):
            if lane > 0:
                chain = Tree.make_chain(torch.stack(tokens, dim=1), valid[:, :lane])
                output = self.lm(chain, self.cache, start=lane - 1)
                logits = output.logits
            token, law = self._draw(batch, logits, lane, draw)
            tokens.append(token)
            laws.append(law)
        return Tree.make_chain(
            torch.cat((batch.root[:, None], torch.stack(tokens, dim=1)), dim=1),
            torch.cat((batch.active[:, None], valid), dim=1),
            draw=draw,
            laws=torch.stack(laws, dim=1) if draw is Draw.IID else None,
            blame=NoDraft.CONTEXT,
        )

    def observe(self, batch: Batch, tree: Tree, outcome: Outcome, output: Output) -> None:
        """Keep what was accepted of what it read: all but the last drafted token."""
        if tree.max_depth == 0:
            self.lag += 1
            return
        read = tree.max_depth - 1
        self.cache.commit((outcome.num_committed - 1).clamp(0, read))
        self.lag = ORDINARY_LAG

    def _draw(self, batch: Batch, logits: Tensor | None, lane: int, draw: Draw) -> tuple[Tensor, Tensor]:
        """One token [B] for the position ``lane`` beyond the text, and its law [B, V] if drawn from one."""
        assert logits is not None
        position = batch.length[:, None] + lane
        logits = batch.allowed(self._fit(logits), position)
        if draw is Draw.FIXED:
            return logits.argmax(-1)[:, 0], logits
        if draw is Draw.SHARED:
            return batch.pick(logits, position)[:, 0], logits
        scores = batch.sampling.warp(logits)
        token = batch.noise.choose(scores, batch.key(position, Stream.DRAFT, lane=lane + 1))
        return token[:, 0], scores.softmax(-1)[:, 0]

    def _read_text(self, batch: Batch) -> Tensor | None:
        """Read what the cache lacks up to the root; logits [B, 1, V'] after it."""
        text = self._readable(batch)
        while self.lag > ORDINARY_LAG:
            size = next((size for size in CATCH_UP if size >= self.lag - ORDINARY_LAG), CATCH_UP[-1])
            # The root is left for the call below, which wants the logits after it.
            feed(self.lm, self.cache, text, (self._missing(batch) - 1).clamp(0, size), size)
            self.lag -= size
        return feed(self.lm, self.cache, text, self._missing(batch), ORDINARY_LAG, head=Head.LAST).logits

    def _missing(self, batch: Batch) -> Tensor:
        """Known tokens not yet read [B]; none for inactive rows and beyond the draft's context."""
        missing = batch.length.clamp(max=self.reach) - self.cache.length
        return torch.where(batch.active, missing, 0)

    def _readable(self, batch: Batch) -> Tensor:
        """The text [B, T], ids that only the target's padded vocabulary has replaced by the draft's last."""
        return batch.tokens[:, : batch.max_length].clamp(max=self.lm.vocab_size - 1)

    def _fit(self, logits: Tensor) -> Tensor:
        """Logits over the draft's vocabulary to the target's: cut, or filled with -inf."""
        short = self.setting.vocab_size - logits.shape[-1]
        return torch.nn.functional.pad(logits, (0, short), value=-torch.inf) if short else logits
