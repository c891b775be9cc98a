"""The interface of draft heads, for training, saving and drafting.

B rows, T tokens, A anchors of a row, D depths, V vocabulary, H the target's hidden size.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn
from torch.nn import functional as F

from paceline.draft_heads.draft_vocab import DraftVocab
from paceline.draft_heads.layers import DRAFT_IDS, begin_lm_heads, load_own_tensors, own_tensors
from paceline.draft_heads.vocab_map import VocabMap
from paceline.models.backend import linear_for, pack_layer
from paceline.models.draft_vocab import FILE, check_reducible, read_draft_vocab, with_draft_vocab
from paceline.models.native.decoder import DecoderLM


class DraftHeadConfig(BaseModel):
    """Options of a head, as saved with it and given in a training configuration."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @property
    def trained_depth(self) -> int | None:
        """The draft tokens that it learns to predict; None where one is like another."""
        return None

    @property
    def auxiliary_weights(self) -> Mapping[str, float]:
        """The weights in the loss of what ``Unrolled.auxiliary`` holds, by its names, and of "confidence"."""
        return {}

    @property
    def depth_weights(self) -> tuple[float, ...] | None:
        """The weights of the depths' losses, relative to their mean, where a training does not say; None: equal."""
        return None


class ReducibleConfig(DraftHeadConfig):
    """Of heads that draft by an LM head over all of the target's tokens, be it the target's or one that is tied to an
    embedding: with a draft vocabulary they read those rows of it alone (FR-Spec, 2502.14856).
    """

    draft_vocab_size: int | None = Field(default=None, ge=1)  # tokens that it drafts; None: all


def reduce_by_file(
    config: DraftHeadConfig, folder: Path, *, target_size: int
) -> tuple[DraftHeadConfig, dict[str, Tensor]]:
    """The ``config`` of the head in ``folder`` with the draft vocabulary of the file there (models/draft_vocab), if
    there is one, and the tensors that this adds to the head's own.

    Raises ValueError for a file that has none, and for heads that have LM heads or a draft vocabulary of their own.
    """
    ids = read_draft_vocab(folder, target_size)
    if ids is None:
        return config, {}
    if not isinstance(config, ReducibleConfig) or config.draft_vocab_size is not None:
        raise ValueError(f"{folder / FILE}: this head says by itself which tokens it drafts; remove the file")
    return config.model_copy(update={"draft_vocab_size": len(ids)}), {DRAFT_IDS: ids}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unrolled:
    """Draft logits over known tokens, each given that all tokens drafted before it were right.

    Entry [b, a, d] belongs to the draft that starts at anchor a, d tokens after the root. It predicts the token after
    ``position``, like the target's own logits there.
    """

    logits: Tensor  # [B, A, D, V]; [B, A, D, K] with draft_ids
    position: Tensor  # [B, A, D] int64 in 0..T - 1
    weight: Tensor | None = None  # [B, A, D] weight in the loss, 0 beyond the sequence; None: 1
    stops_at_unlearned: bool = False  # whether no entry of a draft counts after one whose token has no loss
    draft_ids: Tensor | None = None  # [K] int64, the target ids of the logits, ascending; None: all
    confidence: Tensor | None = None  # [B, A, D] the head's log odds that the entry's token is accepted
    auxiliary: Mapping[str, Tensor] | None = None  # more losses [B, A, D] by name, with the weights of the config


class DraftHead(nn.Module, ABC):
    """A module with parameters of its own and parts that it shares with the target, which are not saved."""

    kind: ClassVar[str]  # its name in HEADS and in DRAFTERS
    Config: ClassVar[type[DraftHeadConfig]]
    config: DraftHeadConfig
    decoder: DecoderLM  # runs what the head prepares

    def __init__(self) -> None:
        super().__init__()
        self.draft_vocab: DraftVocab | None = None  # the tokens that it drafts, of the target's; None: all
        self._kernels: dict[nn.Module, Callable[[Tensor], Tensor]] = {}

    @property
    def vocab_map(self) -> VocabMap | None:
        """Between ``draft_vocab`` and the target's vocabulary; None where the ids are the same."""
        return None if self.draft_vocab is None else self.draft_vocab.map

    @property
    def draft_ids(self) -> Tensor | None:
        """The ids of ``draft_vocab``."""
        return None if self.draft_vocab is None else self.draft_vocab.ids

    def choose_vocab(self, config: ReducibleConfig, target: DecoderLM) -> None:
        """Have a draft vocabulary of so many tokens, if of any.

        Raises ValueError for more than the target has, and for an LM head whose rows cannot be read alone.
        """
        if config.draft_vocab_size is not None:
            check_reducible(self.decoder)
        self.draft_vocab = DraftVocab.make(config.draft_vocab_size, target)

    @property
    def read_ids(self) -> Tensor | None:
        """The tokens of which ``decoder`` has more logits than the head reads; None: it reads all of them."""
        return self.draft_ids if isinstance(self.config, ReducibleConfig) else None

    @property
    def drafting_decoder(self) -> DecoderLM:
        """``decoder`` with logits of ``read_ids`` alone, by the weights that it has now: what a drafter runs."""
        return self.decoder if self.read_ids is None else with_draft_vocab(self.decoder, self.read_ids)

    @classmethod
    @abstractmethod
    def make(cls, config: DraftHeadConfig, target: DecoderLM, *, generator: torch.Generator) -> Self:
        """A new head for ``target``, in its precision and on its device, with weights drawn by ``generator``.

        Raises ValueError for a configuration that does not fit the target.
        """

    @property
    @abstractmethod
    def taps(self) -> tuple[int, ...]:
        """The target's hidden states that it reads."""

    @property
    @abstractmethod
    def own(self) -> dict[str, nn.Module]:
        """The parts that are not the target's, by the names under which they are saved."""

    def own_state(self) -> dict[str, Tensor]:
        """Its own parameters by name: those that are trained and saved. ``draft_ids``, of integers, are saved alone."""
        return own_tensors(self.own, self.draft_vocab)

    def load_own_state(self, state: Mapping[str, Tensor]) -> None:
        """Load the result of ``own_state``. Raises ValueError for missing, unexpected or misshapen tensors."""
        load_own_tensors(self.own, state, self.draft_vocab)

    @property
    def products(self) -> Iterable[nn.Linear | nn.Embedding]:
        """What it runs by ``multiply``, beside ``decoder``; an embedding is that which an LM head is tied to."""
        return ()

    def multiply(self, layer: nn.Module, x: Tensor) -> Tensor:
        """``x`` [..., in] through one of ``products``."""
        run = self._kernels.get(layer)
        if run is not None:
            return run(x)
        return F.linear(x, layer.weight) if isinstance(layer, nn.Embedding) else layer(x)

    @property
    def uses_kernels(self) -> bool:
        """Whether some of ``products`` run by kernels."""
        return bool(self._kernels)

    def use_kernels(self) -> None:
        """Pack those of ``products`` that are its own, and run all of them by the fastest kernels; nothing may train it
        then.
        """
        own = {layer for part in self.own.values() for layer in part.modules()}
        dtype = self.decoder.dtype
        for layer in list(dict.fromkeys(self.products)):
            run = layer
            if isinstance(layer, nn.Linear) and layer in own:
                run = pack_layer(layer, dtype)
                for path, found in list(self.named_modules(remove_duplicate=False)):
                    if found is layer:
                        self.set_submodule(path, run)
            self._kernels[run] = linear_for(run, dtype)

    @property
    def lm_heads_of_rows(self) -> tuple[nn.Module, ...]:
        """LM heads of its own that begin as the target's rows, of ``draft_vocab`` if it has one."""
        return ()

    def begin_vocab(self, ids: Tensor, target: DecoderLM) -> None:
        """Draft the tokens ``ids``, in a head that nothing has trained: LM heads begin as the target's rows of them.

        Raises ValueError for a head without a draft vocabulary, and as ``DraftVocab.set_ids`` does.
        """
        if self.draft_vocab is None:
            raise ValueError("this head drafts the target's whole vocabulary: give it a draft_vocab_size")
        self.draft_vocab.set_ids(ids)
        begin_lm_heads(self.lm_heads_of_rows, target, self.draft_vocab)

    @abstractmethod
    def unroll(
        self,
        tokens: Tensor,
        hidden: Mapping[int, Tensor],
        *,
        segment: Tensor | None = None,
        learned: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Unrolled:
        """Drafts over ``tokens`` [B, T] whose ``hidden`` states [B, T, H] lie at ``taps``; differentiable.

        ``segment`` [B, T] as in models/attention.CausalAttention: a draft sees one sequence, and has weight 0 beyond
        it. ``learned`` [B, T], where the token after each has a loss (None: everywhere), are the tokens that drafts
        begin at, as they do in serving; the others weigh nothing.

        ``generator``, on the CPU, draws anchors and crops; None takes all anchors, and crops nothing.
        """
