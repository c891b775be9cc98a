"""A naive decoder in fifteen lines that shares no code with Paceline, and the noise it needs in NumPy.

One full forward of the transformers model per token: no cache, no batch, no tree.
"""

import numpy as np
import torch


def decode(model, prompt, *, max_tokens, stop=(), temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, seed=0):
    """Continue ``prompt`` with a transformers causal LM; the new tokens."""
    text = list(prompt)
    while len(text) < len(prompt) + max_tokens:
        with torch.no_grad():
            logits = model(torch.tensor([text])).logits[0, -1].double().numpy()
        if temperature == 0:
            token = int(logits.argmax())
        else:
            law = warp(logits / temperature, top_k, top_p, min_p)
            with np.errstate(divide="ignore"):
                token = int((exponentials(seed, len(text), len(law)) / law).argmin())
        text.append(token)
        if token in stop:
            break
    return text[len(prompt) :]


def warp(logits, top_k=0, top_p=1.0, min_p=0.0):
    """The law after top-k, top-p and min-p, in transformers' order, by sorting."""
    law = np.exp(logits - logits.max())
    order = np.argsort(-law, kind="stable")
    if top_k:
        law[order[top_k:]] = 0
    law /= law.sum()
    if top_p < 1:
        before = np.cumsum(law[order]) - law[order]
        law[order[before >= top_p]] = 0
    law[law < min_p * law.max()] = 0
    return law / law.sum()


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
