"""The items of a response: reasoning, messages, and calls, as an answer's text brings them one after another."""

import uuid
from collections.abc import Iterator
from typing import Any, Literal, TypeAlias, final

from paceline.serve.message_parts import CallPart, Parts

Event: TypeAlias = dict[str, Any]
Status: TypeAlias = Literal["in_progress", "completed", "incomplete"]
PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc"}
PARTS = {"message": "output_text", "reasoning": "reasoning_text"}


@final
class Items:
    """Builds the items of one response from the parts of its text, and says in events what each part adds.

    A whole response is made by it as a stream is, of one part; so both have the same items.
    """

    def __init__(self) -> None:
        self.output = list[dict[str, Any]]()  # the last one may still grow
        self._is_open = False
        self._call: int | None = None  # the number of the call that the last item is

    def push(self, parts: Parts, logprobs: list[dict[str, Any]] | None = None) -> Iterator[Event]:
        """What ``parts`` add, reasoning first. ``logprobs`` are those of the tokens of a message."""
        if parts.reasoning:
            yield from self._grow("reasoning", parts.reasoning)
        if parts.content or logprobs:
            yield from self._grow("message", parts.content, logprobs)
        for call in parts.calls:
            yield from self._grow_call(call)

    def finish(self, status: Status) -> Iterator[Event]:
        """The end of the response, whose last item ends with ``status``. One without any has an empty message."""
        if not self.output:
            yield from self._grow("message", "")
        yield from self._close(status)

    def _close(self, status: Status) -> Iterator[Event]:
        """The end of the last item, if it goes on."""
        if not self._is_open:
            return
        item, self._is_open = self.output[-1], False
        if item["type"] == "function_call":
            yield self._event("function_call_arguments.done", arguments=item["arguments"])
        else:
            (part,) = item["content"]
            more = {"logprobs": part["logprobs"]} if item["type"] == "message" else {}
            yield self._event(f"{part['type']}.done", content_index=0, text=part["text"], **more)
            yield self._event("content_part.done", content_index=0, part=dict(part))
        item["status"] = status
        yield {"type": "response.output_item.done", "output_index": len(self.output) - 1, "item": dict(item)}

    def _grow(self, kind: str, text: str, logprobs: list[dict[str, Any]] | None = None) -> Iterator[Event]:
        if not self._is_open or self.output[-1]["type"] != kind:
            more = {"role": "assistant"} if kind == "message" else {"summary": []}
            yield from self._open(kind, content=[], **more)
            part: dict[str, Any] = {"type": PARTS[kind], "text": ""}
            part |= {"annotations": [], "logprobs": []} if kind == "message" else {}
            self.output[-1]["content"] = [part]
            yield self._event("content_part.added", content_index=0, part=dict(part))
        (part,) = self.output[-1]["content"]
        part["text"] += text
        if kind == "message":
            part["logprobs"] += logprobs or []
        more = {"logprobs": logprobs or []} if kind == "message" else {}
        yield self._event(f"{PARTS[kind]}.delta", content_index=0, delta=text, **more)

    def _grow_call(self, call: CallPart) -> Iterator[Event]:
        if not self._is_open or self._call != call.index:
            yield from self._open("function_call", call_id=call.id, name=call.name, arguments="")
            self._call = call.index
        if call.arguments:
            self.output[-1]["arguments"] += call.arguments
            yield self._event("function_call_arguments.delta", delta=call.arguments)

    def _open(self, kind: str, **fields: object) -> Iterator[Event]:
        yield from self._close("completed")
        item = {"id": f"{PREFIXES[kind]}_{uuid.uuid4().hex}", "type": kind, "status": "in_progress", **fields}
        self.output.append(item)
        self._is_open, self._call = True, None
        yield {"type": "response.output_item.added", "output_index": len(self.output) - 1, "item": dict(item)}

    def _event(self, name: str, **fields: object) -> Event:
        item, number = self.output[-1], len(self.output) - 1
        return {"type": f"response.{name}", "item_id": item["id"], "output_index": number, **fields}
