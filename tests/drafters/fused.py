"""What tests of heads that draft a chain in one kernel call share: the same run in that call and token by token."""

import copy
from dataclasses import replace

import pytest
import torch

from paceline.core.early_stop import LEVELS, StopRule
from paceline.drafters.tree.fused_chain import FusedChain
from paceline.engine.runner import ops_for
from paceline.models.cpu.decoder import CpuDecoder
from tests import tiny as models
from tests.harness import decoder_for, request
from tests.kernels.cpu.test_fused_drafting import NONE

PROMPTS = ([5, 9, 2], [1], [17, 4, 33, 17, 4], [2, 8], [60, 0, 7], [11] * 9, [3], [40, 41])
WAVES = ((2, 0, 7), (4,), (1, 3, 6, 5))  # rows that are admitted at once
RULE = StopRule(
    tuple(tuple(share * level / LEVELS for level in range(1, LEVELS + 1)) for share in (1.0, 0.9, 0.8)),
    (0.02, 0.05, 0.0),
)


def native(dtype=torch.float64):
    model = models.target()[1]
    return CpuDecoder(model if dtype is torch.float64 else copy.deepcopy(model).to(dtype))


def with_draft_ids(head, target):
    """``head``, drafting 40 tokens that are not the first ones if it has a draft vocabulary."""
    if head.draft_vocab is not None:
        ids = [token for token in range(target.vocab_size) if token % 3 != 1][:40]
        head.load_own_state({**head.own_state(), "draft_ids": torch.tensor(ids)})
    return head


def drafted(drafter, target, *, fused, sampled=0.0, processing=NONE, rule=None, verifier="coupled", waves=((0, 1, 2),)):
    """Trees, caches and notes of every step of a run, its texts, and what was asked of the head in each draft.

    The rows of each of the ``waves`` are admitted two steps after those of the one before.
    """
    count = 1 + max(max(wave) for wave in waves)
    ops = ops_for(torch.device("cpu"))
    decoder = decoder_for(drafter, verifier, target=target, k=4, rows=count, parts=dict(ops=ops))
    if not fused:
        drafter.growers = {depth: (grower, None) for depth, (grower, _) in drafter.growers.items()}
    asked = [
        replace(
            request(prompt, max_tokens=12 + 5 * (row % 3), temperature=sampled, seed=row),
            processing=processing[row % len(processing)],
        )
        for row, prompt in enumerate(PROMPTS[:count])
    ]
    steps, calls, counted = [], [], []
    propose, forward, fuse = drafter.propose, type(drafter.lm).__call__, getattr(drafter.lm, "draft_fused", None)
    read_root, score_nodes = drafter.read_root, drafter.score_nodes

    def counting(name, function):
        def call(*arguments, **options):
            if name != "forward" or arguments[0] is drafter.lm:
                counted.append(name)
            return function(*arguments, **options)

        return call

    def proposing(batch, plan):
        if rule is not None:
            batch.early_stop.plan(rule)
        counted.clear()
        tree = propose(batch, plan)
        calls.append(tuple(counted))
        cache = getattr(drafter, "cache", None)  # a prophet keeps nothing
        held = () if cache is None else (cache.storage.keys, cache.storage.values)
        kept = [part[:, row, : cache.length[row]] for part in held for row in range(count)]
        notes, drawn = batch.early_stop.notes.tolist(), torch.where(tree.valid, tree.tokens, 0)
        steps.append((tree.valid.clone(), drawn, notes, [one.clone() for one in kept]))
        return tree

    drafter.propose = proposing
    drafter.read_root, drafter.score_nodes = counting("root", read_root), counting("nodes", score_nodes)
    waiting, texts = list(waves), [[] for _ in asked]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(drafter.lm), "__call__", counting("forward", forward))
        if fuse is not None:
            patch.setattr(drafter.lm, "draft_fused", counting("fused", fuse))
        for step in range(200):
            if waiting and step % 2 == 0:
                wave = waiting.pop(0)
                decoder.admit([asked[row] for row in wave], wave)
            elif not waiting and not bool(decoder.batch.active.any()):
                break
            decoder.step()
            for text, new in zip(texts, decoder.results().tokens, strict=True):
                text.extend(new)
    assert step < 199 and all(texts)
    return steps, texts, calls, decoder.stats.summary()


@torch.inference_mode()
def check(make, target, *, tolerance=0.0, **options):
    """Drafts, texts, notes and acceptance of a run in one call per draft are those of one token by token."""
    fused = make()
    steps, texts, calls, summary = drafted(fused, target, fused=True, **options)
    assert all(isinstance(chain, FusedChain) for _, chain in fused.growers.values())
    assert set(calls) == {("fused",)}, "one call drafts for all rows"
    wanted, others, slowly, other = drafted(make(), target, fused=False, **options)
    assert "fused" not in {one for call in slowly for one in call}
    assert max(call.count("nodes") for call in slowly) == 3
    assert texts == others
    alike = [
        [row for row in range(len(one[0])) if torch.equal(one[1][row], two[1][row])]
        for one, two in zip(steps, wanted, strict=True)
    ]
    if differing := sum(len(one[0]) - len(rows) for one, rows in zip(steps, alike, strict=True)):
        # A token that is drawn by a number next to the edge of its share differs with the last bits of the shares.
        assert tolerance and differing <= sum(map(len, alike)) / 50
    else:
        assert summary == other
    for one, two, rows in zip(steps, wanted, alike, strict=True):
        assert torch.equal(one[0], two[0]) and one[2] == two[2]
        count = len(one[0])
        for part, (mine, its) in enumerate(zip(one[3], two[3], strict=True)):
            if part % count in rows:
                torch.testing.assert_close(mine, its, atol=tolerance, rtol=0)
    assert any(bool((tokens[:, 1:] != 0).any()) for _, tokens, _, _ in steps)
    return steps, summary


def check_ends_early(make, target, **options):
    """The same where a rule ends chains; some end in the middle."""
    steps, _ = check(make, target, sampled=0.8, rule=RULE, **options)
    assert any(notes != [0, 0, 0] for _, _, notes, _ in steps)
    drafts = {int(count) - 1 for valid, _, _, _ in steps for count in valid.sum(-1)}
    assert drafts - {-1, 0, 4}, "no chain ended in the middle"


def check_left_to_calls(drafter, target, **options):
    """What the call cannot draft is drafted token by token."""
    _, texts, calls, _ = drafted(drafter, target, fused=True, **options)
    assert all(chain is None for _, chain in drafter.growers.values())
    assert texts and "fused" not in {one for call in calls for one in call}
    assert any("root" in call for call in calls)
