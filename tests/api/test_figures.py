"""Rates, percentiles and the token's way, from counters."""

from typing import Any

import pytest

from api.figures import Reading, path_of, percentile, second_of
from api.metrics import Answered, Metrics
from rsm.status import PassStatus, ReplicaStatus, Standing, TrafficStatus

NOTHING = Answered(0, 0, {}, {})


def passed(slot: int, source: str, target: str, *, epoch: int = 1, last: int = 0) -> PassStatus:
    return PassStatus(
        epoch=epoch, slot=slot, last=last or slot, source=source, target=target, at_ns=slot * 10**6
    )


def replica(boot: str, applied: int, traffic: TrafficStatus | None, **counters: int) -> ReplicaStatus:
    named = {name.replace("_", " "): count for name, count in counters.items()}
    return ReplicaStatus(
        group="g",
        address=boot,
        site=boot,
        standing=Standing.SERVING,
        mode="memory",
        boot=boot,
        applied=applied,
        counters=named,
        traffic=traffic,
    )


def reading(at: float, *replicas: ReplicaStatus, answered: Answered = NOTHING) -> Reading:
    return Reading(at, 1000 + at, answered, {each.boot: each for each in replicas})


@pytest.mark.parametrize(
    ("counts", "share", "expected"),
    [
        ({}, 0.5, None),
        ({1.0: 0.0, 2.0: 0.0}, 0.5, None),
        ({1.0: 10.0}, 0.5, 0.5),
        ({1.0: 50.0, 2.0: 50.0}, 0.5, 1.0),
        ({1.0: 50.0, 2.0: 50.0}, 0.99, 1.98),
        ({1.0: 1.0, 2.0: 0.0, 4.0: 1.0}, 0.99, 3.96),
        ({1.0: 0.0, float("inf"): 3.0}, 0.5, 1.0),
    ],
)
def test_percentile_is_interpolated_within_its_bucket(
    counts: dict[float, float], share: float, expected: float | None
) -> None:
    assert percentile(counts, share) == expected


def test_when_counters_have_counted_on_then_a_second_has_what_was_added() -> None:
    latency = [0] * 64
    then = TrafficStatus(datagrams_out=100, bytes_out=1000, delivered=10, passes=5, latency=latency)
    latency = [*latency[:20], 4, *latency[21:]]
    now = TrafficStatus(datagrams_out=300, bytes_out=9000, delivered=50, passes=9, latency=latency)
    second = second_of(
        reading(10.0, replica("a", 10, then, retransmissions=3, nacks_sent=1), replica("b", 4, then)),
        reading(12.0, replica("a", 50, now, retransmissions=7, nacks_sent=3), replica("b", 50, now)),
    )
    assert second["seconds"] == 2.0
    assert second["at_s"] == 1012.0
    assert second["ordering"]["rate"] == 20.0  # both have seen the same
    assert second["passes"] == 2.0
    assert second["network"] == {
        "datagrams": 200.0,
        "bytes": 8000.0,
        "retransmitted": 2.0,
        "asked_again": 1.0,
        "dropped": 0.0,
    }
    majority = second["ordering"]["majority"]
    assert majority["p50_ms"] is not None
    assert 2**19 / 1e6 <= majority["p50_ms"] <= 2**20 / 1e6


def test_when_a_replica_is_another_process_or_begins_anew_then_nothing_is_counted_twice() -> None:
    many = TrafficStatus(datagrams_out=500, delivered=10_000, passes=700)
    few = TrafficStatus(datagrams_out=20, delivered=5, passes=2)
    steady = TrafficStatus(datagrams_out=10, delivered=100, passes=10)
    after = TrafficStatus(datagrams_out=12, delivered=103, passes=11)
    second = second_of(
        reading(0.0, replica("a", 100, steady), replica("b", 90, many), replica("old", 1, many)),
        reading(1.0, replica("a", 103, after), replica("b", 95, few), replica("new", 50, many)),
    )
    assert second["network"]["datagrams"] == 22.0  # 2 of a, and the 20 that b has counted since
    assert second["ordering"]["rate"] == 3.0  # who catches up tells nothing of the group's pace
    assert second["passes"] == 1.0


def test_when_a_replica_is_of_a_release_that_tells_no_traffic_then_the_others_are_counted() -> None:
    then, now = TrafficStatus(datagrams_out=1), TrafficStatus(datagrams_out=4)
    second = second_of(
        reading(0.0, replica("a", 9, None), replica("b", 5, then)),
        reading(1.0, replica("a", 9, None), replica("b", 5, now)),
    )
    assert second["network"]["datagrams"] == 3.0
    assert second["ordering"]["rate"] == 0.0


def test_when_a_replica_has_no_engine_then_latencies_of_the_others_are_told() -> None:
    then, now = TrafficStatus(latency=[0, 0, 0]), TrafficStatus(latency=[0, 0, 7])
    none = TrafficStatus()
    second = second_of(
        reading(0.0, replica("a", 1, then), replica("b", 1, none)),
        reading(1.0, replica("a", 1, now), replica("b", 1, none)),
    )
    assert second["ordering"]["majority"]["p99_ms"] is not None


def test_when_replicas_have_seen_different_passes_then_all_are_told_once_and_in_their_order() -> None:
    a = TrafficStatus(passes=2, path=[passed(1, "a", "b"), passed(2, "b", "c", last=4)])
    b = TrafficStatus(passes=3, path=[passed(2, "b", "c", last=4), passed(1, "c", "a", epoch=2)])
    empty = TrafficStatus()
    before = reading(0.0, replica("a", 0, empty), replica("b", 0, empty))
    after = reading(1.0, replica("a", 4, a), replica("b", 4, b))
    shape, told = path_of(before, after, (0, 0))
    assert [(each["source"], each["target"], each["messages"]) for each in shape["path"]] == [
        ("a", "b", 1),
        ("b", "c", 3),
        ("c", "a", 1),
    ]
    assert [each["at_ms"] for each in shape["path"]] == [0.0, 1.0, 0.0]
    assert shape["passes"] == 3
    assert told == (2, 1)
    assert path_of(after, after, told) == ({"passes": 0, "path": []}, (2, 1))


def test_when_there_were_more_passes_than_are_kept_then_it_says_how_many() -> None:
    path = [passed(n, "a", "b") for n in range(69, 101)]
    before = reading(0.0, replica("a", 0, TrafficStatus()))
    shape, _ = path_of(before, reading(1.0, replica("a", 100, TrafficStatus(passes=100, path=path))), (1, 3))
    assert (shape["passes"], len(shape["path"])) == (100, 32)


def test_when_requests_are_answered_then_those_for_data_are_told_by_kind() -> None:
    metrics = Metrics()
    before = reading(0.0, answered=metrics.answered())
    noted: list[tuple[str, str, int, float]] = [
        ("/v1/kv/{key}", "PUT", 201, 0.004),
        ("/v1/kv/{key}", "PUT", 503, 0.004),
        ("/v1/txn", "POST", 429, 0.004),
        ("/v1/kv/{key}", "GET", 404, 0.0001),
        ("/v1/cluster/events", "GET", 200, 3600.0),
        ("/v1/log", "GET", 200, 3.0),
        ("none", "GET", 404, 3.0),
    ]
    for each in noted:
        metrics.note(*each)
    requests: Any = second_of(before, reading(1.0, answered=metrics.answered()))["requests"]
    assert (requests["rate"], requests["failed"]) == (4.0, 2.0)
    assert 2.5 < requests["writes"]["p50_ms"] <= 5.0
    assert requests["reads"]["p99_ms"] <= 0.5
