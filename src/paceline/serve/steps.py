"""``steps`` of a stream: the draft of every step as a client draws it, and what was made of it."""

from collections.abc import Sequence
from functools import lru_cache
from math import isfinite

from paceline.api.results import Piece
from paceline.api.steps import Step
from paceline.serve.errors import ApiError
from paceline.serve.replies import spelled
from paceline.serve.schema import GenerationBody
from paceline.serve.settings import Settings
from paceline.text.tokenizer import Tokenizer


def check_steps(body: GenerationBody, settings: Settings) -> None:
    """Raise ApiError for a request of steps that this server does not give, and for one that is not a stream."""
    if body.return_steps and not settings.return_steps:
        reason = "this server tells nothing of its drafts, for what was accepted tells of a text; start it with"
        raise ApiError(400, f"return_steps: {reason} --return-steps on, or leave it out", param="return_steps")
    if body.return_steps and settings.stream_interval is not None:
        reason = f"this server sends {settings.stream_interval} tokens at a time, whatever a step gave; leave it out"
        raise ApiError(400, f"return_steps: {reason}", param="return_steps")
    if body.return_steps and not body.stream:
        raise ApiError(400, "return_steps without stream: give stream: true", param="return_steps")


def steps_of(tokenizer: Tokenizer, pieces: Sequence[Piece]) -> list[dict[str, object]]:
    """The steps that ``pieces`` of one output, whole steps of it, came from."""
    found: list[dict[str, object]] = []
    begin = 0
    for end, piece in enumerate(pieces, 1):
        if piece.step is not None:
            found.append(_step(tokenizer, piece.step, pieces[begin:end]))
            begin = end
    return found


def _step(tokenizer: Tokenizer, step: Step, pieces: Sequence[Piece]) -> dict[str, object]:
    draft, path = step.draft, step.draft.path
    own = {
        "node": None,
        "target_probability": _known(draft.own_raw),
        "sampled_probability": _known(draft.own_processed),
    }
    tokens: list[dict[str, object]] = []
    for at, piece in enumerate(pieces):
        known = own
        if at < len(path):
            known = {
                "node": path[at],
                "target_probability": _known(draft.raw[path[at]]),
                "sampled_probability": _known(draft.processed[path[at]]),
            }
        tokens.append(
            {"id": piece.token, "text": piece.text, "source": str(piece.source), "drafter": piece.origin, **known}
        )
    nodes: list[dict[str, object]] = []
    for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
        after = draft.tokens[parent] if node else None
        nodes.append(
            {
                "id": token,
                "text": _text_after(tokenizer, after, token),
                "parent": parent if node else None,
                "drafter": step.drafters[node],
                "draft_probability": _known(draft.drafted[node]),
                "target_probability": _known(draft.raw[node]),
                "sampled_probability": _known(draft.processed[node]),
            }
        )
    seconds = step.seconds
    return {
        "step": step.number,
        "tokens": tokens,
        "nodes": nodes,
        "accepted": list(path),
        "no_draft": step.no_draft,
        "seconds": {
            "draft": seconds.draft,
            "target": seconds.score,
            "decide": seconds.decide,
            "rest": seconds.rest,
            "total": seconds.total,
        },
        "outputs": step.num_rows,
        "plain_tokens_per_second": None if step.speed is None else step.speed.plain,
    }


def _known(probability: float) -> float | None:
    return probability if isfinite(probability) else None


@lru_cache(maxsize=65536)
def _text_after(tokenizer: Tokenizer, before: int | None, token: int) -> str:
    """What ``token`` adds to a text that ends in ``before``; alone, some tokenizers take its space for padding."""
    text = spelled(tokenizer, token)
    if before is None:
        return text
    first, both = spelled(tokenizer, before), tokenizer.decode([before, token], skip_special=False)
    return both[len(first) :] if both.startswith(first) else text
