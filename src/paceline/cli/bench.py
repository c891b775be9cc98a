"""The command ``paceline bench``: loads, chooses prompts, sweeps, reports. Knows nothing of how cells are timed."""

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from paceline.api import Loaded, embedded_pair, load
from paceline.bench.figures import figures_of
from paceline.bench.head_to_head import choose_pairs, keep_choices, unpaired
from paceline.bench.interleaved import MOST_OPEN, check_programs, groups_of, run_interleaved
from paceline.bench.machine import describe, hash_source
from paceline.bench.missing_peers import keep_peers
from paceline.bench.output import check_drawing
from paceline.bench.peers import PEERS, find_peers
from paceline.bench.peers.base import Missing, Peer
from paceline.bench.raw import RawFile, Record, fingerprint, hash_model
from paceline.bench.sweep import Axes, Protocols, Task, begin_run, run_sweep
from paceline.bench.trees import MODEL, nodes_of, read_trees
from paceline.bench.workbench import ModelBench, check_batches, check_lengths, check_peers
from paceline.cli.bench_inputs import (
    ChosenPrompts,
    check_peer_counts,
    choose_prompts,
    find_heads,
    read_counts,
    read_peer_counts,
    read_temperatures,
)
from paceline.cli.bench_report import write_and_print
from paceline.cli.models import check_model, check_quantization
from paceline.cli.options import ModelOptions
from paceline.draft_heads import DRAFT_HEADS
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
    top_p: float
    max_tokens: str | None
    trees: str | None
    peers: bool
    peer: list[str] | None
    peer_counts: list[str] | None
    together: bool
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
        check_lengths(bench.target, bench.prompts, axes.max_tokens, num_nodes=_most_nodes(axes))
        found = self._peers(bench)
        bench = replace(bench, peers=[peer for peer in found if not isinstance(peer, Missing)])
        axes = replace(axes, peers=[peer.ways for peer in bench.peers])
        check_peer_counts(
            axes.peer_counts,
            known=[way for peer in axes.peers for way in (peer.plain, *peer.drafting)],
            missing=[name for name in PEERS if name not in [peer.name for peer in bench.peers]],
        )
        if self.together:
            check_programs(axes)
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

                common = {"workbench": bench, "raw": raw, "conditions": conditions, "notes": notes}

                def telling(what: str, total: int) -> Callable[[object, int, str], None]:
                    bar = progress.add_task(what, total=total, what="warming up")
                    return lambda task, done, now: progress.update(bar, completed=done, what=f"{task}: {now}")

                def measure(tasks: Sequence[Task], what: str) -> str:
                    told = telling(what, len(tasks))
                    return run_sweep(tasks, **common, protocol=protocol, progress=told, beside=bench.rates)

                cells = axes.cells()
                if self.together:
                    told = telling("groups", len(groups_of(cells)))
                    run = run_interleaved(
                        cells, **common, protocol=protocol, progress=told, beside=bench.rates, close=bench.close
                    )
                else:
                    run = measure(cells, "cells")
                choices = choose_pairs(figures_of(raw.records), run=run, axes=axes)
                duels = keep_choices(choices, raw=raw, run=run)
                if self.together:
                    duels = unpaired(duels, raw.records, run=run)
                if duels:
                    measure(duels, "best against best")
        except KeyboardInterrupt:
            print(
                f"paceline: interrupted; {self.output} keeps what is done: run the same command to go on",
                file=sys.stderr,
            )
            raise
        return write_and_print(self.output, raw.records, html=self.html, console=Console(highlight=False))

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
        heads = find_heads(self.drafters or ())
        names = {str(path): name for name, path in heads.items()}
        drafters = [names.get(name, name) for name in self.drafters or default]
        if self.trees is not None and not drafts:
            raise ValueError(f"--tree {self.trees}: trees are drafted by a model; give --draft DIR")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"--top-p {self.top_p:g}: give more than 0 and at most 1")
        named = [name for name in DRAFTERS if name not in ("none", MODEL) and name not in DRAFT_HEADS]
        known = [*named, *([MODEL] if drafts else []), *heads]
        for name in drafters:
            if name not in known:
                more = "model needs --draft DIR, and a head is given by its directory"
                raise ValueError(f"--drafter {name}: known here are {', '.join(known)}; {more}")
        lengths, tokens = (GRID_DRAFT_TOKENS, GRID_MAX_TOKENS) if self.grid else (DRAFT_TOKENS, MAX_TOKENS)
        return Axes(
            drafters=list(dict.fromkeys(drafters)),
            num_draft_tokens=read_counts(self.num_draft_tokens or lengths, option="--k"),
            batch_sizes=read_counts(self.batch_sizes, option="--batch"),
            temperatures=read_temperatures(self.temperatures),
            max_tokens=read_counts(self.max_tokens or tokens, option="--max-tokens"),
            top_p=self.top_p,
            trees=[] if self.trees is None else read_trees(self.trees),
            peer_counts=read_peer_counts(self.peer_counts or []),
        )

    def _peers(self, bench: ModelBench) -> list[Peer | Missing]:
        """Those asked for. Raises ValueError for one that is asked for by name and missing."""
        left_out = [name for name, counts in read_peer_counts(self.peer_counts or []).items() if not counts]
        names = [name for name in (PEERS if self.peers else self.peer or []) if name not in left_out]
        if names:
            check_peers(bench.target, bench.draft)
        found = find_peers(
            names,
            bench.setting(),
            vllm_python=self.vllm,
            llama_cpp_folder=self.llama_cpp,
            num_open=MOST_OPEN if self.together else 1,
        )
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
            heads=find_heads(self.drafters or ()),
        )
        return bench, chosen

    def _load_draft(self, path: Path, target: Loaded) -> Loaded:
        return load(path, dtype=target.dtype, device=target.lm.device, quantization=self.draft_quantization)

    def _conditions(self, bench: ModelBench, chosen: ChosenPrompts) -> Record:
        """What must be equal for figures to belong together."""
        draft = None if bench.draft_path is None else _identity(bench.draft_path)
        source = self.prompt_file or self.questions
        works = bench.works()
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
            **({"heads": [_identity(path) for path in bench.heads.values()]} if bench.heads else {}),
            **({} if works is None else {"work": {"target": asdict(works[0]), "draft": works[1] and asdict(works[1])}}),
            "suite": (self.suite or "code") if source is None else source.name,
            "prompts": {
                "count": len(bench.prompts),
                "tokens": sum(map(len, bench.prompts)),
                "hash": fingerprint({"prompts": [list(prompt) for prompt in bench.prompts]}),
                "categories": chosen.categories,
            },
            "seed": self.seed,
        }


def _folder(model: str | Path) -> Path:
    return hub.fetch(str(model), None) if hub.is_hub_id(model) else Path(model)


def _most_nodes(axes: Axes) -> int:
    """Of one row in a forward."""
    return max(1 + max(axes.num_draft_tokens), *(nodes_of(name) or 0 for name, _ in axes.trees), 0)


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
