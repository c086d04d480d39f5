"""From the engine's effects to the executor: only what a majority holds, in the order of the slots (R10)."""

from collections import deque
from collections.abc import Iterator
from typing import TypeAlias

from ordering.effects import Deliver, Delivery, Effect, InstallView, LevelReached, Retract, Tick
from rsm.executor import Executor

_Waiting: TypeAlias = tuple[int, int, Delivery | InstallView | Tick]  # its first slot, and its bytes


class Intake:
    """Holds back what is not final. Until the state is here (``ready``) everything waits, and while a picture
    of it is taken (``hold``)."""

    def __init__(self, executor: Executor, *, ready: bool) -> None:
        self.executor = executor
        self.ready = ready
        self.majority = 0
        self.stable = 0
        self.backlog = 0  # bytes of what waits
        self.forgotten = 0  # what was delivered up to this slot is not here any more
        self._holds = 0
        self._waiting: deque[_Waiting] = deque()

    @property
    def waiting(self) -> int:
        """Deliveries, views and ticks that are not executed yet."""
        return len(self._waiting)

    def hear(self, effect: Effect) -> None:
        match effect:
            case Deliver(_, deliveries):
                for each in deliveries:
                    if each.first_ts:
                        size = sum(map(len, each.messages))
                        self._waiting.append((each.first_ts, size, each))
                        self.backlog += size
            case InstallView() | Tick():
                self._waiting.append((effect.ts, 0, effect))
            case LevelReached(majority, stable):
                self.majority, self.stable = majority, stable
            case Retract(after):
                while self._waiting and self._waiting[-1][0] > after:
                    self.backlog -= self._waiting.pop()[1]

    @property
    def runs(self) -> bool:
        return self.ready and not self._holds

    @property
    def is_current(self) -> bool:
        """Whether all that is final was executed."""
        return self.runs and not (self._waiting and self._waiting[0][0] <= self.majority)

    def hold(self) -> None:
        """Execute nothing until ``release``."""
        self._holds += 1

    def release(self) -> None:
        self._holds -= 1

    def forget(self) -> None:
        """Let go of what is final and waits for the state, which must have it then."""
        assert not self.ready
        while self._waiting and self._waiting[0][0] <= self.majority:
            slot, size, effect = self._waiting.popleft()
            self.backlog -= size
            self.forgotten = slot + len(effect.messages) - 1 if isinstance(effect, Delivery) else slot

    def replace(self, executor: Executor) -> None:
        """A state was taken over. What it contains and waits here is passed over when its turn comes."""
        self.executor = executor
        self.ready = True

    def run(self) -> Iterator[tuple[Delivery, list[bytes]]]:
        """Apply what is final; yields each delivery with its replies. It may be left at any of them, and be
        run again for the rest."""
        if not self.runs:
            return
        executor, waiting, majority = self.executor, self._waiting, self.majority
        while waiting and waiting[0][0] <= majority:
            _, size, effect = waiting.popleft()
            self.backlog -= size
            match effect:
                case Delivery() as delivery:
                    yield delivery, executor.deliver(delivery)
                case InstallView(ts, chain, view, time, locks_only):
                    executor.install(ts, chain, view, time, locks_only=locks_only)
                case Tick(ts, time):
                    executor.pass_slot(ts, time)
        executor.pass_slot(majority, 0)
