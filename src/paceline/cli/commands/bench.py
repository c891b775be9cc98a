"""``paceline bench``: loads models, chooses prompts, runs the benchmark and writes the reports."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter
from rich.console import Console

from paceline.cli.command import Command
from paceline.cli.commands.bench_report import Html, write_and_print
from paceline.cli.numbers import read_counts, read_numbers, read_peer_counts
from paceline.cli.options import (
    AT_LEAST_1,
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
    from paceline.bench.peers.base import Peer, PeerUnavailable
    from paceline.bench.prompts import ChosenPrompts
    from paceline.bench.sweep import Axes
    from paceline.bench.workbench import ModelBench

GRID_DRAFT_TOKENS, GRID_MAX_TOKENS = "1,2,4,8", "50,100,200,500"
DRAFT_TOKENS, MAX_TOKENS = "1-8", "64"
CELLS, PROMPTS, TIMING = (
    Parameter(group=Group(title, sort_key=-3 + number)) for number, title in enumerate(("Cells", "Prompts", "Timing"))
)


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
        paceline bench report bench.jsonl
    """

    target: str | None = None
    """Target model: directory or Hub id; the embedded pair by default."""
    draft: str | None = None
    """Draft model with the same vocabulary."""
    drafters: Annotated[tuple[str, ...], Parameter(name="--drafter"), CELLS] = ()
    """Drafter by name, FILE.py:NAME for one of your own, or the directory of a draft head; may be repeated. The draft
    model, called model, and ngram by default."""
    num_draft_tokens: Annotated[str | None, Parameter(name="--k"), CELLS] = None
    """Draft tokens per step, such as 1,2,4 or 1-8."""
    batch_sizes: Annotated[str, Parameter(name="--batch"), CELLS] = "1"
    """Sequences per batch, such as 1,4. Each must divide the number of prompts."""
    temperatures: Annotated[str, Parameter(name="--temperature"), CELLS] = "0"
    """Temperatures, such as 0,0.8."""
    top_p: Annotated[float, CELLS] = 1.0
    """Top-p at the temperatures above 0."""
    trees: Annotated[str | None, Parameter(name="--tree"), CELLS] = None
    """Draft trees of the draft model too, by their number of nodes with the root, and their depth if needed: 8,16 or
    16x6."""
    max_tokens: Annotated[str | None, CELLS] = None
    """Tokens per output, always generated in full."""
    instruction_sets: Annotated[str | None, Parameter(name="--isa"), CELLS] = None
    """Our cells on each of these instruction sets of the CPU, such as avx2,avx512bf16. With --peers a single one, which
    limits the peers too."""
    peers: Annotated[bool, CELLS] = False
    """Time transformers, vLLM and llama.cpp too, in all their modes, and each one's best against ours. A peer that is
    not installed is reported as missing."""
    peer: Annotated[tuple[str, ...], CELLS] = ()
    """One of transformers, vllm and llama.cpp; may be repeated."""
    peer_counts: Annotated[tuple[str, ...], Parameter(name="--peer-k"), CELLS] = ()
    """Other draft lengths for a peer or one of its modes; may be repeated: vllm=3,5, vllm-lookup=none."""
    vllm: Annotated[Path | None, Parameter(env_var="PACELINE_VLLM_PYTHON"), CELLS] = None
    """The Python executable of vLLM's environment."""
    llama_cpp: Annotated[Path | None, Parameter(env_var="PACELINE_LLAMA_CPP"), CELLS] = None
    """The source folder of llama.cpp, built in its build/."""
    grid: Annotated[bool, CELLS] = False
    """The classic grid: k in 1,2,4,8 and 50,100,200,500 tokens."""

    suite: Annotated[str | None, PROMPTS] = None
    """code, prose, copy or mixed; code by default."""
    prompt_file: Annotated[Path | None, PROMPTS] = None
    """Prompts, one per line; in a .jsonl file {"prompt": ...}, {"tokens": ...} or {"messages": ...}."""
    questions: Annotated[Path | None, PROMPTS] = None
    """Questions in the format of MT-Bench or Spec-Bench; first turns only."""
    num_prompts: Annotated[int | None, AT_LEAST_1, PROMPTS] = None
    """Number of prompts, chosen by the seed; 8 by default."""
    seed: Annotated[int, PROMPTS] = 0
    """Seed of the choice of prompts and of sampling."""

    repeats: Annotated[int, TIMING] = 5
    """Paired repeats of every cell."""
    attempts: Annotated[int, TIMING] = 3
    """Times a cell is timed while its control fails; with --together, a multiple of the repeats."""
    together: Annotated[bool, TIMING] = False
    """Interleave all cells of a batch size and length in one run, peers too. Takes a third of the time."""

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

        isas = read_sets(self.instruction_sets, backend=self.backend, device=self.device)
        limits = limit_process(isas) if self.peers or self.peer else {}  # what follows may use torch

        from paceline.api.drafter_files import file_digest
        from paceline.bench.benchmark import add_peers, conditions_of, run_benchmark
        from paceline.bench.output import check_drawing
        from paceline.bench.raw import RawFile
        from paceline.bench.sweep import Protocols
        from paceline.bench.trees import nodes_of
        from paceline.bench.workbench import check_batches, check_lengths
        from paceline.cli.progress import make_progress

        axes, protocol = replace(self._axes(), isas=isas), Protocols(repeats=self.repeats, attempts=self.attempts)
        if self.html:
            check_drawing()
        if self.peers and (self.quantization or self.draft_quantization):
            raise ValueError("--peers with --quantization: peers run the weights as they are; leave out one of them")
        raw = RawFile(self.output)
        bench, chosen = self._load(isas)
        check_batches(len(bench.prompts), axes.batch_sizes)
        num_nodes = max(1 + max(axes.num_draft_tokens), *(nodes_of(name) or 0 for name, _ in axes.trees), 0)
        check_lengths(bench.target, bench.prompts, axes.max_tokens, num_nodes=num_nodes)
        peers = self._peers(bench)
        bench, axes = add_peers(bench, axes, peers, together=self.together)
        source = self.prompt_file or self.questions
        options: dict[str, object] = {"backend": self.backend, "quantization": self.quantization}
        options |= {"draft_quantization": self.draft_quantization, "peer_limits": limits or None}
        options["drafter_files"] = {name: digest for name in axes.drafters if (digest := file_digest(name))} or None
        conditions = conditions_of(
            bench,
            chosen,
            suite=(self.suite or "code") if source is None else source.name,
            options={name: value for name, value in options.items() if value not in (None, "auto")},
        )
        columns = TimeElapsedColumn(), TextColumn("{task.fields[what]}", markup=False)
        try:
            with make_progress(Console(stderr=True), *columns, shown=not self.quiet) as progress:

                def reporting(what: str, total: int) -> Callable[[object, int, str], None]:
                    bar = progress.add_task(what, total=total, what="warming up")
                    return lambda task, done, now: progress.update(bar, completed=done, what=f"{task}: {now}")

                run_benchmark(
                    bench,
                    axes,
                    raw,
                    protocol=protocol,
                    conditions=conditions,
                    peers=peers,
                    together=self.together,
                    reporting=reporting,
                )
        except KeyboardInterrupt:
            print(
                f"paceline: interrupted; {self.output} keeps what is done: run the same command to continue",
                file=sys.stderr,
            )
            raise
        return write_and_print(self.output, raw.records, html=self.html)

    def _axes(self) -> "Axes":
        """The axes of the sweep. Raises ValueError for options that contradict each other."""
        from paceline.api.drafter_files import is_drafter_file, read_drafter_file
        from paceline.bench.benchmark import find_heads
        from paceline.bench.sweep import Axes
        from paceline.bench.trees import MODEL, read_trees
        from paceline.draft_heads import DRAFT_HEADS
        from paceline.drafters import DRAFTERS

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
            if name not in known and not (is_drafter_file(name) and read_drafter_file(name)):
                more = "model needs --draft DIR; a draft head is given by its directory, yours by FILE.py:NAME"
                raise ValueError(f"--drafter {name}: known here are {', '.join(known)}; {more}")
        temperatures = read_numbers(self.temperatures, option="--temperature", such_as="0,0.8")
        lengths, tokens = (GRID_DRAFT_TOKENS, GRID_MAX_TOKENS) if self.grid else (DRAFT_TOKENS, MAX_TOKENS)
        return Axes(
            drafters=list(dict.fromkeys(drafters)),
            num_draft_tokens=read_counts(self.num_draft_tokens or lengths, option="--k"),
            batch_sizes=read_counts(self.batch_sizes, option="--batch"),
            temperatures=list(dict.fromkeys(temperatures)),
            max_tokens=read_counts(self.max_tokens or tokens, option="--max-tokens"),
            top_p=self.top_p,
            trees=[] if self.trees is None else read_trees(self.trees),
            peer_counts=read_peer_counts(self.peer_counts or []),
        )

    def _peers(self, bench: "ModelBench") -> "list[Peer | PeerUnavailable]":
        """The peers of the self. Raises ValueError for one that is given by name and missing."""
        from paceline.bench.interleaved import MOST_OPEN
        from paceline.bench.peers import PEERS, find_peers
        from paceline.bench.peers.base import PeerUnavailable
        from paceline.bench.workbench import check_peers

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
            if isinstance(peer, PeerUnavailable) and peer.name in (self.peer or []):
                raise ValueError(f"--peer {peer.name} is missing: {peer.reason}")
        return found

    def _load(self, isas: Sequence[str]) -> "tuple[ModelBench, ChosenPrompts]":
        """Models and prompts, loaded."""
        from paceline.api import embedded_pair, load
        from paceline.bench.benchmark import find_heads
        from paceline.bench.prompts import choose_prompts
        from paceline.bench.workbench import ModelBench, Models, load_sets
        from paceline.cli.prompt_file.prompts import read_valid_prompts
        from paceline.models import hub

        def folder(model: str | Path) -> Path:
            return hub.fetch(str(model), None) if hub.is_hub_id(model) else Path(model)

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
        chosen = choose_prompts(
            models.target,
            suite=self.suite or "code",
            given=None if self.prompt_file is None else read_valid_prompts(self.prompt_file),
            questions=self.questions,
            count=self.num_prompts,
            seed=self.seed,
        )
        bench = ModelBench(
            target=models.target,
            draft=models.draft,
            target_path=target_path,
            draft_path=draft_path,
            prompts=chosen.tokens,
            seed=self.seed,
            heads=find_heads(self.drafters),
            sets=sets,
        )
        return bench, chosen
