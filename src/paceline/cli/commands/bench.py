"""``paceline bench``: loads models, chooses prompts, runs the benchmark and writes the reports."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.console import Console

from paceline.cli.bench_options import CellOptions, PeerOptions, PromptOptions, TimingOptions
from paceline.cli.command import Command
from paceline.cli.commands.bench_report import Html, write_and_print
from paceline.cli.options import (
    MODEL_OR_HEAD_PATH,
    MODEL_PATH,
    OUTPUT,
    Backend,
    Device,
    DraftQuantization,
    Dtype,
    ModelOptions,
    Quantization,
    Quiet,
    Threads,
)

if TYPE_CHECKING:
    from paceline.bench.prompts import ChosenPrompts
    from paceline.bench.workbench import ModelBench


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench(Command):
    """Time drafting against plain decoding: paired, with a control, for every combination of the options.

    Every cell is timed beside plain decoding, which runs twice: where it differs from itself by more than 3 %, the
    cell is void and timed again. The raw figures are written to a file, cell by cell; after an interruption the same
    command continues. CSV and an HTML page are written beside it, and a table is printed.

    Examples:

        paceline bench
        paceline bench --target DIR --draft DIR --k 1-8 --batch 1,4,16 --num-prompts 16
        paceline bench --drafter ngram --suite copy --peers
        paceline bench --together --peers --k 1-8 --tree 8,16 --peer-k vllm=3,5 --peer-k vllm-lookup=none
        paceline bench --isa avx2,avx512bf16
        paceline bench --isa avx2 --peers
        paceline bench --grid
        paceline bench --acceptance-only --k 8
        paceline bench report bench.jsonl
    """

    target: Annotated[str | None, MODEL_PATH] = None
    """Target model: directory or Hub id; the embedded pair by default."""
    draft: Annotated[str | None, MODEL_OR_HEAD_PATH] = None
    """Draft model with the same vocabulary."""
    cells: CellOptions = field(default_factory=CellOptions)
    others: PeerOptions = field(default_factory=PeerOptions)
    prompts: PromptOptions = field(default_factory=PromptOptions)
    timing: TimingOptions = field(default_factory=TimingOptions)
    dtype: Dtype = None
    device: Device = None
    backend: Backend = "auto"
    threads: Threads = None
    quantization: Quantization = None
    draft_quantization: DraftQuantization = None
    output: Annotated[Path, Parameter(group=OUTPUT)] = Path("bench.jsonl")
    """Raw figures; every finished cell is written at once and not measured again."""
    html: Html = True
    quiet: Quiet = False

    def run(self) -> int:
        """Measure what is missing, write the reports and print the table."""
        from rich.progress import TextColumn, TimeElapsedColumn

        from paceline.bench.instruction_sets import limit_process, read_sets

        self.timing.check(self.others)
        isas = read_sets(self.cells.instruction_sets, backend=self.backend, device=self.device)
        limits = limit_process(isas) if self.others.peers or self.others.peer else {}  # what follows may use torch

        from paceline.api.drafter_files import file_digest
        from paceline.bench.benchmark import add_peers, conditions_of, count_benchmark, run_benchmark
        from paceline.bench.output import check_drawing
        from paceline.bench.raw import RawFile
        from paceline.bench.trees import nodes_of
        from paceline.bench.workbench import check_batches, check_lengths
        from paceline.cli.progress import make_progress

        if self.target is None and self.draft is not None:
            raise ValueError(f"--draft {self.draft}: give --target too, or neither for the embedded pair")
        self.prompts.check()
        axes = self.cells.axes(isas=isas, drafts=self.target is None or self.draft is not None)
        axes, protocol = replace(axes, peer_counts=self.others.counts), self.timing.protocol
        if self.html:
            check_drawing()
        if self.others.peers and (self.quantization or self.draft_quantization):
            raise ValueError("--peers with --quantization: peers run the weights as they are; leave out one of them")
        raw = RawFile(self.output)
        bench, chosen = self._load(isas)
        check_batches(len(bench.prompts), axes.batch_sizes)
        num_nodes = max(1 + max(axes.num_draft_tokens), *(nodes_of(name) or 0 for name, _ in axes.trees), 0)
        check_lengths(bench.target, bench.prompts, axes.max_tokens, num_nodes=num_nodes)
        peers = self.others.find(bench, together=self.timing.together)
        bench, axes = add_peers(bench, axes, peers, together=self.timing.together)
        options: dict[str, object] = {"backend": self.backend, "quantization": self.quantization}
        options |= {"draft_quantization": self.draft_quantization, "peer_limits": limits or None}
        options["drafter_files"] = {name: digest for name in axes.drafters if (digest := file_digest(name))} or None
        conditions = conditions_of(
            bench,
            chosen,
            suite=self.prompts.name,
            options={name: value for name, value in options.items() if value not in (None, "auto")},
        )
        columns = TimeElapsedColumn(), TextColumn("{task.fields[what]}", markup=False)
        try:
            with make_progress(Console(stderr=True), *columns, shown=not self.quiet) as progress:

                def reporting(what: str, total: int) -> Callable[[object, int, str], None]:
                    bar = progress.add_task(what, total=total, what="warming up")
                    return lambda task, done, now: progress.update(bar, completed=done, what=f"{task}: {now}")

                if self.timing.acceptance_only:
                    count_benchmark(bench, axes, raw, conditions=conditions, reporting=reporting)
                else:
                    run_benchmark(
                        bench,
                        axes,
                        raw,
                        protocol=protocol,
                        conditions=conditions,
                        peers=peers,
                        together=self.timing.together,
                        reporting=reporting,
                    )
        except KeyboardInterrupt:
            print(
                f"paceline: interrupted; {self.output} keeps what is done: run the same command to continue",
                file=sys.stderr,
            )
            raise
        return write_and_print(self.output, raw.records, html=self.html)

    def _load(self, isas: Sequence[str]) -> "tuple[ModelBench, ChosenPrompts]":
        """Models and prompts, loaded."""
        from paceline.api import embedded_pair, load
        from paceline.bench.benchmark import find_heads
        from paceline.bench.workbench import ModelBench, Models, load_sets
        from paceline.models import hub
        from paceline.models.directory import is_hub_id

        def folder(model: str | Path) -> Path:
            return hub.fetch(str(model), None) if is_hub_id(model) else Path(model)

        names = embedded_pair() if self.target is None else (self.target, self.draft)
        target_path, draft_path = folder(names[0]), None if names[1] is None else folder(names[1])

        def load_models() -> Models:
            target = ModelOptions(
                model=str(target_path),
                dtype=self.dtype,
                device=self.device,
                threads=self.threads,
                backend=self.backend,
                quantization=self.quantization,
            ).load()
            options = {"dtype": target.dtype, "device": target.lm.device, "quantization": self.draft_quantization}
            return Models(target=target, draft=draft_path and load(draft_path, **options))

        sets = load_sets(isas, load_models)
        models = next(iter(sets.values())) if sets else load_models()
        chosen = self.prompts.choose(models.target)
        bench = ModelBench(
            target=models.target,
            draft=models.draft,
            target_path=target_path,
            draft_path=draft_path,
            prompts=chosen.tokens,
            seed=self.prompts.seed,
            heads=find_heads(self.cells.drafters),
            sets=sets,
        )
        return bench, chosen
