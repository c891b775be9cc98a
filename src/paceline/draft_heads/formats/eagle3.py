"""EAGLE-3 heads as SafeAILab, SpecForge and DeepSpec save them."""

from collections.abc import Mapping
from typing import ClassVar, final

from torch import Tensor

from paceline.draft_heads.eagle3 import Eagle3Config, Eagle3Head
from paceline.draft_heads.formats.base import FormatError, HeadFiles
from paceline.draft_heads.formats.eagle3_tensors import AUX, EMBED, FC, HEAD, MIDDLE, Eagle3Format
from paceline.draft_heads.formats.speculators import LayerFields
from paceline.models.native.decoder import DecoderLM

DEEPSPEC = "Qwen3Eagle3Model"


@final
class SafeAILabEagle3Format(Eagle3Format):
    """``midlayer.*``; what is drafted is fed back before the norm, whatever ``norm_output`` says.

    SpecForge's ``norm_output`` is of the LM head's input (true: normalised), and it trains with the feedback before
    the norm; servers take the field for the feedback.
    """

    name: ClassVar[str] = "eagle3"
    title: ClassVar[str] = "EAGLE-3 (SafeAILab, SpecForge)"
    middle: ClassVar[bool] = True

    def matches(self, files: HeadFiles) -> bool:
        if files.speculators_type is not None or DEEPSPEC in files.architectures:
            return False
        return files.has(FC, HEAD, f"{MIDDLE}self_attn.q_proj.weight", f"{MIDDLE}hidden_norm.weight")

    def taps(self, files: HeadFiles, target: DecoderLM) -> tuple[tuple[int, ...], str]:
        for key in (AUX, f"eagle_config.{AUX}"):
            found = files.integers(key)
            if found is not None:
                return found, f"config.json: {key}"
        return Eagle3Config().taps_of(target.num_layers), "not in the files: 2, the middle, and 3 before the last"

    def flags(self, files: HeadFiles) -> dict[str, tuple[bool, str]]:
        if files.value("norm_output", bool) is False:
            raise FormatError(f"{files.path}: norm_output=false, an LM head without a norm, is not supported")
        before = files.value("norm_before_residual", bool)
        source = "the format" if before is None else "config.json: norm_before_residual"
        return {
            "norm_before_residual": (bool(before), source),
            "norm_output": (False, "the format: fed back before the norm; the config's field is of the LM head"),
        }

    def config(self, head: Eagle3Head, layers: LayerFields, target_name: str, num: int) -> Mapping[str, object]:
        options = head.options
        if options.norm_output or options.fc_norm == "joint" or layers.model_type != "llama":
            raise FormatError(
                "norm_output, a joint norm before fc, or norms of queries and keys: this format has none of them; give "
                "'speculators_eagle3'"
            )
        more: dict[str, object] = {"fc_norm": True} if options.fc_norm == "each" else {}
        more |= {"norm_before_residual": True} if options.norm_before_residual else {}
        if head.width != head.target_size:
            more["target_hidden_size"] = head.target_size
        return {
            "architectures": ["LlamaForCausalLMEagle3"],
            **layers.with_both_ropes(),
            "mlp_bias": False,
            "draft_vocab_size": head.decoder.vocab_size,
            "num_aux_hidden_states": len(head.fused),
            "eagle_config": {AUX: list(head.fused), "use_aux_hidden_state": True},
            **more,
        }


@final
class DeepSpecEagle3Format(Eagle3Format):
    """``target_layer_ids`` number outputs of layers; a Qwen3 layer, and the LM head of the whole vocabulary."""

    name: ClassVar[str] = "eagle3_deepspec"
    title: ClassVar[str] = "EAGLE-3 (DeepSpec)"

    def matches(self, files: HeadFiles) -> bool:
        return files.speculators_type is None and DEEPSPEC in files.architectures

    def taps(self, files: HeadFiles, target: DecoderLM) -> tuple[tuple[int, ...], str]:
        found = files.integers("target_layer_ids")
        if found is None:
            raise FormatError(f"{files.path}: config.json lacks target_layer_ids, the layers whose outputs it reads")
        return tuple(one + 1 for one in found), "config.json: target_layer_ids"

    def flags(self, files: HeadFiles) -> dict[str, tuple[bool, str]]:
        return {"norm_before_residual": (False, "the format"), "norm_output": (False, "the format")}

    def embedding(self, head: Eagle3Head, target: DecoderLM) -> dict[str, Tensor]:
        return {EMBED: head.decoder.embed.weight}

    def config(self, head: Eagle3Head, layers: LayerFields, target_name: str, num: int) -> Mapping[str, object]:
        options = head.options
        if options.norm_before_residual or options.norm_output or options.fc_norm != "none" or head.draft_vocab:
            raise FormatError("norms beside those of the layer, or a draft vocabulary: give 'speculators_eagle3'")
        if layers.model_type != "qwen3":
            raise FormatError("qk_norm=false: the format's layer has norms of queries and keys; give 'eagle3'")
        return {
            "architectures": [DEEPSPEC],
            **layers.with_both_ropes(),
            "target_layer_ids": [tap - 1 for tap in head.fused],
            "num_target_layers": head.num_layers,
            "ttt_length": options.depth,
        }
