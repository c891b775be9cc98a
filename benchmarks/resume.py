"""Does it pay to verify from the hidden states that an early exit has left?

B rows, k draft tokens, e layers before the exit.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from typing import Annotated, Any, ClassVar, final

import torch

from benchmarks.decoders import make_decoder, sequences_of, step
from benchmarks.study import (
    Progress,
    Study,
    Taken,
    Target,
    Threads,
    Timing,
    Turns,
    check_counts,
    conditions_of,
    counts,
    date,
    native,
    option,
    plural,
    run_cells,
    sound,
    time_cells,
)
from paceline.api import embedded_pair, load
from paceline.bench.columns import Column, Section
from paceline.bench.raw import RawFile, Record
from paceline.bench.statistics import estimate, paired_ratios
from paceline.core.admission import Prefix
from paceline.core.request import Request
from paceline.decode import Decoder
from paceline.draft_heads.early_exit import EarlyExitConfig, EarlyExitHead
from paceline.drafters.base import Drafter
from paceline.drafters.early_exit import EarlyExitDrafter
from paceline.models.backend import fastest
from paceline.models.base import LM
from paceline.models.native.decoder import DecoderLM

RESUMED, WHOLE, PLAIN = "resumed", "whole", "plain"
AGAIN = f"{RESUMED}, again"  # the control
DRAFTED = (RESUMED, WHOLE, AGAIN)
WARM_UP = 2  # steps
SIZE = (3.6, 3.6)  # inches of a panel
CAPTION = (
    "Above 1 a step that resumes from the exit is faster than one that starts at the embeddings; whiskers are 95 % "
    "intervals. What resuming saves grows with the rows and with the layers that are left out."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A step that both ways take. Raises ValueError for counts that leave no step."""

    exit_layer: int
    num_rows: int
    context: int  # tokens of every row before the first step
    num_draft_tokens: int

    def __post_init__(self) -> None:
        check_counts(**asdict(self))

    @property
    def name(self) -> str:
        rows = plural(self.num_rows)
        return f"exit after {self.exit_layer}, {rows}, {self.context} tokens, k = {self.num_draft_tokens}"

    def avoided(self, num_layers: int) -> float:
        """Share of the verification's arithmetic in its layers that resuming leaves out: all but one node pass e."""
        return self.num_draft_tokens / (self.num_draft_tokens + 1) * self.exit_layer / num_layers


@final
class Steps:
    """One decoder that drafts and one that does not, with the same sequences and room for ``num_steps`` turns.

    All ways that draft are steps of one decoder: two that are alike can differ by more than what is measured, by how
    the system has placed their memory. The head is a new one: what a step costs does not depend on what is accepted,
    and both ways accept the same. Raises ValueError for an exit that the target does not have, and for more tokens than
    its context holds.
    """

    def __init__(self, cell: Cell, *, target: DecoderLM, num_steps: int) -> None:
        lm = fastest(target)
        config = EarlyExitConfig(exit_layer=cell.exit_layer)
        head = EarlyExitHead.make(config, target, generator=torch.Generator().manual_seed(0))
        head.eval().requires_grad_(False)
        self.drafter = EarlyExitDrafter(head=head, lm=fastest(head.decoder))
        room = len(DRAFTED) * num_steps * (cell.num_draft_tokens + 1)
        self.drafted = _begun(cell, lm, self.drafter, cell.num_draft_tokens, room)
        self.plain = _begun(cell, lm, None, 0, num_steps)

    def step(self, name: str) -> None:
        """One whole step of the way called ``name``."""
        self.drafter.resumes = name != WHOLE
        step(self.plain if name == PLAIN else self.drafted)

    def differ(self) -> bool:
        """Whether what was drafted is not how the target goes on."""
        pairs = zip(sequences_of(self.drafted), sequences_of(self.plain), strict=True)
        return any(drafted[: len(plain)] != plain[: len(drafted)] for drafted, plain in pairs)


def _begun(cell: Cell, target: LM, drafter: Drafter | None, num_draft_tokens: int, room: int) -> Decoder:
    decoder = make_decoder(
        target,
        drafter=drafter,
        num_draft_tokens=num_draft_tokens,
        rows=cell.num_rows,
        max_length=cell.context + room,
    )
    tokens = torch.randint(target.vocab_size, (cell.context,), generator=torch.Generator().manual_seed(1)).tolist()
    request = Request(tokens=tokens, max_tokens=room)
    decoder.admit([request], [0])
    if cell.num_rows > 1:  # the others begin with what the first one has read
        others = range(1, cell.num_rows)
        prefix = Prefix(row=0, length=cell.context - 1)
        decoder.admit([request] * len(others), others, [prefix] * len(others))
    return decoder


def turns_of(cell: Cell, *, target: DecoderLM, num_steps: int) -> Turns:
    """``num_steps`` steps of every way. Raises RuntimeError, once timed, where what was drafted is not the target's."""
    steps = Steps(cell, target=target, num_steps=num_steps + WARM_UP)

    def found(taken: Taken) -> Record:
        if steps.differ():
            raise RuntimeError(f"{cell.name}: drafted and plain steps wrote different tokens; please report it")
        seconds = {name: list(values) for name, values in taken.items()}
        return {"num_layers": target.num_layers, "seconds": seconds}

    calls = {name: partial(steps.step, name) for name in (*DRAFTED, PLAIN)}
    return Turns(calls=calls, controls={RESUMED: AGAIN}, found=found)


def _ratio(base: str, other: str) -> Any:
    return lambda record: estimate(paired_ratios(record["seconds"][base], record["seconds"][other]))


def _milliseconds(name: str) -> Any:
    return lambda record: 1000 * estimate(record["seconds"][name]).value


saving, control = _ratio(WHOLE, RESUMED), _ratio(RESUMED, AGAIN)
COLUMNS: list[Column[Record]] = [
    Column("exit", "cell.exit_layer"),
    Column("rows", "cell.num_rows"),
    Column("context", "cell.context"),
    Column("k", "cell.num_draft_tokens"),
    Column("plain ms", _milliseconds(PLAIN), ".2f"),
    Column("resumed ms", _milliseconds(RESUMED), ".2f"),
    Column("avoided", lambda record: Cell(**record["cell"]).avoided(record["num_layers"]), ".0%"),
    Column("saving", saving, ".3f"),
    Column("control", lambda record: f"{control(record).value:.3f}{' (void)' if record['void'] else ''}"),
]
NOTES = [
    "gain: time of a step that verifies from the embeddings over that of one that resumes, above 1 where resuming "
    "pays; median [95 % interval] of paired ratios",
    "avoided: share of the verification's arithmetic in layers that resuming leaves out; a step bound by reading "
    "weights gains nothing from it",
    "control: resuming against itself; (void) where it differed by over 3 %",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume(Study):
    """Does it pay to verify from the hidden states that an early exit has left?

    An exit drafts with the target's first layers. The verification can go on from there, or begin anew. Both ways take
    the same steps in turn and must write the same; what is timed is the whole step.
    """

    kind: ClassVar[str] = "resume"
    title: ClassVar[str] = "Resuming from the exit"

    target: Target = None
    exits: Annotated[tuple[int, ...], counts("Layers before the exit.", name="--exit")] = (2, 4, 8, 12)
    batch: Annotated[tuple[int, ...], counts("Rows of a batch.")] = (1, 4, 16)
    context: Annotated[tuple[int, ...], counts("Tokens of each row before the first step.")] = (64, 512)
    num_draft_tokens: Annotated[int, option("Tokens drafted per step.", name="--k")] = 5
    num_steps: Annotated[int, option("Timed steps of each way.")] = 25
    dtype: Annotated[str | None, option("Precision; the files' own by default.")] = None
    threads: Threads = None

    def check(self) -> None:
        """Raise ValueError for counts that leave no step."""
        check_counts(num_steps=self.num_steps)
        self.cells()

    def cells(self) -> list[Cell]:
        """All combinations."""
        return [
            Cell(exit_layer=layer, num_rows=rows, context=context, num_draft_tokens=self.num_draft_tokens)
            for context, rows, layer in product(self.context, self.batch, self.exits)
        ]

    def measure(self, raw: RawFile, say: Progress) -> None:
        """Put into ``raw`` what it lacks."""
        path = self.target or embedded_pair()[0]
        target = load(path, dtype=self.dtype, device="cuda" if torch.cuda.is_available() else "cpu")
        lm = native(target, path)
        run = raw.begin(conditions_of({"target": path}, target.dtype, num_steps=self.num_steps), date)
        time_cells(
            self.cells(),
            partial(turns_of, target=lm, num_steps=self.num_steps),
            raw=raw,
            identify=run_cells(self.kind, run),
            timing=Timing(repeats=self.num_steps, seconds=0.0),
            warm_up=WARM_UP,
            say=say,
        )

    def sections(self, run: Record, records: Sequence[Record]) -> list[Section[Record]]:
        """A line for every cell."""
        return [Section(title="steps that resume", columns=COLUMNS, lines=self.last(run, records))]

    def notes(self, run: Record, records: Sequence[Record]) -> list[str]:
        """What the figures are."""
        return NOTES

    def draw(self, run: Record, records: Sequence[Record], *, title: str) -> str:
        """Gain over the exit's layer, a panel for every context and a line for every batch."""
        from paceline.bench import drawing  # needs the optional matplotlib

        measured = self.last(run, records)
        lines = sorted(sound(measured), key=lambda record: record["cell"]["exit_layer"])
        contexts = sorted({record["cell"]["context"] for record in lines})

        def panels(axes: Sequence[Any]) -> None:
            for place, context in zip(axes, contexts, strict=True):
                here = [record for record in lines if record["cell"]["context"] == context]
                for rows in sorted({record["cell"]["num_rows"] for record in here}):
                    own = [record for record in here if record["cell"]["num_rows"] == rows]
                    drawing.error_bars(
                        place, [record["cell"]["exit_layer"] for record in own], list(map(saving, own)), plural(rows)
                    )
                drawing.baseline(place)
                drawing.finish(
                    place,
                    x="layers before the exit",
                    y="time, whole over resumed",
                    title=f"{context} tokens of context",
                    columns=3,
                )

        return drawing.draw_panels(
            panels,
            size=(SIZE[0] * len(contexts), SIZE[1]),
            title=title,
            caption=f"{CAPTION}{drawing.left_out(len(measured) - len(lines), len(measured))}",
            columns=len(contexts),
            sharey=True,
        )
