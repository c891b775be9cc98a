"""The options of ``paceline bench``: its cells, its peers, its prompts, and how cells are timed."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter

from paceline.cli.numbers import read_counts, read_numbers, read_peer_counts
from paceline.cli.options import AT_LEAST_1

if TYPE_CHECKING:
    from paceline.api import Loaded
    from paceline.bench.peers.base import Peer, PeerUnavailable
    from paceline.bench.prompts import ChosenPrompts
    from paceline.bench.sweep import Axes, Protocols
    from paceline.bench.workbench import ModelBench

GRID_DRAFT_TOKENS, GRID_MAX_TOKENS = "1,2,4,8", "50,100,200,500"
DRAFT_TOKENS, MAX_TOKENS = "1-8", "64"
CELLS, PROMPTS, TIMING = (Group(title, sort_key=-3 + at) for at, title in enumerate(("Cells", "Prompts", "Timing")))


@Parameter(name="*", group=CELLS)
@dataclass(frozen=True, slots=True, kw_only=True)
class CellOptions:
    """What is combined."""

    drafters: Annotated[tuple[str, ...], Parameter(name="--drafter")] = ()
    """Drafter by name, with options if wanted (suffix:max_tokens=0), auto, several that take turns (copy+suffix),
    stages ("model:DIR < ngram"), FILE.py:NAME for one of your own, or the directory of a draft head; may be repeated.
    The draft model, called model, and ngram by default."""
    num_draft_tokens: Annotated[str | None, Parameter(name="--k")] = None
    """Draft tokens per step, such as 1,2,4 or 1-8."""
    batch_sizes: Annotated[str, Parameter(name="--batch")] = "1"
    """Sequences per batch, such as 1,4. Each must divide the number of prompts."""
    temperatures: Annotated[str, Parameter(name="--temperature")] = "0"
    """Temperatures, such as 0,0.8."""
    top_p: float = 1.0
    """Top-p at the temperatures above 0."""
    trees: Annotated[str | None, Parameter(name="--tree")] = None
    """Draft trees of the draft model too, by their number of nodes with the root, and their depth if needed: 8,16 or
    16x6."""
    max_tokens: str | None = None
    """Tokens per output, always generated in full."""
    instruction_sets: Annotated[str | None, Parameter(name="--isa")] = None
    """Our cells on each of these instruction sets of the CPU, such as avx2,avx512bf16. With --peers a single one, which
    limits the peers too."""
    grid: bool = False
    """The classic grid: k in 1,2,4,8 and 50,100,200,500 tokens."""

    def axes(self, *, isas: Sequence[str], drafts: bool) -> "Axes":
        """The axes of the sweep, where there is a draft model or not.

        Raises ValueError for options that contradict each other.
        """
        from paceline.bench.benchmark import find_heads
        from paceline.bench.drafter_names import chooses_lengths, drafters_of
        from paceline.bench.sweep import Axes
        from paceline.bench.trees import MODEL, read_trees
        from paceline.draft_heads import DRAFT_HEADS
        from paceline.drafters import DRAFTERS
        from paceline.engine.copy_plans import MAX_COPIED_TOKENS

        if self.grid and (self.num_draft_tokens is not None or self.max_tokens is not None):
            raise ValueError("--grid with --k or --max-tokens: the grid sets both; leave them out, or --grid")
        default = [MODEL] if self.grid and drafts else ["ngram", *([MODEL] if drafts else [])]
        heads = find_heads(self.drafters)
        names = {str(path): name for name, path in heads.items()}
        drafters = [names.get(name, name) for name in self.drafters or default]
        if self.trees is not None and not drafts:
            raise ValueError(f"--tree {self.trees}: trees are drafted by a model; give --draft DIR")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"--top-p {self.top_p:g}: give more than 0 and at most 1")
        named = [
            name for name in DRAFTERS if name not in ("none", MODEL, "staged", "cascade") and name not in DRAFT_HEADS
        ]
        known = [*named, *([MODEL] if drafts else []), *heads]
        for name in drafters:
            drafters_of(name, known)
        once = [(name, MAX_COPIED_TOKENS) for name in dict.fromkeys(drafters) if chooses_lengths(name, known)]
        temperatures = read_numbers(self.temperatures, option="--temperature", such_as="0,0.8")
        lengths, tokens = (GRID_DRAFT_TOKENS, GRID_MAX_TOKENS) if self.grid else (DRAFT_TOKENS, MAX_TOKENS)
        return Axes(
            drafters=[name for name in dict.fromkeys(drafters) if not chooses_lengths(name, known)],
            num_draft_tokens=read_counts(self.num_draft_tokens or lengths, option="--k"),
            batch_sizes=read_counts(self.batch_sizes, option="--batch"),
            temperatures=list(dict.fromkeys(temperatures)),
            max_tokens=read_counts(self.max_tokens or tokens, option="--max-tokens"),
            top_p=self.top_p,
            trees=[*once, *([] if self.trees is None else read_trees(self.trees))],
            isas=isas,
        )


@Parameter(name="*", group=CELLS)
@dataclass(frozen=True, slots=True, kw_only=True)
class PeerOptions:
    """Who else is timed."""

    peers: bool = False
    """Time transformers, vLLM and llama.cpp too, in all their modes, and each one's best against ours. A peer that is
    not installed is reported as missing."""
    peer: tuple[str, ...] = ()
    """One of transformers, vllm and llama.cpp; may be repeated."""
    peer_counts: Annotated[tuple[str, ...], Parameter(name="--peer-k")] = ()
    """Other draft lengths for a peer or one of its modes; may be repeated: vllm=3,5, vllm-lookup=none."""
    vllm: Annotated[Path | None, Parameter(env_var="PACELINE_VLLM_PYTHON")] = None
    """The Python executable of vLLM's environment."""
    llama_cpp: Annotated[Path | None, Parameter(env_var="PACELINE_LLAMA_CPP")] = None
    """The source folder of llama.cpp, built in its build/."""

    @property
    def counts(self) -> dict[str, list[int]]:
        """Draft lengths by peer or mode. Raises ValueError for what is none."""
        return read_peer_counts(self.peer_counts)

    def find(self, bench: "ModelBench", *, together: bool) -> "list[Peer | PeerUnavailable]":
        """Those that were asked for. Raises ValueError for one that is given by name and missing."""
        from paceline.bench.interleaved import MOST_OPEN
        from paceline.bench.peers import PEERS, find_peers
        from paceline.bench.peers.base import PeerUnavailable
        from paceline.bench.workbench import check_peers

        left_out = [name for name, counts in self.counts.items() if not counts]
        names = [name for name in (PEERS if self.peers else self.peer) if name not in left_out]
        if names:
            check_peers(bench.target, bench.draft)
        found = find_peers(
            names,
            bench.setting(),
            vllm_python=self.vllm,
            llama_cpp_folder=self.llama_cpp,
            num_open=MOST_OPEN if together else 1,
        )
        for peer in found:
            if isinstance(peer, PeerUnavailable) and peer.name in self.peer:
                raise ValueError(f"--peer {peer.name} is missing: {peer.reason}")
        return [peer for peer in found if peer.name not in left_out]


@Parameter(name="*", group=PROMPTS)
@dataclass(frozen=True, slots=True, kw_only=True)
class PromptOptions:
    """What is continued."""

    suite: str | None = None
    """code, prose, copy, edit, chat or mixed; code by default."""
    prompt_file: Path | None = None
    """Prompts, one per line; in a .jsonl file {"prompt": ...}, {"tokens": ...} or {"messages": ...}."""
    questions: Path | None = None
    """Questions in the format of MT-Bench or Spec-Bench; first turns only."""
    num_prompts: Annotated[int | None, AT_LEAST_1] = None
    """Number of prompts, chosen by the seed; 8 by default."""
    seed: int = 0
    """Seed of the choice of prompts and of sampling."""

    @property
    def name(self) -> str:
        """Of the suite, or of the file."""
        source = self.prompt_file or self.questions
        return (self.suite or "code") if source is None else source.name

    def check(self) -> None:
        """Raise ValueError for several sources."""
        if len([source for source in (self.suite, self.prompt_file, self.questions) if source is not None]) > 1:
            raise ValueError("--suite, --prompt-file and --questions: give one of them")

    def choose(self, target: "Loaded") -> "ChosenPrompts":
        """The prompts, as ``target`` reads them."""
        from paceline.bench.prompts import choose_prompts
        from paceline.cli.prompt_file.prompts import read_valid_prompts

        return choose_prompts(
            target,
            suite=self.suite or "code",
            given=None if self.prompt_file is None else read_valid_prompts(self.prompt_file),
            questions=self.questions,
            count=self.num_prompts,
            seed=self.seed,
        )


@Parameter(name="*", group=TIMING)
@dataclass(frozen=True, slots=True, kw_only=True)
class TimingOptions:
    """How cells are timed, or that they are not."""

    repeats: Annotated[int | None, AT_LEAST_1] = None
    """Paired repeats of every cell; 5 by default."""
    attempts: Annotated[int | None, AT_LEAST_1] = None
    """Times a cell is timed while its control fails; with --together, a multiple of the repeats. 3 by default."""
    together: bool = False
    """Interleave all cells of a batch size and length in one run, peers too. Takes a third of the time."""
    acceptance_only: bool = False
    """Time nothing: decode every cell once, and count how much of its drafts is accepted. Neither depends on how quiet
    the machine is."""

    def check(self, peers: PeerOptions) -> None:
        """Raise ValueError for options that mean nothing where nothing is timed."""
        if not self.acceptance_only:
            return
        options = {
            "--repeats": self.repeats,
            "--attempts": self.attempts,
            "--together": self.together,
            "--peers": peers.peers,
            "--peer": peers.peer,
            "--peer-k": peers.peer_counts,
        }
        given = ", ".join(name for name, value in options.items() if value)
        if given:
            raise ValueError(f"--acceptance-only with {given}: it times nothing, and ours alone; leave out {given}")

    @property
    def protocol(self) -> "Protocols":
        """As given, and the defaults of the rest."""
        from paceline.bench.sweep import Protocols

        given = {"repeats": self.repeats, "attempts": self.attempts}
        return Protocols(**{name: value for name, value in given.items() if value is not None})
