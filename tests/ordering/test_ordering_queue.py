"""Slots, gaps and the complete prefix."""

import pytest

from ordering.ordering_queue import PASSES_KEPT, OrderingQueue
from ordering.packets import Batch, Order, Run
from ordering.qos import MAJORITY
from ordering.views import Member, SiteId, View, ViewId

A, B = SiteId(1), SiteId(2)
HORIZON = 1000
VIEW = View(ViewId(1, 0), (Member(A, 11, "a"), Member(B, 22, "b")), (A, B), (A, B))
BOOTS = {A: 11, B: 22}


def data(source: SiteId, first_seq: int, count: int = 1) -> Batch:
    messages = tuple(b"%d" % seq for seq in range(first_seq, first_seq + count))
    return Batch(source, BOOTS[source], first_seq, MAJORITY, messages)


def block(ts: int, *runs: tuple[SiteId, int, int], epoch: int = 1, view: View | None = None) -> Order:
    return Order(epoch, ts, A, B, tuple(Run(*run) for run in runs), view)


def queue_with(*parts: Batch | Order) -> OrderingQueue:
    queue = OrderingQueue()
    queue.found(VIEW)
    add(queue, *parts)
    return queue


def add(queue: OrderingQueue, *parts: Batch | Order) -> None:
    for part in parts:
        if isinstance(part, Batch):
            queue.add_batch(part, HORIZON)
        else:
            queue.add_block(part, HORIZON)
    while queue.next_complete() is not None:
        pass


# -- the token's way ----------------------------------------------------------------------------------


def test_when_blocks_are_placed_then_the_last_ones_are_kept_for_who_wants_to_see_the_token_move() -> None:
    blocks = [block(ts) for ts in range(1, PASSES_KEPT + 11)]
    queue = queue_with(*blocks[:5])
    assert (queue.placed, list(queue.passes)) == (5, blocks[:5])
    add(queue, blocks[6])  # it waits for the one before, and the token is not known to have come there
    assert queue.placed == 5
    add(queue, *blocks)
    assert (queue.placed, list(queue.passes)) == (len(blocks), blocks[-PASSES_KEPT:])


# -- the frontier --------------------------------------------------------------------------------------


def test_when_order_and_data_are_there_then_the_frontier_moves_over_the_block() -> None:
    queue = queue_with(data(A, 1, 3), block(1, (A, 1, 3)))
    assert queue.frontier == 4
    assert queue.vector() == ((A, 3), (B, 0))


@pytest.mark.parametrize("order_first", [True, False])
def test_when_data_is_missing_then_the_frontier_waits_for_it(order_first: bool) -> None:
    order = block(1, (A, 1, 2))
    queue = queue_with(order) if order_first else queue_with(data(A, 2), order)
    assert queue.frontier == 0
    add(queue, data(A, 1), data(A, 2))
    assert queue.frontier == 3


def test_when_a_block_is_missing_then_later_ones_wait() -> None:
    queue = queue_with(data(A, 1), data(B, 1), block(3, (B, 1, 1)))
    assert queue.frontier == 0
    add(queue, block(1, (A, 1, 1)))
    assert queue.frontier == 4


def test_when_the_frontier_moves_then_it_stands_at_the_end_of_a_block() -> None:
    queue = queue_with(data(A, 1), block(1, (A, 1, 2)))
    assert queue.frontier == 0, "half a block is no block"


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        (data(A, 1, 2), "duplicate data"),
        (data(A, 2), "duplicate data"),
        (data(A, 5000), "data beyond the horizon"),
        (Batch(A, 99, 3, MAJORITY, (b"x",)), "data of a non-member"),
        (Batch(SiteId(9), 1, 1, MAJORITY, (b"x",)), "data of a non-member"),
    ],
)
def test_when_data_is_of_no_use_then_the_reason_is_returned(part: Batch, reason: str) -> None:
    assert queue_with(data(A, 1, 2)).add_batch(part, HORIZON) == reason


def test_when_an_order_is_of_no_use_then_the_reason_is_returned() -> None:
    queue = queue_with(data(A, 1), block(1, (A, 1, 1)), block(5))
    assert queue.add_block(block(1, (A, 1, 1)), HORIZON) == "duplicate order"
    assert queue.add_block(block(5), HORIZON) == "duplicate order"
    assert queue.add_block(block(5000), HORIZON) == "order beyond the horizon"


# -- gaps ----------------------------------------------------------------------------------------------


def test_when_nothing_is_missing_then_nothing_is_asked_for() -> None:
    queue = queue_with(data(A, 1, 2), block(1, (A, 1, 2)))
    assert queue.missing_slots() is None
    assert queue.missing_data(10) == ()


def test_when_a_block_is_missing_between_others_then_its_slots_are_named() -> None:
    queue = queue_with(block(1), block(5))
    assert queue.missing_slots() == (2, 4)


def test_when_someone_is_further_than_we_are_then_the_end_is_missing() -> None:
    queue = queue_with(block(1))
    queue.known_end = 7
    assert queue.missing_slots() == (2, 7)


def test_when_data_was_ordered_and_is_not_here_then_exactly_it_is_missing() -> None:
    queue = queue_with(data(A, 1), data(A, 4), block(1, (A, 1, 5)))
    assert queue.missing_data(10) == (Run(A, 2, 2), Run(A, 5, 1))


def test_when_a_later_packet_of_a_source_came_then_the_earlier_ones_are_missing() -> None:
    queue = queue_with(data(B, 3))
    assert queue.missing_data(10) == (Run(B, 1, 2),)


def test_when_more_is_missing_than_may_be_asked_for_then_the_first_gaps_are() -> None:
    queue = queue_with(*(data(A, seq) for seq in range(2, 20, 2)))
    assert queue.missing_data(2) == (Run(A, 1, 1), Run(A, 3, 1))


# -- ordering --------------------------------------------------------------------------------------------


def test_when_data_waits_then_the_next_order_takes_all_that_is_contiguous() -> None:
    queue = queue_with(data(A, 1, 2), data(A, 4), data(B, 1))
    assert queue.orderable(VIEW, 100) == (Run(A, 1, 2), Run(B, 1, 1))


def test_when_a_block_is_limited_then_no_packet_is_split() -> None:
    queue = queue_with(data(A, 1, 3), data(A, 4, 3), data(B, 1))
    assert queue.orderable(VIEW, 4) == (Run(A, 1, 3), Run(B, 1, 1))


# -- erasing -------------------------------------------------------------------------------------------


def test_when_slots_are_erased_then_their_data_waits_for_an_order_again() -> None:
    queue = queue_with(data(A, 1), block(1, (A, 1, 1)), data(A, 2, 2), block(3, (A, 2, 2)))
    assert queue.frontier == 5
    queue.erase_above(2)
    assert queue.frontier == queue.known_end == 2
    assert queue.vector() == ((A, 1), (B, 0))
    assert queue.orderable(VIEW, 10) == (Run(A, 2, 2),)
    assert queue.tail is not None
    assert queue.tail.ts == 1


def test_when_a_view_is_erased_then_the_one_before_it_is_in_force() -> None:
    later = View(ViewId(1, 1), VIEW.members, VIEW.electorate, (A,))
    queue = queue_with(block(1), block(2, view=later))
    assert queue.view == later
    queue.erase_above(1)
    assert queue.view == VIEW


def test_when_orders_beyond_a_gap_are_erased_then_they_never_were() -> None:
    queue = queue_with(block(1), block(4))
    queue.erase_above(1)
    assert sorted(queue.blocks) == [1]
    assert queue.missing_slots() is None


def test_when_nothing_lies_above_then_erasing_changes_nothing() -> None:
    queue = queue_with(data(A, 1), block(1, (A, 1, 1)))
    queue.erase_above(2)
    assert queue.frontier == 2
    assert queue.vector() == ((A, 1), (B, 0))


def test_when_erased_slots_are_ordered_anew_then_another_order_may_take_them() -> None:
    queue = queue_with(data(A, 1), data(B, 1), block(1, (A, 1, 1)))
    queue.erase_above(0)
    add(queue, block(1, (B, 1, 1), (A, 1, 1), epoch=2))
    assert queue.frontier == 3
    assert queue.vector() == ((A, 1), (B, 1))


# -- collecting ----------------------------------------------------------------------------------------


def test_when_blocks_are_collected_then_their_data_goes_with_them() -> None:
    queue = queue_with(data(A, 1, 2), block(1, (A, 1, 2)), data(A, 3), block(4, (A, 3, 1)))
    before = queue.bytes
    queue.collect(3)
    assert queue.base == 3
    assert sorted(queue.blocks) == [4]
    assert queue.bytes == before - 2
    assert sorted(queue.sources[A].batches) == [3]


def test_when_collected_up_to_the_middle_of_a_block_then_the_block_stays() -> None:
    queue = queue_with(data(A, 1, 2), block(1, (A, 1, 2)), block(4))
    queue.collect(2)
    assert queue.base == 0
    assert sorted(queue.blocks) == [1, 4]


def test_when_everything_is_collected_then_the_tail_stays() -> None:
    queue = queue_with(block(1), block(2))
    queue.collect(2)
    assert sorted(queue.blocks) == [2]
    assert queue.tail is queue.blocks[2]


def test_when_collected_data_comes_again_then_it_is_a_duplicate() -> None:
    queue = queue_with(data(A, 1), block(1, (A, 1, 1)), block(3))
    queue.collect(2)
    assert queue.add_batch(data(A, 1), HORIZON) == "duplicate data"


def test_when_a_member_is_gone_then_what_it_left_unordered_ends() -> None:
    without_b = View(ViewId(1, 1), (Member(A, 11, "a"),), (A,), (A,))
    queue = queue_with(data(B, 1), data(B, 2), block(1, (B, 1, 1)), block(3, view=without_b))
    assert sorted(queue.sources[B].batches) == [1]
    assert queue.orderable(without_b, 10) == ()


def test_when_a_joiner_starts_then_its_log_begins_with_the_block_that_names_it() -> None:
    queue = OrderingQueue()
    queue.start_at(Order(3, 40, A, B, view=VIEW, vector=((A, 7), (B, 2))))
    assert (queue.frontier, queue.base, queue.seat_ts) == (40, 39, 40)
    assert queue.vector() == ((A, 7), (B, 2))
    assert queue.add_batch(data(A, 7), HORIZON) == "duplicate data"
    assert queue.add_batch(data(A, 8), HORIZON) == ""


# -- what is asked for -----------------------------------------------------------------------------------


def test_when_several_sources_lack_data_then_the_one_the_first_block_waits_for_comes_first() -> None:
    queue = queue_with(block(1, (B, 1, 1)), block(3, (A, 1, 5)))
    assert queue.missing_data(10) == (Run(B, 1, 1), Run(A, 1, 5))


def test_when_a_view_names_another_boot_then_data_behind_it_are_not_asked_for_yet() -> None:
    """They would be dropped, and use up the answers (R6)."""
    renamed = View(ViewId(1, 1), (Member(A, 99, "a"), Member(B, 22, "b")), (A, B), (A, B))
    queue = queue_with(block(1, (A, 1, 2)), block(4, view=renamed), block(5, (A, 3, 4)))
    assert queue.missing_data(10) == (Run(A, 1, 2),)


def test_when_the_end_of_an_epoch_is_decided_then_nothing_beyond_it_is_asked_for() -> None:
    """Blocks beyond the sync point that were not placed are erased; others may use their numbers again."""
    queue = queue_with(block(1, (A, 1, 2)), block(4, (A, 3, 4)), block(9, (B, 1, 1)))
    queue.expect_end(3)
    assert queue.missing_data(10) == (Run(A, 1, 2),)
    assert queue.known_end == 3
    add(queue, data(A, 1, 2))
    assert queue.frontier == 3
