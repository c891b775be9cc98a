"""Loads a checkpoint's tokenizer, chat template and end-of-text ids.

tokenizer.json is used as it is, because ``AutoTokenizer`` may rebuild it from the model_type and split text
differently. Code in a checkpoint runs only on request, and only files in the directory are read.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, final
from weakref import WeakKeyDictionary

from paceline.text.turns import TokenizerError as TokenizerError
from paceline.text.turns import check_messages, find_turns
from paceline.text.vocabulary import added_tokens, byte_tokens, decode_function, special_ids

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

LONE_SURROGATE = re.compile("[\ud800-\udfff]")
GENERATION_MARK = re.compile(r"\{%-?\s*generation\s*-?%\}")  # around the assistant's turns
TOKENIZER_FILE = "tokenizer.json"
OTHER_FILES = (  # a directory with any of them has a tokenizer
    "tokenizer_config.json",
    "tokenizer.model*",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "spiece.model",
    "sentencepiece*.model",
    "tekken.json",
    "tiktoken.model",
    "*.tiktoken",
)


@final
class Tokenizer:
    """Encodes prompts and chats, and decodes token ids. ``name`` identifies it in error messages.

    Padding and truncation stored with ``inner`` are ignored. Raises TokenizerError if it has no tokens.
    """

    def __init__(self, *, inner: "PreTrainedTokenizerBase", name: str) -> None:
        vocabulary = inner.get_vocab()
        if vocabulary.keys() <= added_tokens(inner):
            raise TokenizerError(
                f"{name} has a tokenizer of {len(vocabulary)} special tokens and no others: its vocabulary files are "
                "missing; put tokenizer.json beside tokenizer_config.json"
            )
        self.name = name
        self.inner = inner
        self._known = frozenset(vocabulary.values())
        self._special = special_ids(inner)
        self._decode = decode_function(inner)
        self._bytes = byte_tokens(vocabulary, self._decode)
        self._byte_ids = {byte: token for token, byte in self._bytes.items()}

    @property
    def size(self) -> int:
        """Number of tokens, including the added ones."""
        return len(self.inner)

    @property
    def base_vocabulary(self) -> dict[str, int]:
        """Token string to id, without the added tokens."""
        if self.inner.is_fast:
            return cast("PreTrainedTokenizerFast", self.inner).backend_tokenizer.get_vocab(with_added_tokens=False)
        added = added_tokens(self.inner)
        return {token: number for token, number in self.inner.get_vocab().items() if token not in added}

    @cached_property
    def digest(self) -> str:
        """A hash of the tokens and their ids, the added ones included: equal wherever the vocabulary is."""
        entries = sorted(self.inner.get_vocab().items(), key=lambda entry: (entry[1], entry[0]))
        return hashlib.sha256(json.dumps(entries).encode()).hexdigest()[:32]

    @property
    def definition(self) -> str | None:
        """The content of tokenizer.json without padding and truncation; None for a slow tokenizer."""
        if not self.inner.is_fast:
            return None
        whole = json.loads(cast("PreTrainedTokenizerFast", self.inner).backend_tokenizer.to_str())
        return json.dumps({**whole, "padding": None, "truncation": None})

    @property
    def added_tokens(self) -> frozenset[str]:
        """The tokens that were added to the base vocabulary."""
        return frozenset(added_tokens(self.inner))

    @property
    def has_chat_template(self) -> bool:
        """Whether ``chat`` can be used."""
        return bool(self.template)

    @property
    def template(self) -> str:
        """The chat template; empty where there is none."""
        template = self.inner.chat_template
        return (template.get("default") if isinstance(template, dict) else template) or ""

    def is_special(self, token: int) -> bool:
        """Whether ``token`` is one that ``decode`` skips unless told otherwise."""
        return token in self._special

    def is_known(self, token: int) -> bool:
        """Whether ``token`` is in the vocabulary. Models with padded embeddings may return others, without text."""
        return token in self._known

    def added_token(self, text: str) -> int | None:
        """The added token that is written as ``text``; None if there is none."""
        added = self.inner.added_tokens_decoder
        return next((number for number, token in added.items() if token.content == text), None)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Token ids of ``text``; ``special`` includes those that the tokenizer adds, such as beginning-of-text."""
        return self.encode_many([text], special=special)[0]

    def encode_many(self, texts: Sequence[str], *, special: bool = True) -> list[list[int]]:
        """Token ids of every text, as ``encode`` returns them, in one call.

        Raises TokenizerError for a text that has no UTF-8.
        """
        if not texts:
            return []
        try:
            encoded = self.inner(
                list(texts),
                add_special_tokens=special,
                padding=False,
                truncation=False,
                return_attention_mask=False,
                return_token_type_ids=False,
                verbose=False,
            )
        except (TypeError, UnicodeEncodeError) as error:
            found = next((text for text in texts if LONE_SURROGATE.search(text)), None)
            if found is None:
                raise
            raise TokenizerError(
                f"{found[:40]!r} cannot be encoded as UTF-8: give a text without lone surrogates, which bytes of "
                "another encoding leave, or half of a pair in JSON"
            ) from error
        return cast(list[list[int]], encoded["input_ids"])

    def decode(self, tokens: Sequence[int], *, skip_special: bool = True) -> str:
        """The text of ``tokens``, without clean-up of spaces.

        Invalid UTF-8 becomes U+FFFD, one for each maximal part of a character. Valid characters next to it are kept,
        also with byte fallback, where the tokenizers library would replace the whole run of byte tokens.
        """
        known, special = self._known, self._special if skip_special else ()
        kept = [token for token in tokens if token in known and token not in special]
        return self._decode(self._repaired(kept) if self._bytes else kept)

    def chat(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, object]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Token ids of a chat rendered by the template, without a second beginning-of-text token.

        messages: each with a role and a content, a string or a list of parts, passed to the template unchanged.
        add_generation_prompt: open the assistant's next message. continue_final_message: leave the last message open
        instead. tools, variables: what the template gets besides; a variable must not be an option of
        ``apply_chat_template``. Raises TokenizerError where there is no template, or it rejects the messages.
        """
        if not self.has_chat_template:
            raise TokenizerError(
                f"{self.name} has no chat template: give the prompt as text, or put chat_template.jinja beside "
                "tokenizer.json"
            )
        if add_generation_prompt and continue_final_message:
            raise TokenizerError(
                "add_generation_prompt opens a new message and continue_final_message the last one: set only one of "
                "them to True"
            )
        check_messages(messages)
        try:
            tokens = self.inner.apply_chat_template(
                cast(list[dict[str, str]], [dict(message) for message in messages]),  # parts are lists, too
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                tools=cast(Any, tools),
                return_dict=False,
                tokenizer_kwargs={"verbose": False},
                **(variables or {}),
            )
        except Exception as error:  # a template may raise anything
            raise TokenizerError(
                f"the chat template of {self.name} refuses the messages ({error}): change them, or give the prompt "
                "as text"
            ) from error
        return cast(list[int], tokens)

    def chat_turns(self, messages: Sequence[Mapping[str, object]]) -> tuple[list[int], list[bool]]:
        """Token ids of a chat, and which of them are the assistant's: by generation marks, else by rendered prefixes.

        Raises TokenizerError as ``chat`` does, and where the assistant's tokens cannot be determined (text/turns).
        """
        whole = self.chat(messages, add_generation_prompt=False)
        if GENERATION_MARK.search(self.template) is None:
            try:
                return find_turns(messages, lambda part, opened: self.chat(part, add_generation_prompt=opened))
            except TokenizerError:
                raise
            except ValueError as error:
                raise TokenizerError(f"{self.name}: {error}") from error
        marked = self.inner.apply_chat_template(
            cast(list[dict[str, str]], [dict(message) for message in messages]),
            return_dict=True,
            return_assistant_tokens_mask=True,
            tokenizer_kwargs={"verbose": False},
        )
        found = cast(Mapping[str, list[int]], marked)
        assert found["input_ids"] == whole
        return whole, [bool(mark) for mark in found["assistant_masks"]]

    def _repaired(self, tokens: list[int]) -> list[int]:
        """``tokens`` with every run of byte tokens made valid UTF-8, by the bytes of U+FFFD."""
        repaired: list[int] = []
        run = bytearray()
        for token in tokens:
            byte = self._bytes.get(token)
            if byte is not None:
                run.append(byte)
                continue
            if run:
                repaired += self._valid_bytes(run)
                run.clear()
            repaired.append(token)
        return repaired + self._valid_bytes(run)

    def _valid_bytes(self, run: bytearray) -> list[int]:
        """Byte tokens of ``run`` with invalid UTF-8 replaced."""
        return [self._byte_ids[byte] for byte in run.decode("utf-8", errors="replace").encode("utf-8")]


def has_tokenizer(directory: str | Path) -> bool:
    """Whether a directory holds the files of a tokenizer."""
    return any(any(Path(directory).glob(pattern)) for pattern in (TOKENIZER_FILE, *OTHER_FILES))


def load_tokenizer(directory: str | Path, *, trust_remote_code: bool = False) -> Tokenizer | None:
    """The tokenizer of a checkpoint directory, or None where there is none: prompts are token ids then.

    tokenizer.json is used as it is, with the settings in the directory. Other files are tried only where it is missing,
    and only then ``trust_remote_code`` allows the checkpoint's own code. Raises TokenizerError for unreadable files.
    """
    import transformers

    directory = Path(directory)
    path = directory / TOKENIZER_FILE
    if path.is_file():
        try:
            inner = transformers.PreTrainedTokenizerFast.from_pretrained(directory, local_files_only=True)
        except Exception as error:  # the libraries raise bare Exception for a broken file
            raise TokenizerError(
                f"{path} is not a tokenizer ({_reason(error)}); take the file that belongs to the model, or remove it "
                "and give prompts as token ids"
            ) from error
        return Tokenizer(inner=inner, name=str(directory))
    if not has_tokenizer(directory):
        return None
    try:
        inner = transformers.AutoTokenizer.from_pretrained(
            directory, trust_remote_code=trust_remote_code, local_files_only=True
        )
    except Exception as error:  # among them ImportError, for the library of an older format
        raise TokenizerError(
            f"{directory} is not a tokenizer ({_reason(error)}); put tokenizer.json there, which every fast tokenizer "
            "of transformers writes, or install what is missing, or trust the directory's own code if it has any"
        ) from error
    return Tokenizer(inner=inner, name=str(directory))


def same_vocabulary(first: Tokenizer, second: Tokenizer) -> bool:
    """Whether both have the same ids for all base tokens. Added tokens and embedding padding may differ."""
    known = _COMPARED.setdefault(first, WeakKeyDictionary())
    if second not in known:  # for large vocabularies this takes longer than all else that a call prepares
        known[second] = _same_vocabulary(first, second)
    return known[second]


_COMPARED: WeakKeyDictionary[Tokenizer, WeakKeyDictionary[Tokenizer, bool]] = WeakKeyDictionary()


def _same_vocabulary(first: Tokenizer, second: Tokenizer) -> bool:
    one, other = first.base_vocabulary, second.base_vocabulary
    if one == other:
        return True
    differing = {token for token, _ in one.items() ^ other.items()}
    # Only some tokenizers have special tokens in the base vocabulary; where both do, the ids must agree.
    return differing.isdisjoint(one.keys() & other.keys()) and differing <= first.added_tokens | second.added_tokens


def _reason(error: Exception) -> str:
    """``error`` in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
