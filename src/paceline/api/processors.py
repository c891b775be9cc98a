"""What parameters ask of logits, as the core's ``Processing``, with words as the target's tokens. Decodes nothing."""

from collections.abc import Iterable

from paceline.api import values
from paceline.api.loading import Loaded
from paceline.api.params import SamplingParams
from paceline.core.request import NEVER, Processing
from paceline.text.tokenizer import Tokenizer


def processing(target: Loaded, params: SamplingParams) -> Processing:
    """The processors of one continuation by ``target``.

    Raises ValueError for token ids that the target does not have, naming them and the size of its vocabulary, and for
    ``bad_words`` where it has no tokenizer. Ids that are only kept from being chosen may be unknown: they never are.
    """
    single = values.biases("logit_bias", params.logit_bias)
    several = values.list_biases("sequence_bias", params.sequence_bias)
    bad = values.token_lists("bad_words_ids", params.bad_words_ids)
    allowed = values.some_ids("allowed_token_ids", params.allowed_token_ids)
    size = target.lm.vocab_size
    _check("logit_bias", (token for token, _ in single), size)
    _check("sequence_bias", (token for tokens, _ in several for token in tokens), size)
    _check("bad_words_ids", (token for tokens in bad for token in tokens), size)
    _check("allowed_token_ids", allowed or (), size)
    suppressed = values.ids("suppress_tokens", params.suppress_tokens)
    late = values.ids("begin_suppress_tokens", params.begin_suppress_tokens)
    return Processing(
        bias=(
            *(((token,), value) for token, value in single),
            *several,
            *(((token,), NEVER) for token in suppressed),
            *((tokens, NEVER) for tokens in (*bad, *_bad_words(target, params))),
        ),
        allowed=allowed,
        repetition_penalty=params.repetition_penalty,
        frequency_penalty=params.frequency_penalty,
        presence_penalty=params.presence_penalty,
        no_repeat_ngram=params.no_repeat_ngram_size,
        late=tuple((token, 1) for token in late),
    )


def tokenized(words: Iterable[str], tokenizer: Tokenizer) -> values.TokenLists:
    """Every word as token ids, also with a space before it where that is as many tokens, the first another: as in vLLM.

    Raises ValueError for a word of spaces alone.
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
    words = values.strings("bad_words", params.bad_words)
    if words and target.tokenizer is None:
        raise ValueError(
            f"bad_words={list(words)}: {target.name} has no tokenizer to spell them with; give bad_words_ids"
        )
    return () if target.tokenizer is None else tokenized(words, target.tokenizer)


def _check(name: str, tokens: Iterable[int], size: int) -> None:
    unknown = sorted({token for token in tokens if token >= size})
    if unknown:
        raise ValueError(f"{name}: {unknown} leave the target's vocabulary of {size} tokens; give ids below {size}")
