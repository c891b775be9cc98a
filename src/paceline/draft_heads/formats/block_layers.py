"""What all formats of block heads (DFlash, DSpark) have in common: the names of tensors, and the fields of layers.

V the target's vocabulary, D the draft's, H hidden size.
"""

from abc import abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, cast

import torch
from torch import Tensor

from paceline.draft_heads.base import DraftHead
from paceline.draft_heads.block import BlockHead
from paceline.draft_heads.block_config import BlockConfig
from paceline.draft_heads.formats.base import (
    Assumption,
    Format,
    FormatError,
    HeadFiles,
    Imported,
    check_names,
    check_target,
    is_targets,
    output_matrix,
)
from paceline.draft_heads.formats.block_tensors import Sizes, read_state
from paceline.draft_heads.formats.speculators import LayerFields
from paceline.draft_heads.markov import MarkovKind
from paceline.models.native.decoder import DecoderLM

EMBED, HEAD, D2T, T2D = "embed_tokens.weight", "lm_head.weight", "d2t", "t2d"
GUESSED = "not in the files"
DSPARK_KINDS: tuple[MarkovKind, ...] = ("vanilla", "gated", "rnn")


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockFields:
    """What a format's config.json says of the block, each with where it says so."""

    taps: tuple[tuple[int, ...], str]
    block_size: tuple[int, str]
    anchor_first: tuple[bool, str]
    mask_token_id: tuple[int | None, str]  # None: the files hold an embedding
    embedding_scale: tuple[float, str] = (1.0, "the format")
    markov_head: tuple[MarkovKind, str] | None = None  # None: there is no Markov head
    candidates: tuple[int, str] | None = None  # None: all tokens
    confidence_with_markov: tuple[bool, str] | None = None  # None: there is no confidence head
    sizes: Mapping[str, str] = field(default_factory=dict[str, str])  # keys of config.json by fields of Sizes
    target_name: str | None = None
    num_draft_tokens: int | None = None


class BlockFormat(Format):
    """Reads and writes the layers; subclasses say where config.json has what, and which tensors come with them."""

    kinds: ClassVar[frozenset[str]] = frozenset({"block"})
    prefix: ClassVar[str] = ""  # of the fields of layers in config.json

    @abstractmethod
    def fields(self, files: HeadFiles, target: DecoderLM) -> BlockFields:
        """What config.json says of the block. Raises FormatError for what is not supported."""

    def read(self, files: HeadFiles, target: DecoderLM) -> Imported:
        """See Format."""
        fields = self.fields(files, target)
        markov = None if fields.markov_head is None else fields.markov_head[0]
        sizes = Sizes.of(files, block_size=fields.block_size[0], markov=markov)
        if (fields.markov_head is None) == bool(sizes.markov_rank):
            raise FormatError(f"{files.path}: config.json and the tensors disagree on a Markov head; fetch them again")
        self._check_layers(files, target, sizes)
        for own, key in fields.sizes.items():
            if files.required(key, int) != getattr(sizes, own):
                raise FormatError(_differs(files, key, files.value(key, int), getattr(sizes, own)))
        rope, rope_source = self._rope(files)
        eps, positions = (files.value(self.prefix + key, kind) for key, kind in _NUMBERS)
        embedding = None
        if fields.mask_token_id[0] is None:
            embedding = _mask_embedding(files, target)
        tied = tuple(name for name, own in _targets(target) if files.has(name) and is_targets(files, name, own))
        if files.has(EMBED) and EMBED not in tied:
            raise FormatError(
                f"{files.path}: {EMBED} is not the target's, and heads with one of their own are not read"
            )
        own_head = files.has(HEAD) and HEAD not in tied
        vocab = files.shapes[HEAD][0] if own_head else None
        wanted, optional = sizes.tensors(
            target.vocab_size,
            vocab or target.vocab_size,
            markov=markov,
            confidence=fields.confidence_with_markov is not None,
            with_markov=fields.confidence_with_markov is not None and fields.confidence_with_markov[0],
        )
        if own_head:
            wanted[HEAD] = (vocab or 0, sizes.hidden_size)
        optional |= dict.fromkeys((EMBED, HEAD), (target.vocab_size, sizes.hidden_size))
        optional |= {D2T: (vocab or target.vocab_size,), T2D: (target.vocab_size,)}
        ignored = check_names(
            files, wanted, optional={name: one for name, one in optional.items() if name not in wanted}
        )
        config = BlockConfig(
            taps=fields.taps[0],
            block_size=fields.block_size[0],
            anchor_first=fields.anchor_first[0],
            mask_token_id=fields.mask_token_id[0],
            embedding_scale=fields.embedding_scale[0],
            draft_vocab_size=vocab,
            num_layers=sizes.num_layers,
            num_heads=sizes.num_heads,
            num_kv_heads=sizes.num_kv_heads,
            head_dim=sizes.head_dim,
            ffn_size=sizes.ffn_size,
            qk_norm=True,
            attention_bias=sizes.bias,
            norm_eps=1e-6 if eps is None else float(eps),
            rope=rope,
            max_positions=None if positions is None else int(positions),
            markov_rank=sizes.markov_rank,
            markov_head="vanilla" if markov is None else markov,
            markov_ratio=sizes.markov_ratio,
            candidates=None if fields.candidates is None else fields.candidates[0],
            conv_taps=sizes.conv_taps,
            conv_group_size=sizes.conv_group_size,
            confidence=fields.confidence_with_markov is not None,
            confidence_with_markov=None if fields.confidence_with_markov is None else fields.confidence_with_markov[0],
        )
        state = read_state(files, sizes, markov=markov)
        if embedding is not None:
            state["mask.weight"] = embedding
        if own_head:
            state |= {"decoder.head.weight": files.tensor(HEAD), "draft_ids": _draft_ids(files, vocab or 0, target)}
        said = {
            "taps": fields.taps,
            "block_size": fields.block_size,
            "anchor_first": fields.anchor_first,
            "mask_token_id": fields.mask_token_id,
            "embedding_scale": fields.embedding_scale,
            "markov_head": fields.markov_head,
            "candidates": fields.candidates,
            "confidence_with_markov": fields.confidence_with_markov,
            "rope": (rope, rope_source),
            "norm_eps": (config.norm_eps, _source(self.prefix + "rms_norm_eps", eps)),
            "draft_vocab_size": (vocab, f"tensor {HEAD}" if own_head else "the target's LM head"),
        }
        found = [Assumption(name, *one) for name, one in said.items() if one is not None]
        sized = ("num_layers", "num_heads", "num_kv_heads", "head_dim", "ffn_size", "markov_rank", "markov_ratio")
        sized = (*sized, "conv_taps", "conv_group_size")
        found += [Assumption(name, getattr(sizes, name), "shapes of tensors") for name in sized]
        found += [Assumption("attention_bias", sizes.bias, "tensors"), Assumption("qk_norm", True, "the format")]
        found.append(
            Assumption("max_positions", config.max_positions, f"config.json: {self.prefix}max_position_embeddings")
        )
        found.append(Assumption("confidence", config.confidence, "config.json: enable_confidence_head, and tensors"))
        for name, one in (
            ("markov_head", fields.markov_head),
            ("candidates", fields.candidates),
            ("confidence_with_markov", fields.confidence_with_markov),
        ):
            if one is None:
                found.append(Assumption(name, getattr(config, name), "not in the files: there is no such head"))
        return Imported(
            kind="block",
            config=config,
            state=state,
            assumptions=tuple(found),
            ignored=ignored,
            tied=tied,
            target_name=fields.target_name,
            num_draft_tokens=fields.num_draft_tokens,
        )

    def _check_layers(self, files: HeadFiles, target: DecoderLM, sizes: Sizes) -> None:
        """Raise FormatError for layers of other sizes or of another kind than those that are read."""
        value = lambda key: files.value(self.prefix + key, int)  # noqa: E731
        check_target(files, target, hidden_size=sizes.hidden_size, vocab_size=value("vocab_size"))
        for key, found in sizes.config_fields().items():
            said = value(key)
            if said is not None and said != found:
                raise FormatError(_differs(files, key, said, found))
        activation = files.value(self.prefix + "hidden_act", str)
        if activation not in (None, "silu"):
            raise FormatError(f"{files.path}: hidden_act={activation!r} is not supported, 'silu' alone is")
        types = files.config if not self.prefix else files.mapping(self.prefix.rstrip("."))
        kinds = types.get("layer_types")
        if isinstance(kinds, list) and set(cast("list[object]", kinds)) - {"full_attention"}:
            raise FormatError(f"{files.path}: layers with a sliding window are not supported; give a head without")

    def _rope(self, files: HeadFiles) -> tuple[dict[str, object], str]:
        """As rope_parameters, from either spelling."""
        given = dict(files.mapping(self.prefix + "rope_parameters"))
        if given:
            return {"rope_type": "default", **given}, f"config.json: {self.prefix}rope_parameters"
        theta = files.value(self.prefix + "rope_theta", float)
        scaling = dict(files.mapping(self.prefix + "rope_scaling"))
        if "type" in scaling:
            scaling["rope_type"] = scaling.pop("type")
        rope = {"rope_type": "default", "rope_theta": 10000.0 if theta is None else theta, **scaling}
        return rope, _source(self.prefix + "rope_theta", theta)


_HOLDS: Mapping[MarkovKind, str] = {"bilinear": "dflash2", "refiner": "xpress"}
_NUMBERS: tuple[tuple[str, type[float] | type[int]], ...] = (("rms_norm_eps", float), ("max_position_embeddings", int))


def check_written(
    head: DraftHead,
    *,
    scaled: bool = False,
    markov: Collection[MarkovKind] = DSPARK_KINDS,
    selects: bool = False,
) -> tuple[BlockHead, int]:
    """``head`` and its mask token. Raises FormatError for what no format of block heads holds.

    ``scaled``: the format can say what embeddings and logits are multiplied with; ``markov`` are the kinds of Markov
    heads that it holds, and ``selects``: candidates and convolutions.
    """
    assert isinstance(head, BlockHead)
    options = head.options
    if options.markov_rank and options.markov_head not in markov:
        raise FormatError(
            f"markov_head={options.markov_head!r}: this format has no such head; give "
            f"'speculators_{_HOLDS.get(options.markov_head, 'dspark')}'"
        )
    if not selects and (options.conv_taps or options.candidates):
        raise FormatError("convolutions or candidates: this format has none; give 'speculators_dflash2'")
    if options.mask_token_id is None:
        raise FormatError(
            "this head has an embedding of its own for masked slots, and the format names a token of the target: train "
            "it with mask_token_id"
        )
    if not options.qk_norm:
        raise FormatError("qk_norm=false: the format's layers have norms of queries and keys; train it with them")
    if not scaled and (head.decoder.embedding_factor, head.decoder.logits_divisor) != (1.0, 1.0):
        raise FormatError(
            "the target scales embeddings or logits, and this format has no field for that; give 'dflash'"
        )
    return head, options.mask_token_id


def layer_fields(head: BlockHead) -> LayerFields:
    """The layers of ``head`` as config.json spells them."""
    options = head.options
    assert (
        options.num_heads and options.num_kv_heads and options.head_dim and options.ffn_size and options.max_positions
    )
    rope = dict(options.rope)
    theta = float(rope.pop("rope_theta"))
    return LayerFields(
        model_type="qwen3",
        hidden_size=head.hidden_size,
        intermediate_size=options.ffn_size,
        num_layers=options.num_layers,
        num_heads=options.num_heads,
        num_kv_heads=options.num_kv_heads,
        head_dim=options.head_dim,
        vocab_size=head.target_vocab,
        max_positions=options.max_positions,
        norm_eps=options.norm_eps,
        rope_theta=theta,
        rope_scaling=None if rope == {"rope_type": "default"} else rope,
        attention_bias=options.attention_bias,
    )


def vocab_tensors(head: BlockHead) -> dict[str, Tensor]:
    """The LM head of a draft vocabulary, and the maps of its ids; nothing without one."""
    ids = head.draft_ids
    if ids is None:
        return {}
    assert head.decoder.head is not None
    known = torch.zeros(head.target_vocab, dtype=torch.bool)
    known[ids.cpu()] = True
    tensors: dict[str, Tensor] = {HEAD: head.decoder.head.weight}
    return tensors if known.all() else {**tensors, D2T: ids.cpu() - torch.arange(len(ids)), T2D: known}


def outputs(ids: tuple[int, ...]) -> tuple[int, ...]:
    """Taps of the layers whose outputs ``ids`` number; -1 is the embeddings'."""
    return tuple(one + 1 for one in ids)


def _targets(target: DecoderLM) -> list[tuple[str, Tensor]]:
    return [(EMBED, target.embed.weight), (HEAD, output_matrix(target))]


def _mask_embedding(files: HeadFiles, target: DecoderLM) -> Tensor:
    extra = files.extra("mask_embedding") or {}
    embedding = extra.get("embedding")
    size = target.config.hidden_size
    if not isinstance(embedding, Tensor) or embedding.numel() != size:
        raise FormatError(f"{files.path}: mask_embedding.pt lacks an embedding of {size} numbers; fetch it again")
    return embedding.reshape(1, size)


def _draft_ids(files: HeadFiles, vocab: int, target: DecoderLM) -> Tensor:
    if not files.has(D2T):
        if vocab == target.vocab_size:
            return torch.arange(vocab)
        raise FormatError(f"{files.path}: {HEAD} has {vocab} tokens of the target's {target.vocab_size}, and no {D2T}")
    return files.tensor(D2T).to(torch.int64) + torch.arange(vocab)


def _differs(files: HeadFiles, key: str, said: object, found: object) -> str:
    return f"{files.path}: config.json says {key}={said}, and its tensors {found}; fetch both again"


def _source(key: str, found: object) -> str:
    return f"{GUESSED}: the default of Qwen3" if found is None else f"config.json: {key}"
