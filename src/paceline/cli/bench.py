"""The command ``paceline bench``: loads, chooses prompts, sweeps, reports. Knows nothing of how cells are timed."""

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from paceline.api import Loaded, embedded_pair, load
from paceline.bench.absent import failures_of, keep_peers, missing_of
from paceline.bench.duels import choose_duels, duel_figures_of, keep_choices, undecided
from paceline.bench.figures import figures_of
from paceline.bench.machine import describe, hash_source
from paceline.bench.output import check_drawing, print_tables, write_reports
from paceline.bench.peers import PEERS, find_peers
from paceline.bench.peers.base import Missing, Peer
from paceline.bench.raw import RawFile, Record, fingerprint, hash_model, read_records
from paceline.bench.sweep import Axes, Protocols, Task, begin_run, run_sweep
from paceline.bench.workbench import MODEL, ModelBench, check_batches, check_lengths, check_peers
from paceline.cli import EXIT_OK
from paceline.cli.bench_inputs import ChosenPrompts, choose_prompts, read_counts, read_temperatures
from paceline.cli.models import check_model, check_quantization
from paceline.cli.options import ModelOptions
from paceline.drafters import DRAFTERS
from paceline.models import hub

GRID_DRAFT_TOKENS, GRID_MAX_TOKENS = "1,2,4,8", "50,100,200,500"
DRAFT_TOKENS, MAX_TOKENS = "1-8", "64"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The command's options; ``run`` returns the exit code."""

    target: str | None
    draft: str | None
    drafters: list[str] | None
    num_draft_tokens: str | None
    batch_sizes: str
    temperatures: str
    max_tokens: str | None
    peers: bool
    peer: list[str] | None
    vllm: Path | None
    llama_cpp: Path | None
    grid: bool
    suite: str | None
    prompt_file: Path | None
    questions: Path | None
    num_prompts: int | None
    seed: int
    repeats: int
    attempts: int
    dtype: str | None
    device: str | None
    backend: str
    threads: int | None
    quantization: str | None
    draft_quantization: str | None
    output: Path
    html: bool
    quiet: bool

    def run(self) -> int:
        """Measure what is missing, write the reports and print the table."""
        axes, protocol = self._axes(), Protocols(repeats=self.repeats, attempts=self.attempts)
        if self.html:
            check_drawing()
        if self.peers and (self.quantization or self.draft_quantization):
            raise ValueError("--peers with --quantization: peers run the weights as they are; leave out one of them")
        raw = RawFile(self.output)
        bench, chosen = self._bench()
        check_batches(len(bench.prompts), axes.batch_sizes)
        check_lengths(bench.target, bench.prompts, axes.max_tokens, num_nodes=1 + max(axes.num_draft_tokens))
        found = self._peers(bench)
        bench = replace(bench, peers=[peer for peer in found if not isinstance(peer, Missing)])
        axes = replace(axes, peers=[peer.ways for peer in bench.peers])
        conditions = self._conditions(bench, chosen)
        notes = {"date": datetime.now(UTC).isoformat(timespec="seconds")}
        if found:
            run = begin_run(raw, conditions=conditions, notes=notes, protocol=protocol)
            keep_peers(found, raw=raw, run=run)
        try:
            with ExitStack() as stack:
                for peer in bench.peers:
                    stack.callback(peer.close)
                progress = stack.enter_context(_progress(Console(stderr=True), shown=not self.quiet))

                def measure(tasks: Sequence[Task], what: str) -> str:
                    bar = progress.add_task(what, total=len(tasks), what="warming up")
                    return run_sweep(
                        tasks,
                        workbench=bench,
                        raw=raw,
                        conditions=conditions,
                        notes=notes,
                        protocol=protocol,
                        progress=lambda task, done, what: progress.update(bar, completed=done, what=f"{task}: {what}"),
                    )

                run = measure(axes.cells(), "cells")
                choices = choose_duels(figures_of(raw.records), run=run, axes=axes)
                if choices:
                    measure(keep_choices(choices, raw=raw, run=run), "best against best")
        except KeyboardInterrupt:
            print(
                f"paceline: interrupted; {self.output} keeps what is done: run the same command to go on",
                file=sys.stderr,
            )
            raise
        return _report(self.output, raw.records, html=self.html, console=Console(highlight=False))

    def _axes(self) -> Axes:
        """What is combined. Raises ValueError for what cannot be."""
        if (self.target is None) != (self.draft is None) and self.target is None:
            raise ValueError(f"--draft {self.draft}: give --target too, or neither for the embedded pair")
        if self.grid and (self.num_draft_tokens is not None or self.max_tokens is not None):
            raise ValueError("--grid with --k or --max-tokens: the grid sets both; leave them out, or --grid")
        if len([source for source in (self.suite, self.prompt_file, self.questions) if source is not None]) > 1:
            raise ValueError("--suite, --prompt-file and --questions: give one of them")
        drafts = self.target is None or self.draft is not None
        default = [MODEL] if self.grid and drafts else ["ngram", *([MODEL] if drafts else [])]
        drafters = self.drafters or default
        known = [name for name in DRAFTERS if name not in ("none", MODEL)] + ([MODEL] if drafts else [])
        for name in drafters:
            if name not in known:
                raise ValueError(f"--drafter {name}: known here are {', '.join(known)}; model needs --draft DIR")
        lengths, tokens = (GRID_DRAFT_TOKENS, GRID_MAX_TOKENS) if self.grid else (DRAFT_TOKENS, MAX_TOKENS)
        return Axes(
            drafters=list(dict.fromkeys(drafters)),
            num_draft_tokens=read_counts(self.num_draft_tokens or lengths, option="--k"),
            batch_sizes=read_counts(self.batch_sizes, option="--batch"),
            temperatures=read_temperatures(self.temperatures),
            max_tokens=read_counts(self.max_tokens or tokens, option="--max-tokens"),
        )

    def _peers(self, bench: ModelBench) -> list[Peer | Missing]:
        """Those asked for. Raises ValueError for one that is asked for by name and missing."""
        names = list(PEERS) if self.peers else self.peer or []
        if names:
            check_peers(bench.target, bench.draft)
        found = find_peers(names, bench.setting(), vllm_python=self.vllm, llama_cpp_folder=self.llama_cpp)
        for peer in found:
            if isinstance(peer, Missing) and peer.name in (self.peer or []):
                raise ValueError(f"--peer {peer.name} is missing: {peer.reason}")
        return found

    def _bench(self) -> tuple[ModelBench, ChosenPrompts]:
        """Models and prompts, loaded."""
        if self.num_prompts is not None and self.num_prompts < 1:
            raise ValueError(f"--num-prompts {self.num_prompts}: give at least 1")
        names = list(embedded_pair()) if self.target is None else [self.target, self.draft]
        options = ModelOptions(
            model=str(names[0]),
            dtype=self.dtype,
            device=self.device,
            threads=self.threads,
            revision=None,
            trust_remote_code=False,
            backend=self.backend,
            quantization=self.quantization,
        )
        check_model(options)
        check_quantization(self.draft_quantization, option="--draft-quantization")
        paths = [None if name is None else _folder(name) for name in names]
        target_path, draft_path = paths
        assert target_path is not None
        target = load(
            target_path,
            dtype=self.dtype,
            device=self.device,
            backend=self.backend,
            threads=self.threads,
            quantization=self.quantization,
        )
        draft = None if draft_path is None else self._load_draft(draft_path, target)
        chosen = choose_prompts(
            target,
            suite=self.suite or "code",
            prompt_file=self.prompt_file,
            questions=self.questions,
            count=self.num_prompts,
            seed=self.seed,
        )
        bench = ModelBench(
            target=target,
            draft=draft,
            target_path=target_path,
            draft_path=draft_path,
            prompts=chosen.tokens,
            seed=self.seed,
        )
        return bench, chosen

    def _load_draft(self, path: Path, target: Loaded) -> Loaded:
        return load(path, dtype=target.dtype, device=target.lm.device, quantization=self.draft_quantization)

    def _conditions(self, bench: ModelBench, chosen: ChosenPrompts) -> Record:
        """What must be equal for figures to belong together."""
        draft = None if bench.draft_path is None else _identity(bench.draft_path)
        source = self.prompt_file or self.questions
        return {
            "machine": describe().identity(),
            "source": hash_source(),
            "num_threads": torch.get_num_threads(),
            "dtype": str(bench.target.dtype).removeprefix("torch."),
            "device": str(bench.target.lm.device),
            **({} if self.backend == "auto" else {"backend": self.backend}),
            **({} if self.quantization is None else {"quantization": self.quantization}),
            **({} if self.draft_quantization is None else {"draft_quantization": self.draft_quantization}),
            "target": _identity(bench.target_path),
            "draft": draft,
            "suite": (self.suite or "code") if source is None else source.name,
            "prompts": {
                "count": len(bench.prompts),
                "tokens": sum(map(len, bench.prompts)),
                "hash": fingerprint({"prompts": [list(prompt) for prompt in bench.prompts]}),
                "categories": chosen.categories,
            },
            "seed": self.seed,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The reports of raw figures, made again."""

    raw: Path
    html: bool

    def run(self) -> int:
        """Write CSV and HTML, and print the table."""
        return _report(self.raw, read_records(self.raw), html=self.html, console=Console(highlight=False))


def _report(path: Path, records: list[Record], *, html: bool, console: Console) -> int:
    figures = figures_of(records)
    if not figures:
        raise ValueError(f"{path}: no cells in it: there is nothing to report yet")
    written = write_reports(path, html=html)
    print_tables(records, console)
    duels = duel_figures_of(records)
    for lines, what in ((figures, "cells are void: plain decoding"), (duels, "duels are void: the other side")):
        void = sum(line.void for line in lines)
        if not void:
            continue
        note = f"{void} of {len(lines)} {what} differed from itself, the machine was not quiet."
        console.print(f"{note} With more --attempts the same command times them again.", soft_wrap=True)
    for line in (*missing_of(records), *failures_of(records)):
        console.print(str(line), soft_wrap=True, markup=False)
    for group in undecided(records):
        note = f"No drafted pair meets best against best at {group}: no sound cell of one of the sides to choose from."
        console.print(note, soft_wrap=True)
    console.print(f"raw figures: {path}; written: {', '.join(map(str, written))}", soft_wrap=True, markup=False)
    return EXIT_OK


def _folder(model: str | Path) -> Path:
    return hub.fetch(str(model), None) if hub.is_hub_id(model) else Path(model)


def _identity(folder: Path) -> Record:
    """Name and content of a model; not where it lies."""
    return {"name": folder.name, "hash": hash_model(folder)}


def _progress(console: Console, *, shown: bool) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[what]}", markup=False),
        console=console,
        disable=not (shown and console.is_terminal),
        transient=True,
    )
