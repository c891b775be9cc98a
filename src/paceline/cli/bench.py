"""``paceline bench``: loads models, chooses prompts, runs the sweep and writes the reports."""

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import TextColumn, TimeElapsedColumn

from paceline.api import Loaded, embedded_pair, load
from paceline.bench.figures import figures_of
from paceline.bench.head_to_head import choose_pairs, keep_choices, unpaired
from paceline.bench.interleaved import MOST_OPEN, check_programs, groups_of, run_interleaved
from paceline.bench.machine import describe, hash_source
from paceline.bench.missing_peers import keep_peers
from paceline.bench.output import check_drawing
from paceline.bench.peers import PEERS, find_peers
from paceline.bench.peers.base import Peer, PeerUnavailable
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
from paceline.cli.commands.bench import Bench
from paceline.cli.console import make_progress
from paceline.cli.models import load_target
from paceline.cli.options import ModelOptions
from paceline.draft_heads import DRAFT_HEADS
from paceline.drafters import DRAFTERS
from paceline.models import hub

GRID_DRAFT_TOKENS, GRID_MAX_TOKENS = "1,2,4,8", "50,100,200,500"
DRAFT_TOKENS, MAX_TOKENS = "1-8", "64"


def run_bench(options: Bench) -> int:
    """Measure what is missing, write the reports and print the table."""
    axes, protocol = _axes(options), Protocols(repeats=options.repeats, attempts=options.attempts)
    if options.html:
        check_drawing()
    if options.peers and (options.quantization or options.draft_quantization):
        raise ValueError("--peers with --quantization: peers run the weights as they are; leave out one of them")
    raw = RawFile(options.output)
    bench, chosen = _bench(options)
    check_batches(len(bench.prompts), axes.batch_sizes)
    check_lengths(bench.target, bench.prompts, axes.max_tokens, num_nodes=_most_nodes(axes))
    found = _peers(options, bench)
    bench = replace(bench, peers=[peer for peer in found if not isinstance(peer, PeerUnavailable)])
    axes = replace(axes, peers=[peer.ways for peer in bench.peers])
    check_peer_counts(
        axes.peer_counts,
        known=[way for peer in axes.peers for way in (peer.plain, *peer.drafting)],
        missing=[name for name in PEERS if name not in [peer.name for peer in bench.peers]],
    )
    if options.together:
        check_programs(axes)
    columns = TimeElapsedColumn(), TextColumn("{task.fields[what]}", markup=False)
    bar = make_progress(Console(stderr=True), *columns, shown=not options.quiet)
    conditions = _conditions(options, bench, chosen)
    notes = {"date": datetime.now(UTC).isoformat(timespec="seconds")}
    if found:
        run = begin_run(raw, conditions=conditions, notes=notes, protocol=protocol)
        keep_peers(found, raw=raw, run=run)
    try:
        with ExitStack() as stack:
            for peer in bench.peers:
                stack.callback(peer.close)
            progress = stack.enter_context(bar)

            common = {"workbench": bench, "raw": raw, "conditions": conditions, "notes": notes}

            def reporting(what: str, total: int) -> Callable[[object, int, str], None]:
                bar = progress.add_task(what, total=total, what="warming up")
                return lambda task, done, now: progress.update(bar, completed=done, what=f"{task}: {now}")

            def measure(tasks: Sequence[Task], what: str) -> str:
                report = reporting(what, len(tasks))
                return run_sweep(tasks, **common, protocol=protocol, progress=report, beside=bench.rates)

            cells = axes.cells()
            if options.together:
                report = reporting("groups", len(groups_of(cells)))
                run = run_interleaved(
                    cells, **common, protocol=protocol, progress=report, beside=bench.rates, close=bench.close
                )
            else:
                run = measure(cells, "cells")
            choices = choose_pairs(figures_of(raw.records), run=run, axes=axes)
            comparisons = keep_choices(choices, raw=raw, run=run)
            if options.together:
                comparisons = unpaired(comparisons, raw.records, run=run)
            if comparisons:
                measure(comparisons, "best against best")
    except KeyboardInterrupt:
        print(
            f"paceline: interrupted; {options.output} keeps what is done: run the same command to continue",
            file=sys.stderr,
        )
        raise
    return write_and_print(options.output, raw.records, html=options.html, console=Console(highlight=False))


def _axes(options: Bench) -> Axes:
    """The axes of the sweep. Raises ValueError for options that contradict each other."""
    if (options.target is None) != (options.draft is None) and options.target is None:
        raise ValueError(f"--draft {options.draft}: give --target too, or neither for the embedded pair")
    if options.grid and (options.num_draft_tokens is not None or options.max_tokens is not None):
        raise ValueError("--grid with --k or --max-tokens: the grid sets both; leave them out, or --grid")
    if len([source for source in (options.suite, options.prompt_file, options.questions) if source is not None]) > 1:
        raise ValueError("--suite, --prompt-file and --questions: give one of them")
    drafts = options.target is None or options.draft is not None
    default = [MODEL] if options.grid and drafts else ["ngram", *([MODEL] if drafts else [])]
    heads = find_heads(options.drafters or ())
    names = {str(path): name for name, path in heads.items()}
    drafters = [names.get(name, name) for name in options.drafters or default]
    if options.trees is not None and not drafts:
        raise ValueError(f"--tree {options.trees}: trees are drafted by a model; give --draft DIR")
    if not 0 < options.top_p <= 1:
        raise ValueError(f"--top-p {options.top_p:g}: give more than 0 and at most 1")
    named = [name for name in DRAFTERS if name not in ("none", MODEL) and name not in DRAFT_HEADS]
    known = [*named, *([MODEL] if drafts else []), *heads]
    for name in drafters:
        if name not in known:
            more = "model needs --draft DIR, and a draft head is given by its directory"
            raise ValueError(f"--drafter {name}: known here are {', '.join(known)}; {more}")
    lengths, tokens = (GRID_DRAFT_TOKENS, GRID_MAX_TOKENS) if options.grid else (DRAFT_TOKENS, MAX_TOKENS)
    return Axes(
        drafters=list(dict.fromkeys(drafters)),
        num_draft_tokens=read_counts(options.num_draft_tokens or lengths, option="--k"),
        batch_sizes=read_counts(options.batch_sizes, option="--batch"),
        temperatures=read_temperatures(options.temperatures),
        max_tokens=read_counts(options.max_tokens or tokens, option="--max-tokens"),
        top_p=options.top_p,
        trees=[] if options.trees is None else read_trees(options.trees),
        peer_counts=read_peer_counts(options.peer_counts or []),
    )


def _peers(options: Bench, bench: ModelBench) -> list[Peer | PeerUnavailable]:
    """The peers of the options. Raises ValueError for one that is given by name and missing."""
    left_out = [name for name, counts in read_peer_counts(options.peer_counts or []).items() if not counts]
    names = [name for name in (PEERS if options.peers else options.peer or []) if name not in left_out]
    if names:
        check_peers(bench.target, bench.draft)
    found = find_peers(
        names,
        bench.setting(),
        vllm_python=options.vllm,
        llama_cpp_folder=options.llama_cpp,
        num_open=MOST_OPEN if options.together else 1,
    )
    for peer in found:
        if isinstance(peer, PeerUnavailable) and peer.name in (options.peer or []):
            raise ValueError(f"--peer {peer.name} is missing: {peer.reason}")
    return found


def _bench(options: Bench) -> tuple[ModelBench, ChosenPrompts]:
    """Models and prompts, loaded."""
    names = list(embedded_pair()) if options.target is None else [options.target, options.draft]
    model = ModelOptions(
        model=str(names[0]),
        dtype=options.dtype,
        device=options.device,
        threads=options.threads,
        backend=options.backend,
        quantization=options.quantization,
    )
    paths = [None if name is None else _folder(name) for name in names]
    target_path, draft_path = paths
    assert target_path is not None
    target = load_target(replace(model, model=str(target_path)))
    draft = None if draft_path is None else _load_draft(options, draft_path, target)
    chosen = choose_prompts(
        target,
        suite=options.suite or "code",
        prompt_file=options.prompt_file,
        questions=options.questions,
        count=options.num_prompts,
        seed=options.seed,
    )
    bench = ModelBench(
        target=target,
        draft=draft,
        target_path=target_path,
        draft_path=draft_path,
        prompts=chosen.tokens,
        seed=options.seed,
        heads=find_heads(options.drafters or ()),
    )
    return bench, chosen


def _load_draft(options: Bench, path: Path, target: Loaded) -> Loaded:
    return load(path, dtype=target.dtype, device=target.lm.device, quantization=options.draft_quantization)


def _conditions(options: Bench, bench: ModelBench, chosen: ChosenPrompts) -> Record:
    """What must be equal for figures to be comparable."""
    draft = None if bench.draft_path is None else _identity(bench.draft_path)
    source = options.prompt_file or options.questions
    works = bench.works()
    return {
        "machine": describe().identity(),
        "source": hash_source(),
        "num_threads": torch.get_num_threads(),
        "dtype": str(bench.target.dtype).removeprefix("torch."),
        "device": str(bench.target.lm.device),
        **({} if options.backend == "auto" else {"backend": options.backend}),
        **({} if options.quantization is None else {"quantization": options.quantization}),
        **({} if options.draft_quantization is None else {"draft_quantization": options.draft_quantization}),
        "target": _identity(bench.target_path),
        "draft": draft,
        **({"heads": [_identity(path) for path in bench.heads.values()]} if bench.heads else {}),
        **({} if works is None else {"work": {"target": asdict(works[0]), "draft": works[1] and asdict(works[1])}}),
        "suite": (options.suite or "code") if source is None else source.name,
        "prompts": {
            "count": len(bench.prompts),
            "tokens": sum(map(len, bench.prompts)),
            "hash": fingerprint({"prompts": [list(prompt) for prompt in bench.prompts]}),
            "categories": chosen.categories,
        },
        "seed": options.seed,
    }


def _folder(model: str | Path) -> Path:
    return hub.fetch(str(model), None) if hub.is_hub_id(model) else Path(model)


def _most_nodes(axes: Axes) -> int:
    """Of one row in a forward."""
    return max(1 + max(axes.num_draft_tokens), *(nodes_of(name) or 0 for name, _ in axes.trees), 0)


def _identity(folder: Path) -> Record:
    """Name and content of a model, without its path."""
    return {"name": folder.name, "hash": hash_model(folder)}
