"""The decode loop: the only one. Plain decoding, chains, trees and batches all run through ``step``.

Knows nothing of text, files or clocks.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch

from paceline.constraints.host import HostConstraints
from paceline.core.admission import Admission, Prefix
from paceline.core.batch import Report
from paceline.core.clock import Clock, NoClock, Phase
from paceline.core.host import integers, table
from paceline.core.parts import Parts
from paceline.core.plan import Plan, StepPlan
from paceline.core.request import Request
from paceline.core.tree import Draw
from paceline.drafters.base import Drafter, DrafterContext
from paceline.models.base import LM, Head
from paceline.models.prefill import prefill
from paceline.verifiers.base import Verifier


class Decoder:
    """Fixed rows of text that a target extends, several tokens a step.

    ``rows`` texts of at most ``max_length`` tokens, prompt included. Memory is taken once, here; ``guidance`` takes as
    many rows again, for the second prompts of requests that are guided. Raises ValueError for a length beyond the
    target's context and for a drafter and verifier that have no draw in common.
    """

    def __init__(
        self,
        *,
        target: LM,
        drafter: Drafter,
        verifier: Verifier,
        plan: Plan,
        rows: int,
        max_length: int,
        guidance: bool = False,
        parts: Parts | None = None,
        clock: Clock | None = None,
    ) -> None:
        if rows < 1:
            raise ValueError(f"rows={rows}: give at least 1")
        if max_length > target.max_positions:
            raise ValueError(
                f"max_length={max_length} is beyond the target's context of {target.max_positions} tokens; "
                "shorten the prompts or lower max_tokens"
            )
        depth, parts = plan.max_draft_tokens, parts or Parts()
        self.rows, self.guidance = rows, guidance
        rows = 2 * rows if guidance else rows
        self.target, self.drafter, self.verifier, self.plan = target, drafter, verifier, plan
        self.batch = parts.batch(
            rows=rows,
            max_length=max_length,
            max_depth=depth,
            vocab_size=target.vocab_size,
            noise=parts.noise,
            device=target.device,
        )
        self.lane = HostConstraints(batch=self.batch, replaces=drafter.accepts_other_tokens)
        self.clock = clock or NoClock()
        self.cache = target.new_cache(rows, max_length + drafter.max_nodes(depth)).view()
        self.stats = parts.stats(rows, depth, target.device)
        drafter.start(
            DrafterContext(
                rows=rows,
                max_length=max_length,
                max_draft_tokens=depth,
                vocab_size=target.vocab_size,
                draw=agree(drafter, verifier),
                device=target.device,
                target=target,
                cache=self.cache,
            )
        )

    @torch.inference_mode()
    def admit(
        self, requests: Sequence[Request], rows: Sequence[int], prefixes: Sequence[Prefix | None] | None = None
    ) -> None:
        """Put ``requests`` into free ``rows`` and read their prompts but for the last token, the root.

        What a request's entry of ``prefixes`` names is copied from the caches instead of being read again; its row may
        be running, ended, or the request's own. Raises ValueError, before any row is touched, for rows that do not fit
        the requests, a prompt and max_tokens that exceed ``max_length``, tokens outside the target's vocabulary, and a
        prefix that is not the request's; and what a rule of a request raises when it begins.
        """
        self._check(requests, rows)
        given = prefixes or [None] * len(rows)
        known = [prefix or Prefix(row=row, length=0) for prefix, row in zip(given, rows, strict=True)]
        for request, prefix in zip(requests, known, strict=True):
            self._check_prefix(request, prefix)
        known = [self._less(prefix, request) for request, prefix in zip(requests, known, strict=True)]
        self.lane.admit(rows, requests)
        if any(request.guidance for request in requests):
            rows, requests, known = self._with_seconds(rows, requests, known)
        self.batch.admit(rows, requests)
        admission = Admission(
            rows=list(rows), prefixes=known, lengths=[len(r.tokens) for r in requests], device=self.batch.device
        )
        view = self.cache.storage.begin(admission, admission.prefix_length)
        text = self.batch.tokens[admission.rows]
        hidden = prefill(self.target, view, text, admission.known, admission.unread, self.drafter.taps)
        self.drafter.prefill(self.batch, admission, hidden)
        self.stats.reset(admission.rows)

    def release(self, rows: Sequence[int]) -> None:
        """Stop ``rows`` where they are. What they have read stays in the caches, as a prefix for others."""
        self.batch.release([*rows, *(row + self.rows for row in rows)] if self.guidance else rows)
        self.lane.release(rows)

    def step(self) -> None:
        """Draft, score, verify, commit: every active row gains at least one token. Only rules wait for the host."""
        with without_gradients():
            self.run(self.plan(self.stats))

    def run(self, plan: StepPlan) -> None:
        """A step of the shape that ``plan`` chose: one sequence of operations for each plan, flags and host state."""
        with without_gradients():
            guiding = self.batch.guiding
            tree = self.lane.look(self.drafter.propose(self.batch, plan))
            tree = guiding.copy_draft(tree, self.batch.root)
            self.clock.mark(Phase.DRAFT)
            output = self.target(tree, self.cache, taps=self.drafter.taps, head=Head.ALL, resume=tree.resume)
            assert output.logits is not None
            self.clock.mark(Phase.TARGET)
            logits = self.batch.process_tree(output.logits, tree)
            tree, logits = self.lane.process(tree, logits)
            outcome = guiding.copy_outcome(self.verifier(tree, logits, self.batch))
            self.clock.mark(Phase.VERIFY)
            outcome = self.batch.extend(tree, outcome)
            self.lane.settle(outcome)
            self.cache.commit(outcome.num_committed, None if tree.chain else outcome.path)
            self.drafter.observe(self.batch, tree, outcome, output)
            self.stats.record(tree, outcome)
            self.batch.record_logprobs(outcome, output.logits, logits)
            self.clock.mark(Phase.REST)

    def _check(self, requests: Sequence[Request], rows: Sequence[int]) -> None:
        if not requests or len(set(rows)) != len(requests) or len(rows) != len(requests):
            raise ValueError(f"{len(requests)} requests for rows {list(rows)}: give each request a row of its own")
        if min(rows) < 0 or max(rows) >= self.rows:
            raise ValueError(f"rows {list(rows)}: this decoder has rows 0 to {self.rows - 1}")
        for request in requests:
            self.check(request)

    def _with_seconds(
        self, rows: Sequence[int], requests: Sequence[Request], prefixes: Sequence[Prefix]
    ) -> tuple[list[int], list[Request], list[Prefix]]:
        """And the rows, requests and prefixes of what guides them."""
        seconds = [(row + self.rows, r.second) for row, r in zip(rows, requests, strict=True) if r.second is not None]
        return (
            [*rows, *(row for row, _ in seconds)],
            [*requests, *(request for _, request in seconds)],
            [*prefixes, *(Prefix(row=row, length=0) for row, _ in seconds)],
        )

    def check(self, request: Request) -> None:
        """Raise ValueError if no row of this decoder could ever serve ``request``."""
        if request.guidance is not None and not self.guidance:
            raise ValueError(
                f"guidance_scale={request.guidance.scale} needs a second row, and this decoder has none: make it with "
                "guidance=True"
            )
        if request.second is not None:
            self.check(request.second)
        if len(request.tokens) + request.max_tokens > self.batch.max_length:
            raise ValueError(
                f"prompt of {len(request.tokens)} tokens and max_tokens={request.max_tokens} exceed the limit of "
                f"{self.batch.max_length} tokens; shorten the prompt or lower max_tokens"
            )
        if min(request.tokens) < 0 or max(request.tokens) >= self.target.vocab_size:
            raise ValueError(
                f"token ids {min(request.tokens)}..{max(request.tokens)} leave the target's vocabulary of "
                f"{self.target.vocab_size}; encode the prompt with the target's own tokenizer"
            )

    def _check_prefix(self, request: Request, prefix: Prefix) -> None:
        if prefix.length == 0:
            return
        if not 0 <= prefix.row < self.rows:
            raise ValueError(f"prefix of row {prefix.row}: this decoder has rows 0 to {self.rows - 1}")
        held = int(self.cache.length[prefix.row])
        if not 0 <= prefix.length <= min(held, len(request.tokens) - 1):
            raise ValueError(
                f"prefix of {prefix.length} tokens: row {prefix.row} holds {held} and the prompt has "
                f"{len(request.tokens)}, of which the last is the root; give at most the smaller less that root"
            )
        if integers(self.batch.tokens[prefix.row, : prefix.length]) != list(request.tokens[: prefix.length]):
            raise ValueError(f"the first {prefix.length} tokens of row {prefix.row} are not those of the prompt")

    def _less(self, prefix: Prefix, request: Request) -> Prefix:
        """``prefix`` without the tokens that the drafter must see read."""
        most = max(0, len(request.tokens) - 1 - self.drafter.num_reread)
        return prefix if prefix.length <= most else Prefix(row=prefix.row, length=most)

    def read(self) -> Report:
        """What the last step did, in one transfer to the host."""
        return Report(table(self.batch.report), self.batch.asked, self.batch.step_logprobs)


def without_gradients() -> AbstractContextManager[None]:
    """Inference mode, which costs less per operation; the compiler traces only the plain way."""
    return torch.no_grad() if torch.compiler.is_compiling() else torch.inference_mode()


def agree(drafter: Drafter, verifier: Verifier) -> Draw:
    """The draw that both can do, the verifier's favourite. Raises ValueError when there is none."""
    kind, rule = type(drafter).__name__, type(verifier).__name__
    if drafter.branches and not verifier.branches:
        raise ValueError(
            f"{rule} verifies chains and {kind} proposes trees; choose a verifier that follows trees, such as "
            "'coupled' or 'recursive'"
        )
    for draw in verifier.wants:
        if draw in drafter.draws:
            return draw
    have, want = (", ".join(d.name.lower() for d in sorted(ds)) for ds in (drafter.draws, verifier.wants))
    raise ValueError(
        f"{kind} draws {have} and {rule} takes {want}: nothing in common; choose the verifier 'coupled', which takes "
        "every draw"
    )
