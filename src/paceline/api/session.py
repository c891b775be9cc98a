"""A text or conversation that grows turn by turn; what has been read once is not read again. Knows nothing of files."""

from collections.abc import Iterator, Sequence
from typing import final

from paceline.api.build import DrafterLike, VerifierLike
from paceline.api.engine import Engine
from paceline.api.loading import Loaded
from paceline.api.params import SamplingParams
from paceline.api.prompts import Message, encode
from paceline.api.results import Piece, Result
from paceline.core.plan import Plan


@final
class Session:
    """One row of a target that keeps its text between calls, as tokens (``send``) or as messages (``chat``).

    - ``drafter`` (None), ``verifier`` ("coupled"), ``num_draft_tokens`` (5), ``max_length`` (None), ``guidance``
      (False): as of ``Engine``; the length counts all turns.
    - ``messages`` (none): the conversation so far, such as a system message.

    The tokens of a turn are those of one call over the whole text: only the time differs. A turn that ends early, by
    Ctrl-C or because its stream was closed, leaves what it wrote.
    """

    def __init__(
        self,
        target: Loaded,
        *,
        drafter: DrafterLike = None,
        verifier: VerifierLike = "coupled",
        num_draft_tokens: int | Plan = 5,
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
        self._target = target
        self._tokens: list[int] = []
        self._messages: list[Message] = list(messages)
        self._result: Result | None = None

    @property
    def tokens(self) -> tuple[int, ...]:
        """The text of all turns, prompts and continuations; the token that ended a turn is part of it."""
        return tuple(self._tokens)

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation of all ``chat`` turns."""
        return tuple(self._messages)

    @property
    def result(self) -> Result | None:
        """Of the last turn."""
        return self._result

    def send(self, prompt: str | Sequence[int], params: SamplingParams | None = None) -> Result:
        """Append a text or token ids and continue the whole; None is ``SamplingParams()``.

        Raises ValueError, leaving the session as it was, for what ``Engine.submit`` refuses and for ``n`` above 1.
        """
        return self._finish(self.stream(prompt, params))

    def chat(self, content: str, params: SamplingParams | None = None) -> Result:
        """Append a user's message and let the model answer by its chat template; its answer joins the conversation.

        Raises ValueError, leaving the session as it was, as ``send`` does and without a chat template.
        """
        return self._finish(self.stream_chat(content, params))

    def stream(self, prompt: str | Sequence[int], params: SamplingParams | None = None) -> Iterator[Piece]:
        """As ``send``, piece by piece."""
        if isinstance(prompt, str) and self._tokens and self._target.tokenizer is not None:
            added = self._target.tokenizer.encode(prompt, special=False)  # the text has begun already
        else:
            added = encode(self._target, prompt)
        return self._run([*self._tokens, *added], params, None)

    def stream_chat(self, content: str, params: SamplingParams | None = None) -> Iterator[Piece]:
        """As ``chat``, piece by piece."""
        said = {"role": "user", "content": content}
        return self._run(encode(self._target, [*self._messages, said]), params, said)

    def _run(self, tokens: list[int], params: SamplingParams | None, said: Message | None) -> Iterator[Piece]:
        if params is not None and params.n > 1:
            raise ValueError(f"n={params.n}: a session goes on with one text; give n=1")
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
