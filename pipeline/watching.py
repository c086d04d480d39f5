"""What is worth an alert, besides broken rules? From a few sums of each micro-batch, and what is remembered.

===============  =========  =========================================================================
``kind``         severity   said when
===============  =========  =========================================================================
``halted``       error      a replica stopped by itself; ``crashed`` likewise
``silent``       error      a replica tells nothing for ``silence_s``, while others of its chain go on
``no-primary``   error      messages were submitted, and nobody delivered any for ``stall_s``
``gap``          error      a recorder left rows out, or files were passed over
``lag``          warning    a replica's last slot is ``lag_slots`` behind that of the furthest
``surge``        warning    a replica sends again, or asks for, ``surge_per_s`` messages a second
``view-change``  warning    the first delivery in a new epoch, and for how long nobody had delivered
``ended``        note       a membership is over
``started``      note       a process begins
``resumed``      note       one that was silent, behind or stalled is not any more
===============  =========  =========================================================================

Times are those of the rows: what is said does not depend on when a stream reads them. What lasts is said
when it begins, and again only after it has ended. A replica whose clock is behind by more than ``silence_s``
is called silent once; by how much it is behind is remembered when it tells again.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from pipeline.files import ROW_BITS

SECOND_NS: Final = 1_000_000_000
OVER: Final = ("ended", "halted", "crashed")
TOLD: Final = ("started", "gap", *OVER)
_SEVERITY: Final = {"ended": "note", "started": "note"}
_EPOCHS_KEPT: Final = 4


class Limits(NamedTuple):
    silence_s: float
    stall_s: float
    lag_slots: int
    surge_per_s: float


class Alert(NamedTuple):
    """``key``: by it the same is said once."""

    severity: str
    kind: str
    chain: int | None
    site: int | None
    first_ts: int | None
    words: str
    key: str


class Sums(NamedTuple):
    """What a micro-batch has of one process in one epoch. ``delivered_…``: clocks of its first and last
    delivery. ``sample``: counters (retransmitted + nacks) of the last one, and its time."""

    recorder: str
    chain: int
    site: int
    boot: int
    epoch: int | None
    rows: int
    position: int
    first_wall_ns: int
    wall_ns: int
    slot: int | None
    delivered_first_ns: int | None
    delivered_last_ns: int | None
    submitted_ns: int | None
    sample: int | None
    sample_ns: int | None
    files: Sequence[int]  # their numbers


class Notable(NamedTuple):
    """A row as it was recorded: one of ``TOLD``. ``rows``: that are missing before it."""

    recorder: str
    position: int
    chain: int
    site: int
    boot: int
    event: str
    rows: int | None
    wall_ns: int
    detail: str | None


class Lost(NamedTuple):
    """What a stream passed over: from a row of a file on."""

    recorder: str
    number: int
    row: int
    words: str


class Process(msgspec.Struct, kw_only=True):
    """A site under one boot, as far as it was read. ``skew_ns``: how far its clock may be behind the newest
    while it tells; learned when it was taken for silent and told again. ``is_back``: just now."""

    recorder: str
    chain: int
    site: int
    boot: int
    rows: int = 0
    position: int = -1
    wall_ns: int = 0
    slot: int = -1
    sample: int | None = None
    sample_ns: int = 0
    is_over: bool = False
    is_silent: bool = False
    is_back: bool = False
    skew_ns: int = 0
    is_behind: bool = False
    is_surging: bool = False


class Chain(msgspec.Struct, kw_only=True):
    """``epochs``: first and last delivery of anybody in the newest ones. ``waiting_ns``: since when a message
    that was submitted waits for a delivery; 0: none does."""

    epochs: dict[int, list[int]] = {}
    waiting_ns: int = 0
    delivered_ns: int = 0
    is_stalled: bool = False


class State(msgspec.Struct, kw_only=True):
    """All that is remembered: of each process that ever ran, each chain, recorder and missing file.
    ``holes``: site, boot and position from where on rows of a file are missing before."""

    inputs: list[str]
    width: int
    window_ns: int
    rows: int = 0
    newest_ns: int = 0
    number_part: int = -1
    processes: dict[str, Process] = {}
    chains: dict[int, Chain] = {}
    files: dict[str, int] = {}
    holes: list[tuple[int, int, int]] = []

    def settled(self) -> dict[int, int]:
        """The least slot of those that live, in each chain: what is below is told by all of them."""
        least: dict[int, int] = {}
        for each in self.processes.values():
            if each.chain and not each.is_over and not each.is_silent:
                least[each.chain] = min(least.get(each.chain, each.slot), each.slot)
        return least


def take(
    state: State,
    sums: Sequence[Sums],
    notable: Sequence[Notable],
    limits: Limits,
    lost: Sequence[Lost] = (),
) -> list[Alert]:
    """Moves the state on by one micro-batch."""
    alerts = [_told(each) for each in notable]
    alerts += _epochs(state, sums)
    for batch in sums:
        _advance(state, batch, alerts, limits)
    alerts += passed_over(lost)
    alerts += _missing_files(state, sums, lost)
    _end(state, notable)
    for chain in sorted(state.chains):
        alerts += _stalled(state, chain, limits)
    for process in state.processes.values():
        alerts += _lasting(state, process, limits)
    return alerts


def identity(number: int) -> str:
    """As ``rsm status`` prints it."""
    return f"{number & (1 << 64) - 1:x}"


def _name(recorder: str) -> str:
    return recorder.rpartition("/")[2]


def _key(recorder: str, site: int, boot: int) -> str:
    return f"{recorder} {site} {boot}"


def process_of(state: State, told: Sums) -> Process | None:
    return state.processes.get(_key(told.recorder, told.site, told.boot))


def _process(state: State, recorder: str, chain: int, site: int, boot: int) -> Process:
    key = _key(recorder, site, boot)
    if key not in state.processes:
        state.processes[key] = Process(recorder=recorder, chain=chain, site=site, boot=boot)
    process = state.processes[key]
    process.chain = chain or process.chain
    return process


def _told(each: Notable) -> Alert:
    words = f"{identity(each.site)}: {each.event}" + (f", {each.detail}" if each.detail else "")
    if each.event == "gap":
        words = f"{identity(each.site)}: {each.rows or 0:,} rows are missing, its recorder was behind"
    severity = _SEVERITY.get(each.event, "error")
    key = f"{each.event} {each.recorder} {each.position}"
    return Alert(severity, each.event, each.chain or None, each.site, None, words, key)


def _epochs(state: State, sums: Iterable[Sums]) -> list[Alert]:
    """Of all replicas together, so that it does not depend on which is read first."""
    began: set[tuple[int, int]] = set()
    newest = {number: max(chain.epochs, default=-1) for number, chain in state.chains.items()}
    for told in sums:
        if told.chain == 0 or told.epoch is None or told.delivered_first_ns is None:
            continue
        if told.chain in newest and told.epoch <= newest[told.chain] and process_of(state, told) is None:
            continue  # it comes back, and delivers again from its disk
        assert told.delivered_last_ns is not None
        epochs = state.chains.setdefault(told.chain, Chain()).epochs
        if told.epoch not in epochs and epochs and told.epoch > max(epochs):
            began.add((told.chain, told.epoch))
        if told.epoch in epochs or not epochs or told.epoch > min(epochs):
            known = epochs.setdefault(told.epoch, [told.delivered_first_ns, told.delivered_last_ns])
            known[0] = min(known[0], told.delivered_first_ns)
            known[1] = max(known[1], told.delivered_last_ns)
    alerts = []
    for chain, epoch in sorted(began):
        epochs = state.chains[chain].epochs
        first = epochs[epoch][0]
        before = max((known for known in epochs if known < epoch), default=None)
        if before is None:
            continue
        pause = (first - epochs[before][1]) / SECOND_NS
        words = f"epoch {before} to {epoch}: "
        words += f"nobody delivered for {pause:.3f} s" if pause >= 0 else "some delivered in both"
        key = f"view-change {chain} {epoch}"
        alerts.append(Alert("warning", "view-change", chain, None, None, words, key))
    for each in state.chains.values():
        each.epochs = {epoch: each.epochs[epoch] for epoch in sorted(each.epochs)[-_EPOCHS_KEPT:]}
    return alerts


def _advance(state: State, batch: Sums, alerts: list[Alert], limits: Limits) -> None:
    process = _process(state, batch.recorder, batch.chain, batch.site, batch.boot)
    if process.rows == 0:
        for other in state.processes.values():  # one that came back, from its disk or anew
            if other.site == batch.site and other.boot != batch.boot and other.wall_ns <= batch.wall_ns:
                other.is_over = True
                process.skew_ns = max(process.skew_ns, other.skew_ns)  # the clock is the same
    if process.is_silent and batch.wall_ns > process.wall_ns:
        process.is_silent, process.is_back = False, True
        alerts.append(_resumed(process, "tells again"))
    state.rows += batch.rows
    state.newest_ns = max(state.newest_ns, batch.wall_ns)
    process.rows += batch.rows
    process.position = max(process.position, batch.position)
    process.wall_ns = max(process.wall_ns, batch.wall_ns)
    process.slot = max(process.slot, -1 if batch.slot is None else batch.slot)
    if batch.sample is not None and batch.sample_ns is not None:
        alerts += _surge(process, batch.sample, batch.sample_ns, limits)
    if batch.chain:
        chain = state.chains.setdefault(batch.chain, Chain())
        chain.delivered_ns = max(chain.delivered_ns, batch.delivered_last_ns or 0)
        if chain.delivered_ns >= chain.waiting_ns:
            chain.waiting_ns = 0
        if chain.waiting_ns == 0 and (batch.submitted_ns or 0) > chain.delivered_ns:
            chain.waiting_ns = batch.submitted_ns or 0


def passed_over(lost: Iterable[Lost]) -> list[Alert]:
    return [
        Alert("error", "gap", None, None, None, each.words, f"lost {each.recorder} {each.number} {each.row}")
        for each in lost
    ]


def _missing_files(state: State, sums: Iterable[Sums], lost: Iterable[Lost]) -> list[Alert]:
    """Between others of the same recorder. One whose first file is not there was begun late. Of what was
    passed over that was said already."""
    seen: dict[str, set[int]] = {}
    for each in sums:
        seen.setdefault(each.recorder, set()).update(each.files)
    for passed in lost:
        told = [each for each in state.processes.values() if each.recorder == passed.recorder]
        position = (passed.number << ROW_BITS) + passed.row
        state.holes += [(each.site, each.boot, position) for each in told]
        seen.setdefault(passed.recorder, set()).add(passed.number)
    alerts = []
    for recorder in sorted(seen):
        last = state.files.get(recorder, min(seen[recorder]) - 1)
        for number in sorted(seen[recorder]):
            if number > last + 1:
                told = [each for each in state.processes.values() if each.recorder == recorder]
                state.holes += [(each.site, each.boot, number << ROW_BITS) for each in told]
                words = f"{_name(recorder)}: {number - last - 1} files before number {number} are missing"
                chain = told[-1].chain if told else None
                key = f"gap {recorder} {number}"
                alerts.append(Alert("error", "gap", chain, None, None, words, key))
            last = max(last, number)
        state.files[recorder] = last
    return alerts


def _end(state: State, notable: Iterable[Notable]) -> None:
    """Unless the same boot went on, in another chain."""
    for each in notable:
        process = _process(state, each.recorder, each.chain, each.site, each.boot)
        if each.event in OVER:
            process.is_over = process.position <= each.position


def _resumed(process: Process, words: str) -> Alert:
    key = f"resumed {words} {process.recorder} {process.boot} {process.position}"
    said = f"{identity(process.site)} {words}"
    return Alert("note", "resumed", process.chain or None, process.site, None, said, key)


def _surge(process: Process, sample: int, at_ns: int, limits: Limits) -> list[Alert]:
    before, before_ns = process.sample, process.sample_ns
    if before is not None and at_ns <= before_ns:
        return []
    process.sample, process.sample_ns = sample, at_ns
    if before is None or sample < before:
        return []
    rate = (sample - before) * SECOND_NS / (at_ns - before_ns)
    if process.is_surging:
        process.is_surging = rate > limits.surge_per_s / 2
        return []
    if rate < limits.surge_per_s:
        return []
    process.is_surging = True
    words = f"{identity(process.site)}: {rate:,.0f} messages a second are sent again or asked for"
    key = f"surge {process.recorder} {process.boot} {at_ns}"
    return [Alert("warning", "surge", process.chain or None, process.site, None, words, key)]


def _stalled(state: State, number: int, limits: Limits) -> list[Alert]:
    chain = state.chains[number]
    newest = max((each.wall_ns for each in state.processes.values() if each.chain == number), default=0)
    if chain.waiting_ns == 0:
        if not chain.is_stalled:
            return []
        chain.is_stalled = False
        key = f"resumed {number} {chain.delivered_ns}"
        return [Alert("note", "resumed", number, None, None, "messages are delivered again", key)]
    waits_ns = newest - max(chain.waiting_ns, chain.delivered_ns)
    if chain.is_stalled or waits_ns <= limits.stall_s * SECOND_NS:
        return []
    chain.is_stalled = True
    words = f"messages were submitted, and nobody has delivered any for {waits_ns / SECOND_NS:.1f} s"
    key = f"no-primary {number} {chain.waiting_ns}"
    return [Alert("error", "no-primary", number, None, None, words, key)]


def _quiet_ns(process: Process, newest_ns: int) -> int:
    """For how long it has told nothing. A clock that is behind, and goes on with the others, is no silence;
    if it is nearer than was thought, that counts from now on."""
    behind_ns = newest_ns - process.wall_ns
    process.skew_ns = behind_ns if process.is_back else min(process.skew_ns, behind_ns)
    process.is_back = False
    return behind_ns - process.skew_ns


def _lasting(state: State, process: Process, limits: Limits) -> list[Alert]:
    if process.is_over or process.chain == 0:
        return []
    others = [each for each in state.processes.values() if each.chain == process.chain]
    quiet_ns = _quiet_ns(process, max(each.wall_ns for each in others))
    if quiet_ns > limits.silence_s * SECOND_NS:
        if process.is_silent:
            return []
        process.is_silent = True
        words = f"{identity(process.site)} ({_name(process.recorder)}) tells nothing for"
        words += f" {quiet_ns / SECOND_NS:.1f} s, while others go on; its last slot is {process.slot}"
        key = f"silent {process.recorder} {process.boot} {process.position}"
        return [Alert("error", "silent", process.chain, process.site, process.slot, words, key)]
    behind = max(each.slot for each in others) - process.slot
    if process.is_behind:
        if behind > limits.lag_slots / 2:
            return []
        process.is_behind = False
        return [_resumed(process, "has caught up")]
    if behind <= limits.lag_slots or process.slot < 0:
        return []
    process.is_behind = True
    words = f"{identity(process.site)} is {behind:,} slots behind, at {process.slot}"
    key = f"lag {process.recorder} {process.boot} {process.slot}"
    return [Alert("warning", "lag", process.chain, process.site, process.slot, words, key)]
