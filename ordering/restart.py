"""Going on from somewhere else: from the disk, or behind a gap that a state has filled.

Back from the disk (R6, ``docs/durability.md``) the site is what its log says, and unnamed.

Everything the log has is placed again as it was placed when it came. What a majority holds is not in the
log: only that every install, and the position where the log begins, is. The rest is learnt from the
others, and delivered again; a host skips what its own snapshot contains.
"""

from typing import TYPE_CHECKING

from ordering.admission import check_idle
from ordering.effects import RequestState
from ordering.errors import MembershipError
from ordering.ordering_queue import OrderingQueue
from ordering.packets import Position
from ordering.records import Entry, Ledger
from ordering.site import Site, Timer
from ordering.state import State

if TYPE_CHECKING:
    from ordering.engine import Engine


def bring_back(engine: "Engine", ledger: Ledger) -> None:
    """Take up the life that ``ledger`` tells of. Our own restart is suspicion: who was in the ring polls at
    once. Nobody waits for one that had retired from it."""
    site = engine.site
    check_idle(site)
    _check(site, ledger)
    _restore(site, ledger)
    engine.durability.restore(ledger)
    engine.delivery.restore(ledger)
    engine.founded = ledger.began is not None and ledger.began.founders is not None
    site.state = State.NOT_TOKEN_SITE
    engine.recovery.enter_epoch()
    if not site.epoch:  # not born: fenced from the start
        site.fenced = True
        engine.recovery.wait_for_others()
    commitment = ledger.commitment
    if commitment is not None and commitment.epoch == site.epoch:
        site.chain, site.descent = commitment.chain, commitment.descent
        site.queue.fork = commitment.fork
        site.parents = list(commitment.parents)
        engine.recovery.resume(commitment.instance)
    site.note_addresses(*(view for _, view in site.queue.views))
    engine.detection.enter_epoch()
    engine.fork.start()
    engine.removal.start()
    if engine.founded or ledger.transferred:
        engine.membership.may_promote()
    else:
        site.out.append(RequestState(site.queue.started_at + 1, site.chain, site.view.electorate))
    if site.epoch and site.in_ring:
        engine.recovery.start_poll()
    elif not site.epoch:  # whether the birth can still come about, only the other founders can tell
        engine.birth.fire()


def _check(site: Site, ledger: Ledger) -> None:
    """Refuse what cannot be the log of this site."""
    if not site.config.durable:
        raise MembershipError("restarted: a group in memory mode has no log; start with Started, and join")
    if ledger.began is None:
        raise MembershipError("ledger: it says of no membership; start with Started")
    if ledger.site != site.me:
        raise MembershipError(
            f"ledger: it is the log of site {ledger.site}, this is {site.me}; make the engine with the site"
            " id that the log names, and a new boot"
        )


def _restore(site: Site, ledger: Ledger) -> None:
    """Rebuild the order and our place in it."""
    began = ledger.began
    assert began is not None
    queue = site.queue
    site.chain, site.descent = ledger.chain, ledger.descent
    site.chains = list(ledger.chains)
    queue.departed.update(ledger.departed)
    queue.started_at, queue.seat_ts = began.started_at, began.seat_ts
    if began.founders is not None:
        queue.found(began.founders)
    if ledger.base is not None:
        queue.leap(ledger.base)
        site.epoch = ledger.base.epoch
    for entry in ledger.entries.values():
        _place(queue, entry)
        site.epoch = entry.order.epoch
    queue.known_end = queue.frontier
    site.synced = queue.frontier
    site.state_ts = ledger.transferred
    installs = [ts for ts, view in queue.views if view.id.revision == 0 and ts in queue.blocks]
    base = 0 if ledger.base is None else ledger.base.ts
    site.stability.majority = max([base, *installs])
    if not site.chains:
        site.begin_chain(0)


def _place(queue: OrderingQueue, entry: Entry) -> None:
    order = entry.order
    if not queue.views:
        queue.start_at(order)
        return
    for run in order.runs:
        source = queue.sources[run.source]
        source.contiguous = max(source.contiguous, run.last_seq)
        source.highest = max(source.highest, run.last_seq)
    for batch in entry.batches:
        queue.sources[batch.source].batches[batch.first_seq] = batch
        queue.bytes += sum(map(len, batch.messages))
    queue.blocks[order.ts] = order
    queue.next_complete()


# -- behind a gap -------------------------------------------------------------------------------


def take_state(engine: "Engine", ts: int) -> None:
    """R7: promotion needs the state at, or after, the slot this site began with."""
    site = engine.site
    if site.outside:
        raise MembershipError(
            f"state: this site is {site.state.value} and has asked for none; transfer the state"
            " that its RequestState asks for"
        )
    if ts < site.queue.started_at:
        raise MembershipError(
            f"ts: the state at {ts} is older than slot {site.queue.started_at}, where this learner"
            " began; transfer it again from a donor that has delivered that slot"
        )
    position = engine.transfer.take(ts)
    if position is not None:
        _leap(engine, position)
    engine.durability.transferred(ts, engine.membership.may_promote)


def _leap(engine: "Engine", position: Position) -> None:
    """Go on from where the others' logs begin; the application has the state of what was before."""
    site = engine.site
    site.count("leaps")
    if not position.view.has(site.me):
        engine.submission.abandon()  # while our slots can be told from those of the later epoch
    engine.delivery.leap(position)
    site.queue.leap(position)
    site.clock.placed_at = site.now
    new_epoch = position.epoch > site.epoch
    if new_epoch:
        site.epoch = position.epoch
        site.begin_chain(position.ts)
        site.disarm(Timer.HELLO)
        engine.fork.installed()
        engine.recovery.enter_epoch()
        engine.leave_epoch()
        engine.detection.enter_epoch()
        engine.doubt.enter_epoch()
        engine.reads.enter_epoch()
    engine.durability.leapt(position, new_epoch=new_epoch)
    site.stability.leap(position.ts, new_epoch=new_epoch)
    site.enter_view()
    engine.lanes.enter_view()
    engine.submission.reclaim(leapt=True)
    engine.recovery.caught_up()
    if not site.view.has(site.me):
        engine._end(engine.membership.ending())
