"""The embedded pair with a template for chats, behind `paceline serve` in a process of its own."""

import json
import shutil
import subprocess
import sys
from contextlib import contextmanager

from paceline.api import embedded_pair
from tests.clients.venvs import FOLDER

NAME = "paceline-demo"
TEMPLATE = (
    "{% for message in messages %}# {{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}# assistant: {% endif %}"
)


def model():
    """The folder of the target with the template."""
    target = FOLDER.resolve() / NAME
    if not target.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        shutil.copytree(embedded_pair()[0], target)
        file = target / "tokenizer_config.json"
        known = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps({**known, "chat_template": TEMPLATE}, indent=2))
    return target


@contextmanager
def serving(*options):
    """Its address, such as http://127.0.0.1:1234."""
    words = ["serve", model(), "--draft", embedded_pair()[1], "--dtype", "float32", "--threads", "1", "--port", "0"]
    words += ["--served-model-name", NAME, "--enable-per-request-metrics", *options]
    command = [sys.executable, "-m", "paceline", *map(str, words)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            said = []
            for line in process.stderr:
                said.append(line)
                if line.startswith("Paceline serves "):
                    break
            else:
                raise RuntimeError(f"the server did not start: {''.join(said)}")
            yield said[-1].split()[-1].removesuffix("/v1")
        finally:
            process.terminate()
            process.wait(60)
