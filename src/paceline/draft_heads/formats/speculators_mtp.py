"""Multi-token-prediction modules as the package speculators (0.9) saves them, apart from their target."""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, final

from paceline.draft_heads.base import DraftHead
from paceline.draft_heads.formats.base import Exported, FormatError, HeadFiles
from paceline.draft_heads.formats.mtp import MTPFormat, MTPNames
from paceline.draft_heads.formats.pair_tensors import layer_fields
from paceline.draft_heads.formats.speculators import speculators_config
from paceline.draft_heads.mtp import MTPHead
from paceline.models.loading import dtype_name
from paceline.models.native.decoder import DecoderLM

NAMES = MTPNames.numbered("mtp_layers.0.", module="", embedding="embed_tokens.weight", head="lm_head.weight")


@final
class SpeculatorsMTPFormat(MTPFormat):
    """``mtp_layers.0.*``, a Qwen3 layer, whose config is the target's.

    The package trains it on the state before the target's final norm; the files do not say so.
    """

    name: ClassVar[str] = "speculators_mtp"
    title: ClassVar[str] = "MTP (speculators)"
    inner: ClassVar[str] = "transformer_layer_config."
    layout: ClassVar[Mapping[str, bool]] = {
        "normalized": False,
        "embedding_first": True,
        "norm_output": True,
        "zero_first": False,
    }

    def matches(self, files: HeadFiles) -> bool:
        return files.speculators_type == "mtp"

    def names(self, files: HeadFiles) -> MTPNames:
        return NAMES

    def norm_offset(self, files: HeadFiles) -> tuple[bool, str]:
        kind = files.value(f"{self.inner}model_type", str) or ""
        return kind.startswith(("qwen3_next", "qwen3_5")), f"config.json: {self.inner}model_type"

    def write(self, head: DraftHead, *, target: DecoderLM, target_name: str, num_draft_tokens: int) -> Exported:
        """See Format."""
        assert isinstance(head, MTPHead)
        options, config = head.options, head.decoder.config
        if not options.qk_norm or options.norm_offset:
            raise FormatError(
                f"qk_norm={options.qk_norm}, norm_offset={options.norm_offset}: the package's dense module is a Qwen3 "
                "layer, with norms of queries and keys; train it with qk_norm: true"
            )
        layers = layer_fields(config, options.rope_theta, options.rope_scaling, vocab_size=head.target_vocab)
        described = speculators_config(
            "mtp",
            "MTPDraftModel",
            layers=replace(layers, num_layers=head.num_layers),
            fields={"num_nextn_predict_layers": 1},
            target_name=target_name,
            num_draft_tokens=num_draft_tokens,
            dtype=dtype_name(head.decoder.dtype),
        )
        return Exported(config=described, tensors=self.tensors(head, NAMES, biased=config.attention.bias))
