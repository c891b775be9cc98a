"""Answers of ``/v1/chat/completions``: text, reasoning, and calls of tools."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from paceline.api.params import SamplingParams
from paceline.api.results import Piece, Result
from paceline.api.structured import StructuredOutputs
from paceline.serve.answer_grammar import Thought, answer_grammar, schema_of
from paceline.serve.chat_prompts import chat_tokens, template_options, text_of
from paceline.serve.errors import ApiError
from paceline.serve.generation import Answer
from paceline.serve.message_parts import Parts
from paceline.serve.message_reader import MessageReader
from paceline.serve.reasoning import REASONING_FORMATS
from paceline.serve.replies import chat_logprobs, prompt_logprobs, reason_of
from paceline.serve.sampling import chat_params
from paceline.serve.schema import ChatBody
from paceline.serve.tools import Tools, read_tools

QUOTED = re.compile(r"\s+\d+ \| ")  # before the lines of a grammar that llguidance's errors quote
TAIL = 32  # tokens at the end of a prompt that may open reasoning


class ChatAnswer(Answer):
    """Of ``/v1/chat/completions``."""

    kind, chunk_kind, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl"
    body: ChatBody
    tools: Tools | None = None
    thought: Thought | None = None

    def params(self) -> SamplingParams:
        body = self.body
        params = chat_params(body, self.server.settings.limits)
        if body.add_special_tokens:
            reason = "add_special_tokens: the chat template writes them: leave it out"
            raise ApiError(400, reason, param="add_special_tokens")
        self.tools = read_tools(body, self.server.settings, self.server.tokenizer.template)
        last = body.messages[-1]
        self._echoed = text_of(last, "messages") if body.echo and last.role == "assistant" else ""
        self._source: str | None = None  # the field that a grammar was made of
        self._readers: dict[int, MessageReader] = {}  # of the choices of a stream
        return params

    async def prompts(self, params: SamplingParams) -> list[Any]:
        body = self.body
        tokens = await chat_tokens(
            self.server,
            body.messages,
            add_generation_prompt=body.add_generation_prompt and not body.continue_final_message,
            continue_final_message=body.continue_final_message,
            tools=None if self.tools is None else list(self.tools.given),
            variables=template_options(body, self.server.tokenizer, self.server.settings.limits),
        )
        self._prompt = self.server.truncated(tokens, body, params)
        return [self._prompt]

    def bound(self, params: SamplingParams, prompts: Sequence[Any]) -> SamplingParams:
        """With the grammar of calls, after the reasoning that the prompt may have opened."""
        name, tokenizer = self.server.settings.reasoning_parser, self.server.tokenizer
        if name is not None:
            form = REASONING_FORMATS[name]
            begins = form.begins(tokenizer.decode(self._prompt[-TAIL:], skip_special=False))
            self.thought = Thought(form=form, beginning=begins)
        tools = self.tools if self.tools is not None and self.tools.callable else None
        marks = [] if tools is None else [tools.form.mark]
        marks += [] if self.thought is None else [self.thought.form.opening, self.thought.form.closing]
        tokens = [tokenizer.added_token(mark) for mark in marks]
        if any(token is not None and tokenizer.is_special(token) for token in tokens):  # else they were left out
            params = replace(params, skip_special_tokens=False)
        asked = params.structured_outputs
        schema = schema_of(asked) if isinstance(asked, StructuredOutputs) else None
        self._check_format(params, tools, schema)
        if tools is None and (schema is None or self.thought is None):
            return params
        self._source = "response_format" if tools is None else "tools"
        grammar = answer_grammar(tokenizer, tools=tools, thought=self.thought, schema=schema)
        return replace(params, structured_outputs={"grammar": grammar})

    def refusal(self, error: Exception) -> Exception:
        """Of a grammar that was made here, without the grammar."""
        _, found, reason = str(error).partition("structured_outputs: grammar: ")
        if not found or self._source is None:
            return error
        return ApiError(400, f"{self._source}: {QUOTED.split(reason)[0]}", param=self._source)

    def _check_format(self, params: SamplingParams, tools: Tools | None, schema: object) -> None:
        """Raise ApiError for a format that cannot be had beside calls or reasoning."""
        if params.structured_outputs is None:
            return
        param = "response_format" if self.body.response_format is not None else "structured_outputs"
        if tools is not None and (tools.required or schema is None or not tools.form.marked):
            raise ApiError(400, f"{param}: the answer may be a call: leave it out, or tools", param=param)
        if schema is None and self.thought is not None and self.thought.beginning in ("inside", "assumed"):
            reason = f"{param}: the answer begins with reasoning, after which only JSON is bound: give a JSON schema"
            raise ApiError(400, reason, param=param)

    def opening(self) -> Iterable[dict[str, object]]:
        for index in range(self.body.n):
            more = {"prompt_token_ids": self._prompt} if self.body.return_token_ids else {}
            delta = {"role": "assistant", "content": self._echoed}
            yield {"index": index, "delta": delta, "finish_reason": None, **more}

    def root(self, results: Sequence[Result]) -> dict[str, object]:
        found: dict[str, object] = {}
        score = results[0].prompt_logprobs
        if self.body.prompt_logprobs is not None and score is not None:
            found["prompt_logprobs"] = prompt_logprobs(self.server.tokenizer, score, most=self.body.prompt_logprobs)
        if self.body.return_token_ids:
            found["prompt_token_ids"] = self._prompt
        return found

    def choice(self, result: Result) -> dict[str, object]:
        parts = self.reader().whole(result.text or "")
        pairs = None if result.logprobs is None else list(zip(result.token_ids, result.logprobs, strict=True))
        return {
            "index": self.number(result),
            "message": self._message(parts),
            "logprobs": self.logprobs(pairs),
            "finish_reason": self._reason(reason_of(result), called=bool(parts.calls)),
            "stop_reason": result.stop_reason,
            **({"token_ids": list(result.token_ids)} if self.body.return_token_ids else {}),
        }

    def change(self, number: int, pieces: Sequence[Piece]) -> dict[str, object] | None:
        reader = self._readers.setdefault(number, self.reader())
        reason = reason_of(pieces[-1])
        parts = reader.push("".join(piece.text for piece in pieces), ended=reason is not None)
        pairs = [(piece.token, piece.logprob) for piece in pieces if piece.logprob is not None]
        asked = self.body.return_token_ids or self.body.return_steps
        if parts.empty and reason is None and not pairs and not asked:
            return None
        return {
            "delta": self._delta(parts),
            "logprobs": self.logprobs(pairs or None),
            "finish_reason": self._reason(reason, called=reader.called),
            **({"token_ids": [piece.token for piece in pieces]} if self.body.return_token_ids else {}),
        }

    def reader(self) -> MessageReader:
        """A reader of one output's text."""
        return MessageReader(self.tools, self.thought)

    def _message(self, parts: Parts) -> dict[str, object]:
        content = self._echoed + parts.content
        message: dict[str, object] = {"role": "assistant", "content": content}
        if not content and (parts.calls or parts.reasoning):
            message["content"] = None
        if self.thought is not None and self.body.include_reasoning:
            message |= dict.fromkeys(("reasoning_content", "reasoning"), parts.reasoning or None)
        if parts.calls:
            message["tool_calls"] = [call.json for call in parts.calls]
        return message

    def _delta(self, parts: Parts) -> dict[str, object]:
        delta: dict[str, object] = {}
        if parts.content or (self.thought is None and self.tools is None):
            delta["content"] = parts.content
        if parts.reasoning and self.body.include_reasoning:
            delta |= dict.fromkeys(("reasoning_content", "reasoning"), parts.reasoning)
        if parts.calls:
            delta["tool_calls"] = [{"index": call.index, **call.json} for call in parts.calls]
        return delta

    def logprobs(self, pairs: Sequence[tuple[int, Any]] | None) -> dict[str, Any] | None:
        """Those of tokens."""
        if pairs is None:
            return None
        return chat_logprobs(self.server.tokenizer, pairs, as_ids=self.body.return_tokens_as_token_ids)

    @staticmethod
    def _reason(reason: str | None, *, called: bool) -> str | None:
        return "tool_calls" if called and reason == "stop" else reason
