"""The course of a conversation: what the user writes is answered or, after a slash, obeyed."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

from paceline.api import Result, SamplingParams, Stream
from paceline.cli.chat.answering import Answerer
from paceline.cli.chat.conversation import Conversation, Messages
from paceline.cli.chat.forms import Form, content_of
from paceline.cli.chat.interruption import Interruption
from paceline.cli.chat.reader import Reader
from paceline.cli.chat.report import Tally, summary
from paceline.cli.chat.screen import Screen, Writer
from paceline.cli.command import EXIT_DIFFERENT, EXIT_INTERRUPTED, EXIT_OK


def as_written(message: str) -> str:
    """How a message is written: a slash at its beginning twice."""
    return f"/{message}" if message.startswith("/") else message


@final
@dataclass(slots=True, kw_only=True)
class Dialogue:
    """A conversation and all that belongs to it. With ``stays`` Ctrl-C ends an answer alone, else everything.

    ``obey`` runs what is said after a slash (chat/commands).
    """

    answerer: Answerer
    conversation: Conversation
    params: SamplingParams
    screen: Screen
    reader: Reader
    obey: Callable[["Dialogue", str], None]
    stays: bool
    default: str = ""  # what the next message begins with
    leaves: bool = False
    tallies: dict[str, Tally] = field(default_factory=dict[str, Tally])  # by what drafted
    _num_answers: int = 0  # begun so far
    _failed: bool = False
    _interrupted: bool = False

    def run(self) -> int:
        """Read, answer and obey until the user leaves; the exit code."""
        while not self.leaves:
            default, self.default = self.default, ""
            try:
                said = self.reader.read(default)
                if said is None:
                    break
                self.take(said)
            except KeyboardInterrupt:
                self._interrupted = self.leaves = True
            except (ValueError, OSError) as error:
                self._failed = True
                self.screen.error(str(error))
        if self._interrupted:
            return EXIT_INTERRUPTED
        return EXIT_DIFFERENT if self._failed and not self.stays else EXIT_OK

    def take(self, said: str) -> None:
        """Answer a message, or obey a command; two slashes begin a message with one."""
        if not said.strip():
            return
        if said.startswith("/") and not said.startswith("//"):
            self.obey(self, said)
            return
        try:
            self.answer(self.conversation.asked(said[said.startswith("//") :]))
        except ValueError:
            self.default = said
            raise

    def answer(self, messages: Messages) -> None:
        """Answer ``messages``, of which the last is the user's, and print it. They are kept if anything came.

        Raises ValueError for what cannot be answered, and KeyboardInterrupt where Ctrl-C ends the conversation.
        """
        start, result = time.perf_counter(), None
        with Interruption() as interruption:
            try:
                stream = self.answerer.submit(messages, self.params, number=self._num_answers)
                self._num_answers += 1
                result = self._print(stream, interruption)
            except KeyboardInterrupt:  # before the answer was submitted
                pass
        if result is not None and result.token_ids:
            self._keep(messages, result, time.perf_counter() - start, interrupted=interruption.asked)
        elif interruption.asked:
            self.default = as_written(messages[-1]["content"])
            self.screen.note("stopped before the answer began: your message is taken back")
        if interruption.asked and (interruption.count > 1 or not self.stays):
            raise KeyboardInterrupt

    def _print(self, stream: Stream, interruption: Interruption) -> Result:
        """Print what comes until it ends, by itself or by Ctrl-C. Raises ValueError where it fails."""
        writer = self.screen.writer(tuple(self.answerer.origins))
        try:
            self._put(stream, writer, interruption)
        except KeyboardInterrupt:
            pass
        except Exception as error:
            self.answerer.reset()
            writer.end("")
            raise ValueError(f"the answer failed: {error}") from error
        stream.close()
        (result,) = stream.results()
        writer.end(result.text or "")
        if result.error is not None:
            raise ValueError(f"the answer failed: {result.error}")
        return result

    def _put(self, stream: Stream, writer: Writer, interruption: Interruption) -> None:
        begins = self.answerer.form is Form.TRANSCRIPT  # with a space, after its name
        for piece in stream:
            text = piece.text.lstrip() if begins else piece.text
            begins = begins and not text
            writer.put(piece, text)
            interruption.begun = True
            if interruption.asked:
                return

    def _keep(self, messages: Messages, result: Result, seconds: float, *, interrupted: bool) -> None:
        self.conversation.answer(messages, content_of(self.answerer.form, result.text or ""))
        self.tallies.setdefault(self.answerer.drafting.describe(), Tally()).add(result, seconds)
        said = summary(result, self.answerer.drafting, max_tokens=self.params.max_tokens)
        self.screen.note(f"{said}; stopped by you" if interrupted else said)
