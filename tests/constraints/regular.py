"""Constraints for tests: regular languages over token ids, and scripted processors."""

import torch

from paceline.core.constraint import Constraint, Grammar, Processor


class Language(Constraint):
    """``moves``: for every state, token -> state; an output begins in state 0. ``forced`` tokens are forced."""

    def __init__(self, moves, *, size, forced=0):
        self.moves, self.size, self.forced = moves, size, forced

    def begin(self, prompt):
        return Automaton(self)


class Automaton(Grammar):
    """The state of one output in a Language."""

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
        for _ in range(self.language.forced):
            tokens.append(max(self.language.moves[state]))
            state = self.language.moves[state][tokens[-1]]
        return tokens

    def allowed(self):
        mask = torch.zeros(self.language.size, dtype=torch.bool)
        mask[list(self.language.moves[self.states[-1]])] = True
        return mask


def follows(language, output):
    """The tokens that may follow ``output``, by the definition alone."""
    state = 0
    for token in output:
        state = language.moves[state][token]
    return sorted(language.moves[state])


class Scripted(Constraint):
    """Its state is the result of ``make`` for the prompt."""

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
    """A constraint that calls ``function`` at every node."""
    return Scripted(lambda prompt: Calling(function))
