"""The loss of a draft that shares its target's encoder, against the logits of the decoder that serves."""

from dataclasses import replace

import pytest
import torch

from paceline.drafters.none import NoDrafter
from paceline.models.base import LogitsFor
from paceline.models.copied_layers import copy_layers
from paceline.models.prefill import feed
from paceline.train.batches import SourceBatch, TrainBatch
from paceline.train.tasks import Distillation
from paceline.train.tasks.base import StepRandomness
from paceline.train.tasks.losses import DistillationLoss
from paceline.train.tasks.terms import num_learned
from tests.harness import decoder_for, request
from tests.models.encoder_decoders import KINDS, START, VOCAB, context, pair
from tests.models.test_encoder_decoders import counted

SIZES, OUTPUTS, LENGTH = (7, 1, 4), (9, 3, 6), 9  # of sources, of outputs with their start, of a row
TERMS = {"text": 1.0, "kl": 0.8}
RANDOMNESS = StepRandomness(seed=0, step=0, first_row=0)


def contexts(kind):
    return [context(kind, 600 + row, size) for row, size in enumerate(SIZES)]


def batch(kind):
    """Outputs behind the start token, padded, and sources of several lengths."""
    tokens = torch.randint(5, VOCAB, (len(SIZES), LENGTH + 1), generator=torch.Generator().manual_seed(1))
    tokens[:, 0] = START
    size = torch.tensor(OUTPUTS)[:, None]
    learned = (torch.arange(LENGTH + 1) < size) & (torch.arange(LENGTH + 1) > 0)
    sources = [next(iter(one.inputs.values())) for one in contexts(kind)]
    return TrainBatch(
        tokens=tokens * (torch.arange(LENGTH + 1) < size), learned=learned, source=SourceBatch.of(sources)
    )


def made(kind):
    """A task in float64 whose draft is near its target."""
    target = pair(kind)[1]
    draft = copy_layers(target, (0, -1)).double()
    return Distillation(target=target, draft=draft, loss=DistillationLoss(terms=TERMS))


@torch.no_grad()
def served(lm, kind, tokens):
    """Logits of each row's output before its last token, from caches as they are when serving."""
    found = []
    for given, row, size in zip(contexts(kind), tokens, OUTPUTS, strict=True):
        ids = row[: size - 1].tolist()
        decoder = decoder_for(NoDrafter(), "coupled", target=lm, rows=1)
        reading = decoder.begin([replace(request(ids), context=given)], [0])
        cache = decoder.cache.storage.view(reading.admission.rows)
        fed = feed(lm, cache, torch.tensor([ids]), torch.tensor([len(ids)]), len(ids), logits_for=LogitsFor.ALL)
        found.append(fed.logits[0])
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_that_of_the_logits_that_are_served(kind):
    task, given = made(kind), batch(kind)
    losses = []
    for row, (own, theirs) in enumerate(
        zip(served(task.draft, kind, given.tokens), served(task.frozen, kind, given.tokens), strict=True)
    ):
        q, p = own.log_softmax(-1), theirs.log_softmax(-1)
        said = given.tokens[row, 1 : OUTPUTS[row]]
        entropy = -q.gather(1, said[:, None]).sum()
        losses.append(float(TERMS["text"] * entropy + TERMS["kl"] * (p.exp() * (p - q)).sum()))
    output = task(given, RANDOMNESS)
    assert float(num_learned(given)) == sum(OUTPUTS) - len(OUTPUTS)
    torch.testing.assert_close(output.rows, torch.tensor(losses, dtype=output.rows.dtype), rtol=2e-5, atol=1e-4)


@pytest.mark.parametrize("kind", ["t5", "bart", "whisper"])
def test_gradients_reach_the_drafts_decoder_alone(kind, monkeypatch):
    task = made(kind)
    read = counted(task.frozen, monkeypatch)
    task(batch(kind), RANDOMNESS).loss.backward()
    assert sum(read) == len(SIZES), "the encoder is run once for both"
    trained = task.trained()
    assert all(parameter.grad is not None and bool(parameter.grad.any()) for parameter in trained.values())
    assert not any("encoder" in name for name in trained)
    assert all(parameter.grad is None for parameter in task.frozen.parameters())
    # What the encoder reads with must stay equal to the target's.
    assert ("draft.embed.weight" in trained) == (kind == "whisper")
    untrained = {name for name, _ in task.named_parameters()} - trained.keys()
    assert untrained == (set() if kind == "whisper" else {"draft.embed.weight"})


def test_padding_of_sources_and_outputs_changes_nothing():
    task, given = made("bart"), batch("bart")
    whole = task(given, RANDOMNESS)
    wider = torch.nn.functional.pad(given.source.inputs, (0, 4), value=9)
    longer = replace(
        given,
        tokens=torch.where(given.learned | (given.tokens == START), given.tokens, 8),
        source=SourceBatch(inputs=wider, length=given.source.length),
    )
    torch.testing.assert_close(task(longer, RANDOMNESS).rows, whole.rows, rtol=1e-6, atol=1e-6)
    short = replace(given, source=SourceBatch(inputs=given.source.inputs, length=given.source.length.clamp(max=3)))
    assert not torch.allclose(task(short, RANDOMNESS).rows, whole.rows, rtol=1e-6, atol=1e-6)
