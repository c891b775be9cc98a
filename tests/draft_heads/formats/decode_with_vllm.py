"""Run by an interpreter that has vLLM: decodes token ids greedily, with a draft or without.

``decode_with_vllm.py JOB.json OUTPUT.json``. The job has prompts, a number of tokens, a model and a speculative_config.
"""

import json
import os
import sys

os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_KVCACHE_SPACE="1", VLLM_LOGGING_LEVEL="WARNING")


def main(job, output):
    from vllm import LLM, SamplingParams

    with open(job) as file:
        asked = json.load(file)
    model, config = asked["model"], asked["speculative_config"]
    engine = LLM(
        model=model,
        dtype="float32",
        enforce_eager=True,
        max_model_len=asked["length"],
        max_num_seqs=4,
        disable_log_stats=False,
        skip_tokenizer_init=True,
        **({} if config is None else {"speculative_config": config}),
    )
    prompts = [{"prompt_token_ids": prompt} for prompt in asked["prompts"]]
    params = SamplingParams(temperature=0, max_tokens=asked["tokens"], ignore_eos=True, detokenize=False)
    texts = [list(one.outputs[0].token_ids) for one in engine.generate(prompts, params)]
    found = [one for one in engine.get_metrics() if "spec_decode" in one.name and "per_pos" not in one.name]
    counts = {one.name: one.value for one in found}
    with open(output, "w") as file:
        json.dump({"texts": texts, "counts": counts}, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
