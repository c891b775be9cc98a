"""Prophets beside early exits: tables and a picture."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.even_decoding import CONTROL, PLAIN, flat, tokens_per_step
from benchmarks.head_cells import cost, place
from paceline.bench.columns import Column
from paceline.bench.raw import Record
from paceline.bench.statistics import Estimate, pooled_ratio
from paceline.core.stats import Summary

DEPTH = 4  # drafted tokens, where heads are compared by what they accept
ANCHORS, TRAINED_DEPTH = 64, 6  # of a prophet in training
SHARES = {"eighth": 1 / 8, "quarter": 1 / 4, "half": 1 / 2}  # of the layers of a target


@dataclass(frozen=True, slots=True)
class Head:
    """A head by what is compared: its blocks, the layers of the target below them, and whether it recycles states."""

    blocks: int
    share: str | None = None  # of the target's layers that an early exit runs, from SHARES; None: a prophet
    recycle: bool = False

    @property
    def kind(self) -> str:
        return "prophet" if self.share is None else "early_exit"

    @property
    def name(self) -> str:
        """Of its directory, and in tables: the same for all targets."""
        where = "prophet" if self.share is None else f"exit-{self.share}"
        return f"{where}-{self.blocks}{'-recycled' if self.recycle else ''}"

    def config(self, layers: int) -> dict[str, Any]:
        """As a training run on a target of so many layers wants it."""
        if self.share is None:
            return {"num_states": 2, "num_blocks": self.blocks, "depth": TRAINED_DEPTH, "anchors": ANCHORS}
        layer = max(1, round(layers * SHARES[self.share]))
        return {"exit_layer": layer, "num_blocks": self.blocks, "recycle": self.recycle}


HEADS = (
    *(
        Head(blocks, share, recycle)
        for recycle in (False, True)
        for share, blocks in (("eighth", 1), ("quarter", 1), ("half", 1), ("quarter", 2))
    ),
    Head(1),
    Head(2),
)


@dataclass(frozen=True, slots=True)
class Line:
    """A head on one target, at one temperature and batch size."""

    where: str
    size: str
    temperature: float
    batch_size: int
    head: str
    tokens: Estimate  # per step, with DEPTH drafted tokens
    cost: float | None  # of drafting a token, in plain steps
    depth: int  # the fastest draft length
    speedup: Estimate  # over plain decoding, with it
    control: float
    num_looping: int  # prompts left out
    void: bool


COLUMNS: list[Column[Line]] = [
    Column("head", "head", left=True),
    Column("tokens per step", "tokens", ".2f"),
    Column("cost", "cost", ".3f", timed=True),
    Column("best k", "depth"),
    Column("over plain", "speedup", ".2f", timed=True, estimate=True),
    Column("control", "control", ".3f"),
]


def lines_of(record: Record) -> list[Line]:
    """Of every head of a cell."""
    cell = record["cell"]
    seconds = {name: flat(parts) for name, parts in record["seconds"].items()}
    summaries = {name: [Summary(**one) for one in rows] for name, rows in record["summaries"].items()}
    lines = []
    for head, depth in record["best"].items():
        compared, fastest = f"{head} {DEPTH}", f"{head} {depth}"
        own = summaries[compared]
        lines.append(
            Line(
                where=f"target of {cell['size']}, {place(cell['temperature'], cell['batch_size'])}",
                size=cell["size"],
                temperature=cell["temperature"],
                batch_size=cell["batch_size"],
                head=head,
                tokens=tokens_per_step(own),
                cost=cost(record, compared),
                depth=depth,
                speedup=pooled_ratio(seconds[PLAIN], seconds[fastest]),
                control=pooled_ratio(seconds[PLAIN], seconds[CONTROL]).value,
                num_looping=record["num_looping"],
                void=record["void"],
            )
        )
    return lines


def draw(lines: Sequence[Line], *, title: str) -> str:
    """Tokens per step above, speed below: a column for each temperature and batch size, a series for each target."""
    from paceline.bench import drawing  # needs the optional matplotlib

    places = list(dict.fromkeys((line.temperature, line.batch_size) for line in lines))
    sizes = list(dict.fromkeys(line.size for line in lines))
    heads = list(dict.fromkeys(line.head for line in lines))

    def show(axes: Any, own: Sequence[Line], values: Sequence[Estimate], size: str) -> None:
        at = sizes.index(size)
        x = [heads.index(line.head) + 0.2 * (at - 1) for line in own]
        drawing.error_bars(axes, x, values, size, **{**drawing.series(at), "linestyle": ""})

    def panels(axes: Sequence[Any]) -> None:
        for at, which in enumerate(places):
            accepted, fast = axes[at], axes[at + len(places)]
            for size in sizes:
                own = [line for line in lines if (line.temperature, line.batch_size) == which and line.size == size]
                show(accepted, own, [line.tokens for line in own], size)
                sound = [line for line in own if not line.void]
                show(fast, sound, [line.speedup for line in sound], size)
            drawing.baseline(fast)
            for panel, label in ((accepted, "tokens per step"), (fast, "speed over plain decoding")):
                panel.set_xticks(range(len(heads)), heads, rotation=60, ha="right")
                drawing.finish(panel, y="" if at else label, title=place(*which), columns=3)

    return drawing.draw_panels(
        panels,
        size=(3.4 * len(places), 7.6),
        title=title,
        caption=f"Above: with {DEPTH} drafted tokens. Below: with the fastest draft length of each head.",
        rows=2,
        columns=len(places),
    )
