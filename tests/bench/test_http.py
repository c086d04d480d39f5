"""The benchmarks over HTTP: what is asked, by whom, what comes out of it; and tiny real runs."""

import base64
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import httptools
import msgspec
import pytest
from typer.testing import CliRunner, Result

from bench import http_generators, http_measure, http_overload
from bench.errors import BenchError, NotAvailable
from bench.http_generators import Generator, Generators, run_wrk, shown, wrk_shown
from bench.http_load import Load, Loader
from bench.http_measure import HttpPlan, Loads
from bench.http_overload import Memory, OverloadPlan, checks, is_enough, sustained, tried
from bench.http_services import Kind, Ours, Service, answers, bare, key_of, requests_of
from bench.machine import Mode
from bench.peers import etcd
from bench.peers.etcd import EtcdPlan, Gateway
from bench.ports import free_ports
from bench.programs import Program, cpu_seconds, programs, resident_bytes, wait_until
from bench.results import Value
from cli.main import app
from tests.bench.http_server import always, answered, send, serving

GET = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"
needs_wrk = pytest.mark.skipif(shutil.which("wrk") is None, reason="needs wrk")
needs_etcd = pytest.mark.skipif(shutil.which("etcd") is None, reason="needs an installed etcd")


def rsm_bench(*words: str) -> Result:
    return CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(app, ["bench", *words])


class Parsed:
    """A request as a server understands it."""

    def __init__(self, request: bytes) -> None:
        self.target = b""
        self.body = b""
        self.headers: dict[bytes, bytes] = {}
        self.whole = False
        parser = httptools.HttpRequestParser(self)
        parser.feed_data(request)
        self.method = parser.get_method()
        assert self.whole

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.whole = True


# -- what is asked -------------------------------------------------------------------------------


def test_when_puts_are_made_then_each_key_is_written_once_with_a_value_of_that_size() -> None:
    parsed = [Parsed(each) for each in requests_of(Ours(), Kind.PUT, 100, keys=50)]
    assert {each.method for each in parsed} == {b"PUT"}
    assert sorted(each.target for each in parsed) == [b"/v1/kv/" + key_of(number) for number in range(50)]
    assert {len(each.body) for each in parsed} == {100}
    assert len({each.body for each in parsed}) == 50
    assert [each.target for each in parsed] != sorted(each.target for each in parsed)


def test_when_the_same_is_asked_for_twice_then_it_is_the_same() -> None:
    for kind in Kind:
        assert requests_of(Ours(), kind, 7, keys=20) == requests_of(Ours(), kind, 7, keys=20)


@pytest.mark.parametrize(
    ("kind", "methods", "query"),
    [(Kind.GET, {b"GET": 20}, b""), (Kind.STALE, {b"GET": 20}, b"?consistency=stale")],
)
def test_when_gets_are_made_then_they_say_how_old_an_answer_may_be(
    kind: Kind, methods: dict[bytes, int], query: bytes
) -> None:
    parsed = [Parsed(each) for each in requests_of(Ours(), kind, 10, keys=20)]
    assert {each.method for each in parsed} == set(methods)
    assert all(each.target.endswith(query) and (b"?" in each.target) == bool(query) for each in parsed)


def test_when_requests_are_mixed_then_half_of_them_are_puts() -> None:
    methods = [Parsed(each).method for each in requests_of(Ours(), Kind.MIXED, 10, keys=20)]
    assert (methods.count(b"PUT"), methods.count(b"GET")) == (10, 10)


def test_when_etcd_is_asked_then_it_is_asked_the_same_in_its_own_words() -> None:
    ours = [Parsed(each) for each in requests_of(Ours(), Kind.PUT, 100, keys=20)]
    theirs = [Parsed(each) for each in requests_of(Gateway(), Kind.PUT, 100, keys=20)]
    for mine, other in zip(ours, theirs, strict=True):
        said = json.loads(other.body)
        assert (other.method, other.target) == (b"POST", b"/v3/kv/put")
        assert b"/v1/kv/" + base64.b64decode(said["key"]) == mine.target
        assert base64.b64decode(said["value"]) == mine.body
    read = [json.loads(Parsed(Gateway().get(b"a", stale=stale)).body) for stale in (False, True)]
    assert read == [{"key": "YQ=="}, {"key": "YQ==", "serializable": True}]


# -- by whom -------------------------------------------------------------------------------------


def test_when_a_load_is_shown_then_a_rate_is_of_those_who_got_what_they_asked_for() -> None:
    script = [answered(b"x"), answered(b"", 429, "Retry-After: 1"), answered(b"", 404), answered(b"", 503)]
    with serving(lambda number, _, client: send(client, script[number % 4])) as server:
        row = shown(
            Loader(Load(addresses=(server.address,), requests=(GET,), connections=2, seconds=0.2)).run()
        )
    statuses = row["statuses"]
    assert isinstance(statuses, dict)
    assert set(statuses) == {"200", "404", "429", "503"}
    assert row["answered"] == statuses["200"]
    assert row["errors"] == sum(
        count for status, count in statuses.items() if status != "200" and isinstance(count, int)
    )
    assert row["refusals_without_retry_after"] == statuses["503"]
    assert row["generator"] == "bundled"


def test_when_keys_cannot_be_written_then_nothing_is_measured() -> None:
    with serving(always(answered(b"", 503, "Retry-After: 1"))) as server, make_generators() as generators:
        load = Load(addresses=(server.address,), requests=(GET,), connections=1)
        with pytest.raises(BenchError, match=r"could not be written.*503"):
            generators.fill(load)


def make_generators(chosen: Generator = Generator.BUNDLED) -> Generators:
    return Generators(chosen, lambda: None)


def test_when_wrk_tells_then_its_words_are_ours() -> None:
    told = {
        "us": 2_000_000, "answered": 1000, "bytes": 5000, "connect": 1, "read": 2, "write": 3, "overdue": 4,
        "status": 100, "p50": 10, "p90": 20, "p99": 30, "p99.9": 40, "max": 50,
    }  # fmt: skip
    row = wrk_shown(json.dumps(told).encode(), 0.25)
    assert (row["per_s"], row["answered"], row["errors"]) == (450, 900, 110)
    latency = row["latency"]
    assert isinstance(latency, dict)
    assert [latency[f"p{name}_us"] for name in ("50", "90", "99", "99.9")] == [10, 20, 30, 40]
    mine = shown(_one_answer())
    assert set(row) == set(mine)
    assert set(latency) == set(mine["latency"] if isinstance(mine["latency"], dict) else ())


def _one_answer() -> Any:
    with serving(always(answered(b"x"))) as server:
        return Loader(Load(addresses=(server.address,), requests=(GET,), connections=1)).run()


@needs_wrk
def test_when_wrk_makes_the_load_then_the_server_sees_the_very_requests() -> None:
    requests = tuple(
        b"PUT /%d HTTP/1.1\r\nHost: here\r\nContent-Length: 3\r\n\r\n\r\n%d" % (n, n) for n in range(5)
    )
    with serving(always(answered(b"x"))) as server:
        row = run_wrk(Load(addresses=(server.address,), requests=requests, connections=2, seconds=1))
    assert set(server.asked) == set(requests)
    assert row["generator"] == "wrk"
    assert row["errors"] == 0
    assert isinstance(row["answered"], int)
    assert 0 < row["answered"] <= len(server.asked)
    assert isinstance(row["generator_cpu_s"], float)
    assert row["generator_cpu_s"] > 0


@needs_wrk
def test_when_nobody_listens_then_wrk_has_no_result() -> None:
    (port,) = free_ports(1)
    with pytest.raises(BenchError, match="wrk"):
        run_wrk(Load(addresses=(("127.0.0.1", port),), requests=(GET,), connections=1, seconds=1))


def test_when_wrk_is_missing_then_the_bundled_generator_takes_over_unless_wrk_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_generators, "has_wrk", lambda: False)
    assert make_generators(Generator.AUTO).closed_by == "bundled"
    with pytest.raises(NotAvailable, match="apt-get install -y wrk"):
        make_generators(Generator.WRK)
    done = rsm_bench("http", "--generator", "wrk")
    assert done.exit_code == 3
    assert "apt-get install -y wrk" in done.output


# -- programs ------------------------------------------------------------------------------------


def test_when_a_program_works_then_its_cpu_and_memory_are_seen_and_it_is_stopped(tmp_path: Path) -> None:
    with programs() as running:
        words = [sys.executable, "-uc", "print('working')\nwhile True: pass"]
        program = Program("a worker", words, tmp_path)
        running.append(program)
        wait_until(running, lambda: program.says("work"), 30, "does not work")
        before = cpu_seconds(program.pid)
        wait_until(running, lambda: cpu_seconds(program.pid) > before, 30, "uses no CPU")
        assert not program.says("ork"), "a line begins with it, or it is another word"
        assert resident_bytes(program.pid) > 1_000_000
    assert program.process.returncode == -9
    assert cpu_seconds(program.pid) == resident_bytes(program.pid) == 0


def test_when_a_program_ends_then_its_last_words_are_told(tmp_path: Path) -> None:
    with programs() as running:
        words = ["sh", "-c", "echo first; echo port is taken >&2; exit 3"]
        running += [Program("sleeper", ["sleep", "60"], tmp_path), Program("a failure", words, tmp_path)]
        with pytest.raises(BenchError, match="a failure ended with exit code 3: port is taken"):
            wait_until(running, lambda: False, 30, "never")


def test_when_a_program_is_late_then_that_is_told(tmp_path: Path) -> None:
    with programs() as running:
        running.append(Program("sleeper", ["sleep", "60"], tmp_path))
        with pytest.raises(BenchError, match="sleeper: not ready within 0 s"):
            wait_until(running, lambda: False, 0.1, "sleeper: not ready")


# -- measured ------------------------------------------------------------------------------------


def test_when_the_bare_server_is_loaded_then_it_is_told_who_used_how_much_cpu(tmp_path: Path) -> None:
    with make_generators() as generators, bare(tmp_path) as service:
        assert answers(service.addresses[0], "/")
        loads = Loads(service, generators, 100)
        closed = loads.run(Kind.PUT, 4, 0.3)
        timed = loads.run(Kind.GET, 4, 0.3, rate=100)
        memory = loads.resident_mb()
    assert closed["errors"] == timed["errors"] == 0
    assert timed["answered"] == 30
    cpu = closed["cpu"]
    assert isinstance(cpu, dict)
    assert set(cpu) == {"bare server", "generator"}
    assert all(isinstance(cores, float) and 0 < cores < 2 for cores in cpu.values())
    assert isinstance(closed["cpu_us"], float)
    assert closed["cpu_us"] > 0
    assert isinstance(memory["bare server"], float)


def test_when_no_request_is_served_then_there_is_no_result() -> None:
    with serving(always(answered(b"", 500))) as server, make_generators() as generators:
        service = Service(name="broken", dialect=Ours(), addresses=(server.address,), programs=[])
        with pytest.raises(BenchError, match="broken: get: no request got what it asked for"):
            Loads(service, generators, 10).run(Kind.GET, 1, 0.1)


def test_when_rates_are_compared_then_with_a_bare_server_under_as_long_requests() -> None:
    plan = HttpPlan(modes=(Mode.MEMORY,), connections=(64,))
    values: dict[str, Value] = {
        "bare": {"put": {"64": {"per_s": 1000}}, "get": {"64": {"per_s": 2000}}},
        "memory": {
            "put": {"64": {"per_s": 500}}, "get": {"64": {"per_s": 500}}, "stale": {"64": {"per_s": 1000}},
        },
    }  # fmt: skip
    assert http_measure.ratios(plan, values) == {
        "rate, memory put, 64 connections, to bare": 0.5,
        "rate, memory get, 64 connections, to bare": 0.25,
        "rate, memory stale, 64 connections, to bare": 0.5,
        "rate, memory mixed, 64 connections, to bare": None,
    }


def test_when_the_store_is_measured_then_every_load_is_answered_and_has_its_ground(tmp_path: Path) -> None:
    done = rsm_bench(
        "http", "--mode", "memory", "--connections", "2", "--seconds", "0.3", "--generator", "bundled",
        "--directory", str(tmp_path), "--json",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert result["name"] == "http"
    assert result["parameters"]["generator"] == "bundled"
    for kind in Kind:
        row = result["values"]["memory"][kind.value]["2"]
        assert row["errors"] == 0, row
        assert set(row["cpu"]) == {"replica 1", "replica 2", "replica 3", "gateway", "generator"}
        assert {"p50_us", "p99_us", "p99.9_us"} <= set(row["latency"])
        assert result["ratios"][f"rate, memory {kind.value}, 2 connections, to bare"] > 0
    assert list(tmp_path.iterdir()) == []


# -- overload ------------------------------------------------------------------------------------


def searched(*rates: int, refused: int = 0) -> dict[str, Value]:
    """Rows of 8, 16, 32 … connections; ``refused`` in the last one."""
    rows: list[dict[str, Value]] = [{"per_s": rate, "errors": 0} for rate in rates]
    rows[-1]["errors"] = refused
    return {str(8 << step): row for step, row in enumerate(rows)}


def test_when_loads_are_tried_then_there_is_one_between_two_doublings() -> None:
    found = tried(OverloadPlan())
    assert found[:6] == [16, 24, 32, 48, 64, 96]
    assert found[-1] <= http_overload.SUSTAINED_MAX
    assert tried(OverloadPlan(connections=7)) == [7]


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ([1000], False),
        ([1000, 1900, 1950, 1960], False),
        ([1000, 1900, 1950, 1960, 1970], True),
        ([1000, 900, 900], False),
        ([1000, 900, 900, 1500], False),
        ([1000, 900, 900, 1040], True),
    ],
)
def test_when_more_connections_bring_nothing_again_and_again_then_it_is_enough(
    rates: list[int], expected: bool
) -> None:
    assert is_enough(searched(*rates)) is expected


def test_when_connections_are_refused_then_they_are_not_sustained() -> None:
    assert sustained(searched(1000, 2000, refused=1)) == 8
    with pytest.raises(BenchError, match="refused already at 8"):
        sustained(searched(1000, refused=1))


@pytest.mark.parametrize(
    ("rates", "expected"), [((1000, 1900, 1950, 2000), 16), ((1000, 1890, 2000), 32), ((1000,), 8)]
)
def test_when_a_load_is_chosen_then_it_is_the_least_that_reaches_nearly_the_best_rate(
    rates: tuple[int, ...], expected: int
) -> None:
    assert sustained(searched(*rates)) == expected


def overloaded(**changes: Value) -> dict[str, Value]:
    overload: dict[str, Value] = {
        "statuses": {"200": 10, "429": 5, "503": 1}, "mishaps": {}, "refusals_without_retry_after": 0,
        "latency": {"p50_us": 2.0, "p99_us": 6.0}, "per_s": 90, "cpu": {"generator": 0.3},
    }  # fmt: skip
    values: dict[str, Value] = {
        "overload": overload | {name: value for name, value in changes.items() if name in overload},
        "sustained": {"latency": {"p50_us": 1.0, "p99_us": 4.0}, "per_s": 100},
        "afterwards": {"latency": {"p50_us": 3.0, "p99_us": 8.0}, "per_s": 80},
        "resident_mb": {"settled": {"gateway": 100.0}, "after": {"gateway": 105.0}},
        "view": {"before": "7", "after": "7"},
    }
    return values | {name: value for name, value in changes.items() if name in values}


def test_when_overload_is_withstood_then_every_check_holds() -> None:
    assert set(checks(overloaded()).values()) == {True}
    assert http_overload.ratios(overloaded()) == {
        "p50, accepted, to sustained": 1.0,
        "p99, accepted, to sustained": 1.0,
        "rate, accepted, to sustained": 1.0,
        "rate, afterwards, to before": 0.8,
    }


def test_when_memory_is_watched_then_what_it_was_after_a_fifth_of_the_time_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_overload, "_SAMPLE_SECONDS", 0.0)
    ticks: list[None] = []
    memory = Memory(lambda: ticks.append(None))
    sizes = iter(range(10))

    class Growing(Loads):
        def resident_mb(self) -> dict[str, Value]:
            return {"gateway": next(sizes)}

    memory.tick()
    service = Service(name="", dialect=Ours(), addresses=(), programs=[])
    memory.watch(Growing(service, make_generators(), 1))
    for _ in range(10):
        memory.tick()
    memory.watch(None)
    memory.tick()
    assert (memory.samples[0], memory.settled(), memory.samples[-1]) == (
        {"gateway": 0}, {"gateway": 2}, {"gateway": 9},
    )  # fmt: skip
    assert len(ticks) == 12


def test_when_a_gateway_has_far_too_many_connections_then_all_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(http_overload, "_FILL_ROUNDS", 1)
    monkeypatch.setenv("RSM_GATEWAY_REQUESTS_MAX", str(http_measure.FILL_CONNECTIONS))
    plan = OverloadPlan(connections=4, seconds=1.0, search_seconds=0.3, directory=tmp_path)
    values = http_overload.run(plan, lambda _: None, lambda: None).values
    overload = values["overload"]
    assert isinstance(overload, dict)
    assert overload["connections"] == 40
    assert isinstance(overload["statuses"], dict)
    assert set(overload["statuses"]) == {"200", "429"}
    assert values["sustained_connections"] == 4
    told = values["checks"]
    assert isinstance(told, dict)
    assert set(told.values()) == {True}, told
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "failed"),
    [
        ({"mishaps": {"connection reset": 1}}, "everybody got an answer"),
        ({"statuses": {"200": 1, "500": 1}}, "served or told to come back, nothing else"),
        ({"refusals_without_retry_after": 1}, "whoever was refused was told when to come back"),
        ({"view": {"before": "7", "after": "8"}}, "the view is the same"),
        ({"cpu": {"generator": 0.9}}, "the generator had time to spare"),
        (
            {"resident_mb": {"settled": {"gateway": 100.0}, "after": {"gateway": 130.0}}},
            "no program has grown",
        ),
    ],
)
def test_when_overload_shows_then_the_check_says_where(changes: dict[str, Value], failed: str) -> None:
    assert [name for name, held in checks(overloaded(**changes)).items() if not held] == [failed]


# -- etcd ----------------------------------------------------------------------------------------


def test_when_etcd_is_missing_then_the_command_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(etcd, "require_disk", lambda _: None)
    monkeypatch.setattr("bench.peers.etcd.shutil.which", lambda _: None)
    done = rsm_bench("peers", "etcd", "--generator", "bundled", "--directory", str(tmp_path))
    assert done.exit_code == 3
    assert "apt-get install -y etcd-server" in done.output


@needs_etcd
def test_when_etcd_runs_then_it_is_loaded_at_its_leader_and_nothing_is_left(tmp_path: Path) -> None:
    with make_generators() as generators, etcd.cluster(tmp_path) as service:
        loads = Loads(service, generators, 100)
        loads.fill()
        rows = [loads.run(kind, 4, 0.3) for kind in etcd.CLOSED]
        pids = [program.pid for program in service.programs]
    for row in rows:
        assert row["errors"] == 0
        assert isinstance(row["cpu"], dict)
        assert set(row["cpu"]) == {"etcd 1", "etcd 2", "etcd 3", "generator"}
    assert [cpu_seconds(pid) for pid in pids] == [0, 0, 0]


def test_when_ours_is_compared_with_etcd_then_each_ratio_is_ours_to_theirs() -> None:
    def row(rate: int, us: float) -> dict[str, Value]:
        return {"per_s": rate, "latency": {"p50_us": us, "p99_us": 3 * us}, "cpu_us": 2 * us}

    names = [*(kind.value for kind in etcd.CLOSED), etcd.SAME, etcd.OWN]
    values: dict[str, Value] = {
        etcd.OURS: {name: row(300, 10.0) for name in names},
        etcd.THEIRS: {name: row(100, 20.0) for name in names},
    }
    found = etcd.ratios(values)
    assert {found[f"rate, {kind.value}"] for kind in etcd.CLOSED} == {3.0}
    assert f"rate, {etcd.SAME}" not in found, "it was given, not reached"
    assert {found[f"{what}, {name}"] for name in names for what in ("p50", "p99", "CPU")} == {0.5}


# -- options -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["http", "--connections", "0"], "--connections"),
        (["http", "--connections", "some"], "--connections"),
        (["http", "--size", "0"], "--size"),
        (["http", "--kinds", "post"], "--kinds"),
        (["http", "--mode", "paper"], "--mode"),
        (["http", "--gateways", "0"], "--gateways"),
        (["http", "--directory", "/proc/nothing"], "--directory"),
        (["overload", "--connections", "5000"], "--connections"),
        (["overload", "--mode", "durable", "--directory", "/proc/nothing"], "--directory"),
        (["peers", "etcd", "--connections", "20000"], "--connections"),
        (["peers", "etcd", "--directory", "/proc/nothing"], "--directory"),
    ],
)
def test_when_an_option_makes_no_sense_then_nothing_is_started(words: list[str], hint: str) -> None:
    done = rsm_bench(*words)
    assert done.exit_code == 2, done.output
    assert hint in done.output


def test_when_a_plan_asks_for_what_cannot_be_then_it_is_refused(tmp_path: Path) -> None:
    for plan, changes in (
        (
            HttpPlan(modes=(Mode.MEMORY,)),
            ({"modes": ()}, {"connections": ()}, {"gateways": 9}, {"kinds": ()}),
        ),
        (OverloadPlan(), ({"connections": -1},)),
        (EtcdPlan(directory=tmp_path), ({"size": 0}, {"gateways": 0})),
    ):
        for change in changes:
            with pytest.raises(BenchError):
                msgspec.structs.replace(plan, **change).check()
