"""What happened in the last second: rates and percentiles, from what is counted up since the start.

Computed once for all who look. Replicas count from their start or that of their membership, so a figure that
has become smaller began anew, and what it has now is what was added.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from typing_extensions import TypedDict

from api.metrics import Answered
from rsm.status import PassStatus, ReplicaStatus
from rsm.survey import Picture

_DROPPED: Final = ("wire: ", "group: ", "send: ")

Place = tuple[int, int]  # epoch and slot: a view change may give a slot again


class TimesShape(TypedDict):
    """Null if there were none."""

    p50_ms: float | None
    p99_ms: float | None


class RequestsShape(TypedDict):
    """For data, answered by this gateway. ``failed``: 429 and 5xx."""

    rate: float
    failed: float
    reads: TimesShape
    writes: TimesShape


class OrderingShape(TypedDict):
    """``rate``: messages that were delivered. ``majority``: from a replica's own submission until a majority
    holds it; clients' calls are none."""

    rate: float
    majority: TimesShape


class NetworkShape(TypedDict):
    """Datagrams a second, sums over all replicas that answered."""

    datagrams: float
    bytes: float
    retransmitted: float
    asked_again: float
    dropped: float


class PassShape(TypedDict):
    """``source`` and ``target`` are sites; ``at_ms`` is counted from the first of the list."""

    slot: int
    messages: int
    source: str
    target: str
    at_ms: float


class PathShape(TypedDict):
    """``passes``: how often the token went on; ``path`` has the last of them, as many as are kept."""

    passes: int
    path: list[PassShape]


class SecondShape(TypedDict):
    at_s: float
    seconds: float
    requests: RequestsShape
    ordering: OrderingShape
    network: NetworkShape
    passes: float


class ToldSecondShape(SecondShape):
    token: PathShape


class Reading(NamedTuple):
    """All counters at one moment. ``at`` is monotonic, ``replicas`` are by boot."""

    at: float
    wall_s: float
    answered: Answered
    replicas: dict[str, ReplicaStatus]


def reading_of(at: float, wall_s: float, answered: Answered, picture: Picture | None) -> Reading:
    said = [] if picture is None else [picture.answer_of(member) for member in picture.members]
    return Reading(at, wall_s, answered, {each.boot: each for each in said if each is not None})


def second_of(before: Reading, after: Reading) -> SecondShape:
    seconds = max(after.at - before.at, 1e-3)
    pairs = _pairs(before, after)
    counters = [(then.counters, now.counters) for then, now in pairs]
    traffic = [(then.traffic, now.traffic) for then, now in pairs if then.traffic and now.traffic]

    def counted(name: str) -> float:
        return sum(added(then.get(name, 0), now.get(name, 0)) for then, now in counters) / seconds

    ahead = _ahead(pairs)
    slow = [_added_all(then.latency, now.latency) for then, now in traffic if then.latency and now.latency]
    ordered = {2.0**i / 1e6: float(sum(each)) for i, each in enumerate(zip(*slow, strict=False))}
    then, now = before.answered, after.answered
    return {
        "at_s": round(after.wall_s, 3),
        "seconds": round(seconds, 3),
        "requests": {
            "rate": _short(added(then.requests, now.requests) / seconds),
            "failed": _short(added(then.failed, now.failed) / seconds),
            "reads": _times(_steps(then.reads, now.reads)),
            "writes": _times(_steps(then.writes, now.writes)),
        },
        "ordering": {
            "rate": _short(ahead.delivered / seconds),
            "majority": _times(ordered),
        },
        "network": {
            "datagrams": _short(sum(added(t.datagrams_out, n.datagrams_out) for t, n in traffic) / seconds),
            "bytes": _short(sum(added(t.bytes_out, n.bytes_out) for t, n in traffic) / seconds),
            "retransmitted": _short(counted("retransmissions")),
            "asked_again": _short(counted("nacks sent")),
            "dropped": _short(sum(map(counted, _reasons(after)))),
        },
        "passes": _short(ahead.passes / seconds),
    }


def path_of(before: Reading, after: Reading, told: Place) -> tuple[PathShape, Place]:
    """Passes behind ``told`` that any replica has seen, and how far that is."""
    seen: dict[Place, PassStatus] = {}
    for each in after.replicas.values():
        path = [] if each.traffic is None else each.traffic.path
        seen |= {(made.epoch, made.slot): made for made in path if (made.epoch, made.slot) > told}
    passes = [seen[place] for place in sorted(seen)]
    first_ns = passes[0].at_ns if passes else 0
    shape: PathShape = {
        "passes": max(_ahead(_pairs(before, after)).passes, len(passes)),
        "path": [
            {
                "slot": made.slot,
                "messages": made.last - made.slot + 1,
                "source": made.source,
                "target": made.target,
                "at_ms": round((made.at_ns - first_ns) / 1e6, 3),
            }
            for made in passes
        ],
    }
    return shape, max([told, *seen])


def added(then: float, now: float) -> float:
    return now - then if now >= then else now


def percentile(counts: Mapping[float, float], share: float) -> float | None:
    """``counts``: by the upper bound of a bucket, ascending, how many are in it. Within a bucket they are
    taken to be spread evenly; what is above all bounds is as long as the last of them."""
    total = sum(counts.values())
    if not total:
        return None
    wanted, lower = share * total, 0.0
    for upper, count in counts.items():
        if count and wanted <= count:
            return _short(lower if upper == float("inf") else lower + (upper - lower) * wanted / count)
        wanted -= count
        lower = upper
    return _short(lower)


def _times(counts: Mapping[float, float]) -> TimesShape:
    return {"p50_ms": percentile(counts, 0.5), "p99_ms": percentile(counts, 0.99)}


def _steps(then: Mapping[float, float], now: Mapping[float, float]) -> dict[float, float]:
    """What Prometheus counts up to a bound in seconds, by bucket in milliseconds."""
    found, below = {}, 0.0
    for bound, count in now.items():
        new = added(then.get(bound, 0.0), count)
        found[bound * 1000] = max(new - below, 0.0)
        below = new
    return found


def _pairs(before: Reading, after: Reading) -> list[tuple[ReplicaStatus, ReplicaStatus]]:
    """Those who answered twice."""
    return [(before.replicas[boot], now) for boot, now in after.replicas.items() if boot in before.replicas]


def _reasons(reading: Reading) -> list[str]:
    names = (name for each in reading.replicas.values() for name in each.counters)
    return [name for name in dict.fromkeys(names) if name.startswith(_DROPPED)]


def _added_all(then: list[int], now: list[int]) -> list[int]:
    return [int(added(a, b)) for a, b in zip(then, now, strict=False)]


class _Ahead(NamedTuple):
    delivered: int
    passes: int


def _ahead(pairs: list[tuple[ReplicaStatus, ReplicaStatus]]) -> _Ahead:
    """What happened where most had happened before: who comes back goes through what others did long ago."""
    then, now = max(pairs, key=lambda pair: pair[0].applied, default=(None, None))
    if then is None or now is None or then.traffic is None or now.traffic is None:
        return _Ahead(0, 0)
    return _Ahead(
        int(added(then.traffic.delivered, now.traffic.delivered)),
        int(added(then.traffic.passes, now.traffic.passes)),
    )


def _short(figure: float) -> float:
    """Four digits say enough."""
    return float(f"{figure:.4g}")
