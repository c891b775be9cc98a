"""How texts are split before byte-level BPE, by the names that GGUF files give to it (tokenizer.ggml.pre).

The expressions are those of the tokenizer.json files that llama.cpp knows by these names (src/llama-vocab.cpp).
"""

from dataclasses import dataclass

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
DIGIT = r"\p{N}"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_REST_WITH_SLASHES = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_REST}"
QWEN2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_REST}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"
TEKKEN = rf"{_BEFORE}{_UPPER}*{_LOWER}+|{_BEFORE}{_UPPER}+{_LOWER}*|\p{{N}}|{_REST_WITH_SLASHES}"
GPT4O = (
    rf"{_BEFORE}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_BEFORE}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}|{_REST_WITH_SLASHES}"
)


@dataclass(frozen=True, slots=True)
class Splitting:
    """``expressions``: one after the other. ``whole_words``: a piece that is a token is not merged from its bytes.
    ``adds_bos``: where the file does not say. ``composed``: texts are brought to Unicode's form NFC first, as the
    tokenizer.json of these models has it (llama.cpp leaves it out)."""

    expressions: tuple[str, ...]
    whole_words: bool = False
    adds_bos: bool = False
    composed: bool = False


_LLAMA3 = Splitting((LLAMA3,), whole_words=True, adds_bos=True)
_DIGITS = Splitting((DIGIT, GPT2))
SPLITS: dict[str, Splitting] = {
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"), _LLAMA3),
    **dict.fromkeys(("dbrx", "smaug-bpe"), Splitting((LLAMA3,))),
    "qwen2": Splitting((QWEN2,), composed=True),
    **dict.fromkeys(("deepseek-r1-qwen", "megrez", "stablelm2"), Splitting((QWEN2,))),
    "tekken": Splitting((TEKKEN,), whole_words=True, adds_bos=True),
    **dict.fromkeys(("gpt-4o", "llama4"), Splitting((GPT4O,))),
    **dict.fromkeys(("gpt-2", "mpt", "phi-2"), Splitting((GPT2,))),
    "olmo": Splitting((GPT2,), composed=True),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell"), _DIGITS),
}
