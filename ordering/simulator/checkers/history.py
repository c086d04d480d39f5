"""What each process was told of the total order, and what of it is final.

Several checkers judge the same thing: the messages and views that can no longer be taken back. The
bookkeeping for that is here, once, so that a checker states its claim and little else.

A delivery with a timestamp *waits* until it is *final* at its process: ``LevelReached.majority``
covers it, or it (or something after it) was delivered at MAJORITY or above, or a view was installed
behind it. A ``Retract`` makes the deliveries above it *void*, and they must all still be waiting.

A message is delivered in the packet it was sent in, and packets are never cut anew; so a delivery,
named by its first timestamp, is compared as a whole.
"""

from collections import deque
from typing import TYPE_CHECKING, Final

from ordering.effects import Deliver, Delivery, Effect, InstallView, LevelReached, Retract
from ordering.qos import Level
from ordering.simulator.checkers.base import Checker

if TYPE_CHECKING:
    from ordering.simulator.process import Process

TELLS_OF_ORDER: Final = frozenset({Deliver, LevelReached, Retract, InstallView})


class Log:
    """What one process was told."""

    __slots__ = (
        "chain",
        "claimed",
        "first_view",
        "floor",
        "home",
        "last_final",
        "last_ts",
        "majority",
        "view",
        "waiting",
    )

    def __init__(self) -> None:
        self.chain = 0  # the one it is in
        self.home = 0  # the one whose views it was told: behind, while it takes over a history
        self.floor = 0  # up to here it has the history only as a state
        self.first_view: InstallView | None = None
        self.view: InstallView | None = None
        self.majority = 0  # the last LevelReached
        self.claimed = 0  # last slot delivered at MAJORITY or above, or taken by a view
        self.last_ts = 0  # last slot told of and not taken back
        self.last_final = 0  # last slot of the last final message or view
        self.waiting: deque[Delivery] = deque()

    @property
    def start(self) -> int:
        """The slot of the first view, or of the state that came later: no history before it."""
        return max(self.floor, self.first_view.ts if self.first_view is not None else 0)


class Step:
    """What one effect changed: what is now final (in order), what is void, what makes no sense."""

    __slots__ = ("final", "log", "problems", "void")

    def __init__(self, log: Log) -> None:
        self.log = log
        self.final: list[Delivery | InstallView] = []
        self.void: list[Delivery] = []
        self.problems: list[str] = []


def _began_at(process: "Process") -> int:
    """The slot behind which a process is told everything: its seat, or where its disk's log begins."""
    site = process.engine.site
    base = process.disk.ledger.base if site.config.durable else None
    return max(site.queue.started_at, 0 if base is None else base.ts)


def last_ts(delivery: Delivery) -> int:
    return delivery.first_ts + len(delivery.messages) - 1


class History:
    """The logs of all processes. Checkers that share a history pay for it once."""

    def __init__(self) -> None:
        self.logs: dict[int, Log] = {}
        # Who was told something at MAJORITY and still waits for the LevelReached that covers it.
        self.unproven: dict[int, Log] = {}
        self._effect: Effect | None = None
        self._process: Process | None = None
        self._step = Step(Log())

    def observe(self, process: "Process", effect: Effect) -> Step:
        """Take in one effect; every further checker that shows the same one gets the same answer."""
        if effect is self._effect and process is self._process:
            return self._step
        log = self.logs.get(process.key)
        if log is None:
            log = self.logs[process.key] = Log()
        step = Step(log)
        if log.view is not None:
            log.chain = process.engine.site.chain  # a fork makes final what was not so in its chain
        match effect:
            case Deliver():
                log.chain = effect.chain or log.chain
                self._deliver(step, effect)
            case LevelReached(majority, _):
                if majority < log.majority:
                    step.problems.append(f"the majority level went back from {log.majority} to {majority}")
                log.majority = max(log.majority, majority)
                self._settle(step)
            case Retract(after):
                self._retract(step, after)
            case InstallView():
                began_at = _began_at(process)
                if log.first_view is None and began_at >= effect.ts:
                    log.floor = began_at  # a joiner whose NewList was collected begins behind it
                self._install(step, effect)
            case _:
                pass
        if log.claimed > log.majority:
            self.unproven[process.key] = log
        elif self.unproven:
            self.unproven.pop(process.key, None)
        self._effect, self._process, self._step = effect, process, step
        return step

    def restart(self, process: "Process") -> bool:
        """A member that was away for too long takes over a state: it goes on from there."""
        position = process.engine.transfer.wanted
        if position is None:
            return False
        log = self.logs.setdefault(process.key, Log())
        log.floor = position.ts
        return True

    def _deliver(self, step: Step, effect: Deliver) -> None:
        log = step.log
        ordered = False
        for delivery in effect.deliveries:
            if not delivery.first_ts:
                continue
            ordered = True
            if delivery.first_ts <= log.last_ts:
                step.problems.append(f"slot {delivery.first_ts} was delivered after slot {log.last_ts}")
            log.last_ts = last_ts(delivery)
            log.waiting.append(delivery)
            if delivery.reached >= Level.MAJORITY:
                log.claimed = max(log.claimed, log.last_ts)
        if ordered:
            if log.view is None:
                step.problems.append(f"slot {effect.deliveries[0].first_ts} was delivered before any view")
            self._settle(step)

    def _settle(self, step: Step) -> None:
        """Move what has become final out of the waiting line."""
        log = step.log
        waiting = log.waiting
        bound = max(log.majority, log.claimed)
        while waiting and last_ts(waiting[0]) <= bound:
            delivery = waiting.popleft()
            log.last_final = last_ts(delivery)
            step.final.append(delivery)

    def _retract(self, step: Step, after: int) -> None:
        log = step.log
        if after < max(log.majority, log.claimed):
            step.problems.append(f"slots above {after} were retracted, final up to {log.majority}")
        while log.waiting and last_ts(log.waiting[-1]) > after:
            step.void.append(log.waiting.pop())
        log.last_ts = min(log.last_ts, after)

    def _install(self, step: Step, install: InstallView) -> None:
        log = step.log
        if install.ts <= log.last_ts:
            step.problems.append(f"the view at slot {install.ts} was installed after slot {log.last_ts}")
        if log.first_view is None:
            log.first_view = install
            log.home = install.chain
        if not install.view.id.revision:
            log.home = install.chain
        log.chain = install.chain
        log.view = install
        log.claimed = max(log.claimed, install.ts)
        self._settle(step)
        log.last_ts = log.last_final = install.ts
        step.final.append(install)


class OrderChecker(Checker):
    """A checker of the total order: sees each message and each view when it is final."""

    def __init__(self, history: History | None = None) -> None:
        super().__init__()
        self.history = history if history is not None else History()
        self.healed_at: int | None = None

    def on_effect(self, process: "Process", effect: Effect, now: int) -> None:
        if type(effect) in TELLS_OF_ORDER:
            step = self.history.observe(process, effect)
            self.on_step(process, step, effect, now)

    def on_restored(self, process: "Process", donor: "Process", now: int) -> None:
        if self.history.restart(process):
            self.on_restart(process)

    def on_restart(self, process: "Process") -> None:
        """The process' history has a gap: what comes next does not follow from what was last."""

    def on_step(self, process: "Process", step: Step, effect: Effect, now: int) -> None:
        """One effect about the order; the default hands on what it made final."""
        for item in step.final:
            if type(item) is Delivery:
                self.on_final(process, step.log, item, now)
            else:
                assert type(item) is InstallView
                self.on_final_view(process, step.log, item, now)

    def on_final(self, process: "Process", log: Log, delivery: Delivery, now: int) -> None:
        """These messages are final at this process."""

    def on_final_view(self, process: "Process", log: Log, install: InstallView, now: int) -> None:
        """This view is final at this process, as every view is that it installs."""
