"""Text-to-semantic models: speculative tokens are those of plain decoding by naive forwards, guided and not, in rows of
texts and outputs of different lengths.
"""

from dataclasses import replace

import pytest
import torch

import paceline
from paceline.core.guidance import Guidance
from paceline.draft_heads.early_exit import EarlyExitConfig, EarlyExitHead
from paceline.drafters.early_exit import EarlyExitDrafter
from paceline.drafters.model import ModelDrafter
from paceline.drafters.none import NoDrafter
from paceline.drafters.tree.shapes import Topology
from paceline.models import loading
from paceline.models.backend import fastest
from paceline.models.cpu.decoder import CpuDecoder
from tests.drafters.test_early_exit import head_of
from tests.harness import Alternating, decoder_for, expected, finish, request
from tests.models.semantic_models import END, EXIT, LONGEST, RAW, START, Naive, context, model

SOURCES = ([3, 1, 4, 1, 5, 9, 2], [], [8], [5, 3, 5, 8, 9, 7, 9, 3, 2])
PROMPTS = ([START], [START, 4, 4], [START], [START, 7])  # some begin with given semantic tokens
SCALE = 2.5


def asked(index, *, guided=False, **options):
    one = replace(request(PROMPTS[index], stop_tokens=(END,), **options), context=context(SOURCES[index]))
    if not guided:
        return one
    return replace(one, guidance=Guidance(scale=SCALE, prompt=tuple(PROMPTS[index]), context=context([])))


def naive(index, one, lm=None):
    scale = 1.0 if one.guidance is None else one.guidance.scale
    return expected(one, known(index, scale, lm))


_NAIVE = {}


def known(index, scale, lm=None):
    key = (id(lm), index, scale)
    if key not in _NAIVE:
        _NAIVE[key] = Naive(lm or model(), SOURCES[index], scale=scale)
    return _NAIVE[key]


def exit_head(lm, **options):
    """The head of the model that this family comes from: a feed-forward, a norm, and logits of its own."""
    config = EarlyExitConfig(exit_layer=EXIT, blocks="feed_forward", own_head=True, **options)
    head = EarlyExitHead.make(config, lm, generator=torch.Generator().manual_seed(1))
    for block in head.decoder.blocks:
        for part in (block.ffn.gate_up, block.ffn.down):
            part.weight.data.mul_(15)  # new ones say next to nothing
    return head


DRAFTERS = {
    "none": lambda lm: NoDrafter(),
    "an exit": lambda lm: EarlyExitDrafter(head=head_of(lm, exit_layer=EXIT, num_blocks=0)),
    "an exit with a feed-forward": lambda lm: EarlyExitDrafter(head=exit_head(lm)),
    "a tree of exits": lambda lm: EarlyExitDrafter(head=exit_head(lm), shape=Topology.branching((2, 2))),
    "the target": lambda lm: ModelDrafter(lm=lm),
}


@pytest.mark.parametrize("guided", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.each_value
def test_ragged_rows_have_the_tokens_of_naive_forwards(drafter, temperature, guided):
    lm = model()
    requests = [
        asked(index, guided=guided and index != 2, temperature=temperature, seed=index, max_tokens=20 - index)
        for index in range(4)
    ]
    rows = [2, 0, 3, 1]
    decoder = decoder_for(DRAFTERS[drafter](lm), "coupled", target=lm, rows=4, guidance=guided, max_length=40)
    decoder.admit(requests, rows)
    found = finish(decoder, rows=rows, prompts=PROMPTS)
    assert found.texts == [naive(index, one) for index, one in enumerate(requests)]
    assert all(START not in text for text in found.texts)
    if drafter != "none":
        assert sum(found.summary.accepted) > 0


def test_rows_draft_no_more_than_they_ask_for():
    lm = model()
    requests = [asked(index, num_draft_tokens=(None, 1, 0, 2)[index], max_tokens=16) for index in range(4)]
    decoder = decoder_for(DRAFTERS["an exit"](lm), "coupled", target=lm, rows=4)
    decoder.admit(requests, range(4))
    found = finish(decoder, rows=range(4), prompts=PROMPTS)
    assert found.texts == [naive(index, one) for index, one in enumerate(requests)]
    accepted = list(zip(*(report.num_accepted for report in found.reports), strict=True))
    assert [max(row) for row in accepted] == [3, 1, 0, 2]


def test_whole_sequences_have_the_logits_of_naive_forwards():
    """As in training: texts of several lengths side by side, one of them empty."""
    lm = model()
    tokens = torch.tensor([[START, 4, 4, 1, END], [START, 7, 0, 3, 12], [START, 1, 1, 1, 1], [START, 2, 5, 9, 6]])
    length = torch.tensor([len(source) for source in SOURCES])
    ids = torch.nn.utils.rnn.pad_sequence([context(source).inputs["input_ids"] for source in SOURCES], batch_first=True)
    with torch.no_grad():
        logits = lm.causal(tokens, source=lm.source_of(lm.encode_inputs(ids, length), length)).logits
    wanted = torch.cat([known(index, 1.0)(row[None]).logits for index, row in enumerate(tokens)])
    torch.testing.assert_close(logits, wanted, rtol=0, atol=1e-10)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("guided", [False, True])
@pytest.mark.parametrize("index", range(4))
def test_one_row_drops_what_was_rejected(index, guided):
    """Batch 1 is the case that the model's first implementation never truncated."""
    lm = model()
    one = asked(index, guided=guided, temperature=0.7, seed=5)
    decoder = decoder_for(DRAFTERS["an exit"](lm), "coupled", target=lm, guidance=guided, plan=Alternating(3, 1, 0, 2))
    decoder.admit([one], [0])
    assert finish(decoder, rows=[0], prompts=[PROMPTS[index]]).texts == [naive(index, one)]


@pytest.mark.parametrize("guided", [False, True])
def test_guidance_makes_a_difference_and_drafts_are_accepted_under_it(guided):
    lm = model()
    requests = [asked(index, guided=guided, max_tokens=16) for index in range(4)]
    decoder = decoder_for(DRAFTERS["an exit"](lm), "coupled", target=lm, rows=4, guidance=True)
    decoder.admit(requests, range(4))
    found = finish(decoder, rows=range(4), prompts=PROMPTS)
    other = [naive(index, asked(index, guided=not guided, max_tokens=16)) for index in range(4)]
    # Of an empty text there is nothing to be led away from.
    assert [one != two for one, two in zip(found.texts, other, strict=True)] == [True, False, True, True]
    drafted, accepted = sum(found.summary.drafted), sum(found.summary.accepted)
    assert accepted / drafted > (0.3 if guided else 0.6)


@pytest.mark.parametrize("guided", [False, True])
def test_the_kernel_runs_targets_and_heads(guided):
    lm = model()
    target, head = fastest(lm), exit_head(lm)
    runs = fastest(head.decoder)
    assert isinstance(target, CpuDecoder) and isinstance(runs, CpuDecoder)
    requests = [asked(index, guided=guided, temperature=float(index % 2), seed=index) for index in range(4)]
    summaries = []
    for own, run_by in ((target, runs), (lm, head.decoder)):
        drafter = EarlyExitDrafter(head=head, lm=run_by)
        decoder = decoder_for(drafter, "coupled", target=own, rows=4, guidance=guided)
        decoder.admit(requests, range(4))
        found = finish(decoder, rows=range(4), prompts=PROMPTS)
        assert found.texts == [naive(index, one) for index, one in enumerate(requests)]
        summaries.append(found.summary)
    assert sum(summaries[0].accepted) > 0 and summaries[0] == summaries[1], "the kernel drafts something else"


def test_an_output_that_ends_at_once_and_one_that_fills_the_capacity():
    lm = model()
    first = naive(0, asked(0))[0]
    whole = replace(asked(3, max_tokens=LONGEST - len(PROMPTS[3])), stop_tokens=())
    ended = replace(asked(0), stop_tokens=(first,))
    decoder = decoder_for(DRAFTERS["the target"](lm), "coupled", target=lm, rows=2, max_length=LONGEST)
    decoder.admit([ended, whole], [0, 1])
    found = finish(decoder, rows=[0, 1], prompts=[PROMPTS[0], PROMPTS[3]])
    assert found.texts == [[first], naive(3, whole)] and len(found.texts[1]) == LONGEST - 2


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    folder = tmp_path_factory.mktemp("semantic")
    loading.save(model(), RAW, folder, dtype=torch.float64)
    return folder


@pytest.mark.parametrize("scale", [1.0, SCALE])
def test_ids_come_back_per_request_and_stack_by_their_lengths(directory, scale):
    target = paceline.load(directory)
    assert target.eos == (END,) and target.start == (START,)
    options = dict(max_tokens=24, temperature=0, guidance_scale=scale)
    results = paceline.generate(target, list(SOURCES), drafter="early_exit:exit_layer=2", num_draft_tokens=3, **options)
    wanted = [
        expected(
            replace(request([START], max_tokens=24, stop_tokens=(END,)), context=context(source)),
            Naive(target.lm, source, scale=scale),
        )
        for source in SOURCES
    ]
    assert [list(result.token_ids) for result in results] == wanted
    ended = [END in tokens for tokens in wanted]
    assert any(ended) and not all(ended), "outputs of both kinds are needed"
    for strip in ((), target.eos):
        stacked = paceline.stack_outputs(results, pad_id=0, strip=strip)
        kept = [tokens[:-1] if strip and tokens[-1] == END else tokens for tokens in wanted]
        assert [row[own].tolist() for row, own in zip(stacked.token_ids, stacked.mask, strict=True)] == kept
        assert stacked.lengths.tolist() == list(map(len, kept))
        assert stacked.token_ids.shape == stacked.mask.shape == (4, max(map(len, kept)))
        assert (stacked.token_ids[~stacked.mask] == 0).all()


def test_given_semantic_tokens_and_a_batch_of_one(directory):
    target = paceline.load(directory)
    given = paceline.EncoderDecoderPrompt(inputs=SOURCES[0], prompt=[START, 4, 4])
    for scale in (1.0, SCALE):
        options = dict(max_tokens=12, temperature=0, guidance_scale=scale)
        (result,) = paceline.generate(target, given, drafter="early_exit:exit_layer=2", **options)
        one = request([START, 4, 4], max_tokens=12, stop_tokens=(END,))
        assert list(result.token_ids) == expected(one, Naive(target.lm, SOURCES[0], scale=scale))
        assert result.text is None


def test_files_keep_every_tensor(directory):
    lm = loading.load(directory)
    for name, tensor in model().state_dict().items():
        assert torch.equal(lm.state_dict()[name], tensor), name


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("eos_token_id", 3, "eos_token_id=3 is not supported by the native decoder, only 13"),
        ("decoder_start_token_id", 13, "decoder_start_token_id=13 is not supported by the native decoder, only 14"),
        ("num_key_value_heads", 3, "num_attention_heads=4 is no multiple of num_key_value_heads=3"),
        ("hidden_size", 34, "hidden_size=34 is no multiple of num_attention_heads=4: give head_dim"),
    ],
)
def test_configs_that_do_not_fit_are_refused(field, value, message):
    with pytest.raises(loading.ModelError, match=message):
        loading.configure({**RAW, field: value}, "x")


def test_prompts_that_do_not_fit_are_refused(directory):
    target = paceline.load(directory)
    with pytest.raises(ValueError, match=r"context 'input_ids' is int64 \[1\] with values 11..11"):
        paceline.generate(target, [[11]], max_tokens=2)
    with pytest.raises(ValueError, match="has no tokenizer: give the prompt as token ids"):
        paceline.generate(target, "text", max_tokens=2)
    with pytest.raises(ValueError, match="there are no tokens to copy"):
        paceline.generate(target, [[1]], drafter="copy", max_tokens=2)
