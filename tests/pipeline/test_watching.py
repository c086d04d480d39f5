"""What happened to replicas becomes an alert when it begins, once."""

import msgspec

from pipeline.files import ROW_BITS
from pipeline.watching import SECOND_NS, Alert, Limits, Lost, Notable, State, Sums, take

LIMITS = Limits(silence_s=10, stall_s=5, lag_slots=100, surge_per_s=50)
CHAIN = 7


def state() -> State:
    return State(inputs=["in"], width=64, window_ns=SECOND_NS)


def sums(site: int, at_s: float, slot: int, **other: object) -> Sums:
    wall = round(at_s * SECOND_NS)
    given: dict[str, object] = {
        "recorder": f"in/r{site}",
        "chain": CHAIN,
        "site": site,
        "boot": site,
        "epoch": 1,
        "rows": 1,
        "position": slot,
        "first_wall_ns": wall,
        "wall_ns": wall,
        "slot": slot,
        "delivered_first_ns": wall,
        "delivered_last_ns": wall,
        "submitted_ns": None,
        "sample": None,
        "sample_ns": None,
        "files": [1],
    }
    return Sums(**(given | other))  # type: ignore[arg-type]


def notable(event: str, position: int = 5, **other: object) -> Notable:
    given: dict[str, object] = {
        "recorder": "in/r1",
        "position": position,
        "chain": CHAIN,
        "site": 1,
        "boot": 1,
        "event": event,
        "rows": None,
        "wall_ns": SECOND_NS,
        "detail": None,
    }
    return Notable(**(given | other))  # type: ignore[arg-type]


def played(now: State, *batches: list[Sums]) -> list[list[tuple[str, int | None]]]:
    """Kinds and sites of alerts, batch by batch, over a state that is written and read in between."""
    told = []
    for batch in batches:
        alerts = take(now, batch, [], LIMITS)
        copy = msgspec.json.decode(msgspec.json.encode(now), type=State)
        assert copy == now
        told.append([(alert.kind, alert.site) for alert in alerts])
    return told


def kinds(alerts: list[Alert]) -> list[str]:
    return [alert.kind for alert in alerts]


def test_when_a_replica_stops_telling_while_others_go_on_then_it_is_silent_until_it_tells_again() -> None:
    told = played(
        state(),
        [sums(1, 0, 5), sums(2, 0, 5)],
        [sums(1, 9, 6)],
        [sums(1, 12, 7)],
        [sums(1, 30, 8)],
        [sums(1, 31, 9), sums(2, 31, 9)],
    )
    assert told == [[], [], [("silent", 2)], [], [("resumed", 2)]]


def test_when_a_clock_is_behind_then_its_replica_is_called_silent_once_and_again_when_it_stops() -> None:
    told = played(
        state(),
        [sums(1, 100, 5), sums(2, 40, 5)],
        [sums(1, 105, 6), sums(2, 45, 6)],
        [sums(1, 110, 7), sums(2, 50, 7)],
        [sums(1, 115, 8)],
        [sums(1, 123, 9)],
        [sums(1, 130, 10), sums(2, 70, 10)],
        [sums(1, 135, 11), sums(2, 135, 11)],  # the clock was set
        [sums(1, 148, 12)],
    )
    silent, resumed = [("silent", 2)], [("resumed", 2)]
    assert told == [silent, resumed, [], [], silent, resumed, [], silent]


def test_when_a_site_whose_clock_is_behind_comes_back_then_that_is_still_known() -> None:
    now = state()
    played(now, [sums(1, 100, 5), sums(2, 40, 5)], [sums(1, 105, 6), sums(2, 45, 6)])
    assert played(now, [sums(1, 110, 7), sums(2, 50, 7, boot=22)]) == [[]]


def test_when_a_process_is_over_then_nobody_waits_for_it() -> None:
    now = state()
    take(now, [sums(1, 0, 5), sums(2, 0, 5)], [], LIMITS)
    ended = notable("halted", position=6, site=2, boot=2, recorder="in/r2", detail="disk full")
    alerts = take(now, [sums(2, 1, 6)], [ended], LIMITS)
    assert [(alert.severity, alert.words) for alert in alerts] == [("error", "2: halted, disk full")]
    assert take(now, [sums(1, 60, 900)], [], LIMITS) == []
    assert now.settled() == {CHAIN: 900}


def test_when_a_site_comes_back_under_another_boot_then_the_former_is_over() -> None:
    now = state()
    take(now, [sums(1, 0, 5), sums(2, 0, 5)], [], LIMITS)
    assert (
        take(now, [sums(2, 3, 6, boot=22)], [notable("started", site=2, boot=22, recorder="in/r2")], LIMITS)
        != []
    )
    assert [each.is_over for each in now.processes.values()] == [False, True, False]


def test_when_rows_are_missing_then_it_is_said_how_many() -> None:
    (alert,) = take(state(), [sums(1, 0, 5)], [notable("gap", rows=1_234)], LIMITS)
    assert (alert.severity, alert.kind, alert.site) == ("error", "gap", 1)
    assert "1,234 rows" in alert.words


def test_when_an_epoch_begins_then_it_is_said_for_how_long_nobody_delivered() -> None:
    now = state()
    assert take(now, [sums(1, 10, 5), sums(2, 10.5, 5)], [], LIMITS) == []
    first = sums(2, 12, 6, epoch=2, delivered_first_ns=round(11.75 * SECOND_NS))
    (alert,) = take(now, [sums(1, 12, 6, epoch=2), first], [], LIMITS)
    assert (alert.kind, alert.words) == ("view-change", "epoch 1 to 2: nobody delivered for 1.250 s")
    assert take(now, [sums(1, 13, 7, epoch=2)], [], LIMITS) == []


def test_when_a_process_delivers_again_from_its_disk_then_the_outage_is_as_long_as_it_was() -> None:
    now = state()
    take(now, [sums(1, 10, 5), sums(2, 10, 5)], [], LIMITS)
    back = [sums(2, 15, 5, boot=22), sums(2, 16, 6, boot=22, epoch=2)]
    (alert,) = take(now, [sums(1, 16.5, 6, epoch=2), *back], [], LIMITS)
    assert alert.words == "epoch 1 to 2: nobody delivered for 6.000 s"


def test_when_messages_are_submitted_and_none_is_delivered_then_there_is_no_primary() -> None:
    nothing = {"delivered_first_ns": None, "delivered_last_ns": None}
    told = played(
        state(),
        [sums(1, 0, 5)],
        [sums(1, 60, 5, **nothing)],  # idle: nobody wants anything
        [sums(1, 61, 5, submitted_ns=61 * SECOND_NS, **nothing)],
        [sums(1, 67, 5, **nothing)],
        [sums(1, 68, 5, submitted_ns=68 * SECOND_NS, **nothing)],
        [sums(1, 69, 6)],
    )
    assert told == [[], [], [], [("no-primary", None)], [], [("resumed", None)]]


def test_when_a_file_of_a_recorder_is_missing_then_its_processes_have_a_hole() -> None:
    now = state()
    assert take(now, [sums(1, 1, 5, files=[3])], [], LIMITS) == []  # begun late
    (alert,) = take(now, [sums(1, 2, 6, files=[3, 4, 6])], [], LIMITS)
    assert (alert.kind, alert.words) == ("gap", "r1: 1 files before number 6 are missing")
    assert now.holes == [(1, 1, 6 << ROW_BITS)]
    assert take(now, [sums(1, 3, 7, files=[6, 7])], [], LIMITS) == []


def test_when_a_file_was_passed_over_then_its_name_is_said_once_and_its_processes_have_a_hole() -> None:
    now = state()
    take(now, [sums(1, 1, 5, files=[1])], [], LIMITS)
    lost = Lost("in/r1", 2, 0, "in/r1-000002.parquet: torn")
    (alert,) = take(now, [sums(1, 2, 6, files=[1, 3])], [], LIMITS, [lost])
    assert (alert.severity, alert.kind, alert.words) == ("error", "gap", "in/r1-000002.parquet: torn")
    assert now.holes == [(1, 1, 2 << ROW_BITS)]
    assert take(now, [sums(1, 3, 7, files=[3, 4])], [], LIMITS) == []


def test_when_a_replica_is_behind_then_it_lags_until_it_has_caught_up() -> None:
    told = played(
        state(),
        [sums(1, 0, 5), sums(2, 0, 5)],
        [sums(1, 1, 200), sums(2, 1, 6)],
        [sums(1, 2, 300), sums(2, 2, 210)],
        [sums(2, 3, 290)],
    )
    assert told == [[], [("lag", 2)], [], [("resumed", 2)]]


def test_when_much_is_sent_again_then_it_is_a_surge() -> None:
    told = played(
        state(),
        [sums(1, 0, 5, sample=10, sample_ns=SECOND_NS)],
        [sums(1, 1, 6, sample=50, sample_ns=2 * SECOND_NS)],
        [sums(1, 2, 7, sample=150, sample_ns=3 * SECOND_NS)],
        [sums(1, 3, 8, sample=250, sample_ns=4 * SECOND_NS)],
        [sums(1, 4, 9, sample=251, sample_ns=5 * SECOND_NS)],
        [sums(1, 5, 10, sample=400, sample_ns=6 * SECOND_NS)],
    )
    assert told == [[], [], [("surge", 1)], [], [], [("surge", 1)]]
