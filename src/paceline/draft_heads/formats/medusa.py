"""Medusa heads as FasterDecoding, ModelOpt and vLLM (to 0.32) save them."""

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, final

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
    output_matrix,
)
from paceline.draft_heads.medusa import MedusaConfig, MedusaHead
from paceline.models.native.decoder import DecoderLM

TOKEN_MAP, LM_HEAD = "token_map", "lm_head.weight"
TENSORS, THE_FORMAT = "tensors", "the format"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Names:
    """The names of a head's tensors in its files."""

    blocks: Mapping[tuple[int, int, str], str]  # (depth, block, weight or bias) -> name
    lm_heads: Mapping[int, str]

    @property
    def depth(self) -> int:
        return 1 + max(at for at, _, _ in self.blocks)

    @property
    def num_blocks(self) -> int:
        return 1 + max(block for _, block, _ in self.blocks)

    @property
    def biased(self) -> bool:
        return any(part == "bias" for _, _, part in self.blocks)


class MedusaFormat(Format):
    """What both layouts share: heads are counted by their tensors, for configurations often say another number."""

    kinds: ClassVar[frozenset[str]] = frozenset({"medusa"})
    block: ClassVar[re.Pattern[str]]  # groups: depth, block, weight or bias
    lm_head: ClassVar[re.Pattern[str]]  # group: depth

    def matches(self, files: HeadFiles) -> bool:
        found = any(self.block.fullmatch(name) for name in files.headers)
        return found and files.speculators_type is None and not any(name.startswith("fc.") for name in files.headers)

    @abstractmethod
    def shared_head(self, files: HeadFiles, names: _Names) -> str | None:
        """The name of the one LM head of all depths; None where each has its own."""

    def names(self, files: HeadFiles) -> _Names:
        """The names by what they are."""
        blocks: dict[tuple[int, int, str], str] = {}
        lm_heads: dict[int, str] = {}
        for name in files.headers:
            if found := self.block.fullmatch(name):
                blocks[int(found[1]), int(found[2]), found[3]] = name
            elif found := self.lm_head.fullmatch(name):
                lm_heads[int(found[1])] = name
        if not blocks:
            raise FormatError(f"{files.path} holds no residual blocks of Medusa heads; give the weights of the heads")
        return _Names(blocks=blocks, lm_heads=lm_heads)

    def read(self, files: HeadFiles, target: DecoderLM) -> Imported:
        """See Format."""
        names = self.names(files)
        depth, num_blocks, size = names.depth, names.num_blocks, target.config.hidden_size
        shared = self.shared_head(files, names)
        sizes = [files.shapes[name][0] for (_, _, part), name in names.blocks.items() if part == "weight"]
        check_target(
            files,
            target,
            hidden_size=next(iter(sizes), None),
            vocab_size=files.value("vocab_size", int),
        )
        heads = [shared] if shared else [names.lm_heads.get(at, f"the LM head of head {at}") for at in range(depth)]
        rows = files.shapes[heads[0]][0] if heads[0] in files.headers else target.vocab_size
        truncated = TOKEN_MAP in files.headers
        wanted: dict[str, tuple[int, ...]] = {one: (rows, size) for one in heads}
        parts = ("weight", "bias") if names.biased else ("weight",)
        for at in range(depth):
            for block in range(num_blocks):
                for part in parts:
                    name = names.blocks.get((at, block, part), f"{part} of block {block} of head {at}")
                    wanted[name] = (size, size) if part == "weight" else (size,)
        optional = {TOKEN_MAP: tuple(files.shapes[TOKEN_MAP])} if truncated else {}
        own = (target.embed if target.head is None else target.head).weight
        stray = (LM_HEAD,) if shared is None and is_targets(files, LM_HEAD, own) else ()
        ignored = check_names(files, wanted, optional=optional, ignored=stray)
        ids, source = _draft_ids(files, rows, target.vocab_size)
        matrices = [_rows_of(files.tensor(one), files, ids) for one in heads]
        kind, matrices, tied = _tied(matrices, heads, shared, target)
        same = num_blocks > 1 and all(
            torch.equal(files.tensor(names.blocks[at, block, part]), files.tensor(names.blocks[at, 0, part]))
            for at in range(depth)
            for block in range(1, num_blocks)
            for part in parts
        )
        state = {
            f"blocks.{at}.{block}.{part}": files.tensor(names.blocks[at, block, part])
            for at in range(depth)
            for block in range(1 if same else num_blocks)
            for part in parts
        }
        state |= {f"lm_heads.{at}.weight": one for at, one in enumerate(matrices)}
        config = MedusaConfig(
            depth=depth,
            num_blocks=num_blocks,
            shared_blocks=same,
            block_bias=names.biased,
            lm_head=kind,
            draft_vocab_size=None if ids is None else len(ids),
        )
        if ids is not None:
            state["draft_ids"] = ids.sort().values
        return Imported(
            kind="medusa",
            config=config,
            state=state,
            assumptions=(
                Assumption("depth", depth, f"{TENSORS}{_said(files, 'heads', depth)}"),
                Assumption("num_blocks", num_blocks, f"{TENSORS}{_said(files, 'layers', num_blocks)}"),
                Assumption("shared_blocks", same, f"{TENSORS}: whether the blocks of a head are equal"),
                Assumption("block_bias", names.biased, TENSORS),
                Assumption("lm_head", kind, f"{TENSORS}: {', '.join(heads[:2])}"),
                Assumption("normalized", True, THE_FORMAT),
                Assumption("draft_vocab_size", config.draft_vocab_size, source),
            ),
            ignored=ignored,
            tied=tied,
            target_name=files.value("base_model_name_or_path", str),
            num_draft_tokens=depth,
        )


@final
class FasterDecodingFormat(MedusaFormat):
    """``{i}.{j}.linear.*`` and ``{i}.{number of blocks}.weight``; ModelOpt's names are read too.

    The authors' code makes one block object per head and runs it several times, so written blocks must be one.
    """

    name: ClassVar[str] = "medusa"
    title: ClassVar[str] = "Medusa (FasterDecoding)"
    block: ClassVar[re.Pattern[str]] = re.compile(
        r"(?:parallel_draft_heads\.)?(?:medusa_heads\.)?(\d+)\.(?:medusa_layers\.)?(\d+)\.linear\.(weight|bias)"
    )
    lm_head: ClassVar[re.Pattern[str]] = re.compile(
        r"(?:parallel_draft_heads\.)?(?:medusa_heads\.)?(\d+)\.(?:\d+|lm_head)\.weight"
    )

    def shared_head(self, files: HeadFiles, names: _Names) -> str | None:
        """See MedusaFormat."""
        return None

    def write(self, head: DraftHead, *, target: DecoderLM, target_name: str, num_draft_tokens: int) -> Exported:
        """See Format."""
        options, blocks, lm_heads = _written(head, target)
        if not options.block_bias:
            raise FormatError("block_bias=false: this format's blocks have a bias; give 'medusa_vllm'")
        if options.draft_vocab_size is not None:
            raise FormatError("draft_vocab_size: this format has all tokens of the target; give 'medusa_vllm'")
        if options.num_blocks > 1 and not options.shared_blocks:
            raise FormatError(
                f"num_blocks={options.num_blocks} without shared_blocks: the authors' code runs one block several "
                "times; give 'medusa_vllm'"
            )
        tensors = {f"{at}.{block}.linear.{part}": one for (at, block, part), one in blocks.items()}
        for at in range(options.depth):
            tensors[f"{at}.{options.num_blocks}.weight"] = lm_heads[at if options.lm_head == "own" else 0]
        config = {
            "medusa_num_heads": options.depth,
            "medusa_num_layers": options.num_blocks,
            "base_model_name_or_path": target_name,
        }
        return Exported(config=config, tensors=tensors, weights="medusa_lm_head.safetensors")


@final
class VLLMMedusaFormat(MedusaFormat):
    """``blocks.{i}.layers.{j}.*`` and ``lm_heads.{i}.weight``; ``original_lm_head`` is one LM head of all depths.

    ``token_map`` holds the ids of a draft vocabulary.
    """

    name: ClassVar[str] = "medusa_vllm"
    title: ClassVar[str] = "Medusa (vLLM to 0.32)"
    block: ClassVar[re.Pattern[str]] = re.compile(r"(?:medusa_heads\.)?blocks\.(\d+)\.layers\.(\d+)\.(weight|bias)")
    lm_head: ClassVar[re.Pattern[str]] = re.compile(r"(?:medusa_heads\.)?lm_heads\.(\d+)\.weight")

    def shared_head(self, files: HeadFiles, names: _Names) -> str | None:
        """See MedusaFormat."""
        if not files.value("original_lm_head", bool):
            return None
        return LM_HEAD if LM_HEAD in files.headers else names.lm_heads.get(0, LM_HEAD)

    def write(self, head: DraftHead, *, target: DecoderLM, target_name: str, num_draft_tokens: int) -> Exported:
        """See Format."""
        options, blocks, lm_heads = _written(head, target)
        tensors = {f"blocks.{at}.layers.{block}.{part}": one for (at, block, part), one in blocks.items()}
        own = options.lm_head == "own"
        tensors |= {f"lm_heads.{at}.weight": one for at, one in enumerate(lm_heads)} if own else {LM_HEAD: lm_heads[0]}
        if head.draft_ids is not None:
            tensors[TOKEN_MAP] = head.draft_ids
        config = {
            "model_type": "medusa",
            "architectures": ["MedusaModel"],
            "hidden_size": target.config.hidden_size,
            "vocab_size": target.vocab_size,
            "num_heads": options.depth,
            "num_hidden_layers": options.num_blocks,
            "truncated_vocab_size": options.draft_vocab_size or target.vocab_size,
            "medusa_fc_bias": options.block_bias,
            "original_lm_head": not own,
            "max_paths": 64,
            "topk": 10,
            "base_model_name_or_path": target_name,
        }
        return Exported(config=config, tensors=tensors)


def _said(files: HeadFiles, what: str, found: int) -> str:
    """What config.json says of the number of heads or layers, if that is another."""
    for key in (f"medusa_num_{what}", "num_heads" if what == "heads" else "num_hidden_layers"):
        said = files.value(key, int)
        if said is not None and said != found:
            return f" (config.json: {key}={said})"
    return ""


def _draft_ids(files: HeadFiles, rows: int, vocab_size: int) -> tuple[Tensor | None, str]:
    """The target ids of the LM heads' rows as they lie there, None for all; and where they come from."""
    size = files.value("truncated_vocab_size", int)
    if TOKEN_MAP in files.headers and (size is None or size < vocab_size):
        return files.tensor(TOKEN_MAP).to(torch.int64), f"tensor {TOKEN_MAP}"
    if rows < vocab_size:
        return torch.arange(rows), f"{TENSORS}: LM heads have the first {rows} tokens"
    if rows > vocab_size:
        raise FormatError(f"{files.path}: LM heads of {rows} tokens, and the target has {vocab_size}; give its own")
    return None, f"{TENSORS}: LM heads have all tokens"


def _rows_of(matrix: Tensor, files: HeadFiles, ids: Tensor | None) -> Tensor:
    """The rows of an LM head in the order of ascending ids; of a whole one those of the draft vocabulary."""
    if ids is None:
        return matrix
    order = ids.sort().indices
    if len(matrix) not in (len(ids), files.value("vocab_size", int)):
        raise FormatError(f"{files.path}: LM heads of {len(matrix)} tokens, and {TOKEN_MAP} has {len(ids)}")
    return matrix[order] if len(matrix) == len(ids) else matrix[ids[order]]


def _tied(
    matrices: Sequence[Tensor], names: Sequence[str], shared: str | None, target: DecoderLM
) -> tuple[Literal["own", "shared", "target"], tuple[Tensor, ...], tuple[str, ...]]:
    """Whether LM heads are the target's or one; those that are left, and the names of those that are not read."""
    own, first = (target.embed if target.head is None else target.head).weight, matrices[0]
    same = all(torch.equal(first, other) for other in matrices[1:])
    comparable = own.is_floating_point() and target.logits_divisor == 1.0 and first.shape == own.shape
    if same and comparable and torch.equal(first.to(own), own):
        return "target", (), tuple(names)
    if shared is not None or (same and len(matrices) > 1):
        return "shared", (first,), tuple(names[1:])
    return "own", tuple(matrices), ()


def _written(
    head: DraftHead, target: DecoderLM
) -> tuple[MedusaConfig, dict[tuple[int, int, str], Tensor], list[Tensor]]:
    """The options of ``head``, its blocks as often as they run, and its LM heads."""
    assert isinstance(head, MedusaHead)
    options, state = head.options, head.own_state()
    if not options.normalized:
        raise FormatError("normalized=false: Medusa heads of others read the state after the final norm; train it so")
    blocks = {
        (at, block, part): state[f"blocks.{at}.{0 if options.shared_blocks else block}.{part}"]
        for at in range(options.depth)
        for block in range(options.num_blocks)
        for part in (("weight", "bias") if options.block_bias else ("weight",))
    }
    if options.lm_head == "target":
        matrix = output_matrix(target)
        return options, blocks, [matrix if target.logits_divisor == 1.0 else matrix / target.logits_divisor]
    return options, blocks, [one for name, one in state.items() if name.startswith("lm_heads.")]
