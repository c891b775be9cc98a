"""A server of the tiny pair whose chat template knows tools and reasoning, and whose tokenizer has their marks."""

import atexit
import json
import shutil
import tempfile
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path

import httpx
import openai

from paceline.api import Engine, load
from paceline.serve.app import make_app
from paceline.serve.settings import Limits, Settings
from tests.api.checkpoints import make_tokenizer, pair

TEMPLATE = (
    "{% if tools %}<tools>{% for tool in tools %}{{ tool.function.name }} {% endfor %}{% endif %}"
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}"
    "{% for call in message.tool_calls or [] %}CALL {{ call.function.name }} {{ call.function.arguments | tojson }}"
    "{% endfor %}{% endfor %}{% if add_generation_prompt %}<assistant>"
    "{% if enable_thinking is defined and enable_thinking %}<think>{% endif %}{% endif %}{# tools MARK #}"
)
MARKS = {"<tool_call>": False, "</tool_call>": False, "<think>": False, "</think>": False, "[TOOL_CALLS]": True}
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 4},
        "days": {"type": "integer", "minimum": 0, "maximum": 99},
        "unit": {"enum": ["C", "F"]},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "of a city", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "now"}},
]
USER = [{"role": "user", "content": "x = 1"}]
CHAT = {"messages": USER, "max_tokens": 160, "temperature": 1.0, "seed": 3}


@cache
def directories():
    """Of the target and of its draft model, with a tokenizer that has the marks as tokens."""
    root = Path(tempfile.mkdtemp(prefix="paceline-tests-"))
    atexit.register(shutil.rmtree, root)
    for name in ("target", "draft"):
        shutil.copytree(getattr(pair(), name), root / name)
        tokenizer = make_tokenizer()
        for mark, special in MARKS.items():
            (tokenizer.add_special_tokens if special else tokenizer.add_tokens)([mark])
        tokenizer.save(str(root / name / "tokenizer.json"))
    return root


@cache
def target(hint="<tool_call>"):
    found = load(directories() / "target")
    found.tokenizer.inner.chat_template = TEMPLATE.replace("MARK", hint)
    return found


def token(mark):
    return target().tokenizer.encode(mark)[0]


def engine(hint="<tool_call>", **options):
    drafter = str(directories() / "draft")
    return Engine(target(hint), **{"drafter": drafter, "num_draft_tokens": 3, "batch_size": 4, **options})


@asynccontextmanager
async def serving(*, hint="<tool_call>", limits=None, drafted=True, **settings):
    """A client of a server that runs, and OpenAI's own."""
    served = engine(hint) if drafted else engine(hint, drafter=None, num_draft_tokens="auto")
    app = make_app(served, Settings(names=("tiny",), limits=limits or Limits(), **settings))
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=60) as client:
            theirs = openai.AsyncOpenAI(api_key="x", base_url="http://test/v1", http_client=client, max_retries=0)
            yield client, theirs


def gathered(chunks):
    """The message of each choice of a stream, with its reason to end, as a whole answer has them."""
    found = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            own = found.setdefault(choice["index"], {"content": "", "reasoning": "", "calls": {}, "reason": None})
            delta = choice["delta"]
            assert delta.get("reasoning_content") == delta.get("reasoning")
            own["content"] += delta.get("content") or ""
            own["reasoning"] += delta.get("reasoning") or ""
            for call in delta.get("tool_calls", ()):
                known = own["calls"].get(call["index"])
                if known is None:
                    assert call["type"] == "function" and call["id"] and call["function"]["name"]
                    assert call["index"] == len(own["calls"])
                    known = own["calls"][call["index"]] = [call["function"]["name"], ""]
                else:
                    assert set(call) == {"index", "function"} and set(call["function"]) == {"arguments"}
                known[1] += call["function"]["arguments"]
            own["reason"] = choice["finish_reason"] or own["reason"]
    return [{**own, "calls": list(own["calls"].values())} for _, own in sorted(found.items())]


def whole(answer):
    """The same of an answer that is not streamed."""
    return [
        {
            "content": choice["message"]["content"] or "",
            "reasoning": choice["message"].get("reasoning") or "",
            "calls": [
                [one["function"]["name"], one["function"]["arguments"]]
                for one in choice["message"].get("tool_calls", ())
            ],
            "reason": choice["finish_reason"],
        }
        for choice in answer["choices"]
    ]


def check_call(name, arguments):
    """Raise unless the arguments of a call match the schema of its function."""
    found = json.loads(arguments)
    if name == "now":
        assert found == {}
        return
    assert name == "weather" and {"city", "days"} <= set(found) <= {"city", "days", "unit"}
    assert len(found["city"]) <= 4 and 0 <= found["days"] <= 99 and found.get("unit", "C") in ("C", "F")
