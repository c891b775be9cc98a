"""Answers of ``/v1/completions``."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from paceline.api.params import SamplingParams
from paceline.api.results import Piece, Result
from paceline.serve.errors import ApiError
from paceline.serve.generation import Answer
from paceline.serve.replies import completion_logprobs, prompt_logprobs, reason_of
from paceline.serve.sampling import completion_params
from paceline.serve.schema import CompletionBody


@final
class CompletionAnswer(Answer):
    """Of ``/v1/completions``."""

    kind, chunk_kind, prefix = "text_completion", "text_completion", "cmpl"
    body: CompletionBody

    def params(self) -> SamplingParams:
        if self.body.echo and self.body.stream:
            raise ApiError(400, "echo with stream: give one of them", param="echo")
        self._begun: set[int] = set()  # choices that an event was sent for
        return completion_params(self.body, self.server.settings.limits)

    async def prompts(self, params: SamplingParams) -> list[Any]:
        asked = self.body.prompt
        given: list[Any] = [asked] if isinstance(asked, str) or (asked and isinstance(asked[0], int)) else list(asked)
        if not given:
            raise ApiError(400, "prompt: an empty list; give a text, token ids, or a list of these", param="prompt")
        for text in given:
            if isinstance(text, str):
                self.server.check_text(text, "prompt")
        if self.server.reads_sources:
            self._check_source_options()
        elif self._needs_tokens:
            given = await asyncio.to_thread(self._encoded, given, params)
        self._given = given
        return given

    @property
    def _needs_tokens(self) -> bool:
        body = self.body
        return body.truncate_prompt_tokens is not None or body.return_token_ids or not body.add_special_tokens

    def _encoded(self, given: list[Any], params: SamplingParams) -> list[list[int]]:
        special = self.body.add_special_tokens
        encode = self.server.tokenizer.encode
        tokens = [encode(one, special=special) if isinstance(one, str) else one for one in given]
        return [self.server.truncated(one, self.body, params) for one in tokens]

    def _check_source_options(self) -> None:
        """Raise ApiError for what is about the tokens of a prompt, which an encoder reads in another way."""
        asked = {
            "echo": self.body.echo,
            "truncate_prompt_tokens": self.body.truncate_prompt_tokens is not None,
            "add_special_tokens": not self.body.add_special_tokens,
            "prompt_logprobs": self.body.prompt_logprobs is not None,
        }
        name = next((name for name, given in asked.items() if given), None)
        if name is not None:
            raise ApiError(400, f"{name}: the prompt is read by an encoder: leave it out", param=name)

    def choice(self, result: Result) -> dict[str, object]:
        body, score = self.body, result.prompt_logprobs
        text, tokens, found = result.text or "", list(result.token_ids), list[Any](result.logprobs or ())
        prompt = ""
        if body.echo:
            prompt = self.server.tokenizer.decode(result.prompt_tokens)
        if body.echo and body.logprobs is not None and score is not None:
            before = [
                None if value is None else _Scored(value, (top or ())[: body.logprobs])
                for value, top in zip(score.logprobs, score.top, strict=True)
            ]
            tokens, found = [*score.tokens, *tokens], [*before, *found]
        more: dict[str, object] = {}
        if body.prompt_logprobs is not None:
            more["prompt_logprobs"] = (
                None if score is None else prompt_logprobs(self.server.tokenizer, score, most=body.prompt_logprobs)
            )
        if body.return_token_ids:
            more |= {"prompt_token_ids": list(result.prompt_tokens), "token_ids": list(result.token_ids)}
        return {
            "index": self.number(result),
            "text": prompt + text,
            "logprobs": self._logprobs(tokens, found),
            "finish_reason": reason_of(result),
            "stop_reason": result.stop_reason,
            **more,
        }

    def change(self, number: int, pieces: Sequence[Piece]) -> dict[str, object]:
        tokens = [piece.token for piece in pieces]
        more: dict[str, object] = {}
        if self.body.return_token_ids:
            more["token_ids"] = tokens
            if number not in self._begun:
                self._begun.add(number)
                more["prompt_token_ids"] = None if self.server.reads_sources else self._given[number // self.body.n]
        return {
            "text": "".join(piece.text for piece in pieces),
            "logprobs": self._logprobs(tokens, [piece.logprob for piece in pieces]),
            "finish_reason": reason_of(pieces[-1]),
            **more,
        }

    def _logprobs(self, tokens: Sequence[int], found: Sequence[Any]) -> dict[str, object] | None:
        if self.body.logprobs is None:
            return None
        as_ids = self.body.return_tokens_as_token_ids
        return completion_logprobs(self.server.tokenizer, tokens, found, as_ids=as_ids)


@dataclass(frozen=True, slots=True)
class _Scored:
    """A prompt's token as ``completion_logprobs`` reads it."""

    raw: float
    top_raw: Sequence[tuple[int, float]]
