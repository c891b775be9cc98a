"""Hydra heads as their authors save them (zankner/Hydra)."""

import re
from dataclasses import replace
from typing import ClassVar, final

import torch
from torch import Tensor

from paceline.draft_heads.base import DraftHead
from paceline.draft_heads.formats.base import (
    Assumption,
    Exported,
    Format,
    FormatError,
    HeadFiles,
    Imported,
    check_names,
    check_target,
)
from paceline.draft_heads.formats.head_files import FETCH_AGAIN
from paceline.draft_heads.formats.pair_tensors import LayerSizes
from paceline.draft_heads.hydra import HydraConfig, HydraHead
from paceline.models.native.config import Arrangement, AttentionConfig, DecoderConfig, FFNConfig
from paceline.models.native.decoder import DecoderLM
from paceline.models.native.layers import RMSNorm

BLOCK = re.compile(r"hydra_mlp\.(\d+)\.(\d+)\.(linear|res_connection)\.(weight|bias)")
LM_HEAD = re.compile(r"hydra_lm_head\.(\d+)(?:\.\d+)?\.(weight|bias)")
TENSORS, ARCHS = "tensors", ("mlp", "prefix-mlp")
PREFIX = "prefix_embeding_layer."  # sic


@final
class HydraFormat(Format):
    """``hydra_mlp.{i}.{j}.*`` and ``hydra_lm_head.{i}.*`` of the archs ``mlp`` and ``prefix-mlp``, read by structure.

    The prefix layer is one of the target's Llama layers, by its config. The authors' code makes one object of all
    blocks that are not the first, so written ones must be one.
    """

    name: ClassVar[str] = "hydra"
    title: ClassVar[str] = "Hydra, Hydra++ (zankner)"
    kinds: ClassVar[frozenset[str]] = frozenset({"hydra"})

    def matches(self, files: HeadFiles) -> bool:
        return files.speculators_type is None and any(BLOCK.fullmatch(name) for name in files.headers)

    def read(self, files: HeadFiles, target: DecoderLM) -> Imported:
        """See Format."""
        arch, offset = files.value("hydra_head_arch", str), files.value("hidden_state_offset", int)
        prefixed = any(name.startswith(PREFIX) for name in files.headers)
        if arch not in (None, *ARCHS):
            raise FormatError(
                f"{files.path}: hydra_head_arch={arch!r} is not supported; give a head of the arch {' or '.join(ARCHS)}"
            )
        if arch is not None and prefixed != (arch == "prefix-mlp"):
            raise FormatError(
                f"{files.path}: hydra_head_arch={arch!r}, and the tensors {'hold' if prefixed else 'lack'} a layer "
                f"{PREFIX!r}; {FETCH_AGAIN}"
            )
        if offset:
            raise FormatError(f"{files.path}: hidden_state_offset={offset} is not supported; give a head with 0")
        blocks: dict[tuple[int, int, str], str] = {}
        lm_heads: dict[tuple[int, str], str] = {}
        for name in files.headers:
            if found := BLOCK.fullmatch(name):
                blocks[int(found[1]), int(found[2]), f"{found[3]}.{found[4]}"] = name
            elif found := LM_HEAD.fullmatch(name):
                lm_heads[int(found[1]), found[2]] = name
        depth, places = 1 + max(at for at, _, _ in blocks), sorted({place for _, place, _ in blocks})
        size, vocab = target.config.hidden_size, target.vocab_size
        check_target(files, target, hidden_size=files.shapes[next(iter(blocks.values()))][0])
        grounded = any(part.startswith("res_connection") for _, _, part in blocks)
        biased = any(part == "bias" for _, part in lm_heads)
        wanted, ours = dict[str, tuple[int, ...]](), dict[str, str]()

        def want(name: str | None, missing: str, shape: tuple[int, ...], own: str) -> None:
            wanted[name or missing] = shape
            ours[own] = name or missing

        for at in range(depth):
            for index, place in enumerate(places):
                inner = (at + 2) * size if grounded and index == 0 else size
                for part in ("linear", "res_connection") if grounded and index == 0 else ("linear",):
                    for one, shape in (("weight", (size, inner)), ("bias", (size,))):
                        name = f"hydra_mlp.{at}.{place}.{part}.{one}"
                        own = f"first_blocks.{at}.{'linear' if part == 'linear' else 'residual'}.{one}"
                        own = own if index == 0 else f"blocks.{at}.{index - 1}.{one}"
                        want(blocks.get((at, place, f"{part}.{one}")), name, shape, own)
            for one, shape in (("weight", (vocab, size)), ("bias", (vocab,))):
                if one == "weight" or biased:
                    want(lm_heads.get((at, one)), f"hydra_lm_head.{at}.{one}", shape, f"lm_heads.{at}.{one}")
        layer = _prefix_layer(target.config) if prefixed else None
        if layer is not None:
            wanted |= {**layer.shapes(), f"{PREFIX}norm.weight": (size,)}
        ignored = check_names(files, wanted, optional={f"{PREFIX}embed_tokens.weight": (vocab, size)})
        state = {own: files.tensor(name) for own, name in ours.items()}
        if layer is not None:
            state |= {**layer.read(files, "prefix.blocks."), "prefix.norm.weight": files.tensor(f"{PREFIX}norm.weight")}
        later = len(places) - 1
        shared = later > 1 and all(
            torch.equal(state[f"blocks.{at}.{block}.{one}"], state[f"blocks.{at}.0.{one}"])
            for at in range(depth)
            for block in range(1, later)
            for one in ("weight", "bias")
        )
        if shared:
            state = {name: one for name, one in state.items() if not re.match(r"blocks\.\d+\.[1-9]", name)}
        config = HydraConfig(
            depth=depth,
            num_blocks=len(places),
            shared_blocks=shared,
            grounded=grounded,
            head_bias=biased,
            prefix=prefixed,
        )
        return Imported(
            kind="hydra",
            config=config,
            state=state,
            assumptions=(
                Assumption("depth", depth, TENSORS),
                Assumption("num_blocks", len(places), TENSORS),
                Assumption("shared_blocks", shared, f"{TENSORS}: whether the blocks after the first are equal"),
                Assumption("grounded", grounded, f"{TENSORS}: res_connection"),
                Assumption("head_bias", biased, TENSORS),
                Assumption("prefix", prefixed, f"{TENSORS}: {PREFIX}*; sizes and positions are the target's"),
                Assumption("normalized", True, "the format"),
                Assumption("draft_vocab_size", None, "the format: all tokens of the target"),
            ),
            ignored=ignored,
            target_name=files.value("base_model_name_or_path", str),
            num_draft_tokens=depth,
        )

    def write(self, head: DraftHead, *, target: DecoderLM, target_name: str, num_draft_tokens: int) -> Exported:
        """See Format."""
        assert isinstance(head, HydraHead)
        options, state = head.options, head.own_state()
        _check_written(options, state)
        tensors: dict[str, Tensor] = {}
        # With a prefix layer a dropout stands before every block and LM head, and has a number.
        step, first, last = (2, 1, ".1") if options.prefix else (1, 0, "")
        for at in range(options.depth):
            for one in ("weight", "bias"):
                name = f"hydra_mlp.{at}.{first}"
                tensors[f"{name}.linear.{one}"] = state[f"first_blocks.{at}.linear.{one}"]
                if options.grounded:
                    tensors[f"{name}.res_connection.{one}"] = state[f"first_blocks.{at}.residual.{one}"]
                for block in range(1, options.num_blocks):
                    own = 0 if options.shared_blocks else block - 1
                    tensors[f"hydra_mlp.{at}.{first + step * block}.linear.{one}"] = state[f"blocks.{at}.{own}.{one}"]
            weight = tensors[f"hydra_lm_head.{at}{last}.weight"] = state[f"lm_heads.{at}.weight"]
            zeros = weight.new_zeros(len(weight))  # their LM heads have a bias
            tensors[f"hydra_lm_head.{at}{last}.bias"] = state.get(f"lm_heads.{at}.bias", zeros)
        if head.prefix is not None:
            tensors |= _prefix_layer(head.prefix.config).write(state, "prefix.blocks.")
            tensors[f"{PREFIX}norm.weight"] = state["prefix.norm.weight"]
            tensors[f"{PREFIX}embed_tokens.weight"] = (
                target.embed.weight
            )  # their layer has a table, which it never reads
        config = {
            "hydra_num_heads": options.depth,
            "hydra_num_layers": options.num_blocks,
            "hydra_head_arch": "prefix-mlp" if options.prefix else "mlp",
            "grounded_heads": options.grounded,
            "hidden_state_offset": 0,
            "base_model_name_or_path": target_name,
        }
        return Exported(config=config, tensors=tensors, weights="hydra_lm_head.safetensors")


def _prefix_layer(config: DecoderConfig) -> LayerSizes:
    """The prefix layer's tensors, by the target's ``config``. Raises FormatError for layers that are not Llama's."""
    plain = replace(
        config, norm=RMSNorm, attention=AttentionConfig(), ffn=FFNConfig(), arrangement=Arrangement.NORM_BEFORE
    )
    if config != plain or config.rotary is None or config.multipliers.residual != 1.0:
        raise FormatError(
            "a prefix layer of this format is one of Llama, and the target's layers are others: give a Llama target, "
            "or a head without one"
        )
    return LayerSizes.of_config(config, [f"{PREFIX}layers.0."])


def _check_written(options: HydraConfig, state: dict[str, Tensor]) -> None:
    """Raise FormatError for what the format cannot hold."""
    if not options.normalized:
        raise FormatError("normalized=false: Hydra heads of others read the state after the final norm; train it so")
    if options.draft_vocab_size is not None:
        raise FormatError("draft_vocab_size: this format has all tokens of the target; train it without")
    if options.num_blocks > 2 and not options.shared_blocks:
        raise FormatError(
            f"num_blocks={options.num_blocks} without shared_blocks: the authors' code runs one block several times; "
            "train it with shared_blocks"
        )
    if not options.grounded and options.num_blocks > 1:
        same = all(
            torch.equal(state[f"first_blocks.{at}.linear.{one}"], state[f"blocks.{at}.0.{one}"])
            for at in range(options.depth)
            for one in ("weight", "bias")
        )
        if not same:
            raise FormatError("grounded=false with several blocks: the authors' code has one; train it with 1 block")
