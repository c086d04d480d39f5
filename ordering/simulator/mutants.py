"""Planted bugs: each mutant removes one guard of the shipped code, and the battery must notice.

A mutant names a method, a piece of its source and what stands there instead. Nothing of this is in
the engine: the method is recompiled from its own source with the piece replaced, for as long as the
mutant is applied, so a mutant whose guard was rewritten fails loudly instead of testing nothing.

Only a checker counts as a finder. The engine's own invariants stop a site that has gone wrong, as
they would in production; the run goes on without it.
"""

import importlib
import inspect
import multiprocessing
import textwrap
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from typing import TypeAlias

import msgspec

from ordering.errors import ConfigurationError
from ordering.simulator.plan import Plan
from ordering.simulator.run import simulate


class Mutant(msgspec.Struct, frozen=True):
    """One planted bug. ``where`` is ``module:Class.method`` or ``module:function``. ``also``: where, guard
    and what stands instead, for what is guarded more than once."""

    name: str
    pitfall: str
    where: str
    guard: str
    instead: str
    discipline: str = "rotating"
    durable: bool | None = None  # None: as drawn
    sealed: bool | None = None
    reads: bool | None = None
    retire: bool | None = None
    sites: int = 5
    also: tuple[tuple[str, str, str], ...] = ()


class MutantResult(msgspec.Struct, frozen=True):
    """How the hunt went: seeds played, the finding checker and its words."""

    name: str
    pitfall: str
    found: bool
    seeds: int
    checker: str
    detail: str = ""


Trial: TypeAlias = Callable[[Mutant, int], list[str]]  # a function of some module: a mutant and a seed

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "deliver before a majority holds",
        "1: reply given before K others hold the message",
        "ordering.delivery:DeliveryCursor._reached",
        "return level if stability.majority >= ts else None",
        "return level",
    ),
    Mutant(
        "tell a view before a majority holds it",
        "1: effects of a NewList at majority level only (R5)",
        "ordering.delivery:DeliveryCursor._deliver_block",
        "if self.site.stability.majority < order.ts:",
        "if False:",
    ),
    Mutant(
        "a promise does not fence",
        "2: a site acts in an epoch it has promised to end (R4)",
        "ordering.recovery:Recovery._promise",
        "site.fenced = True",
        "pass",
    ),
    Mutant(
        "promotion without the state",
        "3: stateless majorities (R7)",
        "ordering.membership:Membership.follow_view",
        "and self.promotable and not site.unnamed:",
        "and not site.unnamed:",
    ),
    Mutant(
        "a founder founds alone",
        "4: wrong site bootstraps (R9)",
        "ordering.birth:Birth.complete",
        "if len(members) < len(site.config.founders):",
        "if not members:",
    ),
    Mutant(
        "born before all founders are in",
        "4: old answers and a fast restart found a second chain (R9)",
        "ordering.recovery:Recovery._may_be_born",
        "return all(founder in self._votes for founder in self.site.view.electorate)",
        "return True",
    ),
    Mutant(
        "a chain lives from hearsay",
        "4: two chains yield to each other (R9)",
        "ordering.kin:Kin._count",
        "if site.fenced or not site.view.is_quorum(self._present, joint=site.stability.joint(site.view)):",
        "if site.fenced:",
    ),
    Mutant(
        "majority of the ring",
        "4: majorities of a shrinking view fork (R1)",
        "ordering.views:View.is_quorum",
        "majority_of(self.electorate):",
        "majority_of(self.ring or self.electorate):",
    ),
    Mutant(
        "a deaf token site is believed",
        "6: asymmetric links, membership never settles",
        "ordering.token:Token.on_probe",
        "if self.site.me not in probe.owing:",
        "if True:",
        retire=False,
    ),
    Mutant(
        "an accepted install is forgotten",
        "8: recovery that does not survive its initiator (R3)",
        "ordering.recovery:Recovery._choose",
        "if accepted:",
        "if False:",
    ),
    Mutant(
        "a lower ballot is accepted",
        "8: a stale control packet resets recovery (R3)",
        "ordering.recovery:Recovery.on_new_list",
        "if proposal.ballot < self.promised:",
        "if False:",
    ),
    Mutant(
        "accept without the slots",
        "8: a sync point nobody can reach (R3)",
        "ordering.recovery:Recovery._accept",
        "if site.queue.frontier < sync:",
        "if False:",
    ),
    Mutant(
        "unordered data is forgotten at a view change",
        "9: messages queued across a view change lost (R15)",
        "ordering.engine:Engine._install",
        "self.submission.reclaim()",
        "self.submission.outbox.clear()",
    ),
    Mutant(
        "erased slots keep their data ordered",
        "9: messages queued across a view change lost (R15)",
        "ordering.ordering_queue:OrderingQueue.erase_above",
        "source.ordered = run.first_seq - 1",
        "pass",
    ),
    Mutant(
        "nothing is taken back",
        "9: a view change erases what was delivered early, and nobody says so (R10)",
        "ordering.delivery:DeliveryCursor.erase_above",
        "self.site.out.append(Retract(ts))",
        "pass",
    ),
    Mutant(
        "a quiet ring does not look back",
        "10: a quiet ring takes minutes to recover its last message",
        "ordering.engine:Engine._learn",
        "site.queue.known_end = max(site.queue.known_end, head.received)",
        "pass",
        discipline="sequencer",
    ),
    Mutant(
        "a NACK is repeated at once",
        "13: NACK implosion (R16)",
        "ordering.retransmission:Retransmission.fire",
        "backoff = self.rtt.rto << min(self.tries - 1, 6)",
        "backoff = 1",
    ),
    Mutant(
        "the log is never collected",
        "14: every buffer is bounded (R16)",
        "ordering.ordering_queue:OrderingQueue.collect",
        "if order.last_ts > ts or order is self.tail:",
        "if True:",
    ),
    Mutant(
        "statements count across epochs",
        "19: acknowledged on the word of an epoch that is over (R3)",
        "ordering.stability:Stability._forget_statements",
        "self.held.clear()",
        "pass",
    ),
    Mutant(
        "conclusions beyond the own frontier",
        "19: an unseen NewList changes whose statements count (R5)",
        "ordering.stability:Stability.update",
        "min(self._majority(view), frontier)",
        "self._majority(view)",
        discipline="sequencer",
    ),
    Mutant(
        "the window is ignored",
        "16: a sender overruns the network and its receivers (RMP §4.6)",
        "ordering.sending:Sending.room",
        "return self.flow.next_packet(self.in_transit, offered)",
        "return self.flow.next_packet(0, offered)",
    ),
    Mutant(
        "fragments are mixed across boots",
        "9: a message is put together from parts of two incarnations (R15)",
        "ordering.pieces:Assemblies.add",
        "lane = (part.source, part.boot, ordered)",
        "lane = (part.source, 0, ordered)",
    ),
    Mutant(
        "fragments outlive their source",
        "9: fragments are kept across the view that removes their boot (R15)",
        "ordering.pieces:_is_member",
        "return member is not None and member.boot == lane[1]",
        "return True",
    ),
    Mutant(
        "a whole message is asked for again",
        "13: one lost piece costs a whole message (R16)",
        "ordering.pieces:Assemblies.gaps",
        "spans.append(Span(source, seq, ordered, first, end))",
        "spans.append(Span(source, seq, ordered, 0, assembly.total))",
    ),
    Mutant(
        "a removed site serves on",
        "12: a removed site must stop (R17)",
        "ordering.engine:Engine._end",
        "if site.state is not State.GONE:",
        "if ending not in (Ending.LEFT, Ending.REMOVED):",
    ),
    Mutant(
        "hold before sync",
        "19: acknowledged before flush (R8)",
        "ordering.site:Site.head",
        "0 if unheld else self.held,",
        "0 if unheld else frontier,",
        durable=True,
    ),
    Mutant(
        "an epoch is held before it is written",
        "19: acknowledged before flush (R8)",
        "ordering.durability:Durability.installed",
        "site.synced = 0",
        "site.synced = order.last_ts",
        durable=True,
    ),
    Mutant(
        "a promise is not written down",
        "3: amnesia, a voter that forgets its promise (R8)",
        "ordering.recovery:Recovery._promise",
        "self.durability.commit(self._instance(), synced)",
        "synced()",
        durable=True,
    ),
    Mutant(
        "an acceptance is not written down",
        "3: amnesia, a voter that forgets what it accepted (R8)",
        "ordering.recovery:Recovery._accept",
        "self.durability.commit(self._instance(), synced)",
        "synced()",
        durable=True,
    ),
    Mutant(
        "an ACK is issued again after a restart",
        "2: fast restart before anyone noticed (R6)",
        "ordering.site:Site.holds_token",
        "and not self.unnamed",
        "and True",
        durable=True,
        sites=3,
    ),
    Mutant(
        "a disk that went back in time is believed",
        "3: amnesia, a rolled-back directory (R8)",
        "ordering.claims:Claims.on_other_boot",
        "(claim.epoch, claim.held) > (head.epoch, head.held)",
        "False",
        durable=True,
    ),
    Mutant(
        "the log is trimmed ahead of the snapshot",
        "14: log collected while it is still needed (R8)",
        "ordering.durability:Durability.on_snapshot",
        "if position.ts <= ts]",
        "]",
        durable=True,
    ),
    Mutant(
        "lock held by a removed member",
        "11: locks held by non-members (R13)",
        "ordering.locks:is_sound",
        "return member is not None and member.boot == owner.boot",
        "return True",
    ),
    Mutant(
        "handler lock kept outside the ring",
        "12: who answers is not in the ring (R13)",
        "ordering.locks:_may_answer",
        "and owner.site in view.ring ",
        "",
    ),
    Mutant(
        "late lock request grants again",
        "12: a request that was granted and has ended is granted once more (R13)",
        "ordering.locks:_admit",
        "if wish.number > last:",
        "if True:",
    ),
    Mutant(
        "slot time goes back",
        "16: the time of a slot follows the clock of whoever orders it (R14)",
        "ordering.slot_time:SlotClock.stamp",
        "max(previous, min(wall, bound))",
        "min(wall, bound)",
    ),
    Mutant(
        "a call is acknowledged before a majority holds it",
        "1: reply given before K others hold the message",
        "ordering.delivery:DeliveryCursor._deliver_block",
        "if reached is None:",
        "if reached is None and (self.rpc.placed(order, ts, batch, Level.MAJORITY) or True):",
    ),
    Mutant(
        "a repeated call is executed anew",
        "retries through other replicas: one reply value for each request (R12)",
        "ordering.simulator.process:Replica._execute",
        "if key not in self.sessions:",
        "if True:",
    ),
    Mutant(
        "a gap in a caller's calls is ignored",
        "9: calls queued across a failover come in another order (R10)",
        "ordering.multirpc:MultiRpc._refusal",
        "if qos.rides_the_ring and packet.after >= record.floor and packet.after > record.last:",
        "if False:",
    ),
    Mutant(
        "a call for another view is not refused",
        "a refusal that is not given: the caller meant another membership (RMP §4.5)",
        "ordering.multirpc:MultiRpc._refusal",
        "if packet.bound and packet.view != view.id:",
        "if False:",
    ),
    Mutant(
        "a caller does not hear refusals",
        "a refused call must be taken elsewhere, or its caller waits for nothing",
        "ordering.caller:Caller._on_refusal",
        "if bound < packet.directory.view or parcel.behind > everyone:",
        "if False:",
    ),
    Mutant(
        "a new holder owes nothing",
        "a reply dies with the holder of the lock (R12)",
        "ordering.multirpc:MultiRpc._ask_holder",
        "if holder == self.site.me:",
        "if False:",
    ),
    Mutant(
        "a late answer to a read counts",
        "15: an answer that is older than the read proves nothing (R11)",
        "ordering.reads:Reads.on_reply",
        "reply.round != self._round",
        "False",
        reads=True,
    ),
    Mutant(
        "a read does not wait for what was answered",
        "15: reads of ordered but unapplied state (R11)",
        "ordering.reads:Reads.run",
        "min(site.delivered, site.stability.majority) < self._bound",
        "False",
        reads=True,
    ),
    Mutant(
        "a minority answers reads",
        "15: a site that is cut off reads what is over (R11)",
        "ordering.reads:Reads._count",
        "if view.is_quorum(tuple(self._answers), joint=site.stability.joint(view)):",
        "if True:",
        reads=True,
    ),
    Mutant(
        "a read forgets its round when the epoch ends",
        "15: a read that nobody answers (R11)",
        "ordering.reads:Reads.enter_epoch",
        "self.waiting = self.asking + self.waiting",
        "self.waiting = list(self.waiting)",
        reads=True,
    ),
    Mutant(
        "a retired site still gets the token",
        "5: an orderly stop costs a failure detection",
        "ordering.orderer:Orderer.next_block",
        "return Order(site.epoch, ts, site.me, next_site(view), view=view, vector=vector, time=time)",
        "return Order(site.epoch, ts, site.me, next_site(before), view=view, vector=vector, time=time)",
        retire=True,
    ),
    Mutant(
        "a site retires from a ring that needs it",
        "4: a ring that is no majority delivers nothing (R1)",
        "ordering.membership:apply_change",
        "if not _ring_is_majority(ring, electorate):",
        "if False:",
        retire=True,
        sites=3,
    ),
    Mutant(
        "a retired site keeps its handler locks",
        "12: who answers is not in the ring (R13)",
        "ordering.membership:apply_change",
        "return with_locks(next_view, view.locks, ts, time)",
        "return with_locks(next_view, view.locks, ts, time) if change.kind is not ChangeKind.RETIRE"
        " else View(next_id, members, electorate, ring, locks=view.locks)",
        retire=True,
    ),
    Mutant(
        "a site retires with messages on the way",
        "9: messages accepted before an orderly stop lost (R15)",
        "ordering.submission:Submission.is_final",
        "return self.occupied() == (0, 0) and not self._placed",
        "return True",
        retire=True,
    ),
    Mutant(
        "a retired site that is back is suspected",
        "5: a restart that nobody waits for ends the epoch (R6)",
        "ordering.restart:bring_back",
        "if site.epoch and site.in_ring:",
        "if site.epoch:",
        durable=True,
        retire=True,
    ),
    Mutant(
        "everybody is said to hold what a majority holds",
        "a level is told that was not reached (R10)",
        "ordering.holding:Holding._holders",
        "majority_of(each.electorate)",
        "len(each.electorate)",
        reads=True,
    ),
    Mutant(
        "holders are told of a slot that nobody holds",
        "a level is told that was not reached (R10)",
        "ordering.holding:Holding._holders",
        "if min(stability.majority, self.site.delivered) < ts:",
        "if False:",
        reads=True,
    ),
    Mutant(
        "a voter counts before it is one",
        "a level is told that an erased change of the electorate takes back (R5, R10)",
        "ordering.holding:Holding.run",
        "view = self.site.told_view",
        "view = self.site.view",
        reads=True,
    ),
    Mutant(
        "what a later ring holds is taken for the ring that is known",
        "a level is told that was not reached (R10)",
        "ordering.holding:Holding._holders",
        "min(majorities))",
        "min(majorities), view.ring_voters if stability.stable >= ts else 0)",
        discipline="sequencer",
        reads=True,
    ),
    Mutant(
        "what a ring ahead of this site holds is believed at once",
        "a level is delivered that was not reached (R10)",
        "ordering.stability:Stability.update",
        "said[0][0] <= frontier",
        "said",
        discipline="sequencer",
    ),
    Mutant(
        "a dead voter is waited for",
        "a K that dead sites make unreachable blocks its caller (R10)",
        "ordering.holding:Holding.run",
        "min(wanted or voters, voters, reachable)",
        "min(wanted or voters, voters)",
        reads=True,
    ),
    Mutant(
        "a nonce is used again",
        "security: two datagrams under one key and nonce give both away",
        "ordering.wire:Wire.write",
        "self._counter = counter",
        "self._counter = counter - (counter % 97 == 0)",
        sealed=True,
    ),
    Mutant(
        "a replay is accepted",
        "security: what was said once is heard again",
        "ordering.sealing:Opener.open",
        "if known.window.has(counter):",
        "if False:",
        sealed=True,
    ),
)


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """Run the block with the mutant's guard removed."""
    replacements: dict[str, list[tuple[str, str]]] = {mutant.where: [(mutant.guard, mutant.instead)]}
    for where, guard, instead in mutant.also:
        replacements.setdefault(where, []).append((guard, instead))
    with ExitStack() as stack:
        for where, pieces in replacements.items():
            stack.enter_context(_replaced(mutant.name, where, pieces))
        yield


@contextmanager
def _replaced(mutant: str, where: str, pieces: list[tuple[str, str]]) -> Iterator[None]:
    module_name, _, path = where.partition(":")
    module = importlib.import_module(module_name)
    owner: object = module
    *parents, name = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    original = getattr(owner, name)
    source = textwrap.dedent(inspect.getsource(original))
    for guard, instead in pieces:
        if source.count(guard) != 1:
            raise ConfigurationError(
                f"mutant {mutant!r}: its guard stands {source.count(guard)} times in {where};"
                " name the piece of source that is the guard now"
            )
        source = source.replace(guard, instead)
    scope: dict[str, object] = {}
    exec(compile(source, where, "exec"), vars(module), scope)
    setattr(owner, name, scope[name])
    try:
        yield
    finally:
        setattr(owner, name, original)


def play_planted(mutant: Mutant, seed: int) -> list[str]:
    """What the checkers say of one seed, while the mutant is planted."""
    plan = Plan(
        seed=seed,
        discipline=mutant.discipline,
        sites=mutant.sites,
        durable=mutant.durable,
        sealed=mutant.sealed,
        reads=mutant.reads,
        retire=mutant.retire,
    )
    return simulate(plan, stop_broken=True).violations


def search(mutant: Mutant, seeds: int, first_seed: int = 0, trial: Trial = play_planted) -> MutantResult:
    """Play seeds with the mutant planted until a checker complains."""
    with planted(mutant):
        for count in range(1, seeds + 1):
            violations = trial(mutant, first_seed + count - 1)
            if violations:
                first = violations[0]
                checker = first.split(" ", 1)[1].split(":", 1)[0]
                return MutantResult(mutant.name, mutant.pitfall, True, count, checker, first)
    return MutantResult(mutant.name, mutant.pitfall, False, seeds, "")


def hunt(
    names: tuple[str, ...],
    seeds: int,
    jobs: int,
    progress: Callable[[MutantResult], None],
    mutants: tuple[Mutant, ...] = MUTANTS,
    trial: Trial = play_planted,
) -> list[MutantResult]:
    """Search for every mutant named (all if none is), several at a time."""
    known = {mutant.name: mutant for mutant in mutants}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ConfigurationError(f"mutants: {', '.join(unknown)} unknown; use {', '.join(known)}")
    chosen = [known[name] for name in names] or list(mutants)
    results: dict[str, MutantResult] = {}
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = [pool.submit(search, mutant, seeds, 0, trial) for mutant in chosen]
        for future in as_completed(futures):
            result = future.result()
            results[result.name] = result
            progress(result)
    return [results[mutant.name] for mutant in chosen]
