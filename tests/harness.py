"""What suites over every drafter and verifier share: how to build, run and compare."""

import importlib
from dataclasses import dataclass, fields
from functools import cache

import pytest
import torch

from paceline.agreement import agree
from paceline.core.cache import View
from paceline.core.early_stop import LEVELS, StopRule
from paceline.core.plan import Fixed, Plan
from paceline.core.request import Processing, Request
from paceline.core.sampling import Sampling
from paceline.core.step import Finish, StepPlan
from paceline.core.tree import Draw
from paceline.decode import Decoder
from paceline.drafters import DRAFTERS
from paceline.drafters.base import Drafter, StatelessDrafter
from paceline.drafters.growing import GrowingDrafter
from paceline.drafters.host import HostDrafter, HostDrafting
from paceline.verifiers import VERIFIERS
from tests import reference, tiny


def tiny_drafter(name, target):
    """The small instance of a registered drafter that its own test file gives."""
    return importlib.import_module(f"tests.drafters.test_{name}").tiny(target)


def guessable_target(name):
    """A target whose sequence the drafter's tiny instance can guess: (transformers model, ours)."""
    return getattr(importlib.import_module(f"tests.drafters.test_{name}"), "guessable_target", tiny.target)()


def follows(name):
    """Whether a drafter's tiny instance is often right wherever a sequence goes, and not where it repeats itself
    alone.
    """
    return getattr(importlib.import_module(f"tests.drafters.test_{name}"), "FOLLOWS", False)


def learns(name):
    """Whether a drafter's drafts depend on the steps in which it was asked, and not on the sequence alone."""
    return getattr(importlib.import_module(f"tests.drafters.test_{name}"), "LEARNS", False)


def views_of(drafter):
    """The caches that a drafter writes to, whosever they are."""
    return [value for value in vars(drafter).values() if isinstance(value, View)]


@cache
def instances():
    """A tiny instance of each registered drafter, made once to be read: what drafts makes its own."""
    _, target = tiny.target()
    return {name: tiny_drafter(name, target) for name in DRAFTERS.builtin}


@cache
def pairs():
    """Every (drafter, verifier) of the registries that have a draw in common."""
    found = []
    for drafter, instance in instances().items():
        for verifier in VERIFIERS.builtin:
            try:
                agree(instance, VERIFIERS.find(verifier)())
            except ValueError:
                continue
            found.append((drafter, verifier))
    return tuple(found)


def cases(some=None):
    """The pairs, or ``some`` of them, as parameters. Of drafters that choose tokens each verifier soon takes one in
    turn, and one of those that sample.

    Under coupled all run soon; the pairs that are left are slow.
    """
    some = pairs() if some is None else some
    groups = {}
    for drafter in dict.fromkeys(drafter for drafter, _ in some):
        groups.setdefault(instances()[drafter].draws == {Draw.FIXED}, []).append(drafter)
    found = []
    for drafter, verifier in some:
        group = next(group for group in groups.values() if drafter in group)
        turn = group[VERIFIERS.builtin.index(verifier) % len(group)]
        soon = verifier == "coupled" or drafter == turn
        found.append(pytest.param(drafter, verifier, marks=[] if soon else [pytest.mark.slow]))
    return found


@cache
def families():
    """The class by which each drafter is most of what it is: its own, or the base that it shares with some others."""
    made = instances().items()
    own = {name: type(one.drafter if isinstance(one, HostDrafting) else one) for name, one in made}
    bases = {name: kind.__mro__[1] for name, kind in own.items()}
    general = (Drafter, GrowingDrafter, HostDrafter, StatelessDrafter)
    return {name: own[name] if bases[name] in general else bases[name] for name in own}


def family_cases(some=None):
    """As ``cases``, but of drafters of one family the last alone runs soon: for what the base does for all of them."""
    last = {family: name for name, family in families().items()}
    found = []
    for case in cases(some):
        name, verifier = case.values
        soon = not case.marks and last[families()[name]] == name
        found.append(pytest.param(name, verifier, marks=[] if soon else [pytest.mark.slow]))
    return found


class Alternating(Plan):
    """A plan that takes draft lengths in turn, ``most`` at most, so that drafters pause, fall behind and catch up."""

    def __init__(self, *lengths, most=5):
        self.lengths, self.most = lengths, most
        self.asked = 0  # steps

    @property
    def max_draft_tokens(self):
        return self.most

    def __call__(self):
        self.asked += 1
        return StepPlan(self.lengths[(self.asked - 1) % len(self.lengths)])


class PerRow(Plan):
    """Each row has the depth that ``choose`` makes of its tokens so far, the root last; ``most`` at most.

    Chains end early below the chance that ``least`` makes of the tokens (None: they do not), each token being as likely
    to be accepted as its level is high.
    """

    def __init__(self, choose, most, least=None):
        self.choose, self.most, self.least = choose, most, least
        self.batch = None  # to be set
        self.made = []  # the depths of every step

    @property
    def max_draft_tokens(self):
        return self.most

    def __call__(self):
        batch = self.batch
        sequences = [batch.tokens[row, : batch.length[row]].tolist() for row in range(batch.rows)]
        depths = tuple(min(self.most, self.choose(row, tokens)) for row, tokens in enumerate(sequences))
        self.made.append(depths)
        stop = None
        if self.least is not None:
            acceptance = tuple(level / LEVELS for level in range(1, LEVELS + 1))
            stop = StopRule((acceptance,) * batch.rows, tuple(map(self.least, sequences)))
        return StepPlan(max(depths), depths, stop=stop)


@dataclass(frozen=True)
class Run:
    """Sequences without prompts, and what happened on the way."""

    texts: list
    steps: int
    reports: list
    summary: object


def decoder_for(drafter, verifier, *, target=None, k=3, rows=1, max_length=96, plan=None, parts=None, guidance=False):
    """A Decoder over the tiny target; ``drafter`` is an instance, ``verifier`` a name."""
    return Decoder(
        target=target or tiny.target()[1],
        drafter=drafter,
        verifier=VERIFIERS.find(verifier)(),
        plan=plan or Fixed(k),
        rows=rows,
        max_length=max_length,
        guidance=guidance,
        **(parts or {}),
    )


@torch.inference_mode()
def planned_step(decoder, plan):
    """A step of the shape that ``plan`` says; the decoder's own plan is not asked."""
    decoder.begin_step(plan)
    tree = decoder.draft(plan)
    scores = decoder.score(tree)
    decoder.observe(tree, decoder.decide(tree, scores), scores)


def finish(decoder, *, rows, prompts, max_steps=500):
    """Step until ``rows`` have ended, checking the cache's invariant after every step."""
    reports, sequences = [], {row: [] for row in rows}
    while bool(decoder.batch.active[rows].any()):
        assert len(reports) < max_steps, "rows do not finish"
        decoder.step()
        assert (decoder.cache.length == decoder.batch.length - 1)[rows].all()
        report = decoder.results()
        reports.append(report)
        for row in rows:
            sequences[row].extend(report.tokens[row])
    for row, prompt in zip(rows, prompts, strict=True):
        whole = decoder.batch.tokens[row, : decoder.batch.length[row]].tolist()
        assert whole == [*prompt, *sequences[row]], "the report and the text differ"
    return Run([sequences[row] for row in rows], len(reports), reports, decoder.stats.summary(list(rows)))


def run(drafter, verifier, requests, **options):
    """Decode ``requests`` as one batch."""
    decoder = decoder_for(drafter, verifier, rows=len(requests), **options)
    if isinstance(decoder.plan, PerRow):
        decoder.plan.batch = decoder.batch
    rows = list(range(len(requests)))
    decoder.admit(requests, rows)
    return finish(decoder, rows=rows, prompts=[request.tokens for request in requests])


def serve_in_turn(decoder, queue, *, release=False):
    """Tokens of every request of ``queue``, which take the rows as they come free, ``release``d or not."""
    sequences, waiting, holds = [[] for _ in queue], list(range(len(queue))), {}
    while waiting or holds:
        for row in set(range(decoder.rows)) - holds.keys():
            if waiting:
                holds[row] = waiting.pop(0)
                decoder.admit([queue[holds[row]]], [row])
        decoder.step()
        report = decoder.results()
        for row in list(holds):
            sequences[holds[row]] += report.tokens[row]
            if report.finish[row] is not Finish.RUNNING:
                if release:
                    decoder.release([row])
                del holds[row]
    return sequences


def poison(views, generator):
    """Write large finite garbage into every slot of ``views`` that is not committed."""
    for view in views:
        slot = torch.arange(view.capacity)
        free = torch.cat((slot >= view.length[:, None], torch.ones(1, view.capacity, dtype=torch.bool)))
        for store in (view.storage.keys, view.storage.values):
            garbage = 1e3 * torch.randn(store.shape, generator=generator, dtype=store.dtype)
            store.copy_(torch.where(free[None, :, :, None, None], garbage, store))


def request(
    prompt,
    *,
    max_tokens=24,
    stop_tokens=(),
    min_tokens=0,
    num_draft_tokens=None,
    processing=None,
    logprobs=None,
    **options,
):
    """A Request in one line; ``processing`` and the rest by the names of Processing and Sampling."""
    return Request(
        tokens=prompt,
        max_tokens=max_tokens,
        stop_tokens=stop_tokens,
        min_tokens=min_tokens,
        num_draft_tokens=num_draft_tokens,
        logprobs=logprobs,
        sampling=Sampling(**options),
        processing=Processing(**(processing or {})),
    )


def naive_options(request):
    """What the naive reference has to know of a request's choices, as its keywords."""
    sampling = {field.name: getattr(request.sampling, field.name) for field in fields(Sampling)}
    processing = {field.name: getattr(request.processing, field.name) for field in fields(Processing)}
    return dict(
        stop=tuple(request.stop_tokens),
        min_tokens=request.min_tokens,
        processing=processing,
        **{**sampling, "order": request.sampling.order.name.lower()},
    )


_KNOWN = {}


def expected(request, model=None):
    """What the naive reference makes of a request."""
    model = model or tiny.target()[0]
    options = (request.max_tokens, request.min_tokens, tuple(request.stop_tokens), request.sampling, request.processing)
    key = (id(model), tuple(request.tokens), *options)
    if key not in _KNOWN:
        naive = naive_options(request)
        sequence = reference.decode(model, list(request.tokens), max_tokens=request.max_tokens, **naive)
        _KNOWN[key] = (sequence, model)  # kept alive: another model must not get its id
    return _KNOWN[key][0]
