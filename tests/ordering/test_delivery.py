"""Delivery by quality of service, at one site whose knowledge is set by hand."""

from random import Random

import pytest

from ordering.config import Config
from ordering.effects import Deliver, Delivery, InstallView, LevelReached, Retract
from ordering.engine import Engine
from ordering.errors import InvariantViolation
from ordering.packets import Batch, Head, Order, Run
from ordering.qos import MAJORITY, SOURCE_ORDERED, TOTAL, TOTALLY_ORDERED, Level, Qos, k_resilient
from ordering.views import Member, SiteId, View, ViewId

A, B, C = SiteId(1), SiteId(2), SiteId(3)
MEMBERS = tuple(Member(site, 10 * site, f"a{site}") for site in (A, B, C))
VIEW = View(ViewId(1, 0), MEMBERS, (A, B, C), (A, B, C))


class Bench:
    """A site that holds what is given to it, and its delivery cursor."""

    def __init__(self) -> None:
        engine = Engine(Config(group="g", founders=("a1", "a2", "a3")), MEMBERS[0], Random(1))
        self.site = engine.site
        self.site.queue.found(VIEW)
        self.cursor = engine.delivery
        self.order(view=VIEW)
        self.levels(majority=1)

    def data(self, source: SiteId, first_seq: int, *messages: str, qos: Qos = MAJORITY) -> None:
        boot = 10 * source
        batch = Batch(source, boot, first_seq, qos, tuple(m.encode() for m in messages))
        self.site.queue.add_batch(batch, 1000)

    def order(self, *runs: tuple[SiteId, int, int], view: View | None = None) -> None:
        queue = self.site.queue
        ts = max((order.last_ts for order in queue.blocks.values()), default=0) + 1
        queue.add_block(Order(1, ts, A, B, tuple(Run(*run) for run in runs), view), 1000)
        while queue.next_complete() is not None:
            pass

    def levels(self, *, majority: int = 0, stable: int = 0) -> None:
        stability = self.site.stability
        stability.majority = max(stability.majority, majority)
        stability.stable = max(stability.stable, stable)

    def says(self, sender: SiteId, **frontiers: int) -> None:
        """Hear a site, and draw conclusions."""
        site = self.site
        said = {"received": 0, "held": 0, "majority": 3, "stable": 0} | frontiers
        site.stability.note(Head(site.group, 0, sender, 10 * sender, 1, **said))
        site.stability.update(site.view, site.queue.frontier)

    def held(self, **claims: int) -> None:
        for name, ts in claims.items():
            self.site.stability.held[{"a": A, "b": B, "c": C}[name]] = ts

    def run(self) -> list[Delivery]:
        """What is delivered now."""
        self.site.out = []
        self.cursor.run()
        found = [effect for effect in self.site.out if isinstance(effect, Deliver)]
        return [delivery for effect in found for delivery in effect.deliveries]

    def told(self) -> list[tuple[int, str]]:
        return [(d.first_ts, b",".join(d.messages).decode()) for d in self.run()]


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    made.run()
    return made


def test_when_a_view_is_majority_held_then_it_is_delivered_in_its_slot() -> None:
    bench = Bench()
    bench.data(A, 1, "x", qos=TOTALLY_ORDERED)
    bench.order((A, 1, 1))
    bench.run()
    kinds = [type(effect) for effect in bench.site.out]
    assert kinds.index(InstallView) < kinds.index(Deliver)


def test_when_a_view_is_not_majority_held_then_nothing_behind_it_is_delivered(bench: Bench) -> None:
    bench.order(view=View(ViewId(1, 1), MEMBERS, (A, B, C), (A, B)))
    bench.data(A, 1, "behind", qos=TOTALLY_ORDERED)
    bench.order((A, 1, 1))
    assert bench.told() == []
    bench.levels(majority=2)
    assert bench.told() == [(4, "behind")]


def test_when_a_message_is_totally_ordered_then_order_and_data_suffice(bench: Bench) -> None:
    bench.data(A, 1, "x", "y", qos=TOTALLY_ORDERED)
    assert bench.told() == []
    bench.order((A, 1, 2))
    assert bench.told() == [(3, "x,y")]


def test_when_a_message_asks_for_a_majority_then_it_waits_for_one(bench: Bench) -> None:
    bench.data(A, 1, "x")
    bench.order((A, 1, 1))
    assert bench.told() == []
    bench.levels(majority=3)
    assert bench.told() == [(3, "x")]
    assert bench.told() == [], "once"


def test_when_a_message_asks_for_all_then_the_whole_ring_must_hold_it(bench: Bench) -> None:
    bench.data(A, 1, "x", qos=TOTAL)
    bench.order((A, 1, 1))
    bench.levels(majority=3)
    assert bench.told() == []
    bench.levels(stable=3)
    assert bench.told() == [(3, "x")]


@pytest.mark.parametrize("qos", [TOTAL, k_resilient(2)], ids=["total", "k"])
def test_when_a_site_that_is_ahead_says_that_its_ring_holds_it_then_it_may_be_another_ring(
    bench: Bench, qos: Qos
) -> None:
    bench.data(A, 1, "x", qos=qos)
    bench.order((A, 1, 1))
    bench.says(B, received=4, stable=3)
    assert bench.told() == []
    bench.says(B, received=5, stable=3)
    bench.order(view=View(ViewId(1, 1), MEMBERS, (A, B, C), (A, B)))
    bench.held(a=3, b=3)
    bench.says(B)
    (delivery,) = bench.run()
    assert delivery.reached == (Level.TOTAL if qos is TOTAL else Level.MAJORITY)


def test_when_sites_that_are_ahead_say_more_and_more_then_the_first_and_the_best_come_true(
    bench: Bench,
) -> None:
    for seq in range(1, 4):
        bench.data(A, seq, "x", qos=TOTAL)
        bench.order((A, seq, 1))
    for ahead in range(8, 20, 2):
        bench.says(B, received=ahead, majority=7, stable=ahead - 5)
    assert bench.told() == []
    bench.order()
    bench.says(B)
    assert bench.told() == [(3, "x")]
    for _ in range(10):
        bench.order()
    bench.says(B)
    assert bench.told() == [(5, "x"), (7, "x")]


@pytest.mark.parametrize("erased", [False, True])
def test_when_a_view_is_erased_then_what_its_ring_held_no_longer_counts(
    bench: Bench, *, erased: bool
) -> None:
    bench.data(A, 1, "x", qos=TOTAL)
    bench.order((A, 1, 1))
    if erased:
        bench.order(view=View(ViewId(1, 1), MEMBERS, (A, B, C), (A, B)))
    bench.says(B, received=bench.site.queue.frontier, stable=3)
    view_erased = bench.site.queue.erase_above(3)
    bench.site.stability.enter_epoch(4, view_erased=view_erased)
    assert bool(bench.run()) != erased


@pytest.mark.parametrize("k", [0, 1, 2])
def test_when_a_message_asks_for_k_then_k_plus_one_voters_must_hold_it(bench: Bench, k: int) -> None:
    bench.data(A, 1, "x", qos=k_resilient(k))
    bench.order((A, 1, 1))
    for holders, name in enumerate("abc", start=1):
        bench.held(**{name: 3})
        assert bool(bench.run()) == (holders == k + 1)


def test_when_k_became_unreachable_then_it_is_delivered_at_what_the_ring_gives(bench: Bench) -> None:
    bench.order(view=View(ViewId(2, 0), MEMBERS, (A, B, C), (A, B)))
    bench.levels(majority=2)
    bench.data(A, 1, "x", qos=k_resilient(2))
    bench.order((A, 1, 1))
    bench.held(a=4)
    assert bench.run() == []
    bench.held(b=4)
    bench.levels(majority=4)
    assert [delivery.reached for delivery in bench.run()] == [Level.MAJORITY]


def test_when_a_strong_message_waits_then_weaker_ones_behind_it_wait_too(bench: Bench) -> None:
    bench.data(A, 1, "strong")
    bench.data(B, 1, "weak", qos=TOTALLY_ORDERED)
    bench.order((A, 1, 1), (B, 1, 1))
    assert bench.told() == []
    bench.levels(majority=4)
    assert bench.told() == [(3, "strong"), (4, "weak")]


def test_when_a_weak_message_comes_first_then_it_does_not_wait(bench: Bench) -> None:
    bench.data(A, 1, "weak", qos=TOTALLY_ORDERED)
    bench.data(B, 1, "strong")
    bench.order((A, 1, 1), (B, 1, 1))
    assert bench.told() == [(3, "weak")]
    bench.levels(majority=4)
    assert bench.told() == [(4, "strong")]


def test_when_a_source_ordered_message_is_next_of_its_source_then_it_needs_no_slot(bench: Bench) -> None:
    bench.data(A, 1, "ordered")
    bench.data(B, 1, "quick", qos=SOURCE_ORDERED)
    assert bench.told() == [(0, "quick")]
    bench.order((A, 1, 1), (B, 1, 1))
    bench.levels(majority=4)
    assert bench.told() == [(3, "ordered")], "not a second time in its slot"


def test_when_a_source_ordered_message_follows_an_ordered_one_then_it_stays_behind(bench: Bench) -> None:
    bench.data(A, 1, "ordered")
    bench.data(A, 2, "behind", qos=SOURCE_ORDERED)
    bench.order((A, 1, 1))
    assert bench.told() == []
    bench.levels(majority=3)
    assert bench.told() == [(3, "ordered"), (0, "behind")]


def test_when_slots_are_erased_then_low_deliveries_are_retracted(bench: Bench) -> None:
    bench.data(A, 1, "early", qos=TOTALLY_ORDERED)
    bench.order((A, 1, 1))
    bench.run()
    bench.site.out = []
    bench.cursor.erase_above(1)
    bench.site.queue.erase_above(1)
    assert bench.site.out == [Retract(1)]
    bench.order((A, 1, 1))
    assert bench.told() == [(3, "early")], "it comes again"


def test_when_erased_slots_were_not_delivered_then_nothing_is_retracted(bench: Bench) -> None:
    bench.data(A, 1, "waits")
    bench.order((A, 1, 1))
    bench.run()
    bench.site.out = []
    bench.cursor.erase_above(1)
    assert bench.site.out == []


def test_when_majority_held_slots_are_erased_then_the_site_stops(bench: Bench) -> None:
    bench.data(A, 1, "final")
    bench.order((A, 1, 1))
    bench.levels(majority=3)
    bench.run()
    with pytest.raises(InvariantViolation, match="majority-held"):
        bench.cursor.erase_above(1)


def test_when_a_source_ordered_delivery_lost_its_slot_then_it_is_not_repeated(bench: Bench) -> None:
    bench.data(A, 1, "quick", qos=SOURCE_ORDERED)
    bench.order((A, 1, 1))
    assert bench.told() == [(0, "quick")]
    bench.cursor.erase_above(1)
    bench.site.queue.erase_above(1)
    bench.order((A, 1, 1))
    assert bench.told() == []


def test_when_a_level_is_reached_then_it_is_never_ahead_of_what_was_delivered(bench: Bench) -> None:
    bench.data(A, 1, "x", qos=TOTAL)
    bench.order((A, 1, 1))
    bench.levels(majority=3)
    bench.run()
    assert not [effect for effect in bench.site.out if isinstance(effect, LevelReached)]
    bench.levels(stable=3)
    bench.run()
    assert bench.site.out[-1] == LevelReached(3, 3)
