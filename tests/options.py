"""Values of the sampling options for hypothesis, as keywords of Processing and Sampling; small ones, so that they bite.

Biases are eighths: single precision holds them.
"""

from hypothesis import strategies as st

NEVER = -float("inf")


def biases(vocab):
    """A few biased or banned sequences, some over a token that the vocabulary lacks."""
    value = st.one_of(st.integers(-40, 40).map(lambda eighths: eighths / 8), st.just(NEVER))
    sequence = st.lists(st.integers(0, vocab), min_size=1, max_size=4).map(tuple)
    return st.lists(st.tuples(sequence, value), max_size=5).map(tuple)


def processing(vocab):
    """Keywords of Processing; each option is off in about half of the cases."""
    tokens = st.integers(0, vocab)
    penalty = st.sampled_from([0.0, 0.0, 0.5, -0.5, 1.75])
    return st.fixed_dictionaries(
        dict(
            bias=st.one_of(st.just(()), biases(vocab)),
            allowed=st.one_of(st.none(), st.lists(tokens, min_size=1, max_size=2 * vocab, unique=True).map(tuple)),
            repetition_penalty=st.sampled_from([1.0, 1.0, 1.3, 0.8, 4.0]),
            frequency_penalty=penalty,
            presence_penalty=penalty,
            no_repeat_ngram=st.sampled_from([0, 0, 0, 1, 2, 3]),
            late=st.one_of(st.just(()), st.lists(st.tuples(tokens, st.integers(0, 6)), max_size=3).map(tuple)),
        )
    )
