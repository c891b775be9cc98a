"""What a step pays for each sampling option, by rows, draft and vocabulary.

Steps of one decoder that can take any option and be rewound. R rows, k draft tokens, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any, ClassVar, final

import torch

from benchmarks.decoders import make_decoder, start_rows, step
from benchmarks.study import (
    Precision,
    ProcessorTime,
    Progress,
    Repeats,
    Seconds,
    Study,
    Taken,
    Timing,
    Turns,
    check_counts,
    conditions_of,
    counts,
    date,
    last_of,
    named,
    option,
    plural,
    time_cells,
)
from paceline.api import load
from paceline.api.loading import runnable
from paceline.bench.columns import Column, Section
from paceline.bench.raw import RawFile, Record
from paceline.bench.statistics import Estimate, estimate, paired_ratios
from paceline.bench.suites import PYTHON_PROMPTS
from paceline.bench.timing import read_rate
from paceline.core.request import Processing, Request
from paceline.core.sampling import FilterOrder, Sampling
from paceline.drafters.model import ModelDrafter
from paceline.models.base import LM
from paceline.text.tokenizer import Tokenizer

PROMPT, CONTEXT = 48, 160  # tokens of a row's prompt, and of all before the step
TEMPERATURE = 0.8
NUM_BIASED, NUM_WORDS = 64, 32
GREEDY, SAMPLED = "greedy", f"T = {TEMPERATURE}"  # steps that options are compared with
ALL = "all of these"
AGAIN = {GREEDY: f"{GREEDY}, again", SAMPLED: f"{SAMPLED}, again"}  # the controls
COMMON = 0.03  # share of a step that options of everyday use are meant to stay under


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option of every row, and the step without it."""

    name: str
    reference: str | None  # its name; None for the references themselves
    sampling: Sampling = field(default_factory=Sampling)
    processing: Processing = field(default_factory=Processing)
    waits: bool = False  # no stop token in this step
    logprobs: int | None = None
    common: bool = True  # of everyday use


def options_for(vocab_size: int) -> list[Option]:
    """References first; each option alone against the reference that has as much else, and the common ones together."""
    sampled = Sampling(temperature=TEMPERATURE)
    distant = [number * (vocab_size // (NUM_BIASED + 1)) for number in range(1, NUM_BIASED + 1)]
    bias = tuple(((token,), 0.5) for token in distant)
    words = tuple(((token, token - 1, token // 2), -float("inf")) for token in distant[:NUM_WORDS])
    penalties = Processing(repetition_penalty=1.1, frequency_penalty=0.2, presence_penalty=0.1)

    def process(name: str, processing: Processing, *, common: bool = True) -> Option:
        return Option(name=name, reference=GREEDY, processing=processing, common=common)

    def sample(name: str, *, common: bool = True, **given: float | FilterOrder) -> Option:
        return Option(name=name, reference=SAMPLED, sampling=replace(sampled, **given), common=common)

    return [
        Option(name=GREEDY, reference=None),
        Option(name=SAMPLED, reference=None, sampling=sampled),
        Option(name="temperature", reference=GREEDY, sampling=sampled),
        sample("top_k=50", top_k=50),
        sample("top_p=0.95", top_p=0.95),
        sample("min_p=0.05", min_p=0.05),
        sample("min_p=0.05, as vLLM", min_p=0.05, order=FilterOrder.VLLM),
        process("repetition_penalty", Processing(repetition_penalty=1.1)),
        process("frequency_penalty", Processing(frequency_penalty=0.2)),
        process("presence_penalty", Processing(presence_penalty=0.1)),
        process(f"logit_bias of {NUM_BIASED}", Processing(bias=bias)),
        Option(name="min_tokens", reference=GREEDY, waits=True),
        Option(name="logprobs=5", reference=GREEDY, logprobs=5),
        Option(name="logprobs=5, sampled", reference=SAMPLED, sampling=sampled, logprobs=5),
        Option(
            name=ALL,
            reference=GREEDY,
            sampling=replace(sampled, top_k=50, top_p=0.95, min_p=0.05),
            processing=replace(penalties, bias=bias),
            waits=True,
            logprobs=5,
        ),
        process("allowed tokens", Processing(allowed=tuple(range(vocab_size // 2))), common=False),
        process(f"bad words, {NUM_WORDS}", Processing(bias=words), common=False),
        process("no_repeat_ngram=3", Processing(no_repeat_ngram=3), common=False),
        sample("typical_p=0.9", typical_p=0.9, common=False),
        sample("epsilon_cutoff", epsilon_cutoff=3e-4, common=False),
        sample("eta_cutoff", eta_cutoff=2e-3, common=False),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A step that all options are timed in. Raises ValueError for counts that leave no step."""

    num_rows: int
    num_draft_tokens: int

    def __post_init__(self) -> None:
        check_counts(rows=self.num_rows)
        check_counts(0, k=self.num_draft_tokens)

    @property
    def name(self) -> str:
        return f"{plural(self.num_rows)}, {f'k = {self.num_draft_tokens}' if self.num_draft_tokens else 'plain'}"


@final
class Steps:
    """A decoder that is before the same step whatever its rows ask for; the tokens are the target's own."""

    def __init__(self, cell: Cell, *, target: LM, draft: LM, tokenizer: Tokenizer, itemsize: int) -> None:
        depth = cell.num_draft_tokens
        self._room = 2 * (depth + 1)  # no row ends in the step
        self.options = {option.name: option for option in options_for(target.vocab_size)}
        self.vocab_size = target.vocab_size
        self.logits_bytes = cell.num_rows * (2 * depth + 1) * self.vocab_size * itemsize  # the draft's included
        self._draft = ModelDrafter(lm=draft) if depth else None
        self._decoder = make_decoder(
            target,
            drafter=self._draft,
            num_draft_tokens=depth,
            rows=cell.num_rows,
            max_length=CONTEXT + self._room + 2,
        )
        encoded = [tokenizer.encode(PYTHON_PROMPTS[row % len(PYTHON_PROMPTS)]) for row in range(cell.num_rows)]
        prompts = [(tokens * (PROMPT // len(tokens) + 1))[:PROMPT] for tokens in encoded]
        requests = [Request(tokens=tokens, max_tokens=CONTEXT - PROMPT + 1) for tokens in prompts]
        self._decoder.admit(requests, range(cell.num_rows))
        while bool(self._decoder.batch.active.any()):
            self._decoder.step()
        self._sequences: list[list[int]] = self._decoder.batch.tokens[:, :CONTEXT].tolist()

    @torch.inference_mode()
    def rewind(self, name: str) -> None:
        """To before the step, its rows asking for the option ``name``: untimed."""
        option, batch = self.options[name], self._decoder.batch
        requests = [
            Request(
                tokens=tokens,
                max_tokens=self._room,
                sampling=replace(option.sampling, seed=row),
                processing=option.processing,
                stop_tokens=[0, 1] if option.waits else [],
                min_tokens=self._room if option.waits else 0,
                logprobs=option.logprobs,
            )
            for row, tokens in enumerate(self._sequences)
        ]
        start_rows(batch, requests)
        written = batch.tokens[:, PROMPT:CONTEXT]
        batch.processing.count(written, torch.ones_like(written, dtype=torch.bool))
        self._decoder.cache.truncate(CONTEXT - 1)  # all but the root
        if self._draft is not None:
            self._draft.cache.truncate(CONTEXT - 2)  # as after a draft that was accepted whole

    def step(self) -> None:
        """One whole step, and what the host reads of it."""
        step(self._decoder)


def turns_of(steps: Steps) -> Turns:
    """A step with every option, all of them in turn, the references twice."""
    names = {**{name: name for name in steps.options}, **{again: name for name, again in AGAIN.items()}}

    def found(taken: Taken) -> Record:
        options = {name: option for name, option in steps.options.items() if option.reference}
        return {
            "vocab": steps.vocab_size,
            "logits_bytes": steps.logits_bytes,
            "controls": {name: median(paired_ratios(taken[name], taken[again])) for name, again in AGAIN.items()},
            "references": {name: option.reference for name, option in options.items()},
            "common": [name for name, option in options.items() if option.common],
            "seconds": {name: list(values) for name, values in taken.items()},
        }

    return Turns(
        calls=dict.fromkeys(names, steps.step),
        before={name: partial(steps.rewind, option) for name, option in names.items()},
        controls=AGAIN,
        found=found,
    )


def added(record: Record, option: str) -> Estimate | None:
    """What one option, or a control, adds to a step, as a share of it; 0.01 is a hundredth."""
    pairs = {**{again: name for name, again in AGAIN.items()}, **record["references"]}
    if option not in pairs:
        return None
    ratio = estimate(paired_ratios(record["seconds"][option], record["seconds"][pairs[option]]))
    return Estimate(value=ratio.value - 1, low=ratio.low - 1, high=ratio.high - 1)


def _column(record: Record, rate: float) -> Column[str]:
    def text(line: str) -> str | None:
        if line in (GREEDY, SAMPLED):
            return f"{1000 * estimate(record['seconds'][line]).value:.1f} ms"
        if line == "floor":
            reading = record["logits_bytes"] / rate  # once more, the logits that a step chooses from
            return f"+{reading / estimate(record['seconds'][GREEDY]).value:.2%}"
        found = added(record, line)
        if found is None:
            return None
        return f"{'!' if line in record['common'] and found.value > COMMON else ''}{found:+.1%}"

    name = Cell(num_rows=record["rows"], num_draft_tokens=record["k"]).name
    return Column(name + (" (void)" if record["void"] else ""), text)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingCost(Study):
    """What a step pays for each sampling option, by rows, draft and vocabulary.

    Whole steps with the option and without take turns. A pair is a target and its draft; more than one may be given.
    """

    kind: ClassVar[str] = "options"
    title: ClassVar[str] = "Sampling options"

    target: Annotated[tuple[Path, ...], option("Directory; may be repeated, each with a --draft.")] = ()
    draft: Annotated[tuple[Path, ...], option("Directory of its draft model.")] = ()
    dtype: Precision = "bfloat16"
    rows: Annotated[tuple[int, ...], counts("Of a batch.")] = (1, 8)
    k: Annotated[tuple[int, ...], counts("Draft tokens, 0 for plain decoding.")] = (0, 5)
    repeats: Repeats = 15
    seconds: Seconds = 25.0
    processor_time: ProcessorTime = False

    def check(self) -> None:
        """Raise ValueError for models that make no pairs."""
        if not self.report and not 0 < len(self.target) == len(self.draft):
            raise ValueError("give --target and --draft, once for each pair, or --report to print what the file holds")

    def measure(self, raw: RawFile, say: Progress) -> None:
        """Put into ``raw`` what it lacks, pair by pair."""
        timing = Timing(repeats=self.repeats, seconds=self.seconds, processor_time=self.processor_time)
        cells = [Cell(num_rows=rows, num_draft_tokens=k) for rows in self.rows for k in self.k]
        for paths in zip(self.target, self.draft, strict=True):
            target, draft = (load(path, dtype=self.dtype, device="cpu") for path in paths)
            if target.tokenizer is None:
                raise ValueError(f"--target {paths[0]}: it has no tokenizer, and prompts are texts")
            choices = {name: getattr(self, name) for name in ("repeats", "seconds", "processor_time")}
            run = raw.begin(
                conditions_of(named(paths), target.dtype, **choices),
                lambda: {**date(), "bytes_per_second": read_rate()},
            )
            lms = {"target": runnable(target), "draft": runnable(draft)}
            given = {**lms, "tokenizer": target.tokenizer, "itemsize": target.dtype.itemsize}
            time_cells(
                cells,
                lambda cell, given=given: turns_of(Steps(cell, **given)),
                raw=raw,
                identify=partial(_identity, run),
                timing=timing,
                say=say,
            )

    def sections(self, run: Record, records: Sequence[Record]) -> list[Section[Any]]:
        """A line for every option, a column for every cell."""
        cells = last_of(records, run["run"], self.kind, lambda record: (record["rows"], record["k"]))
        references, common = cells[0]["references"], cells[0]["common"]

        def name(line: str) -> str:
            if line in (GREEDY, SAMPLED):
                return f"step, {line}"
            base = references.get(line) or (SAMPLED if line == AGAIN[SAMPLED] else GREEDY)
            return line + (" (T)" if base == SAMPLED else "") + (" *" if line in common else "")

        columns = [Column("option", name, left=True)]
        columns += [_column(record, run["notes"]["bytes_per_second"]) for record in cells]
        lines = [GREEDY, SAMPLED, "floor", *AGAIN.values(), *references]
        return [Section(title=f"vocabulary {cells[0]['vocab']:,}", columns=columns, lines=lines, ends=[2])]

    def notes(self, run: Record, records: Sequence[Record]) -> list[str]:
        """What the figures are."""
        return [
            "what an option adds to a step, median [95 % interval] of paired ratios; "
            f"to a {GREEDY} one, or (T) to one at {SAMPLED}",
            f"*: in everyday use; over {COMMON:.0%} is marked with !; (void): a reference differed from itself by over "
            "3 %",
            "floor: reading all logits of a step, the draft's included, once more at the rate that memory was read",
        ]


def _identity(run: str, cell: Cell) -> Record:
    return {"kind": SamplingCost.kind, "run": run, "rows": cell.num_rows, "k": cell.num_draft_tokens}
