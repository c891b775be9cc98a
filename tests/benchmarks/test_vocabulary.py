import warnings
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM

import paceline
from benchmarks.__main__ import main
from benchmarks.inflate import vocabulary
from benchmarks.inflate.model import inflate, inflate_to
from benchmarks.inflate.vocabulary import NUM_MIXED, widen_vocabulary
from benchmarks.inflate.widths import count_parameters
from paceline.api import embedded_pair, load
from paceline.api.prompts import encode
from paceline.bench.peers.transformers import ASSISTED, Transformers
from paceline.bench.suites import prompts_of
from paceline.bench.sweep import Cell
from paceline.bench.workbench import ModelBench, check_peers
from paceline.models.native.fused_weights import split_parts
from tests import tiny
from tests.api.checkpoints import pair

TOKENS = torch.arange(2 * 40).reshape(2, 40) * 7 % tiny.VOCAB
WIDE = 300


def parts(lm):
    return split_parts(lm.config, lm.state_dict())


def head(lm):
    state = parts(lm)
    return state.get("head.weight", state["embed.weight"]).double()


def directions(rows, generator):
    """What a head may read at its worst: every row of it, their opposites, and anything."""
    anything = torch.randn(500, rows.shape[1], generator=generator, dtype=torch.float64)
    return torch.cat([rows, -rows, anything, -rows.mean(0, keepdim=True)])


def overtakes(rows, old):
    """How far a row from ``old`` on gets above all rows before it, in the worst direction."""
    logits = directions(rows, torch.Generator().manual_seed(1)) @ rows.t()
    return float((logits[:, old:].max(-1).values - logits[:, :old].max(-1).values).max())


@pytest.mark.parametrize("tied", [False, True])
def test_old_ids_keep_their_logits_and_new_ones_never_win(tied):
    lm = tiny.native(tiny.llama(tie_word_embeddings=tied))
    for model, bound in ((lm, 1e-12), (tiny.native(tiny.llama(tie_word_embeddings=tied)).float(), 1e-5)):
        wanted, wide = model.causal(TOKENS).logits, widen_vocabulary(model, WIDE)
        logits = wide.causal(TOKENS).logits
        assert logits.shape[-1] == WIDE == wide.vocab_size and wide.dtype == model.dtype
        assert float((logits[..., : tiny.VOCAB] - wanted).abs().max()) < bound
        assert int(logits.argmax(-1).max()) < tiny.VOCAB
        assert wide.config.tied_head == tied


@pytest.mark.parametrize("make", [tiny.llama, tiny.gpt2])
def test_no_hidden_state_makes_a_new_id_win(make):
    rows = head(widen_vocabulary(tiny.native(make()), WIDE))
    assert overtakes(rows, tiny.VOCAB) < 0


def test_rows_that_are_no_means_would_win_somewhere():
    """The test above sees copies that are shrunken, grown or opposite, and means whose weights do not sum to 1.

    All rows lie on one side, as no mean of them is zero then: a shrunken copy is another mean where one is.
    """
    old = head(tiny.native(tiny.llama())) + 0.5
    mixed = vocabulary._mix(old, *vocabulary._means(len(old), 200, torch.Generator().manual_seed(0)))
    for wrong in (0.5 * old, 0.99 * old, 1.01 * old, -old, 0.9 * mixed):
        assert overtakes(torch.cat([old, wrong]), len(old)) > 0
    assert overtakes(torch.cat([old, mixed]), len(old)) < 0


def test_weights_are_means_of_ids_taken_equally_often():
    chosen, weights = vocabulary._means(61, 239, torch.Generator().manual_seed(0))
    assert chosen.shape == (239, NUM_MIXED) and float(weights.min()) > 0
    assert torch.allclose(weights.sum(-1), torch.ones(239, dtype=torch.float64), rtol=0, atol=1e-12)
    often = torch.bincount(chosen.flatten(), minlength=61)
    assert int(often.max() - often.min()) <= 1


def test_no_new_row_is_cheap():
    """None is zero, none is another's copy, and none is made of zeros."""
    wide = widen_vocabulary(tiny.native(tiny.llama()), WIDE)
    for name in ("embed.weight", "head.weight"):
        rows = parts(wide)[name][tiny.VOCAB :]
        assert int((rows == 0).sum()) == 0 and len(torch.unique(rows, dim=0)) == len(rows)
        assert rows.norm(dim=1).min() > 0.02 * parts(wide)[name][: tiny.VOCAB].norm(dim=1).median()


def test_trained_models_have_a_margin_in_their_own_texts():
    """Hidden states of real texts, in the precision that rounds most."""
    target = load(embedded_pair()[0], dtype="bfloat16")
    wide, old = widen_vocabulary(target.lm, 8192), target.lm.vocab_size
    params = paceline.SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)
    for prompt in prompts_of("mixed", 3, seed=2):
        text = encode(target, prompt) + list(paceline.generate(target, prompt, params)[0].tokens)
        with torch.inference_mode():
            logits = wide.causal(torch.tensor([text])).logits.float()
        margin = logits[..., :old].max(-1).values - logits[..., old:].max(-1).values
        assert float(margin.min()) > 1


def test_widened_models_can_be_inflated():
    lm = tiny.native(tiny.llama())
    large = inflate(widen_vocabulary(lm, WIDE), hidden_size=96, ffn_size=100)
    logits, wanted = large.causal(TOKENS).logits, lm.causal(TOKENS).logits
    assert float((logits[..., : tiny.VOCAB] - wanted).abs().max() / wanted.abs().max()) < 1e-9
    assert int(logits.argmax(-1).max()) < tiny.VOCAB
    assert overtakes(head(large), tiny.VOCAB) < 0
    sized = inflate_to(widen_vocabulary(lm, 1000), num_parameters=400_000)
    assert abs(count_parameters(sized.config) / 400_000 - 1) < 0.05


@pytest.mark.parametrize("size", [0, tiny.VOCAB - 1, tiny.VOCAB])
def test_vocabularies_that_are_no_larger_are_refused(size):
    with pytest.raises(ValueError, match=f"vocab_size={size} is not above the model's own {tiny.VOCAB}"):
        widen_vocabulary(tiny.native(tiny.llama()), size)


@pytest.fixture(scope="module")
def widened_pair(tmp_path_factory):
    """Target of half a million parameters and draft as it is, both of 2,000 token ids, by the command."""
    folder = tmp_path_factory.mktemp("pair")
    words = ("--vocab", "2000", "--dtype", "float64")
    target = ("--model", str(pair().target), "--output", str(folder / "target"), "--parameters", "0.8M")
    assert main(["inflate", *target, *words]) == 0
    assert main(["inflate", "--model", str(pair().draft), "--output", str(folder / "draft"), *words]) == 0
    return folder / "target", folder / "draft"


def test_the_command_widens_both_and_transformers_reads_them(widened_pair):
    small = load(pair().target)
    for path, source in zip(widened_pair, (pair().target, pair().draft), strict=True):
        theirs, tokens = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64), torch.arange(30)[None]
        with torch.no_grad():
            logits, wanted = theirs(tokens).logits, load(source).lm.causal(tokens).logits
        # transformers computes its norms in float32 whatever the model's precision
        assert float((logits[..., : wanted.shape[-1]] - wanted).abs().max() / wanted.abs().max()) < 1e-5
        card = (path / "README.md").read_text()
        assert "2,000 token ids" in card and "decode greedily" in card
    params = paceline.SamplingParams(max_tokens=30, temperature=0.0)
    wide = load(widened_pair[0])
    assert wide.tokenizer.size == small.tokenizer.size
    texts = [paceline.generate(model, "def add(", params)[0].tokens for model in (small, wide)]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("draft", ["widened", "as it was"])
def test_drafts_widened_or_not_keep_text_and_acceptance(widened_pair, draft):
    params = paceline.SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True)
    drafts = {"widened": widened_pair[1], "as it was": pair().draft}
    found = [
        paceline.generate(load(target), "def add(", params, drafter=load(drafter), num_draft_tokens=3)[0]
        for target, drafter in ((pair().target, pair().draft), (widened_pair[0], drafts[draft]))
    ]
    assert found[0].tokens == found[1].tokens
    assert found[0].stats.summary.accepted == found[1].stats.summary.accepted


def test_peers_need_as_many_ids_in_both(widened_pair):
    target, draft = (load(path) for path in widened_pair)
    with pytest.raises(ValueError, match="2000 token ids of the target and"):
        check_peers(target, load(pair().draft))
    check_peers(target, draft)
    check_peers(target, None)
    cell = Cell(drafter=ASSISTED, num_draft_tokens=2, batch_size=1, temperature=0.0, max_tokens=8)
    bench = ModelBench(
        target=target,
        draft=draft,
        target_path=widened_pair[0],
        draft_path=widened_pair[1],
        prompts=[target.tokenizer.encode("def add(")],
        seed=0,
    )
    bench = replace(bench, peers=[Transformers(setting=bench.setting())])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="transformers")
        sample = bench.candidate("own", cell).run()
    assert sample.tokens == bench.plain("plain", cell).run().tokens


def test_the_command_wants_something_to_do(tmp_path, capsys):
    words = ["inflate", "--model", str(pair().target), "--output", str(tmp_path / "large")]
    assert main(words) == 2 and "neither --parameters nor --vocab" in capsys.readouterr().err
    assert main([*words, "--vocab", "3"]) == 2 and "is not above" in capsys.readouterr().err
    assert not (tmp_path / "large").exists()
