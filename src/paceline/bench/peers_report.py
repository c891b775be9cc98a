"""Plain Paceline beside transformers' ``generate``: python -m paceline.bench.peers_report [--target DIR].

Prints the machine, a table and, with --json, every repeat's figures. Knows nothing of drafting.
"""

import argparse
from pathlib import Path

import torch
from rich.console import Console

from paceline.api import DTYPES, embedded_pair, load
from paceline.api.prompts import encode
from paceline.bench.machine import describe
from paceline.bench.own import decoding
from paceline.bench.peers import transformers_plain
from paceline.bench.report import make_table, to_json
from paceline.bench.runner import compare
from paceline.bench.suites import PYTHON_PROMPTS

OWN, PEER = "paceline", "transformers"


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=Path, help="model directory; the embedded target by default")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="float32")
    parser.add_argument("--num-tokens", type=int, default=96, help="tokens decoded per prompt")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="also write every figure to this file")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    dtype, path = DTYPES[options.dtype], options.target or embedded_pair()[0]
    target = load(path, dtype=dtype)
    prompts = [encode(target, prompt) for prompt in PYTHON_PROMPTS]
    comparison = compare(
        [
            transformers_plain(PEER, path=path, prompts=prompts, num_tokens=options.num_tokens, dtype=dtype),
            decoding(OWN, target=target, prompts=prompts, num_tokens=options.num_tokens),
        ],
        baseline=PEER,
        repeats=options.repeats,
    )
    machine, console = describe(), Console()
    console.print(str(machine), highlight=False)
    length = f"{len(prompts)} prompts x {options.num_tokens} tokens, one at a time"
    console.print(make_table(comparison, title=f"{path}, {options.dtype}, {length}, {options.repeats} paired repeats"))
    same = "yes" if comparison[OWN].identical else "NO"
    console.print(f"same tokens: {same}; looping texts: {comparison[OWN].num_looping} of {len(prompts)}")
    settings = {
        "target": str(path),
        "dtype": options.dtype,
        "num_tokens": options.num_tokens,
        "num_prompts": len(prompts),
        "repeats": options.repeats,
    }
    record = to_json(comparison, machine, settings=settings)
    if options.json is not None:
        options.json.write_text(record + "\n", encoding="utf-8")
    else:
        print(record)


if __name__ == "__main__":
    main()
