"""Options of ``paceline bench`` and ``paceline bench report``."""

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from paceline.cli.options import (
    AT_LEAST_1,
    OUTPUT,
    POSITIONAL,
    Backend,
    Device,
    DraftQuantization,
    Dtype,
    Quantization,
    Quiet,
    Threads,
)

CELLS, PROMPTS, TIMING = (
    Parameter(group=Group(title, sort_key=-3 + number)) for number, title in enumerate(("Cells", "Prompts", "Timing"))
)
Html = Annotated[bool, Parameter(negative="--no-html", help="Write an HTML page beside the raw figures.", group=OUTPUT)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Time drafting against plain decoding: paired, with a control, for every combination of the options.

    Every cell is timed beside plain decoding, which runs twice: where it differs from itself by more than 3 %, the
    cell is void and timed again. The raw figures are written to a file, cell by cell; after an interruption the same
    command continues. CSV and an HTML page are written beside it, and a table is printed.

    Examples:

        paceline bench
        paceline bench --target DIR --draft DIR --k 1-8 --batch 1,4,16 --num-prompts 16
        paceline bench --drafter ngram --suite copy --peers
        paceline bench --together --peers --k 1-8 --tree 8,16 --peer-k vllm=3,5 --peer-k vllm-lookup=none
        paceline bench --grid
        paceline bench report bench.jsonl
    """

    target: str | None = None
    """Target model: directory or Hub id; the embedded pair by default."""
    draft: str | None = None
    """Draft model with the same vocabulary."""
    drafters: Annotated[tuple[str, ...], Parameter(name="--drafter"), CELLS] = ()
    """Drafter by name, or the directory of a draft head; may be repeated. The draft model, called model, and ngram by
    default."""
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


@dataclass(frozen=True, slots=True)
class BenchReport:
    """Make the table, CSV and HTML page of raw figures again."""

    raw: Annotated[Path, POSITIONAL]
    """A file that paceline bench wrote."""
    _: KW_ONLY
    html: Html = True
