"""What a transformers tokenizer contains: added tokens, special tokens, byte tokens, and how it decodes."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def added_tokens(inner: "PreTrainedTokenizerBase") -> set[str]:
    """The tokens that were added to the vocabulary of the tokenizer's model, as strings."""
    return {token.content for token in inner.added_tokens_decoder.values()}


def special_ids(inner: "PreTrainedTokenizerBase") -> frozenset[int]:
    """Ids that the tokenizer itself skips: by flag in fast tokenizers, by list in the others."""
    if inner.is_fast:
        return frozenset(number for number, token in inner.added_tokens_decoder.items() if token.special)
    return frozenset(inner.all_special_ids)


def decode_function(inner: "PreTrainedTokenizerBase") -> Callable[[list[int]], str]:
    """A decode function that skips nothing and cleans nothing up, which would change text already streamed."""
    from transformers import PreTrainedTokenizerFast

    if type(inner) is PreTrainedTokenizerFast:  # subclasses may override decode
        return partial(inner.backend_tokenizer.decode, skip_special_tokens=False)
    return partial(
        cast(Callable[..., str], inner.decode), skip_special_tokens=False, clean_up_tokenization_spaces=False
    )


def byte_tokens(vocabulary: Mapping[str, int], decode: Callable[[list[int]], str]) -> dict[int, int]:
    """Token id to byte if the tokenizer has byte fallback, else empty."""
    tokens = [vocabulary.get(f"<0x{byte:02X}>") for byte in range(256)]
    found = {token: byte for byte, token in enumerate(tokens) if token is not None}
    numbers = {byte: token for token, byte in found.items()}
    if len(found) < 256 or decode([numbers[byte] for byte in "é".encode()]) != "é":
        return {}
    return found
