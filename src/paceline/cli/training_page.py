"""The page of a training run: one sentence, the curves of loss and acceptance, every validation. Needs matplotlib."""

import shlex
from collections.abc import Sequence
from importlib.resources import files

import jinja2
from markupsafe import Markup
from matplotlib.axes import Axes

from paceline.bench.drawing import draw_panels, error_bars, finish, series
from paceline.bench.statistics import Estimate
from paceline.train.config_file import dump
from paceline.train.history import HELD_OUT_LOSS, LENGTH, VALIDATION, History, Line
from paceline.train.outcome import next_command
from paceline.train.resume_check import CONFIG_FILE

PANEL = 4.8, 3.2  # inches
STEP = "step"


def summary(history: History) -> str:
    """How far the run is, its loss, and its acceptance at the last validation."""
    done, steps = history.done, history.config.schedule.steps
    said = [f"{done:,} of {steps:,} steps are done{'' if done < steps or history.finished else ', the end is missing'}"]
    losses = history.curve("loss")[1]
    if losses:
        said.append(f"loss {losses[-1]:.3f}" + (f", {losses[0]:.3f} at first" if len(losses) > 1 else ""))
    lengths = [f"{_lengths(history, one)[1][-1]:.2f} by {_spell(one)}" for one in history.measured]
    if lengths:
        said.append(f"mean acceptance length at the last validation, in tokens per step: {'; '.join(lengths)}")
    elif history.curve(HELD_OUT_LOSS)[1]:
        said.append(f"held-out loss {history.curve(HELD_OUT_LOSS)[1][-1]:.3f}")
    else:
        said.append(
            f"no validation has measured anything yet, one follows every {history.config.validation.every} steps"
        )
    return f"{'. '.join(one[0].upper() + one[1:] for one in said)}."


def next_step(history: History) -> str:
    """The command that uses what was trained, or the one that goes on."""
    if history.finished:
        last = {name: value for line in history.validations for name, value in line.items() if value is not None}
        return f"next: {next_command(history.config, last)}"
    words = ["paceline", "train", str(history.folder / CONFIG_FILE)]
    if history.config.output.resolve() != history.folder.resolve():
        words += ["--set", f"output={history.folder}"]
    return f"next, unless it is still running: {shlex.join(words)}"


def draw_curves(history: History) -> str:
    """The SVG: loss, mean acceptance length with its intervals, and a panel of acceptance by position for each."""
    measured = history.measured
    num_panels = 1 + bool(measured) + len(measured)
    columns = min(2, num_panels)
    rows = -(-num_panels // columns)

    def draw(panels: Sequence[Axes]) -> None:
        for axes in panels[num_panels:]:
            axes.set_axis_off()
        _draw_losses(panels[0], history)
        if measured:
            _draw_lengths(panels[1], history)
        for axes, one in zip(panels[2:], measured, strict=False):
            _draw_positions(axes, history, one)

    return draw_panels(draw, size=(PANEL[0] * columns, PANEL[1] * rows), rows=rows, columns=columns)


def make_page(history: History, drawing: str) -> str:
    """The HTML page, which loads nothing; everything in it but ``drawing`` is escaped."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    template = environment.from_string(files("paceline.cli").joinpath("training_page.html.j2").read_text("utf-8"))
    return template.render(
        title=f"Training run: {history.folder}",
        summary=summary(history),
        next=next_step(history),
        drawing=Markup(drawing),
        headings=[STEP, *_headings(history)],
        rows=[[line["step"], *_cells(history, line)] for line in history.validations],
        lengthened=history.lengthened,
        configuration=dump(history.config),
    )


def _draw_losses(axes: Axes, history: History) -> None:
    steps, losses = history.curve("loss")
    axes.plot(steps, losses, label="training batches", **{**series(0), "marker": "" if len(steps) > 1 else "o"})
    steps, losses = history.curve(HELD_OUT_LOSS)
    if steps:
        axes.plot(steps, losses, label="the target on held-out text, nats per token", **series(1))
    for step in history.lengthened:
        axes.axvline(step, color="grey", linestyle=":", label=f"lengthened after step {step}")
    finish(axes, x=STEP, y="loss", columns=1)


def _draw_lengths(axes: Axes, history: History) -> None:
    for at, one in enumerate(history.measured):
        steps, lengths = _lengths(history, one)
        ends = [history.curve(f"{VALIDATION}{one}.{end}")[1] for end in ("low", "high")]
        values = [Estimate(value=value, low=low, high=high) for value, low, high in zip(lengths, *ends, strict=True)]
        error_bars(axes, steps, values, _spell(one), **series(at))
    finish(axes, x=STEP, y="tokens per step", title="mean acceptance length")


def _draw_positions(axes: Axes, history: History, measured: str) -> None:
    for at, name in enumerate(history.positions(measured)):
        axes.plot(*history.curve(name), label=f"position {at + 1}", **series(at))
    axes.set_ylim(0, 1)
    finish(axes, x=STEP, y="acceptance rate", title=_spell(measured), columns=3)


def _lengths(history: History, measured: str) -> tuple[list[int], list[float]]:
    return history.curve(f"{VALIDATION}{measured}.{LENGTH}")


def _spell(measured: str) -> str:
    """ "prophet.t1" in words."""
    name, _, sampling = measured.rpartition(".")
    return f"{name} {'greedy' if sampling == 'greedy' else f'at temperature {sampling[1:]}'}"


def _headings(history: History) -> list[str]:
    """Of the table of validations, after the step."""
    loss = ["held-out loss"] if history.curve(HELD_OUT_LOSS)[0] else []
    return [
        *loss,
        *(f"{_spell(one)}{what}" for one in history.measured for what in (": tokens per step", ", by position")),
    ]


def _cells(history: History, line: Line) -> list[str]:
    """What a validation measured, as those headings say; empty where every output looped."""
    cells = [_number(line.get(HELD_OUT_LOSS), ".3f")] if history.curve(HELD_OUT_LOSS)[0] else []
    for one in history.measured:
        length, low, high = (_number(line.get(f"{VALIDATION}{one}.{end}")) for end in (LENGTH, "low", "high"))
        cells.append(f"{length} ({low} to {high})" if length else "")
        cells.append(" ".join(_number(line.get(name)) for name in history.positions(one)))
    return cells


def _number(value: float | None, form: str = ".2f") -> str:
    return "" if value is None else f"{value:{form}}"
