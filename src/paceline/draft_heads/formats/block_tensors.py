"""The tensors of block heads (DFlash, DSpark, DFlash 2, xPress) by the names of public files, and by ours.

V the target's vocabulary, D the draft's, H hidden size.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.draft_heads.block import BlockHead
from paceline.draft_heads.formats.base import FormatError, HeadFiles
from paceline.draft_heads.formats.head_files import FETCH_AGAIN
from paceline.draft_heads.markov import MarkovKind

FIRST = "layers.0."
ATTENTION, FFN = "self_attn", "mlp"
PROJECTIONS, OUTPUT = ("q_proj", "k_proj", "v_proj"), "o_proj"
# Ours and theirs, of what is stored under one name in both.
LAYER = (
    ("attention_norm.weight", "input_layernorm.weight"),
    ("ffn_norm.weight", "post_attention_layernorm.weight"),
    ("attention.output.weight", f"{ATTENTION}.{OUTPUT}.weight"),
    ("attention.heads.query_norm.weight", f"{ATTENTION}.q_norm.weight"),
    ("attention.heads.key_norm.weight", f"{ATTENTION}.k_norm.weight"),
    ("ffn.down.weight", f"{FFN}.down_proj.weight"),
)
WHOLE = (("fc.weight", "fc.weight"), ("norm.weight", "hidden_norm.weight"), ("decoder.norm.weight", "norm.weight"))
DSPARK = (
    ("markov.before.weight", "markov_head.markov_w1.weight"),
    ("markov.after.weight", "markov_head.markov_w2.weight"),
)
# The embedding of the token before comes first.
MARKOV: Mapping[MarkovKind, tuple[tuple[str, str], ...]] = {
    "vanilla": DSPARK,
    "gated": (
        *DSPARK,
        ("markov.gate.weight", "markov_head.gate_proj.weight"),
        ("markov.gate.bias", "markov_head.gate_proj.bias"),
    ),
    "rnn": (
        *DSPARK,
        ("markov.joint.weight", "markov_head.joint_proj.weight"),
        ("markov.joint.bias", "markov_head.joint_proj.bias"),
    ),
    "bilinear": (
        ("markov.before.weight", "candidate_selector.predecessor_codebook"),
        ("markov.after.weight", "candidate_selector.successor_codebook"),
        ("markov.project.weight", "candidate_selector.hidden_projection.weight"),
    ),
    "refiner": (
        ("markov.before.weight", "refiner_head.token_embed.weight"),
        ("markov.after.weight", "refiner_head.readout.weight"),
        ("markov.down_slot.weight", "refiner_head.down_h.weight"),
        ("markov.down_block.weight", "refiner_head.down_g.weight"),
        ("markov.join.weight", "refiner_head.in_proj.weight"),
        ("markov.mix", "refiner_head.mix_l"),
        ("markov.down.weight", "refiner_head.mlp_down.weight"),
    ),
}
REFINER_FFN = ("markov.gate_up.weight", ("refiner_head.mlp_gate.weight", "refiner_head.mlp_up.weight"))
CONVOLUTIONS = tuple(
    (f"{own}.{part}", f"{theirs}.{name}")
    for own, theirs in (("attention_conv", "attention_conv"), ("ffn_conv", "mlp_conv"))
    for part, name in (("base", "base_kernel"), ("project.weight", "kernel_projection.weight"))
)
CONFIDENCE = (("confidence.weight", "confidence_head.proj.weight"), ("confidence.bias", "confidence_head.proj.bias"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes of a head, from the shapes of its tensors."""

    hidden_size: int
    num_taps: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    bias: bool
    block_size: int
    markov_rank: int  # 0: there is no such head
    markov_ratio: int
    conv_taps: int  # 0: there are no convolutions
    conv_group_size: int

    @staticmethod
    def of(files: HeadFiles, *, block_size: int, markov: MarkovKind | None) -> "Sizes":
        """``markov`` is the kind of the Markov head; Raises FormatError for files that lack what they are read from."""
        shapes = files.shapes
        names = ("fc.weight", *(f"{FIRST}{ATTENTION}.{one}.weight" for one in ("q_proj", "k_proj", "q_norm")))
        names = (*names, f"{FIRST}{FFN}.gate_proj.weight")
        missing = [name for name in names if len(shapes.get(name, ())) != (1 if "norm" in name else 2)]
        if missing:
            raise FormatError(f"{files.path}: the tensors do not fit: they lack {missing[0]}; {FETCH_AGAIN}")
        fc, query, key, norm, gate = (shapes[name] for name in names)
        size, head_dim = fc[0], norm[0]
        kinds = MARKOV.values() if markov is None else [MARKOV[markov]]
        rank = max(shapes.get(names[0][1], (0, 0))[-1] for names in kinds)
        inner = shapes.get(REFINER_FFN[1][0], (0, 0))[0]
        base, project = (shapes.get(FIRST + name, ()) for _, name in CONVOLUTIONS[:2])
        taps = base[1] if len(base) == 3 and project else 0
        groups = project[0] // (2 * taps) if taps else 0
        layers = {name.split(".")[1] for name in shapes if name.startswith("layers.")}
        return Sizes(
            hidden_size=size,
            num_taps=fc[1] // size,
            num_layers=len(layers),
            num_heads=query[0] // head_dim,
            num_kv_heads=key[0] // head_dim,
            head_dim=head_dim,
            ffn_size=gate[0],
            bias=f"{FIRST}{ATTENTION}.q_proj.bias" in shapes,
            block_size=block_size,
            markov_rank=rank,
            markov_ratio=max(1, inner // rank) if inner and rank else 2,
            conv_taps=taps,
            conv_group_size=max(1, size // groups) if groups else 16,
        )

    def config_fields(self) -> dict[str, int]:
        """As config.json names them."""
        return {
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.ffn_size,
        }

    def tensors(
        self, target_vocab: int, vocab: int, *, markov: MarkovKind | None, confidence: bool, with_markov: bool
    ) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
        """The shapes of all tensors that there must be, and of those that there may be."""
        size, width, kv = self.hidden_size, self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        wanted: dict[str, tuple[int, ...]] = {
            "fc.weight": (size, self.num_taps * size),
            "hidden_norm.weight": (size,),
            "norm.weight": (size,),
        }
        for layer in range(self.num_layers):
            attention, ffn = f"layers.{layer}.{ATTENTION}", f"layers.{layer}.{FFN}"
            wanted |= {
                f"layers.{layer}.{one}.weight": (size,) for one in ("input_layernorm", "post_attention_layernorm")
            }
            for name, rows in zip(PROJECTIONS, (width, kv, kv), strict=True):
                wanted[f"{attention}.{name}.weight"] = (rows, size)
                wanted |= {f"{attention}.{name}.bias": (rows,)} if self.bias else {}
            wanted[f"{attention}.{OUTPUT}.weight"] = (size, width)
            wanted |= {f"{attention}.{OUTPUT}.bias": (size,)} if self.bias else {}
            wanted |= {f"{attention}.{one}.weight": (self.head_dim,) for one in ("q_norm", "k_norm")}
            wanted |= {f"{ffn}.{one}.weight": (self.ffn_size, size) for one in ("gate_proj", "up_proj")}
            wanted[f"{ffn}.down_proj.weight"] = (size, self.ffn_size)
            if self.conv_taps:
                shapes = (2, self.conv_taps, size), (2 * self.conv_taps * (size // self.conv_group_size), size)
                wanted |= {f"layers.{layer}.{one}": shapes[at % 2] for at, (_, one) in enumerate(CONVOLUTIONS)}
        rank = self.markov_rank
        if markov is not None and rank:
            inner = rank * self.markov_ratio
            shapes_of: dict[MarkovKind, tuple[tuple[int, ...], ...]] = {
                "vanilla": (),
                "gated": ((rank, size + rank), (rank,)),
                "rnn": ((3 * rank, size + 2 * rank), (3 * rank,)),
                "bilinear": ((rank, size),),
                "refiner": (
                    *((rank, size),) * 2,
                    (rank, 3 * rank),
                    (rank, self.block_size, self.block_size),
                    (rank, inner),
                ),
            }
            both = ((target_vocab, rank), (vocab, rank), *shapes_of[markov])
            wanted |= {name: shape for (_, name), shape in zip(MARKOV[markov], both, strict=True)}
            if markov == "refiner":
                wanted |= dict.fromkeys(REFINER_FFN[1], (inner, rank))
        if confidence:
            wanted |= {CONFIDENCE[0][1]: (1, size + (self.markov_rank if with_markov else 0)), CONFIDENCE[1][1]: (1,)}
        return wanted, {}


def read_state(files: HeadFiles, sizes: Sizes, *, markov: MarkovKind | None) -> dict[str, Tensor]:
    """The tensors by our names, all but those of a vocabulary and of masked slots."""
    names = (*WHOLE, *CONFIDENCE, *(() if markov is None else MARKOV[markov]))
    state = {own: files.tensor(name) for own, name in names if files.has(name)}
    if markov == "refiner":
        state[REFINER_FFN[0]] = torch.cat([files.tensor(name) for name in REFINER_FFN[1]])
    for layer in range(sizes.num_layers):
        own, theirs = f"decoder.blocks.{layer}.", f"layers.{layer}."
        names = (*LAYER, *CONVOLUTIONS) if sizes.conv_taps else LAYER
        state |= {own + one: files.tensor(theirs + name) for one, name in names}
        for part in ("weight", "bias") if sizes.bias else ("weight",):
            joined = [files.tensor(f"{theirs}{ATTENTION}.{name}.{part}") for name in PROJECTIONS]
            state[f"{own}attention.qkv.{part}"] = torch.cat(joined)
        if sizes.bias:
            state[f"{own}attention.output.bias"] = files.tensor(f"{theirs}{ATTENTION}.{OUTPUT}.bias")
        gate, up = (files.tensor(f"{theirs}{FFN}.{name}.weight") for name in ("gate_proj", "up_proj"))
        state[f"{own}ffn.gate_up.weight"] = torch.cat((gate, up))
    return state


def write_state(head: BlockHead) -> dict[str, Tensor]:
    """The tensors of ``head`` by the names of public files, all but those of a vocabulary and of masked slots."""
    options, state = head.options, head.own_state()
    assert options.num_heads and options.num_kv_heads and options.head_dim
    width, kv = options.num_heads * options.head_dim, options.num_kv_heads * options.head_dim
    tensors = {name: state[own] for own, name in (*WHOLE, *MARKOV[options.markov_head], *CONFIDENCE) if own in state}
    if REFINER_FFN[0] in state:
        tensors |= dict(zip(REFINER_FFN[1], state[REFINER_FFN[0]].chunk(2), strict=True))
    for layer in range(options.num_layers):
        own, theirs = f"decoder.blocks.{layer}.", f"layers.{layer}."
        names = (*LAYER, *CONVOLUTIONS) if options.conv_taps else LAYER
        tensors |= {theirs + name: state[own + one] for one, name in names}
        for part in ("weight", "bias") if options.attention_bias else ("weight",):
            split = state[f"{own}attention.qkv.{part}"].split((width, kv, kv))
            tensors |= {f"{theirs}{ATTENTION}.{name}.{part}": one for name, one in zip(PROJECTIONS, split, strict=True)}
        if options.attention_bias:
            tensors[f"{theirs}{ATTENTION}.{OUTPUT}.bias"] = state[f"{own}attention.output.bias"]
        gate, up = state[f"{own}ffn.gate_up.weight"].chunk(2)
        tensors |= {f"{theirs}{FFN}.gate_proj.weight": gate, f"{theirs}{FFN}.up_proj.weight": up}
    return tensors
