"""The fuzzer's target, a random GPT-2 whose tokens are letters, so that text and tokens agree; and its drafters."""

import string
from functools import cache

import tokenizers
import torch
from tokenizers import decoders, models
from transformers import PreTrainedTokenizerFast

from paceline.api import Loaded
from paceline.draft_heads import DRAFT_HEADS
from paceline.drafters import DRAFTERS
from paceline.drafters.model import ModelDrafter
from paceline.drafters.tree.shapes import Confident, Topology
from paceline.models.backend import fastest
from paceline.text.tokenizer import Tokenizer
from paceline.verifiers import VERIFIERS
from tests import harness, tiny
from tests.drafters import test_early_exit as early_exit

LETTERS = string.ascii_letters[:37]
VOCAB = len(LETTERS)
EOS = (11,)
SHAPES = {
    "two paths": Topology.parallel(2, 3),
    "bushy": Topology(((0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0))),
    "confident": Confident(num_drafted=5, depth=3, width=2),
}


@cache
def model():
    """(transformers model, ours), float64; logits of both agree to the last digits."""
    known = tiny.gpt2(4, vocab_size=VOCAB)
    return known, tiny.native(known)


@cache
def draft():
    """The target with noise on its weights."""
    return tiny.noisy(model()[1], 0.1)


@cache
def tokenizer():
    """A letter is a token; what is no letter is none."""
    inner = tokenizers.Tokenizer(models.BPE(vocab={letter: at for at, letter in enumerate(LETTERS)}, merges=[]))
    inner.decoder = decoders.Fuse()
    return Tokenizer(inner=PreTrainedTokenizerFast(tokenizer_object=inner), name="letters")


def loaded(*, eager):
    """As an engine takes it."""
    return Loaded(
        lm=model()[1],
        tokenizer=tokenizer(),
        eos=EOS,
        name="letters",
        dtype=torch.float64,
        config={},
        enforce_eager=eager,
    )


@cache
def heads():
    """Heads of the target: those that the registered drafters' tests draft with, and early exits of other kinds."""
    target = model()[1]
    return {
        **{name: harness.tiny_drafter(name, target).head for name in DRAFT_HEADS.builtin},
        "recycling exit": early_exit.recycling(target),
        "exit of its own": early_exit.head_of(target, scale=0.12, exit_layer=2, own_head=True),
    }


@cache
def designs():
    """Every (drafter, verifier, shape of tree) that goes together; the shape is None for chains."""
    found = [(drafter, verifier, None) for drafter, verifier in harness.pairs()]
    found += [(name, verifier, None) for name in heads() for verifier in VERIFIERS.builtin if name not in DRAFT_HEADS]
    for verifier in VERIFIERS.builtin:
        kind = VERIFIERS.find(verifier)
        for name, shape in SHAPES.items() if kind.branches else ():
            if set(kind.wants) & shape.draws and (verifier != "spectr" or name == "two paths"):
                drawn = {which: drafter(which, name, eager=True).draws for which in ("model", *heads())}
                found += [(which, verifier, name) for which, draws in drawn.items() if draws & set(kind.wants)]
    return found


def drafter(name, shape, *, eager):
    """A fresh drafter for an engine of its own; ``eager`` keeps a head from the kernel."""
    shape = None if shape is None else SHAPES[shape]
    if name == "model":
        return ModelDrafter(lm=draft(), shape=shape)
    if name not in heads():
        return harness.tiny_drafter(name, model()[1])
    head = heads()[name]
    lm = head.decoder if eager else fastest(head.decoder)
    return DRAFTERS.find(head.kind)(head=head, lm=lm, shape=shape)
