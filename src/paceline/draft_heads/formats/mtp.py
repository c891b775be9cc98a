"""What the formats of multi-token-prediction modules have in common.

A layout names norms of embedding and state, the matrix that joins them, a block, and the norm after it; and it says in
which order they are joined, and which states are read and fed back.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from paceline.draft_heads.base import DraftHead
from paceline.draft_heads.formats.base import (
    Assumption,
    Exported,
    Format,
    FormatError,
    HeadFiles,
    Imported,
    check_names,
    check_target,
    is_targets,
)
from paceline.draft_heads.formats.pair_tensors import LayerSizes, read_rope
from paceline.draft_heads.formats.speculators import read_envelope
from paceline.draft_heads.mtp import MTPConfig, MTPHead
from paceline.models.native.decoder import DecoderLM

# Parts of names of tensors in blocks that no module has here, and what they would need.
OTHER_BLOCKS = {
    "mlp.experts.": "a mixture of experts: it needs blocks with a router and experts",
    "mlp.gate.": "a mixture of experts: it needs blocks with a router and experts",
    "mlp.shared_expert": "a mixture of experts: it needs blocks with a router and experts",
    "self_attn.kv_a_proj": "latent attention (MLA): it needs a cache of compressed keys and values",
    "self_attn.q_a_proj": "latent attention (MLA): it needs a cache of compressed keys and values",
    "linear_attn.": "linear attention: it needs a recurrent state",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MTPNames:
    """Names of a module's tensors, ``block`` and ``module`` being their beginnings."""

    module: str  # of all; others in the files are the target's
    embedding_norm: str
    feature_norm: str
    projection: str
    norm: str
    block: str
    embedding: str | None = None  # copies of the target's matrices
    head: str | None = None

    @property
    def norms(self) -> dict[str, str]:
        """By our names."""
        return {
            "embedding_norm.weight": self.embedding_norm,
            "feature_norm.weight": self.feature_norm,
            "norm.weight": self.norm,
        }

    @staticmethod
    def numbered(at: str, *, module: str, embedding: str | None = None, head: str | None = None) -> "MTPNames":
        """Those of MiMo and of the package speculators, whose modules are numbered: this one begins with ``at``."""
        return MTPNames(
            module=module,
            embedding_norm=f"{at}token_layernorm.weight",
            feature_norm=f"{at}hidden_layernorm.weight",
            projection=f"{at}input_proj.weight",
            norm=f"{at}final_layernorm.weight",
            block=at,
            embedding=embedding,
            head=head,
        )


class MTPFormat(Format):
    """Reads and writes the tensors of a module; subclasses name them and say what the layout decides."""

    kinds: ClassVar[frozenset[str]] = frozenset({"mtp"})
    inner: ClassVar[str] = ""  # of the fields of layers in config.json
    layout: ClassVar[Mapping[str, bool]]  # of "normalized", "embedding_first", "norm_output" and "zero_first"

    @abstractmethod
    def names(self, files: HeadFiles) -> MTPNames:
        """The names in ``files``. Raises FormatError for more than one module."""

    def norm_offset(self, files: HeadFiles) -> tuple[bool, str]:
        """Whether norms multiply by one plus their weight, and where that is from."""
        return False, "the format"

    def read(self, files: HeadFiles, target: DecoderLM) -> Imported:
        """See Format."""
        at, names = self.inner, self.names(files)
        _refuse_other_blocks(files, names.block)
        act = files.value(f"{at}hidden_act", str)
        if act not in (None, "silu"):
            raise FormatError(f"{files.path}: hidden_act={act!r} is not supported, 'silu' alone is")
        num_heads = files.required(f"{at}num_attention_heads", int)
        layers = LayerSizes.of(files, [names.block], num_heads)
        size = layers.hidden_size
        check_target(files, target, hidden_size=size, vocab_size=files.value(f"{at}vocab_size", int))
        wanted = {names.projection: (size, 2 * size), **dict.fromkeys(names.norms.values(), (size,)), **layers.shapes()}
        copies = {names.embedding: target.embed, names.head: target.head or target.embed}
        shared = {name: part.weight for name, part in copies.items() if name is not None and files.has(name)}
        matrix = dict.fromkeys(shared, (target.vocab_size, size))
        ignored = check_names(files, wanted, optional=matrix, within=names.module)
        for name, own in shared.items():
            if own.is_floating_point() and not is_targets(files, name, own):
                raise FormatError(
                    f"{files.path}: {name} is not the target's, and a module with its own is not supported"
                )
        theta, scaling, rope_source = read_rope(files, at)
        eps = files.value(f"{at}rms_norm_eps", float)
        eps_source = "not in the files: the default of Llama" if eps is None else f"config.json: {at}rms_norm_eps"
        said: dict[str, tuple[object, str]] = {
            "tap": (None, "the format: after the last layer"),
            **{name: (value, "the format") for name, value in self.layout.items()},
            "norm_eps": (1e-6 if eps is None else eps, eps_source),
            "norm_offset": self.norm_offset(files),
            "rope_theta": (theta, rope_source),
            "rope_scaling": (scaling, rope_source),
            "num_layers": (1, "tensors"),
            "num_heads": (num_heads, f"config.json: {at}num_attention_heads"),
            "num_kv_heads": (layers.num_kv_heads, "shapes of tensors"),
            "head_dim": (layers.head_dim, "shapes of tensors"),
            "ffn_size": (layers.ffn_size, "shapes of tensors"),
            "qk_norm": (layers.qk_norm, "tensors"),
            "attention_bias": (layers.bias, "tensors"),
            "output_bias": (layers.output_bias, "tensors"),
        }
        state = {ours: files.tensor(theirs) for ours, theirs in names.norms.items()}
        target_name, tokens = read_envelope(files)
        return Imported(
            kind="mtp",
            config=MTPConfig.model_validate({name: value for name, (value, _) in said.items()}),
            state={**state, "eh_proj.weight": files.tensor(names.projection), **layers.read(files)},
            assumptions=tuple(Assumption(name, *one) for name, one in said.items()),
            ignored=ignored,
            tied=tuple(shared),
            within=names.module,
            target_name=target_name,
            num_draft_tokens=tokens,
        )

    def tensors(self, head: MTPHead, names: MTPNames, *, biased: bool) -> dict[str, Tensor]:
        """The tensors of ``head``; ``biased``: with biases of queries, keys and values, of zeros where it has none.

        Raises FormatError for what the layout has otherwise. The order of the two that are joined may be another.
        """
        options, config = head.options, head.decoder.config
        given = options.model_dump()
        for name, value in self.layout.items():
            if name != "embedding_first" and given[name] != value:
                raise FormatError(f"{name}={given[name]}: modules of this format have {name}={value}; train it so")
        if config.num_layers != 1 or head.tap != head.num_layers:
            raise FormatError(
                f"num_layers={config.num_layers}, tap={head.tap}: the format has one, after the last layer"
            )
        state = dict(head.own_state())
        joined = state["eh_proj.weight"]
        if options.embedding_first != self.layout["embedding_first"]:
            joined = torch.cat(joined.chunk(2, dim=1)[::-1], dim=1)
        layers = LayerSizes.of_config(config, [names.block], biased=biased)
        if biased and not config.attention.bias:
            state["blocks.0.attention.qkv.bias"] = joined.new_zeros(sum(layers.rows))
        tensors = {theirs: state[ours] for ours, theirs in names.norms.items()}
        return {**tensors, names.projection: joined, **layers.write(state)}

    @abstractmethod
    def write(self, head: DraftHead, *, target: DecoderLM, target_name: str, num_draft_tokens: int) -> Exported: ...


def _refuse_other_blocks(files: HeadFiles, block: str) -> None:
    """Raise FormatError for a block of a kind that is not supported, naming it and what it needs."""
    for name in files.headers:
        if name.startswith(block):
            for part, needs in OTHER_BLOCKS.items():
                if name.removeprefix(block).startswith(part):
                    raise FormatError(f"{files.path}: the block of its MTP module has {needs} ({name})")
    query, output = (files.shapes.get(f"{block}self_attn.{one}_proj.weight") for one in "qo")
    if query is not None and output is not None and query[0] == 2 * output[1]:
        raise FormatError(
            f"{files.path}: the block of its MTP module has attention with an output gate: it needs a gate of what "
            f"attention gives ({block}self_attn.q_proj.weight has {query[0]} rows for {output[1]} of heads)"
        )
