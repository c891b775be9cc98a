"""What a model is, what can draft for it, and the memory it takes. Reads no weights."""

import inspect

import torch

from paceline.api.checkpoint import Checkpoint
from paceline.api.cross_vocabulary import choose_exchange
from paceline.api.draft_length import room
from paceline.api.engine import LONGEST
from paceline.core.registry import Registry
from paceline.drafters import DRAFTERS
from paceline.drafters.base import Drafter
from paceline.drafters.model import ModelDrafter
from paceline.drafters.none import NoDrafter
from paceline.engine.memory import row_bytes
from paceline.kernels.cpu.instruction_set import available_sets, describe_set
from paceline.models.directory import TUNED_FROM
from paceline.models.memory import free_memory
from paceline.verifiers import VERIFIERS


def describe_checkpoint(
    found: Checkpoint,
    draft: Checkpoint | None = None,
    *,
    device: torch.device,
    batch_size: int,
    context: int | None,
    num_draft_tokens: int,
) -> dict[str, dict[str, object]]:
    """Facts by section: model, tokenizer, memory, kernel on a CPU, drafters, verifiers, and draft where there is one.

    ``context`` None is the model's own, at most LONGEST. Raises ValueError for one that the model does not have.
    """
    drafter: Drafter = NoDrafter() if draft is None else ModelDrafter(lm=draft.lm)
    longest = room(found.loaded, drafter.max_nodes(num_draft_tokens))
    if context is None:
        context = min(LONGEST, longest)
    if not 2 <= context <= longest:
        raise ValueError(f"--context {context}: give 2 to {longest}, the model's limit")
    each = row_bytes(found.lm, drafter, max_length=context, num_draft_tokens=num_draft_tokens)
    weights = found.weight_bytes + (0 if draft is None else draft.weight_bytes)
    free = free_memory(device)
    sections: dict[str, dict[str, object]] = {
        "model": _describe(found),
        "tokenizer": _describe_tokenizer(found),
        "memory": {
            "batch_size": batch_size,
            "context": context,
            "weights": weights,
            "cache": batch_size * each,
            "free": free,
            "device": str(device),
            "rows_that_fit": max(0, (free - weights) // each),
        },
        **({"kernel": _describe_kernel()} if device.type == "cpu" and found.backend == "native" else {}),
        "drafters": _describe_registry(DRAFTERS),
        "verifiers": _describe_registry(VERIFIERS),
    }
    if draft is not None:
        sections["draft"] = {**_describe(draft), **_judge(found, draft)}
    return sections


def _describe(found: Checkpoint) -> dict[str, object]:
    origin = found.loaded.config.get(TUNED_FROM)
    return {
        "name": found.loaded.name,
        **({TUNED_FROM.removeprefix("paceline_"): origin} if origin is not None else {}),
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


def _describe_tokenizer(found: Checkpoint) -> dict[str, object]:
    tokenizer = found.loaded.tokenizer
    return {
        "tokens": None if tokenizer is None else tokenizer.size,
        "chat_template": tokenizer is not None and tokenizer.has_chat_template,
        "end_of_text": list(found.loaded.eos),
    }


def _describe_kernel() -> dict[str, object]:
    """The instruction set that the CPU kernel runs by, and all that this processor has."""
    chosen = describe_set()
    return {
        "instruction_set": chosen or "none: models run eagerly",
        "available": list(available_sets() if chosen else ()),
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


def _judge(target: Checkpoint, draft: Checkpoint) -> dict[str, object]:
    """Whether ``draft`` can draft for ``target``, in which way, and what share of tokens they have in common."""
    reasons: list[str] = []
    vocabulary: dict[str, object] = {}
    try:
        exchange = choose_exchange(target.loaded, draft.loaded)
    except ValueError as error:
        reasons.append(str(error))
    else:
        vocabulary["drafts_by"] = exchange.way
        if (found := exchange.intersection) is not None:
            vocabulary["common_tokens"] = found.num_common
            vocabulary["share_of_targets_tokens"] = found.share
            vocabulary["share_of_a_text"] = found.common_in_text
    short = draft.lm.max_positions < target.lm.max_positions
    return {
        "fits": not reasons,
        "reasons": reasons,
        **vocabulary,
        "note": f"drafts nothing beyond its context of {draft.lm.max_positions} tokens" if short else None,
        "relative_size": draft.num_parameters / target.num_parameters,
    }
