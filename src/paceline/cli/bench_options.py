"""The options of ``paceline bench`` and their help. The command's code, and torch with it, loads only when it runs."""

from pathlib import Path
from typing import Annotated

import typer

from paceline.cli import options as o
from paceline.core.registry import Registry

COMMANDS = Registry("command", {"run": "paceline.cli.bench:Bench", "report": "paceline.cli.bench_report:Report"})
WHAT, HOW, PROMPTS = "What is combined", "How it is timed", "Prompts"

Html = Annotated[bool, typer.Option("--html/--no-html", help="An HTML page beside the raw figures, or none.")]

bench = typer.Typer(invoke_without_command=True, subcommand_metavar="[report RAW.jsonl]")


@bench.callback()
def run(
    context: typer.Context,
    target: Annotated[
        str | None, typer.Option(help="Target model: directory or Hub id; the embedded pair by default.")
    ] = None,
    draft: Annotated[str | None, typer.Option(help="Draft model of the same vocabulary.")] = None,
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            help="Drafter by name, or a head's directory; may be repeated. The draft model, called model, and ngram by "
            "default.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    k: Annotated[
        str | None, typer.Option("--k", help="Draft tokens per step, such as 1,2,4 or 1-8.", rich_help_panel=WHAT)
    ] = None,
    batch: Annotated[
        str, typer.Option(help="Texts at once, such as 1,4. Each must divide the prompts.", rich_help_panel=WHAT)
    ] = "1",
    temperature: Annotated[str, typer.Option(help="Temperatures, such as 0,0.8.", rich_help_panel=WHAT)] = "0",
    top_p: Annotated[float, typer.Option("--top-p", help="Of the temperatures above 0.", rich_help_panel=WHAT)] = 1.0,
    tree: Annotated[
        str | None,
        typer.Option(
            help="Trees of the draft model too, by their nodes with the root, and their depth if wanted: 8,16 or 16x6.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    max_tokens: Annotated[
        str | None, typer.Option(help="Tokens per text, all of them always generated.", rich_help_panel=WHAT)
    ] = None,
    peers: Annotated[
        bool,
        typer.Option(
            "--peers",
            help="Time transformers, vLLM and llama.cpp too, in all their ways, and each one's best against ours. "
            "One that is not there is reported as missing.",
            rich_help_panel=WHAT,
        ),
    ] = False,
    peer: Annotated[
        list[str] | None,
        typer.Option(help="One of transformers, vllm and llama.cpp; may be repeated.", rich_help_panel=WHAT),
    ] = None,
    peer_k: Annotated[
        list[str] | None,
        typer.Option(
            "--peer-k",
            help="Other draft lengths for a peer or one of its ways; may be repeated: vllm=3,5, vllm-lookup=none.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    vllm: Annotated[
        Path | None,
        typer.Option(
            envvar="PACELINE_VLLM_PYTHON", help="The Python that vLLM is installed for.", rich_help_panel=WHAT
        ),
    ] = None,
    llama_cpp: Annotated[
        Path | None,
        typer.Option(
            envvar="PACELINE_LLAMA_CPP",
            help="The folder of llama.cpp's sources, built in build/ there.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    grid: Annotated[
        bool,
        typer.Option("--grid", help="The classic grid: k in 1,2,4,8 and 50,100,200,500 tokens.", rich_help_panel=WHAT),
    ] = False,
    suite: Annotated[
        str | None, typer.Option(help="code, prose, copy or mixed; code by default.", rich_help_panel=PROMPTS)
    ] = None,
    prompt_file: Annotated[
        Path | None,
        typer.Option(
            help='Own prompts: one per line; in a .jsonl file {"prompt": ...}, {"tokens": ...}, {"messages": ...}.',
            rich_help_panel=PROMPTS,
        ),
    ] = None,
    questions: Annotated[
        Path | None,
        typer.Option(help="Questions in the format of MT-Bench or Spec-Bench; first turns.", rich_help_panel=PROMPTS),
    ] = None,
    num_prompts: Annotated[
        int | None, typer.Option(help="How many, chosen by the seed; 8 by default.", rich_help_panel=PROMPTS)
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the choice of prompts and of sampling.", rich_help_panel=PROMPTS)] = 0,
    repeats: Annotated[int, typer.Option(help="Paired repeats of every cell.", rich_help_panel=HOW)] = 5,
    attempts: Annotated[
        int,
        typer.Option(
            help="How often a cell is timed while its control fails; together, how many times the repeats.",
            rich_help_panel=HOW,
        ),
    ] = 3,
    together: Annotated[
        bool,
        typer.Option(
            "--together",
            help="All cells of a batch size and length take turns in one run, peers too. A third of the time.",
            rich_help_panel=HOW,
        ),
    ] = False,
    dtype: o.Dtype = None,
    device: o.Device = None,
    backend: o.Backend = "auto",
    threads: o.Threads = None,
    quantization: o.Quantization = None,
    draft_quantization: o.DraftQuantization = None,
    output: Annotated[
        Path, typer.Option(help="Raw figures; every finished cell is there at once, and is not measured again.")
    ] = Path("bench.jsonl"),
    html: Html = True,
    quiet: o.Quiet = False,
) -> int | None:
    """Time drafting against plain decoding: paired, with a control, for every combination asked for.

    Every cell is timed beside plain decoding, which runs twice: where it differs from itself by more than 3 %, the
    cell is void and timed again. The raw figures go to a file, cell by cell; run the same command again to go on after
    an interruption. CSV and an HTML page are written beside it, and a table is printed.

    Examples:

        paceline bench
        paceline bench --target DIR --draft DIR --k 1-8 --batch 1,4,16 --num-prompts 16
        paceline bench --drafter ngram --suite copy --peers
        paceline bench --together --peers --k 1-8 --tree 8,16 --peer-k vllm=3,5 --peer-k vllm-lookup=none
        paceline bench --grid
        paceline bench report bench.jsonl
    """
    if context.invoked_subcommand is not None:
        return None
    return (
        COMMANDS.find("run")(
            target=target,
            draft=draft,
            drafters=drafter,
            num_draft_tokens=k,
            batch_sizes=batch,
            temperatures=temperature,
            top_p=top_p,
            max_tokens=max_tokens,
            trees=tree,
            peers=peers,
            peer=peer,
            peer_counts=peer_k,
            together=together,
            vllm=vllm,
            llama_cpp=llama_cpp,
            grid=grid,
            suite=suite,
            prompt_file=prompt_file,
            questions=questions,
            num_prompts=num_prompts,
            seed=seed,
            repeats=repeats,
            attempts=attempts,
            dtype=dtype,
            device=device,
            backend=backend,
            threads=threads,
            quantization=quantization,
            draft_quantization=draft_quantization,
            output=output,
            html=html,
            quiet=quiet,
        )
    ).run()


@bench.command()
def report(
    raw: Annotated[Path, typer.Argument(help="What paceline bench wrote.")],
    html: Html = True,
) -> int:
    """Make the table, CSV and HTML page of raw figures again, from the file alone."""
    return COMMANDS.find("report")(raw=raw, html=html).run()
