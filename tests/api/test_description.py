"""What ``/openapi.json`` says is all there is, and is true."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from api.problems import KINDS
from tests.api.banks import BankPlace, ask_bank, bank_place
from tests.api.gateways import Place, ask, gateway_of, healthy
from tests.api.threads import in_thread

CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    unsupported_method,
)
STREAMS = {"/v1/watch", "/v1/actions/events", "/v1/cluster/events"}  # they have no end
EXAMPLES = 10


@pytest.fixture(scope="module", params=["kv", "actions"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("bank")
    if request.param == "kv":
        with in_thread(gateway_of, healthy) as keys:
            yield keys.place.serving.url
    else:
        with in_thread(lambda: bank_place(folder), healthy) as bank:
            yield bank.place.serving.url


def test_when_anything_is_sent_then_the_answer_is_as_described(url: str) -> None:
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    results = list(schema.get_all_operations())
    assert len(results) > 15
    for result in results:
        assert isinstance(result, Ok)
        operation = result.ok()
        if operation.path in STREAMS:
            continue
        for mode in schemathesis.GenerationMode:

            @settings(
                max_examples=EXAMPLES,
                deadline=None,
                database=None,
                derandomize=True,
                suppress_health_check=list(HealthCheck),
            )
            @given(case=operation.as_strategy(generation_mode=mode))
            def attack(case: Any) -> None:
                case.call_and_validate(base_url=url, checks=CHECKS, timeout=20)

            with contextlib.suppress(Unsatisfiable):  # some take nothing that could be wrong
                attack()


def test_when_the_description_is_read_then_it_has_every_path_and_every_problem(tmp_path: Path) -> None:
    async def check(place: Place) -> None:
        described = (await place.http.get("/openapi.json")).json()
        paths = described["paths"]
        assert set(paths["/v1/kv/{key}"]) == {"get", "head", "put", "delete"}
        for path, methods in (
            ("/v1/kv", {"get", "delete"}),
            ("/v1/txn", {"post"}),
            ("/v1/watch", {"get"}),
            ("/v1/counters/{key}", {"post"}),
            ("/v1/history/{key}", {"get"}),
            ("/v1/leases", {"get", "post"}),
            ("/v1/leases/{lease}", {"get", "delete"}),
            ("/v1/leases/{lease}:renew", {"post"}),
            ("/v1/locks/{name}", {"get", "post", "delete"}),
            ("/v1/cluster", {"get"}),
            ("/v1/cluster/members/{name}:remove", {"post"}),
            ("/v1/log", {"get"}),
            ("/v1/snapshots", {"get", "post"}),
        ):
            assert set(paths[path]) == methods, path
        check_words(paths)
        told.append(str(described))

    async def check_actions(place: BankPlace) -> None:
        described = (await place.http.get("/openapi.json")).json()
        paths = described["paths"]
        assert "/v1/kv" not in paths
        for path, methods in (
            ("/v1/actions", {"get", "post"}),
            ("/v1/actions/sites", {"get"}),
            ("/v1/actions/events", {"get"}),
            ("/v1/actions/{action}", {"get"}),
            ("/v1/actions/{action}:commit", {"post"}),
            ("/v1/actions/{action}:abort", {"post"}),
            ("/v1/cluster", {"get"}),
        ):
            assert set(paths[path]) == methods, path
        (example,) = described["components"]["schemas"]["ActionBody"]["examples"]
        answer = await place.http.post("/v1/actions", json=example)
        assert answer.json()["code"] == "action_aborted", "alice has no account here, but all else is right"
        check_words(paths)
        told.append(str(described))

    told: list[str] = []
    ask(check, sites=1)
    ask_bank(check_actions, tmp_path)
    missing = {code for code in KINDS if not any(f"`{code}`" in each for each in told)}
    assert missing == {"not_found", "method_not_allowed", "no_supervisor"}, "these are of no path here"


def check_words(paths: dict[str, Any]) -> None:
    for path, methods in paths.items():
        for name, operation in methods.items():
            assert operation["summary"], (path, name)
            for parameter in operation.get("parameters", []):
                assert parameter.get("description") or parameter["in"] == "path", (path, parameter)
