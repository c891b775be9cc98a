"""Runs under vLLM's own Python and decodes what is asked for. Imports nothing of paceline; times nothing.

One JSON object per line: the first argument holds vLLM's settings, each line of standard input one order, each line of
standard output one answer. Whatever vLLM prints goes to standard error.
"""

import json
import os
import sys
from importlib import import_module
from typing import Any, TextIO


def main() -> None:
    """Load, say so, and answer until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    vllm: Any = import_module("vllm")
    engine = vllm.LLM(**json.loads(sys.argv[1]))
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
        _say(answers, {"tokens": [list(result.outputs[0].token_ids) for result in results]})


def _say(answers: TextIO, what: dict[str, object]) -> None:
    answers.write(json.dumps(what) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
