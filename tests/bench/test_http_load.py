"""The load generator against a server that does what each test says: counts and waits must be true."""

import socket
import threading
import time
from collections.abc import Callable
from random import Random

import pytest

from bench.errors import BenchError
from bench.histogram import Histogram
from bench.http_load import CONNECTIONS_MAX, Load, Loader, Mishap, Report, is_accepted, is_refused
from bench.ports import free_ports
from bench.results import percentile
from tests.bench.http_server import Server, always, answered, reset, send, serving

GET = b"GET /v1/kv/a HTTP/1.1\r\nHost: here\r\n\r\n"
OK = answered(b"value")


def run(server: Server, *requests: bytes, connections: int = 1, **options: float) -> Report:
    load = Load(addresses=(server.address,), requests=requests or (GET,), connections=connections, **options)
    return Loader(load).run()


def counts(report: Report) -> dict[int, int]:
    return {status: waits.count for status, waits in report.waits.items()}


# -- waits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("percent", [0, 1, 50, 90, 99, 99.9, 100])
def test_when_waits_are_noted_then_percentiles_are_within_a_hundredth_and_never_too_short(
    percent: float,
) -> None:
    rng = Random(5)
    waits = [int(rng.lognormvariate(14, 2)) for _ in range(5000)]
    histogram = Histogram()
    for wait in waits:
        histogram.note(wait)
    exact = percentile(sorted(waits), percent) / 1000
    assert exact <= histogram.percentile_us(percent) <= exact * 1.01 + 1


def test_when_histograms_are_added_then_it_is_as_if_one_had_noted_all() -> None:
    both, one, other = Histogram(), Histogram(), Histogram()
    for number in range(2000):
        both.note(number * 997)
        (one if number % 3 else other).note(number * 997)
    one.add(other)
    assert (one.counts, one.count, one.max_ns) == (both.counts, both.count, both.max_ns)
    assert one.shown()["samples"] == 2000
    assert one.shown()["max_us"] == round(1999 * 997 / 1000, 1)


def test_when_a_wait_is_longer_than_any_bucket_then_it_is_counted_in_the_last() -> None:
    histogram = Histogram()
    histogram.note(10**18)
    assert histogram.count == sum(histogram.counts) == 1
    assert histogram.percentile_us(50) > 60e9


def test_when_nothing_was_noted_then_there_is_no_percentile() -> None:
    assert Histogram().shown() == {"samples": 0}
    with pytest.raises(ValueError, match="nothing"):
        Histogram().percentile_us(50)
    histogram = Histogram()
    histogram.note(1)
    with pytest.raises(ValueError, match="percent"):
        histogram.percentile_us(101)


# -- closed loops --------------------------------------------------------------------------------


def test_when_each_request_is_to_be_sent_once_then_the_server_sees_each_in_order() -> None:
    requests = [b"PUT /%d HTTP/1.1\r\nContent-Length: 2\r\n\r\n%02d" % (n, n) for n in range(30)]
    with serving(always(OK)) as server:
        report = run(server, *requests)
    assert server.asked == requests
    assert counts(report) == {200: 30}
    assert server.opened == 1, "the connection is kept"


def test_when_several_connections_ask_for_a_time_then_all_are_used_and_every_answer_counts() -> None:
    with serving(always(OK)) as server:
        report = run(server, connections=8, seconds=0.3)
    assert server.opened == 8
    assert counts(report) == {200: len(server.asked)}
    assert 0 < report.in_time[200] <= len(server.asked)
    assert report.bytes == len(server.asked) * len(OK)
    assert not report.mishaps


def test_when_connections_are_many_then_no_more_requests_are_under_way_than_there_are() -> None:
    together, most, lock = 0, 0, threading.Lock()

    def slowly(_: int, __: bytes, client: socket.socket) -> bool:
        nonlocal together, most
        with lock:
            together += 1
            most = max(most, together)
        time.sleep(0.005)
        with lock:
            together -= 1
        return send(client, OK)

    with serving(slowly) as server:
        run(server, connections=5, seconds=0.2)
    assert most == 5


def test_when_addresses_are_several_then_connections_are_spread() -> None:
    with serving(always(OK)) as one, serving(always(OK)) as other:
        load = Load(addresses=(one.address, other.address), requests=(GET,) * 20, connections=4, seconds=0.1)
        Loader(load).run()
        assert (one.opened, other.opened) == (2, 2)


def test_when_answers_are_errors_then_they_are_counted_by_status_and_missing_advice_is_noticed() -> None:
    script = [
        OK,
        answered(b"", 429, "RETRY-after: 1"),
        answered(b"{}", 429),
        answered(b"", 503, "Retry-After: 2"),
        answered(b"nothing", 404),
        answered(b"", 304),
    ]

    def scripted(number: int, _: bytes, client: socket.socket) -> bool:
        return send(client, script[number])

    with serving(scripted) as server:
        report = run(server, *[GET] * len(script))
    assert counts(report) == {200: 1, 429: 2, 503: 1, 404: 1, 304: 1}
    assert report.unadvised == 1
    assert report.merged(is_accepted).count == 2
    assert report.merged(is_refused).count == 3


@pytest.mark.parametrize(
    "answer",
    [
        answered(b"x" * 100_000, 200),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\n\r\n",
        answered(b"", 429, "X-Long: " + "y" * 20_000, "Retry-After: 1"),
    ],
    ids=["long", "chunked", "no content", "advice behind a long head"],
)
def test_when_an_answer_comes_in_pieces_then_it_is_one_answer(answer: bytes) -> None:
    def piecemeal(_: int, __: bytes, client: socket.socket) -> bool:
        cut = len(answer) // 2
        client.sendall(answer[:7])
        time.sleep(0.01)
        client.sendall(answer[7:cut])
        time.sleep(0.01)
        return send(client, answer[cut:])

    with serving(piecemeal) as server:
        report = run(server, GET, GET, GET)
    assert sum(counts(report).values()) == 3
    assert not report.mishaps
    assert report.unadvised == 0
    assert server.opened == 1


def test_when_a_request_does_not_fit_into_the_socket_then_the_rest_follows() -> None:
    body = Random(1).randbytes(8 << 20)
    request = b"PUT /a HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    with serving(always(OK)) as server:
        report = run(server, request, request)
    assert [asked == request for asked in server.asked] == [True, True]
    assert counts(report) == {200: 2}


def test_when_the_server_ends_connections_politely_then_they_are_opened_again_without_a_mishap() -> None:
    with serving(always(answered(b"", 200, "Connection: close"))) as server:
        report = run(server, *[GET] * 6, connections=2)
    assert counts(report) == {200: 6}
    assert not report.mishaps
    assert server.opened >= 6


# -- what breaks ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("breaking", "mishap"),
    [
        (lambda client: False, Mishap.CLOSED),
        (reset, Mishap.RESET),
        (lambda client: send(client, b"SMTP ready\r\n\r\n"), Mishap.MALFORMED),
        (lambda client: send(client, OK + OK), Mishap.MALFORMED),
    ],
    ids=["closed", "reset", "malformed", "answered twice"],
)
def test_when_a_connection_breaks_then_it_is_counted_and_the_load_goes_on(
    breaking: Callable[[socket.socket], bool], mishap: Mishap
) -> None:
    def third(number: int, _: bytes, client: socket.socket) -> bool:
        return breaking(client) if number == 3 else send(client, OK)

    with serving(third) as server:
        report = run(server, connections=2, seconds=0.4)
    assert report.mishaps == {mishap: 1}
    assert counts(report)[200] > 10
    assert server.opened == 3


def test_when_nobody_listens_then_refusals_are_counted_and_the_load_ends_in_time() -> None:
    (port,) = free_ports(1)
    started = time.monotonic()
    load = Load(addresses=(("127.0.0.1", port),), requests=(GET,), connections=2, seconds=0.2)
    report = Loader(load).run()
    assert set(report.mishaps) == {Mishap.REFUSED}
    assert 2 <= report.mishaps[Mishap.REFUSED] <= 50, "a pause between two attempts"
    assert not report.waits
    assert time.monotonic() - started < 5


def test_when_each_request_is_to_be_sent_once_and_one_breaks_then_it_ends_there() -> None:
    with serving(lambda number, _, client: number != 2 and send(client, OK)) as server:
        report = run(server, *[GET] * 10)
    assert counts(report) == {200: 2}
    assert report.mishaps == {Mishap.CLOSED: 1}


def test_when_there_is_no_answer_then_the_request_is_given_up() -> None:
    with serving(lambda number, _, client: number == 0 or send(client, OK)) as server:
        report = run(server, seconds=1.5, overdue_seconds=0.2)
    assert report.mishaps == {Mishap.OVERDUE: 1}
    assert counts(report)[200] > 10, "on another connection"


def test_when_more_is_asked_than_can_be_done_then_it_is_refused_before_it_begins() -> None:
    nowhere = ("127.0.0.1", 1)
    for load in (
        Load(addresses=(nowhere,), requests=(GET,), connections=0),
        Load(addresses=(nowhere,), requests=(GET,), connections=CONNECTIONS_MAX + 1),
        Load(addresses=(nowhere,), requests=(), connections=1),
        Load(addresses=(), requests=(GET,), connections=1),
    ):
        with pytest.raises(BenchError, match=r"load|connections"):
            Loader(load)


# -- by the clock --------------------------------------------------------------------------------


def test_when_requests_are_due_by_the_clock_then_as_many_are_sent_as_were_due() -> None:
    with serving(always(OK)) as server:
        report = run(server, connections=4, seconds=0.5, rate=200)
    assert counts(report) == {200: 100}
    assert len(server.asked) == 100


def test_when_the_server_stalls_once_then_all_that_was_due_meanwhile_has_waited() -> None:
    def stalling(number: int, _: bytes, client: socket.socket) -> bool:
        if number == 20:
            time.sleep(0.4)
        return send(client, OK)

    with serving(stalling) as server:
        report = run(server, connections=1, seconds=1.0, rate=100)
    waits = report.waits[200]
    assert waits.count == 100
    assert waits.percentile_us(75) > 50_000, "about forty were due during the stall, not one"
    assert waits.max_ns > 390_000_000


def test_when_the_server_never_answers_then_all_that_was_due_is_overdue() -> None:
    with serving(lambda *_: True) as server:
        started = time.monotonic()
        report = run(server, connections=2, seconds=0.3, rate=100, overdue_seconds=0.3)
    assert report.mishaps[Mishap.OVERDUE] == 30
    assert not report.waits
    assert time.monotonic() - started < 5


def test_when_the_server_closes_idle_connections_then_that_is_no_mishap() -> None:
    def shy(_: int, __: bytes, client: socket.socket) -> bool:
        return not send(client, OK)

    with serving(shy) as server:
        report = run(server, connections=4, seconds=0.5, rate=20)
    assert counts(report) == {200: 10}
    assert not report.mishaps
    assert server.opened > 4
