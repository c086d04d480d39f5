"""The state that a log gives: a snapshot, and every block behind it, executed again.

A log does not say which of its last blocks a majority has: a site learns that from the others. So what is
replayed may have, at its end, commands that nobody was told the outcome of, and that the group, had it gone
on, might have placed otherwise. Everything that was answered by this site is among it.
"""

from collections.abc import Iterable, Iterator

from ordering.effects import Delivery
from ordering.qos import Level
from ordering.records import Entry, Ledger
from ordering.views import View
from rsm.envelope import Language
from rsm.errors import StateLost
from rsm.executor import Executor
from rsm.methods import Catalogue
from rsm.state_machine import StateMachine


def replay(machine: type[StateMachine], snapshot: Iterable[bytes] | None, ledger: Ledger) -> Executor:
    """Raises ``StateLost`` where snapshot and log do not meet, and what ``Executor`` raises."""
    catalogue = Catalogue(machine)
    executor = Executor(machine(), catalogue, Language(catalogue))
    if snapshot is not None:
        executor.restore(snapshot)
    base = 0 if ledger.base is None else ledger.base.ts
    began = ledger.began
    start = max(base, 0 if began is None or began.founders is not None else began.started_at)
    if executor.applied < start:
        raise StateLost(
            f"the log begins behind slot {start}, and the snapshot is of slot {executor.applied}; take the"
            " state of another replica"
        )
    view = None if ledger.base is None else ledger.base.view
    for entry in ledger.entries.values():
        _apply(executor, entry, ledger, view)
        view = entry.order.view or view
    executor.pass_slot(ledger.end, 0)
    return executor


def _apply(executor: Executor, entry: Entry, ledger: Ledger, before: View | None) -> None:
    order = entry.order
    if order.last_ts <= executor.applied:
        return
    if order.view is not None:
        locks_only = before is not None and order.view.differs_in_locks_only(before)
        executor.install(order.ts, chain_at(ledger, order.ts), order.view, order.time, locks_only=locks_only)
    elif order.tick:
        executor.pass_slot(order.ts, order.time)
    for delivery in deliveries(entry):
        executor.deliver(delivery)


def deliveries(entry: Entry) -> Iterator[Delivery]:
    """The messages of a block that have a place in the order, with the slot of each batch."""
    ts = entry.order.ts + 1
    for batch in entry.batches:
        if batch.qos.level != Level.SOURCE_ORDERED:  # delivered out of the order, and not executed
            yield Delivery(
                ts,
                batch.source,
                batch.first_seq,
                batch.qos,
                Level.MAJORITY,
                batch.messages,
                entry.order.time,
                batch.calls,
            )
        ts += len(batch.messages)


def chain_at(ledger: Ledger, ts: int) -> int:
    """The chain that gave a slot its place."""
    chain = ledger.began.chain if ledger.began is not None else ledger.chain
    for first, following in ledger.chains:
        if first <= ts:
            chain = following
    return chain
