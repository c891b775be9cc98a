"""The decode loop: the only one. Plain decoding, chains, trees and batches all run through ``step``."""

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager

import torch

from paceline.agreement import agree
from paceline.constraints.host import HostConstraints
from paceline.core.admission import Admission, Prefix, Prefixes
from paceline.core.batch import Batch
from paceline.core.cache import View
from paceline.core.context import Context, check_context
from paceline.core.guidance import GuidanceState
from paceline.core.host import integers
from paceline.core.noise import Noise
from paceline.core.ops import Ops
from paceline.core.plan import Plan
from paceline.core.request import Request
from paceline.core.scores import Scores
from paceline.core.stats import Stats
from paceline.core.step import StepPlan, StepResult, read_results
from paceline.core.tree import Outcome, Tree
from paceline.drafters.base import Drafter, DrafterContext, root_only
from paceline.drafters.guard import DraftGuard
from paceline.models.base import LM
from paceline.models.prefill import CHUNK
from paceline.models.scoring import PromptScorer, Reading, chunk_size
from paceline.models.target import Target
from paceline.verifiers.base import Verifier


class Decoder:
    """Fixed rows of tokens that a target extends, several tokens a step.

    ``rows`` sequences of at most ``max_length`` tokens, prompt included. Memory is taken once, here; ``guidance`` takes
    as many rows again, for the negative prompts of guided requests. ``ops`` (None: plain tensor operations) samples,
    appends and counts; ``noise`` None is that of ``ops``. Raises ValueError for a length beyond the target's context
    and for a drafter and verifier that have no draw in common.
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
        noise: Noise | None = None,
        ops: Ops | None = None,
    ) -> None:
        if rows < 1:
            raise ValueError(f"rows={rows}: give at least 1")
        if max_length > target.max_positions:
            raise ValueError(
                f"max_length={max_length} is beyond the target's context of {target.max_positions} tokens; "
                "shorten the prompts or lower max_tokens"
            )
        self.rows, depth = rows, plan.max_draft_tokens
        self.contexts: list[Context | None] = [None] * rows  # that rows were read with
        self.guidance = GuidanceState(rows, target.device) if guidance else None
        self.drafter, self.verifier, self.plan = drafter, verifier, plan
        self.batch = Batch(
            rows=rows,
            max_length=max_length,
            max_depth=depth,
            vocab_size=target.vocab_size,
            device=target.device,
            noise=noise,
            ops=ops,
        )
        self.guard = DraftGuard(drafter, self.batch, target.vocab_size)
        self.constraints = HostConstraints(batch=self.batch, replaces=drafter.accepts_other_tokens)
        capacity = max_length + drafter.max_nodes(depth)
        self.target = Target(
            lm=target, rows=rows, capacity=capacity, constraints=self.constraints, guidance=self.guidance
        )
        self.stats = Stats(rows, depth, target.device, ops)
        self.plain_rows: set[int] = set()  # of whose newest requests the drafter reads nothing, or nothing more
        self._taps_read = True  # in steps: not while all rows are plain
        drafter.start(
            DrafterContext(
                rows=rows,
                max_length=max_length,
                max_draft_tokens=depth,
                vocab_size=target.vocab_size,
                draw=agree(drafter, verifier),
                wants=verifier.wants,
                same_tokens=verifier.same_tokens,
                device=target.device,
                target=target,
                cache=self.target.cache,
                guidance=self.guidance,
                noise=noise,
                ops=ops,
            )
        )

    @property
    def taps(self) -> tuple[int, ...]:
        """The hidden states that the next step reads: those of the drafter, unless all rows are plain."""
        return self.drafter.taps if self._taps_read else ()

    @property
    def cache(self) -> View:
        """The target's, of all rows and layers."""
        return self.target.cache

    def step(self) -> None:
        """Draft, score, decide: every active row gains at least one token. Only constraints wait for the host."""
        with without_gradients():
            self.look_for_copies()
            plan = self.plan()
            self.begin_step(plan)
            tree = self.draft(plan)
            scores = self.score(tree)
            self.observe(tree, self.decide(tree, scores), scores)

    def look_for_copies(self) -> None:
        """Tell the plan what can be copied, which the next step's shape may depend on: it is fixed before the step."""
        if self.drafter.copies and self.plan.considers:
            self.plan.consider(self.drafter.offers(self.batch, self.plan.max_draft_tokens))

    def begin_step(self, plan: StepPlan) -> None:
        """What the host does for a step of the shape ``plan`` before its operations, which may be recorded."""
        self.batch.plan(plan.depths, plan.stop)
        if (given_up := self.plan.give_up()) and self.drafter.taps:
            self._note_running(given_up)
        if self.drafter.taps == self.taps or plan.max_depth:  # else it neither drafts nor is given anything
            self.drafter.begin_step(self.batch, plan)

    def draft(self, plan: StepPlan) -> Tree:
        """A tree of the plan's shape for every row, without nodes that constraints forbid; depth 0 asks no drafter."""
        if not plan.num_draft_tokens:
            return self.constraints.prune(root_only(self.batch))
        return self.constraints.prune(self.guard.check(self.drafter.propose(self.batch, plan), self.batch, plan))

    def score(self, tree: Tree) -> Scores:
        """The target's logits at every node of ``tree``, in one forward."""
        return self.target.score(tree, self.batch, self.taps)

    def decide(self, tree: Tree, scores: Scores) -> Outcome:
        """Accept what the verifier keeps of ``tree``, append it and commit it."""
        outcome = self.batch.extend(tree, self.verifier(tree, scores, self.batch), scores)
        self.target.commit(tree, outcome)
        self.stats.record(tree, outcome)
        return outcome

    def observe(self, tree: Tree, outcome: Outcome, scores: Scores) -> None:
        """Give the drafter the outcome of its tree, and of any step if it reads the target's hidden states."""
        if scores.unverified is not None:
            self.drafter.observe_unverified(tree, scores.unverified)
        if tree.max_depth or self.taps:
            self.drafter.observe(self.batch, tree, outcome, scores.hidden)

    def check(self, request: Request) -> None:
        """Raise ValueError if no row of this decoder could ever serve ``request``."""
        if request.guidance is not None and self.guidance is None:
            raise ValueError(
                f"guidance_scale={request.guidance.scale} needs a second row, and this decoder has none: make it with "
                "guidance=True"
            )
        check_context(self.target.lm.context_inputs, request.context)
        for context in (request.context, None if request.guidance is None else request.guidance.context):
            if context is not None:
                check_context(self.target.lm.context_inputs, context)
                self.drafter.check_context(context)
        for tokens in (request.tokens,) if request.guidance is None else (request.tokens, request.guidance.prompt):
            if len(tokens) + request.max_tokens > self.batch.max_length:
                raise ValueError(
                    f"prompt of {len(tokens)} tokens and max_tokens={request.max_tokens} exceed the limit of "
                    f"{self.batch.max_length} tokens; shorten the prompt or lower max_tokens"
                )
            if min(tokens) < 0 or max(tokens) >= self.target.lm.vocab_size:
                raise ValueError(
                    f"token ids {min(tokens)}..{max(tokens)} leave the target's vocabulary of "
                    f"{self.target.lm.vocab_size}; encode the prompt with the target's own tokenizer"
                )

    def admit(self, requests: Sequence[Request], rows: Sequence[int], prefixes: Prefixes = ()) -> None:
        """Put ``requests`` into free ``rows`` and read their prompts whole, but for the last token, the root.

        Raises ValueError, before any row is touched, for rows that do not fit the requests, what ``check`` refuses and
        a prefix that is not the request's; otherwise see ``begin``.
        """
        self._check_rows(requests, rows)
        for request, prefix in zip(requests, prefixes or [None] * len(rows), strict=True):
            self.check(request)
            self._check_prefix(request, prefix)
        reading = self.begin(requests, rows, prefixes)
        while not reading.done:
            self.read(reading)
        self.plan.admit(reading.admission.row_numbers, requests)
        self.prefill_drafter(reading)
        self.activate(reading)

    @torch.inference_mode()
    def begin(
        self, requests: Sequence[Request], rows: Sequence[int], prefixes: Prefixes = (), *, waiting: int = 0
    ) -> Reading:
        """Put ``requests`` into ``rows``, which take no part in steps until their prompts are read and they are active.

        What a request's entry of ``prefixes`` names is copied from the caches instead of being read; its row may be
        running, ended, or the request's own. Raises what a constraint of a request raises when it begins, before any
        row is touched. ``waiting`` others will soon begin beside them.
        """
        pairs = zip(prefixes or [None] * len(rows), rows, strict=True)
        given = [prefix or Prefix(row=row, length=0) for prefix, row in pairs]
        self.constraints.admit(rows, requests)
        reread = [prefix.length if prefix.row in self.plain_rows else 0 for prefix in given]
        unread = sum(len(request.tokens) for request in requests) - sum(prefix.length for prefix in given) + sum(reread)
        ready = {"reread": max(reread, default=0), "unread": unread, "waiting": waiting}
        plain = bool(self.drafter.taps) and not self.plan.drafts_for(rows, requests, **ready)
        if self.guidance is not None:
            self.guidance.assign(rows, [request.guidance for request in requests])
        self.batch.admit(rows, requests, active=False)
        admission = Admission(
            rows=rows,
            requests=requests,
            prefixes=[self._shortened(*pair, plain=plain) for pair in zip(given, requests, strict=True)],
            device=self.batch.device,
        )
        (self.plain_rows.update if plain else self.plain_rows.difference_update)(rows)
        self._note_running()
        for row, request in zip(rows, requests, strict=True):
            self.contexts[row] = request.context
        text = self.batch.tokens[admission.rows]
        wanted = [request.prompt_logprobs for request in requests if request.prompt_logprobs is not None]
        scorer = PromptScorer(text, top=max(wanted)) if wanted else None
        chunk = chunk_size(len(rows), self.target.lm.vocab_size) if wanted else CHUNK
        taps, last = () if plain else self.drafter.taps, self.drafter.last_states
        prompts = self.target.begin(admission, text, scorer, chunk, taps, last)
        self.stats.reset(admission.rows)
        return Reading(admission=admission, prompts=prompts, scorer=scorer)

    @torch.inference_mode()
    def read(self, reading: Reading) -> int:
        """Read the next chunk of prompts; the tokens that a row read at most."""
        return reading.prompts.read()

    @torch.inference_mode()
    def activate(self, reading: Reading) -> None:
        """Let rows whose prompts are read take part in steps."""
        self.batch.activate(reading.admission.rows)

    @torch.inference_mode()
    def prefill_drafter(self, reading: Reading) -> None:
        """Let the drafter read the prompts, which the target has read, or postpone that; plain rows begin empty."""
        admission, hidden = reading.admission, reading.prompts.hidden
        begin = self.drafter.prefill if self.plan.drafts_at_once else self.drafter.postpone
        if self.plain_rows.issuperset(admission.row_numbers):
            admission = admission.without_prefixes()
        begin(self.batch, admission, hidden)

    def release(self, rows: Sequence[int]) -> None:
        """Stop ``rows`` where they are. What they have read stays in the caches, as a prefix for others."""
        self.drafter.release(self.batch, rows)
        self.batch.release(rows)
        self.constraints.release(rows)
        self.plan.release(rows)
        self._note_running()
        if self.guidance is not None:
            self.guidance.assign(rows, [None] * len(rows))

    def results(self) -> StepResult:
        """What the last step did, in one transfer to the host."""
        batch = self.batch
        return read_results(
            integers(batch.results),
            rows=batch.rows,
            plan=StepPlan(self.plan.max_draft_tokens),
            num_logprobs=batch.num_logprobs,
            logprobs=batch.step_logprobs,
            failures=self.constraints.take_failures(),
        )

    def _check_rows(self, requests: Sequence[Request], rows: Sequence[int]) -> None:
        if not requests or len(set(rows)) != len(requests) or len(rows) != len(requests):
            raise ValueError(f"{len(requests)} requests for rows {list(rows)}: give each request a row of its own")
        if min(rows) < 0 or max(rows) >= self.rows:
            raise ValueError(f"rows {list(rows)}: this decoder has rows 0 to {self.rows - 1}")

    def _check_prefix(self, request: Request, prefix: Prefix | None) -> None:
        if prefix is None or prefix.length == 0:
            return
        if not 0 <= prefix.row < self.rows:
            raise ValueError(f"prefix of row {prefix.row}: this decoder has rows 0 to {self.rows - 1}")
        held = int(self.target.cache.length[prefix.row])
        if not 0 <= prefix.length <= min(held, len(request.tokens) - 1):
            raise ValueError(
                f"prefix of {prefix.length} tokens: row {prefix.row} holds {held} and the prompt has "
                f"{len(request.tokens)}, of which the last is the root; give at most the smaller less that root"
            )
        if integers(self.batch.tokens[prefix.row, : prefix.length]) != list(request.tokens[: prefix.length]):
            raise ValueError(f"the first {prefix.length} tokens of row {prefix.row} are not those of the prompt")
        if self.contexts[prefix.row] != request.context:
            raise ValueError(f"row {prefix.row} was read with another context: give a prefix of a row with the same")

    def _note_running(self, given_up: Collection[int] = ()) -> None:
        self.plain_rows.update(given_up)
        running = {row for row, request in enumerate(self.batch.requests) if request is not None}
        self._taps_read = not running or not running <= self.plain_rows

    def _shortened(self, prefix: Prefix, request: Request, *, plain: bool) -> Prefix:
        """``prefix`` without the tokens that must be read: the last ones for some drafters, all to score a prompt, and
        those of which a drafter has read nothing and is to draft after.
        """
        unread = prefix.row in self.plain_rows and not plain
        most = len(request.tokens) - 1 - self.drafter.num_reread if request.prompt_logprobs is None else 0
        most = 0 if unread else most
        most = max(0, min(most, prefix.length - self.drafter.num_reread_of_prefix))
        return prefix if prefix.length <= most else Prefix(row=prefix.row, length=most)


def without_gradients() -> AbstractContextManager[None]:
    """Inference mode, which costs less per operation; the compiler traces only the plain way."""
    return torch.no_grad() if torch.compiler.is_compiling() else torch.inference_mode()
