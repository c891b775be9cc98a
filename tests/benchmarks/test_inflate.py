import json
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM

import paceline
from benchmarks.__main__ import main
from benchmarks.inflate.command import read_count, write
from benchmarks.inflate.model import _Random as Random
from benchmarks.inflate.model import inflate, inflate_to
from benchmarks.inflate.widths import choose_widths, count_parameters, widened
from paceline.api import load
from paceline.core.plan import Fixed
from paceline.core.request import Request
from paceline.decode import Decoder
from paceline.drafters.model import ModelDrafter
from paceline.models import loading
from paceline.models.loading import ModelError
from paceline.models.native.fused_weights import split_parts
from paceline.verifiers.coupled import Coupled
from tests import tiny
from tests.api.checkpoints import pair

TOKENS = torch.arange(2 * 40).reshape(2, 40) * 7 % tiny.VOCAB
WIDTHS = [
    dict(hidden_size=96, ffn_size=100),
    dict(hidden_size=96, ffn_size=48, num_heads=6),  # three groups of two
    dict(hidden_size=36, ffn_size=150, num_heads=12, num_kv_heads=4),  # four groups of three
    dict(hidden_size=40, ffn_size=49, num_heads=10, num_kv_heads=2),  # two groups of five
    dict(hidden_size=240, ffn_size=512, num_heads=15, num_kv_heads=5),
]


def small(**overrides):
    """A Llama whose norm weights matter, as those of a trained one do."""
    model = tiny.llama(rms_norm_eps=1e-3, **overrides)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(torch.rand(parameter.shape, generator=generator) + 0.5)
    return tiny.native(model)


def difference(found, wanted):
    """The largest, relative to the largest logit."""
    return float((found - wanted).abs().max() / wanted.abs().max())


def greedy(target, draft, num_draft_tokens=4):
    decoder = Decoder(
        target=target,
        drafter=ModelDrafter(lm=draft),
        verifier=Coupled(),
        plan=Fixed(num_draft_tokens),
        rows=2,
        max_length=100,
    )
    decoder.admit([Request(tokens=row[:8].tolist(), max_tokens=60) for row in TOKENS], range(2))
    while bool(decoder.batch.active.any()):
        decoder.step()
    return decoder.batch.tokens[:, :68].tolist(), decoder.stats.summary()


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("widths", WIDTHS)
def test_function_is_kept(widths, tied):
    lm = small(tie_word_embeddings=tied)
    wanted = lm.causal(TOKENS).logits
    large = inflate(lm, **widths)
    assert (large.config.hidden_size, large.config.ffn_size) == (widths["hidden_size"], widths["ffn_size"])
    assert not large.config.tied_head and large.dtype == torch.float64
    assert difference(large.causal(TOKENS).logits, wanted) < 1e-9
    single = inflate(lm.float(), **widths)
    assert single.dtype == torch.float32
    assert difference(single.causal(TOKENS).logits.double(), wanted) < 1e-5


def forgotten_eps(config, *arguments):
    """Widths with the eps of the narrow model."""
    return replace(widened(config, *arguments), norm_eps=config.norm_eps)


def unequal_shares(self, columns, source):
    """Shares of heads and channels that add up to all but the last one's noise."""
    shares = SPLIT(self, columns, source)
    shares[:, -1] += columns.std() / 100
    return shares


def whole_shares(self, columns, source):
    """Copies that each have all of it."""
    return columns[:, source]


SPLIT = Random.split
MISTAKES = [
    ("benchmarks.inflate.model.widened", forgotten_eps),
    ("benchmarks.inflate.model._Random.split", unequal_shares),
    ("benchmarks.inflate.model._Random.split", whole_shares),
]


@pytest.mark.parametrize(("name", "mistake"), MISTAKES, ids=lambda value: getattr(value, "__name__", ""))
@pytest.mark.parametrize("widths", WIDTHS)
def test_mistakes_show_in_the_function(monkeypatch, widths, name, mistake):
    """An eps that is not scaled and shares that do not sum are far beyond what the tests of the function allow."""
    monkeypatch.setattr(name, mistake)
    lm = small()
    assert difference(inflate(lm, **widths).causal(TOKENS).logits, lm.causal(TOKENS).logits) > 1e-4


def test_shares_of_every_column_sum_to_it():
    generator = torch.Generator().manual_seed(0)
    columns = torch.randn(5, 3, 2, dtype=torch.float64, generator=generator)
    source = torch.tensor([0, 1, 2, 0, 1, 0])
    shares = Random(generator, torch.device("cpu")).split(columns, source)
    assert torch.allclose(torch.zeros_like(columns).index_add(1, source, shares), columns, rtol=0, atol=1e-12)
    assert (shares[:, 0] - shares[:, 3]).abs().min() > 0


@pytest.mark.parametrize("scale", [1e-2, 1.0])
def test_eps_is_scaled_with_the_width(scale):
    """Embeddings as small as eps: a norm there is all but decided by it."""
    lm = small()
    state = split_parts(lm.config, lm.state_dict())
    state["embed.weight"] *= scale
    lm = loading.build(lm.config, state)
    large = inflate(lm, hidden_size=96, ffn_size=100)
    assert large.config.norm_eps == pytest.approx(lm.config.norm_eps / 3)
    assert difference(large.causal(TOKENS).logits, lm.causal(TOKENS).logits) < 1e-9


def test_multi_head_attention_and_one_key_value_head_are_widened_too():
    for kv_heads in (1, 4):
        lm = small(num_key_value_heads=kv_heads)
        large = inflate(lm, hidden_size=64, ffn_size=64, num_heads=8)
        assert large.config.num_kv_heads == 2 * kv_heads
        assert difference(large.causal(TOKENS).logits, lm.causal(TOKENS).logits) < 1e-9


def test_text_and_acceptance_stay():
    lm = small()
    draft = tiny.noisy(lm, 0.1)
    text, summary = greedy(lm, draft)
    assert greedy(inflate(lm, hidden_size=80, ffn_size=96, num_heads=8), draft) == (text, summary)
    assert 0.2 < summary.acceptance_rate < 1


def test_seed_decides_the_weights_and_not_the_function():
    lm = small()
    one, same, other = (inflate(lm, hidden_size=64, ffn_size=64, seed=seed) for seed in (1, 1, 2))
    weights = [model.blocks[0].ffn.down.weight for model in (one, same, other)]
    assert torch.equal(weights[0], weights[1]) and difference(weights[2], weights[0]) > 0.1


@pytest.mark.parametrize("widths", WIDTHS)
def test_no_channel_is_zero_and_no_two_are_one(widths):
    large = inflate(small().float(), **widths)
    for name, matrix in split_parts(large.config, large.state_dict()).items():
        if "norm" in name:
            assert torch.equal(matrix, torch.ones_like(matrix)), name
            continue
        assert int((matrix == 0).sum()) == 0, name
        for axis in (0, 1):
            lengths = matrix.norm(dim=axis)
            assert lengths.min() > 0.1 * lengths.median(), (name, axis)
    down = large.blocks[0].ffn.down.weight
    assert len(torch.unique(down, dim=1).t()) == down.shape[1]


def test_parameters_come_near_what_was_asked_for():
    lm = small()
    for number in (120_000, 400_000, 3_000_000):
        large = inflate_to(lm, num_parameters=number)
        assert abs(sum(p.numel() for p in large.parameters()) / number - 1) < 0.05
        assert large.config.hidden_size % 64 == 0 and large.config.ffn_size % 64 == 0
    shapes = [choose_widths(lm.config, 10**power) for power in (6, 8)]
    assert all(abs(count_parameters(shape) / 10**power - 1) < 0.05 for shape, power in zip(shapes, (6, 8), strict=True))
    assert all(1 < shape.ffn_size / shape.hidden_size < 2.2 for shape in shapes)  # 1.5 before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (dict(hidden_size=31, ffn_size=64), "hidden_size=31"),
        (dict(hidden_size=0, ffn_size=64), "hidden_size=0"),
        (dict(hidden_size=64, ffn_size=47), "ffn_size=47"),
        (dict(hidden_size=64, ffn_size=64, num_heads=3), "num_heads=3"),
        (dict(hidden_size=64, ffn_size=64, num_kv_heads=1), "num_kv_heads=1"),
        (dict(hidden_size=64, ffn_size=64, num_heads=6), "num_heads=6 does not divide hidden_size=64"),
        (dict(hidden_size=63, ffn_size=64, num_heads=9), "num_heads=9 over num_kv_heads=4"),
        (dict(hidden_size=64, ffn_size=64, num_heads=4, num_kv_heads=4), "2 query heads for each"),
    ],
)
def test_widths_that_cannot_be_had_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        inflate(small(), **options)


def test_other_layouts_and_sizes_below_the_model_are_refused():
    with pytest.raises(ValueError, match="Llama layout"):
        inflate(tiny.native(tiny.gpt2()), hidden_size=64, ffn_size=256)
    with pytest.raises(ValueError, match=r"num_parameters=1,000: .* begins at [\d,]+"):
        inflate_to(small(), num_parameters=1000)


def test_transformers_reads_what_was_written(tmp_path):
    source = pair().target
    lm = loading.load(source)
    large = inflate(lm, hidden_size=96, ffn_size=80, num_heads=6)
    write(large, tmp_path / "large", source=source, name="the target")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "large", dtype=torch.float64)
    with torch.no_grad():
        # transformers computes its norms in float32 whatever the model's precision
        assert difference(theirs(TOKENS).logits, lm.causal(TOKENS).logits) < 1e-5
    config = json.loads((tmp_path / "large" / "config.json").read_text())
    assert config["paceline_inflated_from"] == "the target" and config["torch_dtype"] == "float64"
    card = (tmp_path / "large" / "README.md").read_text()
    assert "Inflated from `the target`: costs are those of the large model, acceptance is real." in card
    assert f"{count_parameters(large.config):,}" in card
    ours = load(tmp_path / "large")
    assert ours.tokenizer.size == load(source).tokenizer.size and ours.eos == (0,)
    params = paceline.SamplingParams(max_tokens=30, temperature=0.0)
    texts = [paceline.generate(model, "def add(", params)[0].tokens for model in (load(source), ours)]
    assert texts[0] == texts[1]
    with pytest.raises(ModelError, match="holds a model already"):
        write(large, tmp_path / "large", source=source)
    with pytest.raises(ModelError, match="give the directory it is of"):
        write(inflate(small(), hidden_size=64, ffn_size=96), tmp_path / "other", source=source)


def test_command_writes_a_model_of_the_size_asked_for(tmp_path, capsys):
    words = ["inflate", "--model", str(pair().target), "--output", str(tmp_path / "large"), "--parameters"]
    assert main([*words, "0.5M"]) == 0
    shown = capsys.readouterr()
    assert "parameters in float32" in shown.out and "layer 3 of 3\n" in shown.err
    lm = loading.load(tmp_path / "large")
    assert lm.dtype == torch.float32 and abs(count_parameters(lm.config) / 500_000 - 1) < 0.05
    assert main([*words, "0.5M"]) == 2 and "holds a model already" in capsys.readouterr().err


def test_counts_are_read_as_people_write_them():
    assert [read_count(text) for text in ("200M", "1.5b", "7500000", "64k")] == [2 * 10**8, 15 * 10**8, 7500000, 64000]
    for text in ("", "M", "many", "-3M", "inf", "nan"):
        with pytest.raises(ValueError, match="200M"):
            read_count(text)
