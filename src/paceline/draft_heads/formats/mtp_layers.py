"""Modules of multi-token prediction among the layers of their target's own checkpoint.

They have the target's config.json, so what is written has the target's sizes. vLLM serves such a checkpoint by the
method mtp where it knows the architecture: for a dense target of Llama's or Qwen 2's layers that is MiMo's.
"""

import json
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import ClassVar, cast, final

import torch
from torch import Tensor

from paceline.draft_heads.base import DraftHead
from paceline.draft_heads.formats.base import Exported, FormatError, HeadFiles
from paceline.draft_heads.formats.head_files import CONFIG
from paceline.draft_heads.formats.mtp import MTPFormat, MTPNames
from paceline.draft_heads.formats.pair_tensors import PROJECTIONS, same_rotary
from paceline.draft_heads.mtp import MTPHead
from paceline.models.draft_layers import NUMBERED
from paceline.models.native.config import DecoderConfig, FFNConfig, Multipliers
from paceline.models.native.decoder import DecoderLM
from paceline.models.native.layers import RMSNorm

SHARED = ("num_heads", "num_kv_heads", "head_dim", "ffn_size", "norm_eps", "norm", "ffn", "arrangement", "window")
NEXTN = "num_nextn_predict_layers"


class LayersFormat(MTPFormat):
    """A module among the target's layers."""

    def fields(self, target: DecoderConfig, config: Mapping[str, object]) -> Mapping[str, object]:
        """What is added to ``config``, the target's. Raises FormatError for a target that cannot have the layout."""
        return {NEXTN: 1}

    @abstractmethod
    def own_names(self, num_layers: int) -> MTPNames:
        """The names in the checkpoint of a target of ``num_layers``."""

    def write(self, head: DraftHead, *, target: DecoderLM, target_name: str, num_draft_tokens: int) -> Exported:
        """See Format. Additions to the target's directory."""
        assert isinstance(head, MTPHead)
        own, blocks = target.config, head.decoder.config
        config = _target_fields(target_name)
        added = self.fields(own, config)
        _check_sizes(blocks, own)
        tensors = self.tensors(head, self.own_names(target.num_layers), biased=self.biased(own))
        return Exported(config=added, tensors={**tensors, **self.target_tensors(target)}, into_target=True)

    def biased(self, target: DecoderConfig) -> bool:
        """Whether queries, keys and values have biases in the layout."""
        return target.attention.bias

    def target_tensors(self, target: DecoderLM) -> dict[str, Tensor]:
        """What the target's own layers need beside what they have."""
        return {}


@final
class MiMoFormat(LayersFormat):
    """``model.mtp_layers.0.*``: the target's layers are Qwen 2's, and its config names MiMo's architecture.

    A Llama target is written with biases of zeros.
    """

    name: ClassVar[str] = "mtp_mimo"
    title: ClassVar[str] = "MTP inside its target (MiMo)"
    layout: ClassVar[Mapping[str, bool]] = {
        "normalized": False,
        "embedding_first": False,
        "norm_output": True,
        "zero_first": True,
    }

    def matches(self, files: HeadFiles) -> bool:
        return files.has("model.mtp_layers.0.input_proj.weight")

    def names(self, files: HeadFiles) -> MTPNames:
        _refuse_more(files, files.has("model.mtp_layers.1.input_proj.weight"))
        return self.own_names(0)

    def own_names(self, num_layers: int) -> MTPNames:
        at = "model.mtp_layers.0."
        return MTPNames.numbered(at, module=at)

    def fields(self, target: DecoderConfig, config: Mapping[str, object]) -> Mapping[str, object]:
        kind = config.get("model_type")
        if kind not in ("llama", "mistral", "qwen2", "mimo"):
            raise FormatError(
                f"a target of the model_type {kind!r}: vLLM serves MTP modules of this format for the layers of Qwen 2 "
                "and Llama alone; give 'mtp_qwen' or 'mtp_deepseek', which Paceline reads"
            )
        if target.head_dim * target.num_heads != target.hidden_size or target.attention.output_bias:
            raise FormatError(
                f"a target with {target.num_heads} heads of {target.head_dim} numbers and hidden states of "
                f"{target.hidden_size}, output_bias={target.attention.output_bias}: the layers of Qwen 2 have neither "
                "other heads nor a bias there"
            )
        theta = {} if "rope_theta" in config or config.get("rope_parameters") else {"rope_theta": 10000.0}
        made = "mimo" if kind == "mimo" else "qwen2"
        return {"architectures": ["MiMoForCausalLM"], "model_type": made, "attention_bias": True, NEXTN: 1, **theta}

    def biased(self, target: DecoderConfig) -> bool:
        return True

    def target_tensors(self, target: DecoderLM) -> dict[str, Tensor]:
        config = target.config
        if config.attention.bias:
            return {}
        query, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        return {
            f"model.layers.{layer}.self_attn.{name}.bias": torch.zeros(rows, dtype=target.dtype)
            for layer in range(config.num_layers)
            for name, rows in zip(PROJECTIONS, (query, kv, kv), strict=True)
        }


@final
class DeepSeekFormat(LayersFormat):
    """``model.layers.N.*`` behind the target's N layers; GLM-4.5 has the same names.

    The state is the one that the LM head reads, and so is what is fed back, as in transformers and for DeepSeek-V3 in
    vLLM.
    """

    name: ClassVar[str] = "mtp_deepseek"
    title: ClassVar[str] = "MTP inside its target (DeepSeek-V3, GLM-4.5)"
    layout: ClassVar[Mapping[str, bool]] = {
        "normalized": True,
        "embedding_first": True,
        "norm_output": True,
        "zero_first": True,
    }

    def matches(self, files: HeadFiles) -> bool:
        return files.speculators_type is None and bool(_numbers(files))

    def names(self, files: HeadFiles) -> MTPNames:
        numbers, own = _numbers(files), files.required("num_hidden_layers", int)
        _refuse_more(files, len(numbers) > 1)
        if numbers != [own]:
            raise FormatError(
                f"{files.path}: an MTP module as layer {numbers[0]} behind {own} layers; fetch both again"
            )
        return self.own_names(own)

    def own_names(self, num_layers: int) -> MTPNames:
        at = f"model.layers.{num_layers}."
        return MTPNames(
            module=at,
            embedding_norm=f"{at}enorm.weight",
            feature_norm=f"{at}hnorm.weight",
            projection=f"{at}eh_proj.weight",
            norm=f"{at}shared_head.norm.weight",
            block=at,
            embedding=f"{at}embed_tokens.weight",
            head=f"{at}shared_head.head.weight",
        )


@final
class QwenFormat(LayersFormat):
    """``mtp.*``; norms of Qwen3-Next and Qwen3.5 multiply by one plus their weight."""

    name: ClassVar[str] = "mtp_qwen"
    title: ClassVar[str] = "MTP inside its target (Qwen3-Next, Qwen3.5)"
    layout: ClassVar[Mapping[str, bool]] = {
        "normalized": True,
        "embedding_first": True,
        "norm_output": True,
        "zero_first": False,
    }

    def matches(self, files: HeadFiles) -> bool:
        return files.has("mtp.fc.weight")

    def norm_offset(self, files: HeadFiles) -> tuple[bool, str]:
        kind = files.value("model_type", str) or ""
        return kind.startswith(("qwen3_next", "qwen3_5")), "config.json: model_type"

    def names(self, files: HeadFiles) -> MTPNames:
        _refuse_more(files, any(name.startswith("mtp.layers.1.") for name in files.headers))
        return self.own_names(0)

    def own_names(self, num_layers: int) -> MTPNames:
        return MTPNames(
            module="mtp.",
            embedding_norm="mtp.pre_fc_norm_embedding.weight",
            feature_norm="mtp.pre_fc_norm_hidden.weight",
            projection="mtp.fc.weight",
            norm="mtp.norm.weight",
            block="mtp.layers.0.",
        )


def _numbers(files: HeadFiles) -> list[int]:
    """Of the layers that are modules."""
    found = (NUMBERED.match(name) for name in files.headers if name.endswith(".eh_proj.weight"))
    return sorted(int(one[1]) for one in found if one is not None)


def _refuse_more(files: HeadFiles, more: bool) -> None:
    if more:
        raise FormatError(
            f"{files.path} has several MTP modules, one for each depth, which is not supported: each would need a "
            "cache of its own; give a checkpoint with one module"
        )


def _target_fields(target_name: str) -> Mapping[str, object]:
    """The config.json of the target. Raises FormatError for a target that is no directory."""
    file = Path(target_name) / CONFIG
    if not file.is_file():
        raise FormatError("this format adds layers to the target's own directory: give the target as a directory")
    return cast("dict[str, object]", json.loads(file.read_text(encoding="utf-8")))


def _check_sizes(blocks: DecoderConfig, target: DecoderConfig) -> None:
    """Raise FormatError unless the module's block is as the target's, whose config.json it has."""
    if target.norm is not RMSNorm or target.ffn != FFNConfig() or target.multipliers != Multipliers():
        raise FormatError(
            "a target with other norms, feed-forwards or factors than Llama's: its config.json would describe the "
            "module's block otherwise than it is; keep the head in a directory of its own"
        )
    ours, theirs = ({name: value for name, value in asdict(one).items() if name in SHARED} for one in (blocks, target))
    ours["attention"], theirs["attention"] = (replace(one.attention, bias=False) for one in (blocks, target))
    for name, value in ours.items():
        if value != theirs[name]:
            raise FormatError(
                f"{name}={value}: the module would have the target's config.json, which has {theirs[name]}; train it so"
            )
    if not same_rotary(blocks.rotary, target.rotary):
        raise FormatError("rope_theta or rope_scaling is not the target's, whose config.json the module would have")
