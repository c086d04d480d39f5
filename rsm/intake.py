"""From the engine's effects to the executor: only what a majority holds, in the order of the slots (R10)."""

from collections import deque
from collections.abc import Iterator
from typing import TypeAlias

from ordering.effects import Deliver, Delivery, Effect, InstallView, LevelReached, Retract, Tick
from rsm.executor import Executor

_Waiting: TypeAlias = Delivery | InstallView | Tick


class Intake:
    """Holds back what is not final. Until the state is here (``ready``) everything waits, and while a picture
    of it is taken (``hold``)."""

    def __init__(self, executor: Executor, *, ready: bool) -> None:
        self.executor = executor
        self.ready = ready
        self.majority = 0
        self.stable = 0
        self.backlog = 0  # bytes that came while it was held
        self._holds = 0
        self._waiting: deque[_Waiting] = deque()

    def hear(self, effect: Effect) -> None:
        match effect:
            case Deliver(_, deliveries):
                self._waiting.extend(each for each in deliveries if each.first_ts)
                if self._holds:
                    self.backlog += sum(sum(map(len, each.messages)) for each in deliveries)
            case InstallView() | Tick():
                self._waiting.append(effect)
            case LevelReached(majority, stable):
                self.majority, self.stable = majority, stable
            case Retract(after):
                while self._waiting and _slot(self._waiting[-1]) > after:
                    self._waiting.pop()

    @property
    def runs(self) -> bool:
        """Whether what is final is executed, and the state is as far as was delivered."""
        return self.ready and not self._holds

    def hold(self) -> None:
        """Execute nothing until ``release``."""
        self._holds += 1

    def release(self) -> None:
        self._holds -= 1
        if not self._holds:
            self.backlog = 0

    def replace(self, executor: Executor) -> None:
        """A state was taken over. What it contains and waits here is passed over when its turn comes."""
        self.executor = executor
        self.ready = True

    def run(self) -> Iterator[tuple[Delivery, list[bytes]]]:
        """Apply what is final; yields each delivery with its replies."""
        if not self.runs:
            return
        executor, waiting, majority = self.executor, self._waiting, self.majority
        while waiting and _slot(waiting[0]) <= majority:
            match waiting.popleft():
                case Delivery() as delivery:
                    yield delivery, executor.deliver(delivery)
                case InstallView(ts, chain, view, time, locks_only):
                    executor.install(ts, chain, view, time, locks_only=locks_only)
                case Tick(ts, time):
                    executor.pass_slot(ts, time)
        executor.pass_slot(majority, 0)


def _slot(waiting: _Waiting) -> int:
    return waiting.first_ts if isinstance(waiting, Delivery) else waiting.ts
