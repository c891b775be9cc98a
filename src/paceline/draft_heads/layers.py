"""Helpers that draft heads share: loading and initialising weights, and choosing training anchors.

B rows, T tokens, A anchors, D depths, s states, H hidden size.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from paceline.draft_heads.draft_vocab import DraftVocab
from paceline.models.native.decoder import DecoderLM

DRAFT_IDS = "draft_ids"


def own_tensors(own: Mapping[str, nn.Module], vocab: DraftVocab | None = None) -> dict[str, Tensor]:
    """Tensors of the modules ``own`` by their names under these; parameters are themselves. ``vocab`` is draft_ids."""
    tensors = {
        f"{prefix}.{name}": tensor
        for prefix, module in own.items()
        for name, tensor in module.state_dict(keep_vars=True).items()
    }
    return tensors if vocab is None else {**tensors, DRAFT_IDS: vocab.ids}


def load_own_tensors(
    own: Mapping[str, nn.Module], state: Mapping[str, Tensor], vocab: DraftVocab | None = None
) -> None:
    """Copy the result of ``own_tensors``. Raises ValueError, before any is copied, for tensors that do not fit."""
    wanted = {name: tuple(tensor.shape) for name, tensor in own_tensors(own, vocab).items()}
    missing, extra = sorted(wanted.keys() - state.keys()), sorted(state.keys() - wanted.keys())
    if missing or extra:
        raise ValueError(f"a head's weights: missing {missing[:3]}, unexpected {extra[:3]}")
    for name, shape in wanted.items():
        if tuple(state[name].shape) != shape:
            raise ValueError(f"a head's weights: {name} has shape {tuple(state[name].shape)}, its config says {shape}")
    if vocab is not None and state[DRAFT_IDS] is not vocab.ids:
        vocab.set_ids(state[DRAFT_IDS])
    _load_modules(own, state, assign=False)


def materialize(own: Mapping[str, nn.Module], state: Mapping[str, Tensor], target: DecoderLM) -> None:
    """Assign ``state`` to modules on the meta device, in the precision and on the device of ``target``."""
    ready = {name: tensor.to(target.device, target.dtype) for name, tensor in state.items()}
    _load_modules(own, ready, assign=True)


def random_weights(empty: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
    """New weights of these shapes: ones for norms, matrices of variance 1 / fan-in."""
    return {
        name: torch.ones(one.shape)
        if one.dim() == 1
        else torch.randn(one.shape, generator=generator) * one.shape[-1] ** -0.5
        for name, one in empty.items()
    }


def begin_lm_heads(heads: Iterable[nn.Module], target: DecoderLM, vocab: DraftVocab | None) -> None:
    """Copy the rows of the target's LM head for ``vocab`` (None: all) into new ``heads``, by its divisor of logits.

    One that reads another width keeps its own, and so do all of a quantised target, which nobody trains heads for.
    """
    weight = (target.embed if target.head is None else target.head).weight.detach()
    if not weight.is_floating_point():
        return
    rows = (weight if vocab is None else weight[vocab.ids]) / target.logits_divisor  # [D, H]
    with torch.no_grad():
        for own in (head.get_parameter("weight") for head in heads):
            if own.shape == rows.shape:
                own.copy_(rows)


def sample_anchors(learned: Tensor, count: int | None, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """The roots of training drafts: their indices [B, A], ascending, and weights [B, A].

    ``count`` per row at random; all without either. Roots are tokens that are ``learned`` [B, T]: others only fill rows
    that have fewer, with the weight 0. Weights are 1 where all are learned, and make the sum over a row's drafts on
    average that over all its learned roots, times A / T.
    """
    rows, length = learned.shape
    if count is None or generator is None or count >= length:
        chosen = torch.arange(length, device=learned.device).expand(rows, length)
    else:
        drawn = torch.rand(rows, length, generator=generator).to(learned.device)
        chosen = torch.where(learned, drawn, drawn - 1).topk(count, dim=-1).indices.sort(dim=-1).values
    found, size = learned.sum(-1, keepdim=True), chosen.shape[1]
    weight = (found * size) / (found.clamp(1, size) * length)
    return chosen, weight * learned.gather(1, chosen)


def all_learned(tokens: Tensor, learned: Tensor | None) -> Tensor:
    """``learned`` [B, T], or that of ``tokens`` [B, T] which all are."""
    return torch.ones_like(tokens, dtype=torch.bool) if learned is None else learned


def anchor_positions(roots: Tensor, depth: int, segment: Tensor | None, *, length: int) -> tuple[Tensor, Tensor]:
    """Positions [B, A, D] of each of ``roots`` [B, A] and the tokens after it, and their weights: 0 beyond the
    sequence.
    """
    reached = roots[..., None] + torch.arange(depth, device=roots.device)
    position = reached.clamp(max=length - 1)
    inside = reached < length
    if segment is not None:
        inside &= _gather_tokens(segment, position) == segment.gather(1, roots)[..., None]
    return position, inside.float()


def gather_preceding(hidden: Tensor, roots: Tensor, count: int, segment: Tensor | None) -> Tensor:
    """The last ``count`` of ``hidden`` [B, T, H] before each of ``roots``: [B, A, s, H].

    They are zero before the beginning of the root's sequence.
    """
    reached = roots[..., None] + torch.arange(-count, 0, device=roots.device)  # [B, A, s]
    index = reached.clamp(min=0)
    inside = reached >= 0
    if segment is not None:
        inside &= _gather_tokens(segment, index) == segment.gather(1, roots)[..., None]
    rows = torch.arange(hidden.shape[0], device=hidden.device)[:, None, None]
    return torch.where(inside[..., None], hidden[rows, index], 0)


def _gather_tokens(values: Tensor, index: Tensor) -> Tensor:
    """``values`` [B, T] at ``index`` [B, A, n]."""
    return values.gather(1, index.flatten(1)).view_as(index)


def _load_modules(own: Mapping[str, nn.Module], state: Mapping[str, Tensor], *, assign: bool) -> None:
    for prefix, module in own.items():
        start = f"{prefix}."
        module.load_state_dict(
            {n.removeprefix(start): t for n, t in state.items() if n.startswith(start)}, assign=assign
        )
