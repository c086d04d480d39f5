"""`rsm kv`, `rsm leases`, `rsm locks` and what else goes over HTTP, with a gateway to three replicas."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest
import trustme

from bench.ports import free_ports
from cli.replica import KEY_VALUE
from tests.cli.gateways import Started, gateway
from tests.cli.groups import ROOT, SECONDS, Done, Group, rsm, running_group, until


class Served(NamedTuple):
    group: Group
    url: str

    def run(self, *words: object, given: str | None = None) -> Done:
        return rsm(*words, "--endpoint", self.url, given=given)

    def json(self, *words: object, code: int = 0) -> Any:
        done = self.run(*words, "-o", "json")
        assert done.returncode == code, done.stdout + done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("kv")
    with (
        running_group(directory, durable=False, machine=KEY_VALUE) as group,
        gateway(group.config()) as started,
    ):
        yield Served(group, started.url)


# -- keys ----------------------------------------------------------------------------------------


def test_when_a_key_is_written_then_it_is_read_byte_for_byte_and_gone_when_deleted(served: Served) -> None:
    put = served.run("kv", "put", "a/b c", "hello\n")
    assert put.returncode == 0, put.stderr
    assert put.stdout.startswith("created: revision ")
    got = served.run("kv", "get", "a/b c")
    assert (got.returncode, got.stdout) == (0, "hello\n")
    assert served.run("kv", "del", "a/b c").returncode == 0
    gone = served.run("kv", "get", "a/b c")
    assert (gone.returncode, gone.stdout) == (1, "")
    assert "key_not_found" in gone.stderr
    assert served.run("kv", "del", "a/b c").returncode == 1


@pytest.mark.parametrize(
    "key", ["/", "..", ".", "a/../b", "//a//", "%2F", "a?b#c", "ü", "\udcff\udc80x", "+ &"]
)
def test_when_a_key_has_characters_of_its_own_then_it_stays_as_it_is(served: Served, key: str) -> None:
    assert served.run("kv", "put", key, "v").returncode == 0
    got = served.json("kv", "get", key)
    assert got["value"] == "v"
    listed = served.json("kv", "ls", key, "--limit", 1)["items"]
    assert [each.get("key", each.get("key_base64")) for each in listed] == [
        got.get("key", got.get("key_base64"))
    ]
    assert served.run("kv", "get", key.encode("utf-8", "surrogateescape").hex(), "--hex").stdout == "v"
    assert served.run("kv", "del", key).returncode == 0


def test_when_bytes_come_from_a_file_or_a_pipe_then_they_come_back_the_same(
    served: Served, tmp_path: Path
) -> None:
    data = bytes(range(256)) * 64
    file = tmp_path / "data"
    file.write_bytes(data)
    assert served.run("kv", "put", "bytes", "--file", file).returncode == 0
    words = [sys.executable, "-m", "cli.main", "kv"]
    at = ["--endpoint", served.url]
    got = subprocess.run(
        [*words, "get", "bytes", *at], cwd=ROOT, capture_output=True, timeout=SECONDS, check=True
    )
    assert got.stdout == data
    piped = subprocess.run(
        [*words, "put", "piped", "-", *at],
        cwd=ROOT,
        input=data,
        capture_output=True,
        timeout=SECONDS,
        check=True,
    )
    assert piped.stdout.startswith(b"created")
    shown = served.json("kv", "get", "piped")
    assert "value" not in shown
    assert shown["value_base64"]


def test_when_a_condition_does_not_hold_then_it_is_refused_and_said_what_to_do(served: Served) -> None:
    first = served.json("kv", "put", "cas", "1")["revision"]
    second = served.json("kv", "put", "cas", "2", "--if-match", first)["revision"]
    assert second > first
    late = served.run("kv", "put", "cas", "3", "--if-match", first)
    assert late.returncode == 1
    assert "conflict" in late.stderr
    assert "repeat with the revision it has now" in late.stderr
    assert served.run("kv", "put", "cas", "3", "--create").returncode == 1
    assert served.run("kv", "del", "cas", "--if-match", first).returncode == 1
    assert served.run("kv", "get", "cas").stdout == "2"
    assert served.run("kv", "get", "cas", "--revision", first).stdout == "1"
    assert served.run("kv", "put", "cas", "4", "--if-match", "*").returncode == 0


def test_when_a_request_is_repeated_under_its_name_then_it_was_carried_out_once(served: Served) -> None:
    first = served.json("kv", "put", "once", "1", "--once", "mine")
    assert served.json("kv", "put", "once", "1", "--once", "mine") == first
    assert served.json("kv", "get", "once")["version"] == 1
    other = served.run("kv", "put", "once", "2", "--once", "mine")
    assert other.returncode == 2
    assert "key_reused" in other.stderr


def test_when_keys_are_listed_then_all_pages_of_them_in_order(served: Served) -> None:
    body = {"then": [{"op": "put", "key": f"many/{n:04}", "value": "v"} for n in range(100)]}
    for hundred in range(11):
        text = json.dumps(body).replace("many/", f"many/{hundred:02}/")
        assert served.run("kv", "txn", "-", given=text).returncode == 0
    listed = served.run("kv", "ls", "many/", "--keys-only").stdout.splitlines()
    assert listed == [f"many/{hundred:02}/{n:04}" for hundred in range(11) for n in range(100)]
    assert len(served.json("kv", "ls", "many/", "--limit", 7)["items"]) == 7
    between = served.json("kv", "ls", "--start", "many/01/0098", "--end", "many/02/0001")["items"]
    assert [each["key"] for each in between] == ["many/01/0098", "many/01/0099", "many/02/0000"]
    table = served.run("kv", "ls", "many/00/000").stdout
    assert "many/00/0009" in table
    assert "many/00/0010" not in table
    assert served.run("kv", "del", "--prefix", "many/").stdout == "deleted: 1100 keys\n"
    assert served.run("kv", "del", "--prefix", "many/").returncode == 1


def test_when_a_transaction_does_not_hold_then_the_exit_code_says_so(served: Served, tmp_path: Path) -> None:
    file = tmp_path / "txn.json"
    file.write_text(
        json.dumps(
            {
                "compare": [{"key": "txn", "target": "exists", "op": "=", "with": False}],
                "then": [{"op": "put", "key": "txn", "value": "1"}],
                "else": [{"op": "get", "key": "txn"}],
            }
        )
    )
    done, again = served.run("kv", "txn", file), served.run("kv", "txn", file)
    assert (done.returncode, json.loads(done.stdout)["succeeded"]) == (0, True), done.stderr
    assert (again.returncode, json.loads(again.stdout)["succeeded"]) == (1, False)
    broken = served.run("kv", "txn", "-", given='{"then": [{"op": "jump"}]}')
    assert (broken.returncode, broken.stdout) == (2, "")


def test_when_a_level_is_asked_for_then_the_one_that_was_reached_is_told(
    served: Served, tmp_path: Path
) -> None:
    put = served.run("kv", "put", "level/a", "1", "--qos", "all")
    assert put.returncode == 0, put.stderr
    assert put.stdout.rstrip().endswith(", held: all")
    assert "held" not in served.run("kv", "put", "level/a", "1").stdout
    assert served.json("kv", "put", "level/a", "2", "--qos", "k:1")["qos"] in {"k:1", "majority", "all"}
    assert served.json("kv", "put", "level/b", "2")["qos"] == "majority"
    file = tmp_path / "txn.json"
    file.write_text('{"then": [{"op": "get", "key": "level/a"}]}')
    assert served.json("kv", "txn", file, "--qos", "all")["qos"] == "all"
    shown = served.run("kv", "txn", file, "--qos", "all", "-o", "table").stdout.splitlines()
    assert shown[0].startswith("then: revision ")
    assert shown[0].endswith(", held: all")
    assert json.loads(shown[1])["item"]["value"] == "2"
    assert served.run("kv", "del", "level/a", "--qos", "all").stdout == "deleted, held: all\n"
    gone = served.json("kv", "del", "--prefix", "level/")
    assert (gone["deleted"], gone["qos"]) == (1, "majority")
    assert served.json("kv", "del", "--prefix", "level/", code=1)["deleted"] == 0
    wrong = served.run("kv", "put", "level/a", "1", "--qos", "most")
    assert wrong.returncode == 2
    assert "qos" in wrong.stderr


def test_when_a_key_is_watched_then_its_past_and_its_future_are_shown(served: Served) -> None:
    first = served.json("kv", "put", "seen", "1")["revision"]
    served.json("kv", "put", "seen", "2")
    served.run("kv", "del", "seen")
    shown = served.run("kv", "watch", "seen", "--since", first - 1, "--limit", 3).stdout.splitlines()
    assert [line.split()[1:] for line in shown] == [
        ["put", "seen", "1"],
        ["put", "seen", "2"],
        ["delete", "seen"],
    ]
    history = served.run("kv", "history", "seen", "--since", first - 1).stdout.splitlines()
    assert history == shown
    assert served.run("kv", "history", "never").returncode == 1


def test_when_a_watch_is_interrupted_then_it_ends_with_0(served: Served) -> None:
    words = ["kv", "watch", "--prefix", "live/", "-o", "json", "--since", "0", "--endpoint", served.url]
    assert served.run("kv", "put", "live/1", "x").returncode == 0
    process = subprocess.Popen(
        [sys.executable, "-m", "cli.main", *words], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["key"] == "live/1"
        assert served.run("kv", "put", "live/2", "y").returncode == 0
        assert json.loads(process.stdout.readline())["value"] == "y"
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 0
    finally:
        process.kill()
        process.communicate()


# -- leases and locks ----------------------------------------------------------------------------


def test_when_a_lease_is_revoked_then_its_keys_and_locks_go_with_it(served: Served) -> None:
    lease = served.run("leases", "grant", "60s").stdout.strip()
    assert served.run("kv", "put", "leased", "v", "--lease", lease).returncode == 0
    held = served.run("locks", "acquire", "printer", "--lease", lease)
    assert (held.returncode, held.stdout.split(",")[0]) == (0, f"held: lease {lease}"), held.stderr
    (shown,) = [each for each in served.json("leases", "ls")["items"] if each["id"] == int(lease)]
    assert (shown["ttl_ms"], shown["keys"], shown["locks"]) == (60_000, 1, 1)
    assert served.run("leases", "renew", lease).returncode == 0
    assert served.run("leases", "revoke", lease).returncode == 0
    assert served.run("kv", "get", "leased").returncode == 1
    assert served.run("leases", "get", lease).returncode == 1
    assert "printer" not in served.run("locks", "ls").stdout


def test_when_no_command_is_named_then_leases_and_locks_are_listed_all_of_them(served: Served) -> None:
    with httpx2.Client(base_url=served.url) as http:
        lease = http.post("/v1/leases", json={"ttl": "1h"}).json()["id"]
        for number in range(5):
            assert http.post(f"/v1/locks/many/{number}", json={"lease": lease}).status_code == 200
    code = "import cli.leases; cli.leases.PAGE = 2; from cli.main import app; app()"
    words = [sys.executable, "-c", code, "locks", "--endpoint", served.url, "-o", "json"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, timeout=SECONDS, check=True)
    names = [each["name"] for each in json.loads(done.stdout)["items"]]
    assert [each for each in names if each.startswith("many/")] == [f"many/{each}" for each in range(5)]
    assert lease in [each["id"] for each in served.json("leases")["items"]]
    assert "Usage: rsm locks" in rsm("locks", "--help").stdout
    assert served.json("locks", "release", "many/0", "--lease", lease) == {
        "released": "many/0",
        "lease": lease,
    }
    assert served.json("leases", "revoke", lease) == {"revoked": lease}
    assert served.run("leases", "nonsense").returncode == 2


def test_when_a_lock_is_held_then_others_are_refused_until_it_is_given_back(served: Served) -> None:
    mine = served.json("locks", "acquire", "gate", "--ttl", "60s")
    refused = served.run("locks", "acquire", "gate", "--ttl", "60s", "--wait", "200ms")
    assert refused.returncode == 1
    assert "rsm locks get NAME" in refused.stderr
    assert served.json("locks", "get", "gate")["lease"] == mine["lease"]
    assert "gate" in served.run("locks", "ls", "ga").stdout
    assert served.run("locks", "release", "gate", "--lease", mine["lease"]).returncode == 0
    again = served.run("locks", "release", "gate", "--lease", mine["lease"])
    assert again.returncode == 1
    theirs = served.json("locks", "acquire", "gate", "--ttl", "60s")
    assert theirs["token"] > mine["token"]


@pytest.mark.parametrize(
    "words", [("locks", "acquire", "x"), ("locks", "acquire", "x", "--ttl", "1s", "--wait", "soon")]
)
def test_when_a_lock_is_asked_for_wrongly_then_nobody_is_asked(words: tuple[str, ...]) -> None:
    assert rsm(*words).returncode == 2


# -- the gateway itself --------------------------------------------------------------------------


def test_when_a_gateway_is_told_to_go_then_it_says_how_it_went(served: Served) -> None:
    with gateway(served.group.config()) as started:
        assert rsm("kv", "put", "x", "1", "--endpoint", started.url).returncode == 0
        code, out, _ = started.end()
    assert code == 0
    assert out.splitlines()[-1] == "stopped: what was under way is finished"


def test_when_a_gateway_is_given_addresses_instead_of_a_file_then_it_serves(served: Served) -> None:
    started = Started(
        *("gateway", "--group", "ops", "--replicas", ",".join(served.group.addresses)),
        *("--key-file", served.group.directory / "group.key", "--bind", "127.0.0.1:0"),
    )
    try:
        assert rsm("kv", "put", "y", "1", "--endpoint", started.url).returncode == 0
    finally:
        started.end(signal.SIGKILL)
    for wrong in ([], ["--group", "ops"], ["--group", "ops", "--replicas", served.group.addresses[0]]):
        assert rsm("gateway", *wrong).returncode == 2


def test_when_a_gateway_cannot_have_its_port_then_it_says_which(served: Served) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "cli.main",
                "gateway",
                "-c",
                served.group.config(),
                "--bind",
                f"127.0.0.1:{port}",
            ],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    assert done.returncode == 1
    assert f"127.0.0.1:{port}" in done.stderr


def test_when_a_gateway_would_let_everybody_in_then_it_refuses_unless_told(served: Served) -> None:
    done = rsm("gateway", "-c", served.group.config(), "--bind", "0.0.0.0:0")
    assert done.returncode == 2
    assert "tokens" in done.stderr


def test_when_there_are_tokens_then_each_may_do_what_its_scope_says(served: Served, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    reader = rsm("token", "new", "reader", "--scope", "read", "--tokens", file)
    writer = rsm("token", "new", "writer", "--scope", "read", "--scope", "write", "--tokens", file)
    assert (reader.returncode, writer.returncode) == (0, 0), reader.stderr + writer.stderr
    assert rsm("token", "new", "reader", "--tokens", file).returncode == 1
    secrets = {name: done.stdout.strip() for name, done in {"r": reader, "w": writer}.items()}
    assert all(secret not in file.read_text() for secret in secrets.values())
    assert file.stat().st_mode & 0o077 == 0
    listed = json.loads(rsm("token", "list", "--tokens", file, "-o", "json").stdout)
    assert [(each["name"], each["scopes"]) for each in listed] == [
        ("reader", ["read"]),
        ("writer", ["read", "write"]),
    ]
    with gateway(served.group.config(), "--tokens", file) as started:
        at = ("--endpoint", started.url, "--token")
        assert rsm("kv", "put", "t", "1", *at, secrets["w"]).returncode == 0
        assert rsm("kv", "get", "t", *at, secrets["r"]).stdout == "1"
        forbidden = rsm("kv", "put", "t", "2", *at, secrets["r"])
        assert forbidden.returncode == 1
        assert "forbidden" in forbidden.stderr
        nobody = rsm("kv", "get", "t", "--endpoint", started.url)
        assert nobody.returncode == 1
        assert "RSM_TOKEN" in nobody.stderr


def test_when_a_gateway_has_a_certificate_then_its_signer_must_be_named(
    served: Served, tmp_path: Path
) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    options = ("--tls-cert", tmp_path / "cert.pem", "--tls-key", tmp_path / "key.pem")
    with gateway(served.group.config(), *options) as started:
        assert started.url.startswith("https://")
        done = rsm("kv", "put", "t", "1", "--endpoint", started.url, "--ca", tmp_path / "ca.pem")
        assert done.returncode == 0, done.stderr
        stranger = rsm("kv", "get", "t", "--endpoint", started.url)
        assert stranger.returncode == 5
        assert "--ca" in stranger.stderr


def test_when_a_replica_serves_http_itself_then_it_answers_like_a_gateway(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    made = rsm("init", tmp_path / "g", "--memory", "--no-metrics", "--sites", address)
    assert made.returncode == 0, made.stderr
    started = Started("replica", "-c", tmp_path / "g" / "site-1.toml", "--http", "127.0.0.1:0")
    try:
        assert rsm("kv", "put", "k", "v", "--endpoint", started.url).returncode == 0
        assert rsm("kv", "get", "k", "--endpoint", started.url).stdout == "v"
        assert httpx2.get(f"{started.url}/readyz", trust_env=False).status_code == 200
        code, out, _ = started.end()
    finally:
        if started.process.poll() is None:
            started.end(signal.SIGKILL)
    assert code == 0
    assert out.splitlines()[-1].startswith("stopped: ")


def test_when_another_machine_is_to_be_served_over_http_then_it_is_refused(tmp_path: Path) -> None:
    rsm("init", tmp_path / "g", "--memory", "--no-metrics", "--sites", "127.0.0.1:0")
    site = tmp_path / "g" / "site-1.toml"
    done = rsm("replica", "-c", site, "-m", "tests.rsm.machines:Counter", "--http", "127.0.0.1:0")
    assert done.returncode == 2
    assert "apps.kv:KeyValueStore" in done.stderr


# -- the group ----------------------------------------------------------------------------------


def test_when_a_gateway_is_asked_how_the_group_stands_then_it_shows_all_members(served: Served) -> None:
    said = served.json("status")
    assert said["primary"] is True
    assert {each["address"] for each in said["members"]} == set(served.group.addresses)
    table = served.run("status")
    assert table.returncode == 0
    assert "3 of 3 voters serve" in table.stdout
    assert {each["address"] for each in served.json("members")["members"]} == set(served.group.addresses)
    assert "3 of 3 voters serve" in served.run("members").stdout


@pytest.mark.parametrize("source", ["endpoint", "config"])
def test_when_the_status_is_watched_then_it_is_drawn_until_it_is_interrupted(
    served: Served, source: str
) -> None:
    way = ("--endpoint", served.url) if source == "endpoint" else ("-c", served.group.config())
    process = subprocess.Popen(
        [sys.executable, "-m", "cli.main", "status", "--watch", "-o", "json", *map(str, way)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        for _ in range(2):
            assert served.group.addresses[0] in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 0
    finally:
        process.kill()
        process.communicate()


def test_when_a_replica_is_gone_for_good_then_it_is_removed_over_http(tmp_path: Path) -> None:
    with (
        running_group(tmp_path, durable=False, machine=KEY_VALUE) as group,
        gateway(group.config()) as started,
    ):
        at = ("--endpoint", started.url)
        running = rsm("cluster", "remove", group.addresses[2], *at)
        assert running.returncode == 1
        assert "say --force" in running.stderr
        assert rsm("cluster", "remove", "10.9.9.9:1", *at).returncode == 2
        group.kill(3)
        done = rsm("cluster", "remove", group.addresses[2], *at)
        assert done.returncode == 0, done.stderr
        assert "2 of 2 voters serve" in rsm("members", *at).stdout
        group.kill(2)
        until(lambda: rsm("status", *at).returncode == 1)
        write = rsm("kv", "put", "k", "v", *at, "--timeout", "2")
        assert write.returncode in {4, 5}
        assert write.stderr
