"""transformers' own processors as an oracle: the same scores and the same distributions, option by option and
together.
"""

import pytest
import torch
from transformers.generation import logits_process as theirs

from paceline.core.sampling import Sampling, SamplingState
from tests.core.test_processing import CPU, NEVER, VOCAB, ours, random_logits

LAST, PAIR, TRIPLE = (3,), (2, 5), (2, 1, 4)
SAME = {
    "repetition penalty": (theirs.RepetitionPenaltyLogitsProcessor(1.4), dict(repetition_penalty=1.4)),
    "repetition reward": (theirs.RepetitionPenaltyLogitsProcessor(0.7), dict(repetition_penalty=0.7)),
    "no unigram twice": (theirs.NoRepeatNGramLogitsProcessor(1), dict(no_repeat_ngram=1)),
    "no bigram twice": (theirs.NoRepeatNGramLogitsProcessor(2), dict(no_repeat_ngram=2)),
    "no trigram twice": (theirs.NoRepeatNGramLogitsProcessor(3), dict(no_repeat_ngram=3)),
    "bad words": (
        theirs.NoBadWordsLogitsProcessor([list(LAST), list(PAIR), list(TRIPLE)]),
        dict(bias=tuple((one, NEVER) for one in (LAST, PAIR, TRIPLE))),
    ),
    "sequence bias": (
        theirs.SequenceBiasLogitsProcessor({LAST: 2.0, PAIR: -1.5, TRIPLE: 4.0, (1, 4): 0.5}),
        dict(bias=((LAST, 2.0), (PAIR, -1.5), (TRIPLE, 4.0), ((1, 4), 0.5))),
    ),
    "suppressed": (
        theirs.SuppressTokensLogitsProcessor([0, 4], device="cpu"),
        dict(bias=(((0,), NEVER), ((4,), NEVER))),
    ),
}
AT_BEGIN = {  # of the length of the prompt
    "suppressed at the beginning": (
        lambda num: theirs.SuppressTokensAtBeginLogitsProcessor([1, 6], num, device="cpu"),
        dict(late=((1, 1), (6, 1))),
    ),
    "no end before five": (
        lambda num: theirs.MinNewTokensLengthLogitsProcessor(num, 5, [2, 3], device="cpu"),
        dict(late=((2, 5), (3, 5))),
    ),
}


@pytest.mark.parametrize("name", [*SAME, *AT_BEGIN])
def test_scores_are_those_of_transformers(name):
    generator, changed = torch.Generator().manual_seed(1), 0
    for seed in range(60):
        sequence = torch.randint(VOCAB, (4 + seed % 9,), generator=generator).tolist()
        num_prompt = max(1, len(sequence) - seed % 7)
        scores = random_logits(1, seed=seed)
        processor, given = SAME.get(name) or (AT_BEGIN[name][0](num_prompt), AT_BEGIN[name][1])
        wanted = processor(torch.tensor([sequence]), scores.clone())
        if bool((wanted == NEVER).all()):
            continue
        torch.testing.assert_close(ours(scores, sequence, num_prompt, **given), wanted, rtol=0, atol=1e-12)
        changed += not torch.equal(wanted, scores)
    assert changed >= 5, "texts on which it does nothing"


WARPERS = {
    "typical": (theirs.TypicalLogitsWarper(mass=0.6), dict(typical_p=0.6)),
    "typical, little": (theirs.TypicalLogitsWarper(mass=0.1), dict(typical_p=0.1)),
    "epsilon": (theirs.EpsilonLogitsWarper(epsilon=0.08), dict(epsilon_cutoff=0.08)),
    "eta": (theirs.EtaLogitsWarper(epsilon=0.09, device="cpu"), dict(eta_cutoff=0.09)),
    "top-k": (theirs.TopKLogitsWarper(top_k=3), dict(top_k=3)),
    "top-p": (theirs.TopPLogitsWarper(top_p=0.7), dict(top_p=0.7)),
    "min-p": (theirs.MinPLogitsWarper(min_p=0.2), dict(min_p=0.2)),
}
EVERY = ("top-k", "top-p", "min-p", "typical", "epsilon", "eta")  # in transformers' order


def distribution_of(scores, **given):
    state = SamplingState(1, CPU)
    state.assign([0], [Sampling(temperature=1.3, **given)])
    return state.warp(scores[:, None])[:, 0].softmax(-1)


@pytest.mark.parametrize("names", [(name,) for name in WARPERS] + [EVERY, EVERY[1:4], EVERY[3:]], ids="+".join)
def test_distributions_are_those_of_transformers(names):
    given = {name: value for one in names for name, value in WARPERS[one][1].items()}
    fewer = 0
    for seed in range(60):
        scores = random_logits(1, seed=seed)
        theirs_now = scores / 1.3
        for name in names:
            theirs_now = WARPERS[name][0](torch.tensor([[1]]), theirs_now)
        torch.testing.assert_close(distribution_of(scores, **given), theirs_now.softmax(-1), rtol=0, atol=1e-12)
        fewer += int((theirs_now > NEVER).sum()) < VOCAB
    assert fewer >= 5
