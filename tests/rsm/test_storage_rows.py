"""Records to bytes and back: nothing is lost, and what was altered is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordering.packets import Descent, Order, Run
from ordering.records import Began, Claim, Commitment, Entry, Heard, Instance, Parent
from rsm.storage import SnapshotInfo, StorageCorrupt
from rsm.storage.rows import (
    FORMAT,
    Base,
    Part,
    Place,
    Tip,
    Value,
    chained,
    checksum,
    decode_entry,
    decode_part,
    encode_entry,
    encode_part,
)
from tests.ordering.test_codec import (
    any_site,
    ballots,
    batches,
    boots,
    counts,
    ids,
    positions,
    runs,
    sites,
    small,
    times,
    view_orders,
    views,
)
from tests.rsm.storage_kit import BEGAN, block

pairs = st.lists(st.tuples(any_site, counts), max_size=4).map(tuple)
descents = st.builds(Descent, ids, counts)
orders = st.one_of(
    view_orders(),
    st.builds(Order, counts, small, any_site, any_site, st.lists(runs, max_size=4).map(tuple), time=times),
    st.builds(Order, counts, small, any_site, any_site, time=times, tick=st.booleans()),
)
entries = st.builds(Entry, orders, st.lists(batches, max_size=3).map(tuple))
instances = st.builds(Instance, ballots, ballots, st.none() | orders, st.none() | orders, st.booleans())
forks = st.none() | views()
parents = st.builds(Parent, ids, descents, forks, instances)
hashes = st.binary(min_size=16, max_size=16)

PARTS: dict[Part, st.SearchStrategy[Value]] = {
    Part.TIP: st.builds(Tip, counts, counts, counts, hashes, hashes, hashes, hashes, st.booleans()),
    Part.BEGAN: st.none() | st.builds(Began, sites, ids, descents, forks, counts, counts, pairs),
    Part.PLACE: st.builds(
        Place, ids, descents, st.lists(st.tuples(counts, ids), max_size=3).map(tuple), counts
    ),
    Part.BASE: st.builds(Base, st.none() | positions(), pairs),
    Part.COMMITMENT: st.none()
    | st.builds(
        Commitment, ids, descents, counts, instances, forks, st.lists(parents, max_size=2).map(tuple)
    ),
    Part.CLAIMS: st.builds(
        Heard,
        st.lists(st.tuples(any_site, st.builds(Claim, boots, counts, counts)), max_size=3).map(tuple),
    ),
    Part.SNAPSHOT: st.none()
    | st.builds(SnapshotInfo, counts, counts, st.binary(max_size=64), counts, counts, hashes),
}


@given(entries)
def test_when_a_block_is_written_then_the_same_block_is_read(entry: Entry) -> None:
    assert decode_entry(encode_entry(entry)) == entry


@pytest.mark.parametrize("part", list(Part))
@given(st.data())
def test_when_a_part_is_written_then_the_same_part_is_read(part: Part, data: st.DataObject) -> None:
    value = data.draw(PARTS[part])
    assert decode_part(part, encode_part(value)) == value


def test_when_a_batch_has_65536_messages_then_all_come_back() -> None:
    entry = block(1, *(b"%d" % number for number in range(65_536)))
    assert decode_entry(encode_entry(entry)) == entry


@given(st.data(), st.sampled_from(list(Part)))
def test_when_bytes_are_altered_then_they_are_refused_or_are_another_value(
    data: st.DataObject, part: Part
) -> None:
    """A checksum finds the rest; here nothing but ``StorageCorrupt`` may come out."""
    body = bytearray(encode_part(data.draw(PARTS[part])))
    body[data.draw(st.integers(0, len(body) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        value = decode_part(part, bytes(body[: data.draw(st.integers(0, len(body)))]))
    except StorageCorrupt:
        return
    assert decode_part(part, encode_part(value)) == value


@pytest.mark.parametrize("body", [b"", b"\x00\xc0", bytes((FORMAT + 1, 0xC0))])
def test_when_the_format_is_unknown_then_it_is_said(body: bytes) -> None:
    with pytest.raises(StorageCorrupt, match="this version reads 1"):
        decode_part(Part.BEGAN, body)


def test_when_a_block_would_leave_64_bits_then_it_is_refused() -> None:
    order = Order(1, (1 << 63) - 2, BEGAN.site, BEGAN.site, (Run(BEGAN.site, 1, 5),))
    with pytest.raises(StorageCorrupt, match="does not decode"):
        decode_entry(encode_entry(Entry(order, ())))


@given(st.binary(max_size=20), st.binary(max_size=20), st.binary(max_size=20))
def test_when_anything_before_a_row_differs_then_its_hash_differs(
    one: bytes, two: bytes, body: bytes
) -> None:
    assert (chained(one.ljust(20), b"", body) == chained(two.ljust(20), b"", body)) == (
        one.ljust(20) == two.ljust(20)
    )
    assert checksum(one, body) == checksum(one + body)


@pytest.mark.parametrize("said", [False, True])
def test_a_disk_that_only_says_whether_a_state_was_taken_over_is_read(said: bool) -> None:
    place = Place(7, Descent(7, 0), (), said)  # True is 1 in Python, and true on the disk
    body = encode_part(place)
    assert body[-1] in (0xC2, 0xC3)
    read = decode_part(Part.PLACE, body)
    assert isinstance(read, Place)
    assert read.transferred is int(said)
