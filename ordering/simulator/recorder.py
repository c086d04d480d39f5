"""Records a simulated run in the schema a real site writes (``ordering.recording``).

Both clocks are the virtual one. Every process writes under its own site and boot, all into one
recording, in the order in which things happened. What a process sends to several counts as a datagram for
each, and sizes are about those on the wire.
"""

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from ordering.config import MS
from ordering.effects import (
    Abandoned,
    Deliver,
    Effect,
    EndMembership,
    InstallView,
    LevelReached,
    Multicast,
    Retract,
    Unicast,
)
from ordering.qos import Qos
from ordering.recording import EventKind, Recorder, Row
from ordering.simulator.checkers.base import Checker
from ordering.simulator.network import wire_size
from ordering.views import View

if TYPE_CHECKING:
    from ordering.simulator.cluster import Cluster
    from ordering.simulator.process import Process


SAMPLE_NS: Final = 100 * MS


class _Tally(msgspec.Struct):
    """What a process has done so far, and when that is to be told next."""

    due: int = 0
    datagrams_out: int = 0
    bytes_out: int = 0
    submitted: int = 0
    delivered: int = 0


class RunRecorder(Checker):
    """Not a check: a listener that writes down what the checkers see."""

    name = "recorder"

    def __init__(self, directory: Path, sample_ns: int = SAMPLE_NS) -> None:
        super().__init__()
        self.recorder = Recorder(directory, "run")
        self.sample_ns = sample_ns
        self._tallies: defaultdict[int, _Tally] = defaultdict(_Tally)  # by boot
        # The last message applied, until something else happens: one row per step, not per message.
        self._applied: Row | None = None

    def on_submit(
        self, process: "Process", first_seq: int, messages: tuple[bytes, ...], qos: Qos, now: int
    ) -> None:
        row = self._row(process, EventKind.SUBMITTED, now)
        row.source = process.member.site
        row.first_seq = first_seq
        row.count = len(messages)
        row.qos = qos
        self._tallies[process.member.boot].submitted += len(messages)
        self._add(row)

    def on_effect(self, process: "Process", effect: Effect, now: int) -> None:
        match effect:
            case Multicast() | Unicast():
                tally, receivers = self._tallies[process.member.boot], 1
                if isinstance(effect, Multicast):
                    receivers = len(effect.to)
                tally.datagrams_out += receivers
                tally.bytes_out += receivers * wire_size(effect.packet)
            case Deliver():
                self._deliver(process, effect, now)
            case Retract(after):
                row = self._row(process, EventKind.RETRACTED, now)
                row.first_ts = after + 1
                self._add(row)
            case LevelReached(majority, stable):
                row = self._row(process, EventKind.LEVEL, now)
                row.first_ts = majority
                row.detail = f"stable {stable}"
                self._add(row)
            case InstallView(ts, chain, view, _, locks_only):
                row = self._row(process, EventKind.VIEW, now)
                row.chain = chain
                row.view = view.id
                row.first_ts = ts
                row.detail = "locks only" if locks_only else describe(view)
                self._add(row)
            case Abandoned(first_seq, count, _):
                row = self._row(process, EventKind.ABANDONED, now)
                row.source = process.member.site
                row.first_seq = first_seq
                row.count = count
                self._add(row)
            case EndMembership(ending):
                row = self._row(process, EventKind.ENDED, now)
                row.detail = ending.name.lower()
                self._add(row)
            case _:
                pass

    def _deliver(self, process: "Process", effect: Deliver, now: int) -> None:
        for delivery in effect.deliveries:
            row = self._row(process, EventKind.DELIVERED, now)
            row.chain = effect.chain or row.chain
            row.view = effect.view
            row.first_ts = delivery.first_ts or None
            row.count = len(delivery.messages)
            row.source = delivery.source
            row.first_seq = delivery.first_seq
            row.qos = delivery.qos
            row.detail = delivery.reached.name.lower()
            self._tallies[process.member.boot].delivered += len(delivery.messages)
            self._add(row)

    def on_settled(self, process: "Process", now: int) -> None:
        tally = self._tallies[process.member.boot]
        if now >= tally.due:
            tally.due = now - now % self.sample_ns + self.sample_ns
            self._add(self._sample(process, tally, now))

    def _sample(self, process: "Process", tally: _Tally, now: int) -> Row:
        site = process.engine.site
        messages, size = process.engine.submission.occupied()
        head = site.head()
        row = self._row(process, EventKind.SAMPLE, now)
        row.first_ts = head.received or None
        row.detail = msgspec.json.encode(
            {
                "datagrams_in": process.datagrams_in,
                "datagrams_out": tally.datagrams_out,
                "bytes_in": process.bytes_in,
                "bytes_out": tally.bytes_out,
                "submitted": tally.submitted,
                "delivered": tally.delivered,
                "passes": site.queue.placed,
                "retransmitted": site.counters.get("retransmissions", 0),
                "nacks": site.counters.get("nacks sent", 0),
                "window_messages": messages,
                "window_bytes": size,
                "buffered_slots": max(head.received - head.stable, 0),
                "backlog_bytes": site.backlog,
                "waiting": process.replica.waiting,
            }
        ).decode()
        return row

    def on_applied(self, process: "Process", ts: int, digest: bytes, now: int) -> None:
        if self._applied is not None and self._applied.site != process.member.site:
            self._write_applied()
        row = self._row(process, EventKind.APPLIED, now)
        row.first_ts = ts
        row.digest = digest
        self._applied = row

    def on_restored(self, process: "Process", donor: "Process", now: int) -> None:
        row = self._row(process, EventKind.RESTORED, now)
        row.first_ts = process.replica.ts
        row.source = donor.member.site
        row.digest = process.replica.digest
        self._add(row)

    def on_crash(self, process: "Process", now: int) -> None:
        self._add(self._row(process, EventKind.CRASHED, now))

    def finish(self, cluster: "Cluster", now: int) -> None:
        self._write_applied()
        self.recorder.close()

    def _add(self, row: Row) -> None:
        self._write_applied()
        self.recorder.add(row)

    def _write_applied(self) -> None:
        if self._applied is not None:
            self.recorder.add(self._applied)
            self._applied = None

    def _row(self, process: "Process", event: EventKind, now: int) -> Row:
        member = process.member
        return Row(
            chain=process.engine.site.chain,
            site=member.site,
            boot=member.boot,
            event=event,
            mono_ns=now,
            wall_ns=now,
            view=None if process.view is None else process.view.id,
        )


def describe(view: View) -> str:
    """A view in one line: ``members 1=s1 2=s2; voters 1 2; ring 2 1``."""
    members = " ".join(f"{member.site}={member.address}" for member in view.members)
    voters = " ".join(str(site) for site in view.electorate)
    ring = " ".join(str(site) for site in view.ring)
    return f"members {members}; voters {voters}; ring {ring}"
