"""Families beside Llama and GPT-2: precision, sliding windows, and unsupported options of their configs.

Logits, trees, hidden states, files and decoded sequences of every variant are tested by test_parity, test_loading and
test_generate.
"""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoModelForCausalLM

from paceline.drafters.model import ModelDrafter
from paceline.models.base import LogitsFor, max_sequence_length
from paceline.models.families import DECODERS, FAMILIES
from paceline.models.loading import ModelError, load
from paceline.models.native.decoder import DecoderLM
from paceline.models.native.layers import OffsetRMSNorm
from paceline.models.prefill import feed
from tests import tiny
from tests.harness import decoder_for, request
from tests.models.directories import config
from tests.models.layouts import LAYOUTS, VARIANTS, check_nodes, close, pair, plain, random_tree, shaken, texts

every_variant = pytest.mark.parametrize("name", VARIANTS)
# transformers computes all of these in float64 except for rotary angles; norms of the others are in float32.
DOUBLE = [name for name in VARIANTS if name.startswith("gpt_neox")]


def test_every_family_has_a_variant():
    others = {"llama", "gpt2", "mimo"}  # transformers does not know MiMo, whose layers are Qwen 2's
    assert {kind for kind, _ in VARIANTS.values()} | others == set(DECODERS)


@pytest.mark.parametrize("name", DOUBLE)
@torch.no_grad()
def test_float64_logits_match_to_rounding(name):
    model, ours = pair(name, torch.float64)
    text, tree = texts(1, 40), random_tree(1, 12, 3)
    close(ours.causal(text).logits[0], plain(model, text[0].tolist()), atol=1e-12)
    check_nodes(ours(tree, ours.new_cache(1, 16).view()).logits, tree, model, [[]], atol=1e-12)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", ["qwen3", "gpt_neox", "olmo2", "phi3-partial", "gemma", "granite", "smollm3"])
def test_the_step_runs_on_fake_tensors(name):
    _, ours = pair(name)
    with FakeTensorMode():
        target = DecoderLM(ours.config)
        decoder = decoder_for(ModelDrafter(lm=DecoderLM(ours.config)), "coupled", target=target, rows=2, max_length=60)
        decoder.admit([request([1, 2, 3]), request([4])], range(2))
        for _ in range(2):
            decoder.step()


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", ["gemma", "gpt_neox", "olmo2", "smollm3"])
def test_the_forward_compiles_to_one_graph(name):
    _, ours = pair(name)
    text = texts(2, 12)
    torch._dynamo.reset()
    compiled = torch.compile(ours.causal, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(text).logits, ours.causal(text).logits, rtol=0, atol=1e-5)


# Low precision: the same roundings as transformers' own modules.


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@torch.no_grad()
def test_gemma_rounds_where_transformers_does(dtype):
    model = shaken(tiny.causal("gemma", dtype=dtype, hidden_size=48, head_dim=12))
    ours = tiny.native(model)
    tokens = texts(2, 9)
    assert ours.config.multipliers.round_embedding and isinstance(ours.norm, OffsetRMSNorm)
    embedded = model.model.embed_tokens(tokens)
    assert torch.equal(ours.causal(tokens, taps=(0,)).hidden[0], embedded)
    assert torch.equal(ours.norm(embedded), model.model.norm(embedded))
    if dtype is torch.bfloat16:
        plainly = torch.nn.functional.embedding(tokens, ours.embed.weight) * 48**0.5
        assert not torch.equal(embedded, plainly), "a factor that is not rounded would have been seen"


@torch.no_grad()
def test_olmo2_rounds_where_transformers_does():
    model = shaken(tiny.causal("olmo2", dtype=torch.bfloat16))
    ours = tiny.native(model)
    x = torch.randn(2, 9, 32, generator=torch.Generator().manual_seed(3)).to(torch.bfloat16)
    assert torch.equal(ours.norm(x), model.model.norm(x))
    cos, sin = ours.rotary(torch.arange(9)[None], torch.bfloat16)
    assert cos.dtype == sin.dtype == torch.float32


@every_variant
@torch.no_grad()
def test_bfloat16_logits_are_as_close_to_float32_as_those_of_transformers(name, tmp_path):
    model = shaken(LAYOUTS[name](torch.float32))
    for parameter in model.parameters():
        parameter.copy_(parameter.bfloat16())
    model.save_pretrained(tmp_path)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16).eval()
    ours, text = load(tmp_path, dtype=torch.bfloat16), texts(4, 40)
    found = feed(ours, ours.new_cache(4, 48).view(), text, torch.full((4,), 40), 40, logits_for=LogitsFor.ALL).logits
    assert found.dtype == torch.bfloat16
    exact = torch.stack([plain(model, row.tolist()) for row in text])
    wrong, allowed = ((logits - exact).abs().mean() for logits in (found, theirs(text, use_cache=False).logits))
    assert wrong < 1.2 * allowed


# Sequences beyond a sliding window are refused.


def windowed(kind, **options):
    return tiny.native(shaken(tiny.causal(kind, **options)))


WINDOWS = {
    "mistral": ("mistral", dict(sliding_window=40)),
    "phi3": ("phi3", dict(sliding_window=40)),
    "qwen2": ("qwen2", dict(use_sliding_window=True, sliding_window=40, max_window_layers=1)),
    "qwen3": ("qwen3", dict(use_sliding_window=True, sliding_window=40, max_window_layers=2, head_dim=8)),
    "smollm3": ("smollm3", dict(use_sliding_window=True, sliding_window=40, no_rope_layer_interval=2)),
}
NO_WINDOWS = {
    "mistral none": ("mistral", dict(sliding_window=None)),
    "mistral as long as the context": ("mistral", dict(sliding_window=128)),
    "mistral's own": ("mistral", {}),
    "phi3 longer than the context": ("phi3", dict(sliding_window=129)),
    "qwen2 switched off": ("qwen2", dict(use_sliding_window=False, sliding_window=40, max_window_layers=1)),
    "qwen2 in no layer": ("qwen2", dict(use_sliding_window=True, sliding_window=40, max_window_layers=3)),
    "llama, which knows none": ("llama", dict(sliding_window=40)),
    "granite, which knows none": ("granite", dict(sliding_window=40)),
    "smollm3 in no layer": ("smollm3", dict(use_sliding_window=True, sliding_window=40, no_rope_layers=[1, 1, 1])),
}


@pytest.mark.parametrize("case", WINDOWS)
@torch.no_grad()
def test_a_sequence_beyond_the_sliding_window_is_refused(case):
    kind, options = WINDOWS[case]
    model = shaken(tiny.causal(kind, dtype=torch.float32, **options))
    ours = tiny.native(model)
    text = texts(1, 40)
    torch.testing.assert_close(ours.causal(text).logits[0], plain(model, text[0].tolist()), rtol=0, atol=1e-4)
    assert ours.max_positions == 128 and ours.new_cache(1, 40).capacity == 40
    message = (
        "a sequence of 41 tokens, drafts included, exceeds the sliding window of 40 tokens .*: lower max_tokens, max"
    )
    assert ours.max_slots == 40 and max_sequence_length(ours) == 40 and max_sequence_length(ours, num_nodes=6) == 34
    with pytest.raises(ValueError, match=message):
        ours.new_cache(1, 41)
    with pytest.raises(ValueError, match=message):
        ours.causal(texts(1, 41))
    with pytest.raises(ValueError, match="exceeds the sliding window of 40 tokens"):
        decoder_for(ModelDrafter(lm=ours), "coupled", target=ours, max_length=41)


@pytest.mark.parametrize("case", WINDOWS)
@torch.no_grad()
def test_transformers_drops_the_first_token_beyond_the_window(case):
    # Otherwise the limit above could be larger.
    kind, options = WINDOWS[case]
    model = shaken(tiny.causal(kind, dtype=torch.float32, **options))
    whole = shaken(tiny.causal(kind, dtype=torch.float32, **{**options, "sliding_window": 128}))
    one = texts(1, 41)[0].tolist()
    assert torch.allclose(plain(model, one)[:40], plain(whole, one)[:40], rtol=0, atol=1e-5)
    assert not torch.allclose(plain(model, one)[40], plain(whole, one)[40], rtol=0, atol=1e-4)


@pytest.mark.parametrize("case", NO_WINDOWS)
def test_a_window_that_has_no_effect_is_no_limit(case):
    kind, options = NO_WINDOWS[case]
    assert windowed(kind, **options).new_cache(1, 140).capacity == 140


# Unsupported options -> the message; test_loading has those that every family checks alike.

REFUSED = {
    "phi3 layer types": ("phi3", dict(layer_types=["full_attention"] * 3), "layer_types=.* is not supported"),
    "listed layers": ("smollm3", dict(no_rope_layers=[1, 0]), r"no_rope_layers=\[1, 0\]: one number for each of 3"),
    "activation": (
        "mistral",
        dict(hidden_act="quick_gelu"),
        "hidden_act='quick_gelu' is not .*; supported: silu, gelu,",
    ),
    "neox activation": (
        "gpt_neox",
        dict(hidden_act="quick_gelu"),
        "hidden_act='quick_gelu' is not .*; supported: silu,",
    ),
    "odd part of a head": ("gpt_neox", dict(rotary_pct=0.4), "partial_rotary_factor: 3 of 8 elements of a head"),
    "bidirectional": ("gemma", dict(use_bidirectional_attention=True), "use_bidirectional_attention=True is not supp"),
    "short list of layers": (
        "smollm3",
        dict(no_rope_layers=[1, 0], layer_types=None),
        "transformers refuses config.json: list index",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_unsupported_option_is_refused_by_name(case, tmp_path):
    kind, options, message = REFUSED[case]
    tiny.causal(kind, dtype=torch.float32).save_pretrained(tmp_path)
    load(tmp_path)
    config(**options, **(dict(rope_parameters=None) if "rotary_pct" in options else {}))(tmp_path)
    with pytest.raises(ModelError, match=message):
        load(tmp_path)


# Files.


def test_config_defaults_are_those_of_transformers():
    sizes = dict(vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4)
    sizes["num_key_value_heads"] = 4
    shapes = {kind: DECODERS[kind].configure({"model_type": kind, **sizes}) for kind in DECODERS if kind != "gpt2"}
    assert shapes["mistral"].window == 4096 and shapes["qwen2"].window is None
    assert shapes["gemma"].head_dim == 256 and shapes["gemma"].tied_head and not shapes["mistral"].tied_head
    assert shapes["qwen3"].head_dim == 128 and shapes["olmo2"].norm_eps == 1e-5
    assert len(shapes["gpt_neox"].rotary.inverse_frequencies) == 1  # a quarter of eight
    assert shapes["smollm3"].attention.unrotated == frozenset() and shapes["smollm3"].tied_head


@every_variant
def test_tensors_are_read_without_a_copy(name):
    model, _ = pair(name)
    family = FAMILIES[model.config.model_type]
    for stored, tensor in model.state_dict().items():
        memory = tensor.untyped_storage().data_ptr()
        parts = list(family.read(stored, tensor))
        assert parts and all(part.untyped_storage().data_ptr() == memory for _, part in parts)
