"""The ``Processing`` of a request: which logits processors its parameters ask for, with words as token ids."""

from collections.abc import Iterable
from typing import cast

from paceline.api import values
from paceline.api.loading import Loaded
from paceline.api.params import SamplingParams
from paceline.core.request import NEVER, Processing
from paceline.text.tokenizer import Tokenizer


def processing(target: Loaded, params: SamplingParams) -> Processing:
    """The logits processors for ``params`` and ``target``.

    Raises ValueError for token ids outside the target's vocabulary, and for ``bad_words`` where it has no tokenizer.
    Suppressed ids may be unknown, because they are never chosen anyway.
    """
    single = cast(values.Biases, params.logit_bias)
    several = cast(values.ListBiases, params.sequence_bias)
    bad = cast(values.TokenLists, params.bad_words_ids)
    allowed = cast("tuple[int, ...] | None", params.allowed_token_ids)
    size = target.lm.vocab_size
    for name, tokens in (
        ("logit_bias", [token for token, _ in single]),
        ("sequence_bias", [token for sequence, _ in several for token in sequence]),
        ("bad_words_ids", [token for sequence in bad for token in sequence]),
        ("allowed_token_ids", allowed or ()),
    ):
        unknown = sorted({token for token in tokens if token >= size})
        if unknown:
            raise ValueError(f"{name}: {unknown} leave the target's vocabulary of {size} tokens; give ids below {size}")
    return Processing(
        bias=(
            *(((token,), value) for token, value in single),
            *several,
            *(((token,), NEVER) for token in params.suppress_tokens or ()),
            *((tokens, NEVER) for tokens in (*bad, *_bad_words(target, params))),
        ),
        allowed=allowed,
        repetition_penalty=params.repetition_penalty,
        frequency_penalty=params.frequency_penalty,
        presence_penalty=params.presence_penalty,
        no_repeat_ngram=params.no_repeat_ngram_size,
        late=tuple((token, 1) for token in params.begin_suppress_tokens or ()),
    )


def tokenized(words: Iterable[str], tokenizer: Tokenizer) -> values.TokenLists:
    """Every word as token ids, as in vLLM also with a leading space if that gives as many tokens and another first one.

    Raises ValueError for a word of whitespace alone.
    """
    found: list[tuple[int, ...]] = []
    for word in words:
        text = word.lstrip()
        bare = tuple(tokenizer.encode(text, special=False)) if text else ()
        if not bare:
            raise ValueError(f"bad_words: {word!r} has no token of its own: leave it out")
        spaced = tuple(tokenizer.encode(f" {text}", special=False))
        found.append(bare)
        if len(spaced) == len(bare) and spaced[0] != bare[0]:
            found.append(spaced)
    return tuple(dict.fromkeys(found))


def _bad_words(target: Loaded, params: SamplingParams) -> values.TokenLists:
    words = params.bad_words or ()
    if words and target.tokenizer is None:
        raise ValueError(
            f"bad_words={list(words)}: {target.name} has no tokenizer to encode them with; give bad_words_ids"
        )
    return () if target.tokenizer is None else tokenized(words, target.tokenizer)
