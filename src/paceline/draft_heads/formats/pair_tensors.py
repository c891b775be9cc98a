"""The tensors of heads over pairs (EAGLE, MTP) by the names of public files, and by ours.

V the target's vocabulary, D the draft's, H hidden size.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.draft_heads.formats.base import FormatError, HeadFiles
from paceline.draft_heads.formats.head_files import FETCH_AGAIN
from paceline.draft_heads.formats.speculators import LayerFields
from paceline.models.native.config import DecoderConfig, NormSpan
from paceline.models.native.layers import RotaryConfig

PROJECTIONS = ("q_proj", "k_proj", "v_proj")
D2T, T2D = "d2t", "t2d"
# Ours and theirs, of what is stored under one name in both.
NORMS = (("attention_norm.weight", "input_layernorm.weight"), ("ffn_norm.weight", "post_attention_layernorm.weight"))
QK_NORMS = (
    ("attention.heads.query_norm.weight", "self_attn.q_norm.weight"),
    ("attention.heads.key_norm.weight", "self_attn.k_norm.weight"),
)
ALIKE = (("attention.output.weight", "self_attn.o_proj.weight"), ("ffn.down.weight", "mlp.down_proj.weight"))
OUTPUT_BIAS = ("attention.output.bias", "self_attn.o_proj.bias")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSizes:
    """The layers of a head, ``prefixes`` of whose names are given; ``paired`` is whether the first reads two inputs.

    Without ``first_norm`` nothing normalises what the first layer reads (EAGLE-1).
    """

    prefixes: Sequence[str]
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    bias: bool
    output_bias: bool
    qk_norm: bool
    paired: bool = False
    first_norm: bool = True

    @staticmethod
    def of(
        files: HeadFiles, prefixes: Sequence[str], num_heads: int, *, paired: bool = False, first_norm: bool = True
    ) -> "LayerSizes":
        """From the shapes of tensors. Raises FormatError for files that lack what they are read from."""
        first, shapes = prefixes[0], files.shapes
        names = [f"{first}{one}.weight" for one in ("self_attn.q_proj", "self_attn.k_proj", "mlp.gate_proj")]
        missing = [name for name in names if len(shapes.get(name, ())) != 2]
        if missing:
            raise FormatError(f"{files.path}: the tensors do not fit: they lack {missing[0]}; {FETCH_AGAIN}")
        query, key, gate = (shapes[name] for name in names)
        if query[0] % num_heads or key[0] % (query[0] // num_heads):
            raise FormatError(
                f"{files.path}: config.json says num_attention_heads={num_heads}, and the projections have "
                f"{query[0]} and {key[0]} rows; fetch both again"
            )
        head_dim = query[0] // num_heads
        return LayerSizes(
            prefixes=prefixes,
            hidden_size=gate[1],
            num_heads=num_heads,
            num_kv_heads=key[0] // head_dim,
            head_dim=head_dim,
            ffn_size=gate[0],
            bias=f"{first}self_attn.q_proj.bias" in shapes,
            output_bias=f"{first}self_attn.o_proj.bias" in shapes,
            qk_norm=f"{first}self_attn.q_norm.weight" in shapes,
            paired=paired,
            first_norm=first_norm,
        )

    @staticmethod
    def of_config(
        config: DecoderConfig,
        prefixes: Sequence[str],
        *,
        paired: bool = False,
        first_norm: bool = True,
        biased: bool = False,
    ) -> "LayerSizes":
        """Those of a decoder; ``biased``: with biases of queries, keys and values even where it has none."""
        return LayerSizes(
            prefixes=prefixes,
            hidden_size=config.hidden_size,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            ffn_size=config.ffn_size,
            bias=config.attention.bias or biased,
            output_bias=config.attention.output_bias,
            qk_norm=config.attention.norm_span is NormSpan.HEAD,
            paired=paired,
            first_norm=first_norm,
        )

    @property
    def rows(self) -> tuple[int, int, int]:
        """Of the projections of queries, keys and values."""
        return self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim, self.num_kv_heads * self.head_dim

    def alike(self, layer: int) -> list[tuple[str, str]]:
        """Our names and theirs within a layer, of tensors that are the same in both."""
        pairs = [*(NORMS if layer or self.first_norm else NORMS[1:]), *ALIKE]
        pairs += QK_NORMS if self.qk_norm else ()
        pairs += [OUTPUT_BIAS] if self.output_bias else []
        return pairs + ([("feature_norm.weight", "hidden_norm.weight")] if self.paired and layer == 0 else [])

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """All tensors of the layers."""
        size, head = self.hidden_size, self.head_dim
        wanted: dict[str, tuple[int, ...]] = {}
        by_name = {
            "self_attn.o_proj.weight": (size, self.rows[0]),
            "mlp.down_proj.weight": (size, self.ffn_size),
            **{theirs: (head,) for _, theirs in QK_NORMS},
        }
        for layer, prefix in enumerate(self.prefixes):
            width = 2 * size if self.paired and layer == 0 else size
            for name, rows in zip(PROJECTIONS, self.rows, strict=True):
                wanted[f"{prefix}self_attn.{name}.weight"] = (rows, width)
                wanted |= {f"{prefix}self_attn.{name}.bias": (rows,)} if self.bias else {}
            wanted |= {f"{prefix}mlp.{one}.weight": (self.ffn_size, size) for one in ("gate_proj", "up_proj")}
            wanted |= {prefix + theirs: by_name.get(theirs, (size,)) for _, theirs in self.alike(layer)}
        return wanted

    def read(self, files: HeadFiles, own: str = "blocks.") -> dict[str, Tensor]:
        """The tensors of the layers by our names."""
        state: dict[str, Tensor] = {}
        for layer, prefix in enumerate(self.prefixes):
            at = f"{own}{layer}."
            state |= {at + ours: files.tensor(prefix + theirs) for ours, theirs in self.alike(layer)}
            for part in ("weight", "bias") if self.bias else ("weight",):
                joined = [files.tensor(f"{prefix}self_attn.{name}.{part}") for name in PROJECTIONS]
                state[f"{at}attention.qkv.{part}"] = torch.cat(joined)
            gate_up = [files.tensor(f"{prefix}mlp.{one}.weight") for one in ("gate_proj", "up_proj")]
            state[f"{at}ffn.gate_up.weight"] = torch.cat(gate_up)
        return state

    def write(self, state: Mapping[str, Tensor], own: str = "blocks.") -> dict[str, Tensor]:
        """The tensors of the layers by their names."""
        tensors: dict[str, Tensor] = {}
        for layer, prefix in enumerate(self.prefixes):
            at = f"{own}{layer}."
            tensors |= {prefix + theirs: state[at + ours] for ours, theirs in self.alike(layer)}
            for part in ("weight", "bias") if self.bias else ("weight",):
                split = state[f"{at}attention.qkv.{part}"].split(self.rows)
                named = zip(PROJECTIONS, split, strict=True)
                tensors |= {f"{prefix}self_attn.{name}.{part}": one for name, one in named}
            gate, up = state[f"{at}ffn.gate_up.weight"].chunk(2)
            tensors |= {f"{prefix}mlp.gate_proj.weight": gate, f"{prefix}mlp.up_proj.weight": up}
        return tensors


def read_rope(files: HeadFiles, prefix: str) -> tuple[float, dict[str, object] | None, str]:
    """The base of the rotary embedding, its scaling (None: none), and where they are from; in either spelling."""
    given = dict(files.mapping(f"{prefix}rope_parameters"))
    source = f"config.json: {prefix}rope_parameters"
    if not given:
        given, source = dict(files.mapping(f"{prefix}rope_scaling")), f"config.json: {prefix}rope_theta"
        if "type" in given:
            given["rope_type"] = given.pop("type")
        theta = files.value(f"{prefix}rope_theta", float)
        if theta is None:
            source = "not in the files: the default of Llama"
        given["rope_theta"] = 10000.0 if theta is None else theta
    theta = given.pop("rope_theta", 10000.0)
    if not isinstance(theta, int | float) or isinstance(theta, bool):
        raise FormatError(f"{files.path}: rope_theta={theta!r}: a number is wanted; correct it")
    plain = given.get("rope_type", "default") == "default"
    return float(theta), None if plain else given, source


def _rope_base(config: DecoderConfig) -> float:
    """The base of the rotary embedding, which is the target's. Raises FormatError where it is scaled."""
    assert config.rotary is not None
    found, size = config.rotary.inverse_frequencies, config.head_dim
    last = len(found) - 1  # the lowest frequency, which tells the base best
    base = float(f"{found[last] ** (-size / (2 * last)):.7g}") if last else 10000.0
    plain = RotaryConfig(tuple(base ** (-i / size) for i in range(0, size - 1, 2)))
    if not same_rotary(config.rotary, plain):
        raise FormatError(
            "the target's rotary embedding is scaled: give the head rope_theta and rope_scaling of its own"
        )
    return base


def same_rotary(one: RotaryConfig | None, other: RotaryConfig | None) -> bool:
    """Whether two rotary embeddings turn by the same angles, up to the rounding of float32."""
    if one is None or other is None or len(one.inverse_frequencies) != len(other.inverse_frequencies):
        return one is other
    pairs = zip((*one.inverse_frequencies, one.factor), (*other.inverse_frequencies, other.factor), strict=True)
    return all(math.isclose(first, second, rel_tol=1e-5) for first, second in pairs)


def layer_fields(config: DecoderConfig, theta: float | None, scaling: Mapping[str, object] | None, *, vocab_size: int):
    """The layers of a decoder as config.json spells them; ``theta`` None is the base of its rotary embedding.

    Raises FormatError for biases and for a rotary embedding that no spelling has.
    """
    if config.attention.bias != config.attention.output_bias:
        raise FormatError(
            f"attention_bias={config.attention.bias} and output_bias={config.attention.output_bias}: the format has "
            "one field for both; train it with both or none"
        )
    return LayerFields(
        model_type="llama" if config.attention.norm_span is None else "qwen3",
        hidden_size=config.hidden_size,
        intermediate_size=config.ffn_size,
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        vocab_size=vocab_size,
        max_positions=config.max_positions,
        norm_eps=config.norm_eps,
        rope_theta=_rope_base(config) if theta is None else theta,
        rope_scaling=scaling,
        attention_bias=config.attention.bias,
    )


def vocab_maps(ids: Tensor | None, target_size: int) -> dict[str, Tensor]:
    """``d2t`` (offsets) and ``t2d`` (a mask) of the target ids [D] of a draft vocabulary; none where it is whole."""
    if ids is None or len(ids) == target_size:
        return {}
    known = torch.zeros(target_size, dtype=torch.bool)
    known[ids.cpu()] = True
    return {D2T: ids.cpu() - torch.arange(len(ids)), T2D: known}


def read_vocab(files: HeadFiles, matrix: str, target_size: int) -> tuple[Tensor, Tensor | None]:
    """The LM head called ``matrix`` [D, H] and the target ids [D] of its rows, ascending; None where it is whole.

    Raises FormatError for a head of fewer tokens than the target's without a map of them.
    """
    rows = files.tensor(matrix)
    if not files.has(D2T):
        if len(rows) != target_size:
            raise FormatError(
                f"{files.path}: {matrix} has {len(rows)} tokens of the target's {target_size}, and no {D2T}"
            )
        return rows, None
    ids = files.tensor(D2T).to(torch.int64) + torch.arange(len(rows))
    order = ids.argsort()
    ids = ids[order]
    if not 0 <= int(ids[0]) <= int(ids[-1]) < target_size or bool((ids[1:] == ids[:-1]).any()):
        raise FormatError(f"{files.path}: {D2T} holds offsets of other tokens than the target's {target_size}")
    return rows if bool((order[1:] > order[:-1]).all()) else rows[order], ids
