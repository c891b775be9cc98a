"""Schemathesis: requests made up from the server's own page, /openapi.json, and answers held against it."""

import schemathesis
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
from tests.serve.listening import listening

CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
)


def check_page(count, number, tally):
    """Send ``count`` requests to every route, valid ones and others; raise where an answer is not as the page says."""
    with listening(application()) as server:
        page = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
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
