"""Language models around another one: those that count what they are fed, and those that fail."""

from paceline.models.base import LogitsFor


class Wrapped:
    """Another language model, ``lm``, called through a method of its own."""

    def __init__(self, lm):
        self.lm = lm

    def __getattr__(self, name):
        return getattr(self.lm, name)


class Counted(Wrapped):
    """A language model that counts the tokens it is fed: the valid nodes of its calls."""

    def __init__(self, lm):
        super().__init__(lm)
        self.fed = 0

    def __call__(self, tree, cache, *, start=0, **options):
        self.fed += int(tree.valid[:, start:].sum())
        return self.lm(tree, cache, start=start, **options)

    def take(self):
        """Tokens fed since the last call."""
        fed, self.fed = self.fed, 0
        return fed


class Breaking(Wrapped):
    """A language model that raises ``error`` when a prompt holds the token ``poison``, or on its call number ``at``."""

    def __init__(self, lm, error, *, poison=None, at=None):
        super().__init__(lm)
        self.error, self.poison, self.at, self.calls = error, poison, at, 0

    def __call__(self, tree, cache, *, logits_for, **options):
        self.calls += 1
        poisoned = (
            logits_for is LogitsFor.NONE
            and self.poison is not None
            and bool((tree.tokens[tree.valid] == self.poison).any())
        )
        if poisoned or self.calls == self.at:
            raise self.error
        return self.lm(tree, cache, logits_for=logits_for, **options)
