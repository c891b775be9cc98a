"""Checks a result against its request, token by token, with the naive reference."""

import numpy as np
import torch

from paceline.core.noise import split_seed
from tests import reference
from tests.fuzz.target import EOS, LETTERS, model

NEVER = -np.inf
CLOSE = 1e-9
FILTERS = ("top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff")


def judge(result, prompt, options, *, same_tokens, lossless):
    """Raise AssertionError unless ``result`` could have come of ``prompt`` and ``options``."""
    text = list(result.token_ids)
    assert result.error is None and result.prompt_tokens == tuple(prompt)
    if options["seed"] is not None:
        assert result.seed == split_seed(options["seed"], result.sample)
    _judge_end(result, text, options)
    with torch.no_grad():
        every = _logits(prompt, text)
        guided = _guided(every, prompt, text, options)
    processing, sampling = processing_of(options), sampling_of(options)
    wants_logprobs = options.get("logprobs") is not None
    assert (result.logprobs is None) == (not wants_logprobs)
    for at, (token, logits, given) in enumerate(zip(text, every, guided, strict=True)):
        scores = reference.process(given, prompt, text[:at], **processing)
        if same_tokens:
            assert token == reference.choose(scores, len(prompt) + at, seed=result.seed, **sampling), f"token {at}"
        distribution = reference.distribution_after(scores, **sampling)
        assert not (lossless or sampling["temperature"] == 0) or distribution[token] > 0, (
            f"token {at}: {token} has no probability"
        )
        if wants_logprobs:
            found = result.logprobs[at]
            count = options["logprobs"]
            _agree(found.raw, found.top_raw, reference.warp(logits), token, count)
            _agree(found.processed, found.top_processed, distribution, token, count)


def _logits(prompt, text):
    """Logits [T, V] of the tokens of ``text``, one plain forward for all."""
    return model()[0](torch.tensor([[*prompt, *text]])).logits[0, len(prompt) - 1 : -1].numpy()


def _guided(logits, prompt, text, options):
    """``logits`` [T, V] set against those of the same text after the negative prompt."""
    scale = options.get("guidance_scale", 1.0)
    if scale == 1:
        return logits
    other = _logits(options.get("negative_prompt", prompt[-1:]), text)
    own, other = (each - np.logaddexp.reduce(each, axis=-1, keepdims=True) for each in (logits, other))
    return scale * (own - other) + other


def _agree(value, top, distribution, token, count):
    """``value`` is the log-probability of ``token``, ``top`` are the ``count`` likeliest, best first."""
    with np.errstate(divide="ignore"):
        known = np.log(distribution)
    assert value == known[token] or abs(value - known[token]) < CLOSE
    assert len(top) == min(count, int((distribution > 0).sum())) == len({other for other, _ in top})
    np.testing.assert_allclose([found for _, found in top], [known[other] for other, _ in top], rtol=0, atol=CLOSE)
    best = np.sort(known)[::-1][: len(top)]
    np.testing.assert_allclose([found for _, found in top], best, rtol=0, atol=CLOSE)


def processing_of(options):
    """What is done to logits, as keywords of the reference."""
    spelled = [tuple(map(LETTERS.index, word)) for word in options.get("bad_words", ())]
    banned = [*map(tuple, options.get("bad_words_ids", ())), *spelled]
    banned += [(token,) for token in options.get("suppress_tokens", ())]
    bias = [((token,), value) for token, value in options.get("logit_bias", {}).items()]
    bias += [*options.get("sequence_bias", {}).items(), *((run, NEVER) for run in dict.fromkeys(banned))]
    known = dict(
        bias=bias,
        allowed=options.get("allowed_token_ids"),
        repetition_penalty=options.get("repetition_penalty", 1.0),
        frequency_penalty=options.get("frequency_penalty", 0.0),
        presence_penalty=options.get("presence_penalty", 0.0),
        no_repeat_ngram=options.get("no_repeat_ngram_size", 0),
        late=[(token, 1) for token in options.get("begin_suppress_tokens", ())],
    )
    return reference.late_stops(known, stops_of(options), options.get("min_tokens", 0))


def sampling_of(options):
    """Temperature and filters, as keywords of the reference."""
    given = {name: options[name] for name in FILTERS if name in options}
    given["top_k"] = max(0, given.get("top_k", 0))
    return {**given, "temperature": options["temperature"], "order": options.get("filter_order", "transformers")}


def stops_of(options):
    """The tokens that end a text."""
    return (*options.get("stop_token_ids", ()), *(() if options.get("ignore_eos") else EOS))


def _judge_end(result, tokens, options):
    """The text ends at the first thing that ends it, and says so."""
    spelled = "".join(LETTERS[token] for token in tokens)
    strings = options.get("stop", ())
    strings = [strings] if isinstance(strings, str) else strings
    for count in range(1, len(tokens) + 1):
        armed = count > options.get("min_tokens", 0)
        met = sorted((stop for stop in strings if armed and spelled[:count].endswith(stop)), key=len)
        token, ends = tokens[count - 1], tokens[count - 1] in stops_of(options)
        last = count == len(tokens)
        assert last == bool(ends or met or count == options["max_tokens"]), f"{count} of {len(tokens)} tokens"
    shown = bool(options.get("include_stop_str_in_output"))
    if ends and met and shown:
        return  # two reasons at once
    if ends:
        wanted = (
            "stop",
            token if token in options.get("stop_token_ids", ()) else None,
            spelled if shown else spelled[:-1],
        )
    elif met:
        wanted = ("stop", met[-1], spelled if shown else spelled[: -len(met[-1])])
    else:
        wanted = ("length", None, spelled)
    assert (result.finish_reason, result.stop_reason, result.text) == wanted
