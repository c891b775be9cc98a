"""Draft models that draft only some of their tokens: they read all, and their LM head has those rows alone (FR-Spec,
2502.14856).

V tokens of the draft model, D that it drafts, H hidden size.
"""

import json
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from paceline.core.host import integers
from paceline.models.backend import pack_layer
from paceline.models.base import LM
from paceline.models.directory import ModelError
from paceline.models.native.decoder import DecoderLM
from paceline.models.native.quantization import Int4Linear, Int8Linear

# Beside the weights of a draft model or head. No safetensors: servers load every such file of a directory as weights.
FILE, IDS = "draft_vocab.json", "draft_ids"


def check_draft_ids(ids: Tensor | Sequence[int], vocab_size: int) -> list[int]:
    """``ids`` [D] on the host. Raises ValueError for what are no ascending ids below ``vocab_size``, and for none."""
    if isinstance(ids, Tensor):
        if ids.dtype != torch.int64 or ids.dim() != 1:
            raise ValueError(f"{IDS}: {tuple(ids.shape)} of {ids.dtype}; give a vector of int64")
        ids = integers(ids)
    known = list(ids)
    ascending = bool(known) and all(one < other for one, other in pairwise(known))
    if not ascending or not 0 <= known[0] <= known[-1] < vocab_size:
        raise ValueError(f"{IDS}: give ascending ids, at least one, of 0 to {vocab_size - 1}")
    return known


def read_draft_vocab(folder: Path, vocab_size: int) -> Tensor | None:
    """The ids [D] that what is in ``folder`` drafts; None: all. Raises ModelError for a file that has none."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
        ids = cast("object", read.get(IDS)) if isinstance(read, dict) else None
        whole = isinstance(ids, list) and {type(one) for one in cast("list[object]", ids)} <= {int}
        if not whole:
            raise ValueError(f"{{{IDS!r}: [...]}} with a list of ids is wanted")
        return torch.tensor(check_draft_ids(cast("list[int]", ids), vocab_size))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: {error}; write it again, or remove it, and all tokens are drafted") from error


def write_draft_vocab(folder: Path, ids: Tensor) -> None:
    """What ``read_draft_vocab`` reads."""
    (folder / FILE).write_text(json.dumps({IDS: integers(ids)}) + "\n", encoding="utf-8")


def check_reducible(lm: LM) -> DecoderLM:
    """``lm``, whose LM head's rows can be read alone.

    Raises ValueError for models that are not native, whose LM head is quantized, or that never generate some tokens.
    """
    if not isinstance(lm, DecoderLM):
        raise ValueError("a draft vocabulary needs a model that runs natively; let it draft all tokens")
    if isinstance(lm.head, Int8Linear | Int4Linear):
        raise ValueError("a draft vocabulary: the LM head is quantized; load without quantization, or draft all tokens")
    if lm.num_generated is not None:
        raise ValueError(
            f"a draft vocabulary: this model generates {lm.num_generated} tokens as it is; let it draft all of these"
        )
    return lm


def is_reducible(lm: LM) -> bool:
    """Whether the rows of its LM head can be read alone."""
    try:
        check_reducible(lm)
    except ValueError:
        return False
    return True


@torch.no_grad()
def with_draft_vocab(lm: LM, ids: Tensor) -> DecoderLM:
    """``lm`` with logits [..., D] of ``ids`` [D]; all other weights are its own. Raises ValueError as
    ``check_reducible``, and for ids that it does not have.
    """
    lm = check_reducible(lm)
    chosen = torch.tensor(check_draft_ids(ids, lm.vocab_size), device=lm.device)
    weight = lm.embed.weight if lm.head is None else lm.head.weight  # unpacked where it is packed
    assert isinstance(weight, Tensor)
    rows = weight[chosen].detach().clone()
    head = nn.Linear(rows.shape[1], len(rows), bias=False, device="meta")
    head.weight = nn.Parameter(rows, requires_grad=False)
    found = copy(lm)
    known = next((layer for layer in (*lm.blocks.modules(), lm.head) if isinstance(layer, nn.Linear)), lm.embed)
    found._modules, found._parameters = dict(lm._modules), dict(lm._parameters)
    found.head = head if type(known) in (nn.Linear, nn.Embedding) else pack_layer(head, lm.dtype)
    if lm.logits_bias is not None:
        found.logits_bias = nn.Parameter(lm.logits_bias[chosen], requires_grad=False)
    found.vocab_size = len(chosen)
    found.config = replace(lm.config, vocab_size=len(chosen), tied_head=False)
    return found
