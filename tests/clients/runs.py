"""What each client does, as a command; and what of its output is kept."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.clients.rates import of_aiperf, of_guidellm, of_vllm
from tests.clients.served import NAME, model
from tests.clients.venvs import FOLDER, folder

SCRIPTS = Path(__file__).parent / "scripts"
NUM_PROMPTS, NUM_TOKENS = 12, 32
QUESTIONS = [
    {"question": f"import {name}\n\nresult = {name}.", "choices": ["path", "loads", "sqrt"], "answer": answer}
    for name, answer in (("os", "path"), ("json", "loads"), ("math", "sqrt"))
]
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}
VLLM = {"VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}


@dataclass(frozen=True)
class Run:
    """One run of a client."""

    name: str
    venv: str | None  # None: a program of the system
    exercised: str
    command: list[str]
    rate: Callable | None = None  # reads the milliseconds of a token from what it printed or wrote

    @property
    def environment(self):
        """Of its process: nothing is fetched, nothing is told to anybody."""
        # Told to stay offline, aiperf looks for tokenizers in the Hub's cache alone, and finds none in a directory.
        offline = {name: value for name, value in OFFLINE.items() if self.name != "aiperf" or name[:2] != "HF"}
        own = {**os.environ, **offline, **VLLM, "OPENAI_API_KEY": "none", "OMP_NUM_THREADS": "1", "PYTHONPATH": ""}
        if self.name == "aiperf":
            own.pop("TRANSFORMERS_OFFLINE")
        return own


def runs(url):
    """The name of each client, and a function that gives its run for the server at ``url``."""
    made = {
        "curl": lambda: Run("curl", None, "whole, streamed, errors", ["sh", _script("use_curl.sh"), f"{url}/v1", NAME]),
        **{
            name: lambda name=name: Run(
                name, name, "see its line", [_python(name), _script(f"use_{name}.py"), f"{url}/v1", NAME]
            )
            for name in ("openai", "litellm", "langchain")
        },
        "lm-eval completions": lambda: _lm_eval(
            "local-completions", f"{url}/v1/completions", "paceline_write,paceline_choose"
        ),
        "lm-eval chats": lambda: _lm_eval("local-chat-completions", f"{url}/v1/chat/completions", "paceline_write"),
        "guidellm": lambda: Run(
            "guidellm",
            "guidellm",
            "streamed chats, rates",
            [
                *(_program("guidellm", "guidellm"), "run", "--disable-progress", "--profile", "kind=synchronous"),
                *("--backend", f"kind=openai_http,target={url},model={NAME},request_format=/v1/chat/completions"),
                *("--constraint", f"kind=max_requests,count={NUM_PROMPTS}"),
                *("--tokenizer", f"kind=huggingface_auto,model={model()}"),
                *("--data", f"kind=synthetic_text,prompt_tokens=32,output_tokens={NUM_TOKENS}"),
                *("--output", f"kind=json,path={FOLDER.resolve() / 'benchmarks.json'}"),
            ],
            of_guidellm,
        ),
        "aiperf": lambda: Run(
            "aiperf",
            "aiperf",
            "streamed chats, acceptance",
            [
                *(_program("aiperf", "aiperf"), "profile", "--model", NAME, "--url", url, "--endpoint-type", "chat"),
                *(
                    "--streaming",
                    "--request-count",
                    str(NUM_PROMPTS),
                    "--concurrency",
                    "1",
                    "--tokenizer",
                    str(model()),
                ),
                *("--synthetic-input-tokens-mean", "32", "--output-tokens-mean", str(NUM_TOKENS)),
                *("--extra-inputs", "ignore_eos:true", "--ui", "none"),
                *("--artifact-dir", str(FOLDER.resolve() / "aiperf-run")),
            ],
            of_aiperf,
        ),
        "vllm bench serve": lambda: Run(
            "vllm bench serve",
            "vllm",
            "streamed completions, rates, /metrics",
            [
                *(_python("vllm"), _script("use_vllm_bench.py"), "bench", "serve", "--base-url", url, "--model", NAME),
                *("--tokenizer", str(model()), "--dataset-name", "random", "--random-input-len", "32"),
                *("--random-output-len", str(NUM_TOKENS), "--num-prompts", str(NUM_PROMPTS), "--ignore-eos"),
                *("--max-concurrency", "1"),
            ],
            of_vllm,
        ),
    }
    return made


def _script(name):
    return str(SCRIPTS / name)


def _program(venv, name):
    return str(folder(venv) / name)


def _python(venv):
    return _program(venv, "python")


def _lm_eval(kind, url, tasks):
    """A run over tasks that are written beside their questions."""
    made = FOLDER.resolve() / "lm-eval-tasks"
    made.mkdir(parents=True, exist_ok=True)
    questions = made / "questions.jsonl"
    questions.write_text("".join(f"{json.dumps(one)}\n" for one in QUESTIONS))
    for name in ("answers.yaml", "choices.yaml"):
        (made / name).write_text((SCRIPTS / name).read_text().replace("QUESTIONS", str(questions)))
    given = f"model={NAME},base_url={url},tokenizer={model()},num_concurrent=2,max_retries=1"
    command = [_program("lm-eval", "lm_eval"), "--model", kind, "--model_args", given, "--tasks", tasks]
    command += ["--include_path", str(made), *(["--apply_chat_template"] if "chat" in kind else [])]
    exercised = "written answers" if "chat" in kind else "written answers, likelihoods with echo"
    return Run(f"lm-eval {kind}", "lm-eval", exercised, command)
