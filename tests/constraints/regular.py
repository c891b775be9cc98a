"""Rules written by hand: regular languages over token ids, and what goes wrong."""

import torch

from paceline.core.constraint import Constraint, Grammar, Processor


class Language(Constraint):
    """``moves``: for every state, token -> state; a text begins in state 0. ``urges`` tokens are said to come."""

    def __init__(self, moves, *, size, urges=0):
        self.moves, self.size, self.urges = moves, size, urges

    def begin(self, prompt):
        return Automaton(self)


class Automaton(Grammar):
    """Where one text of a Language stands."""

    def __init__(self, language):
        self.language, self.states = language, [0]

    def advance(self, token):
        following = self.language.moves[self.states[-1]].get(token)
        if following is None:
            return False
        self.states.append(following)
        return True

    def rollback(self, count):
        assert 0 < count < len(self.states)
        del self.states[-count:]

    def forced(self):
        tokens, state = [], self.states[-1]
        for _ in range(self.language.urges):
            tokens.append(max(self.language.moves[state]))
            state = self.language.moves[state][tokens[-1]]
        return tokens

    def allowed(self):
        mask = torch.zeros(self.language.size, dtype=torch.bool)
        mask[list(self.language.moves[self.states[-1]])] = True
        return mask


def follows(language, text):
    """The tokens that may follow ``text``, by the definition alone."""
    state = 0
    for token in text:
        state = language.moves[state][token]
    return sorted(language.moves[state])


class Scripted(Constraint):
    """Begins what ``make`` makes of the prompt."""

    def __init__(self, make):
        self.make = make

    def begin(self, prompt):
        return self.make(prompt)


class Calling(Processor):
    """Calls ``function`` with the tokens and the logits."""

    def __init__(self, function):
        self.function = function

    def process(self, tokens, logits):
        return self.function(tokens, logits)


def calling(function):
    """A Rule that calls ``function`` at every node."""
    return Scripted(lambda prompt: Calling(function))
