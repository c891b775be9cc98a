"""EAGLE-3 and P-EAGLE heads as the package speculators (0.9) saves them."""

from collections.abc import Mapping
from typing import ClassVar, final

from torch import Tensor

from paceline.draft_heads.eagle3 import Eagle3Config, Eagle3Head
from paceline.draft_heads.formats.base import HeadFiles
from paceline.draft_heads.formats.eagle3_tensors import AUX, EMBED, Eagle3Format, source_of
from paceline.draft_heads.formats.speculators import LayerFields, speculators_config
from paceline.models.loading import dtype_name
from paceline.models.native.decoder import DecoderLM


class SpeculatorsFormat(Eagle3Format):
    """Heads of the type ``algorithm``, saved by the class ``architecture``."""

    inner: ClassVar[str] = "transformer_layer_config."
    algorithm: ClassVar[str]
    architecture: ClassVar[str]
    before_residual: ClassVar[bool]  # ``norm_before_residual`` where the file does not say

    def matches(self, files: HeadFiles) -> bool:
        return files.speculators_type == self.algorithm

    def taps(self, files: HeadFiles, target: DecoderLM) -> tuple[tuple[int, ...], str]:
        found = files.integers(AUX)
        if found is not None:
            return found, f"config.json: {AUX}"
        return Eagle3Config().taps_of(target.num_layers), "not in the files: 2, the middle, and 3 before the last"

    def flags(self, files: HeadFiles) -> dict[str, tuple[bool, str]]:
        found: dict[str, tuple[bool, str]] = {}
        for name, default in (("norm_before_residual", self.before_residual), ("norm_output", False)):
            said = files.value(name, bool)
            found[name] = (default if said is None else said, source_of(name, said, "the default of speculators"))
        return found

    def embedding(self, head: Eagle3Head, target: DecoderLM) -> dict[str, Tensor]:
        return {EMBED: head.decoder.embed.weight}

    def config(self, head: Eagle3Head, layers: LayerFields, target_name: str, num: int) -> Mapping[str, object]:
        options = head.options
        fields: dict[str, object] = {
            "draft_vocab_size": head.decoder.vocab_size,
            AUX: list(head.fused),
            "embed_requires_grad": self.masked,
            "fc_norm": options.fc_norm == "each",
            "norm_before_fc": options.fc_norm == "joint",
            "norm_before_residual": options.norm_before_residual,
            "norm_output": options.norm_output,
            "target_hidden_size": None if head.width == head.target_size else head.target_size,
        }
        fields |= {"mask_token_id": options.mask_token_id} if self.masked else {}
        dtype = dtype_name(head.decoder.dtype)
        config = speculators_config(
            self.algorithm,
            self.architecture,
            layers=layers,
            fields=fields,
            target_name=target_name,
            num_draft_tokens=num,
            dtype=dtype,
        )
        inner = {**layers.transformer_layer_config(), "num_aux_hidden_states": len(head.fused)}
        return {**config, "transformer_layer_config": inner}


@final
class SpeculatorsEagle3Format(SpeculatorsFormat):
    """Type "eagle3"; ``norm_before_residual`` is true where the file does not say."""

    name: ClassVar[str] = "speculators_eagle3"
    title: ClassVar[str] = "EAGLE-3 (speculators)"
    algorithm: ClassVar[str] = "eagle3"
    architecture: ClassVar[str] = "Eagle3DraftModel"
    before_residual: ClassVar[bool] = True


@final
class SpeculatorsPEagleFormat(SpeculatorsFormat):
    """Type "peagle": EAGLE-3 whose drafted pairs are of ``mask_token_id`` and of the states ``mask_hidden``."""

    name: ClassVar[str] = "speculators_peagle"
    title: ClassVar[str] = "P-EAGLE (speculators)"
    masked: ClassVar[bool] = True
    algorithm: ClassVar[str] = "peagle"
    architecture: ClassVar[str] = "PEagleDraftModel"
    before_residual: ClassVar[bool] = False
