"""Who may do what, and what a gateway refuses to be."""

import os
import re
import ssl
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trustme

from api import tokens
from api.app import create_app
from api.server import Serving
from api.settings import GatewaySettings
from api.tokens import Scope, Tokens, make_token, read_tokens
from ordering.errors import ConfigurationError
from tests.api.gateways import Place, ask, gateway_of, problem, served, settings_of
from tests.rsm.test_replica import play

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "http.md"


def token_file(directory: Path) -> tuple[Path, dict[str, dict[str, str]]]:
    """A file with a token for each scope, and the headers that have them."""
    lines, headers = ["# who may do what", ""], {}
    for scope in Scope:
        token, line = make_token(f"the-{scope}", [scope])
        lines.append(line)
        headers[str(scope)] = {"authorization": f"Bearer {token}"}
    path = directory / "tokens"
    path.write_text("\n".join(lines))
    return path, headers


NEEDS = [
    ("GET", "/v1/kv/k", "read"),
    ("HEAD", "/v1/kv/k", "read"),
    ("PUT", "/v1/kv/k", "write"),
    ("DELETE", "/v1/kv/k", "write"),
    ("POST", "/v1/kv/k", "write"),
    ("GET", "/v1/kv", "read"),
    ("DELETE", "/v1/kv?prefix=x", "write"),
    ("POST", "/v1/counters/n", "write"),
    ("GET", "/v1/history/k", "read"),
    ("POST", "/v1/txn", "write"),
    ("GET", "/v1/watch?since=x", "read"),
    ("GET", "/v1/leases", "read"),
    ("POST", "/v1/leases", "write"),
    ("GET", "/v1/locks", "read"),
    ("DELETE", "/v1/locks/l?lease=1", "write"),
    ("GET", "/v1/cluster", "read"),
    ("POST", "/v1/cluster/members/x:remove", "admin"),
    ("GET", "/v1/snapshots", "admin"),
    ("POST", "/v1/snapshots", "admin"),
    ("GET", "/v1/log", "admin"),
    ("GET", "/v1/demo", "read"),
    ("POST", "/v1/demo/members/x:kill", "admin"),
    ("GET", "/metrics", "read"),
    ("GET", "/nothing", "admin"),
    ("GET", "/v1/%6bv/k", "admin"),
    ("GET", "/v1/kvx", "admin"),
]


def test_when_there_are_tokens_then_each_request_needs_one_of_the_right_scope(tmp_path: Path) -> None:
    path, headers = token_file(tmp_path)

    async def check(place: Place) -> None:
        http = place.http
        for method, target, scope in NEEDS:
            nobody = await http.request(method, target)
            assert nobody.status_code == 401, target
            assert nobody.headers["www-authenticate"].startswith("Bearer")
            if method != "HEAD":
                problem(nobody, 401, "unauthenticated")
            for other in Scope:
                answer = await http.request(method, target, headers=headers[other])
                allowed = answer.status_code not in {401, 403}
                assert allowed is (other == scope), (method, target, other, answer.status_code)
        for wrong in ("Bearer", "Bearer rsm_wrong", "Basic eDp5", "rsm_x"):
            problem(await http.get("/v1/kv/k", headers={"authorization": wrong}), 401, "unauthenticated")
        for open_to_all in ("/livez", "/readyz", "/openapi.json", "/docs"):
            assert (await http.get(open_to_all)).status_code == 200
        assert (await http.get("/openapi.json")).json()["security"] == [{"token": []}]

    ask(check, sites=1, tokens=path)


def test_when_the_file_of_tokens_changes_then_it_counts_and_a_broken_one_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = token_file(tmp_path)
    monkeypatch.setattr(tokens, "LOOK_SECONDS", 0.0)
    known = Tokens(path)
    token, line = make_token("new", [Scope.READ, Scope.WRITE])
    assert known.find(token.encode()) is None
    path.write_text(line)
    os.utime(path, ns=(time.time_ns(), time.time_ns() + 1_000_000))
    found = known.find(token.encode())
    assert found is not None
    assert found.name == "new"
    assert found.scopes == {Scope.READ, Scope.WRITE}
    path.write_text("broken")
    assert known.find(token.encode()) == found
    path.unlink()
    assert known.find(token.encode()) == found


def test_when_a_token_is_made_then_the_file_has_no_more_than_its_hash(tmp_path: Path) -> None:
    token, line = make_token("alice", [Scope.READ, Scope.READ, Scope.ADMIN])
    assert token.startswith("rsm_")
    assert token not in line
    path = tmp_path / "tokens"
    path.write_text(line)
    (found,) = read_tokens(path)
    assert found.scopes == {Scope.READ, Scope.ADMIN}
    assert make_token("alice", [Scope.READ])[0] != token


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "there is none"),
        ("# nobody", "there is none"),
        ("alice read", "line 1: write a name"),
        ("alice read,sing " + "00" * 32, "sing"),
        ("\nalice read zz", "line 2"),
        ("alice read 0011", "no sha256"),
    ],
)
def test_when_a_file_of_tokens_is_wrong_then_it_says_where(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "tokens"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=words):
        read_tokens(path)
    with pytest.raises(ConfigurationError, match="No such file"):
        read_tokens(tmp_path / "nowhere")


@pytest.mark.parametrize("bind", ["0.0.0.0:0", "10.1.2.3:8400", "[::]:0", "example.org:80"])
def test_when_others_could_reach_it_without_tokens_then_it_refuses_unless_told_otherwise(
    bind: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="everybody who reaches"):
        GatewaySettings(bind=bind)
    assert GatewaySettings(bind=bind, insecure=True).bind == bind
    assert GatewaySettings(bind=bind, tokens=tmp_path / "tokens").bind == bind
    for own in ("127.0.0.1:0", "[::1]:0", "localhost:0"):
        assert GatewaySettings(bind=own).bind == own


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"bind": "here"}, "is no address"),
        ({"tls_cert": "x.pem"}, "one is of no use without the other"),
        ({"requests_max": 0}, "greater than or equal to 1"),
        ({"portt": 1}, "Extra inputs"),
    ],
)
def test_when_a_setting_is_wrong_then_it_says_which(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        GatewaySettings(**changes)


def test_when_settings_are_in_a_file_then_variables_and_arguments_win(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "gateway.toml"
    path.write_text('bind = "127.0.0.1:1"\ntokens = "tokens.txt"\nrequests_max = 1\nwatches_max = 1\n')
    monkeypatch.setenv("RSM_GATEWAY_REQUESTS_MAX", "2")
    found = GatewaySettings.load(path, watches_max=3)
    assert (found.requests_max, found.watches_max) == (2, 3)
    assert found.tokens == tmp_path / "tokens.txt"
    path.write_text("request_max = 1")
    with pytest.raises(ConfigurationError, match="did you mean requests_max"):
        GatewaySettings.load(path)
    monkeypatch.setenv("RSM_GATEWAY_REQUESTS_MAX", "none")
    path.write_text("")
    with pytest.raises(ConfigurationError, match="RSM_GATEWAY_REQUESTS_MAX"):
        GatewaySettings.load(path)


def test_when_there_is_a_certificate_then_it_speaks_tls_alone(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    key, chain = tmp_path / "key.pem", tmp_path / "cert.pem"
    certificate.private_key_pem.write_to_path(str(key))
    for blob in certificate.cert_chain_pems:
        blob.write_to_path(str(chain), append=True)
    context = ssl.create_default_context()
    authority.configure_trust(context)

    async def main() -> None:
        async with gateway_of(sites=1) as place:
            settings = settings_of(tls_cert=chain, tls_key=key)
            app = create_app(place.client, settings)
            async with (
                Serving(app, settings) as serving,
                httpx2.AsyncClient(base_url=serving.url, verify=context) as http,
            ):
                assert serving.url.startswith("https://")
                assert (await http.put("/v1/kv/k", content=b"v")).status_code == 201
                problem(await http.put("/v1/kv/k", content=bytes(2 << 20)), 413, "too_large")
                plain = serving.url.replace("https", "http")
                with pytest.raises(httpx2.TransportError):
                    await place.http.get(f"{plain}/livez")

    play(main())


def test_when_a_port_is_taken_or_a_certificate_is_none_then_it_does_not_start(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway_of(sites=1) as place:
            settings = settings_of(bind=f"127.0.0.1:{place.serving.port}")
            with pytest.raises(ConfigurationError, match=r"bind: .*in use"):
                await Serving(create_app(place.client, settings), settings).start()
            (tmp_path / "no.pem").write_text("no certificate")
            settings = settings_of(tls_cert=tmp_path / "no.pem", tls_key=tmp_path / "no.pem")
            with pytest.raises(ConfigurationError, match="tls_cert"):
                await Serving(create_app(place.client, settings), settings).start()
            settings = settings_of(tls_cert=tmp_path / "nowhere.pem", tls_key=tmp_path / "nowhere.pem")
            with pytest.raises(ConfigurationError, match="tls_cert"):
                await Serving(create_app(place.client, settings), settings).start()

    play(main())


def test_when_a_browser_asks_from_elsewhere_then_nothing_is_allowed() -> None:
    async def check(place: Place) -> None:
        headers = {"origin": "http://elsewhere", "access-control-request-method": "PUT"}
        answer = await place.http.request("OPTIONS", "/v1/kv/k", headers=headers)
        problem(answer, 403, "foreign_page")
        found = await place.http.get("/v1/kv", headers={"origin": "http://elsewhere"})
        for each in (answer, found):
            assert not [name for name in each.headers if name.startswith("access-control")]
            assert each.headers["x-content-type-options"] == "nosniff"
            assert "server" not in each.headers

    ask(check, sites=1)


def test_when_figures_are_asked_for_then_they_are_by_route_method_and_status() -> None:
    async def check(place: Place) -> None:
        await place.http.put("/v1/kv/secret-key", content=b"v")
        await place.http.get("/v1/kv/secret-key")
        await place.http.get("/v1/kv/none")
        await place.http.get("/v1/leases/77")
        await place.http.get("/nowhere/secret")
        text = (await place.http.get("/metrics")).text
        for line in (
            'rsm_gateway_requests_total{method="PUT",route="/v1/kv/{key}",status="201"} 1.0',
            'rsm_gateway_requests_total{method="GET",route="/v1/kv/{key}",status="404"} 1.0',
            'rsm_gateway_requests_total{method="GET",route="/v1/leases/{lease}",status="404"} 1.0',
            'rsm_gateway_requests_total{method="GET",route="none",status="404"} 1.0',
            'rsm_gateway_request_duration_seconds_count{method="PUT",route="/v1/kv/{key}"} 1.0',
            "rsm_gateway_requests_under_way 0.0",
            "rsm_gateway_watchers 0.0",
            "rsm_gateway_primary 1.0",
            "rsm_gateway_linked 1.0",
        ):
            assert line in text, line
        assert "secret" not in text
        shown = set(re.findall(r"^# TYPE (rsm_gateway_\w+)", text, re.MULTILINE))
        documented = set(re.findall(r"\| `(rsm_gateway_\w+)`", DOCUMENT.read_text()))
        assert {name for name in shown if not name.endswith("_created")} == documented

    ask(check, sites=1)


def test_when_something_unforeseen_happens_then_it_is_a_defect_with_a_number_and_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with gateway_of(sites=1) as place, served(place.client) as (gateway, _serving, http):

            async def broken(*_: object) -> None:
                raise KeyError("a secret")

            def broken_at_once(*_: object) -> None:
                raise KeyError("a secret")

            gateway.parts.store.asking = broken_at_once  # type: ignore[assignment, method-assign]
            gateway.parts.surveys.shape = broken  # type: ignore[assignment, method-assign]
            for path in ("/v1/kv/k", "/v1/cluster"):
                found = problem(await http.get(path), 500, "defect")
                assert "secret" not in str(found)
                assert found["number"] in caplog.text
            assert caplog.text.count("KeyError: 'a secret'") == 2

    play(main())


# -- pages of others -----------------------------------------------------------------------------

ASKED = [("GET", "/v1/kv/k"), ("PUT", "/v1/kv/k"), ("POST", "/v1/snapshots"), ("GET", "/v1/cluster")]


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://example.test"},
        {"origin": "null"},
        {"host": "example.test"},
        {"host": "example.test:80", "origin": "http://example.test:80"},
        {"host": "127.0.0.1.example.test"},
    ],
    ids=repr,
)
def test_when_a_page_of_somebody_else_asks_then_it_is_forbidden(headers: dict[str, str]) -> None:
    async def test(place: Place) -> None:
        for method, path in ASKED:
            problem(await place.http.request(method, path, headers=headers), 403, "foreign_page")

    ask(test)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8080", "[::1]:8080", "[::1]", "kv.example.org"])
def test_when_it_is_reached_by_a_name_of_its_own_then_it_answers(host: str) -> None:
    async def test(place: Place) -> None:
        for method, path in ASKED:
            for own in ({"host": host}, {"host": host, "origin": f"http://{host}"}):
                answer = await place.http.request(method, path, headers=own)
                assert answer.status_code != 403, answer.text

    ask(test, hosts=("kv.example.org",))


def test_when_a_token_is_needed_then_names_do_not_matter(tmp_path: Path) -> None:
    path, headers = token_file(tmp_path)

    async def test(place: Place) -> None:
        proxied = {**headers["read"], "host": "kv.example.org", "origin": "https://app.example.org"}
        assert (await place.http.get("/v1/cluster", headers=proxied)).status_code == 200

    ask(test, tokens=path)
