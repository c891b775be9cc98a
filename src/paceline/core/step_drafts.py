"""What a step's draft proposed, for rows that ask to see it.

R rows, r rows that ask, N nodes, M distributions of the draft, V vocabulary, D draft depth.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from paceline.core.host import numbers, table
from paceline.core.tree import Outcome, Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftTree:
    """One row's draft in one step. Node 0 is the root, the newest token before it; parents come before children.

    Of probabilities, ``raw`` ones are under the softmax of the target's logits, ``processed`` ones under the
    distribution that tokens are sampled from, one-hot in a greedy row, and ``drafted`` ones under the distribution that
    the drafter drew from, where it has recorded one. The root has none, NaN.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]  # -1 of the root
    origins: tuple[int, ...]  # the drafter's number for what proposed it (Drafter.origins)
    path: tuple[int, ...]  # the nodes that were accepted, without the root
    raw: tuple[float, ...]
    processed: tuple[float, ...]
    drafted: tuple[float, ...]
    own_raw: float  # of the token that the target chose after the path
    own_processed: float

    @property
    def rejected(self) -> list[int]:
        """The tokens that were rejected after the accepted path: of several branches the first, which its drafter
        preferred.
        """
        node, found = self.path[-1] if self.path else 0, list[int]()
        for child in range(node + 1, len(self.tokens)):
            if self.parents[child] == node:
                node = child
                found.append(self.tokens[child])
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDrafts:
    """The draft of one step and the path that was accepted of it, on the device."""

    asked: tuple[int, ...]  # rows
    num_nodes: int
    columns: Tensor  # [r, 4 N + D] tokens, parents, validity and origins of the nodes, then the path
    probs: Tensor = field(repr=False)  # [r, 3 N + 2] raw, processed and drafted ones, then those of the target's token

    @staticmethod
    def of(tree: Tree, outcome: Outcome, asked: Sequence[int], logits: Tensor, scores: Tensor) -> "StepDrafts":
        """A copy, because the tensors of ``tree`` may be those of the next step too.

        ``logits`` [R, N, V] are those of the LM head, ``scores`` [R, N, V] what tokens are sampled from.
        """
        rows = list(asked)
        tokens, parents, path = tree.tokens[rows], tree.parents[rows], outcome.path[rows]
        columns = torch.cat((tokens, parents, tree.valid[rows].long(), tree.origin[rows], path), dim=1)
        # Of every node the distribution before it, and that after the path.
        last = torch.nn.functional.pad(path, (1, 0)).amax(1, keepdim=True)  # children come after their parents
        before = torch.cat((parents.clamp(min=0), last), dim=1)
        chosen = torch.cat((tokens, outcome.next[rows][:, None]), dim=1)
        raw, processed = (_at(part[rows], before, chosen) for part in (logits, scores))
        drafted = torch.full_like(raw[:, :-1], torch.nan)
        if tree.probs is not None:
            source = tree.source[rows]
            found = tree.probs[rows].gather(1, source.clamp(min=0)[..., None].expand(-1, -1, tree.probs.shape[-1]))
            found = found.gather(2, tokens[..., None])[..., 0]
            drafted = torch.where(source >= 0, found.to(drafted.dtype), drafted)
        parts = (raw[:, :-1], processed[:, :-1], drafted, raw[:, -1:], processed[:, -1:])
        return StepDrafts(asked=tuple(asked), num_nodes=tree.num_nodes, columns=columns, probs=torch.cat(parts, dim=1))

    def read(self, num_accepted: Sequence[int]) -> dict[int, DraftTree]:
        """The drafts by row, valid nodes alone, paths cut to ``num_accepted`` of every row; a transfer to the host."""
        found: dict[int, DraftTree] = {}
        if not self.asked:
            return found
        size, width, flat = self.num_nodes, self.probs.shape[1], numbers(self.probs)
        for at, (row, columns) in enumerate(zip(self.asked, table(self.columns), strict=True)):
            tokens, parents, valid, origins = (columns[start : start + size] for start in range(0, 4 * size, size))
            probs = flat[at * width : (at + 1) * width]
            kept = [node for node in range(size) if valid[node] or not node]
            number = {node: index for index, node in enumerate(kept)} | {-1: -1}

            def of(values: Sequence[float], kept: list[int] = kept) -> tuple[float, ...]:
                return (torch.nan, *(values[node] for node in kept[1:]))

            found[row] = DraftTree(
                tokens=tuple(tokens[node] for node in kept),
                parents=tuple(number[parents[node]] for node in kept),
                origins=tuple(origins[node] for node in kept),
                path=tuple(number[node] for node in columns[4 * size :] if node >= 0)[: num_accepted[row]],
                raw=of(probs[:size]),
                processed=of(probs[size : 2 * size]),
                drafted=of(probs[2 * size : 3 * size]),
                own_raw=probs[-2],
                own_processed=probs[-1],
            )
        return found


def _at(scores: Tensor, nodes: Tensor, tokens: Tensor) -> Tensor:
    """The probabilities [r, n] of ``tokens`` [r, n] after ``nodes`` [r, n], from ``scores`` [r, N, V]."""
    probs = scores.to(torch.promote_types(scores.dtype, torch.float32)).softmax(-1)
    return probs.gather(1, nodes[..., None].expand(-1, -1, probs.shape[-1])).gather(2, tokens[..., None])[..., 0]
