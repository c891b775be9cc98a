"""A sequence or conversation that grows turn by turn and keeps its KV cache between turns."""

from collections.abc import Iterator, Sequence
from typing import Unpack, final

from paceline.api.draft_length import NumDraftTokens
from paceline.api.drafter_like import DrafterLike, VerifierLike
from paceline.api.engine import Engine
from paceline.api.params import SamplingParams
from paceline.api.prompts import Message, encode
from paceline.api.requests import ParamsLike
from paceline.api.results import Piece, Result
from paceline.api.sampling_options import SamplingOptions, with_options
from paceline.api.targets import TargetLike


@final
class Session:
    """One row of a target that keeps its sequence between calls, as tokens (``send``) or as messages (``chat``).

    - ``target``, ``drafter`` (None), ``verifier`` ("coupled"), ``num_draft_tokens`` ("auto"), ``max_length`` (None),
      ``guidance`` (False): as in ``Engine``; ``max_length`` counts all turns.
    - ``messages`` (none): the conversation so far, such as a system message.

    Sampling parameters come as ``params``, as keywords, or as both where no field is given twice.
    A turn gives the tokens of one call with the whole sequence as its prompt, but reads only the new tokens. A turn
    that ends early, by Ctrl-C or because its stream was closed, keeps the tokens that it generated.
    """

    def __init__(
        self,
        target: TargetLike,
        *,
        drafter: DrafterLike = None,
        verifier: VerifierLike = "coupled",
        num_draft_tokens: NumDraftTokens = "auto",
        max_length: int | None = None,
        guidance: bool = False,
        messages: Sequence[Message] = (),
    ) -> None:
        self._engine = Engine(
            target,
            drafter=drafter,
            verifier=verifier,
            num_draft_tokens=num_draft_tokens,
            batch_size=1,
            max_length=max_length,
            guidance=guidance,
        )
        self._target = self._engine.target
        if self._target.lm.context_inputs:
            raise ValueError(
                f"{self._target.name} is an encoder-decoder, which has no turns: give paceline.generate texts"
            )
        self._tokens: list[int] = []
        self._messages: list[Message] = list(messages)
        self._result: Result | None = None

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens of all turns, prompts and outputs, stop tokens included."""
        return tuple(self._tokens)

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages of all ``chat`` turns."""
        return tuple(self._messages)

    @property
    def result(self) -> Result | None:
        """The result of the last turn."""
        return self._result

    def send(
        self, prompt: str | Sequence[int], params: SamplingParams | None = None, **options: Unpack[SamplingOptions]
    ) -> Result:
        """Append a text or token ids and generate; ``params`` None is ``SamplingParams()``.

        Raises what ``Engine.submit`` raises, and ValueError for ``n`` above 1; the session is then unchanged.
        """
        return self._finish(self._send(prompt, with_options(self.send, params, options)))

    def chat(self, content: str, params: SamplingParams | None = None, **options: Unpack[SamplingOptions]) -> Result:
        """Append a user message and generate the answer with the chat template; the answer is appended too.

        Raises what ``send`` raises, and ValueError without a chat template; the session is then unchanged.
        """
        return self._finish(self._chat(content, with_options(self.chat, params, options)))

    def stream(
        self, prompt: str | Sequence[int], params: SamplingParams | None = None, **options: Unpack[SamplingOptions]
    ) -> Iterator[Piece]:
        """As ``send``, piece by piece."""
        return self._send(prompt, with_options(self.stream, params, options))

    def stream_chat(
        self, content: str, params: SamplingParams | None = None, **options: Unpack[SamplingOptions]
    ) -> Iterator[Piece]:
        """As ``chat``, piece by piece."""
        return self._chat(content, with_options(self.stream_chat, params, options))

    def _send(self, prompt: str | Sequence[int], params: ParamsLike) -> Iterator[Piece]:
        if isinstance(prompt, str) and self._tokens and self._target.tokenizer is not None:
            added = self._target.tokenizer.encode(prompt, special=False)  # no second beginning-of-text token
        else:
            added = encode(self._target, prompt)
        return self._run([*self._tokens, *added], params, None)

    def _chat(self, content: str, params: ParamsLike) -> Iterator[Piece]:
        said = {"role": "user", "content": content}
        return self._run(encode(self._target, [*self._messages, said]), params, said)

    def _run(self, tokens: list[int], params: ParamsLike, said: Message | None) -> Iterator[Piece]:
        if isinstance(params, SamplingParams) and params.n > 1:
            raise ValueError(f"n={params.n}: a session continues one sequence; give n=1")
        stream = self._engine.submit(tokens, params)

        def pieces() -> Iterator[Piece]:
            try:
                yield from stream
            finally:
                stream.close()
                (self._result,) = stream.results()
                self._tokens = [*tokens, *self._result.token_ids]
                if said is not None:
                    self._messages += [said, {"role": "assistant", "content": self._result.text or ""}]

        return pieces()

    def _finish(self, pieces: Iterator[Piece]) -> Result:
        for _ in pieces:
            pass
        assert self._result is not None
        return self._result
