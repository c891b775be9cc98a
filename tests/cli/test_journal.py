"""A file of results whose process is ended before, after and within every write: no line is lost, none stands twice."""

import json
import os
import random

import pytest

from paceline.cli.batch_file.answers import LAYOUT, answered, unsent
from paceline.cli.batch_file.lines import BatchLine
from paceline.cli.prompt_file import journal
from paceline.cli.prompt_file.journal import PLAIN, Finished, ResultFile, journal_of, read_finished

COUNT, RUN = 7, "01234567-89abcdef-02468ace"
DIGESTS = [f"{number:016x}" for number in range(COUNT)]


class Ended(BaseException):
    """In the place of SIGKILL."""


def plain(index):
    failed = {"error": "why"} if index in (2, 5) else {}
    return {"index": index, "run": RUN, "prompt_hash": DIGESTS[index], **failed}


def answer(index):
    error = "why" if index == 2 else None
    line = BatchLine(
        index=index, number=index + 1, custom_id=f"é{index}", url="", body={}, digest=DIGESTS[index], error=error
    )
    status, body = (400, {"error": {"message": "why"}}) if index == 5 else (200, {"text": "x" * index})
    return unsent(line, run=RUN) if error else answered(line, (status, body), run=RUN)


CASES = {"plain": (PLAIN, plain, False), "answers": (LAYOUT, answer, False), "errors": (LAYOUT, answer, True)}


def put_all(path, errors, layout, line_of, order, done=None):
    """Go on with the file; the lines that were made. To ``done`` those are added that were put."""
    finished = read_finished(path, run=RUN, digests=DIGESTS, errors=errors, layout=layout)
    made, file = [], ResultFile(path, finished=finished, errors=errors, layout=layout)
    try:
        for index in order:
            if index >= finished.num_written and index not in finished.waiting:
                made.append(index)
                file.put(line_of(index))
                if done is not None:
                    done.append(index)
    except Ended:
        for descriptor in file._open:
            os.close(descriptor)
        raise
    file.close(complete=True)
    return made


@pytest.mark.one_in(3)
@pytest.mark.parametrize("case", CASES)
def test_a_process_that_ends_at_any_moment_loses_and_repeats_nothing(case, tmp_path, monkeypatch):
    layout, line_of, apart = CASES[case]
    order = random.Random(0).sample(range(COUNT), COUNT)
    monkeypatch.setattr(journal, "JOURNAL_BYTES", 60)  # so that the journal is emptied, too
    monkeypatch.setattr(journal, "SYNC_SECONDS", -1.0)

    def files(name):
        return tmp_path / f"{name}.jsonl", tmp_path / f"{name}.errors.jsonl" if apart else None

    def contents(name):
        return [path.read_bytes() for path in files(name) if path is not None]

    put_all(*files("whole"), layout, line_of, order)
    whole = contents("whole")
    assert sum(one.count(b"\n") for one in whole) == COUNT
    moments, real = 0, {name: getattr(os, name) for name in ("write", "ftruncate", "fsync")}
    while True:
        for share in (0.0, 0.5, 1.0):
            left = [moments]

            def ending(name, left=left, share=share):
                def called(file, *arguments):
                    left[0] -= 1
                    if left[0] >= 0:
                        return real[name](file, *arguments)
                    if name == "write":
                        real[name](file, arguments[0][: round(share * len(arguments[0]))])
                    raise Ended

                return called

            name, done = f"{moments}-{share}", []
            with monkeypatch.context() as patch:
                for one in real:
                    patch.setattr(f"paceline.cli.prompt_file.journal.os.{one}", ending(one))
                try:
                    put_all(*files(name), layout, line_of, order, done)
                except Ended:
                    pass
            if left[0] >= 0:
                assert moments > 3 * COUNT, "there were no more moments"
                return
            kept = read_finished(files(name)[0], run=RUN, digests=DIGESTS, errors=files(name)[1], layout=layout)
            made = put_all(*files(name), layout, line_of, order[::-1])
            assert not set(done) & set(made), "what was finished is not done again"
            assert sorted([*made, *range(kept.num_written), *kept.waiting]) == list(range(COUNT))
            assert len(made) >= COUNT - moments and contents(name) == whole
            assert not journal_of(files(name)[0]).exists()
        moments += 1


def test_what_another_run_has_written_meanwhile_is_not_cut_off(tmp_path):
    path = tmp_path / "out.jsonl"
    early = read_finished(path, run=RUN, digests=DIGESTS)
    put_all(path, None, PLAIN, plain, range(COUNT))
    before = path.read_bytes()
    with pytest.raises(ValueError, match="another run has written it meanwhile: run the same command again"):
        ResultFile(path, finished=early)
    assert path.read_bytes() == before
    ResultFile(path, finished=Finished()).close(complete=True)
    assert path.read_bytes() == b""


@pytest.mark.parametrize("apart", [False, True])
def test_two_runs_do_not_write_one_file_or_one_file_of_errors(apart, tmp_path):
    pytest.importorskip("fcntl")
    path, errors = tmp_path / "out.jsonl", tmp_path / "errors.jsonl"
    file = ResultFile(path, finished=Finished(), errors=errors, layout=LAYOUT)
    with pytest.raises(ValueError, match="another run is writing it: wait for it, or give another OUTPUT"):
        ResultFile(tmp_path / "b.jsonl" if apart else path, finished=Finished(), errors=errors, layout=LAYOUT)
    file.close(complete=True)


def test_a_full_disk_leaves_whole_lines_in_both_files(tmp_path, monkeypatch):
    path, errors = tmp_path / "out.jsonl", tmp_path / "errors.jsonl"
    real, room = os.write, [0]

    def write_some(file, data):
        if room[0] == 0:
            raise OSError(28, "No space left on device")
        count = real(file, data[: room[0]])
        room[0] -= count
        return count

    for size in range(1, 1400, 61):
        room[0] = size
        with monkeypatch.context() as patch:
            patch.setattr("paceline.cli.prompt_file.journal.os.write", write_some)
            finished = read_finished(path, run=RUN, digests=DIGESTS, errors=errors, layout=LAYOUT)
            file = ResultFile(path, finished=finished, errors=errors, layout=LAYOUT)
            with pytest.raises(OSError, match=r"No space left on device; . lines are in .*run the same command again"):
                for index in range(COUNT):
                    file.put(answer(index))
                room[0] = -1  # it had all that it needed
            file.close(complete=False)
        if room[0] == -1:
            break
        for one in (path, errors):
            assert all(isinstance(json.loads(line), dict) for line in one.read_bytes().splitlines(keepends=True))
            assert one.read_bytes()[-1:] in (b"", b"\n")
