"""Losses between two distributions, against their definitions."""

import pytest
import torch
import torch.nn.functional as F

from paceline.train.tasks.losses import LOSSES, DistillationLoss, LossInputs, cross_entropy

N, V = 7, 11


def logits(seed, count=N, scale=2.0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, V, generator=generator, dtype=torch.float64) * scale


def loss_inputs(own, wanted):
    text = torch.arange(len(own)) % V
    return LossInputs.of(own.log_softmax(-1), wanted.log_softmax(-1), text)


def reference(name, q, p, text):
    """From the definitions, in probabilities."""
    accepted = torch.minimum(p, q).sum(-1)
    kl = (p * (p / q).log()).sum(-1)
    tv = 1 - accepted
    rows = torch.arange(len(p))
    share = torch.exp(-3 * accepted)
    return {
        "text": -q[rows, text].log(),
        "argmax": -q[rows, p.argmax(-1)].log(),
        "kl": kl,
        "top_k": -(p * q.log()).sum(-1) + (p * q.log()).gather(-1, p.argmin(-1, keepdim=True))[:, 0],  # 10 of 11
        "tv": tv,
        "lk_alpha": -accepted.log(),
        "lk_lambda": share * kl + (1 - share) * tv,
    }[name]


@pytest.mark.parametrize("name", LOSSES)
def test_loss_matches_its_definition(name):
    both = loss_inputs(logits(1), logits(2))
    wanted = reference(name, both.draft.exp(), both.target.exp(), both.next_token)
    torch.testing.assert_close(LOSSES[name](both), wanted)


@pytest.mark.parametrize("name", sorted(LOSSES.keys() - {"text", "argmax", "top_k"}))
def test_equal_distributions_have_zero_loss(name):
    same = loss_inputs(logits(1), logits(1))
    torch.testing.assert_close(LOSSES[name](same), torch.zeros(N, dtype=torch.float64))
    assert (LOSSES[name](loss_inputs(logits(1), logits(2))) > 0.05).all()


@pytest.mark.parametrize("name", ["lk_alpha", "lk_lambda", "kl", "tv"])
def test_gradient_step_raises_acceptance(name):
    own, wanted = logits(1).requires_grad_(True), logits(2)
    before = loss_inputs(own, wanted).acceptance.mean()
    LOSSES[name](loss_inputs(own, wanted)).sum().backward()
    assert loss_inputs(own - 0.1 * own.grad, wanted).acceptance.mean() > before


def test_the_likeliest_tokens_are_all_where_there_are_no_more():
    both = loss_inputs(logits(1)[:, :6], logits(2)[:, :6])
    found = LOSSES["top_k"](both)
    torch.testing.assert_close(found, -(both.target.exp() * both.draft).sum(-1))


def test_acceptance_loss_has_a_gradient_for_disjoint_distributions():
    """Distributions whose overlap underflows in float32."""
    own = torch.tensor([[200.0, 0.0, 0.0]], requires_grad=True)
    wanted = torch.tensor([[0.0, 200.0, 0.0]])
    loss = LOSSES["lk_alpha"](loss_inputs(own, wanted))
    loss.sum().backward()
    assert torch.isfinite(loss).all() and own.grad.abs().max() > 0.1


def test_share_of_the_mixture_has_no_gradient():
    own, wanted = logits(1).requires_grad_(True), logits(2)
    both = loss_inputs(own, wanted)
    LOSSES["lk_lambda"](both).sum().backward()
    found, own.grad = own.grad.clone(), None
    both = loss_inputs(own, wanted)
    share = torch.exp(-3 * both.acceptance.detach())
    (share * LOSSES["kl"](both) + (1 - share) * LOSSES["tv"](both)).sum().backward()
    torch.testing.assert_close(found, own.grad)


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 100])
def test_chunked_loss_and_gradient_match_unchunked(chunk):
    wanted, index = logits(2, 4).float(), torch.tensor([3, 0, 1, 1, 2, 0, 3])
    text = torch.arange(N)
    ends = []
    for size in (1000, chunk):
        own = logits(1).float().requires_grad_(True)
        found = DistillationLoss(terms={"kl": 0.5, "tv": 0.25, "text": 2.0}, chunk=size)(own, wanted, index, text)
        (found.loss * torch.arange(N)).sum().backward()
        ends.append((*found, own.grad))
    torch.testing.assert_close(ends[0], ends[1])
    loss, acceptance, greedy, _ = ends[1]
    p, q = wanted.softmax(-1)[index], logits(1).float().softmax(-1)
    mixture = sum(share * reference(name, q, p, text) for name, share in (("kl", 0.5), ("tv", 0.25), ("text", 2.0)))
    torch.testing.assert_close(loss, mixture)
    torch.testing.assert_close(acceptance, torch.minimum(p, q).sum(-1))
    assert torch.equal(greedy, (p.argmax(-1) == q.argmax(-1)).float()) and 0 < greedy.sum() + 1


def test_only_the_draft_logits_have_a_gradient():
    own, wanted = logits(1).requires_grad_(True), logits(2).requires_grad_(True)
    found = DistillationLoss(terms=dict.fromkeys(LOSSES, 1.0), chunk=3)(own, wanted, torch.arange(N), torch.arange(N))
    found.loss.sum().backward()
    assert wanted.grad is None and own.grad is not None
    assert not found.acceptance.requires_grad and not found.greedy.requires_grad


@pytest.mark.parametrize("chunk", [2, 100])
def test_chunked_cross_entropy_matches_unchunked(chunk):
    own, text = logits(1).float().requires_grad_(True), torch.arange(N)
    found = cross_entropy(own, text, chunk=chunk)
    torch.testing.assert_close(found, F.cross_entropy(own, text, reduction="none"))
    found.sum().backward()
    assert own.grad is not None


def test_unknown_and_missing_terms_are_refused():
    for terms, named in (({"l2": 1.0}, "'l2'"), ({}, "")):
        with pytest.raises(ValueError, match=rf"unknown terms \[{named}\]; give some of text, argmax, kl"):
            DistillationLoss(terms=terms)


@pytest.mark.parametrize("chunk", [3, 100])
def test_draft_vocabulary_has_the_renormalised_target_and_whole_acceptance(chunk):
    """Rows whose likeliest token is outside have no loss, and the text's tokens outside none of its cross-entropy."""
    ids, wanted, text = torch.tensor([0, 2, 3, 7, 10]), logits(2).float(), torch.arange(N)
    own = logits(1).float()[:, : len(ids)].requires_grad_(True)
    found = DistillationLoss(terms={"kl": 0.5, "text": 2.0}, chunk=chunk)(own, wanted, torch.arange(N), text, ids)
    p, q = wanted.softmax(-1), own.softmax(-1)
    inside = torch.tensor([one in ids for one in p.argmax(-1)])
    assert 0 < inside.sum() < N
    renormalised = p[:, ids] / p[:, ids].sum(-1, keepdim=True)
    said = torch.stack([-q[n, ids.tolist().index(n)].log() if n in ids else torch.tensor(0.0) for n in range(N)])
    kl = (renormalised * (renormalised / q).log()).sum(-1)
    torch.testing.assert_close(found.loss, torch.where(inside, 0.5 * kl + 2.0 * said, 0.0))
    whole = torch.zeros(N, V).index_copy(1, ids, q)
    torch.testing.assert_close(found.acceptance, torch.minimum(p, whole).sum(-1))
    assert torch.equal(found.greedy, (p.argmax(-1) == whole.argmax(-1)).float())
    found.loss.sum().backward()
    assert (own.grad.abs().amax(-1) > 0).tolist() == inside.tolist()


def test_all_ids_are_the_same_as_no_draft_vocabulary():
    own, wanted, loss = logits(1), logits(2), DistillationLoss(terms=dict.fromkeys(LOSSES, 1.0))
    plain = loss(own, wanted, torch.arange(N), torch.arange(N))
    torch.testing.assert_close(loss(own, wanted, torch.arange(N), torch.arange(N), torch.arange(V)), plain)
