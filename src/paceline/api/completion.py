"""The host side of one output: incremental decoding to text, stop strings, the result."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias, final

from paceline.api.params import SamplingParams
from paceline.api.results import FinishReason, Piece, Result, Source, sources_of
from paceline.api.score import PromptScore
from paceline.api.steps import Step
from paceline.core.logprobs import TokenLogprobs
from paceline.core.stats import Summary
from paceline.core.step import Finish
from paceline.core.step_drafts import DraftTree
from paceline.engine.costs import DepthCost
from paceline.engine.outputs import RequestStats, StepOutput
from paceline.engine.watch import Speed
from paceline.text.stops import StopStrings
from paceline.text.stream import CONTEXT, TextStream
from paceline.text.tokenizer import Tokenizer

Criterion: TypeAlias = Callable[[Sequence[int]], bool]  # token ids so far to whether the output ends


@final
class Completion:
    """Decodes the tokens of every step to text, and ends at the first stop string or where ``criterion`` is true.

    ``sequence`` is the engine's list of prompt and output tokens, which only the engine changes. Of steps whose draft
    is reported, corrections have its ``rejected`` text and last pieces their ``step``, as asked for.
    """

    def __init__(
        self,
        *,
        index: int,
        sample: int,
        sequence: list[int],
        params: SamplingParams,
        seed: int,
        tokenizer: Tokenizer | None,
        origins: Sequence[str],
        criterion: Criterion | None = None,
        rejected: bool = False,
        steps: bool = False,
    ) -> None:
        self.index, self.sample, self.sequence, self.params, self.seed = index, sample, sequence, params, seed
        self._num_prompt, self._num = len(sequence), 0  # tokens of the prompt, and of the completion
        self.finish_reason: FinishReason | None = None
        self.error: str | None = None  # no exception: its traceback would keep caches and logits
        self._stop_reason: int | str | None = None
        self._origins, self._criterion, self._tokenizer = origins, criterion, tokenizer
        self._rejected, self._steps, self._num_steps = rejected, steps, 0
        self._stream: TextStream | None = None
        if tokenizer is not None and params.detokenize:
            self._stream = TextStream(tokenizer=tokenizer, prompt=sequence, skip_special=params.skip_special_tokens)
        self._stops = StopStrings(stops=params.stop_strings, include=params.include_stop_str_in_output)
        self._source: list[Source] = []
        self._origin: list[str | None] = []
        self._logprobs: list[TokenLogprobs] = []
        self._text: list[str] = []
        # Of the last step: tokens, accepted draft tokens, tokens kept.
        self._trim: tuple[int, int, int] | None = None

    def take(self, output: StepOutput, speed: Callable[[], Speed | None] = lambda: None) -> list[Piece]:
        """The pieces of one step's tokens; sets ``finish_reason`` if the output ends. ``speed`` is asked for a step."""
        pieces: list[Piece] = []
        self._num_steps += 1
        sources = sources_of(output)
        for at, token in enumerate(output.token_ids):
            last = at == len(output.token_ids) - 1
            self._num += 1
            self._source.append(sources[at])
            self._origin.append(self._origins[output.origins[at]] if at < output.num_accepted else None)
            self._logprobs += output.logprobs[at : at + 1]
            if last and output.finish is Finish.STOP:
                self._end("stop", token if token in self.params.stop_tokens else None)
            text = self._decode(token)
            self._check_criterion()
            if last and output.finish is Finish.LENGTH and self.finish_reason is None:
                self._end("length", None)
            if self.finish_reason is not None:
                text += self._flush()
            self._text.append(text)
            rejected = ""
            if self._rejected and output.draft is not None and sources[at] is Source.CORRECTED:
                rejected = self._rejected_text(output.draft.rejected)
            pieces.append(self._piece(text, output.logprobs[at] if output.logprobs else None, rejected))
            if self.finish_reason is not None:
                self._trim = (len(output.token_ids), output.num_accepted, at + 1)
                break
        if self._steps and output.draft is not None:
            pieces[-1] = replace(pieces[-1], step=self._step(output, output.draft, len(pieces), speed()))
        return pieces

    def cancel(self, error: str | None = None) -> None:
        """End here, because of ``error`` if there is one; text that was held back is flushed."""
        if self.finish_reason is None:
            self.finish_reason, self.error = "cancelled" if error is None else "error", error
            self._text.append(self._flush())

    def result(
        self,
        stats: RequestStats,
        *,
        prompt_logprobs: PromptScore | None,
        speed: Speed | None,
        costs: tuple[DepthCost, ...],
        lossless: bool,
    ) -> Result:
        """The result so far; a completion that still runs counts as cancelled."""
        return Result(
            index=self.index,
            sample=self.sample,
            prompt_tokens=tuple(self.prompt),
            token_ids=tuple(self.token_ids),
            text=None if self._stream is None else "".join(self._text),
            source=tuple(self._source),
            origin=tuple(self._origin),
            logprobs=None if self.params.logprobs is None else tuple(self._logprobs),
            prompt_logprobs=prompt_logprobs,
            finish_reason=self.finish_reason or "cancelled",
            stop_reason=self._stop_reason,
            seed=self.seed,
            stats=replace(stats, summary=self._clip(stats.summary), speed=speed, costs=costs, lossless=lossless),
            error=self.error,
        )

    @property
    def prompt(self) -> list[int]:
        """The prompt's token ids."""
        return self.sequence[: self._num_prompt]

    @property
    def token_ids(self) -> list[int]:
        """The output's token ids so far."""
        return self.sequence[self._num_prompt : self._num_prompt + self._num]

    def _decode(self, token: int) -> str:
        """The text that ``token`` completes, without what may begin a stop string; a stop string ends the output."""
        armed = self._num > self.params.min_tokens
        stopped = self.finish_reason is not None
        text = ""
        if self._stream is not None and (not stopped or self.params.include_stop_str_in_output):
            text = self._stops.push(self._stream.push(token), armed=armed)
            if self._stops.matched is not None:
                self._end("stop", self._stops.matched)
        return text

    def _check_criterion(self) -> None:
        """Call the criterion; an exception ends the output as well."""
        if self._criterion is None or self.finish_reason is not None:
            return
        try:
            if self._criterion(self.token_ids):
                self._end("stop", None)
        except Exception as error:
            self.error = str(error)
            self._end("error", None)

    def _flush(self) -> str:
        """The text that was held back."""
        if self._stream is None:
            return ""
        armed = self._num > self.params.min_tokens
        return self._stops.push(self._stream.flush(), armed=armed) + self._stops.flush()

    def _end(self, reason: FinishReason, stop: int | str | None) -> None:
        self.finish_reason, self._stop_reason = reason, stop

    def _clip(self, summary: Summary) -> Summary:
        if self._trim is None:
            return summary
        num, num_accepted, kept = self._trim
        return summary.trimmed(num=num, num_accepted=num_accepted, kept=kept)

    def _rejected_text(self, tokens: Sequence[int]) -> str:
        """What ``tokens`` would have been in place of the newest one, special tokens by their names."""
        if self._tokenizer is None or not tokens:
            return ""
        before = self.sequence[: self._num_prompt + self._num - 1]
        stream = TextStream(tokenizer=self._tokenizer, prompt=before[-CONTEXT:], skip_special=False)
        return "".join(map(stream.push, tokens)) + stream.flush()

    def _step(self, output: StepOutput, draft: DraftTree, kept: int, speed: Speed | None) -> Step:
        """What was done in a step, ``kept`` tokens of which came into the output."""
        return Step(
            number=self._num_steps,
            tokens=tuple(output.token_ids[:kept]),
            draft=replace(draft, path=draft.path[:kept]),
            drafters=(None, *(self._origins[origin] for origin in draft.origins[1:])),
            no_draft=output.no_draft,
            seconds=output.seconds,
            num_rows=output.num_rows,
            speed=speed,
        )

    def _piece(self, text: str, logprob: TokenLogprobs | None, rejected: str) -> Piece:
        return Piece(
            index=self.index,
            sample=self.sample,
            token=self.sequence[self._num_prompt + self._num - 1],
            text=text,
            source=self._source[-1],
            origin=self._origin[-1],
            logprob=logprob,
            finish_reason=self.finish_reason,
            rejected=rejected,
        )
