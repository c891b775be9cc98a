"""Searches for the sub-layers to skip (Draft & Verify, 2309.08168): least measured time per token of the whole loop."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from paceline.api import Loaded
from paceline.api.skip_sets import SkipSet, native_target
from paceline.bench.generation import decoding
from paceline.bench.machine import describe
from paceline.bench.runner import Configuration, Sample, compare
from paceline.bench.skip_study import SkipStudy, Trial, best_of
from paceline.bench.statistics import Estimate, estimate, is_void, paired_ratios
from paceline.drafters.layer_skip import LayerSkipDrafter
from paceline.models.fingerprint import memory_digest
from paceline.models.sublayers import SkippedSublayers

PLAIN, SKIPPING, CONTROL = "plain", "skipping", "control"
NUM_FINAL = 3  # sets that are measured again


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipSettings:
    """What is decoded: drafts of ``num_draft_tokens``, outputs of ``max_tokens``, ``batch_size`` rows."""

    num_draft_tokens: int
    max_tokens: int
    batch_size: int = 1
    temperature: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("num_draft_tokens", "max_tokens", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: give at least 1")


class OnTrial(Protocol):
    """Told how many trials are done, and the best of them."""

    def __call__(self, done: int, best: Trial | None) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A set on prompts that the search did not see (``held_out``), in turns with plain decoding."""

    sublayers: SkippedSublayers
    speedup: Estimate
    tokens_per_step: float
    acceptance_rate: float
    identical: bool  # its tokens and those of plain decoding
    control: float  # plain decoding against itself
    held_out: bool

    @property
    def quiet(self) -> bool:
        """Whether plain decoding was as fast as itself."""
        return not is_void([self.control])

    @property
    def pays(self) -> bool:
        """Whether it is faster than plain decoding beyond doubt."""
        return self.speedup.low > 1


def open_study(path: Path, target: Loaded, prompts: Sequence[Sequence[int]], settings: SkipSettings) -> SkipStudy:
    """The search with these settings in the file ``path``, on this machine.

    Raises ValueError for a target that has nothing to skip, for one that transformers runs, and for another file.
    """
    lm, machine = native_target(target), describe()
    if lm.num_layers < 3:
        raise ValueError(
            f"{target.name} has {lm.num_layers} layers, and the first and the last are kept: there is nothing to skip"
        )
    known = {
        **asdict(settings),
        "model": memory_digest(lm),
        "prompts": sha256(str([list(prompt) for prompt in prompts]).encode()).hexdigest()[:16],
        "device": machine.accelerator or f"{machine.processor}, {machine.instruction_set}",
        "threads": machine.num_threads,
        "eager": target.enforce_eager,
    }
    return SkipStudy(path, num_layers=lm.num_layers, settings=known, seed=settings.seed)


def search(
    study: SkipStudy,
    target: Loaded,
    prompts: Sequence[Sequence[int]],
    settings: SkipSettings,
    *,
    num_trials: int,
    progress: OnTrial,
) -> None:
    """Try sets until ``study`` has ``num_trials``; each is timed in turns with plain decoding of the same prompts."""
    plain = _configuration(PLAIN, target, prompts, settings, None)
    if len(study.trials) < num_trials:
        plain.run()  # warms up
    while len(study.trials) < num_trials:
        progress(len(study.trials), study.best)
        asked, sublayers = study.ask()
        own = _configuration(SKIPPING, target, prompts, settings, sublayers)
        both = compare([plain, own], baseline=PLAIN, repeats=1, warm_up=0)
        sample = both[SKIPPING].sample
        assert sample.summary is not None
        trial = Trial(
            sublayers=sublayers,
            relative_time=_decode_seconds(sample) / _decode_seconds(both[PLAIN].sample),
            tokens_per_step=sample.summary.mean_acceptance_length,
        )
        study.tell(asked, trial)
    progress(len(study.trials), study.best)


def measure(
    trials: Sequence[Trial],
    target: Loaded,
    prompts: Sequence[Sequence[int]],
    settings: SkipSettings,
    *,
    held_out: bool,
    repeats: int = 5,
    progress: Callable[[str], None] = lambda _: None,
) -> Measured:
    """The fastest of the best few trials' sets, measured again: the least of many noisy times is too low."""
    best = best_of(trials, NUM_FINAL)
    names = {str(one.sublayers): one.sublayers for one in best}
    sides = [
        _configuration(PLAIN, target, prompts, settings, None),
        *(_configuration(name, target, prompts, settings, sublayers) for name, sublayers in names.items()),
        _configuration(CONTROL, target, prompts, settings, None),
    ]
    found = compare(sides, baseline=PLAIN, repeats=repeats, progress=progress)
    seconds = {side.name: [_decode_seconds(sample) for sample in found[side.name].samples] for side in sides}
    speedups = {name: estimate(paired_ratios(seconds[PLAIN], seconds[name])) for name in (*names, CONTROL)}
    winner = max(names, key=lambda name: speedups[name].value)
    summary = found[winner].sample.summary
    assert summary is not None
    return Measured(
        sublayers=names[winner],
        speedup=speedups[winner],
        tokens_per_step=summary.mean_acceptance_length,
        acceptance_rate=summary.acceptance_rate,
        identical=found[winner].identical,
        control=speedups[CONTROL].value,
        held_out=held_out,
    )


def as_set(found: Measured, settings: SkipSettings, *, num_trials: int) -> SkipSet:
    """What is written beside the model."""
    measured = {
        "speedup": found.speedup.value,
        "speedup_interval": [found.speedup.low, found.speedup.high],
        "pays": found.pays,
        "tokens_per_step": found.tokens_per_step,
        "acceptance_rate": found.acceptance_rate,
        "control": found.control,
        "held_out_prompts": found.held_out,
        "num_trials": num_trials,
        **asdict(settings),
        "machine": str(describe()),
    }
    return SkipSet(sublayers=found.sublayers, num_draft_tokens=settings.num_draft_tokens, measured=measured)


def split(prompts: Sequence[Sequence[int]]) -> tuple[Sequence[Sequence[int]], Sequence[Sequence[int]], bool]:
    """Prompts to search with, those to measure the result with, and whether they are others: every second one."""
    if len(prompts) < 2:
        return prompts, prompts, False
    return prompts[::2], prompts[1::2], True


def _configuration(
    name: str,
    target: Loaded,
    prompts: Sequence[Sequence[int]],
    settings: SkipSettings,
    sublayers: SkippedSublayers | None,
) -> Configuration:
    return decoding(
        name,
        target=target,
        prompts=prompts,
        num_tokens=settings.max_tokens,
        drafter=None if sublayers is None else LayerSkipDrafter(sublayers=sublayers),
        num_draft_tokens=0 if sublayers is None else settings.num_draft_tokens,
        batch_size=settings.batch_size,
        temperature=settings.temperature,
        seed=settings.seed,
    )


def _decode_seconds(sample: Sample) -> float:
    """Of all steps; reading prompts is the same on both sides."""
    assert sample.decode_seconds is not None
    return sample.decode_seconds
