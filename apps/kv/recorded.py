"""What happens to keys, for recordings: the store's own history, followed (``rsm.change_records``)."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from apps.kv.history import Change, Changes
from apps.kv.keyspace import Keyspace
from apps.kv.types import Entry
from rsm.recorded_history import Changed, RecordedHistory

SLICE: Final = 2048


class StoreHistory(RecordedHistory):
    """Of one state of a store."""

    def __init__(self, keyspace: Keyspace, changes: Changes) -> None:
        self._keyspace = keyspace
        self._changes = changes

    def start(self) -> tuple[int, int]:
        return self._changes.number, self._changes.compacted

    def end(self) -> int:
        return self._changes.number + len(self._changes)

    def since(self, number: int, most: int) -> Sequence[Change] | None:
        return self._changes.numbered(number, most)

    def slices(self) -> Iterator[Sequence[Entry]]:
        """In the order of keys: who comes or goes in between is not in the way of the rest."""
        entries, order = self._keyspace.entries, self._keyspace.order
        last, some = b"", list(islice(order, SLICE))
        while some:
            last = some[-1]
            yield [entries[key] for key in some]
            some = list(islice(order.irange(last, None, (False, True)), SLICE))

    @staticmethod
    def change_of(change: Change) -> Changed:
        entry = change.entry
        if entry is None:
            return Changed("expire" if change.expired else "delete", change.revision, change.key)
        return StoreHistory.entry_of(entry)

    @staticmethod
    def before(change: Change) -> Entry | None:
        return change.previous

    @staticmethod
    def entry_of(entry: Entry) -> Changed:
        return Changed(
            "put", entry.revision, entry.key, entry.value, entry.created, entry.version, entry.lease
        )
