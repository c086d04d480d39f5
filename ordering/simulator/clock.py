"""Virtual time: a heap of what happens when."""

import heapq
from collections.abc import Callable

Action = Callable[[], object]


class Clock:
    """Events in time order; equal times in order of scheduling, so nothing depends on chance."""

    def __init__(self) -> None:
        self.now = 0
        self._heap: list[tuple[int, int, Action]] = []
        self._count = 0

    def at(self, when: int, action: Action) -> None:
        self._count += 1
        heapq.heappush(self._heap, (max(when, self.now), self._count, action))

    def after(self, delay: int, action: Action) -> None:
        self.at(self.now + delay, action)

    def run_until(self, end: int) -> None:
        heap = self._heap
        while heap and heap[0][0] <= end:
            when, _, action = heapq.heappop(heap)
            self.now = when
            action()
        self.now = max(self.now, end)
