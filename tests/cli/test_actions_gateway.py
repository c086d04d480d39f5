"""`rsm gateway --app actions`: a gateway is told what its group runs, and says so if that is not so."""

from pathlib import Path

import httpx2

from bench.ports import free_ports
from tests.cli.gateways import Started, gateway
from tests.cli.groups import rsm, running_group, until

LEDGER = "apps.actions:ActionLedger"


def test_when_a_group_runs_actions_then_a_gateway_for_them_serves_and_one_for_keys_says_why_not(
    tmp_path: Path,
) -> None:
    with running_group(tmp_path, 1, durable=False, machine=LEDGER) as group:
        with (
            gateway(group.config(), "--app", "actions") as started,
            httpx2.Client(base_url=started.url, trust_env=False) as http,
        ):
            assert http.get("/v1/actions/sites").json() == {"items": []}
            assert http.get("/readyz").status_code == 200
            body = {"operations": [{"site": "a", "operation": "debit"}]}
            found = http.post("/v1/actions", json=body).json()
            assert (found["code"], found["errors"][0]["place"]) == ("invalid", "operations.0.site")
        with (
            gateway(group.config()) as started,
            httpx2.Client(base_url=started.url, trust_env=False) as http,
        ):
            until(lambda: http.get("/readyz").status_code == 503)
            assert "another machine" in http.get("/v1/kv/a").json()["detail"]
            assert http.get("/v1/cluster").status_code == 200


def test_when_a_replica_of_actions_is_told_to_then_it_serves_them_itself(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    made = rsm("init", tmp_path / "g", "--sites", address, "--memory", "--no-metrics")
    assert made.returncode == 0, made.stderr
    config = tmp_path / "g" / "site-1.toml"
    started = Started("replica", "-c", config, "-m", LEDGER, "--http", "127.0.0.1:0")
    try:
        with httpx2.Client(base_url=started.url, trust_env=False) as http:
            assert http.get("/v1/actions").json() == {"items": [], "next": None}
    finally:
        code, _, _ = started.end()
    assert code == 0
