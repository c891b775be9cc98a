"""Which peers took part in a run, which were missing, and what failed: to raw records and back. Times nothing."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from paceline.bench.peers.base import Peer, PeerUnavailable
from paceline.bench.raw import CELL, FAILURE, PEER, RUN, RawFile, Record
from paceline.bench.sweep import on_set


@dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
    """One peer of one run: its version, or why it is missing."""

    run: str
    name: str
    version: str | None
    missing: str | None

    def __str__(self) -> str:
        return f"{self.name} {self.version}" if self.missing is None else f"{self.name} is missing: {self.missing}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A cell or pair that could not be timed, and the last message about it."""

    run: str
    task: str
    message: str

    def __str__(self) -> str:
        return f"{self.task} failed: {self.message}"


def keep_peers(found: Sequence[Peer | PeerUnavailable], *, raw: RawFile, run: str) -> None:
    """Write to ``raw`` who takes part in ``run`` and who is missing, where that is news.

    Raises ValueError where ``raw`` has figures of another version of a peer: they do not belong together.
    """
    known = {line.name: line for line in peers_of(raw.records) if line.run == run}
    versions = {
        record["peer"]: record["version"]
        for record in raw.records
        if record["kind"] == PEER and record["run"] == run and record["version"] is not None
    }
    for peer in found:
        version, missing = (None, peer.reason) if isinstance(peer, PeerUnavailable) else (peer.version, None)
        if version is not None and versions.get(peer.name, version) != version:
            raise ValueError(
                f"{raw.path} holds figures of {peer.name} {versions[peer.name]}, and here is {version}; "
                "give another --output"
            )
        line = Presence(run=run, name=peer.name, version=version, missing=missing)
        if known.get(peer.name) != line:
            raw.append({"kind": PEER, "run": run, "peer": peer.name, "version": version, "missing": missing})


def peers_of(records: Iterable[Record]) -> list[Presence]:
    """The last that is known of every peer of every run."""
    last = {(record["run"], record["peer"]): record for record in records if record["kind"] == PEER}
    return [
        Presence(run=run, name=name, version=record["version"], missing=record["missing"])
        for (run, name), record in last.items()
    ]


def missing_of(records: Sequence[Record]) -> list[Presence]:
    """The peers, and ways of peers, that no run of the file had."""
    lines = peers_of(records)
    there = {line.name for line in lines if line.missing is None}
    there |= {record["cell"]["drafter"] for record in records if record["kind"] == CELL}
    return list({line.name: line for line in lines if line.name not in there}.values())


def failures_of(records: Sequence[Record]) -> list[Failure]:
    """The last failure of every task that was not timed since."""
    last: dict[str, Record] = {}
    for record in records:
        if record["kind"] == FAILURE:
            last[f"{record['run']} {_words(record['task'])}"] = record
        elif record["kind"] not in (RUN, PEER):
            last.pop(f"{record['run']} {_words(record)}", None)
    return [
        Failure(run=record["run"], task=_words(record["task"]), message=record["message"]) for record in last.values()
    ]


def _words(record: Record) -> str:
    """A task in words, from the fields that no other task's records have."""
    if "cell" in record:
        return _cell(record["cell"])
    if "pair" in record:
        return " against ".join(_cell(side) for side in record["pair"].values())
    return str(record["kind"])


def _cell(cell: Record) -> str:
    count = f" k={cell['num_draft_tokens']}" if cell["num_draft_tokens"] else ""
    return (
        f"{cell['drafter']}{count}{on_set(cell.get('isa'))}, batch {cell['batch_size']}, "
        f"temperature {cell['temperature']:g}, {cell['max_tokens']} tokens"
    )
