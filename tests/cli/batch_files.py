"""Files of requests in OpenAI's batch format, the command that answers them, and what it wrote."""

import json
import shutil
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from paceline.cli import run
from tests.api.checkpoints import pair
from tests.serve.served import TEMPLATE

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


@cache
def chatty():
    """The tiny target, with a chat template."""
    folder = Path(mkdtemp()) / "target"
    shutil.copytree(pair().target, folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}), encoding="utf-8")
    return folder


def request(number, url=TEXT, **body):
    body = {"max_tokens": 6 + 5 * number % 17, "temperature": 0.8, "seed": number, **body}
    if url == TEXT:
        body.setdefault("prompt", f"def f{number}(first):")
    else:
        body.setdefault("messages", [{"role": "user", "content": f"x = {number}"}])
    return {"custom_id": f"request-{number}", "method": "POST", "url": url, "body": body}


def requests(count):
    """Of both kinds in turn; rows do not end together."""
    return [request(number, TEXT if number % 3 else CHAT) for number in range(count)]


def write(path, lines):
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return path


def command(source, output, *options, drafted=True):
    draft = ["--draft", pair().draft, "--num-draft-tokens", 3] if drafted else []
    words = ["batch", "run", source, output, "--model", chatty(), "--batch-size", 4, *draft, *options]
    return [str(word) for word in words]


def answer_file(source, output, *options, **settings):
    return run(command(source, output, *options, **settings))


def lines_of(path):
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def lasting(lines):
    """``lines`` without what differs from run to run: when an answer was made, and its number."""
    return [
        {**line, "response": {**line["response"], "body": _lasting(line["response"]["body"])}}
        if line["response"]
        else line
        for line in lines
    ]


def _lasting(body):
    return {name: value for name, value in body.items() if name not in ("id", "created")}
