"""Heads that draft by rows of an LM head over all tokens: as the whole head that may choose no other token."""

import pytest
import torch

from paceline.core.tree import Draw
from paceline.draft_heads import DRAFT_HEADS
from paceline.drafters import DRAFTERS
from paceline.drafters.tree.shapes import Topology
from paceline.models.backend import pack_weights
from paceline.models.cpu.decoder import CpuDecoder
from paceline.models.cpu.packed_weights import PackedLinear
from paceline.models.draft_vocab import check_draft_ids
from tests import tiny as models
from tests.drafters.fused import check, native
from tests.drafters.pairs import randomised
from tests.drafters.test_early_exit import head_of as exit_of
from tests.harness import expected, request, run

IDS = [token for token in range(61) if token % 3 != 1][:38]
KINDS = {
    "prophet": dict(num_states=2),
    "prophet of another width": dict(width=24, num_blocks=2),
    "linear_prophet": {},
    "early_exit": dict(exit_layer=1),
    "early_exit without blocks": dict(exit_layer=2, num_blocks=0),
    "early_exit with an LM head": dict(exit_layer=1, own_head=True),
    "early_exit, recycled": dict(exit_layer=1, recycle=True),
    "eagle": {},
    "mtp": {},
}
SHAPES = {"chain": None, "tree": Topology.branching((2, 1, 2))}
every_kind = pytest.mark.parametrize("kind", KINDS)


def heads_of(kind, target):
    """A head that drafts all tokens, and one of the same weights that drafts those of IDS."""
    head = DRAFT_HEADS.find(kind.partition(",")[0].partition(" ")[0])
    made = [
        head.make(head.Config(**KINDS[kind], **options), target, generator=torch.Generator().manual_seed(0))
        for options in ({}, {"draft_vocab_size": len(IDS)})
    ]
    whole, few = made[0] if kind == "early_exit without blocks" else randomised(made[0]), made[1]
    few.load_own_state({**whole.own_state(), "draft_ids": torch.tensor(IDS)})
    return whole, few


def masked(drafter):
    """``drafter`` with a probability of 0 for tokens that are not of IDS."""
    allowed = torch.full((61,), -torch.inf, dtype=torch.float64).index_fill(0, torch.tensor(IDS), 0.0)
    for name in ("read_root", "score_nodes"):
        method = getattr(drafter, name)
        setattr(drafter, name, lambda *given, method=method: method(*given) + allowed)
    return drafter


@pytest.mark.one_in(3)
@every_kind
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafts_are_those_of_the_whole_head_that_may_choose_no_other_token(kind, shape, temperature):
    _, target = models.target()
    whole, few = heads_of(kind, target)
    prompts = ([5], [9, 2, 7], [60, 0])
    asked = [request(p, max_tokens=16, temperature=temperature, seed=i) for i, p in enumerate(prompts)]
    drafter = DRAFTERS.find(few.kind)
    made = drafter(head=few, shape=SHAPES[shape])
    assert made.lm.vocab_size == len(IDS)
    found = run(made, "coupled", asked, k=3)
    wanted = run(masked(drafter(head=whole, shape=SHAPES[shape])), "coupled", asked, k=3)
    assert found.texts == wanted.texts == [expected(one) for one in asked]
    assert found.summary == wanted.summary and sum(found.summary.drafted) > 0


@every_kind
def test_training_logits_are_those_of_the_whole_head(kind):
    _, target = models.target()
    whole, few = heads_of(kind, target)
    tokens = torch.randint(61, (2, 9), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        hidden = target.causal(tokens, taps=whole.taps).hidden
    wanted, found = whole.unroll(tokens, hidden), few.unroll(tokens, hidden)
    torch.testing.assert_close(found.logits, wanted.logits[..., IDS], rtol=1e-11, atol=1e-9)
    assert found.draft_ids.tolist() == IDS and wanted.draft_ids is None
    found.logits.log_softmax(-1)[..., 3].sum().backward()
    own = {name: part for name, part in few.own_state().items() if name != "draft_ids"}
    assert all(part.grad is not None for part in own.values())


@pytest.mark.one_in(2)
@pytest.mark.parametrize("sampled", [0.0, 0.8])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "linear_prophet"])
def test_one_call_drafts_what_single_calls_do(kind, sampled):
    target = native()
    _, few = heads_of(kind, target.lm)
    make = lambda: DRAFTERS.find(few.kind)(head=few, lm=CpuDecoder(few.drafting_decoder))  # noqa: E731
    check(make, target, tolerance=1e-12, sampled=sampled)


@pytest.mark.parametrize("kind", ["prophet of another width", "early_exit", "early_exit without blocks"])
def test_rows_of_packed_weights_are_those_of_the_plain_ones(kind):
    plain = heads_of(kind, native(torch.bfloat16).lm)[1].drafting_decoder.head
    target = native(torch.bfloat16)
    pack_weights(target.lm)
    _, few = heads_of(kind, target.lm)
    few.requires_grad_(False)
    pack_weights(few.decoder, beside=target.lm)
    packed = few.drafting_decoder.head
    assert torch.equal(packed.weight, plain.weight)
    assert isinstance(packed, PackedLinear) and not isinstance(plain, PackedLinear)
    make = lambda: DRAFTERS.find(few.kind)(head=few, lm=CpuDecoder(few.drafting_decoder))  # noqa: E731
    check(make, target, tolerance=32 * torch.finfo(torch.bfloat16).eps, sampled=0.8)


def test_an_exit_that_is_the_rest_of_the_target_is_right_where_it_has_the_token():
    _, target = models.target()
    whole = exit_of(target)
    few = type(whole).make(
        whole.options.model_copy(update={"draft_vocab_size": len(IDS)}), target, generator=torch.Generator()
    )
    few.load_own_state({**whole.own_state(), "draft_ids": torch.tensor(IDS)})
    asked = [request([5, 9], max_tokens=24, temperature=0.0)]
    found = run(DRAFTERS.find("early_exit")(head=few, draws=frozenset({Draw.SHARED})), "coupled", asked, k=3)
    known = [token in IDS for token in expected(asked[0])]
    assert found.texts == [expected(asked[0])] and check_draft_ids(IDS, 61) == IDS
    assert sum(found.summary.accepted) >= sum(known) - found.steps
