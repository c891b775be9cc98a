"""EAGLE-1 and EAGLE-2 heads as SafeAILab saves them, and HASS, whose files are the same."""

from typing import ClassVar, final

from paceline.draft_heads.base import DraftHead
from paceline.draft_heads.eagle import EagleConfig, EagleHead
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
from paceline.draft_heads.formats.pair_tensors import LayerSizes, layer_fields, read_rope
from paceline.models.native.decoder import DecoderLM

EMBED, FC, BIAS = "embed_tokens.weight", "fc.weight", "fc.bias"


@final
class EagleFormat(Format):
    """Llama layers, the first without a norm of its input; the embedding in the files must be the target's.

    It is not scaled where the target's is (Gemma): heads of this format read the table itself.
    """

    name: ClassVar[str] = "eagle"
    title: ClassVar[str] = "EAGLE-1, EAGLE-2 (SafeAILab), HASS"
    kinds: ClassVar[frozenset[str]] = frozenset({"eagle"})

    def matches(self, files: HeadFiles) -> bool:
        needed = files.has(FC, "layers.0.self_attn.q_proj.weight", "layers.0.mlp.gate_proj.weight")
        others = ("lm_head.weight", "norm.weight", "hidden_norm.weight", "layers.0.hidden_norm.weight")
        return files.speculators_type is None and needed and not any(files.has(one) for one in others)

    def read(self, files: HeadFiles, target: DecoderLM) -> Imported:
        """See Format."""
        act = files.value("hidden_act", str)
        if act not in (None, "silu"):
            raise FormatError(f"{files.path}: hidden_act={act!r} is not supported, 'silu' alone is")
        num_heads = files.required("num_attention_heads", int)
        numbers = sorted({int(name.split(".")[1]) for name in files.headers if name.startswith("layers.")})
        first_norm = files.has("layers.0.input_layernorm.weight")
        layers = LayerSizes.of(files, [f"layers.{one}." for one in numbers], num_heads, first_norm=first_norm)
        size, vocab = layers.hidden_size, files.value("vocab_size", int)
        check_target(files, target, hidden_size=size, vocab_size=vocab)
        wanted = {FC: (size, 2 * size), **layers.shapes()}
        optional = {BIAS: (size,), EMBED: (target.vocab_size, size)}
        ignored = check_names(files, wanted, optional=optional)
        own = target.embed.weight
        if files.has(EMBED) and own.is_floating_point() and not is_targets(files, EMBED, own):
            raise FormatError(
                f"{files.path}: {EMBED} is not the target's, and an EAGLE head here shares it: give the target that it "
                "was trained for"
            )
        theta, scaling, rope_source = read_rope(files, "")
        eps, bias = files.value("rms_norm_eps", float), files.has(BIAS)
        eps_source = "not in the files: the default of Llama" if eps is None else "config.json: rms_norm_eps"
        state = {"fc.weight": files.tensor(FC), **layers.read(files)} | (
            {"fc.bias": files.tensor(BIAS)} if bias else {}
        )
        said: dict[str, tuple[object, str]] = {
            "tap": (None, "the format: after the last layer"),
            "normalized": (True, "the format"),
            "fc_bias": (bias, "tensors"),
            "first_norm": (first_norm, "tensors"),
            "norm_eps": (1e-6 if eps is None else eps, eps_source),
            "norm_offset": (False, "the format"),
            "rope_theta": (theta, rope_source),
            "rope_scaling": (scaling, rope_source),
            "num_heads": (num_heads, "config.json: num_attention_heads"),
            "num_layers": (len(numbers), "tensors"),
            "num_kv_heads": (layers.num_kv_heads, "shapes of tensors"),
            "head_dim": (layers.head_dim, "shapes of tensors"),
            "ffn_size": (layers.ffn_size, "shapes of tensors"),
            "qk_norm": (layers.qk_norm, "tensors"),
            "attention_bias": (layers.bias, "tensors"),
            "output_bias": (layers.output_bias, "tensors"),
        }
        return Imported(
            kind="eagle",
            config=EagleConfig.model_validate({name: value for name, (value, _) in said.items()}),
            state=state,
            assumptions=tuple(Assumption(name, *one) for name, one in said.items()),
            ignored=ignored,
            tied=(EMBED,) if files.has(EMBED) else (),
        )

    def write(self, head: DraftHead, *, target: DecoderLM, target_name: str, num_draft_tokens: int) -> Exported:
        """See Format. The embedding is written, as the authors' files have it."""
        assert isinstance(head, EagleHead)
        options, config, state = head.options, head.decoder.config, head.own_state()
        if not options.normalized or head.tap != head.num_layers or options.qk_norm or options.norm_offset:
            raise FormatError(
                "a feature before the target's final norm, or other norms than Llama's: no field for them"
            )
        prefixes = [f"layers.{index}." for index in range(config.num_layers)]
        layers = LayerSizes.of_config(config, prefixes, first_norm=options.first_norm)
        fields = layer_fields(config, options.rope_theta, options.rope_scaling, vocab_size=head.target_vocab)
        tensors = {FC: state["fc.weight"], **layers.write(state), EMBED: head.decoder.embed.weight}
        tensors |= {BIAS: state["fc.bias"]} if options.fc_bias else {}
        described = {"architectures": ["LlamaForCausalLM"], **fields.with_both_ropes(), "bias": options.fc_bias}
        return Exported(config=described, tensors=tensors)
