"""The early-exit head: a few blocks that predict the next token from an intermediate layer of the target.

B rows, T tokens, n states, V vocabulary, H hidden size, e the exit layer.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal, Self, final

import torch
from pydantic import Field
from torch import Tensor, nn

from paceline.draft_heads.base import DraftHead, DraftHeadConfig, ReducibleConfig, Unrolled
from paceline.draft_heads.recycle import Recycle
from paceline.models.base import LogitsFor
from paceline.models.native.config import Arrangement
from paceline.models.native.decoder import DecoderLM

STD = 0.02  # of new weights


class EarlyExitConfig(ReducibleConfig):
    """The exit layer, and the blocks that replace the target's remaining layers."""

    exit_layer: int = Field(ge=1)  # layers of the target that every draft token goes through
    num_blocks: int = Field(default=1, ge=0)
    blocks: Literal["whole", "feed_forward"] = "whole"  # what each has: attention and feed-forward, or the latter alone
    own_norm: bool = True  # before the output head; else the target's
    own_head: bool = False  # else the target's
    recycle: bool = False  # also reads the target's last-layer state at the last verified token (draft_heads/recycle)
    max_age: int = Field(default=8, ge=1)  # recycled: older states count as of this age
    recycle_weight: float = Field(default=0.1, ge=0)  # recycled: weight of verified tokens in the loss; others have 1


@final
class EarlyExitHead(DraftHead):
    """Shares the target's first layers (2404.16710, 2404.18911); ``decoder`` holds the blocks after them.

    The target's other layers do not read anything that it writes.
    """

    kind: ClassVar[str] = "early_exit"
    Config: ClassVar[type[DraftHeadConfig]] = EarlyExitConfig

    def __init__(self, config: EarlyExitConfig, decoder: DecoderLM, recycle: Recycle | None, num_layers: int) -> None:
        super().__init__()
        self.config = self.options = config
        self.decoder = decoder  # its parts may be the target's very modules
        self.recycle = recycle
        self.num_layers = num_layers  # of the target

    @classmethod
    def make(cls, config: DraftHeadConfig, target: DecoderLM, *, generator: torch.Generator) -> Self:
        """See DraftHead. The norms are copies of the target's where it is left; its embedding, head and norm are shared
        unless the configuration says otherwise.
        """
        assert isinstance(config, EarlyExitConfig)
        if config.exit_layer >= target.num_layers:
            raise ValueError(
                f"exit_layer={config.exit_layer}: the target has {target.num_layers} layers, so give at most "
                f"{target.num_layers - 1}"
            )
        tied = target.config.tied_head and not config.own_head
        shape = replace(target.config.apart(num_layers=config.num_blocks), tied_head=tied)
        if config.blocks == "feed_forward":
            shape = replace(shape, arrangement=Arrangement.FFN_ALONE)
        with torch.device("meta"):
            decoder = DecoderLM(shape)
        decoder.share_ends(target)
        if config.own_norm:
            decoder.norm = _copied(target.norm, target)
        if config.own_head:
            decoder.head = _new_head(target, generator)
        for index, block in enumerate(decoder.blocks):
            left = target.blocks[min(config.exit_layer + index, target.num_layers - 1)]
            block.load_state_dict(_new_block(block, left, target, 2 * config.num_blocks, generator), assign=True)
        recycle = None
        if config.recycle:
            size = target.config.hidden_size
            norm = _copied(target.norm, target)
            recycle = Recycle(size, config.max_age, norm, dtype=target.dtype, device=target.device)
        head = cls(config, decoder.eval(), recycle, target.num_layers)
        head.choose_vocab(config, target)
        return head

    @property
    def taps(self) -> tuple[int, ...]:
        """The exit layer, and the last layer if its states are recycled."""
        return (self.options.exit_layer, self.num_layers) if self.recycle is not None else (self.options.exit_layer,)

    @property
    def own(self) -> dict[str, nn.Module]:
        own: dict[str, nn.Module] = {"blocks": self.decoder.blocks}
        if self.recycle is not None:
            own["recycle"] = self.recycle
        if self.options.own_norm:
            own["norm"] = self.decoder.norm
        if self.options.own_head:
            assert self.decoder.head is not None
            own["head"] = self.decoder.head
        return own

    def unroll(
        self,
        tokens: Tensor,
        hidden: Mapping[int, Tensor],
        *,
        segment: Tensor | None = None,
        learned: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Unrolled:
        """See DraftHead. Every token is an anchor, one depth deep: what follows differs in age alone, if in anything.

        With recycling every row is cropped, which stands for what is verified when a draft begins: tokens after
        the crop see what the target said at the one before it, and nothing later. It is one of the learned.
        """
        stream = hidden[self.options.exit_layer]
        rows, length = tokens.shape
        position = torch.arange(length, device=tokens.device).expand(rows, length)
        weight = None
        if self.recycle is not None:
            crop = position[:, -1:]  # [B, 1]
            if generator is not None:
                crop = _place(torch.randint(length, (rows, 1), generator=generator).to(tokens.device), learned)
                weight = self._weight(position, crop, segment)[..., None]
            stream = stream + self._recycled(hidden[self.num_layers].detach(), position, crop, segment)
        last = self.decoder.num_layers
        found = self.decoder.causal_from_embeds(stream, segment=segment, taps=(last,), logits_for=LogitsFor.NONE)
        logits = self.decoder.compute_logits(found.hidden[last], self.draft_ids)
        return Unrolled(
            logits=logits[:, :, None], position=position[..., None], weight=weight, draft_ids=self.draft_ids
        )

    def _recycled(self, last: Tensor, position: Tensor, crop: Tensor, segment: Tensor | None) -> Tensor:
        """What the tokens of rows cropped after ``crop`` [B, 1] get [B, T, H] of the target's ``last`` [B, T, H]."""
        assert self.recycle is not None
        source = torch.minimum(position, crop) - 1
        known = source >= 0
        if segment is not None:
            known = known & (segment.gather(1, source.clamp(min=0)) == segment)
        index = source.clamp(min=0)[..., None].expand_as(last)
        return self.recycle(last.gather(1, index), (position - crop).clamp(min=0), known)

    def _weight(self, position: Tensor, crop: Tensor, segment: Tensor | None) -> Tensor:
        """Shares in a loss [B, T]: of the tokens from the crop on 1, so far as ages differ; of those before, few."""
        age = position - crop
        weight = torch.where(age < 0, self.options.recycle_weight, (age <= self.options.max_age).float())
        if segment is not None:
            weight = torch.where((age > 0) & (segment.gather(1, crop) != segment), 0.0, weight)
        return weight


def _place(drawn: Tensor, learned: Tensor | None) -> Tensor:
    """A number [B, 1] below T as one of the tokens that are ``learned`` [B, T], all equally likely; itself for all."""
    if learned is None:
        return drawn
    ranks, length = learned.cumsum(-1), learned.shape[1]
    rank = drawn * ranks[:, -1:] // length
    return torch.where(ranks[:, -1:] > 0, (ranks <= rank).sum(-1, keepdim=True), drawn)


def _new_block(
    block: nn.Module, left: nn.Module, target: DecoderLM, depth: int, generator: torch.Generator
) -> dict[str, Tensor]:
    """What ``block``, which has no content, begins with: norms as in ``left``, a block of the target's; else noise.

    Matrices that write to the residual stream are the smaller the more of them there are, ``depth``; biases are zeros.
    """
    norms = left.state_dict()
    state: dict[str, Tensor] = {}
    for name, part in block.named_parameters():
        back = name.endswith(("attention.output.weight", "ffn.down.weight"))
        if name.rpartition(".")[0].endswith("norm"):
            state[name] = norms[name].clone()
        elif part.dim() == 1:
            state[name] = torch.zeros(part.shape, dtype=target.dtype, device=target.device)
        else:
            drawn = torch.randn(part.shape, generator=generator) * (STD / depth**0.5 if back else STD)
            state[name] = drawn.to(target.device, target.dtype)
    return state


def _copied(norm: nn.Module, target: DecoderLM) -> nn.Module:
    """A norm of its own with the weights of the target's."""
    if isinstance(norm, nn.Identity):  # layers that end in norms have none after the last
        return nn.Identity()
    own = target.config.norm(target.config.hidden_size, target.config.norm_eps)
    own.load_state_dict({name: tensor.clone() for name, tensor in norm.state_dict().items()}, assign=True)
    return own


def _new_head(target: DecoderLM, generator: torch.Generator) -> nn.Linear:
    """An output head of its own: a copy of the target's, drawn anew where that is of integers."""
    config = target.config
    known = (target.embed if target.head is None else target.head).weight
    head = nn.Linear(config.hidden_size, config.vocab_size, bias=False, dtype=target.dtype, device=target.device)
    with torch.no_grad():
        plain = known.is_floating_point()
        head.weight.copy_(known if plain else torch.randn(head.weight.shape, generator=generator) * STD)
    return head
