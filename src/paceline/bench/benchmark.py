"""One benchmark, from loaded models to raw figures: every cell, then our best against the best of each peer."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

import torch

from paceline.api.draft_heads import is_head
from paceline.bench.acceptance import count_acceptance
from paceline.bench.figures import figures_of
from paceline.bench.head_to_head import choose_pairs, keep_choices, unpaired
from paceline.bench.interleaved import check_programs, groups_of, run_interleaved
from paceline.bench.machine import describe, hash_source
from paceline.bench.missing_peers import keep_peers
from paceline.bench.peers import PEERS
from paceline.bench.peers.base import Peer, PeerUnavailable
from paceline.bench.prompts import ChosenPrompts
from paceline.bench.raw import RawFile, Record, fingerprint, hash_model
from paceline.bench.sweep import Axes, Protocols, Task, begin_run, run_sweep
from paceline.bench.workbench import ModelBench

# Called with what is timed and how many there are; what it returns takes the task, how many are done, and what is next.
Reporting = Callable[[str, int], Callable[[object, int, str], None]]


def find_heads(drafters: Sequence[str]) -> dict[str, Path]:
    """The directories of draft heads among ``drafters``, by name. Raises ValueError where two have the same name."""
    found: dict[str, Path] = {}
    for path in (Path(name) for name in dict.fromkeys(drafters) if is_head(name)):
        if path.resolve().name in found:
            raise ValueError(
                f"--drafter {path}: another draft head has the same name; give directories of different names"
            )
        found[path.resolve().name] = path
    return found


def check_peer_counts(counts: Mapping[str, Sequence[int]], *, known: Sequence[str], missing: Sequence[str]) -> None:
    """Raise ValueError for draft lengths of what is neither a peer nor one of the ``known`` modes.

    Modes of the peers that are ``missing`` pass, for they are unknown.
    """
    for name in counts:
        if name not in (*known, *missing) and not any(name.startswith(f"{peer}-") for peer in missing):
            raise ValueError(f"--peer-k {name}: no such peer or mode here; there are {', '.join(known) or 'none'}")


def add_peers(
    bench: ModelBench, axes: Axes, found: Sequence[Peer | PeerUnavailable], *, together: bool
) -> tuple[ModelBench, Axes]:
    """With the peers that are installed. Raises ValueError for draft lengths of others, and for too many programs."""
    bench = replace(bench, peers=[peer for peer in found if not isinstance(peer, PeerUnavailable)])
    axes = replace(axes, peers=[peer.ways for peer in bench.peers])
    check_peer_counts(
        axes.peer_counts,
        known=[way for peer in axes.peers for way in (peer.plain, *peer.drafting)],
        missing=[
            *(name for name in PEERS if name not in [peer.name for peer in bench.peers]),
            *(peer.name for peer in found if isinstance(peer, PeerUnavailable)),
        ],
    )
    if together:
        check_programs(axes)
    return bench, axes


def conditions_of(bench: ModelBench, chosen: ChosenPrompts, *, suite: str, options: Mapping[str, object]) -> Record:
    """What must be equal for figures to be comparable. ``options`` are those that differ from their defaults."""
    works = bench.works()
    return {
        "machine": describe().identity(),
        "source": hash_source(),
        "num_threads": torch.get_num_threads(),
        "dtype": str(bench.target.dtype).removeprefix("torch."),
        "device": str(bench.target.lm.device),
        **options,
        "target": _identity(bench.target_path),
        "draft": None if bench.draft_path is None else _identity(bench.draft_path),
        **({"heads": [_identity(path) for path in bench.heads.values()]} if bench.heads else {}),
        **({} if works is None else {"work": {"target": asdict(works[0]), "draft": works[1] and asdict(works[1])}}),
        "suite": suite,
        "prompts": {
            "count": len(bench.prompts),
            "tokens": sum(map(len, bench.prompts)),
            "hash": fingerprint({"prompts": [list(prompt) for prompt in bench.prompts]}),
            "categories": chosen.categories,
        },
        "seed": bench.seed,
    }


def run_benchmark(
    bench: ModelBench,
    axes: Axes,
    raw: RawFile,
    *,
    protocol: Protocols,
    conditions: Record,
    peers: Sequence[Peer | PeerUnavailable],
    together: bool,
    reporting: Reporting,
) -> None:
    """Time every cell that ``raw`` lacks, then the best of ours against the best of each peer. Ends the peers."""
    notes = _date()
    common = {"workbench": bench, "raw": raw, "conditions": conditions, "notes": notes}
    if peers:
        keep_peers(peers, raw=raw, run=begin_run(raw, conditions=conditions, notes=notes, protocol=protocol))

    def measure(tasks: Sequence[Task], what: str) -> str:
        report = reporting(what, len(tasks))
        return run_sweep(tasks, **common, protocol=protocol, progress=report, beside=bench.rates)

    with ExitStack() as stack:
        for peer in bench.peers:
            stack.callback(peer.close)
        cells = axes.cells()
        if together:
            report = reporting("groups", len(groups_of(cells)))
            run = run_interleaved(
                cells, **common, protocol=protocol, progress=report, beside=bench.rates, close=bench.close
            )
        else:
            run = measure(cells, "cells")
        choices = choose_pairs(figures_of(raw.records), run=run, axes=axes)
        comparisons = keep_choices(choices, raw=raw, run=run)
        if together:
            comparisons = unpaired(comparisons, raw.records, run=run)
        if comparisons:
            measure(comparisons, "best against best")


def count_benchmark(bench: ModelBench, axes: Axes, raw: RawFile, *, conditions: Record, reporting: Reporting) -> None:
    """Count the acceptance of every cell that ``raw`` lacks, and time nothing."""
    cells = axes.cells()
    report = reporting("cells", len(cells))
    count_acceptance(cells, workbench=bench, raw=raw, conditions=conditions, notes=_date(), progress=report)


def _date() -> Record:
    return {"date": datetime.now(UTC).isoformat(timespec="seconds")}


def _identity(folder: Path) -> Record:
    """Name and content of a model, without its path."""
    return {"name": folder.name, "hash": hash_model(folder)}
