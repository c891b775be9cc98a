"""Any causal LM of transformers with ordinary key/value caches as an ``LM``, run by its own code.

The model gets a slot cache, a 4D attention mask over the slots and position ids; a probe at loading tests that it
honours them (models/adapter/probe). B rows, n nodes, S slots, V vocabulary, H hidden size.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from paceline.core.cache import SlotCache, View
from paceline.core.tree import Resume, Tree
from paceline.models.adapter.cache import TreeCache, has_all_layers
from paceline.models.adapter.support import ModelInfo, base_model_of, config_of_decoder, placement, read_context
from paceline.models.base import LogitsFor, Output
from paceline.models.directory import ModelError
from paceline.models.native.attention import TreeAttention
from paceline.models.wrapped import DecoderOnly

MASKED = ("eager", "sdpa")  # attention implementations of transformers that take a 4D mask


class TransformersLM(DecoderOnly):
    """A transformers model as an ``LM`` (models/base); made by ``adapt``. The model is not copied or changed.

    ``place``: the model's precision and device.
    """

    def __init__(self, model: PreTrainedModel, info: ModelInfo, place: tuple[torch.dtype, torch.device]) -> None:
        self.model, self.info = model, info
        config = config_of_decoder(model)
        self.vocab_size, self.num_layers = info.vocab_size, int(config.num_hidden_layers)
        self.max_positions = read_context(config, type(model).__name__)
        self.max_slots = None if info.limit is None else info.limit.length  # by its attention window or its positions
        self.slot_bytes = info.shape.slot_bytes
        self.dtype, self.device = place
        self._base, self._head = base_model_of(model), model.get_output_embeddings()
        parts = [model] if self._base is None else [model, self._base]
        self._take_positions = {part for part in parts if takes(part, "position_ids")}

    def new_cache(self, rows: int, capacity: int) -> SlotCache:
        """Storage for ``rows`` rows of ``capacity`` slots.

        Raises ValueError for more slots than the model's attention window holds, or than its positions are made for.
        """
        limit = self.info.limit
        if limit is not None and capacity > limit.length:
            raise ValueError(
                f"{type(self.model).__name__}: sequences of up to {capacity} slots, drafts included, are longer than "
                f"{limit.length}: {limit.reason}; lower max_tokens, max_length or num_draft_tokens, or shorten the "
                "prompts"
            )
        return self.info.shape.new_cache(rows, capacity, self.device)

    @torch.no_grad()
    def __call__(
        self,
        tree: Tree,
        cache: View,
        *,
        start: int = 0,
        taps: Sequence[int] = (),
        logits_for: LogitsFor = LogitsFor.ALL,
        resume: Resume | None = None,
        last_states: int | None = None,
    ) -> Output:
        """Score nodes ``start`` on of ``tree`` (see models/base).

        Raises ValueError for a view of some of the layers, for ``resume`` and for a model in training mode: its own
        code runs all layers.
        """
        if resume is not None or not has_all_layers(cache):
            raise ValueError("a transformers model runs all of its layers: load it with backend='native' to run some")
        if self.model.training:
            raise ModelError(f"{type(self.model).__name__} is in training mode: call model.eval()")
        limit = self.info.limit
        # Nodes that cannot be accepted may exceed the limit and must not change the others' positions.
        most = self.max_positions if limit is None else limit.length
        attend = TreeAttention(tree, cache, start, max_positions=most, group=1)
        tokens, valid = tree.tokens[:, start:], tree.valid[:, start:]
        with ExitStack() as stack:
            stack.enter_context(_masked_attention(self.model))
            hidden = stack.enter_context(_tapped(self.model, taps)) if taps else {}
            logits = self._run(tokens, attend, valid, logits_for)
        return Output(logits, {tap: hidden[tap] for tap in taps})

    def is_current(self, model: PreTrainedModel) -> bool:
        """Whether this adapts ``model`` as it is now; a model of another precision or device must be adapted anew."""
        return self.model is model and placement(model) == (self.dtype, self.device)

    def probe_view(self, rows: int, capacity: int, draw: Callable[..., Tensor]) -> View:
        """Empty rows to probe the model with; ``draw`` gives random tokens of a shape."""
        return self.new_cache(rows, capacity).view()

    def plain(self, tokens: list[int], row: int) -> Tensor:
        """Logits [T, V] of one sequence without a cache, as the model gives them for a ``row`` of ``probe_view``."""
        ids = torch.tensor([tokens], device=self.device)
        return self.model(input_ids=ids, use_cache=False, return_dict=True).logits[0]

    def _run(self, tokens: Tensor, attend: TreeAttention, valid: Tensor, logits_for: LogitsFor) -> Tensor | None:
        short = (
            logits_for is not LogitsFor.ALL
            and self._base is not None
            and (logits_for is LogitsFor.NONE or self.info.plain_head)
        )
        if short and self._base is not None:
            hidden = self._forward(self._base, tokens, attend)[0]
            return None if logits_for is LogitsFor.NONE else cast(nn.Module, self._head)(_last(hidden, valid))
        logits = self._forward(self.model, tokens, attend).logits
        if logits_for is LogitsFor.ALL:
            return logits
        return None if logits_for is LogitsFor.NONE else _last(logits, valid)

    def _forward(self, module: PreTrainedModel, tokens: Tensor, attend: TreeAttention) -> Any:
        given: dict[str, Any] = {"position_ids": attend.positions} if module in self._take_positions else {}
        cache = TreeCache(self.info.shape, attend)
        return module(
            input_ids=tokens,
            attention_mask=attend.mask,
            past_key_values=cache,
            use_cache=True,
            return_dict=True,
            **given,
        )


def _last(values: Tensor, valid: Tensor) -> Tensor:
    """The values [B, 1, X] of each row's last valid node, of ``values`` [B, n, X]."""
    last = (valid.sum(-1) - 1).clamp(min=0)
    return values.gather(1, last[:, None, None].expand(-1, 1, values.shape[-1]))


def takes(module: nn.Module, argument: str) -> bool:
    """Whether the forward of ``module`` has a parameter of this name."""
    return argument in inspect.signature(module.forward).parameters


@contextmanager
def _masked_attention(model: PreTrainedModel) -> Iterator[None]:
    """``model`` with an attention implementation that takes a 4D mask, within the context."""
    config, own = model.config, model.config._attn_implementation
    if own in MASKED:
        yield
        return
    config._attn_implementation = "sdpa" if model._supports_sdpa else "eager"
    try:
        yield
    finally:
        config._attn_implementation = own


@contextmanager
def _tapped(model: PreTrainedModel, taps: Sequence[int]) -> Iterator[dict[int, Tensor]]:
    """The residual stream at ``taps`` of a forward within the context, by hooks on the layers.

    transformers' last hidden state is after the final norm, this one before it.
    """
    layers, hidden = _find_layers(model), dict[int, Tensor]()

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hidden[0] = args[0] if args else kwargs["hidden_states"]

    def after(tap: int, output: Any) -> None:
        hidden[tap] = output if isinstance(output, Tensor) else output[0]

    handles = [layers[0].register_forward_pre_hook(before, with_kwargs=True)] if 0 in taps else []
    for tap in taps:
        if tap > 0:
            handles.append(
                layers[tap - 1].register_forward_hook(lambda _, __, output, tap=tap: after(tap, output))  # type: ignore[misc]
            )
    try:
        yield hidden
    finally:
        for handle in handles:
            handle.remove()


def _find_layers(model: PreTrainedModel) -> nn.ModuleList:
    """The list of decoder layers. Raises ValueError if there is none of the right length."""
    count = config_of_decoder(model).num_hidden_layers
    whole = model.get_decoder() if model.config.is_encoder_decoder else model
    found = [part for part in whole.modules() if isinstance(part, nn.ModuleList) and len(part) == count]
    if not found:
        raise ValueError(f"{type(model).__name__}: no list of {count} layers to read hidden states from")
    return found[0]
