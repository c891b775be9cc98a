"""``paceline inspect``: describes a model, what can draft for it, and its memory. Reads no weights."""

import inspect
import json
from math import prod
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text
from safetensors import SafetensorError, safe_open

from paceline.api.build import check_vocabulary
from paceline.api.draft_heads import is_head
from paceline.api.engine import LONGEST, room
from paceline.api.loading import find_device, find_dtype
from paceline.cli.checkpoint_facts import Found, read_checkpoint
from paceline.cli.commands.inspect import Inspect
from paceline.cli.exit_codes import EXIT_OK
from paceline.cli.models import NUM_DRAFT_TOKENS, check_draft_quantization
from paceline.core.registry import Registry
from paceline.draft_heads.files import WEIGHTS, HeadError, read_head_config
from paceline.drafters import DRAFTERS
from paceline.drafters.base import Drafter
from paceline.drafters.model import ModelDrafter
from paceline.drafters.none import NoDrafter
from paceline.engine.memory import row_bytes
from paceline.models.memory import free_memory
from paceline.verifiers import VERIFIERS

GIB = 1 << 30
REGISTERED = ("drafters", "verifiers")  # sections whose names users type
RUNNERS = {
    "native": "native: Paceline's own code",
    "hf": "hf: transformers' own code, which is tried on drafts when it is loaded",
}


def inspect_model(options: Inspect) -> int:
    """Describe a model or a draft head."""
    if is_head(options.model):
        _output(options, {"head": _describe_head(options.model)})
        return EXIT_OK
    check_draft_quantization(options.draft_quantization, draft=options.draft)
    dtype = find_dtype(options.dtype)
    device = find_device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    found = read_checkpoint(
        options.model,
        dtype=dtype,
        revision=options.revision,
        backend=options.backend,
        trust_remote_code=options.trust_remote_code,
        quantization=options.quantization,
    )
    draft = None
    if options.draft is not None and is_head(options.draft):
        raise ValueError(
            f"--draft {options.draft}: a draft head belongs to one model; see which with paceline inspect HEAD"
        )
    if options.draft is not None:
        draft = read_checkpoint(
            options.draft, dtype=found.loaded.dtype, revision=None, quantization=options.draft_quantization
        )
    count = NUM_DRAFT_TOKENS if options.num_draft_tokens is None else options.num_draft_tokens
    drafter: Drafter = NoDrafter() if draft is None else ModelDrafter(lm=draft.lm)
    longest = room(found.loaded, drafter.max_nodes(count))
    context = min(LONGEST, longest) if options.context is None else options.context
    if not 2 <= context <= longest:
        raise ValueError(f"--context {context}: give 2 to {longest}, the model's limit")
    sections = {
        "model": _describe(found),
        "tokenizer": _describe_tokenizer(found),
        "memory": _memory(options, found, draft, drafter, context, count, device),
        "drafters": _describe_registry(DRAFTERS),
        "verifiers": _describe_registry(VERIFIERS),
    }
    if draft is not None:
        sections["draft"] = {**_describe(draft), **_judge(found, draft)}
    _output(options, sections)
    return EXIT_OK


def _output(options: Inspect, sections: dict[str, dict[str, object]]) -> None:
    if options.json:
        print(json.dumps(sections))
    else:
        _print(sections)


def _memory(
    options: Inspect,
    found: Found,
    draft: Found | None,
    drafter: Drafter,
    context: int,
    count: int,
    device: torch.device,
) -> dict[str, object]:
    """What an engine of this size would take, in bytes."""
    each = row_bytes(found.lm, drafter, max_length=context, num_draft_tokens=count)
    weights = found.weight_bytes + (0 if draft is None else draft.weight_bytes)
    free = free_memory(device)
    return {
        "batch_size": options.batch_size,
        "context": context,
        "weights": weights,
        "cache": options.batch_size * each,
        "free": free,
        "device": str(device),
        "rows_that_fit": max(0, (free - weights) // each),
    }


def _describe_head(path: str | Path) -> dict[str, object]:
    """What a draft head is, and its target. Raises ValueError for files that are missing or broken."""
    record, file = read_head_config(path), Path(path) / WEIGHTS
    try:
        with safe_open(file, framework="pt") as opened:
            slices = [opened.get_slice(name) for name in opened.keys()]
            sizes = [prod(one.get_shape()) for one in slices]
            precisions = sorted({str(one.get_dtype()) for one in slices})
    except (OSError, SafetensorError) as error:
        raise HeadError(f"{file} cannot be read ({error}): save the head again") from error
    return {
        "name": str(path),
        "kind": record.kind,
        "of": record.target,
        "of_sizes": record.fingerprint.sizes,
        **record.config.model_dump(mode="json"),
        "parameters": sum(sizes),
        "precision": precisions,
        "size_on_disk": file.stat().st_size,
        "paceline": record.version,
    }


def _describe(found: Found) -> dict[str, object]:
    return {
        "name": found.loaded.name,
        "architecture": found.loaded.config.get("model_type"),
        "backend": found.backend,
        "parameters": found.num_parameters,
        **found.facts,
        "vocabulary": found.lm.vocab_size,
        "context": found.lm.max_positions,
        "attention_window": found.lm.max_slots,
        "precision": list(found.precisions),
        "size_on_disk": found.num_bytes,
    }


def _describe_tokenizer(found: Found) -> dict[str, object]:
    tokenizer = found.loaded.tokenizer
    return {
        "tokens": None if tokenizer is None else tokenizer.size,
        "chat_template": tokenizer is not None and tokenizer.has_chat_template,
        "end_of_text": list(found.loaded.eos),
    }


def _describe_registry(registry: Registry) -> dict[str, object]:
    """Every name with the first line of its class's description, or with what is wrong with its package."""
    return {name: _describe_class(registry, name) for name in registry}


def _describe_class(registry: Registry, name: str) -> str:
    try:
        kind = registry.find(name)
    except ValueError as error:
        return f"cannot be used: {error}"
    text = (inspect.getdoc(kind) or "").partition("\n\n")[0]
    return " ".join(text.replace("`", "").split()) or "no description"


def _judge(target: Found, draft: Found) -> dict[str, object]:
    """Whether ``draft`` can draft for ``target``."""
    reasons: list[str] = []
    try:
        check_vocabulary(target.loaded, draft.loaded)
    except ValueError as error:
        reasons.append(str(error))
    short = draft.lm.max_positions < target.lm.max_positions
    return {
        "fits": not reasons,
        "reasons": reasons,
        "note": f"drafts nothing beyond its context of {draft.lm.max_positions} tokens" if short else None,
        "relative_size": draft.num_parameters / target.num_parameters,
    }


def _print(sections: dict[str, dict[str, object]]) -> None:
    console = Console(highlight=False)
    for title, facts in sections.items():
        console.print(Text(title, "bold"))
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in facts.items():
            if value is not None:
                table.add_row(
                    Text(name if title in REGISTERED else name.replace("_", " "), "dim"), Text(_spell(name, value))
                )
        console.print(table)


def _spell(name: str, value: object) -> str:
    """A value in human-readable form."""
    if name == "backend":
        return RUNNERS[str(value)]
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and name in ("weights", "cache", "free", "size_on_disk"):
        return f"{value / GIB:.2f} GiB" if value >= GIB / 10 else f"{value / (1 << 20):.1f} MiB"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return str(value)
