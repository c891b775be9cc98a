"""Distributions that depend on the whole sequence: penalties, biases, bans and ends, walked by the reference
sequence by sequence.
"""

from itertools import product

import numpy as np
import torch
from torch import Tensor

from tests import reference

# Options of one row, for a vocabulary of three and the prompt (2, 1).
OPTIONS = {
    "repetition": dict(processing=dict(repetition_penalty=2.5)),
    "frequency": dict(processing=dict(frequency_penalty=0.9)),
    "presence": dict(processing=dict(presence_penalty=1.4)),
    "bias": dict(processing=dict(bias=(((0,), 0.75), ((1,), -0.5)))),
    "biased runs": dict(processing=dict(bias=(((1, 0), 1.5), ((0, 2), -1.25), ((2, 1, 2), 2.0), ((0, 0, 0), -2.0)))),
    "banned runs": dict(processing=dict(bias=(((1, 2), -torch.inf), ((0, 1), -torch.inf), ((2, 0, 0), -torch.inf)))),
    "allowed": dict(processing=dict(allowed=(0, 2))),
    "no bigram twice": dict(processing=dict(no_repeat_ngram=2)),
    "late tokens": dict(processing=dict(late=((0, 2), (2, 1)))),
    "late end": dict(stop_tokens=(0,), min_tokens=2),
    "end": dict(stop_tokens=(1, 0), processing=dict(presence_penalty=-0.6, frequency_penalty=0.4)),
    "all": dict(
        stop_tokens=(0,),
        min_tokens=3,
        temperature=0.8,
        processing=dict(
            bias=(((1,), 0.5), ((1, 2), 1.0)), repetition_penalty=1.4, frequency_penalty=0.3, presence_penalty=-0.4
        ),
    ),
    "filtered": dict(temperature=1.2, top_p=0.8, processing=dict(repetition_penalty=1.8, frequency_penalty=0.5)),
}


def processed_distributions(target: Tensor, prompt, count: int, options) -> Tensor:
    """The distribution [V ** count, V] after every sequence of ``count`` tokens; a sequence that has ended goes on
    with its end.
    """
    filters = dict(options)
    stop, min_tokens = filters.pop("stop_tokens", ()), filters.pop("min_tokens", 0)
    processing = reference.late_stops(filters.pop("processing", {}), stop, min_tokens)
    vocab, probs = target.shape[-1], []
    for sequence in product(range(vocab), repeat=count):
        ends = [token for token in sequence if token in stop]
        if ends:
            probs.append(np.arange(vocab) == ends[0])
            continue
        before, current = [*prompt, *sequence][-2:]
        scores = reference.process(target[before, current].numpy(), prompt, sequence, **processing)
        probs.append(reference.distribution_after(scores, **{"temperature": 1.0, **filters}))
    return torch.from_numpy(np.stack(probs).astype(np.float64))
