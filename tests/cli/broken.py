"""A drafter that breaks its promise: it changes the newest token of the text."""

from paceline.cli.commands.demo import TABLE_TOKENS
from paceline.drafters.base import Drafter, StatelessDrafter
from paceline.drafters.model import ModelDrafter
from paceline.drafters.ngram import NgramDrafter


class Scribbler(Drafter):
    """As the draft model, until the text is ``after`` tokens longer than its prompt."""

    after = 10

    def __init__(self, *, lm, shape=None, draws=None):
        self.inner = ModelDrafter(lm=lm)
        self.draws, self.origins = self.inner.draws, self.inner.origins

    def start(self, setting):
        self.inner.start(setting)

    def prefill(self, batch, admission, hidden):
        self.inner.prefill(batch, admission, hidden)
        self.limit = int(batch.length[0]) + self.after

    def begin_step(self, batch, plan):
        self.inner.begin_step(batch, plan)

    def propose(self, batch, plan):
        return self.inner.propose(batch, plan)

    def observe(self, batch, tree, outcome, output):
        self.inner.observe(batch, tree, outcome, output)
        if int(batch.length[0]) > self.limit:
            batch.tokens.scatter_(1, batch.length[:, None] - 1, 1)


class LateScribbler(Scribbler):
    """Honest for as long as the timed runs are."""

    after = TABLE_TOKENS + 2


class ScribblingNgram(StatelessDrafter):
    """Prompt lookup that overwrites the newest token while it drafts."""

    origins = NgramDrafter.origins
    draws = NgramDrafter.draws

    def propose(self, batch, plan):
        if int(batch.steps[0]) == 3:
            batch.tokens.scatter_(1, batch.length[:, None] - 1, 1)
        return NgramDrafter().propose(batch, plan)
