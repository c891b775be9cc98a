"""Runs under vLLM's own Python and decodes what it is sent. Imports nothing of paceline; times nothing.

One JSON object per line: the first argument holds vLLM's settings, each line of standard input one order, each line of
standard output one answer. Whatever vLLM prints goes to standard error.
"""

import json
import os
import sys
from dataclasses import fields
from importlib import import_module
from typing import Any, TextIO

COUNTS = "per_request_spec_decode_metrics"


def main() -> None:
    """Load, say so, and answer until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    vllm: Any = import_module("vllm")
    engine = vllm.LLM(**_counting(json.loads(sys.argv[1])))
    _say(answers, {"ready": vllm.__version__})
    for line in sys.stdin:
        order = json.loads(line)
        prompts = [{"prompt_token_ids": tokens} for tokens in order["prompts"]]
        params = [
            vllm.SamplingParams(
                max_tokens=order["num_tokens"],
                temperature=order["temperature"],
                top_p=order["top_p"],
                seed=seed,
                ignore_eos=True,
                detokenize=False,
            )
            for seed in order["seeds"]
        ]
        results = engine.generate(prompts, params, use_tqdm=False)
        texts = [result.outputs[0] for result in results]
        _say(answers, {"tokens": [list(text.token_ids) for text in texts], "drafts": [_drafts(text) for text in texts]})


def _counting(settings: dict[str, object]) -> dict[str, object]:
    """``settings`` with counts of every text's drafts, where this version of vLLM keeps them."""
    known = {field.name for field in fields(import_module("vllm.engine.arg_utils").EngineArgs)}
    drafting = "speculative_config" in settings and COUNTS in known
    return settings | ({COUNTS: "summary"} if drafting else {})


def _drafts(text: Any) -> list[int] | None:
    """How many drafts of a text had 0, 1, 2, ... tokens accepted; None where nothing counts them."""
    counts = getattr(text, "spec_decode_metrics", None)
    return None if counts is None else list(counts.histogram)


def _say(answers: TextIO, what: dict[str, object]) -> None:
    answers.write(json.dumps(what) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
