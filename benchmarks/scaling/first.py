"""Time to the first token of a long prompt: ours, plainly and with a draft, against transformers' ``generate``."""

from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.scaling.measure import CONTROL, Progress, Timing, has
from paceline.api import Loaded
from paceline.bench.own import continuing
from paceline.bench.peers.transformers import PLAIN as PEER
from paceline.bench.peers.transformers import load_peer, transformers_decoding
from paceline.bench.raw import FIRST, RawFile
from paceline.bench.runner import Configuration, compare
from paceline.bench.statistics import is_void

PLAIN, DRAFTED = "plain", "with the draft"
DRAFT_TOKENS = 5


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

    One token is asked for, greedily; caches are made and the prompt is read within the time. transformers, which runs
    twice as the control, loads the model of ``path``. Raises ValueError for a prompt that the target cannot hold.
    """
    if not 1 <= num_tokens < target.lm.max_positions:
        raise ValueError(
            f"a prompt of {num_tokens} tokens and a first one leave the target's context of {target.lm.max_positions}; "
            "give a shorter one"
        )
    identity = {"kind": FIRST, "run": run, "num_tokens": num_tokens, "drafts": draft is not None}
    if has(raw, identity):
        return
    say(f"first token after {num_tokens}: loading transformers' model")
    random = torch.Generator().manual_seed(0)
    prompt: list[int] = torch.randint(target.lm.vocab_size, (num_tokens,), generator=random).tolist()
    peer = load_peer(path, dtype=target.dtype, device=target.lm.device)
    sides = [_peer(PEER, peer, prompt), _own(PLAIN, target, None, prompt)]
    sides += [] if draft is None else [_own(DRAFTED, target, draft, prompt)]
    compared = compare(
        [*sides, _peer(CONTROL, peer, prompt)],
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


def _own(name: str, target: Loaded, draft: Loaded | None, prompt: Sequence[int]) -> Configuration:
    return continuing(
        name,
        target=target,
        prompts=[prompt],
        num_tokens=1,
        drafter=draft,
        num_draft_tokens=0 if draft is None else DRAFT_TOKENS,
        batch_size=1,
        temperature=0.0,
        seed=0,
    )


def _peer(name: str, model: object, prompt: Sequence[int]) -> Configuration:
    return transformers_decoding(
        name,
        model=model,
        draft=None,
        kind=PEER,
        prompts=[prompt],
        num_tokens=1,
        num_draft_tokens=0,
        batch_size=1,
        temperature=0.0,
        seed=0,
    )
