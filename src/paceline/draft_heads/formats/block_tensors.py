"""The tensors of block heads (DFlash, DSpark) by the names of public files, and by ours.

V the target's vocabulary, D the draft's, H hidden size.
"""

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
MARKOV = (
    ("markov.before.weight", "markov_head.markov_w1.weight"),
    ("markov.after.weight", "markov_head.markov_w2.weight"),
    ("markov.gate.weight", "markov_head.gate_proj.weight"),
    ("markov.gate.bias", "markov_head.gate_proj.bias"),
    ("markov.joint.weight", "markov_head.joint_proj.weight"),
    ("markov.joint.bias", "markov_head.joint_proj.bias"),
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
    markov_rank: int

    @staticmethod
    def of(files: HeadFiles) -> "Sizes":
        """Raises FormatError for files that lack what they are read from."""
        shapes = files.shapes
        names = ("fc.weight", *(f"{FIRST}{ATTENTION}.{one}.weight" for one in ("q_proj", "k_proj", "q_norm")))
        names = (*names, f"{FIRST}{FFN}.gate_proj.weight")
        missing = [name for name in names if len(shapes.get(name, ())) != (1 if "norm" in name else 2)]
        if missing:
            raise FormatError(f"{files.path}: the tensors do not fit: they lack {missing[0]}; {FETCH_AGAIN}")
        fc, query, key, norm, gate = (shapes[name] for name in names)
        size, head_dim, markov = fc[0], norm[0], shapes.get(MARKOV[0][1], (0, 0))
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
            markov_rank=markov[-1],
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
        rank = self.markov_rank
        if rank:
            wanted |= {MARKOV[0][1]: (target_vocab, rank), MARKOV[1][1]: (vocab, rank)}
            if markov == "gated":
                wanted |= {MARKOV[2][1]: (rank, size + rank), MARKOV[3][1]: (rank,)}
            if markov == "rnn":
                wanted |= {MARKOV[4][1]: (3 * rank, size + 2 * rank), MARKOV[5][1]: (3 * rank,)}
        if confidence:
            wanted |= {CONFIDENCE[0][1]: (1, size + (self.markov_rank if with_markov else 0)), CONFIDENCE[1][1]: (1,)}
        return wanted, {}


def read_state(files: HeadFiles, sizes: Sizes) -> dict[str, Tensor]:
    """The tensors by our names, all but those of a vocabulary and of masked slots."""
    state = {own: files.tensor(name) for own, name in (*WHOLE, *MARKOV, *CONFIDENCE) if files.has(name)}
    for layer in range(sizes.num_layers):
        own, theirs = f"decoder.blocks.{layer}.", f"layers.{layer}."
        state |= {own + one: files.tensor(theirs + name) for one, name in LAYER}
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
    tensors = {name: state[own] for own, name in (*WHOLE, *MARKOV, *CONFIDENCE) if own in state}
    for layer in range(options.num_layers):
        own, theirs = f"decoder.blocks.{layer}.", f"layers.{layer}."
        tensors |= {theirs + name: state[own + one] for one, name in LAYER}
        for part in ("weight", "bias") if options.attention_bias else ("weight",):
            split = state[f"{own}attention.qkv.{part}"].split((width, kv, kv))
            tensors |= {f"{theirs}{ATTENTION}.{name}.{part}": one for name, one in zip(PROJECTIONS, split, strict=True)}
        if options.attention_bias:
            tensors[f"{theirs}{ATTENTION}.{OUTPUT}.bias"] = state[f"{own}attention.output.bias"]
        gate, up = state[f"{own}ffn.gate_up.weight"].chunk(2)
        tensors |= {f"{theirs}{FFN}.gate_proj.weight": gate, f"{theirs}{FFN}.up_proj.weight": up}
    return tensors
