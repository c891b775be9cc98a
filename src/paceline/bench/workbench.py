"""What a sweep times: our decoding and our peers', of the same prompts in the same precision. Times nothing."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch

from paceline.api import Loaded
from paceline.api.drafter_like import DrafterLike
from paceline.api.loading import runnable
from paceline.bench.drafter_names import chooses_lengths, drafters_of
from paceline.bench.generation import decoding
from paceline.bench.instruction_sets import check_kernel, check_runs, within
from paceline.bench.limits import rates_beside
from paceline.bench.peers.base import Peer, PeerSettings
from paceline.bench.runner import Configuration, Sample
from paceline.bench.sweep import Cell
from paceline.bench.trees import MODEL, nodes_of, shape_of
from paceline.drafters import DRAFTERS
from paceline.hardware.roofline import Work
from paceline.models.base import max_sequence_length
from paceline.models.native.decoder import DecoderLM
from paceline.models.work import forward_work


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """A target, and a draft if there is one."""

    target: Loaded
    draft: Loaded | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelBench:
    """One target, one draft if there is one, the prompts, and the peers; these load when a cell asks for them.

    ``target_path`` and ``draft_path`` are the directories that peers load, ``heads`` those of the target's heads by the
    names that cells have for them. ``sets`` are both models loaded within each instruction set that cells name; as
    weights are packed for a set, they take memory once for each. ``target`` and ``draft`` are then those of the first.
    """

    target: Loaded
    draft: Loaded | None
    target_path: Path
    draft_path: Path | None
    prompts: Sequence[Sequence[int]]
    seed: int
    peers: Sequence[Peer] = ()
    heads: Mapping[str, Path] = field(default_factory=dict[str, Path])
    sets: Mapping[str, Models] = field(default_factory=dict[str, Models])

    def plain(self, name: str, cell: Cell) -> Configuration:
        """Plain decoding of the same prompts."""
        return self._decoding(name, cell, drafts=False)

    def candidate(self, name: str, cell: Cell) -> Configuration:
        """The cell's own decoding."""
        for peer in self.peers:
            if cell.drafter in (peer.ways.plain, *peer.ways.drafting):
                return peer.decoding(name, cell, prompts=self.prompts, seed=self.seed)
        return self._decoding(name, cell, drafts=True)

    def setting(self) -> PeerSettings:
        """What peers are given, to meet this target on equal terms."""
        cores = os.sched_getaffinity(0) if sys.platform == "linux" else range(os.cpu_count() or 1)
        return PeerSettings(
            target=self.target_path,
            draft=self.draft_path,
            dtype=self.target.dtype,
            device=self.target.lm.device,
            num_threads=torch.get_num_threads(),
            cores=tuple(sorted(cores)),
            isa=next(iter(self.sets)) if len(self.sets) == 1 else None,
        )

    def works(self) -> tuple[Work, Work | None] | None:
        """What a forward of the target, and one of the draft, reads; None where that is not known."""
        models = [loaded.lm for loaded in (self.target, self.draft) if loaded is not None]
        found = [forward_work(lm) for lm in models if isinstance(lm, DecoderLM)]
        if len(found) < len(models) or len({work.dtype for work in found}) > 1:
            return None
        return found[0], found[1] if len(found) > 1 else None

    def rates(self) -> dict[str, float]:
        """How fast the machine is now, with what the models read, on each set; nothing where that is not known."""
        targets = {isa: models.target.lm for isa, models in self.sets.items()} or {None: self.target.lm}
        if self.works() is None:
            return {}
        found = [rates_beside(lm, isa) for isa, lm in targets.items() if isinstance(lm, DecoderLM)]
        return {name: rate for rates in found for name, rate in rates.items()}

    def close(self) -> None:
        """End what the peers have started."""
        for peer in self.peers:
            peer.close()

    def _models(self, cell: Cell) -> Models:
        return Models(target=self.target, draft=self.draft) if cell.isa is None else self.sets[cell.isa]

    def _drafter(self, cell: Cell) -> DrafterLike:
        num_nodes, draft = nodes_of(cell.drafter), self._models(cell).draft
        if num_nodes is None:
            if cell.drafter in self.heads:
                return self.heads[cell.drafter]
            listed = [
                draft if one == MODEL and draft is not None else one for one in drafters_of(cell.drafter, self._known)
            ]
            return listed if len(listed) > 1 else listed[0]
        assert draft is not None
        shape = shape_of(num_nodes, cell.num_draft_tokens)
        return DRAFTERS.find("model")(lm=runnable(draft), shape=shape)

    @property
    def _known(self) -> list[str]:
        return [*DRAFTERS, MODEL, *self.heads]

    def _decoding(self, name: str, cell: Cell, *, drafts: bool) -> Configuration:
        count = "auto" if chooses_lengths(cell.drafter, self._known) else cell.num_draft_tokens
        with within(cell.isa):
            made = decoding(
                name,
                target=self._models(cell).target,
                prompts=self.prompts,
                num_tokens=cell.max_tokens,
                drafter=self._drafter(cell) if drafts else None,
                num_draft_tokens=count if drafts else 0,
                batch_size=cell.batch_size,
                temperature=cell.temperature,
                top_p=cell.top_p,
                seed=self.seed,
            )
        return replace(made, parts=[partial(_run_within, cell.isa, part) for part in made.parts])


def load_sets(isas: Sequence[str], load: Callable[[], Models]) -> dict[str, Models]:
    """What ``load`` loads, once within each instruction set.

    Raises ValueError for models that do not run by the CPU kernel, and where that cannot be built.
    """
    found: dict[str, Models] = {}
    for isa in isas:
        check_kernel(isa)
        with within(isa):
            found[isa] = load()
            for loaded in (found[isa].target, found[isa].draft):
                if loaded is not None:
                    check_runs(loaded, isa)
    return found


def _run_within(isa: str | None, part: Callable[[], Sample]) -> Sample:
    """A part's caches, buffers and operations are made when it runs."""
    with within(isa):
        return part()


def check_peers(target: Loaded, draft: Loaded | None) -> None:
    """Raise ValueError for a draft that no peer can draft with: they take no vocabularies of two sizes."""
    if draft is not None and draft.lm.vocab_size != target.lm.vocab_size:
        raise ValueError(
            f"--peers with {target.lm.vocab_size} token ids of the target and {draft.lm.vocab_size} of the draft: "
            "they draft only where both have as many; pad the smaller model, or leave --peers out"
        )


def check_lengths(
    target: Loaded, prompts: Sequence[Sequence[int]], max_tokens: Sequence[int], *, num_nodes: int
) -> None:
    """Raise ValueError for a prompt whose longest continuation, and ``num_nodes`` drafted, the target cannot hold."""
    longest, context = max(max_tokens), max_sequence_length(target.lm, num_nodes=num_nodes)
    for index, prompt in enumerate(prompts):
        if not prompt:
            raise ValueError(f"prompt {index}: no tokens in it; give at least one")
        if len(prompt) + longest > context:
            raise ValueError(
                f"prompt {index} of {len(prompt)} tokens and {longest} more leave the target's context of {context}; "
                "give shorter prompts or fewer tokens"
            )


def check_batches(num_prompts: int, batch_sizes: Sequence[int]) -> None:
    """Raise ValueError unless the prompts fill whole batches of every size: a part of one would count as slow."""
    for size in batch_sizes:
        if size < 1 or num_prompts % size:
            raise ValueError(
                f"{num_prompts} prompts and batch size {size}: give a number of prompts that every batch size divides"
            )
