"""DSpark as DeepSpec and SpecForge save it: DFlash with a Markov and a confidence head.

Heads of DeepSpec are told by their architecture, as those without a Markov head are called dflash_*: they draft from
their first slot all the same.
"""

from typing import ClassVar, final

from torch import Tensor

from paceline.draft_heads.base import DraftHead
from paceline.draft_heads.block import BlockHead
from paceline.draft_heads.formats.base import Exported, FormatError, HeadFiles, output_matrix
from paceline.draft_heads.formats.block_layers import (
    DSPARK_KINDS,
    EMBED,
    GUESSED,
    HEAD,
    BlockFields,
    BlockFormat,
    check_written,
    layer_fields,
)
from paceline.draft_heads.formats.block_tensors import write_state
from paceline.draft_heads.formats.dflash import INNER, check_variant, mask_of, taps_of
from paceline.draft_heads.markov import MarkovKind
from paceline.models.native.decoder import DecoderLM

NUM_ANCHORS = 512  # of DeepSpec's recipes; read in training alone


@final
class DeepSpecFormat(BlockFormat):
    """``Qwen3DSparkModel``: every slot predicts the token after its own; embedding and LM head are saved."""

    name: ClassVar[str] = "dspark"
    title: ClassVar[str] = "DSpark (DeepSpec)"
    architecture: ClassVar[str] = "Qwen3DSparkModel"

    def matches(self, files: HeadFiles) -> bool:
        if files.speculators_type is not None:
            return False
        native = "enable_confidence_head" in files.config and "dflash_config" not in files.config
        return self.architecture in files.architectures if files.architectures else native

    def fields(self, files: HeadFiles, target: DecoderLM) -> BlockFields:
        """See BlockFormat."""
        check_variant(files, target)
        return BlockFields(
            taps=taps_of(files, target),
            block_size=(files.required("block_size", int), "config.json: block_size"),
            anchor_first=(True, "the format: every slot predicts the token after its own"),
            mask_token_id=mask_of(files),
            markov_head=markov_of(files, ""),
            confidence_with_markov=confidence_of(files, ""),
        )

    def write(self, head: DraftHead, *, target: DecoderLM, target_name: str, num_draft_tokens: int) -> Exported:
        """See Format."""
        found, mask = check_written(head)
        options = found.options
        if not options.anchor_first:
            raise FormatError("anchor_first=false: this format's first slot drafts too; give 'dflash'")
        config = {
            "architectures": [self.architecture],
            **layer_fields(found).with_both_ropes(),
            "layer_types": ["full_attention"] * options.num_layers,
            "block_size": options.block_size,
            "mask_token_id": mask,
            "target_layer_ids": [tap - 1 for tap in found.taps],
            "num_anchors": options.anchors or NUM_ANCHORS,
            "num_target_layers": found.num_target_layers,
            **head_fields(found),
        }
        embed = target.embed.weight
        if not embed.is_floating_point():
            raise FormatError("the target's embedding is quantised, and this format holds it: load it as it is")
        whole: dict[str, Tensor] = {EMBED: embed, HEAD: _lm_head(found, target)}
        return Exported(config=config, tensors={**write_state(found), **whole})


@final
class SpecForgeDSparkFormat(BlockFormat):
    """``DSparkDraftModel``: masked slots predict themselves, as in SpecForge's own generation; vLLM reads otherwise."""

    name: ClassVar[str] = "dspark_specforge"
    title: ClassVar[str] = "DSpark (SpecForge)"
    architecture: ClassVar[str] = "DSparkDraftModel"

    def matches(self, files: HeadFiles) -> bool:
        return files.speculators_type is None and self.architecture in files.architectures

    def fields(self, files: HeadFiles, target: DecoderLM) -> BlockFields:
        """See BlockFormat."""
        check_variant(files, target)
        where = INNER if files.mapping(INNER.rstrip(".")).get("markov_rank") is not None else ""
        return BlockFields(
            taps=taps_of(files, target),
            block_size=(files.required("block_size", int), "config.json: block_size"),
            anchor_first=(False, f"{GUESSED}: as SpecForge generates; vLLM takes true"),
            mask_token_id=mask_of(files),
            markov_head=markov_of(files, where),
            confidence_with_markov=confidence_of(files, where),
        )

    def write(self, head: DraftHead, *, target: DecoderLM, target_name: str, num_draft_tokens: int) -> Exported:
        """See Format."""
        found, mask = check_written(head)
        options = found.options
        if options.anchor_first or options.draft_vocab_size:
            raise FormatError(
                "anchor_first=true or a draft vocabulary: SpecForge's files have no field for it; give "
                "'speculators_dspark'"
            )
        inner = {"mask_token_id": mask, "target_layer_ids": [tap - 1 for tap in found.taps], "attention_mode": "gqa"}
        config = {
            "architectures": [self.architecture],
            **layer_fields(found).with_both_ropes(),
            "layer_types": ["full_attention"] * options.num_layers,
            "block_size": options.block_size,
            "dflash_config": {**inner, "projector_type": "dspark", **head_fields(found)},
            "num_target_layers": found.num_target_layers,
        }
        return Exported(config=config, tensors=write_state(found))


def head_fields(head: BlockHead) -> dict[str, object]:
    """The fields of the Markov and the confidence head."""
    options = head.options
    return {
        "enable_confidence_head": options.confidence,
        "confidence_head_with_markov": bool(options.confidence_with_markov),
        "markov_rank": options.markov_rank,
        "markov_head_type": options.markov_head,
    }


def markov_of(files: HeadFiles, prefix: str) -> tuple[MarkovKind, str] | None:
    """The kind of the Markov head, None without one. Raises FormatError for kinds that there are not."""
    if not files.required(f"{prefix}markov_rank", int):
        return None
    said = files.value(f"{prefix}markov_head_type", str) or "vanilla"
    for kind in DSPARK_KINDS:
        if kind == said:
            return kind, f"config.json: {prefix}markov_head_type"
    raise FormatError(f"{files.path}: markov_head_type={said!r} is not supported; known: {', '.join(DSPARK_KINDS)}")


def confidence_of(files: HeadFiles, prefix: str) -> tuple[bool, str] | None:
    """Whether the confidence head reads the token before, None without one."""
    if not files.value(f"{prefix}enable_confidence_head", bool):
        return None
    key = f"{prefix}confidence_head_with_markov"
    return bool(files.value(key, bool)), f"config.json: {key}"


def _lm_head(head: BlockHead, target: DecoderLM) -> Tensor:
    """The whole LM head. Raises FormatError for a draft vocabulary."""
    if head.draft_ids is None:
        return output_matrix(target)
    if len(head.draft_ids) < target.vocab_size:
        raise FormatError("a draft vocabulary: this format has none; give 'speculators_dspark'")
    assert head.decoder.head is not None
    return head.decoder.head.weight
