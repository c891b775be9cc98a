"""A naive decoder that shares no code with Paceline, every sampling option by its definition, and the noise in NumPy.

One full forward of the transformers model per token: no cache, no batch, no tree, and counts made anew every time.
"""

import numpy as np
import torch

NEVER = -np.inf


def decode(model, prompt, *, max_tokens, stop=(), min_tokens=0, temperature=0.0, seed=0, processing=None, **filters):
    """Continue ``prompt`` with a transformers causal LM; the new tokens. ``processing`` and ``filters`` by name."""
    new = []
    while len(new) < max_tokens:
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *new]])).logits[0, -1].double().numpy()
        scores = process(logits, prompt, new, **late_stops(processing, stop, min_tokens))
        new.append(choose(scores, len(prompt) + len(new), temperature=temperature, seed=seed, **filters))
        if new[-1] in stop:
            break
    return new


def choose(scores, position, *, temperature=0.0, seed=0, **filters):
    """The target's own token at ``position`` from processed ``scores``."""
    if temperature == 0:
        return int(scores.argmax())
    distribution = warp(scores / temperature, **filters)
    with np.errstate(divide="ignore"):
        return int((exponentials(seed, position, len(distribution)) / distribution).argmin())


def distribution_after(scores, *, temperature=0.0, **filters):
    """The distribution of the next token from processed ``scores``; a greedy one is certain."""
    if temperature == 0:
        return (np.arange(len(scores)) == scores.argmax()).astype(np.float64)
    return warp(scores / temperature, **filters)


def late_stops(processing, stop, min_tokens):
    """``processing`` in which no token of ``stop`` is among the first ``min_tokens``."""
    known = dict(processing or {})
    return {**known, "late": (*known.get("late", ()), *((token, min_tokens) for token in stop))}


def process(
    logits,
    prompt,
    new,
    *,
    bias=(),
    allowed=None,
    repetition_penalty=1.0,
    frequency_penalty=0.0,
    presence_penalty=0.0,
    no_repeat_ngram=0,
    late=(),
):
    """``logits`` [V] of the token after ``prompt`` and ``new``, after the options, in their order."""
    sequence, new = [*prompt, *new], list(new)
    scores = np.array(logits, dtype=np.float64)
    tokens = range(len(scores))
    if allowed is not None:
        scores[[token for token in tokens if token not in allowed]] = NEVER
    for (*before, last), value in bias:
        if last in tokens and len(sequence) >= len(before) and sequence[len(sequence) - len(before) :] == before:
            scores[last] += value
    for token in tokens:
        if token in sequence:
            below = scores[token] < 0
            scores[token] = scores[token] * repetition_penalty if below else scores[token] / repetition_penalty
        scores[token] -= frequency_penalty * new.count(token)
        scores[token] -= presence_penalty * (token in new)
    for end in range(no_repeat_ngram, len(sequence) + 1) if no_repeat_ngram else ():
        *run, last = sequence[end - no_repeat_ngram : end]
        if sequence[len(sequence) - len(run) :] == run:
            scores[last] = NEVER
    for token, count in late:
        if token in tokens and len(new) < count:
            scores[token] = NEVER
    if scores.max() == NEVER:
        scores[0] = 0.0
    return scores


def warp(
    logits, top_k=0, top_p=1.0, min_p=0.0, typical_p=1.0, epsilon_cutoff=0.0, eta_cutoff=0.0, order="transformers"
):
    """The distribution after all filters, each by sorting or by its definition; ``order`` is transformers' or
    vLLM's.
    """
    distribution = _normal(np.exp(logits - logits.max()))
    if order == "vllm":
        distribution = _normal(distribution * (distribution >= min_p * distribution.max()))
    if top_k:
        distribution = _normal(distribution * _until(distribution, np.ones_like(distribution), top_k))
    if top_p < 1:
        distribution = _normal(distribution * _until(distribution, distribution, top_p))
    if order == "transformers":
        distribution = _normal(distribution * (distribution >= min_p * distribution.max()))
    if typical_p < 1:
        distribution = _normal(
            distribution * _until(-np.abs(_surprise(distribution) - _entropy(distribution)), distribution, typical_p)
        )
    if epsilon_cutoff:
        distribution = _normal(distribution * ((distribution >= epsilon_cutoff) | (distribution == distribution.max())))
    if eta_cutoff:
        bound = min(eta_cutoff, np.sqrt(eta_cutoff) * np.exp(-_entropy(distribution)))
        distribution = _normal(distribution * ((distribution >= bound) | (distribution == distribution.max())))
    return distribution


def _until(rank, weight, goal):
    """Those of the largest ``rank`` whose summed ``weight`` reaches ``goal``, and what ties with the last of them."""
    order = np.argsort(-rank, kind="stable")
    before = np.cumsum(weight[order]) - weight[order]
    return rank >= rank[order[before < goal]].min()


def _normal(weights):
    return weights / weights.sum()


def _surprise(distribution):
    with np.errstate(divide="ignore"):
        return -np.log(distribution)


def _entropy(distribution):
    return (distribution[distribution > 0] * _surprise(distribution[distribution > 0])).sum()


def exponentials(seed, position, count):
    """Exponential variables of the target's race at a position, one per token."""
    words = [philox((group, position, 0, 0), (seed & 0xFFFFFFFF, seed >> 32)) for group in range((count + 3) // 4)]
    u = (np.array(words, dtype=np.float64).reshape(-1)[:count] + 0.5) / 2**32
    return -np.log1p(-np.minimum(u, 1 - 2.0**-24))


def philox(counter, key):
    """Philox4x32-10 on Python integers."""
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ k[1], a & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c
