"""``Engine``: continuous batching of requests over one target with a fixed number of rows."""

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Unpack, final

import torch

from paceline.agreement import agree
from paceline.api.build import build_drafting, build_verifier, check_options
from paceline.api.completion import Completion, Criterion
from paceline.api.draft_length import NumDraftTokens, cut_draft_length, is_controlled, longest_draft, plan_of, room
from paceline.api.drafter_like import DrafterLike, VerifierLike
from paceline.api.loading import ops_of, runnable
from paceline.api.profiles import ProfileLike, begin_with, check_profile
from paceline.api.prompts import EncodedPrompt, Prompts
from paceline.api.requests import ParamsLike, Prepared, RequestOptions, prepare
from paceline.api.results import Piece, Result
from paceline.api.sampling_options import SamplingOptions, with_options
from paceline.api.score import PromptScore
from paceline.api.streams import Stream
from paceline.api.targets import TargetLike, loaded
from paceline.api.values import count as counted
from paceline.api.values import flag
from paceline.core.constraint import Constraint
from paceline.decode import Decoder
from paceline.engine.candidates import CandidatePlan
from paceline.engine.controller import Controller
from paceline.engine.copy_plans import CopyPlan
from paceline.engine.memory import check_memory, weight_bytes
from paceline.engine.mixed_plan import MixedPlan
from paceline.engine.runner import runner_for
from paceline.engine.scheduler import Scheduler
from paceline.engine.watch import Speed, Watch

logger = logging.getLogger("paceline")

LONGEST = 2048  # default limit of a row's tokens, prompt included


@dataclass(slots=True, kw_only=True)
class _Open:
    """A completion that has not ended, and the queue of its stream's pieces."""

    completion: Completion
    pieces: deque[Piece]
    name: str  # in logs


@final
class Engine:
    """Runs any number of requests over one target, one drafter and ``batch_size`` rows.

    - ``target``: what ``paceline.load`` returns, a transformers model, a directory or a Hub id.
    - ``drafter`` (None): a registered name, "FILE.py:NAME", a loaded draft model, a directory, a Drafter or a
      HostDrafter, vLLM's speculative_config, or None for plain decoding. A Drafter serves one engine at a time.
    - ``verifier`` ("coupled", whose tokens depend on the seed alone): a name, "NAME:option=value", or a Verifier.
    - ``num_draft_tokens`` ("auto"): drafted tokens per step. "auto" lets a controller choose them for every row and
      step, at most 8, and none where drafting does not pay. A number is cut to what sequences have room for. With one,
      and a verifier whose tokens do not depend on drafts, a few steps in a hundred are plain decoding, to measure
      whether drafting pays; results carry a warning if it does not. Or a Plan.
    - ``batch_size`` (8): rows; their caches are allocated here.
    - ``max_length`` (None): the limit of a sequence's tokens, prompt included. None is the target's context, at most
      2048; with an attention window, as many as fit into it together with a draft.
    - ``guidance`` (False): allocate a second row for each, for requests with a ``guidance_scale``.
    - ``profile`` ("auto"): what the controller begins with, as `paceline advise` measured it: a file; "auto", the one
      in the cache that was measured of this target and drafter on this machine, if any; or None, nothing. A file of
      other ones is ignored with a warning. What this process has learnt of the two itself comes first.

    Raises ValueError for options that do not fit together, and for caches that exceed the free memory.
    """

    def __init__(
        self,
        target: TargetLike,
        *,
        drafter: DrafterLike = None,
        verifier: VerifierLike = "coupled",
        num_draft_tokens: NumDraftTokens = "auto",
        batch_size: int = 8,
        max_length: int | None = None,
        guidance: bool = False,
        profile: ProfileLike = "auto",
    ) -> None:
        check_options(drafter, verifier, num_draft_tokens, batch_size)
        counted(2, "at least 2, one prompt token and one new token", optional=True)("max_length", max_length)
        flag("guidance", guidance)
        target = self.target = loaded(target)
        drafting = build_drafting(drafter, target=target)
        context = min(LONGEST, target.lm.max_positions) if max_length is None else max_length
        count = cut_draft_length(drafting.length(num_draft_tokens), max_tokens=context - 1)
        chosen = build_verifier(verifier)
        longest_draft_tokens = longest_draft(count, drafting.drafter)
        if target.exact and not chosen.same_tokens:
            name = verifier if isinstance(verifier, str) else type(chosen).__name__
            raise ValueError(
                f"verifier {name!r} under exact=True: its tokens depend on what is drafted; choose 'coupled', or "
                "load the target without exact"
            )
        check_profile(profile, controlled=is_controlled(count, drafter=drafting.drafter, verifier=chosen))
        agree(drafting.drafter, chosen)  # before memory is checked
        length = max_length
        if length is None:
            length = min(LONGEST, room(target, drafting.drafter.max_nodes(longest_draft_tokens)))
        check_memory(
            target.lm,
            drafting.drafter,
            rows=2 * batch_size if guidance else batch_size,
            max_length=length,
            num_draft_tokens=longest_draft_tokens,
            weights=weight_bytes([target.lm]) if isinstance(target.lm, torch.nn.Module) else 0,
        )
        self.decoder = Decoder(
            target=runnable(target),
            drafter=drafting.drafter,
            verifier=chosen,
            plan=plan_of(
                count,
                target=target.lm,
                drafter=drafting.drafter,
                verifier=chosen,
                rows=batch_size,
                begin=begin_with(profile, target=target),
            ),
            rows=batch_size,
            max_length=length,
            guidance=guidance,
            ops=ops_of(target),
        )
        self.runner = runner_for(self.decoder, eager=target.enforce_eager)
        self.scheduler = Scheduler(self.runner)
        self._open: dict[int, _Open] = {}
        self._num_prompts = 0  # submitted so far
        self._warned = False

    @property
    def speed(self) -> Speed | None:
        """Measured tokens per second with drafting and without; None before enough steps are measured."""
        plan = self.decoder.plan
        return plan.speed if isinstance(plan, Watch | Controller | CandidatePlan | CopyPlan | MixedPlan) else None

    @property
    def lossless(self) -> bool:
        """Whether outputs have the target's distribution."""
        return self.decoder.verifier.lossless

    def submit(
        self,
        prompts: Prompts | Sequence[EncodedPrompt],
        params: ParamsLike = None,
        *,
        criterion: Criterion | None = None,
        constraints: Sequence[Constraint] = (),
        name: str | None = None,
        keep_scores: bool = False,
        rules: Sequence[Constraint] = (),
        rejected: bool = False,
        steps: bool = False,
        num_draft_tokens: int | None = None,
        drafter: str | None = None,
        draft_store: str = "",
        **options: Unpack[SamplingOptions],
    ) -> Stream:
        """Queue one prompt or several and return their stream.

        - ``prompts``: a text, token ids, chat messages or an EncoderDecoderPrompt; or a list of these. A text is
          what an encoder reads if the target has one.
        - ``params`` (None, which is ``SamplingParams()``): one for all prompts, whose seed is then split per prompt and
          sample; or one per prompt, whose seed is split per sample only. Sample 0 of prompt 0 keeps the seed.
        - ``criterion`` (None): called with the token ids of a completion after each token; true ends it there.
        - ``constraints`` (none): further constraints, applied after those of ``params``; ``rules`` is a deprecated
          name for them.
        - ``rejected`` (False): whether ``Piece.rejected`` has the text of the draft tokens that were rejected. Steps of
          such prompts are not recorded on a GPU, and so are slower.
        - ``steps`` (False): whether a step's last ``Piece`` has its ``step``, with the whole draft; slower, too.
        - ``name`` (None): the name of these prompts in logs; None numbers all prompts submitted so far, from 0.
        - ``draft_store`` (""): the name of the outputs that drafters may copy from, and that these are added to.
          Requests of different tenants belong in different ones, as speed tells what was asked before.
        - ``num_draft_tokens`` (None): drafted tokens per step at most for these prompts; 0 decodes them plainly, None
          is as the engine says. Changes no token where the verifier's tokens do not depend on drafts, as by default.
        - ``drafter`` (None, all that the engine has): of several drafters, the one that drafts for these prompts, by
          its name: "model", "ngram", or as ``draft_choices`` gives them. Changes no token either.
        - ``keep_scores`` (False): with ``logprobs``, keep the logits and scores of the whole vocabulary too.
        - ``**options``: fields of ``SamplingParams``, which ``params`` then leave at their defaults.

        Raises ValueError naming the prompt or parameter, and TypeError for unknown names, before anything is queued.
        """
        params = with_options(self.submit, params, options)
        asked = RequestOptions(
            rejected=rejected,
            steps=steps,
            num_draft_tokens=num_draft_tokens,
            drafter=drafter,
            keep_scores=keep_scores,
            draft_store=draft_store,
        )
        prepared = prepare(self.target, self.decoder, prompts, params, criterion, (*constraints, *rules), **asked)
        return self.enqueue(prepared, name=name)

    def prepare(
        self,
        prompts: Prompts | Sequence[EncodedPrompt],
        params: ParamsLike = None,
        constraints: Sequence[Constraint] = (),
        **more: Unpack[RequestOptions],
    ) -> list[Prepared]:
        """Encode prompts and check parameters for ``enqueue``, in any thread; arguments and errors are those of
        ``submit``.
        """
        return prepare(self.target, self.decoder, prompts, params, None, constraints, **more)

    def enqueue(self, prepared: Sequence[Prepared], *, name: str | None = None) -> Stream:
        """Queue what ``prepare`` returned and return its stream."""
        completions = [completion for _, completion in prepared]
        pieces: deque[Piece] = deque()
        tickets = [self.scheduler.submit(request, sequence=completion.sequence) for request, completion in prepared]
        first = self._num_prompts
        for ticket, completion in zip(tickets, completions, strict=True):
            number = first + completion.index
            self._num_prompts = number + 1
            self._open[ticket] = _Open(completion=completion, pieces=pieces, name=name or f"prompt {number}")
        return Stream(engine=self, tickets=tickets, completions=completions, pieces=pieces)

    def generate(self, prompts: Prompts, params: ParamsLike = None, **options: Unpack[SamplingOptions]) -> list[Result]:
        """Generate from every prompt; results in order, the samples of a prompt together.

        Raises what ``submit`` raises; on Ctrl-C, Interrupted with the results so far.
        """
        return self.submit(prompts, with_options(self.generate, params, options)).drain()

    def advance(self) -> None:
        """Run one step of all active requests; their pieces go to the streams."""
        for output in self.scheduler.advance():
            entry = self._open[output.ticket]
            try:
                if output.error is not None:
                    entry.completion.cancel(str(output.error))
                else:
                    entry.pieces.extend(entry.completion.take(output, lambda: self.speed))
            except Exception as error:  # ends this request alone
                entry.completion.cancel(str(error))
            if entry.completion.error is not None:
                logger.error("%s failed: %s", entry.name, entry.completion.error)
            if entry.completion.finish_reason is not None:
                self.scheduler.cancel(output.ticket)
                del self._open[output.ticket]
        plan = self.decoder.plan
        if not self._warned and isinstance(plan, Watch) and plan.speed is not None and not plan.speed.pays:
            self._warned = True
            logger.warning(plan.speed.warning)

    def cancel(self, ticket: int) -> None:
        """End a request that waits or runs; its row is free immediately."""
        entry = self._open.pop(ticket, None)
        if entry is not None:
            entry.completion.cancel()
            self.scheduler.cancel(ticket)

    def result(self, ticket: int, completion: Completion) -> Result:
        """The result of a request so far, with its statistics."""
        scores = self.scheduler.prompt_scores(ticket - completion.sample)  # the prompt is scored for sample 0
        known = None
        if scores is not None:
            tokens = tuple(completion.prompt)
            known = PromptScore(tokens=tokens, logprobs=(None, *scores.logprobs), top=(None, *scores.top))
        plan = self.decoder.plan
        return completion.result(
            self.scheduler.stats(ticket),
            prompt_logprobs=known,
            speed=self.speed,
            costs=plan.costs() if isinstance(plan, Controller | CandidatePlan | MixedPlan) else (),
            lossless=self.lossless,
        )

    def forget(self, ticket: int) -> None:
        """Drop the statistics of a request that has ended."""
        self.scheduler.forget(ticket)
