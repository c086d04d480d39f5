"""Not the same again at once (R16): retransmissions, last words to outsiders, questions to other chains."""

from collections.abc import Hashable


class Throttle:
    """When something was last done, by key. Bounded: when it is full it starts anew."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._last: dict[Hashable, int] = {}

    def __len__(self) -> int:
        return len(self._last)

    def allows(self, key: Hashable, now: int, gap: int) -> bool:
        """Whether ``key`` was not done within ``gap``; if so it counts as done now."""
        last = self._last.get(key)
        if last is not None and now - last < gap:
            return False
        if len(self._last) > self._most:
            self._last.clear()
        self._last[key] = now
        return True
