"""Logits processors: biases, bans and penalties at every node, given the tokens on its path.

They apply before temperature and filters. R rows, n nodes, d drafted tokens on the path to a node, V vocabulary, S
biased sequences of length L, E tokens that are banned at first, T sequence capacity.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.core.request import NEVER, Biased, Processing

COLUMNS = {  # of a state, and the fields that they hold
    "repetition": "repetition_penalty",
    "frequency": "frequency_penalty",
    "presence": "presence_penalty",
    "ngram": "no_repeat_ngram",
}


@dataclass(frozen=True, slots=True)
class PathTokens:
    """The tokens before a node: the row's sequence, and the drafted tokens on its path."""

    tokens: Tensor  # [R, T]
    length: Tensor  # [R]
    drafted: Tensor  # [R, n, d] -1 after the last

    @property
    def position(self) -> Tensor:
        """Of the token that comes next [R, n]."""
        return self.length[:, None] + (self.drafted >= 0).sum(-1)

    def last(self, count: int) -> Tensor:
        """The ``count`` tokens before the next [R, n, count] in their order; -1 where there are none."""
        return self.at(self.position[..., None] - count + torch.arange(count, device=self.tokens.device))

    def at(self, place: Tensor) -> Tensor:
        """The tokens at ``place`` [R, n, m], each before the next; -1 below 0."""
        rows, nodes, width = place.shape
        known = self.tokens.gather(1, place.clamp(0, self.tokens.shape[1] - 1).flatten(1)).view(rows, nodes, width)
        if self.drafted.shape[-1]:
            beyond = place - self.length[:, None, None]
            known = torch.where(beyond >= 0, self.drafted.gather(2, beyond.clamp(0, self.drafted.shape[-1] - 1)), known)
        return torch.where(place >= 0, known, -1)


class ProcessingState:
    """The processors of all rows as tensors, each allocated when a row first uses it."""

    def __init__(self, *, rows: int, vocab_size: int, device: torch.device) -> None:
        @torch.inference_mode(False)  # compiled steps write to what admission makes
        def filled(value: float, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
            return torch.full((rows, *shape), value, dtype=dtype, device=device)

        self._filled = filled
        self.vocab_size, self.device = vocab_size, device
        self.rows: list[Processing] = [Processing()] * rows
        self.repetition, self.frequency, self.presence = filled(1.0), filled(0.0), filled(0.0)
        self.ngram = filled(0, dtype=torch.int64)
        self.bias: Tensor | None = None  # [R, V] float32
        self.counts: Tensor | None = None  # [R, V + 1] int32, occurrences in the output; last column unused
        self.in_prompt: Tensor | None = None  # [R, V + 1] bool, whether in the prompt
        self.late = filled(-1, 0, dtype=torch.int64)  # [R, E] tokens
        self.allowed_from = filled(0, 0, dtype=torch.int64)  # [R, E] the first position that each may take
        self.before = filled(-1, 0, 0, dtype=torch.int64)  # [R, S, L - 1] tokens before, at the end; -1 is any
        self.last = filled(-1, 0, dtype=torch.int64)  # [R, S] tokens biased, -1 is none
        self.value = filled(0.0, 0, dtype=torch.float32)  # [R, S]
        self._flag()

    def assign(self, rows: Sequence[int], options: Sequence[Processing], prompts: Sequence[Sequence[int]]) -> None:
        """Give rows their processors; their sequences are ``prompts`` so far."""
        index = torch.tensor(list(rows), device=self.device)
        for row, option in zip(rows, options, strict=True):
            self.rows[row] = option
        for name in COLUMNS:
            column: Tensor = getattr(self, name)
            values = [getattr(option, COLUMNS[name]) for option in options]
            column[index] = torch.tensor(values, dtype=column.dtype, device=self.device)
        self._assign_bias(rows, options)
        size = self.vocab_size
        known = [[(tokens, value) for tokens, value in one.sequences if max(tokens) < size] for one in options]
        self._assign_sequences(rows, known)
        self._assign_late(index, options, [len(prompt) for prompt in prompts])
        self._begin_counting([given for given in zip(rows, prompts, options, strict=True) if given[2].counts])
        self._flag()

    def release(self, rows: Sequence[int]) -> None:
        """Switch off the processors of ``rows``."""
        for row in rows:
            self.rows[row] = Processing()
        self._flag()

    def _assign_bias(self, rows: Sequence[int], options: Sequence[Processing]) -> None:
        if self.bias is None and any(option.is_biased for option in options):
            self.bias = self._filled(0.0, self.vocab_size, dtype=torch.float32)
        if self.bias is None:
            return
        for row, option in zip(rows, options, strict=True):
            if not option.is_biased:
                self.bias[row] = 0.0
                continue
            values = torch.full((self.vocab_size,), 0.0 if option.allowed is None else NEVER)
            if option.allowed is not None:  # an array is copied many times as fast as a tuple
                known = torch.frombuffer(array("q", option.allowed), dtype=torch.int64)
                values[known[known < self.vocab_size]] = 0.0
            pairs = [(token, value) for token, value in option.everywhere if token < self.vocab_size]
            tokens = torch.tensor([token for token, _ in pairs], dtype=torch.int64)
            values.index_add_(0, tokens, torch.tensor([value for _, value in pairs], dtype=torch.float32))
            self.bias[row] = values.to(self.device)

    def _assign_sequences(self, rows: Sequence[int], sequences: Sequence[list[Biased]]) -> None:
        most = max(map(len, sequences))
        longest = max((len(tokens) - 1 for row in sequences for tokens, _ in row), default=0)
        if most > self.last.shape[1] or longest > self.before.shape[2]:
            number, length = _room(most, self.last.shape[1]), _room(longest, self.before.shape[2])
            held = self.before.shape
            before = self._filled(-1, number, length, dtype=torch.int64)
            before[:, : held[1], length - held[2] :] = self.before
            self.before = before
            self.last, self.value = _widened(self.last, number, -1), _widened(self.value, number, 0)
        if not self.last.shape[1]:
            return
        width = self.before.shape[2]
        for row, found in zip(rows, sequences, strict=True):
            self.last[row] = -1
            if found:
                padded = [[-1] * (width - len(tokens) + 1) + list(tokens[:-1]) for tokens, _ in found]
                self.before[row, : len(found)] = torch.tensor(padded, device=self.device)
                self.last[row, : len(found)] = torch.tensor([tokens[-1] for tokens, _ in found], device=self.device)
                values = torch.tensor([value for _, value in found], dtype=torch.float32)
                self.value[row, : len(found)] = values.to(self.device)

    def _assign_late(self, index: Tensor, options: Sequence[Processing], lengths: Sequence[int]) -> None:
        most = max(len(option.late) for option in options)
        if most > self.late.shape[1]:
            size = _room(most, self.late.shape[1])
            self.late, self.allowed_from = _widened(self.late, size, -1), _widened(self.allowed_from, size, 0)
        size = self.late.shape[1]
        if not size:
            return
        tokens, until = [[-1] * size for _ in options], [[0] * size for _ in options]
        for row, (option, length) in enumerate(zip(options, lengths, strict=True)):
            for at, (token, count) in enumerate(option.late):
                tokens[row][at], until[row][at] = token if token < self.vocab_size else -1, length + count
        self.late[index] = torch.tensor(tokens, device=self.device)
        self.allowed_from[index] = torch.tensor(until, device=self.device)

    def _begin_counting(self, rows: Sequence[tuple[int, Sequence[int], Processing]]) -> None:
        if not rows:
            return
        if self.counts is None or self.in_prompt is None:
            self.counts = self._filled(0, self.vocab_size + 1, dtype=torch.int32)
            self.in_prompt = self._filled(0, self.vocab_size + 1, dtype=torch.bool)
        for row, prompt, _ in rows:
            self.counts[row] = 0
            self.in_prompt[row] = False
            self.in_prompt[row].index_fill_(0, torch.tensor(list(prompt), device=self.device), True)

    def _flag(self) -> None:
        self.any_bias = any(option.is_biased for option in self.rows)
        self.any_sequences = any(option.sequences for option in self.rows)
        self.any_counts = any(option.counts for option in self.rows)
        self.any_late = any(option.late for option in self.rows)
        self.max_ngram_size = max(option.no_repeat_ngram for option in self.rows)

    @property
    def any(self) -> bool:
        """Whether any row has processors."""
        return self.any_bias or self.any_sequences or self.any_counts or self.any_late or self.max_ngram_size > 0

    @property
    def flags(self) -> tuple[int, ...]:
        """What processing branches on: the processors in use, and the sizes of tensors that may grow."""
        used = (self.any_bias, self.any_sequences, self.any_counts, self.any_late)
        sizes = (*(self.before.shape if self.any_sequences else ()), *(self.late.shape if self.any_late else ()))
        return (*used, self.max_ngram_size, *sizes)

    def count(self, tokens: Tensor, real: Tensor) -> None:
        """Count the new ``tokens`` [R, m] where ``real`` [R, m]."""
        if self.any_counts and self.counts is not None:
            into = torch.where(real, tokens, self.vocab_size)
            self.counts.scatter_add_(1, into, torch.ones_like(into, dtype=torch.int32))

    def apply(self, logits: Tensor, path: PathTokens) -> Tensor:
        """Processed ``logits`` [R, n, V], in single precision at least."""
        scores = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if self.any_bias and self.bias is not None:
            scores = scores + self.bias[:, None]
        if self.any_sequences:
            scores = self._with_sequences(scores, path)
        if self.any_counts and self.counts is not None and self.in_prompt is not None:
            scores = self._penalised(scores, path.drafted)
        if self.max_ngram_size:
            scores = scores.masked_fill(self._ngram_repeats(path), NEVER)
        if self.any_late:
            early = path.position[..., None] < self.allowed_from[:, None]
            scores = scores.masked_fill(self._marked(torch.where(early, self.late[:, None], -1)), NEVER)
        first = torch.where((scores > NEVER).any(-1), scores[..., 0], 0.0)
        return torch.cat((first[..., None], scores[..., 1:]), dim=-1)

    def _with_sequences(self, scores: Tensor, path: PathTokens) -> Tensor:
        width = self.before.shape[2]
        wanted = self.before[:, None]  # [R, 1, S, L - 1]
        met = ((wanted < 0) | (wanted == path.last(width)[:, :, None])).all(-1) & (self.last >= 0)[:, None]
        value = torch.where(met, self.value[:, None].to(scores.dtype), 0.0)  # [R, n, S]
        return scores.scatter_add(-1, self.last.clamp(min=0)[:, None].expand_as(value), value)

    def _penalised(self, scores: Tensor, drafted: Tensor) -> Tensor:
        assert self.counts is not None and self.in_prompt is not None
        rows, nodes, size = scores.shape
        counts = self.counts[:, None].expand(rows, nodes, size + 1)
        into = torch.where(drafted >= 0, drafted, size)
        counts = counts.scatter_add(-1, into, torch.ones_like(into, dtype=torch.int32))[..., :size]
        repetition, frequency, presence = (
            part.to(scores.dtype)[:, None, None] for part in (self.repetition, self.frequency, self.presence)
        )
        seen = self.in_prompt[:, None, :size] | (counts > 0)
        scores = torch.where(seen, torch.where(scores < 0, scores * repetition, scores / repetition), scores)
        return scores - frequency * counts - presence * (counts > 0)

    def _ngram_repeats(self, path: PathTokens) -> Tensor:
        """Tokens [R, n, V] that would repeat an n-gram of the sequence."""
        rows, nodes, depth = path.drafted.shape
        column = torch.arange(path.tokens.shape[1] + depth, device=self.device).expand(rows, nodes, -1)
        whole = path.at(column)
        end = path.position[..., None]  # [R, n, 1]
        length = self.ngram[:, None, None]
        met = (column < end) & (column >= length - 1) & (length > 0) & (end + 1 >= length)
        for back in range(1, self.max_ngram_size):
            before = torch.nn.functional.pad(whole, (back, 0), value=-1)[..., : whole.shape[-1]]
            met = met & ((before == path.at(end - back)) | (back >= length))
        return self._marked(torch.where(met, whole, -1))

    def _marked(self, tokens: Tensor) -> Tensor:
        """[R, n, V]: where ``tokens`` [R, n, m] are; -1 is nowhere."""
        marks = torch.zeros(*tokens.shape[:2], self.vocab_size + 1, dtype=torch.bool, device=self.device)
        return marks.scatter(-1, torch.where(tokens >= 0, tokens, self.vocab_size), True)[..., :-1]


def _room(count: int, held: int) -> int:
    """A capacity for ``count`` entries with room to grow."""
    return held if count <= held else 1 << (count - 1).bit_length()


def _widened(held: Tensor, size: int, value: float) -> Tensor:
    """``held`` [R, m] extended to ``size`` columns with ``value``."""
    return torch.nn.functional.pad(held, (0, size - held.shape[1]), value=value)
