"""Measures all that an advice is asked for: every drafter, batch size and temperature, here and on another machine."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import cast

from paceline.api import Loaded
from paceline.api.loading import runnable
from paceline.bench.advice import Advice, Setting, advise, fit, measure
from paceline.bench.depth_trials import Trials
from paceline.bench.what_if import Imagined, WhatIf, imagine
from paceline.drafters.base import Drafter
from paceline.drafters.growing import GrowingDrafter
from paceline.drafters.model import ModelDrafter
from paceline.engine.knowledge import Knowledge, unwrapped
from paceline.hardware.rates import Rates
from paceline.models.native.decoder import DecoderLM
from paceline.models.wrapped import WrappedLM

Progress = Callable[[str, float], None]  # what is measured, and the share of all that is done


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What was measured, what the imagined machine would do, and what a controller may begin with, by drafter."""

    advice: Sequence[Advice]
    imagined: Sequence[Advice]
    assumptions: Sequence[str]  # of the imagined machine
    knowledge: Mapping[str, Knowledge]


def find_advice(
    target: Loaded,
    drafters: Mapping[str, Drafter],
    prompts: Sequence[Sequence[int]],
    *,
    batch_sizes: Sequence[int],
    temperatures: Sequence[float],
    max_tokens: int,
    seed: int,
    what_if: WhatIf | None,
    progress: Progress,
) -> Findings:
    """Measure ``drafters`` for ``target`` on ``prompts``, in every setting. Raises what ``measure`` raises."""
    device = target.lm.device.type
    settings = [
        Setting(drafter=name, batch_size=size, temperature=temperature)
        for name, size, temperature in product(drafters, batch_sizes, temperatures)
    ]
    trials: dict[Setting, Trials] = {}
    for number, setting in enumerate(settings):
        what = f"{setting.drafter}, batch size {setting.batch_size}, temperature {setting.temperature:g}"

        def report(share: float, what: str = what, number: int = number) -> None:
            progress(what, (number + share) / len(settings))

        report(0.0)
        trials[setting] = measure(
            target,
            drafters[setting.drafter],
            prompts,
            batch_size=setting.batch_size,
            temperature=setting.temperature,
            max_tokens=max_tokens,
            seed=seed,
            progress=report,
        )
    measured: dict[DecoderLM, tuple[Rates, Rates]] = {}
    changes: dict[str, Imagined] = {}
    if what_if is not None:
        for name, drafter in drafters.items():
            changes[name] = _imagined(what_if, target, drafter, lambda what: progress(what, 1.0), measured)
    return Findings(
        advice=[advise(setting, found, device=device) for setting, found in trials.items()],
        imagined=[
            advise(setting, found, device=device, change=changes[setting.drafter])
            for setting, found in trials.items()
            if changes
        ],
        assumptions=list(dict.fromkeys(line for change in changes.values() for line in change.assumptions)),
        knowledge={
            name: fit([found for setting, found in trials.items() if setting.drafter == name], device=device)
            for name in drafters
        },
    )


def _imagined(
    asked: WhatIf,
    target: Loaded,
    drafter: Drafter,
    say: Callable[[str], None],
    measured: dict[DecoderLM, tuple[Rates, Rates]],
) -> Imagined:
    draft = unwrapped(drafter.lm) if isinstance(drafter, ModelDrafter) else None
    return imagine(
        asked,
        target=cast(DecoderLM, target.lm),
        draft=draft if isinstance(draft, DecoderLM) else None,
        drafts_with_target=isinstance(drafter, GrowingDrafter),
        kernel=isinstance(runnable(target), WrappedLM),
        progress=say,
        measured=measured,
    )
