"""The model that answers: one row of an engine that keeps what it has read between two answers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast, final

from paceline.api import Engine, Loaded, SamplingParams, Stream
from paceline.api.draft_length import NumDraftTokens
from paceline.api.drafter_like import DrafterLike, OneDrafter, check_one
from paceline.api.profiles import ProfileLike
from paceline.cli.chat.conversation import Messages
from paceline.cli.chat.forms import Form, encode, stops_of
from paceline.cli.draft_options import NO_DRAFTER, DraftOptions
from paceline.core.noise import split_seed

GIVEN = "model"  # names the draft model or head of the command line
MOST_DRAFT_TOKENS = 64  # that can be asked for


@dataclass(frozen=True, slots=True)
class Drafting:
    """What drafts and how much; ``name`` is what the user called it."""

    drafter: DrafterLike
    name: str
    length: NumDraftTokens = "auto"
    on: bool = True

    def describe(self) -> str:
        """In words; the same for what drafts in the same way."""
        if not self.name:
            return "no drafter"
        return f"drafter {self.name}, depth {self.length}" if self.on else f"drafter {self.name} (off)"


@final
class Answerer:
    """Answers conversations in one row, with a drafter that can be changed between two answers.

    ``max_length`` (None: the engine's default) is of the whole conversation. Raises what ``Engine`` raises.
    """

    def __init__(
        self,
        target: Loaded,
        *,
        form: Form,
        options: DraftOptions,
        max_length: int | None = None,
        profile: ProfileLike = "auto",
        rejected: bool = False,
    ) -> None:
        self.target, self.form = target, form
        self._verifier, self._max_length, self._profile, self._rejected = (
            options.verifier,
            max_length,
            profile,
            rejected,
        )
        chosen = options.choose(target) if options.drafts else None
        # What /drafter model means: the draft model or head of the command line.
        draft = chosen[-1] if isinstance(chosen, list) else chosen
        self._draft = None if options.draft is None else cast(OneDrafter, draft)
        names = [] if options.drafter in (None, GIVEN, NO_DRAFTER) else [str(options.drafter)]
        names += [] if options.draft is None else [GIVEN]
        self.drafting = Drafting(chosen, " ".join(names), options.count, on=options.drafts)
        self._guided = False
        self._engine: Engine | None = None
        self._open()

    @property
    def engine(self) -> Engine:
        """The engine with what is set now."""
        return self._engine or self._open()

    @property
    def origins(self) -> Sequence[str]:
        """The names of what drafts; none where nothing does."""
        return self.engine.decoder.drafter.origins if self.drafting.on else ()

    @property
    def max_length(self) -> int:
        """Tokens of the longest conversation, answers included."""
        return self.engine.decoder.batch.max_length

    def switch(self, on: bool) -> None:
        """Draft or do not. Raises ValueError where there is no drafter."""
        if on and not self.drafting.name:
            raise ValueError("/drafter on: no drafter was given; name one, such as /drafter ngram")
        self._change(replace(self.drafting, on=on))

    def choose(self, names: Sequence[str]) -> None:
        """Draft by what is named: one of several is chosen for every step. Raises ValueError where that is none."""
        drafters = [self._named(name) for name in names]
        for drafter in drafters:
            check_one(drafter)
        chosen: DrafterLike = drafters[0] if len(drafters) == 1 else drafters
        self._change(Drafting(chosen, " ".join(names), self.drafting.length))

    def set_length(self, length: NumDraftTokens) -> None:
        """Draft so many tokens in a step. Raises ValueError where that is not possible."""
        if isinstance(length, int) and not 1 <= length <= MOST_DRAFT_TOKENS:
            raise ValueError(f"/depth {length}: give 1 to {MOST_DRAFT_TOKENS}, or auto; /drafter off drafts nothing")
        self._change(replace(self.drafting, length=length))

    def submit(self, messages: Messages, params: SamplingParams, *, number: int) -> Stream:
        """The answer to ``messages`` as a stream. A seed is split by the ``number`` of the answer.

        It is cut to the room that is left. Raises ValueError where there is none, and what ``Engine.submit`` raises.
        """
        if (params.guidance_scale != 1) != self._guided:
            self._guided = not self._guided
            self._engine = None
        tokens = encode(self.form, self.target, messages)
        room = self.max_length - len(tokens)
        if room < 1:
            raise ValueError(
                f"the conversation has {len(tokens)} tokens, and there is room for {self.max_length} with the answer: "
                "take back messages by /undo, begin anew by /clear, or start with a greater --max-length"
            )
        stops = (*params.stop_strings, *stops_of(self.form))
        params = replace(
            params,
            stop=stops or None,
            max_tokens=room if params.max_tokens is None else min(params.max_tokens, room),
            min_tokens=min(params.min_tokens, room),
            seed=None if params.seed is None else split_seed(params.seed, number),
        )
        return self.engine.submit(tokens, params, rejected=self._rejected and self.drafting.on)

    def reset(self) -> None:
        """Begin with a new engine, after one that has failed."""
        self._engine = None

    def _named(self, name: str) -> OneDrafter:
        if name != GIVEN:
            return name
        if self._draft is None:
            raise ValueError("/drafter model: no draft model was given; start with --draft DIR, or name its directory")
        return self._draft

    def _change(self, drafting: Drafting) -> None:
        """Take ``drafting``, or what there was where that fails. What was read is read again by the next answer."""
        if drafting.describe() == self.drafting.describe():
            self.drafting = drafting
            return
        before, self.drafting = self.drafting, drafting
        try:
            self._open()
        except Exception:
            self.drafting, self._engine = before, None
            raise

    def _open(self) -> Engine:
        self._engine = None  # its caches first: there may be no room for both
        drafting = self.drafting
        self._engine = Engine(
            self.target,
            drafter=drafting.drafter if drafting.on else None,
            verifier=self._verifier,
            num_draft_tokens=drafting.length if drafting.on else "auto",
            batch_size=1,
            max_length=self._max_length,
            guidance=self._guided,
            profile=self._profile if drafting.on and drafting.length == "auto" else "auto",
        )
        return self._engine
