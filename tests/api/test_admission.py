"""Who is let in, and who comes back when: against a service that is arithmetic, in its own time."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.admission import RETRY_MAX_S, RETRY_S, Admission, Comebacks, Standing
from api.concurrency import GROW_MORE, LIGHT, PROBE_S, SHRINK_MORE, Concurrency
from tests.api.gateways import settings_of
from tests.api.services import FLOOR, Client, Kind, Service

PUT = Kind()
GET = Kind("GET", 0.0003, 0.00003)
DEAR = Kind("POST /v1/txn", 0.02, 0.002)
SLOWDOWN = 10.0


def warm(*kinds: Kind) -> Service:
    """A service that has seen a client of each kind at a time."""
    service = Service()
    for kind in kinds or (PUT,):
        service.add(1, kind)
        service.run(0.5)
    return service


def percentile(waits: list[float], percent: float) -> float:
    return waits[int(len(waits) * percent / 100)]


# -- how many ------------------------------------------------------------------------------------


def test_when_there_are_far_too_many_then_the_rate_is_kept_and_waits_are_those_of_a_full_service() -> None:
    service = warm()
    service.add(100)
    service.run(10)
    full = service.rate(since=5)
    service.add(2000)
    service.run(20)
    assert service.rate(since=20) > 0.95 * full
    waits = service.waits(since=20)
    assert 0.8 * SLOWDOWN < percentile(waits, 50) / (PUT.alone_s + PUT.each_s) < 1.1 * SLOWDOWN
    assert percentile(waits, 99) < 1.3 * percentile(waits, 50)
    limits = service.limits_since(20)
    assert max(limits) < 1.3 * min(limits), "it swings"


def test_when_the_clients_are_few_then_nobody_is_refused_however_slow_it_gets() -> None:
    service = warm()
    service.add(FLOOR - 1)
    service.run(5)
    service.slower = 30.0
    service.run(5)
    assert not any(client.refused for client in service.clients)


def test_when_the_group_carries_more_clients_then_soon_all_of_them_are_served() -> None:
    quick = Kind(each_s=0.00001)
    service = warm(quick)
    service.add(200, quick)
    service.run(5)
    refused = sum(client.refused for client in service.clients)
    service.run(5)
    assert sum(client.refused for client in service.clients) == refused


def test_when_the_service_gets_slower_then_the_floor_is_kept_and_the_limit_is_back_with_its_speed() -> None:
    service = warm()
    service.add(1000)
    service.run(5)
    before = service.admission.limit
    service.slower = 5.0
    service.run(5)
    assert service.admission.limit == FLOOR
    service.slower = 1.0
    service.run(3)
    assert service.admission.limit > 0.8 * before


def test_when_the_service_is_slower_for_good_then_a_quiet_moment_tells() -> None:
    service = warm()
    service.slower = 5.0
    service.run(2)
    service.add(1000)
    service.run(10)
    assert service.admission.limit > 80


@pytest.mark.parametrize("seconds", [0.3, 1.0])
def test_when_the_group_pauses_then_the_limit_is_what_it_was(seconds: float) -> None:
    service = warm()
    service.add(2000)
    service.run(8)
    service.pauses = [(service.now + 0.01, service.now + 0.01 + seconds)]
    paused = service.now
    service.run(seconds + 3)
    limits = service.limits_since(paused)
    assert min(limits) > 0.75 * limits[0]
    again = paused + seconds + 0.5
    assert service.rate(since=again) > 9000
    assert percentile(service.waits(since=again), 99) < 0.03


def test_when_cheap_and_dear_requests_mix_then_neither_takes_the_others_places_for_good() -> None:
    service = warm(PUT, GET, DEAR)
    kinds = {kind.name: service.add(number, kind) for kind, number in ((PUT, 300), (GET, 300), (DEAR, 5))}
    service.run(20)
    assert max(service.limits_since(10)) < 128, "most are gets, and wait for puts"
    assert service.rate(since=10) > 12_000
    for name, clients in kinds.items():
        assert min(len(client.served) for client in clients) > 50, name


def test_when_it_begins_in_a_storm_then_what_a_request_takes_is_found_out() -> None:
    service = Service(requests_max=800)
    service.add(4000)
    service.run(10)
    assert min(service.limits_since(0)) == LIGHT
    assert percentile(service.waits(since=6), 50) < 1.2 * SLOWDOWN * (PUT.alone_s + PUT.each_s)
    assert service.rate(since=6) > 9000
    assert min(service.limits_since(2)) >= FLOOR, "once is enough"


def test_when_a_storm_begins_then_waits_are_soon_what_they_are_to_be() -> None:
    service = warm()
    service.add(4000)
    began = service.now
    service.run(3)
    assert percentile(service.waits(since=began + 1), 99) < 1.3 * SLOWDOWN * (PUT.alone_s + PUT.each_s)


def test_when_those_that_are_let_in_stay_for_long_then_a_probe_ends_all_the_same() -> None:
    limit = Concurrency(8, 100, SLOWDOWN)
    slow = [limit.enter() for _ in range(LIGHT + 1)]
    now = 0.0
    while limit.limit > LIGHT:
        places = [limit.enter() for _ in range(limit.limit)]
        now += 0.1
        for place in filter(None, places):
            limit.leave(place, "PUT", 0.1, now)
    assert (limit.under_way, limit.enter()) == (len(slow), 0)
    limit.refused(now + 0.5 * PROBE_S)
    assert not limit.enter()
    limit.refused(now + PROBE_S)
    assert limit.enter()


def test_when_answers_are_failures_then_their_speed_counts_for_nothing() -> None:
    limit = Concurrency(4, 100, SLOWDOWN)
    now = 0.0
    for _ in range(2000):
        places = [limit.enter() for _ in range(limit.limit + 1)]
        now += 0.1
        for place in filter(None, places):
            limit.leave(place, None, 0.0, now)
        assert limit.limit == 4


def test_when_limits_are_one_then_there_is_one() -> None:
    limit = Concurrency(64, 1, SLOWDOWN)
    assert (limit.floor, limit.limit) == (1, 1)
    assert [bool(limit.enter()), bool(limit.enter())] == [True, False]


@given(
    floor=st.integers(1, 20),
    ceiling=st.integers(1, 40),
    moves=st.lists(st.tuples(st.booleans(), st.floats(0, 10), st.floats(0, 1)), max_size=400),
)
def test_when_anything_comes_then_the_bounds_are_kept(
    floor: int, ceiling: int, moves: list[tuple[bool, float, float]]
) -> None:
    limit = Concurrency(floor, ceiling, 2.0)
    now, last = 0.0, min(floor, ceiling)
    places: list[int] = []
    for enters, seconds, passed in moves:
        now += passed
        before = limit.limit
        if enters:
            place = limit.enter()
            assert bool(place) == (len(places) < before)
            places += [place] if place else []
        elif places:
            limit.leave(places.pop(0), "PUT", seconds, now)
        assert limit.under_way == len(places)
        assert min(LIGHT, floor, ceiling) <= limit.limit <= ceiling
        if before != limit.limit and min(before, limit.limit) > LIGHT:
            assert SHRINK_MORE * last - 1 <= limit.limit <= GROW_MORE * last + 1
        last = limit.limit


# -- who comes back when -------------------------------------------------------------------------


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1e6)), min_size=1))
def test_when_many_are_refused_then_they_are_told_one_time_after_the_other(
    refusals: list[tuple[float, float]],
) -> None:
    comebacks, now, last, was_latest = Comebacks(), 0.0, -inf, False
    for passed, per_s in refusals:
        now += passed
        told = comebacks.take(per_s, now)
        assert now + RETRY_S <= told <= now + RETRY_MAX_S
        is_latest = told == now + RETRY_MAX_S
        assert told > last or (told == last and (is_latest or was_latest))
        last, was_latest = told, is_latest


def test_when_clients_repeat_at_once_then_refusals_stay_a_fraction_of_what_is_served() -> None:
    service = warm()
    service.add(2000)
    service.run(30)
    for second in range(10, 30):
        assert service.comebacks[second] < 0.2 * 10_000, second


def test_when_clients_are_patient_then_they_are_never_held_back_and_served_as_well_as_the_others() -> None:
    service = warm()
    hasty, patient = service.add(300), service.add(300, patience=1.0)
    service.run(60)
    assert not any(client.held_s for client in patient)
    assert _served(patient) > 0.8 * _served(hasty)
    for client in hasty + patient:
        assert len(client.served) > 0.3 * _served(patient), "somebody is left out"


def _served(clients: list[Client]) -> float:
    return sum(len(client.served) for client in clients) / len(clients)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def full_house() -> tuple[Admission, Clock, int]:
    clock = Clock()
    admission = Admission(settings_of(requests_max=1), clock)
    return admission, clock, admission.enter(Standing())


def test_when_a_connection_is_refused_then_once_at_once_and_after_that_when_it_is_time() -> None:
    admission, clock, _ = full_house()
    hasty = Standing()
    assert not admission.enter(hasty)
    assert admission.refuse(hasty) == 0
    clock.now += 0.25
    assert not admission.enter(hasty)
    assert admission.refuse(hasty) == pytest.approx(0.75)
    clock.now += 0.75
    assert not admission.enter(hasty)
    assert admission.refuse(hasty) >= RETRY_S, "it has not changed: it need not be told at once again"
    clock.now += 10
    assert not admission.enter(hasty)
    assert admission.refuse(hasty) == 0, "now it came in time"


def test_when_a_connection_was_held_back_then_it_is_let_in_next_if_there_is_room() -> None:
    admission, clock, place = full_house()
    hasty = Standing()
    admission.refuse(hasty)
    clock.now += admission.refuse(hasty)
    admission.leave(place, None, 1.0)
    assert admission.enter(hasty)


def test_when_there_is_room_again_then_who_comes_early_waits_only_while_half_is_taken() -> None:
    clock = Clock()
    admission = Admission(settings_of(requests_max=4), clock)
    places = [admission.enter(Standing()) for _ in range(4)]
    early = Standing()
    admission.refuse(early)
    for place in places[:2]:
        admission.leave(place, None, 1.0)
    assert not admission.enter(early), "others who keep to their time come first"
    admission.leave(places[2], None, 1.0)
    assert admission.enter(early)


def test_when_too_many_are_refused_even_to_be_told_then_the_first_are_held_back_too() -> None:
    admission, _, _ = full_house()
    held = [admission.refuse(Standing()) for _ in range(10_000)]
    at_once = held.index(RETRY_MAX_S)
    assert not any(held[:at_once])
    assert set(held[at_once:]) == {RETRY_MAX_S}


def test_when_it_stops_then_nobody_is_let_in() -> None:
    admission, clock, place = full_house()
    admission.leave(place, None, 1.0)
    admission.stop()
    assert not admission.enter(Standing())
    assert clock.now == 100.0
