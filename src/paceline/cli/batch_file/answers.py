"""Lines of answers as OpenAI's batches have them. The id of a line says of which run and of which request it is."""

import re
from collections.abc import Mapping
from typing import Any

from paceline.cli.batch_file.lines import BatchLine
from paceline.cli.prompt_file.journal import PARTS, Layout, Line

ID = re.compile(r"batch_req_([0-9a-f]{8})([0-9a-f]{8})([0-9a-f]{8})([0-9a-f]{16})")
INVALID = "invalid_request"
WAY_OUT = "give another OUTPUT, the --errors FILE that it was written with, or --overwrite to start over"


def answered(line: BatchLine, answer: tuple[int, Mapping[str, Any]], *, run: str) -> Line:
    """What a journal holds for a request that a server would have answered, with a status and a body."""
    status, body = answer
    response = {"status_code": status, "request_id": f"req_{line.digest}", "body": body}
    return _line(line, run, {"response": response, "error": None})


def unsent(line: BatchLine, *, run: str) -> Line:
    """That of one which is no request."""
    return _line(line, run, {"response": None, "error": {"code": INVALID, "message": line.error}})


def _line(line: BatchLine, run: str, outcome: Mapping[str, Any]) -> Line:
    answer = {"id": f"batch_req_{run.replace('-', '')}{line.digest}", "custom_id": line.custom_id, **outcome}
    reason = _error_of(answer)
    failed = {} if reason is None else {"error": f"{line.name}: {reason}"}
    return {"index": line.index, "run": run, "prompt_hash": line.digest, "answer": answer, **failed}


def _error_of(answer: Mapping[str, Any]) -> str | None:
    """Why a request failed; None if it did not."""
    if answer["error"] is not None:
        return str(answer["error"]["message"])
    response = answer["response"]
    return None if response["status_code"] == 200 else str(response["body"]["error"]["message"])


def _read(answer: Line, index: int) -> Line | None:
    made = ID.fullmatch(str(answer.get("id")))
    if made is None:
        return None
    try:
        reason = _error_of(answer)
    except (KeyError, TypeError):  # not of this command, or changed
        return None
    failed = {} if reason is None else {"error": f"{answer.get('custom_id')!r:.60}: {reason}"}
    return {"index": index, "run": "-".join(made.groups()[:3]), "prompt_hash": made[4], **failed}


LAYOUT = Layout(
    write=lambda line: line["answer"],
    read=_read,
    way_out=WAY_OUT,
    parts=(PARTS[0], "another --max-model-len or --served-model-name", PARTS[2]),
)
