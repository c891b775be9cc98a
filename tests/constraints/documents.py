"""Schemas, their check by hand, and the naive reference under a grammar."""

import json
from functools import cache

import numpy as np
import torch

from paceline.api import load
from paceline.api.grammars import grammar_of
from tests import reference, tiny
from tests.api.checkpoints import CONTEXT, EOS, VOCAB, pair

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "size": {"type": "integer", "minimum": -9, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 1, "maxItems": 3},
        "inner": {
            "type": "object",
            "properties": {"flag": {"type": "boolean"}, "note": {"type": ["string", "null"], "maxLength": 4}},
            "required": ["flag", "note"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "size", "tags", "inner"],
    "additionalProperties": False,
}
TIGHT = {"json": SCHEMA, "disable_any_whitespace": True}


def check(text):
    """Whether ``text`` is a document of SCHEMA, by plain Python."""
    value = json.loads(text)
    assert set(value) == {"name", "size", "tags", "inner"}
    assert isinstance(value["name"], str) and len(value["name"]) <= 6
    assert type(value["size"]) is int and -9 <= value["size"] <= 120
    assert 1 <= len(value["tags"]) <= 3 and set(value["tags"]) <= {"red", "green", "blue"}
    assert set(value["inner"]) == {"flag", "note"} and isinstance(value["inner"]["flag"], bool)
    note = value["inner"]["note"]
    assert note is None or (isinstance(note, str) and len(note) <= 4)
    return value


@cache
def target():
    return load(pair().target)


@cache
def draft():
    return load(pair().draft)


@cache
def known():
    """The target as transformers runs it."""
    return tiny.llama(vocab_size=VOCAB, max_position_embeddings=CONTEXT, eos_token_id=EOS)


class Masked:
    """A transformers model whose logits are masked by the grammar of ``params``."""

    def __init__(self, model, params, num_prompt):
        from llguidance import LLMatcher, grammar_from

        asked, tokenizer = params.structured_outputs, target().tokenizer
        self.model, self.num_prompt = model, num_prompt
        self.spelling = grammar_of(target(), params).spelling
        assert asked.kind in ("regex", "choice", "json") and tokenizer is not None
        value = json.dumps(asked.choice) if asked.kind == "choice" else getattr(asked, asked.kind)
        spaces = {"whitespace_flexible": False} if asked.disable_any_whitespace else {}
        self.definition = (
            LLMatcher.grammar_from_json_schema(value, overrides=spaces)
            if asked.kind == "json"
            else grammar_from(asked.kind, value)
        )

    def __call__(self, text):
        from llguidance import LLMatcher

        output = self.model(text)
        matcher = LLMatcher(self.spelling.tokenizer, self.definition)
        assert matcher.consume_tokens(text[0, self.num_prompt :].tolist())
        bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        allowed = np.zeros(VOCAB, bool)
        allowed[: self.spelling.end] = bits[: self.spelling.end]
        allowed[EOS] = bits[self.spelling.end]
        output.logits[:, -1, torch.from_numpy(~allowed)] = -torch.inf
        return output


def naive(prompt, params):
    """The tokens of plain decoding under the grammar of ``params``: a forward of the whole sequence per token."""
    model = known() if params.structured_outputs is None else Masked(known(), params, len(prompt))
    return tuple(
        reference.decode(
            model,
            list(prompt),
            max_tokens=params.max_tokens,
            stop=(EOS,),
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            seed=params.seed,
        )
    )
