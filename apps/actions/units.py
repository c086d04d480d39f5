"""Who competes with whom, who waits for whom, what is decided together?

*Places.* Whatever is in a queue has a place, a number that grows. Of two that compete the lower place goes
first, at every site the same. Nobody waits for a place behind its own, so there is no deadlock.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import Any, TypeAlias

from sortedcontainers import SortedList

Keys: TypeAlias = tuple[str, ...] | None


class Queue:
    """One site's. ``keys``: what somebody touches there; None, everything."""

    def __init__(self) -> None:
        self._places: Any = SortedList()
        self._wholes: Any = SortedList()  # of those that touch everything
        self._keys: dict[str, OrderedDict[int, None]] = {}

    def __len__(self) -> int:
        return len(self._places)

    def add(self, place: int, keys: Keys) -> None:
        """A place behind all others."""
        self._places.add(place)
        if keys is None:
            self._wholes.add(place)
            return
        for key in keys:
            self._keys.setdefault(key, OrderedDict())[place] = None

    def remove(self, place: int, keys: Keys) -> None:
        self._places.remove(place)
        if keys is None:
            self._wholes.remove(place)
            return
        for key in keys:
            line = self._keys[key]
            del line[place]
            if not line:
                del self._keys[key]

    def competing(self, keys: Keys) -> Iterator[int]:
        """All who are here and compete with that, perhaps more than once."""
        if keys is None:
            yield from self._places
            return
        yield from self._wholes
        for key in keys:
            yield from self._keys.get(key, ())

    def is_first(self, place: int, keys: Keys) -> bool:
        """Nobody who competes with it goes before it."""
        if keys is None:
            return bool(self._places[0] == place)
        if self._wholes and self._wholes[0] < place:
            return False
        return all(next(iter(self._keys[key])) == place for key in keys)

    def ahead(self, place: int, keys: Keys) -> Iterator[int]:
        """The foremost of those that it waits for; each of them waits for nobody else among these keys."""
        if keys is None:
            if self._places[0] < place:
                yield self._places[0]
            return
        if self._wholes and self._wholes[0] < place:
            yield self._wholes[0]
        for key in keys:
            first = next(iter(self._keys[key]))
            if first < place:
                yield first

    def behind(self, keys: Keys) -> Iterator[int]:
        """Who may be first now that somebody with these keys has gone; more than a few only if those touched
        everything, then by ``between``."""
        for key in keys or ():
            line = self._keys.get(key)
            if line is not None:
                yield next(iter(line))
        if self._wholes and self._wholes[0] == self._places[0]:
            yield self._wholes[0]

    def waiting_for(self, place: int, keys: Keys) -> Iterator[int]:
        """All that compete with it and go behind it, perhaps more than once."""
        if keys is None:
            yield from self._places.irange(place, None, (False, True))
            return
        yield from self._wholes.irange(place, None, (False, True))
        for key in keys:
            yield from (each for each in self._keys[key] if each > place)

    def between(self, low: int) -> Iterator[int]:
        """Places from ``low`` on, up to the next that touches everything; none if one does before."""
        at = self._wholes.bisect_left(low)
        if at:
            return iter(())
        high = self._wholes[at] if at < len(self._wholes) else None
        places: Iterator[int] = self._places.irange(low, high, (True, False))
        return places


class Parked:
    """Requests whose dependencies are not all requested. ``lacking``: for each, those of them that have no
    place. ``wanted``: who is parked for whom."""

    def __init__(self) -> None:
        self.lacking: dict[str, tuple[str, ...]] = {}
        self.wanted: dict[str, dict[str, None]] = {}

    def __len__(self) -> int:
        return len(self.lacking)

    def who_wants(self, action: str) -> tuple[str, ...]:
        return tuple(self.wanted.get(action, ()))

    def add(self, action: str, lacking: tuple[str, ...]) -> None:
        self.lacking[action] = lacking
        for each in lacking:
            self.wanted.setdefault(each, {})[action] = None

    def remove(self, action: str) -> None:
        for each in self.lacking.pop(action, ()):
            wanted = self.wanted[each]
            del wanted[action]
            if not wanted:
                del self.wanted[each]

    def completed_by(self, action: str, rank: Callable[[str], int]) -> list[tuple[str, ...]]:
        """``action`` was the last to be parked. Gives who is complete now, as units, dependencies first, else
        by rank. They are parked no more."""
        concerned = {action: None}
        ahead = [action]
        while ahead:
            for dependent in self.wanted.get(ahead.pop(), ()):
                if dependent not in concerned:
                    concerned[dependent] = None
                    ahead.append(dependent)
        # Whoever lacks somebody else lacks what is not requested, for else it would not be parked.
        lost = [each for each in concerned if any(d not in concerned for d in self.lacking[each])]
        while lost:
            each = lost.pop()
            if each in concerned:
                del concerned[each]
                lost += self.wanted.get(each, ())
        edges = {each: self.lacking[each] for each in concerned}
        for each in concerned:
            self.remove(each)
        for each in concerned:  # who still lacks another one does not lack this one any more
            for dependent in self.wanted.pop(each, ()):
                left = tuple(other for other in self.lacking[dependent] if other != each)
                self.lacking[dependent] = left
        return in_order(edges, rank)


def in_order(edges: dict[str, tuple[str, ...]], rank: Callable[[str], int]) -> list[tuple[str, ...]]:
    """Those that depend on each other together, in the order of their ranks; then dependencies first, and who
    is free to choose by the lowest rank within."""
    units = [tuple(sorted(unit, key=rank)) for unit in circles(edges)]
    number = {each: at for at, unit in enumerate(units) for each in unit}
    needs = [
        dict.fromkeys(number[d] for each in unit for d in edges[each] if number[d] != at)
        for at, unit in enumerate(units)
    ]
    dependents: list[list[int]] = [[] for _ in units]
    for at, need in enumerate(needs):
        for each in need:
            dependents[each].append(at)
    free = [(rank(units[at][0]), at) for at, need in enumerate(needs) if not need]
    heapify(free)
    ordered: list[tuple[str, ...]] = []
    while free:
        _, at = heappop(free)
        ordered.append(units[at])
        for dependent in dependents[at]:
            del needs[dependent][at]
            if not needs[dependent]:
                heappush(free, (rank(units[dependent][0]), dependent))
    return ordered


def circles(edges: dict[str, tuple[str, ...]]) -> Iterable[list[str]]:
    """Strongly connected components (Tarjan), without recursion: chains may be long."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: dict[str, None] = {}
    for root, own in edges.items():
        work = [(root, iter(own))] if root not in index else []
        while work:
            node, rest = work[-1]
            if node not in index:
                index[node] = low[node] = len(index)
                stack.append(node)
                on_stack[node] = None
            for other in rest:
                if other not in index:
                    work.append((other, iter(edges[other])))
                    break
                if other in on_stack:
                    low[node] = min(low[node], index[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    circle = []
                    while node in on_stack:
                        circle.append(stack.pop())
                        del on_stack[circle[-1]]
                    yield circle
