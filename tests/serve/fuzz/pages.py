"""Schemathesis: requests made up from the server's own page, /openapi.json, and answers held against it."""

import threading
import time
from contextlib import contextmanager

import schemathesis
import uvicorn
from hypothesis import HealthCheck, given, seed, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.serve.fuzz.attack import application

CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
)


@contextmanager
def listening(app):
    """The address of ``app`` at a port of its own."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
            assert thread.is_alive()
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


def check_page(count, number, tally):
    """Send ``count`` requests to every route, valid ones and others; raise where an answer is not as the page says."""
    with listening(application()) as url:
        page = schemathesis.openapi.from_url(f"{url}/openapi.json")
        for found in page.get_all_operations():
            make = found.ok().as_strategy

            @seed(number)
            @settings(max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck))
            @given(case=make(generation_mode=GenerationMode.POSITIVE) | make(generation_mode=GenerationMode.NEGATIVE))
            def check(case):
                response = case.call_and_validate(checks=list(CHECKS))
                tally.update(["requests", str(response.status_code)])

            check()
    assert tally["200"] and not tally["503"]
