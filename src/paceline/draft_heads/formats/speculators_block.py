"""DFlash and DSpark as the package speculators (0.9) saves them."""

from typing import ClassVar, final

from paceline.draft_heads.base import DraftHead
from paceline.draft_heads.block import BlockHead
from paceline.draft_heads.formats.base import Exported, FormatError, HeadFiles
from paceline.draft_heads.formats.block_layers import (
    GUESSED,
    BlockFields,
    BlockFormat,
    check_written,
    layer_fields,
    vocab_tensors,
)
from paceline.draft_heads.formats.block_tensors import write_state
from paceline.draft_heads.formats.dspark import confidence_of, head_fields, markov_of
from paceline.draft_heads.formats.speculators import read_envelope, speculators_config
from paceline.draft_heads.markov import MarkovKind
from paceline.models.loading import dtype_name
from paceline.models.native.decoder import DecoderLM


class SpeculatorsBlockFormat(BlockFormat):
    """``aux_hidden_state_layer_ids`` number inputs of layers, as taps do; the layout of the block is a field."""

    prefix: ClassVar[str] = "transformer_layer_config."
    algorithm: ClassVar[str]
    architecture: ClassVar[str]
    anchor_first: ClassVar[bool]  # where the file does not say

    def matches(self, files: HeadFiles) -> bool:
        return files.speculators_type == self.algorithm

    def fields(self, files: HeadFiles, target: DecoderLM) -> BlockFields:
        """See BlockFormat."""
        taps = files.integers("aux_hidden_state_layer_ids")
        if taps is None:
            raise FormatError(f"{files.path}: config.json lacks aux_hidden_state_layer_ids, the states that it reads")
        first = files.value("sample_from_anchor", bool)
        where = (
            "config.json: sample_from_anchor" if first is not None else f"{GUESSED}: the default of {self.algorithm}"
        )
        target_name, advised = read_envelope(files)
        return BlockFields(
            taps=(taps, "config.json: aux_hidden_state_layer_ids"),
            block_size=(files.required("block_size", int), "config.json: block_size"),
            anchor_first=(self.anchor_first if first is None else first, where),
            mask_token_id=(files.required("mask_token_id", int), "config.json: mask_token_id"),
            markov_head=self.markov(files),
            confidence_with_markov=self.confidence(files),
            target_name=target_name,
            num_draft_tokens=advised,
        )

    def markov(self, files: HeadFiles) -> tuple[MarkovKind, str] | None:
        """The Markov head, as BlockFields has it."""
        return None

    def confidence(self, files: HeadFiles) -> tuple[bool, str] | None:
        """The confidence head, as BlockFields has it."""
        return None

    def more_fields(self, head: BlockHead) -> dict[str, object]:
        """Those of heads beside the layers. Raises FormatError for heads that there are no fields for."""
        if head.options.markov_rank or head.options.confidence:
            raise FormatError("a Markov or confidence head: this format has none; give 'speculators_dspark'")
        return {}

    def write(self, head: DraftHead, *, target: DecoderLM, target_name: str, num_draft_tokens: int) -> Exported:
        """See Format; no more tokens are advised than a block has."""
        found, mask = check_written(head)
        options = found.options
        fields: dict[str, object] = {
            "aux_hidden_state_layer_ids": list(found.taps),
            "block_size": options.block_size,
            "draft_vocab_size": options.draft_vocab_size or found.target_vocab,
            "mask_token_id": mask,
            "sample_from_anchor": options.anchor_first,
            "sliding_window_non_causal": False,
            "target_hidden_size": None,
            **self.more_fields(found),
        }
        vocab = vocab_tensors(found)
        if options.draft_vocab_size == found.target_vocab:
            raise FormatError("an LM head of its own over all tokens: this format takes the target's; give 'dspark'")
        config = speculators_config(
            self.algorithm,
            self.architecture,
            layers=layer_fields(found),
            fields=fields,
            target_name=target_name,
            num_draft_tokens=min(num_draft_tokens, options.depth),
            dtype=dtype_name(found.decoder.dtype),
        )
        return Exported(config=config, tensors={**write_state(found), **vocab})


@final
class SpeculatorsDFlashFormat(SpeculatorsBlockFormat):
    """Type "dflash"."""

    name: ClassVar[str] = "speculators_dflash"
    title: ClassVar[str] = "DFlash (speculators)"
    algorithm: ClassVar[str] = "dflash"
    architecture: ClassVar[str] = "DFlashDraftModel"
    anchor_first: ClassVar[bool] = False


@final
class SpeculatorsDSparkFormat(SpeculatorsBlockFormat):
    """Type "dspark"."""

    name: ClassVar[str] = "speculators_dspark"
    title: ClassVar[str] = "DSpark (speculators)"
    algorithm: ClassVar[str] = "dspark"
    architecture: ClassVar[str] = "DSparkDraftModel"
    anchor_first: ClassVar[bool] = True

    def markov(self, files: HeadFiles) -> tuple[MarkovKind, str] | None:
        return markov_of(files, "")

    def confidence(self, files: HeadFiles) -> tuple[bool, str] | None:
        return confidence_of(files, "")

    def more_fields(self, head: BlockHead) -> dict[str, object]:
        return head_fields(head)
