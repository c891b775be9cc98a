"""What to draft with: measures step times and acceptance of drafters on prompts, by batch size and temperature."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from paceline.api import Engine, Loaded, SamplingParams
from paceline.bench.depth_trials import HOLD, DepthTrials, Trials
from paceline.bench.statistics import LEVEL, Estimate
from paceline.core.step import PhaseSeconds
from paceline.drafters.base import Drafter
from paceline.engine.costs import DepthCost, StepCosts, StepWork
from paceline.engine.curve import QUARTILE
from paceline.engine.knowledge import GROWTH, MAX_DRAFT_TOKENS, Knowledge

ROUNDS = 16  # of all draft lengths, at least
MOST_PASSES = 24  # over the prompts, for these rounds
WARM_UP = 16  # tokens of each row before anything counts
RESAMPLES = 400
MOST_COUNTED = 200.0  # steps that a profile's acceptance weighs, about as many as a controller remembers

Change = Callable[[StepWork, PhaseSeconds], PhaseSeconds]  # what a step takes on another machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is decoded how: a drafter by its name on the command line, and the conditions."""

    drafter: str
    batch_size: int
    temperature: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Costs, expected tokens and speed-up of every draft length from 0, in one setting."""

    setting: Setting
    depths: Sequence[DepthCost]
    speedups: Sequence[Estimate]  # over plain decoding, with intervals over prompts and rounds
    num_steps: int  # that acceptance and times are from

    @property
    def best(self) -> int:
        """The draft length, at least 1, with the highest speed-up: of those that pay, if any does."""
        paying = [depth for depth in range(1, len(self.speedups)) if self.speedups[depth].low > 1]
        return max(paying or range(1, len(self.speedups)), key=lambda depth: self.speedups[depth].value)

    @property
    def speedup(self) -> Estimate:
        """That of the best length."""
        return self.speedups[self.best]

    @property
    def pays(self) -> bool:
        """Whether drafting is faster than plain decoding by more than its spread."""
        return self.speedup.low > 1


def measure(
    target: Loaded,
    drafter: Drafter,
    prompts: Sequence[Sequence[int]],
    *,
    batch_size: int,
    temperature: float,
    max_tokens: int,
    seed: int = 0,
    progress: Callable[[float], None] = lambda _: None,
) -> Trials:
    """Decode ``prompts``, often enough to time every draft length ROUNDS times; ``progress`` is given the share done.

    Raises ValueError where the drafter fails, and where requests are too short for a draft.
    """
    tokens = [tuple(prompt) for prompt in prompts]
    plan = DepthTrials(
        rows=batch_size,
        max_draft_tokens=MAX_DRAFT_TOKENS,
        prompts={prompt: number for number, prompt in enumerate(tokens)},
        num_unverified=drafter.num_unverified,
        seed=seed,
    )
    engine = Engine(
        replace(target, tokenizer=None),
        drafter=drafter,
        num_draft_tokens=plan,
        batch_size=batch_size,
        max_length=max(map(len, tokens)) + max_tokens,
    )
    together = max(len(tokens), batch_size)

    def decode(count: int, length: int, first_seed: int) -> None:
        given = [list(tokens[at % len(tokens)]) for at in range(count)]
        params = [
            SamplingParams(max_tokens=length, temperature=temperature, seed=first_seed + at, ignore_eos=True)
            for at in range(count)
        ]
        engine.submit(given, params).drain()
        if engine.runner.drafter_error is not None:
            raise ValueError(f"the drafter failed: {engine.runner.drafter_error}; leave it out") from None

    decode(batch_size, min(WARM_UP, max_tokens), seed)
    plan.begin()
    for number in range(MOST_PASSES):
        decode(together, max_tokens, seed + number * together)
        progress(min(1.0, plan.num_rounds / ROUNDS))
        if plan.num_rounds >= ROUNDS:
            break
    if not plan.num_rounds:
        raise ValueError(
            f"{together} outputs of {max_tokens} tokens are too few to time drafts of up to {MAX_DRAFT_TOKENS}: give "
            "more tokens"
        )
    return plan.trials


def fit(trials: Sequence[Trials], *, device: str) -> Knowledge:
    """What all ``trials`` of a drafter say, of any batch size and temperature: what a controller may begin with."""
    growth = GROWTH.get(device, GROWTH["cuda"])
    knowledge = Knowledge(growth=growth)
    steps = [(step.work, step.seconds) for one in trials for step in one.steps]
    knowledge.costs = StepCosts.fitted(steps, growth=growth)
    for pool, greedy in ((knowledge.greedy, True), (knowledge.sampled, False)):
        found = [one.pool().counts for one in trials if one.greedy == greedy]
        share = min(1.0, MOST_COUNTED / max(1.0, sum(one.asked for one in found)))
        pool.counts.add_all(found, share)
        pool.refresh()
    return knowledge


def advise(setting: Setting, trials: Trials, *, device: str, change: Change | None = None) -> Advice:
    """What ``trials`` say; with ``change``, on the machine where a step takes what it makes of the measured seconds."""
    costs = fit([trials], device=device).costs
    seconds = [_step_seconds(trials, costs, depth, change) for depth in range(MAX_DRAFT_TOKENS + 1)]
    expected = trials.pool().expected()
    depths = [
        DepthCost(
            depth=depth,
            seconds=taken,
            break_even=taken / seconds[0],
            expected=tokens,
            times_measured=sum(step.work.depth == depth for step in trials.steps),
        )
        for depth, (taken, tokens) in enumerate(zip(seconds, expected, strict=True))
    ]
    spreads = _spreads(trials, costs)
    speedups = [
        Estimate(value=ratio, low=ratio * low, high=ratio * high)
        for ratio, (low, high) in zip((one.expected / one.break_even for one in depths), spreads, strict=True)
    ]
    return Advice(setting=setting, depths=depths, speedups=speedups, num_steps=sum(trials.num_steps.values()))


def _step_seconds(trials: Trials, costs: StepCosts, depth: int, change: Change | None) -> float:
    """The mean over the steps of this length: drafters that do not always have a draft score fewer nodes then."""
    works = [step.work for step in trials.steps if step.work.depth == depth]
    found = [(work, costs.seconds(work)) for work in works]
    return fmean((taken if change is None else change(work, taken)).total for work, taken in found)


def _spreads(trials: Trials, costs: StepCosts) -> list[tuple[float, float]]:
    """The interval of every length's speed-up over its value, by resampling prompts and rounds."""
    random = np.random.default_rng(0)
    numbers = list(trials.counts)
    whole = np.asarray(trials.pool().expected())
    drawn = random.choice(numbers, size=(RESAMPLES, len(numbers))) if numbers else np.zeros((RESAMPLES, 0), dtype=int)
    tokens = (
        np.asarray([trials.pool(list(map(int, chosen))).expected() for chosen in drawn]) / whole
    )  # [resamples, depths]
    errors = _errors_by_round(trials, costs)
    rounds = random.integers(0, len(errors), size=(RESAMPLES, len(errors)))
    drawn_errors = errors[rounds].reshape(RESAMPLES, -1, errors.shape[-1])
    one = np.ones_like(drawn_errors[:, :1])  # for a length that no drawn round has
    times = np.nanquantile(np.concatenate((drawn_errors, one), axis=1), QUARTILE, axis=1)  # [resamples, depths]
    times = times / times[:, :1] / (np.median(times, axis=0) / np.median(times[:, 0]))
    low, high = np.quantile(tokens / times, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return [(float(below), float(above)) for below, above in zip(low, high, strict=True)]


def _errors_by_round(trials: Trials, costs: StepCosts) -> np.ndarray:
    """Seconds of every timed step over what is expected of its work, by round: [rounds, steps, depths], some NaN."""
    first = min(step.round for step in trials.steps)
    last = max(step.round for step in trials.steps)
    found = np.full((last - first + 1, HOLD, MAX_DRAFT_TOKENS + 1), np.nan)
    for number, step in enumerate(trials.steps):
        found[step.round - first, number % HOLD, int(step.work.depth)] = (
            step.seconds.total / costs.seconds(step.work).total
        )
    return found
