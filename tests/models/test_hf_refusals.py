"""What the adapter refuses: kinds of models, wrong results on trees, sequences beyond a window, unusable files."""

import pytest
import torch
import transformers as hf
from transformers import StableLmForCausalLM

from paceline.models.adapter.adapt import adapt
from paceline.models.loading import ModelError
from tests.models.adapter_models import GPT_NEO, LLAMA4, MODELS, REFUSED, SIZES, make, shaken
from tests.tiny import VOCAB


@pytest.mark.parametrize("name", REFUSED)
def test_an_unsupported_kind_of_model_is_refused_with_the_reason(name):
    maker, reason = REFUSED[name]
    with pytest.raises(ModelError, match=reason) as refusal:
        adapt(maker())
    assert "; give " in str(refusal.value), "the way out"


# Models that are wrong on trees; the probe must find the difference.


def model_class(name, *, inputs=lambda mask, positions: (mask, positions), output=lambda logits: None):
    """A model that changes the mask and the positions that it is given, or its logits, where it runs on a tree."""

    def forward(self, input_ids=None, attention_mask=None, position_ids=None, **options):
        on_tree = attention_mask is not None
        if on_tree:
            attention_mask, position_ids = inputs(attention_mask, position_ids)
        found = StableLmForCausalLM.forward(
            self, input_ids, attention_mask=attention_mask, position_ids=position_ids, **options
        )
        if on_tree:
            output(found.logits)
        return found

    return type(name, (StableLmForCausalLM,), {"forward": forward})


def reads_scratch(mask, positions):
    mask = mask.clone()
    mask[..., -1] = 0
    return mask, positions


def reads_siblings(mask, positions):
    """Causal in the order of the slots: a node sees the other branches too."""
    seen = mask == 0
    below = torch.arange(seen.shape[-1]) <= (seen * torch.arange(seen.shape[-1])).amax(-1, keepdim=True)
    return mask.masked_fill(below, 0), positions


def changes_one_node(logits):
    if logits.shape[1] > 4:
        logits[1, 6] += 0.01 * logits.std() * torch.randn(VOCAB)


Maskless = model_class("Maskless", inputs=lambda mask, positions: (None, positions))
# Right on every chain: the first new position and those after it.
SlotPositions = model_class(
    "SlotPositions", inputs=lambda mask, positions: (mask, positions[:, :1] + torch.arange(positions.shape[1]))
)
# Right while all rows are equally long.
EvenRows = model_class("EvenRows", inputs=lambda mask, positions: (mask, positions[:1].expand_as(positions)))
ScratchReader = model_class("ScratchReader", inputs=reads_scratch)
Siblings = model_class("Siblings", inputs=reads_siblings)
Undefined = model_class("Undefined", output=lambda logits: logits[:, -1].fill_(torch.nan))
Hasty = model_class("Hasty", output=changes_one_node)


class Failing(StableLmForCausalLM):
    def forward(self, input_ids=None, attention_mask=None, **options):
        if attention_mask is not None:
            raise IndexError("of two axes, please\nand more")
        return super().forward(input_ids, **options)


WRONG = [Maskless, SlotPositions, EvenRows, ScratchReader, Siblings, Undefined, Hasty]


def instance(kind):
    torch.manual_seed(1)
    return shaken(kind(hf.StableLmConfig(**SIZES)).to(torch.float64).eval())


@pytest.mark.parametrize("kind", WRONG, ids=lambda kind: kind.__name__)
def test_a_model_that_is_wrong_on_trees_is_refused_with_the_difference(kind):
    message = (
        rf"{kind.__name__} cannot be run on trees: logits differ .* by up to (0\.\d+|\d.*|inf) standard deviations, "
        "where 0.001 is allowed for float64; its attention ignores a mask of four axes, or it derives positions from"
    )
    with pytest.raises(ModelError, match=message):
        adapt(instance(kind))


@pytest.mark.parametrize("kind", [Maskless, SlotPositions, EvenRows, Siblings], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_wrong_model_is_refused_in_lower_precision(kind, dtype):
    with pytest.raises(ModelError, match="cannot be run on trees"):
        adapt(instance(kind).to(dtype))


def test_an_error_of_the_model_is_reported_in_one_line():
    with pytest.raises(ModelError, match=r"four axes over slots \(IndexError: of two axes, please\); give a model"):
        adapt(instance(Failing))


# States of a model


def test_a_model_in_training_mode_is_refused_when_loaded_and_when_run():
    model = MODELS["stablelm"]()
    with pytest.raises(ModelError, match=r"training mode, where it draws random dropout: call model.eval\(\)"):
        adapt(model.train())
    ours = adapt(model.eval())
    model.train()
    with pytest.raises(ModelError, match=r"training mode: call model.eval\(\)"):
        ours(None, ours.new_cache(1, 4).view())


def test_a_model_without_a_head_is_refused():
    model = hf.StableLmModel(hf.StableLmConfig(**SIZES)).eval()
    with pytest.raises(ModelError, match="StableLmModel has no language-model head; load it with AutoModelForCausalLM"):
        adapt(model)


def test_a_model_without_storage_or_on_two_devices_is_refused():
    model = MODELS["stablelm"]()
    model.lm_head.to("meta")
    with pytest.raises(ModelError, match=r"lm_head.weight has no storage \(meta\); load the model without offloading"):
        adapt(model)


def test_some_of_the_layers_cannot_be_run():
    ours = adapt(MODELS["stablelm"]())
    view = ours.new_cache(1, 4).view()
    with pytest.raises(ValueError, match="runs all of its layers: load it with backend='native' to run some"):
        ours(None, view.apart([0, 1]))


def test_a_context_too_short_to_probe_is_refused():
    with pytest.raises(ModelError, match="a context of 16 tokens is too short to be probed"):
        adapt(make("StableLm", {**SIZES, "max_position_embeddings": 16}))


# Windows

LONG_ROPE = dict(
    original_max_position_embeddings=64,
    rope_parameters=dict(rope_type="longrope", rope_theta=10000.0, short_factor=[1.0] * 4, long_factor=[2.0] * 4),
)
WINDOWS = {
    "sliding": lambda: make("Starcoder2", SIZES, sliding_window=64),
    "in some layers": lambda: make("Cohere2", SIZES, sliding_window=64, sliding_window_pattern=2),
    "experts": lambda: make("Mixtral", SIZES, num_local_experts=4, sliding_window=64),
    "chunked": lambda: make("Llama4Text", SIZES, **{**LLAMA4, "attention_chunk_size": 64}),
    "by another name": lambda: make("Doge", SIZES, keep_window_size=64, attn_implementation="eager"),
    "local layers": lambda: make("GPTNeo", SIZES, "num_attention_heads", **GPT_NEO, window_size=64),
    "longrope": lambda: make("Phi3", SIZES, "pad_token_id", **LONG_ROPE, pad_token_id=0),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_a_cache_beyond_the_window_is_refused_with_both_numbers(name):
    ours = adapt(WINDOWS[name]())
    assert ours.new_cache(1, 64).capacity == 64 == ours.max_slots
    with pytest.raises(
        ValueError, match=r"sequences of up to 65 slots, drafts included, are longer than 64: .*; lower max"
    ):
        ours.new_cache(1, 65)


def test_a_window_longer_than_the_context_is_no_limit():
    ours = adapt(make("Starcoder2", SIZES, sliding_window=512))
    assert ours.info.limit is None and ours.max_slots is None and ours.new_cache(1, 4000).capacity == 4000


BEFORE_5_18 = tuple(map(int, hf.__version__.split(".")[:2])) < (5, 18)


def reads_what_comes_after(model):
    """Whether the plain forward lets a token attend to later ones."""
    one, other = (model(input_ids=torch.tensor([[1, 2, 3, token]]), use_cache=False).logits[0, :3] for token in (4, 5))
    return not torch.allclose(one, other)


@torch.no_grad()
def test_a_model_whose_own_forward_is_not_causal_is_refused():
    """Doge with sdpa before transformers 5.18: its plain forward is not causal, so no cached forward can equal it."""
    doge = make("Doge", SIZES, attn_implementation="sdpa")
    assert reads_what_comes_after(doge) == BEFORE_5_18
    if BEFORE_5_18:
        with pytest.raises(ModelError, match="logits differ from those of its plain forward"):
            adapt(doge)
    else:
        assert adapt(doge).model is doge
