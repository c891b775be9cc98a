"""The decode loop: the only one. Plain decoding, chains, trees and batches all run through ``step``.

Knows nothing of text, files or clocks.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch

from paceline.core.batch import Batch, Report, Request
from paceline.core.noise import Noise, Philox
from paceline.core.plan import Plan
from paceline.core.stats import Stats
from paceline.core.tree import Draw
from paceline.drafters.base import Drafter, Setting
from paceline.models.base import LM, Head
from paceline.models.prefill import prefill
from paceline.verifiers.base import Verifier


class Decoder:
    """Fixed rows of text that a target extends, several tokens a step.

    ``rows`` texts of at most ``max_length`` tokens, prompt included. Memory is taken once, here. Raises ValueError for
    a length beyond the target's context and for a drafter and verifier that have no draw in common.
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
        noise: Noise | None = None,
    ) -> None:
        if rows < 1:
            raise ValueError(f"rows={rows}: give at least 1")
        if max_length > target.max_positions:
            raise ValueError(
                f"max_length={max_length} is beyond the target's context of {target.max_positions} tokens; "
                "shorten the prompts or lower max_tokens"
            )
        depth = plan.max_draft_tokens
        self.target, self.drafter, self.verifier, self.plan = target, drafter, verifier, plan
        self.batch = Batch(
            rows=rows, max_length=max_length, max_depth=depth, noise=noise or Philox(), device=target.device
        )
        self.cache = target.new_cache(rows, max_length + drafter.max_nodes(depth)).view()
        self.stats = Stats(rows, depth, target.device)
        drafter.start(
            Setting(
                rows=rows,
                max_length=max_length,
                max_draft_tokens=depth,
                vocab_size=target.vocab_size,
                draw=agree(drafter, verifier),
                device=target.device,
            )
        )

    @torch.inference_mode()
    def admit(self, requests: Sequence[Request], rows: Sequence[int]) -> None:
        """Put ``requests`` into free ``rows`` and read their prompts but for the last token, the root.

        Raises ValueError, before any row is touched, for rows that do not fit the requests, a prompt and max_tokens
        that exceed ``max_length``, and tokens outside the target's vocabulary.
        """
        self._check(requests, rows)
        self.batch.admit(rows, requests)
        index = torch.tensor(list(rows), device=self.batch.device)
        longest = max(len(request.tokens) for request in requests)
        view = self.cache.storage.view(index)
        view.truncate(0)
        text, known = self.batch.tokens[index], self.batch.length[index] - 1
        hidden = prefill(self.target, view, text, known, longest - 1, self.drafter.taps)
        self.drafter.prefill(self.batch, index, longest, hidden)
        self.stats.reset(index)

    def step(self) -> None:
        """Draft, score, verify, commit: every active row gains at least one token. Nothing here waits for the host."""
        with without_gradients():
            plan = self.plan(self.stats)
            tree = self.drafter.propose(self.batch, plan)
            output = self.target(tree, self.cache, taps=self.drafter.taps, head=Head.ALL)
            assert output.logits is not None
            outcome = self.verifier(tree, output.logits, self.batch)
            outcome = self.batch.extend(tree, outcome)
            self.cache.commit(outcome.num_committed, None if tree.chain else outcome.path)
            self.drafter.observe(self.batch, tree, outcome, output)
            self.stats.record(tree, outcome)

    def _check(self, requests: Sequence[Request], rows: Sequence[int]) -> None:
        if not requests or len(set(rows)) != len(requests) or len(rows) != len(requests):
            raise ValueError(f"{len(requests)} requests for rows {list(rows)}: give each request a row of its own")
        if min(rows) < 0 or max(rows) >= self.batch.rows:
            raise ValueError(f"rows {list(rows)}: this decoder has rows 0 to {self.batch.rows - 1}")
        for request in requests:
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

    def read(self) -> Report:
        """What the last step did, in one transfer to the host."""
        return Report(self.batch)


def without_gradients() -> AbstractContextManager[None]:
    """Inference mode, which costs less per operation; the compiler traces only the plain way."""
    return torch.no_grad() if torch.compiler.is_compiling() else torch.inference_mode()


def agree(drafter: Drafter, verifier: Verifier) -> Draw:
    """The draw that both can do, the verifier's favourite. Raises ValueError when there is none."""
    kind, rule = type(drafter).__name__, type(verifier).__name__
    if drafter.branches and not verifier.branches:
        raise ValueError(f"{rule} verifies chains and {kind} proposes trees; choose the verifier 'coupled'")
    for draw in verifier.wants:
        if draw in drafter.draws:
            return draw
    have, want = (", ".join(d.name.lower() for d in sorted(ds)) for ds in (drafter.draws, verifier.wants))
    raise ValueError(f"{kind} draws {have} and {rule} takes {want}: nothing in common; choose the verifier 'coupled'")
