"""Tests whether a transformers model gives the same logits on trees over slots as on plain sequences, at loading.

The probe uses tokens of a fixed seed: two sequences of different lengths read in chunks, poisoned slots after them, a
tree that branches differently in each row, one path of it committed, and one more node. Each node's logits must be
those of a plain forward of its path. B rows, N nodes, V vocabulary.
"""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from paceline.core.cache import View
from paceline.core.tree import Tree
from paceline.models.adapter.support import ModelInfo, first_line
from paceline.models.base import LM, LogitsFor
from paceline.models.directory import ModelError
from paceline.models.loading import dtype_name
from paceline.models.prefill import feed

LENGTHS = (5, 11)  # committed tokens of the two rows
CHUNK = 4
CAPACITY = 320  # beyond the default windows of some models
PARENTS = (
    (-1, 0, 0, 1, 1, 2, 0, 6, 3, 7),
    (-1, 0, 1, 0, 3, 3, 4, 1, 7, 0),
)
DEPTH = 4
INVALID = 9  # a node of the second row
PATHS = ((1, 3, 8), (3, 4, 6))  # what is committed of each row's tree
POISON = 30.0

# Differences are in standard deviations of the plain logits. In 16 bits an expert chosen otherwise in one layer may
# change a node's logits wholly, which nothing can prevent; a wrong mask or position changes most nodes.
TOLERANCE = {torch.float64: (1e-3, 0.0), torch.float32: (5e-3, 0.0)}
COARSE = (0.3, 0.25)  # of 16 bits: tolerance, and the share of nodes that may exceed it


class Adapted(LM, Protocol):
    """An adapter that is being probed."""

    model: PreTrainedModel

    @property
    def info(self) -> ModelInfo: ...

    def probe_view(self, rows: int, capacity: int, draw: Callable[..., Tensor]) -> View: ...

    def plain(self, tokens: list[int], row: int) -> Tensor: ...

    @property
    def dtype(self) -> torch.dtype: ...


@torch.inference_mode()
def probe(lm: Adapted) -> None:
    """Raise ModelError unless ``lm`` gives the logits of its model, naming the largest difference and its reasons."""
    name = type(lm.model).__name__
    try:
        differences = _compare(lm)
    except ModelError:
        raise
    except Exception as error:  # whatever the model's own code raises for a mask of four axes
        raise ModelError(
            f"{name} cannot be run on trees: its forward fails with a mask of four axes over slots "
            f"({first_line(error)}); give a model of another architecture"
        ) from error
    tolerance, share = TOLERANCE.get(lm.dtype, COARSE)
    worst = float(differences.max())
    if not float((~(differences <= tolerance)).double().mean()) <= share:
        raise ModelError(
            f"{name} cannot be run on trees: logits differ from those of its plain forward by up to {worst:.3g} "
            f"standard deviations, where {tolerance:g} is allowed for {dtype_name(lm.dtype)}; its attention ignores "
            "a mask of four axes, or it derives positions from cache slots; give a model of another architecture"
        )


def _compare(lm: Adapted) -> Tensor:
    """Largest difference of every node that was compared, in standard deviations of the plain logits."""
    generator = torch.Generator().manual_seed(20260101)
    longest = max(LENGTHS)

    # Some encoder-decoders number no padding, and so what comes after it differently with and without a cache.
    padding = lm.model.config.pad_token_id if lm.model.config.is_encoder_decoder else None

    def draw(*shape: int) -> Tensor:
        found = torch.randint(lm.vocab_size, shape, generator=generator)
        return found if padding is None else torch.where(found == padding, (padding + 1) % lm.vocab_size, found)

    tokens, drafted, roots = draw(2, longest), draw(2, len(PARENTS[0])), draw(2, 1)
    limit = lm.info.limit
    capacity = min(CAPACITY, lm.max_positions if limit is None else limit.length)
    if capacity < longest + len(PARENTS[0]):
        raise ModelError(f"{type(lm.model).__name__}: a context of {capacity} tokens is too short to be probed")
    view = lm.probe_view(len(LENGTHS), capacity, draw)
    _commit(lm, view, tokens, generator)
    valid = torch.ones_like(drafted, dtype=torch.bool)
    valid[1, INVALID] = False
    tree = Tree.make(drafted, torch.tensor(PARENTS), valid, max_depth=DEPTH)
    device = lm.device
    logits = lm(_on(tree, device), view).logits
    view.commit(
        torch.full((2,), len(PATHS[0]) + 1, device=device),
        torch.tensor([[*path, *[-1] * (DEPTH - len(path))] for path in PATHS], device=device),
    )
    chain = Tree.make_chain(roots.to(device), torch.ones(2, 1, dtype=torch.bool, device=device))
    after = lm(chain, view, logits_for=LogitsFor.LAST).logits
    assert logits is not None and after is not None
    found: list[Tensor] = []
    for row, length in enumerate(LENGTHS):
        known = tokens[row, :length].tolist()
        nodes = [node for node in range(len(PARENTS[row])) if valid[row, node]]
        for leaf in [node for node in nodes if node not in PARENTS[row]]:
            path = _path(row, leaf)
            plain = lm.plain(known + drafted[row, path].tolist(), row)
            found.append(_difference(logits[row, path], plain[length:]))
        committed = known + drafted[row, [0, *PATHS[row]]].tolist() + roots[row].tolist()
        found.append(_difference(after[row], lm.plain(committed, row)[-1:]))
    return torch.cat(found)


def _commit(lm: LM, view: View, tokens: Tensor, generator: torch.Generator) -> None:
    """Let rows hold the first LENGTHS tokens of ``tokens``, read in chunks; large numbers go to the other slots."""
    tokens, length = tokens.to(lm.device), torch.tensor(LENGTHS, device=lm.device)
    for _ in range(0, max(LENGTHS), CHUNK):
        feed(lm, view, tokens, (length - view.length).clamp(0, CHUNK), CHUNK)
    scratch = torch.arange(view.capacity, device=lm.device) >= length[:, None]
    keys, values = view.storage.keys, view.storage.values
    poison = POISON * torch.randn(keys.shape[2:], generator=generator).to(keys)
    for layer in (*keys, *values):
        layer[:2] = torch.where(scratch[:, :, None, None], poison, layer[:2])


def _on(tree: Tree, device: torch.device) -> Tree:
    tokens, parents, valid = (tensor.to(device) for tensor in (tree.tokens, tree.parents, tree.valid))
    return Tree.make(tokens, parents, valid, max_depth=tree.max_depth)


def _path(row: int, node: int) -> list[int]:
    path: list[int] = []
    while node >= 0:
        path.append(node)
        node = PARENTS[row][node]
    return path[::-1]


def _difference(ours: Tensor, plain: Tensor) -> Tensor:
    """Largest difference per node [n]; NaN counts as infinite."""
    ours, plain = ours.double(), plain.double()
    return ((ours - plain).abs().amax(-1) / plain.std().clamp(min=1e-12)).nan_to_num(nan=torch.inf)
