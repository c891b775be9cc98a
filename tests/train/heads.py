"""Two small draft heads: one on hidden states, with a block and random anchors, and one on the last token."""

import torch
from torch import nn

from paceline.core.tree import Draw, Tree
from paceline.draft_heads.base import DraftHead, DraftHeadConfig, Unrolled
from paceline.drafters.base import StatelessDrafter
from paceline.models.native.attention import CausalAttention
from paceline.models.native.blocks import make_block


class TapConfig(DraftHeadConfig):
    layer: int = 2
    depth: int = 3
    anchors: int | None = None


class SmallHead(DraftHead):
    """A head whose parameters are all its own."""

    @property
    def own(self):
        return dict(self.named_children())


class TapHead(SmallHead):
    """A block over the tap, then a linear map for every depth."""

    kind = "tap"
    Config = TapConfig

    def __init__(self, config, target):
        super().__init__()
        self.config = config
        self.block = make_block(target.config, 0)
        self.rotary = (target.rotary,)
        self.maps = nn.ModuleList(nn.Linear(target.config.hidden_size, target.vocab_size) for _ in range(config.depth))

    @classmethod
    def make(cls, config, target, *, generator):
        head = cls(config, target)
        for parameter in head.parameters():
            shape = parameter.shape
            drawn = torch.ones(shape) if len(shape) == 1 else torch.randn(shape, generator=generator) * 0.1
            parameter.data = drawn.to(target.dtype)
        return head

    @property
    def taps(self):
        return (self.config.layer,)

    def unroll(self, tokens, hidden, *, segment=None, learned=None, generator=None):
        state = hidden[self.config.layer]
        attend = CausalAttention(*tokens.shape, tokens.device, segment)
        table = self.rotary[0](attend.positions, state.dtype)
        x = self.block(state.flatten(0, 1), 0, attend, table, 0.0).view(state.shape)
        rows, length = tokens.shape
        anchors = torch.arange(length).expand(rows, length)
        if self.config.anchors is not None and generator is not None:
            drawn = torch.rand(rows, length, generator=generator)
            anchors = drawn.topk(self.config.anchors).indices
        found = x.gather(1, anchors[..., None].expand(-1, -1, x.shape[-1]))
        logits = torch.stack([one(found) for one in self.maps], dim=2)
        reached = anchors[..., None] + torch.arange(self.config.depth)
        weight = (reached < length).float()
        return Unrolled(logits=logits, position=reached.clamp(max=length - 1), weight=weight)


class LastConfig(DraftHeadConfig):
    depth: int = 3


class LastHead(SmallHead):
    """A distribution that depends on the last token alone."""

    kind = "last"
    Config = LastConfig

    def __init__(self, config, vocab):
        super().__init__()
        self.config = config
        self.table = nn.Embedding(vocab, vocab)

    @classmethod
    def make(cls, config, target, *, generator):
        head = cls(config, target.vocab_size)
        head.table.weight.data = torch.randn(head.table.weight.shape, generator=generator).to(target.dtype) * 0.1
        return head

    @property
    def taps(self):
        return ()

    def unroll(self, tokens, hidden, *, segment=None, learned=None, generator=None):
        rows, length = tokens.shape
        reached = torch.arange(length)[:, None] + torch.arange(self.config.depth)
        position = reached.clamp(max=length - 1).expand(rows, -1, -1)
        read = tokens.gather(1, position.flatten(1)).view_as(position)
        return Unrolled(
            logits=self.table(read), position=position, weight=(reached < length).float().expand(rows, -1, -1)
        )


class LastDrafter(StatelessDrafter):
    """A chain of the likeliest tokens."""

    draws = frozenset({Draw.FIXED})

    def __init__(self, *, head):
        self.head = head

    def propose(self, batch, plan):
        tokens = [batch.root]
        for _ in range(plan.num_draft_tokens):
            tokens.append(self.head.table(tokens[-1]).argmax(-1))
        index = torch.arange(plan.num_draft_tokens)
        room = batch.active[:, None] & (index < batch.draft_room[:, None])
        return Tree.make_chain(torch.stack(tokens, dim=1), torch.cat((batch.active[:, None], room), dim=1))
