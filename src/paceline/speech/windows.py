"""One sound, window after window: what is asked of the model next, given what it answered.

A state machine without a model: ``run`` is a generator of ``Ask``, which is sent an ``Answer`` to each. Many sounds
are thus decoded at once, each at its own pace. It follows transformers' Whisper ``generate`` for a single sound.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias, final

import torch
from torch import Tensor

from paceline.core.context import Context
from paceline.core.noise import split_seed
from paceline.speech.checkpoint import Checkpoint
from paceline.speech.options import PROMPT_PLACES, SpeechOptions
from paceline.speech.segments import Cut, cut, cut_all
from paceline.speech.start import Start
from paceline.speech.statistics import compression_ratio, mean_logprob, probability

LOW_TEMPERATURE = 0.5  # from here on a window's text is too unsure to be the next one's prompt
FEATURES = "input_features"


class WindowError(ValueError):
    """A window that cannot be decoded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request. ``context`` is the window, shared by all that is asked about it.

    ``probes``: only the logits after the prompt are wanted, and nothing is suppressed. ``timestamps`` says whether
    their rules hold, ``scored`` whether log-probabilities are wanted.
    """

    context: Context
    prompt: tuple[int, ...]
    max_tokens: int = 1
    temperature: float = 0.0
    seed: int = 0
    probes: bool = False
    timestamps: bool = False
    scored: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """``tokens`` with the end-of-text token, if it came; what was not asked for is None."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...] | None = None  # of every token, see statistics.token_logprob
    logits: Tensor | None = None  # [V] of the first position, as the model gives them


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A window's output at one temperature, without end-of-text, and its statistics where they were asked for."""

    tokens: tuple[int, ...]
    temperature: float
    compression_ratio: float
    avg_logprob: float | None
    no_speech_prob: float | None
    failed: bool
    silent: bool  # the window is skipped


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A segment, and the attempt that gave it."""

    cut: Cut
    attempt: Attempt


Asks: TypeAlias = Generator[Ask, Answer, None]


@final
class Windows:
    """The windows of one sound of ``features`` [W, T]; a sound of at most one window is padded to its whole length.

    ``found`` and ``language`` (a token id) are filled, and ``seek``, the frame of the next window, moves on as ``run``
    runs. Raises WindowError for an option that forbids timestamps to a longer sound.
    """

    def __init__(
        self,
        features: Tensor,
        *,
        checkpoint: Checkpoint,
        options: SpeechOptions,
        start: Start,
        prompt: Sequence[int] = (),
        seed: int = 0,
    ) -> None:
        self._features, self._checkpoint, self._options, self._start = features, checkpoint, options, start
        self._prompt, self._seed, self._asked = tuple(prompt), seed, 0
        self.total = features.shape[-1]
        long = self.total > checkpoint.frames
        if long and options.return_timestamps is False:
            raise WindowError(
                f"return_timestamps=False: the sound has {self.total} frames and a window {checkpoint.frames}; sounds "
                "of several windows need timestamps, leave it out"
            )
        given = options.return_timestamps
        self.timestamps = bool(checkpoint.defaults.get("return_timestamps")) if given is None else given
        self.timestamps |= long
        self.seek = 0
        self.language = start.language
        self.found: list[Found] = []
        own = options.condition_on_prev_tokens
        self._conditions = bool(checkpoint.defaults.get("condition_on_prev_tokens")) if own is None else own
        self._conditioned = bool(own)  # the next window; as transformers, a checkpoint's own begins after the first
        self._max_length = checkpoint.max_length
        self._no_speech: float | None = None  # of the window, once it was asked
        self._undecided = False  # whether a window is asked about whose output is not in ``found`` yet

    def run(self) -> Asks:
        """Ask for one window after another, to the end."""
        checkpoint = self._checkpoint
        no_timestamps = None if self.timestamps else checkpoint.no_timestamps
        start = self._start.tokens(None, no_timestamps)
        context = self._window()
        if self._start.detects:
            answer = yield Ask(context=context, prompt=(checkpoint.start,), probes=True)
            self.language = _likeliest(answer, list(checkpoint.languages.values()))
            start = self._start.tokens(self.language, no_timestamps)
        while self.seek < self.total:
            frames, self._undecided = self._frames, True
            attempt = yield from self._decode(context, start)
            if attempt.silent:
                self.seek += frames
            else:
                cuts, later = cut(attempt.tokens, seek=self.seek, frames=frames, checkpoint=checkpoint)
                self.found += [Found(cut=one, attempt=attempt) for one in cuts]
                self.seek += later
            self._undecided = False
            if self.seek < self.total:
                context = self._window()

    def keep(self, tokens: tuple[int, ...], temperature: float) -> None:
        """Add to ``found`` what an interrupted window said until then, if its output was not decided about yet."""
        if not self._undecided:
            return
        attempt = Attempt(
            tokens=tokens,
            temperature=temperature,
            compression_ratio=compression_ratio(tokens, self._checkpoint.vocab_size),
            avg_logprob=None,
            no_speech_prob=self._no_speech,
            failed=False,
            silent=False,
        )
        cuts = cut_all(tokens, seek=self.seek, frames=self._frames, checkpoint=self._checkpoint)
        self.found += [Found(cut=one, attempt=attempt) for one in cuts]

    @property
    def _frames(self) -> int:
        """Frames of sound in the window."""
        return min(self.total - self.seek, self._checkpoint.frames)

    def _window(self) -> Context:
        """The features from ``seek`` on, padded with zeros to a whole window."""
        frames = self._checkpoint.frames
        window = self._features[:, self.seek : self.seek + frames]
        return Context({FEATURES: torch.nn.functional.pad(window, (0, frames - window.shape[-1])).contiguous()})

    def _decode(self, context: Context, start: tuple[int, ...]) -> Generator[Ask, Answer, Attempt]:
        """The first attempt that is good enough, or else the last."""
        before = self._before()
        prompt = (*before, *start)
        limit = self._limit(len(prompt))
        options, attempt, self._no_speech = self._options, None, None
        for temperature in options.temperatures:
            ask = Ask(
                context=context,
                prompt=prompt,
                max_tokens=limit,
                temperature=temperature,
                seed=split_seed(self._seed, self._asked),
                timestamps=self.timestamps,
                scored=options.logprob_threshold is not None,
            )
            self._asked += 1
            answer = yield ask
            attempt = yield from self._judge(answer, ask, (*before, self._checkpoint.start))
            self._conditioned = self._conditions and temperature < LOW_TEMPERATURE
            if not attempt.failed:
                break
        assert attempt is not None  # there is at least one temperature
        return attempt

    def _judge(self, answer: Answer, ask: Ask, until_start: tuple[int, ...]) -> Generator[Ask, Answer, Attempt]:
        """Compare an output with the thresholds. Whether there is no speech is asked only where it matters."""
        options, checkpoint, tokens = self._options, self._checkpoint, answer.tokens
        ratio = compression_ratio(tokens, checkpoint.vocab_size)
        most, least = options.compression_ratio_threshold, options.logprob_threshold
        failed = most is not None and ratio > most
        mean, silent = None, False
        if least is not None:
            assert answer.logprobs is not None
            mean = mean_logprob(answer.logprobs)
            if mean < least:
                failed = True
                if options.no_speech_threshold is not None:
                    if self._no_speech is None:
                        probed = yield Ask(context=ask.context, prompt=until_start, probes=True)
                        assert probed.logits is not None
                        self._no_speech = probability(probed.logits, checkpoint.no_timestamps - 1)
                    silent = self._no_speech > options.no_speech_threshold
        return Attempt(
            tokens=tokens[:-1] if tokens[-1] == checkpoint.eos else tokens,
            temperature=ask.temperature,
            compression_ratio=ratio,
            avg_logprob=mean,
            no_speech_prob=self._no_speech,
            failed=failed and not silent,
            silent=silent,
        )

    def _before(self) -> tuple[int, ...]:
        """What stands before the start token: the text so far, the prompt, or nothing."""
        every = self._options.prompt_condition_type == PROMPT_PLACES[1]
        first = self._prompt if not every else ()
        if not self._conditioned or not (self.found or first):
            return self._prompt
        previous = self._checkpoint.previous
        begin = () if previous is None else (previous,)
        most, count = self._checkpoint.positions // 2 - 1, 0
        parts: list[Sequence[int]] = []
        for one in reversed(self.found):
            if count >= most:
                break
            tokens, timestamp = one.cut.tokens, self._checkpoint.first_timestamp
            # One of the two timestamps at the end of a window opened a segment that was dropped.
            doubled = len(tokens) > 2 and tokens[-2] >= timestamp
            parts.append(tokens[:-1] if doubled else tokens)
            count += len(parts[-1])
        parts.append(first[1:] if first[:1] == begin else first)
        kept = list(chain.from_iterable(reversed(parts)))[-most:]
        return (*(self._prompt if every and self._prompt else begin), *kept)

    def _limit(self, num_prompt: int) -> int:
        """Most tokens of the output after ``num_prompt`` of the prompt; like transformers', max_length grows."""
        positions = self._checkpoint.positions
        if num_prompt >= positions:
            raise WindowError(
                f"a prompt of {num_prompt} tokens: {self._checkpoint.name} has {positions} positions for prompt and "
                "output; shorten the prompt"
            )
        if self._options.max_new_tokens is not None:
            return min(self._options.max_new_tokens, positions - num_prompt)
        if self._max_length is None:
            return positions - num_prompt
        self._max_length = min(self._max_length + min(positions // 2 - 1, num_prompt), positions)
        return max(1, self._max_length - num_prompt)


def _likeliest(answer: Answer, tokens: Sequence[int]) -> int:
    """The one of ``tokens`` with the largest logit."""
    assert answer.logits is not None
    return max(sorted(tokens), key=answer.logits.tolist().__getitem__)
