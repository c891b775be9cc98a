"""What ``paceline advise`` found, as sentences, tables and JSON."""

from collections.abc import Sequence
from itertools import groupby

from rich.table import Table

from paceline.api.drafter_files import is_drafter_file
from paceline.api.named import name_of
from paceline.bench.advice import Advice, Setting
from paceline.bench.statistics import Estimate
from paceline.cli.console import make_table
from paceline.drafters import DRAFTERS

NOTHING_PAYS = "no draft pays here"


def option_of(drafter: str) -> str:
    """How ``paceline generate`` is given a drafter."""
    named = name_of(drafter) in DRAFTERS or is_drafter_file(drafter)
    return f"{'--drafter' if named else '--draft'} {drafter}"


def best_by_conditions(advice: Sequence[Advice]) -> list[Advice]:
    """The drafter with the highest speed-up for every batch size and temperature."""

    def conditions(one: Advice) -> tuple[int, float]:
        return one.setting.batch_size, one.setting.temperature

    groups = groupby(sorted(advice, key=conditions), key=conditions)
    return [max(found, key=lambda one: (one.pays, one.speedup.value)) for _, found in groups]


def sentences(advice: Sequence[Advice]) -> list[str]:
    """What to use, for every batch size and temperature."""
    best = best_by_conditions(advice)
    found = [_sentence(one) for one in best]
    if len(best) > 1 and not any(one.pays for one in best):
        found.append(f"{NOTHING_PAYS}: at none of these batch sizes and temperatures")
    return found


def _sentence(one: Advice) -> str:
    cost, option = one.depths[one.best], option_of(one.setting.drafter)
    where = f"batch size {one.setting.batch_size}, temperature {one.setting.temperature:g}"
    tokens = f"{one.best} draft token{'s' if one.best > 1 else ''}"
    needs = f"pays from {cost.break_even:.2f} tokens per step, and {cost.expected:.2f} are expected"
    if one.pays:
        return f"{where}: use {option}: {_range(one.speedup)} plain decoding, best with up to {tokens}; that {needs}"
    return f"{where}: {NOTHING_PAYS}. {option} comes nearest, {_range(one.speedup)} with {tokens}; that {needs}"


def _range(speedup: Estimate) -> str:
    return f"{speedup.value:.2f}x ({speedup.low:.2f} to {speedup.high:.2f})"


def title_of(setting: Setting) -> str:
    """The heading of a table."""
    return f"{setting.drafter}, batch size {setting.batch_size}, temperature {setting.temperature:g}"


def table_of(one: Advice) -> Table:
    """Every draft length of a setting."""
    titles = ("draft tokens", "step", "pays from", "expected", "speed-up", "interval", "steps")
    rows = (
        (
            str(cost.depth),
            f"{1000 * cost.seconds:.2f} ms",
            f"{cost.break_even:.2f}",
            f"{cost.expected:.2f} tokens",
            f"{speedup.value:.2f}x",
            f"{speedup.low:.2f} to {speedup.high:.2f}" if cost.depth else "",
            str(cost.times_measured),
        )
        for cost, speedup in zip(one.depths, one.speedups, strict=True)
    )
    return make_table(titles, rows, num_left=0)


def advice_object(one: Advice) -> dict[str, object]:
    """A setting for JSON."""
    return {
        "drafter": one.setting.drafter,
        "batch_size": one.setting.batch_size,
        "temperature": one.setting.temperature,
        "pays": one.pays,
        "best_num_draft_tokens": one.best if one.pays else 0,
        "speedup": one.speedup.value if one.pays else 1.0,
        "num_steps": one.num_steps,
        "draft_lengths": [
            {
                "num_draft_tokens": cost.depth,
                "step_seconds": cost.seconds,
                "break_even_tokens_per_step": cost.break_even,
                "expected_tokens_per_step": cost.expected,
                "speedup": speedup.value,
                "speedup_low": speedup.low,
                "speedup_high": speedup.high,
                "times_measured": cost.times_measured,
            }
            for cost, speedup in zip(one.depths, one.speedups, strict=True)
        ],
    }
