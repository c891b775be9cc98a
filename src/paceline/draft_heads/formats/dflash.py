"""DFlash as z-lab and SpecForge save it: a Qwen3 config with ``dflash_config``, without embedding and LM head."""

from typing import ClassVar, final

from paceline.draft_heads.base import DraftHead
from paceline.draft_heads.formats.base import Exported, FormatError, HeadFiles
from paceline.draft_heads.formats.block_layers import (
    GUESSED,
    BlockFields,
    BlockFormat,
    check_written,
    layer_fields,
    outputs,
)
from paceline.draft_heads.formats.block_tensors import write_state
from paceline.models.native.decoder import DecoderLM

ARCHITECTURE = "DFlashDraftModel"
INNER = "dflash_config."
MASK_KEYS = (f"{INNER}mask_token_id", "mask_token_id", "dspark_noise_token_id", "pard_token", "ptd_token_id")
# Options that change the forward, and the values under which it is the one that is read.
UNSUPPORTED: tuple[tuple[str, tuple[object, ...]], ...] = (
    ("is_causal", (None, False)),
    (f"{INNER}causal", (None, False)),
    (f"{INNER}use_swa", (None, False)),
    (f"{INNER}attention_sink_bias", (None, False)),
    (f"{INNER}attention_value_scale", (None, 1, 1.0)),
    (f"{INNER}attention_mode", (None, "gqa", "mha")),
    (f"{INNER}attention_modes", (None,)),
    (f"{INNER}final_logit_softcapping", (None, 0)),
    ("final_logit_softcapping", (None, 0)),
    (f"{INNER}shift_label", (None, False)),
)


@final
class DFlashFormat(BlockFormat):
    """Masked slots predict themselves: b - 1 tokens of a block of b."""

    name: ClassVar[str] = "dflash"
    title: ClassVar[str] = "DFlash (z-lab, SpecForge)"

    def matches(self, files: HeadFiles) -> bool:
        if files.speculators_type is not None:
            return False
        if files.architectures:
            return ARCHITECTURE in files.architectures
        block = files.has("fc.weight", "hidden_norm.weight", "layers.0.self_attn.q_norm.weight")
        return block and not any(name.startswith(("markov_head.", "midlayer.")) for name in files.headers)

    def fields(self, files: HeadFiles, target: DecoderLM) -> BlockFields:
        """See BlockFormat."""
        check_variant(files, target)
        size, source = inner_or_outer(files, "block_size")
        scale = files.value(f"{INNER}input_embedding_scale", float) or files.value("input_embedding_scale", float)
        return BlockFields(
            taps=taps_of(files, target),
            block_size=(size or 16, source if size else f"{GUESSED}: z-lab's default"),
            anchor_first=(False, "the format: masked slots predict themselves"),
            mask_token_id=mask_of(files),
            embedding_scale=(1.0, "the format") if scale is None else (scale, "config.json: input_embedding_scale"),
        )

    def write(self, head: DraftHead, *, target: DecoderLM, target_name: str, num_draft_tokens: int) -> Exported:
        """See Format."""
        found, mask = check_written(head, scaled=True)
        options = found.options
        if options.anchor_first or options.markov_rank or options.confidence or options.draft_vocab_size:
            raise FormatError(
                "anchor_first, a Markov or confidence head or a draft vocabulary: this format has none of them; give "
                "'speculators_dspark'"
            )
        inner: dict[str, object] = {"mask_token_id": mask, "target_layer_ids": [tap - 1 for tap in found.taps]}
        if found.decoder.embedding_factor != 1.0:
            inner["input_embedding_scale"] = found.decoder.embedding_factor
        if found.decoder.logits_divisor != 1.0:
            inner["output_multiplier"] = 1 / found.decoder.logits_divisor
        config = {
            "architectures": [ARCHITECTURE],
            **layer_fields(found).with_both_ropes(),
            "layer_types": ["full_attention"] * options.num_layers,
            "block_size": options.block_size,
            "dflash_config": inner,
            "num_target_layers": found.num_target_layers,
        }
        return Exported(config=config, tensors=write_state(found))


def inner_or_outer(files: HeadFiles, key: str) -> tuple[int | None, str]:
    """An integer of dflash_config, else of the config itself, and where it was."""
    found = files.value(INNER + key, int)
    if found is not None:
        return found, f"config.json: {INNER}{key}"
    return files.value(key, int), f"config.json: {key}"


def taps_of(files: HeadFiles, target: DecoderLM) -> tuple[tuple[int, ...], str]:
    """The taps by target_layer_ids, which number outputs of layers. Raises FormatError for another number of layers."""
    layers = files.value("num_target_layers", int)
    if layers is not None and layers != target.num_layers:
        raise FormatError(
            f"{files.path} is a head of a target of {layers} layers, and this one has {target.num_layers}; give its own"
        )
    for key in (f"{INNER}target_layer_ids", "target_layer_ids"):
        ids = files.integers(key)
        if ids is not None:
            return outputs(ids), f"config.json: {key}"
    raise FormatError(
        f"{files.path}: config.json lacks dflash_config.target_layer_ids, the layers whose outputs it reads"
    )


def mask_of(files: HeadFiles) -> tuple[int | None, str]:
    """The mask token, None where the files hold its embedding. Raises FormatError where there is neither."""
    if files.path.joinpath("mask_embedding.pt").is_file():
        return None, "mask_embedding.pt"
    for key in MASK_KEYS:
        found = files.value(key, int)
        if found is not None:
            return found, f"config.json: {key}"
    raise FormatError(f"{files.path}: config.json lacks dflash_config.mask_token_id, which masked slots read")


def check_variant(files: HeadFiles, target: DecoderLM) -> None:
    """Raise FormatError for options that change the forward to one that is not supported."""
    for key, allowed in UNSUPPORTED:
        inner, _, last = key.rpartition(".")
        found = (files.mapping(inner) if inner else files.config).get(last)
        if not any(found == one and type(found) is type(one) for one in allowed):
            raise FormatError(f"{files.path}: {key}={found!r} is not supported; give a head without it")
    factor = files.value(f"{INNER}output_multiplier", float) or files.value("output_multiplier", float) or 1.0
    if abs(factor * target.logits_divisor - 1) > 1e-6:
        raise FormatError(
            f"{files.path}: output_multiplier={factor}, and the target divides its logits by {target.logits_divisor}: "
            "give its own target"
        )
