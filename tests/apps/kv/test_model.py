"""Random commands, against a model that is too simple to be wrong, and against a replica that was given the
state on the way."""

from collections.abc import Callable
from typing import Any, Final

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from apps.kv import Add, Compare, Delete, Entry, Event, Get, Limits, Once, Put, Range
from rsm.errors import Rejected
from tests.apps.kv.kit import MS, Group
from tests.apps.kv.model import Model, Refused

KEYS: Final = st.sampled_from([b"a", b"ab", b"b", b"c", b"\xff"])
VALUES: Final = st.sampled_from([b"", b"1", b"-7", b"x", b"yy"])
EXPECTS: Final = st.none() | st.integers(-1, 12)
TTLS: Final = st.none() | st.integers(1, 40)
LEASES: Final = st.integers(0, 2)  # which one: Comparison.lease
NAMES: Final = st.sampled_from([b"l", b"m"])
ONCE: Final = st.none() | st.builds(Once, st.sampled_from([b"1", b"2", b"3"]), st.sampled_from([b"x", b"y"]))
COMPARES: Final = st.one_of(
    st.builds(
        Compare,
        KEYS,
        st.sampled_from(["revision", "version", "created", "lease"]),
        st.sampled_from(["=", "!=", "<", ">"]),
        st.integers(0, 6),
    ),
    st.builds(Compare, KEYS, st.just("value"), st.sampled_from(["=", "!=", "<", ">"]), VALUES),
    st.builds(Compare, KEYS, st.just("exists"), st.sampled_from(["=", "!="]), st.booleans()),
    st.builds(Compare, NAMES, st.just("lock"), st.sampled_from(["=", ">"]), st.integers(0, 30)),
)
OPERATIONS: Final = st.one_of(
    st.builds(Put, KEYS, VALUES, TTLS),
    st.builds(Put, KEYS, VALUES, st.none(), LEASES),  # the place of a lease, for its id
    st.builds(Get, KEYS),
    st.builds(Delete, KEYS),
    st.builds(Add, KEYS, st.integers(-3, 3)),
    st.builds(Range, KEYS, st.none() | KEYS, st.integers(1, 4)),
)


class Comparison(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.groups: list[Group] = []

    @initialize(events=st.sampled_from([3, 20, 100_000]))
    def begin(self, events: int) -> None:
        self.groups = [Group(Limits(history_events_max=events))]
        self.model.slot(self.group.now, self.group.context.time_ns)

    @property
    def group(self) -> Group:
        return self.groups[0]

    def lease(self, place: int) -> int:
        """Of those that were granted and live, the newest first; then one that has ended, or never was."""
        known = sorted(self.model.ends_ns.keys() - self.model.own, reverse=True)
        ended = [lease for lease in self.model.ttl_ms if lease not in self.model.ends_ns]
        return known[place] if place < len(known) else ended[-1] if ended else 999

    def both(self, name: str, args: tuple[Any, ...], simple: Callable[[], Any]) -> Any:
        """The same command in all, at a slot of its own."""
        outcomes = []
        for group in self.groups:
            try:
                outcomes.append(group.call(getattr(group.store, name), *args))
            except Rejected as refusal:
                outcomes.append((refusal.message, refusal.detail))
        assert outcomes.count(outcomes[0]) == len(outcomes)
        self.model.slot(self.group.now, self.group.context.time_ns)
        refused = ""
        try:
            expected = simple()
        except Refused as refusal:
            refused, expected = str(refusal), None
        if refused:
            assert isinstance(outcomes[0], tuple)
            assert outcomes[0][0] == refused
            return None
        return outcomes[0], expected

    def same(self, name: str, args: tuple[Any, ...], simple: Callable[[], Any]) -> None:
        found = self.both(name, args, simple)
        if found is not None:
            assert found[0] == found[1]

    def maybe_once(self, once: Once | None, name: str, simple: Callable[[], Any]) -> Callable[[], Any]:
        if once is None:
            return simple
        return lambda: self.model.once(once.key, once.digest, name, simple)

    # -- commands --------------------------------------------------------------------------------

    @rule(key=KEYS, value=VALUES, expect=EXPECTS, ttl_ms=TTLS, lease=st.none() | LEASES, once=ONCE)
    def put(
        self,
        key: bytes,
        value: bytes,
        expect: int | None,
        ttl_ms: int | None,
        lease: int | None,
        once: Once | None,
    ) -> None:
        lease = None if lease is None else self.lease(lease)
        simple = self.maybe_once(once, "put", lambda: self.model.put(key, value, expect, ttl_ms, lease))
        self.same("put", (key, value, expect, ttl_ms, lease, once), simple)

    @rule(key=KEYS, expect=EXPECTS, once=ONCE)
    def delete(self, key: bytes, expect: int | None, once: Once | None) -> None:
        simple = self.maybe_once(once, "delete", lambda: self.model.delete(key, expect))
        self.same("delete", (key, expect, once), simple)

    @rule(start=KEYS, end=st.none() | KEYS, limit=st.integers(1, 4))
    def delete_range(self, start: bytes, end: bytes | None, limit: int) -> None:
        self.same("delete_range", (start, end, limit), lambda: self.model.delete_range(start, end, limit))

    @rule(key=KEYS, delta=st.integers(-9, 9), once=ONCE)
    def add(self, key: bytes, delta: int, once: Once | None) -> None:
        simple = self.maybe_once(once, "add", lambda: self.model.add(key, delta))
        self.same("add", (key, delta, once), simple)

    @rule(
        compare=st.lists(COMPARES, max_size=2),
        then=st.lists(OPERATIONS, max_size=6),
        otherwise=st.lists(OPERATIONS, max_size=4),
    )
    def txn(self, compare: list[Any], then: list[Any], otherwise: list[Any]) -> None:
        for branch in (then, otherwise):
            branch[:] = [
                Put(each.key, each.value, lease=self.lease(each.lease))
                if isinstance(each, Put) and each.lease is not None
                else each
                for each in branch
            ]
        self.same("txn", (compare, then, otherwise), lambda: self.model.txn(compare, then, otherwise))

    @rule(ttl_ms=st.integers(1, 300))
    def lease_grant(self, ttl_ms: int) -> None:
        found = self.both("lease_grant", (ttl_ms,), lambda: self.model.lease_grant(ttl_ms))
        assert found[0].id == found[1]

    @rule(place=LEASES)
    def lease_renew(self, place: int) -> None:
        lease = self.lease(place)
        found = self.both("lease_renew", (lease,), lambda: self.model.lease_renew(lease))
        assert found is None or found[0].id == found[1]

    @rule(place=LEASES)
    def lease_revoke(self, place: int) -> None:
        lease = self.lease(place)
        found = self.both("lease_revoke", (lease,), lambda: self.model.lease_revoke(lease))
        assert found is None or found[0].revision == found[1]

    @rule(name=NAMES, place=LEASES, wait=st.booleans())
    def lock(self, name: bytes, place: int, wait: bool) -> None:
        lease = self.lease(place)
        self.same("lock", (name, lease, wait), lambda: self.model.lock(name, lease, wait))

    @rule(name=NAMES, place=LEASES)
    def unlock(self, name: bytes, place: int) -> None:
        lease = self.lease(place)
        self.same("unlock", (name, lease), lambda: self.model.unlock(name, lease))

    @rule(ms=st.integers(1, 40))
    def wait(self, ms: int) -> None:
        for group in self.groups:
            group.context.time_ns += ms * MS

    @rule(back=st.integers(0, 8))
    def compact(self, back: int) -> None:
        revision = max(self.group.now - back, 0)
        self.both("compact", (revision,), lambda: None)

    @precondition(lambda self: len(self.groups) == 1)
    @rule()
    def another_replica_is_given_the_state(self) -> None:
        self.groups.append(self.group.restored())

    @precondition(lambda self: len(self.groups) == 2)
    @rule()
    def the_first_replica_goes(self) -> None:
        del self.groups[0]

    # -- queries ---------------------------------------------------------------------------------

    @rule(key=KEYS, back=st.integers(0, 10))
    def a_key_is_read_as_it_was(self, key: bytes, back: int) -> None:
        revision = self.group.now - back
        if revision < self.group.store.statistics().compacted:
            return
        events = [each for each in self.model.events if each.key == key and each.revision <= revision]
        expected = None
        if events and events[-1].value is not None:
            last = events[-1]
            assert last.value is not None
            expected = Entry(key, last.value, last.revision, last.created, last.version, last.lease)
        assert all(group.store.get(key, revision) == expected for group in self.groups)

    @rule(key=KEYS, since=st.integers(0, 20), limit=st.integers(1, 3))
    def a_page_of_history_is_read(self, key: bytes, since: int, limit: int) -> None:
        compacted = self.group.store.statistics().compacted
        events = [
            each for each in self.model.events if each.key == key and each.revision > max(since, compacted)
        ]
        for group in self.groups:
            history = group.store.history(key, since, limit)
            assert history.events == events[: len(history.events)]
            assert history.more == (len(history.events) < len(events))
            assert limit <= len(history.events) <= limit + 1 or not history.more

    @rule(start=KEYS, end=st.none() | KEYS, limit=st.integers(1, 3))
    def changes_are_followed(self, start: bytes, end: bytes | None, limit: int) -> None:
        compacted = self.group.store.statistics().compacted
        events = [
            each
            for each in self.model.events
            if each.revision > compacted and start <= each.key and (end is None or each.key < end)
        ]
        for group in self.groups:
            since, found = compacted, list[Event]()
            while (feed := group.store.changes(since, start, end, limit)).position > since:
                assert all(since < event.revision <= feed.position for event in feed.events)
                assert len({event.revision for event in feed.events}) <= limit
                found += feed.events
                since = feed.position
            assert found == events

    # -- always ----------------------------------------------------------------------------------

    @invariant()
    def the_state_is_that_of_the_model(self) -> None:
        for group in self.groups:
            store, model = group.store, self.model
            listing = store.range()
            assert listing.items == [model.entries[key] for key in sorted(model.entries)]
            assert [(each.id, each.ends_ns) for each in store.leases()] == sorted(model.ends_ns.items())
            for lease in store.leases():
                assert lease.keys == sum(each.lease == lease.id for each in model.entries.values())
                assert lease.locks == sum(lease.id in queue for queue in model.queues.values())
            assert store.locks() == [model.lock_of(name) for name in sorted(model.queues)]
            assert store.alarm() == min(model.ends_ns.values(), default=None)
            size = sum(len(entry.key) + len(entry.value) for entry in model.entries.values())
            assert store.statistics().data_bytes == size

    @invariant()
    def a_snapshot_gives_the_state_again(self) -> None:
        if self.groups:
            snapshots = [b"".join(group.store.snapshot()) for group in self.groups]
            snapshots.append(b"".join(self.group.restored().store.snapshot()))
            assert snapshots.count(snapshots[0]) == len(snapshots)


TestComparison = Comparison.TestCase
TestComparison.settings = settings(max_examples=200, stateful_step_count=50)
