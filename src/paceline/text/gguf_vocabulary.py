"""Builds a tokenizer from the vocabulary of a GGUF file, which has no tokenizer.json.

Two kinds are known: byte-level BPE ("gpt2"), with the merges of the file, and SentencePiece's BPE with byte fallback
("llama"), whose merges follow from the scores. Texts are split as llama.cpp splits them (src/llama-vocab.cpp), which
is as the models' own tokenizer.json does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from paceline.text.gguf_splits import SPLITS
from paceline.text.turns import TokenizerError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PREFIX = "tokenizer.ggml."
TEMPLATE = "tokenizer.chat_template"
BYTE_LEVEL, SENTENCE_PIECE = "gpt2", "llama"
SPACE = "▁"
OTHER = "give the directory of the model's own tokenizer by --tokenizer"
ENDS = (  # whatever the metadata say, these end a text or a turn in llama.cpp
    *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>", "<|endoftext|>"),
    *(
        "<|eom_id|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "<\uff5cend▁of▁sentence\uff5c>",
        "<end_of_utterance>",
        "<|end_of_text|>",
    ),
)


class Kind(IntEnum):
    """tokenizer.ggml.token_type."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The metadata of a GGUF file that describe its tokenizer. ``name`` is of the file, for messages."""

    fields: Mapping[str, Any]
    name: str

    @property
    def tokens(self) -> list[str]:
        """The tokens by their ids. Raises TokenizerError where there are none, or two are equal."""
        found = self.get("tokens")
        if not isinstance(found, list) or not found:
            raise TokenizerError(f"{self.name} has no vocabulary ({PREFIX}tokens): {OTHER}")
        if len(set(found)) != len(found):
            twice = next(token for number, token in enumerate(found) if token in found[:number])
            raise TokenizerError(f"{self.name} has the token {twice!r} twice: {OTHER}")
        return found

    @property
    def kinds(self) -> Sequence[int]:
        """The ``Kind`` of each token."""
        return self.get("token_type") or [Kind.NORMAL] * len(self.tokens)

    def get(self, key: str, default: Any = None) -> Any:
        """A field of ``tokenizer.ggml``."""
        return self.fields.get(PREFIX + key, default)

    def special(self, key: str) -> str | None:
        """The token that a field such as ``bos_token_id`` names; None where there is none, or the id is none."""
        defaults = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
        spm = self.get("model") == SENTENCE_PIECE
        number = self.get(key, defaults.get(key) if spm else None)
        return self.tokens[number] if number is not None and 0 <= number < len(self.tokens) else None

    def ends(self) -> list[int]:
        """Ids of the tokens that end a text or a turn, the end of text first."""
        found = [self.special(key) for key in ("eos_token_id", "eot_token_id", "eom_token_id")]
        ids = {token: number for number, token in enumerate(self.tokens)}
        return list(dict.fromkeys(ids[token] for token in (*found, *ENDS) if token in ids))


def build_tokenizer(vocabulary: Vocabulary, *, context: int) -> "PreTrainedTokenizerFast":
    """The tokenizer, with its chat template, for a model of ``context`` positions.

    Raises TokenizerError for a kind that is not known, and for a vocabulary that is broken.
    """
    from transformers import PreTrainedTokenizerFast

    kind = vocabulary.get("model")
    try:
        if kind == BYTE_LEVEL:
            tokenizer, adds_bos = _byte_level(vocabulary)
        elif kind == SENTENCE_PIECE:
            tokenizer, adds_bos = _sentence_piece(vocabulary), True
        else:
            raise TokenizerError(f"{vocabulary.name} has a vocabulary of the kind {kind!r}, not gpt2 or llama: {OTHER}")
        tokenizer.add_tokens(_added(vocabulary))
    except TokenizerError:
        raise
    except Exception as error:  # the library raises bare Exception, such as for merges of what is no token
        raise TokenizerError(f"{vocabulary.name} has a broken vocabulary ({error}): {OTHER}") from error
    _add_ends(tokenizer, vocabulary, adds_bos=adds_bos)
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    special = {name: vocabulary.special(f"{key}_token_id") for name, key in names.items()}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        **{name: token for name, token in special.items() if token is not None},
        chat_template=_templates(vocabulary),
        clean_up_tokenization_spaces=False,
        model_max_length=context,
    )


def _byte_level(vocabulary: Vocabulary) -> tuple[Tokenizer, bool]:
    name = vocabulary.get("pre")
    splitting = SPLITS.get(name)
    if splitting is None:
        raise TokenizerError(
            f"{vocabulary.name} splits texts by rules called {name!r}, which are not known; known are "
            f"{', '.join(SPLITS)}: {OTHER}"
        )
    merges = [tuple(merge.split(" ", 1)) for merge in vocabulary.get("merges") or ()]
    tokenizer = Tokenizer(models.BPE(_ids(vocabulary), merges, ignore_merges=splitting.whole_words))
    if splitting.composed:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(expression), behavior="isolated") for expression in splitting.expressions),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, splitting.adds_bos


def _sentence_piece(vocabulary: Vocabulary) -> Tokenizer:
    """As Llama 2's tokenizer.json: a space before each piece of text, also behind a special token, where it has one."""
    from transformers.tokenization_utils_base import generate_merges

    scores = vocabulary.get("scores")
    if not isinstance(scores, list) or len(scores) != len(vocabulary.tokens):
        raise TokenizerError(f"{vocabulary.name} has no scores of its tokens ({PREFIX}scores): {OTHER}")
    usual = {token: score for token, kind, score in _rows(vocabulary, scores) if kind == Kind.NORMAL}
    ids = _ids(vocabulary)
    merges = generate_merges({token: ids[token] for token in usual}, usual)
    unknown = vocabulary.special("unknown_token_id")
    tokenizer = Tokenizer(models.BPE(ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    prefixed = vocabulary.get("add_space_prefix", True)
    spaces = normalizers.Replace(" ", SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces]) if prefixed else spaces
    tokenizer.decoder = decoders.Sequence(
        [
            *(decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()),
            *((decoders.Strip(" ", 1, 0),) if prefixed else ()),
        ]
    )
    return tokenizer


def _rows(vocabulary: Vocabulary, values: Sequence[Any]) -> "zip[tuple[str, int, Any]]":
    return zip(vocabulary.tokens, vocabulary.kinds, values, strict=True)


def _ids(vocabulary: Vocabulary) -> dict[str, int]:
    """Token to id, without the names that pad the vocabulary to the size of the embeddings."""
    return {
        token: number
        for token, kind, number in _rows(vocabulary, range(len(vocabulary.tokens)))
        if not (kind == Kind.UNUSED and token == f"[PAD{number}]")
    }


def _added(vocabulary: Vocabulary) -> list[AddedToken]:
    """Tokens that are found in a text before it is split; those that control are skipped when decoding."""
    # The space behind them belongs to them in Phi-3's tokenizer.json, which no metadata say.
    phi3 = any(word in str(vocabulary.fields.get("general.name", "")).lower() for word in ("phi-3", "phi3"))
    kept = ("<unk>", "<s>", "<|endoftext|>")
    return [
        AddedToken(token, special=kind != Kind.USER_DEFINED, normalized=False, rstrip=phi3 and token not in kept)
        for token, kind, _ in _rows(vocabulary, vocabulary.tokens)
        if kind in (Kind.CONTROL, Kind.USER_DEFINED, Kind.UNKNOWN)
    ]


def _add_ends(tokenizer: Tokenizer, vocabulary: Vocabulary, *, adds_bos: bool) -> None:
    """Beginning and end of text around each text, where the file says so; ``adds_bos`` where it says nothing."""
    bos = vocabulary.special("bos_token_id") if vocabulary.get("add_bos_token", adds_bos) else None
    eos = vocabulary.special("eos_token_id") if vocabulary.get("add_eos_token", False) else None
    if bos is None and eos is None:
        return
    before, after = [bos] if bos is not None else [], [eos] if eos is not None else []
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*before, "$A", *after],
        pair=[*before, "$A", *after, *(f"{token}:1" for token in before), "$B:1", *(f"{token}:1" for token in after)],
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (*before, *after)],
    )


def _templates(vocabulary: Vocabulary) -> str | dict[str, str] | None:
    """The chat template; several where the file has further ones by their names."""
    default = vocabulary.fields.get(TEMPLATE)
    named = {
        key.removeprefix(f"{TEMPLATE}."): value
        for key, value in vocabulary.fields.items()
        if key.startswith(f"{TEMPLATE}.")
    }
    return {"default": default, **named} if named and default else default
