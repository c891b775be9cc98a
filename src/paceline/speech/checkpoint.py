"""What a speech checkpoint says beside its weights: special tokens, limits and defaults of generation_config.json."""

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

TRANSCRIBE, TRANSLATE = "transcribe", "translate"
TASKS = (TRANSCRIBE, TRANSLATE)
STRIDE = 2  # frames of features per position of the encoder, by its two convolutions
FILE = "generation_config.json"
TOP_K = 50  # what transformers samples from where a checkpoint says nothing


class CheckpointError(ValueError):
    """A checkpoint that cannot transcribe, or an option that it cannot follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The tokens and limits of one checkpoint.

    ``languages`` and ``tasks`` are token ids by "<|en|>" and by name; a checkpoint for English alone has neither.
    ``first_timestamp`` is the id of <|0.00|>; ``no_timestamps`` that of the token before it, which stands in prompts
    of outputs without timestamps.
    """

    name: str
    start: int
    eos: int
    no_timestamps: int
    languages: Mapping[str, int]
    tasks: Mapping[str, int]
    multilingual: bool
    previous: int | None  # <|startofprev|>
    suppressed: tuple[int, ...]
    suppressed_first: tuple[int, ...]
    forced: tuple[int, ...]  # after the start token, of checkpoints without languages
    max_initial_timestamp: int | None
    by_probability: bool  # whether timestamps win by the sum of their probabilities
    max_length: int | None
    positions: int  # most tokens of prompt and output
    frames: int  # of one window
    vocab_size: int
    top_k: int
    top_p: float
    defaults: Mapping[str, object]  # of the other options

    @property
    def first_timestamp(self) -> int:
        """The id of <|0.00|>."""
        return self.no_timestamps + 1

    def language_token(self, language: str) -> int:
        """The token id of a language: its name, its code or its token. Raises CheckpointError, naming near ones."""
        from transformers.models.whisper.tokenization_whisper import TO_LANGUAGE_CODE

        word = language.lower()
        code = word.removeprefix("<|").removesuffix("|>")
        token = f"<|{TO_LANGUAGE_CODE.get(code, code)}|>"
        if token in self.languages:
            return self.languages[token]
        own = [key[2:-2] for key in self.languages]
        names = [name for name, code in TO_LANGUAGE_CODE.items() if code in own]
        near = difflib.get_close_matches(word, [*names, *own], n=3, cutoff=0.6)
        known = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(sorted(own))}"
        raise CheckpointError(f"language {language!r}: {self.name} has no token for it; {known}")

    def language_name(self, token: int) -> str:
        """The code of a language token."""
        return next(key[2:-2] for key, known in self.languages.items() if known == token)


def read_checkpoint(directory: Path, config: Mapping[str, object], *, name: str, vocab_size: int) -> Checkpoint:
    """From ``directory`` and its config.json. Raises CheckpointError for what transcribing needs and is not there."""
    path = directory / FILE
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(
            f"{path}: {error.strerror}; it names the tokens of languages, tasks and timestamps: take the one of the "
            "original checkpoint"
        ) from error
    except ValueError as error:
        raise CheckpointError(f"{path} is not JSON ({error})") from error
    start, eos = _token(said, config, "decoder_start_token_id"), _token(said, config, "eos_token_id")
    no_timestamps = said.get("no_timestamps_token_id")
    if start is None or eos is None or not isinstance(no_timestamps, int):
        missing = [
            key
            for key, value in (
                ("decoder_start_token_id", start),
                ("eos_token_id", eos),
                ("no_timestamps_token_id", no_timestamps),
            )
            if not isinstance(value, int)
        ]
        raise CheckpointError(f"{path}: no {' and no '.join(missing)}; take the file of the original checkpoint")
    languages = cast("Mapping[str, int]", said.get("lang_to_id") or {})
    suppressed = tuple(said.get("suppress_tokens") or ())
    previous = said.get("prev_sot_token_id")
    return Checkpoint(
        name=name,
        start=start,
        eos=eos,
        no_timestamps=no_timestamps,
        languages=languages,
        tasks=cast("Mapping[str, int]", said.get("task_to_id") or {}),
        multilingual=bool(said.get("is_multilingual", bool(languages))),
        # As transformers guesses it: the last but one of OpenAI's list.
        previous=suppressed[-2] if previous is None and len(suppressed) > 1 else previous,
        suppressed=suppressed,
        suppressed_first=tuple(said.get("begin_suppress_tokens") or ()),
        forced=_forced(said.get("forced_decoder_ids") or config.get("forced_decoder_ids")),
        max_initial_timestamp=said.get("max_initial_timestamp_index"),
        by_probability=bool(said.get("_detect_timestamp_from_logprob", True)),
        max_length=said.get("max_length"),
        positions=int(cast(int, config["max_target_positions"])),
        frames=STRIDE * int(cast(int, config["max_source_positions"])),
        vocab_size=vocab_size,
        top_k=int(TOP_K if said.get("top_k") is None else said["top_k"]),
        top_p=float(1.0 if said.get("top_p") is None else said["top_p"]),
        defaults=said,
    )


def _token(said: Mapping[str, Any], config: Mapping[str, object], key: str) -> int | None:
    """A token id of generation_config.json, or else of config.json; the first of several."""
    value = said.get(key) if said.get(key) is not None else config.get(key)
    value = value[0] if isinstance(value, list) and value else value
    return value if isinstance(value, int) else None


def _forced(pairs: object) -> tuple[int, ...]:
    """The tokens of ``forced_decoder_ids``, which has (place, token) pairs from place 1 on."""
    if not isinstance(pairs, list):
        return ()
    return tuple(token for _, token in cast("list[tuple[int, int | None]]", pairs) if token is not None)
