"""EAGLE-3 heads as SafeAILab, SpecForge, DeepSpec and the package speculators (0.9) save them."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Literal, final

from torch import Tensor

from paceline.draft_heads.base import DraftHead
from paceline.draft_heads.eagle3 import Eagle3Config, Eagle3Head
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
from paceline.draft_heads.formats.pair_tensors import (
    D2T,
    T2D,
    LayerSizes,
    layer_fields,
    read_rope,
    read_vocab,
    vocab_maps,
)
from paceline.draft_heads.formats.speculators import LayerFields, read_envelope, speculators_config
from paceline.models.loading import dtype_name
from paceline.models.native.decoder import DecoderLM

EMBED, HEAD, FC, JOINT, EACH = "embed_tokens.weight", "lm_head.weight", "fc.weight", "input_norm.weight", "fc_norm."
MIDDLE = "midlayer."
DEEPSPEC = "Qwen3Eagle3Model"
AUX = "eagle_aux_hidden_state_layer_ids"
Said = tuple[object, str]


class Eagle3Format(Format):
    """Reads and writes tensors; subclasses say where config.json has what, and how the layers are called."""

    kinds: ClassVar[frozenset[str]] = frozenset({"eagle3"})
    inner: ClassVar[str] = ""  # of the fields of layers in config.json
    middle: ClassVar[bool] = False  # whether the one layer is called "midlayer"

    @abstractmethod
    def taps(self, files: HeadFiles, target: DecoderLM) -> tuple[tuple[int, ...], str]:
        """The taps, and where they are from."""

    @abstractmethod
    def flags(self, files: HeadFiles) -> dict[str, tuple[bool, str]]:
        """``norm_before_residual`` and ``norm_output``, and where they are from."""

    @abstractmethod
    def config(self, head: Eagle3Head, layers: LayerFields, target_name: str, num: int) -> Mapping[str, object]:
        """The config.json. Raises FormatError for options that it has no fields for."""

    def embedding(self, head: Eagle3Head, target: DecoderLM) -> dict[str, Tensor]:
        """The embedding that is written."""
        return {EMBED: head.decoder.embed.weight} if head.options.own_embedding else {}

    def read(self, files: HeadFiles, target: DecoderLM) -> Imported:
        """See Format."""
        at, vocab = self.inner, target.vocab_size
        check_target(files, target, vocab_size=files.value(f"{at}vocab_size", int))
        act = files.value(f"{at}hidden_act", str)
        if act not in (None, "silu"):
            raise FormatError(f"{files.path}: hidden_act={act!r} is not supported, 'silu' alone is")
        num_heads = files.required(f"{at}num_attention_heads", int)
        layers = LayerSizes.of(files, self._prefixes(files), num_heads, paired=True)
        taps, taps_source = self.taps(files, target)
        size, width = target.config.hidden_size, layers.hidden_size
        each = sum(name.startswith(EACH) for name in files.headers)
        fc_norm: Literal["none", "joint", "each"] = "each" if each else "joint" if files.has(JOINT) else "none"
        own_embedding = files.has(EMBED) and not is_targets(files, EMBED, target.embed.weight)
        if width != size and not own_embedding:
            raise FormatError(f"{files.path}: a head of {width} numbers for a target of {size} lacks {EMBED}")
        if not files.has(HEAD):
            raise FormatError(f"{files.path} lacks {HEAD}: heads of this format have one of their own")
        drafted = files.shapes[HEAD][0]
        wanted = {
            FC: (width, len(taps) * size),
            "norm.weight": (width,),
            HEAD: (drafted, width),
            **layers.shapes(),
            **({JOINT: (len(taps) * size,)} if fc_norm == "joint" else {}),
            **({f"{EACH}{index}.weight": (size,) for index in range(len(taps))} if each else {}),
        }
        optional = {EMBED: (vocab, width), D2T: (drafted,), T2D: (vocab,)}
        ignored = check_names(files, wanted, optional=optional)
        theta, scaling, rope_source = read_rope(files, at)
        eps = files.value(f"{at}rms_norm_eps", float)
        flags = self.flags(files)
        tied = (EMBED,) if files.has(EMBED) and not own_embedding else ()
        state = {"fc.weight": files.tensor(FC), "norm.weight": files.tensor("norm.weight"), **layers.read(files)}
        norms = [JOINT] if fc_norm == "joint" else [f"{EACH}{index}.weight" for index in range(each)]
        state |= {f"fc_norms.{index}.weight": files.tensor(name) for index, name in enumerate(norms)}
        state["head.weight"], ids = read_vocab(files, HEAD, vocab)
        state |= {} if ids is None else {"draft_ids": ids}
        state |= {"embed.weight": files.tensor(EMBED)} if own_embedding else {}
        said: dict[str, Said] = {
            "taps": (taps, taps_source),
            **flags,
            "fc_norm": (fc_norm, "tensors"),
            "norm_eps": (1e-6 if eps is None else eps, _source(f"{at}rms_norm_eps", eps)),
            "norm_offset": (False, "the format"),
            "rope_theta": (theta, rope_source),
            "rope_scaling": (scaling, rope_source),
            "num_heads": (num_heads, f"config.json: {at}num_attention_heads"),
            "draft_vocab_size": (None if ids is None else len(ids), f"tensors {HEAD} and {D2T}"),
            "own_embedding": (own_embedding, f"tensor {EMBED}" if own_embedding else "the target's embedding"),
            "hidden_size": (None if width == size else width, "shapes of tensors"),
            "num_layers": (len(layers.prefixes), "tensors"),
            "num_kv_heads": (layers.num_kv_heads, "shapes of tensors"),
            "head_dim": (layers.head_dim, "shapes of tensors"),
            "ffn_size": (layers.ffn_size, "shapes of tensors"),
            "qk_norm": (layers.qk_norm, "tensors"),
            "attention_bias": (layers.bias, "tensors"),
            "output_bias": (layers.output_bias, "tensors"),
        }
        target_name, advised = read_envelope(files)
        return Imported(
            kind="eagle3",
            config=Eagle3Config.model_validate({name: value for name, (value, _) in said.items()}),
            state=state,
            assumptions=tuple(Assumption(name, *one) for name, one in said.items()),
            ignored=ignored,
            tied=tied,
            target_name=target_name,
            num_draft_tokens=advised,
        )

    def write(self, head: DraftHead, *, target: DecoderLM, target_name: str, num_draft_tokens: int) -> Exported:
        """See Format."""
        assert isinstance(head, Eagle3Head)
        options, config, state = head.options, head.decoder.config, head.own_state()
        if self.middle and config.num_layers > 1:
            raise FormatError(
                f"num_layers={config.num_layers}: the format has one layer; give 'speculators_eagle3', or train one"
            )
        prefixes = [MIDDLE] if self.middle else [f"layers.{index}." for index in range(config.num_layers)]
        layers = layer_fields(config, options.rope_theta, options.rope_scaling, vocab_size=head.target_vocab)
        names = [JOINT] if options.fc_norm == "joint" else [f"{EACH}{i}.weight" for i in range(len(head.fc_norms))]
        tensors = {
            FC: state["fc.weight"],
            "norm.weight": state["norm.weight"],
            HEAD: state["head.weight"],
            **LayerSizes.of_config(config, prefixes, paired=True).write(state),
            **{name: state[f"fc_norms.{index}.weight"] for index, name in enumerate(names)},
            **vocab_maps(head.draft_ids, head.target_vocab),
            **self.embedding(head, target),
        }
        return Exported(config=self.config(head, layers, target_name, num_draft_tokens), tensors=tensors)

    def _prefixes(self, files: HeadFiles) -> list[str]:
        if any(name.startswith(MIDDLE) for name in files.headers):
            return [MIDDLE]
        numbers = {int(name.split(".")[1]) for name in files.headers if name.startswith("layers.")}
        return [f"layers.{index}." for index in sorted(numbers)] or [MIDDLE]


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


@final
class SpeculatorsEagle3Format(Eagle3Format):
    """Type "eagle3"; ``norm_before_residual`` is true where the file does not say."""

    name: ClassVar[str] = "speculators_eagle3"
    title: ClassVar[str] = "EAGLE-3 (speculators)"
    inner: ClassVar[str] = "transformer_layer_config."

    def matches(self, files: HeadFiles) -> bool:
        return files.speculators_type == "eagle3"

    def taps(self, files: HeadFiles, target: DecoderLM) -> tuple[tuple[int, ...], str]:
        found = files.integers(AUX)
        if found is not None:
            return found, f"config.json: {AUX}"
        return Eagle3Config().taps_of(target.num_layers), "not in the files: 2, the middle, and 3 before the last"

    def flags(self, files: HeadFiles) -> dict[str, tuple[bool, str]]:
        found: dict[str, tuple[bool, str]] = {}
        for name, default in (("norm_before_residual", True), ("norm_output", False)):
            said = files.value(name, bool)
            found[name] = (default if said is None else said, _source(name, said, "the default of speculators"))
        return found

    def embedding(self, head: Eagle3Head, target: DecoderLM) -> dict[str, Tensor]:
        return {EMBED: head.decoder.embed.weight}

    def config(self, head: Eagle3Head, layers: LayerFields, target_name: str, num: int) -> Mapping[str, object]:
        options = head.options
        fields: dict[str, object] = {
            "draft_vocab_size": head.decoder.vocab_size,
            AUX: list(head.fused),
            "embed_requires_grad": False,
            "fc_norm": options.fc_norm == "each",
            "norm_before_fc": options.fc_norm == "joint",
            "norm_before_residual": options.norm_before_residual,
            "norm_output": options.norm_output,
            "target_hidden_size": None if head.width == head.target_size else head.target_size,
        }
        dtype = dtype_name(head.decoder.dtype)
        config = speculators_config(
            "eagle3",
            "Eagle3DraftModel",
            layers=layers,
            fields=fields,
            target_name=target_name,
            num_draft_tokens=num,
            dtype=dtype,
        )
        inner = {**layers.transformer_layer_config(), "num_aux_hidden_states": len(head.fused)}
        return {**config, "transformer_layer_config": inner}


def _source(key: str, found: object, default: str = "the default of Llama") -> str:
    return f"not in the files: {default}" if found is None else f"config.json: {key}"
