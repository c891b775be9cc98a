"""What is timed on a GPU: a large target made on it from a small one, and transformers' model over the same weights.

Nothing of the large model is ever written to a disk or held by the host.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from benchmarks.inflate.model import fields_of, inflate_to
from benchmarks.inflate.widths import choose_widths, count_parameters
from benchmarks.study import Progress, check_counts
from paceline.api import Loaded, load
from paceline.bench.generation import decoding
from paceline.bench.peers.transformers import ASSISTED, load_peer, transformers_decoding
from paceline.bench.peers.transformers import PLAIN as PEER
from paceline.bench.raw import RawFile
from paceline.bench.runner import Configuration, Measured, compare
from paceline.bench.statistics import is_void
from paceline.models.loading import find_family
from paceline.models.memory import free_memory
from paceline.models.native.attention import TreeAttention
from paceline.models.native.decoder import DecoderLM
from paceline.models.native.fused_weights import split_parts

KIND = "device"
PLAIN, CONTROL, DRAFTED = "plain", "control", "drafted"
BATCHES = (1, 8, 32, 4, 16)  # those that matter most first, in case the time runs out
FEWEST_PROMPTS = 4  # a batch has as many as it has rows, and these at least
MOST_REPEATS, FEWEST_REPEATS = 7, 3
GIB = 1 << 30
ROOM = 1.25  # memory wanted beside the weights: a layer in float64 while it is made, then caches and logits


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """Ours and theirs, on one device, in one precision; both targets read the same memory."""

    target: Loaded
    draft: Loaded
    peer: Any  # as transformers' checkers have it (bench/peers)
    peer_draft: Any


def make_models(
    target: Path,
    draft: Path,
    *,
    num_parameters: int,
    dtype: torch.dtype,
    device: torch.device,
    enforce_eager: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Models:
    """``target`` inflated to about ``num_parameters`` on ``device``, and its draft as it is.

    ``enforce_eager`` has steps called operation by operation, and read at once.
    Raises ValueError where the device has too little memory left, before anything large is made.
    """
    say = progress or (lambda _: None)
    small = load(target, dtype=dtype, device=device, enforce_eager=enforce_eager)
    if not isinstance(small.lm, DecoderLM):
        raise ValueError(f"{target}: only native models can be inflated; give one of the Llama layout")
    wanted = count_parameters(choose_widths(small.lm.config, num_parameters)) * dtype.itemsize
    free = free_memory(device)
    if ROOM * wanted > free:
        fitting = int(free / ROOM / dtype.itemsize)
        raise ValueError(
            f"{num_parameters:,} parameters take {wanted / GIB:.1f} GiB and some room, of which {device} has "
            f"{free / GIB:.1f} left: give --parameters {fitting // 10**6}M or fewer"
        )
    lm = inflate_to(
        small.lm, num_parameters=num_parameters, progress=lambda done, total: say(f"inflating, layer {done} of {total}")
    )
    say("transformers' model over the same weights")
    config = small.config | fields_of(lm.config)
    return Models(
        target=replace(small, lm=lm, config=config),
        draft=load(draft, dtype=dtype, device=device, enforce_eager=enforce_eager),
        peer=share(lm, config),
        peer_draft=load_peer(draft, dtype=dtype, device=device),
    )


def attend_densely(models: Models) -> None:
    """Have our models read all slots of their caches at every step."""
    for loaded in (models.target, models.draft):
        assert isinstance(loaded.lm, DecoderLM)
        loaded.lm.attention = TreeAttention


def share(lm: DecoderLM, config: dict[str, object]) -> Any:
    """transformers' model of ``config`` over the weights of ``lm``, without defaults of its own. Copies none."""
    fields = {name: value for name, value in config.items() if name not in ("model_type", "torch_dtype", "dtype")}
    parsed = AutoConfig.for_model(str(config["model_type"]), **fields)
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(parsed, dtype=lm.dtype)
    family = find_family(config, "the inflated target")
    model.load_state_dict(family.write(split_parts(lm.config, lm.state_dict())), assign=True)
    # Buffers that no checkpoint holds have no storage yet: the angles of the positions.
    model.model.rotary_emb = type(model.model.rotary_emb)(parsed).to(lm.device)
    left = [name for name, tensor in (*model.named_parameters(), *model.named_buffers()) if tensor.is_meta]
    if left:
        raise ValueError(f"this version of transformers has {left[0]}, which nobody fills; report it")
    model.generation_config = GenerationConfig()
    return model.requires_grad_(False).eval()


def find(name: str) -> torch.device:
    """The device of this name. Raises ValueError, saying what is missing, where there is none."""
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        reason = (
            "torch finds no device (is there one, and does its driver run?)"
            if torch.version.cuda
            else f"torch {torch.__version__} was built without CUDA; install a build that has it"
        )
        raise ValueError(f"no CUDA device: {reason}. --device cpu --parameters 20M runs the same in a small form")
    return device


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is timed. Raises ValueError for counts below 1 and no time."""

    batches: Sequence[int] = BATCHES
    draft_tokens: Sequence[int] = (3, 5)
    num_tokens: int = 48  # of every output
    minutes: float = 6.0  # for all batch sizes; what does not fit is left out, and said

    def __post_init__(self) -> None:
        check_counts(batch=self.batches, k=self.draft_tokens, tokens=self.num_tokens)
        if not self.minutes > 0:
            raise ValueError(f"minutes={self.minutes}: give more than 0")


def run_plan(
    plan: Plan,
    *,
    models: Models,
    prompts: Sequence[Sequence[int]],
    raw: RawFile,
    run: str,
    say: Progress,
    clock: Callable[[], float] = time.perf_counter,
) -> list[int]:
    """Put into ``raw`` what it lacks of ``plan``; the batch sizes that there was no time for.

    Every side runs once to warm up, which compiles and records, and once more for its time. What that took says how
    many repeats fit into an even share of the time that is left: 3 at least, or the batch size is left out, and 7 at
    most.
    """
    until = clock() + 60 * plan.minutes
    identity = {"kind": KIND, "run": run}
    waiting = [batch for batch in dict.fromkeys(plan.batches) if not raw.has({**identity, "batch": batch})]
    left_out: list[int] = []
    while waiting:
        batch = waiting.pop(0)
        sides = _sides(batch, plan, models, prompts)
        say(f"batch {batch}: warming up")
        for side in sides:
            side.run()
        begun = clock()
        for side in sides:
            side.run()
        once = clock() - begun
        left = until - clock()
        repeats = min(MOST_REPEATS, max(FEWEST_REPEATS, int(left / (len(waiting) + 1) / max(once, 1e-9))))
        if repeats * once > left:
            left_out.append(batch)
            continue
        compared = compare(
            sides,
            baseline=PLAIN,
            repeats=repeats,
            warm_up=0,
            progress=lambda what, batch=batch: say(f"batch {batch}: {what}"),
        )
        raw.append(
            {
                **identity,
                "batch": batch,
                "prompts": [len(prompt) for prompt in _chosen(prompts, batch)],
                "num_tokens": plan.num_tokens,
                "void": is_void(compared[CONTROL].speedup.values),
                "sides": {measured.name: _record(measured) for measured in compared.measured},
            }
        )
    return left_out


def _chosen(prompts: Sequence[Sequence[int]], batch: int) -> list[Sequence[int]]:
    count = max(FEWEST_PROMPTS, batch) // batch * batch
    return [prompts[at % len(prompts)] for at in range(count)]


def _sides(batch: int, plan: Plan, models: Models, prompts: Sequence[Sequence[int]]) -> list[Configuration]:
    chosen = _chosen(prompts, batch)

    given = {"prompts": chosen, "num_tokens": plan.num_tokens, "batch_size": batch, "temperature": 0.0, "seed": 0}

    def ours(name: str, count: int = 0) -> Configuration:
        draft = models.draft if count else None
        return decoding(name, target=models.target, drafter=draft, num_draft_tokens=count, **given)

    def theirs(name: str, kind: str, count: int = 0) -> Configuration:
        peer = {"model": models.peer, "draft": models.peer_draft}
        return transformers_decoding(name, **peer, kind=kind, num_draft_tokens=count, **given)

    sides = [ours(PLAIN), *(ours(f"{DRAFTED} k={count}", count) for count in plan.draft_tokens), theirs(PEER, PEER)]
    if batch == 1:  # it assists one prompt at a time
        sides += [theirs(f"{ASSISTED} k={count}", ASSISTED, count) for count in plan.draft_tokens]
    return [*sides, ours(CONTROL)]


def _record(measured: Measured) -> dict[str, Any]:
    sample = measured.sample
    phases = [one.phases for one in measured.samples if one.phases is not None]
    return {
        "seconds": list(measured.seconds.values),
        "tokens": sample.num_tokens,
        "steps": None if sample.summary is None else sample.summary.steps,
        "drafted": None if sample.summary is None else sum(sample.summary.drafted),
        "accepted": None if sample.summary is None else sum(sample.summary.accepted),
        "phases": [list(one) for one in phases],
        "identical": measured.identical,
    }
