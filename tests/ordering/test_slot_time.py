"""Slot time never goes back, follows no clock further than time has passed, and is nobody's own (R14)."""

from ordering.config import MS
from ordering.slot_time import STEP, TIME_MAX, SlotClock, agreed_time

NOON = 1_700_000_000_000 * MS


def a_clock(offset: int | None, placed_at: int = 0) -> SlotClock:
    clock = SlotClock()
    clock.offset = offset
    clock.placed_at = placed_at
    return clock


def test_when_the_clock_is_right_then_the_stamp_is_the_time() -> None:
    assert a_clock(NOON).stamp(NOON, 50 * MS) == NOON + 50 * MS


def test_when_the_clock_jumps_ahead_then_the_stamp_goes_as_far_as_time_has_passed_and_a_step() -> None:
    assert a_clock(NOON + 3600_000 * MS, 10 * MS).stamp(NOON, 50 * MS) == NOON + 40 * MS + STEP


def test_when_the_clock_jumps_back_then_the_time_stands_still() -> None:
    assert a_clock(NOON - 3600_000 * MS).stamp(NOON, 50 * MS) == NOON


def test_when_there_is_no_clock_then_the_time_stands_still() -> None:
    assert a_clock(None).stamp(NOON, 50 * MS) == NOON


def test_when_nobody_had_a_clock_so_far_then_the_first_one_is_believed() -> None:
    assert a_clock(NOON).stamp(0, 50 * MS) == NOON + 50 * MS


def test_when_a_clock_makes_no_sense_then_the_time_stays_within_its_bits() -> None:
    assert a_clock(1 << 80).stamp(0, 0) == TIME_MAX
    assert a_clock(-(1 << 80)).stamp(0, 0) == 0


def test_when_a_time_is_waited_for_then_the_stamp_has_reached_it_after_the_wait_and_not_before() -> None:
    for offset in (NOON, NOON - 20 * MS, NOON + 3600_000 * MS):
        clock = a_clock(offset, 5 * MS)
        due = NOON + 70 * MS
        wait = clock.wait(due, NOON, 30 * MS)
        assert wait is not None
        assert clock.stamp(NOON, 30 * MS + wait - 1) < due <= clock.stamp(NOON, 30 * MS + wait)


def test_when_there_is_no_clock_then_waiting_is_in_vain() -> None:
    assert a_clock(None).wait(NOON, NOON - MS, 0) is None


def test_when_voters_agree_on_a_time_then_one_wrong_clock_does_not_decide() -> None:
    assert agreed_time([NOON, NOON + 3600_000 * MS, NOON + 1]) == NOON + 1
    assert agreed_time([NOON, 1, NOON + 1]) == NOON
    assert agreed_time([0, 0, NOON]) == NOON
    assert agreed_time([0, 0]) == 0
