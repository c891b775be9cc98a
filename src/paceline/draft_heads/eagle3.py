"""The EAGLE-3 head: one layer over fused hidden states of the target and embedded tokens (2503.01840).

P-EAGLE is the same head whose drafted pairs are all alike, so that a draft does not depend on its own tokens.

B rows, n pairs, k taps, H hidden size of the target, W of the head.
"""

from collections.abc import Mapping
from typing import ClassVar, Literal, Self, final

import torch
from pydantic import Field
from torch import Tensor, nn

from paceline.draft_heads.base import DraftHeadConfig
from paceline.draft_heads.draft_vocab import DraftVocab
from paceline.draft_heads.layers import begin_lm_heads
from paceline.draft_heads.pair import PairConfig, PairHead, fill, own_head_config
from paceline.models.base import PairInput
from paceline.models.native.decoder import DecoderLM
from paceline.models.native.layers import RMSNorm
from paceline.models.native.pair_block import PairBlock


class Eagle3Config(PairConfig):
    """What an EAGLE-3 head is; the defaults are those of its paper."""

    taps: tuple[int, ...] | None = Field(default=None, min_length=1)  # None: 2, the middle, and 3 before the last
    fc_norm: Literal["none", "joint", "each"] = "none"  # norms of the states before fc: none, one, one for each tap
    norm_before_residual: bool = False  # the residual stream begins with the normalised feature
    norm_output: bool = False  # drafted tokens are paired with what the last norm gives, not with what it reads
    hidden_size: int | None = Field(default=None, ge=1)  # with an embedding of its own; None: the target's
    own_embedding: bool = False
    mask_token_id: int | None = Field(default=None, ge=0)  # drafted pairs are of it and of learned states (P-EAGLE)
    draft_vocab_size: int | None = Field(default=None, ge=1)  # None: the target's whole vocabulary

    def taps_of(self, num_layers: int) -> tuple[int, ...]:
        """The taps for a target of ``num_layers``. Raises ValueError for those that it does not have."""
        taps = self.taps or (min(2, num_layers), num_layers // 2, max(0, num_layers - 3))
        if min(taps) < 0 or max(taps) > num_layers:
            raise ValueError(f"taps={list(taps)}: the target has {num_layers} layers, so give 0 to {num_layers}")
        return taps


@final
class Eagle3Head(PairHead):
    """Fuses k hidden states to a feature; its first layer attends by embedding and feature, and adds to the feature.

    ``fc`` [W, k H] fuses them. ``decoder`` has an LM head of its own, over a draft vocabulary or the target's, which
    begins as the target's rows where it is as wide, after the target's norm.
    """

    kind: ClassVar[str] = "eagle3"
    Config: ClassVar[type[DraftHeadConfig]] = Eagle3Config

    def __init__(self, config: Eagle3Config, target: DecoderLM, decoder: DecoderLM) -> None:
        super().__init__()
        self.config = self.sizes = self.options = config
        self.decoder = decoder
        self.num_layers, self.target_vocab = target.num_layers, target.vocab_size
        self.fused = config.taps_of(target.num_layers)  # in the order in which they are fused
        self.target_size = target.config.hidden_size
        size, count, width = self.target_size, len(self.fused), decoder.config.hidden_size
        self.fc = nn.Linear(count * size, width, bias=False)
        sizes = {"none": [], "joint": [count * size], "each": [size] * count}[config.fc_norm]
        self.mask = None if config.mask_token_id is None else nn.Embedding(1, count * size)  # the states of such a pair
        self.fc_norms = nn.ModuleList(RMSNorm(one, decoder.config.norm_eps) for one in sizes)

    @classmethod
    def make(cls, config: DraftHeadConfig, target: DecoderLM, *, generator: torch.Generator) -> Self:
        assert isinstance(config, Eagle3Config)
        width = config.hidden_size or target.config.hidden_size
        if width != target.config.hidden_size and not config.own_embedding:
            raise ValueError(
                f"hidden_size={width}: the target's embedding is {target.config.hidden_size} wide, so give "
                "own_embedding: true"
            )
        if config.mask_token_id is not None and config.mask_token_id >= target.vocab_size:
            raise ValueError(f"mask_token_id={config.mask_token_id}: the target has {target.vocab_size} tokens")
        vocab = DraftVocab.make(config.draft_vocab_size, target)
        blocks = config.decoder(target.config, hidden_size=width)
        with torch.device("meta"):
            decoder = DecoderLM(own_head_config(blocks, vocab))
            decoder.blocks[0] = PairBlock(blocks, norm_before_residual=config.norm_before_residual)
            decoder.embed = nn.Embedding.from_pretrained(torch.empty(target.vocab_size, width), freeze=False)
            head = cls(config, target, decoder)
        if not config.own_embedding:
            decoder.embed = target.embed
        fill(head, target, generator)
        if config.own_embedding and width == target.config.hidden_size:
            decoder.embed.weight.data.copy_(target.embed.weight)
        head.draft_vocab = vocab
        begin_lm_heads(head.lm_heads_of_rows, target, vocab)
        if width == target.config.hidden_size and type(decoder.norm) is type(target.norm):
            decoder.norm.load_state_dict(target.norm.state_dict())  # which the rows are made to be read after
        return head

    @property
    def taps(self) -> tuple[int, ...]:
        """Those of the config, each once."""
        return tuple(dict.fromkeys(self.fused))

    @property
    def own(self) -> dict[str, nn.Module]:
        assert self.decoder.head is not None
        own: dict[str, nn.Module] = {"fc": self.fc, "fc_norms": self.fc_norms, "blocks": self.decoder.blocks}
        own |= {"norm": self.decoder.norm, "head": self.decoder.head}
        own |= {} if self.mask is None else {"mask": self.mask}
        return {**own, "embed": self.decoder.embed} if self.options.own_embedding else own

    @property
    def lm_heads_of_rows(self) -> tuple[nn.Module, ...]:
        assert self.decoder.head is not None
        return (self.decoder.head,)

    @property
    def products(self) -> tuple[nn.Linear]:
        return (self.fc,)

    def feature(self, hidden: Mapping[int, Tensor]) -> Tensor:
        """Fused hidden states, in the order of the taps."""
        return self._fuse([hidden[tap] for tap in self.fused])

    def _fuse(self, states: list[Tensor]) -> Tensor:
        if self.options.fc_norm == "each":
            states = [norm(one) for norm, one in zip(self.fc_norms, states, strict=True)]
        joint = torch.cat(states, dim=-1)
        return self.multiply(self.fc, self.fc_norms[0](joint) if self.options.fc_norm == "joint" else joint)

    def pair(self, feature: Tensor, tokens: Tensor, first: Tensor | None = None) -> Tensor:
        """The embedding and the feature [B, n, 2 W]; the first layer normalises both."""
        embedded = self.decoder.embed(tokens.flatten()).view(*tokens.shape, -1)
        return torch.cat((embedded.to(feature.dtype), feature), dim=-1)

    def drafted_pair(self, feature: Tensor, tokens: Tensor) -> Tensor:
        """The pair of what is drafted, or the one that stands for all of these."""
        if self.mask is None:
            return self.pair(feature, tokens)
        masked = self._fuse(list(self.mask.weight[0].chunk(len(self.fused))))
        return self.pair(masked.expand_as(feature), torch.full_like(tokens, self.options.mask_token_id or 0))

    @property
    def pair_input(self) -> PairInput | None:
        """The first block reads both; None for drafted pairs that are all alike."""
        if self.mask is not None:
            return None
        return PairInput(normed_output=self.options.norm_output, draft_ids=self.draft_ids)

    def feedback(self, out: Tensor) -> Tensor:
        """The stream itself, or normalised."""
        return self.decoder.norm(out) if self.options.norm_output else out
