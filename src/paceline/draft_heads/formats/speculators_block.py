"""DFlash, DFlash 2, DSpark and xPress as the package speculators (0.9) saves them."""

from collections.abc import Mapping
from typing import ClassVar, final

from paceline.draft_heads.base import DraftHead
from paceline.draft_heads.block import BlockHead
from paceline.draft_heads.formats.base import Exported, FormatError, HeadFiles
from paceline.draft_heads.formats.block_layers import (
    DSPARK_KINDS,
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

JACOBI_PASSES = 6  # of the package's default; read by other engines alone


class SpeculatorsBlockFormat(BlockFormat):
    """``aux_hidden_state_layer_ids`` number inputs of layers, as taps do; the layout of the block is a field."""

    prefix: ClassVar[str] = "transformer_layer_config."
    algorithm: ClassVar[str]
    architecture: ClassVar[str]
    anchor_first: ClassVar[bool]  # where the file does not say
    heads: ClassVar[frozenset[MarkovKind]] = frozenset()  # kinds of Markov heads that there are fields for
    selects: ClassVar[bool] = False  # whether there are convolutions, and candidates of which one is chosen
    sizes: ClassVar[Mapping[str, str]] = {}  # fields of config.json by those of ours that tensors tell too

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
            candidates=self.candidates(files),
            confidence_with_markov=self.confidence(files),
            sizes=self.sizes,
            target_name=target_name,
            num_draft_tokens=advised,
        )

    def markov(self, files: HeadFiles) -> tuple[MarkovKind, str] | None:
        """The Markov head, as BlockFields has it."""
        return None

    def candidates(self, files: HeadFiles) -> tuple[int, str] | None:
        """How many tokens a slot's own logits leave, as BlockFields has it."""
        return None

    def confidence(self, files: HeadFiles) -> tuple[bool, str] | None:
        """The confidence head, as BlockFields has it."""
        return None

    def more_fields(self, head: BlockHead) -> dict[str, object]:
        """Those of heads beside the layers. Raises FormatError for heads that there are none for."""
        options = head.options
        if options.confidence or bool(options.markov_rank) != bool(self.heads):
            lacks = "lacks the Markov head that this format has; give 'speculators_dflash'"
            has = "has a Markov or a confidence head, and this format has none; give 'speculators_dspark'"
            raise FormatError(f"the head {has if options.confidence or not self.heads else lacks}")
        return {key: getattr(options, own) for own, key in self.sizes.items()}

    def write(self, head: DraftHead, *, target: DecoderLM, target_name: str, num_draft_tokens: int) -> Exported:
        """See Format; no more tokens are advised than a block has."""
        found, mask = check_written(head, markov=self.heads or DSPARK_KINDS, selects=self.selects)
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


@final
class SpeculatorsDFlash2Format(SpeculatorsBlockFormat):
    """Type "dflash2": the candidates of a slot are scored by the token before."""

    name: ClassVar[str] = "speculators_dflash2"
    title: ClassVar[str] = "DFlash 2 (speculators)"
    algorithm: ClassVar[str] = "dflash2"
    architecture: ClassVar[str] = "DFlash2DraftModel"
    anchor_first: ClassVar[bool] = False
    heads: ClassVar[frozenset[MarkovKind]] = frozenset({"bilinear"})
    selects: ClassVar[bool] = True
    sizes: ClassVar[Mapping[str, str]] = {
        "markov_rank": "selector_rank",
        "conv_taps": "conv_kernel_size",
        "conv_group_size": "conv_group_size",
    }

    def markov(self, files: HeadFiles) -> tuple[MarkovKind, str] | None:
        return "bilinear", "the format"

    def candidates(self, files: HeadFiles) -> tuple[int, str] | None:
        return files.required("selector_top_k", int), "config.json: selector_top_k"

    def more_fields(self, head: BlockHead) -> dict[str, object]:
        options, fields = head.options, super().more_fields(head)
        if not options.conv_taps or options.candidates is None or options.draft_vocab_size:
            raise FormatError(
                "this format has convolutions and candidates over the target's whole vocabulary: train the head with "
                "conv_taps and candidates, and without draft_vocab_size"
            )
        return {**fields, "selector_top_k": options.candidates}


@final
class SpeculatorsXPressFormat(SpeculatorsBlockFormat):
    """Type "xpress": a refiner, whose passes over the block end with the tokens that are drafted one by one here."""

    name: ClassVar[str] = "speculators_xpress"
    title: ClassVar[str] = "xPress (speculators)"
    algorithm: ClassVar[str] = "xpress"
    architecture: ClassVar[str] = "XPressDraftModel"
    anchor_first: ClassVar[bool] = False
    heads: ClassVar[frozenset[MarkovKind]] = frozenset({"refiner"})
    sizes: ClassVar[Mapping[str, str]] = {"markov_rank": "xpress_rank", "markov_ratio": "xpress_mlp_ratio"}

    def markov(self, files: HeadFiles) -> tuple[MarkovKind, str] | None:
        return "refiner", "the format"

    def more_fields(self, head: BlockHead) -> dict[str, object]:
        return {**super().more_fields(head), "num_jacobi_passes": JACOBI_PASSES}
