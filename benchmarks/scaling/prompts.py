"""Prompts: what a forward over all of one takes, and the time to its first token beside transformers' ``generate``."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.study import Progress, Timing
from paceline.api import Loaded
from paceline.bench.generation import decoding
from paceline.bench.peers.transformers import PLAIN as PEER
from paceline.bench.peers.transformers import load_peer, transformers_decoding
from paceline.bench.raw import RawFile
from paceline.bench.runner import compare
from paceline.bench.statistics import is_void
from paceline.bench.timing import time_in_turn
from paceline.core.tree import Tree
from paceline.models.backend import gemm_for
from paceline.models.base import LM, LogitsFor
from paceline.models.native.decoder import DecoderLM

PLAIN, DRAFTED, CONTROL = "plain", "with the draft", "control"
KERNEL, TORCH = "ours", "torch"
DRAFT_TOKENS = 5


def measure_prefill(
    lengths: Sequence[int], *, target: LM, eager: DecoderLM, raw: RawFile, run: str, timing: Timing, say: Progress
) -> None:
    """Put into ``raw``, unless it is there, what a forward over as many nodes as a prompt has takes, and its products.

    The products are those of the first layer, ours and torch's in turn, at as many rows.
    """
    identity = {"kind": "prefill", "run": run, "lengths": list(lengths)}
    if raw.has(identity):
        return
    say("prompts read at once")
    forwards = {f"{length}": _reading(target, length) for length in lengths}
    taken = time_in_turn(forwards, repeats=min(3, timing.repeats), seconds=0.0, clock=timing.clock)
    products: list[dict[str, Any]] = []
    for name, weight in _matrices(eager):
        ours = gemm_for(weight)
        for length in lengths:
            say(f"products of {length} rows: {name}")
            x = torch.randn(length, weight.shape[1]).to(weight.dtype)
            both: dict[str, Callable[[], object]] = {
                KERNEL: lambda x=x, ours=ours: ours(x),
                TORCH: lambda x=x, weight=weight: torch.nn.functional.linear(x, weight),
            }
            elapsed = time_in_turn(both, repeats=timing.repeats, seconds=0.0, clock=timing.clock)
            flops = 2 * length * weight.numel()
            rates = {side: [flops / one for one in values] for side, values in elapsed.items()}
            products.append({"matrix": name, "shape": list(weight.shape), "rows": length, "flops": rates})
    raw.append({**identity, "seconds": [list(values) for values in taken.values()], "products": products})


def _reading(target: LM, length: int) -> Callable[[], object]:
    cache = target.new_cache(1, length).view()
    tokens = torch.randint(target.vocab_size, (1, length), generator=torch.Generator().manual_seed(0))
    tree = Tree.make_chain(tokens, torch.ones_like(tokens, dtype=torch.bool))
    return lambda: target(tree, cache, logits_for=LogitsFor.NONE)


def _matrices(lm: DecoderLM) -> list[tuple[str, torch.Tensor]]:
    """Of the first layer, as they are multiplied with."""
    prefix, state = "blocks.0.", lm.state_dict()
    names = [name for name in state if name.startswith(prefix) and state[name].dim() == 2]
    return [(name.removeprefix(prefix).removesuffix(".weight"), state[name]) for name in names]


def measure_first(
    num_tokens: int,
    *,
    target: Loaded,
    draft: Loaded | None,
    path: Path,
    raw: RawFile,
    run: str,
    timing: Timing,
    say: Progress,
) -> None:
    """Put into ``raw``, unless it is there, seconds from a prompt of ``num_tokens`` to its first token, by each side.

    One token is generated, greedily; caches are made and the prompt is read within the time. transformers, which runs
    twice as the control, loads the model of ``path``. Raises ValueError for a prompt that the target cannot hold.
    """
    if not 1 <= num_tokens < target.lm.max_positions:
        raise ValueError(
            f"a prompt of {num_tokens} tokens and a first one leave the target's context of {target.lm.max_positions}; "
            "give a shorter one"
        )
    identity = {"kind": "first", "run": run, "num_tokens": num_tokens, "drafts": draft is not None}
    if raw.has(identity):
        return
    say(f"first token after {num_tokens}: loading transformers' model")
    random = torch.Generator().manual_seed(0)
    prompt: list[int] = torch.randint(target.lm.vocab_size, (num_tokens,), generator=random).tolist()
    peer = load_peer(path, dtype=target.dtype, device=target.lm.device)
    one = {"prompts": [prompt], "num_tokens": 1}
    sides = [transformers_decoding(PEER, model=peer, **one), decoding(PLAIN, target=target, **one)]
    if draft is not None:
        sides.append(decoding(DRAFTED, target=target, **one, drafter=draft, num_draft_tokens=DRAFT_TOKENS))
    compared = compare(
        [*sides, transformers_decoding(CONTROL, model=peer, **one)],
        baseline=PEER,
        repeats=timing.repeats,
        clock=timing.clock,
        progress=lambda what: say(f"first token after {num_tokens}: {what}"),
    )
    raw.append(
        {
            **identity,
            "void": is_void(compared[CONTROL].speedup.values),
            "seconds": {measured.name: list(measured.seconds.values) for measured in compared.measured},
            "same": {measured.name: measured.identical for measured in compared.measured},
        }
    )
