"""A service that is only arithmetic, its clients, and their time: to see what admission does with them."""

from collections import Counter
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import NamedTuple

from api.admission import Admission, Standing
from tests.api.gateways import settings_of

FLOOR = 64  # below what the services here are full with


class Kind(NamedTuple):
    """A request takes ``alone_s`` by itself, and keeps all others waiting for ``each_s``."""

    name: str = "PUT"
    alone_s: float = 0.001
    each_s: float = 0.0001


class Client:
    def __init__(self, kind: Kind, patience: float | None) -> None:
        self.kind = kind
        self.patience = patience  # times Retry-After; None: it repeats at once
        self.standing = Standing()
        self.served: list[tuple[float, float]] = []  # when, and how long it took
        self.refused = 0
        self.held_s = 0.0


class Service:
    """Virtual time. Every client has one request under way, or stays away."""

    def __init__(self, seed: int = 1, **settings: int) -> None:
        self.now = 0.0
        self.rng = Random(seed)
        chosen = settings_of(**{"requests_min": FLOOR, **settings})
        self.admission = Admission(chosen, lambda: self.now)
        self.pauses: list[tuple[float, float]] = []
        self.slower = 1.0
        self.clients: list[Client] = []
        self.limits: list[tuple[float, int]] = []
        self.comebacks: Counter[int] = Counter()  # refusals told, by second
        self._events: list[tuple[float, int, Client, tuple[int, float] | None]] = []
        self._order = count()
        self._free_at = 0.0

    def add(self, number: int, kind: Kind | None = None, patience: float | None = None) -> list[Client]:
        made = [Client(kind or Kind(), patience) for _ in range(number)]
        for client in made:
            self._at(self.now + self.rng.random() * 0.001, client)
        self.clients += made
        return made

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self._events and self._events[0][0] <= until:
            self.now, _, client, ends = heappop(self._events)
            if ends is None:
                self._ask(client)
            else:
                self._end(client, *ends)
        self.now = until

    def _at(self, when: float, client: Client, ends: tuple[int, float] | None = None) -> None:
        heappush(self._events, (when, next(self._order), client, ends))

    def _ask(self, client: Client) -> None:
        place = self.admission.enter(client.standing)
        self.limits.append((self.now, self.admission.limit))
        if place:
            self._at(self._ready(client.kind), client, (place, self.now))
            return
        held = self.admission.refuse(client.standing)
        client.refused += 1
        client.held_s += held
        told_at = self.now + held
        self.comebacks[int(told_at)] += 1
        stays = 0.0
        if client.patience is not None:
            stays = client.patience * (1.0 if held else client.standing.until - self.now)
        self._at(told_at + stays + 0.0002, client)

    def _ready(self, kind: Kind) -> float:
        """One after the other takes ``each_s`` of the service, and ``alone_s`` of its own."""
        noise = self.rng.uniform(0.8, 1.2) * self.slower
        self._free_at = max(self._free_at, self.now) + kind.each_s * noise
        ready = self._free_at + kind.alone_s * noise
        for begin, end in self.pauses:
            if begin <= ready < end:
                self._free_at = max(self._free_at, end)
                ready = end
        return ready

    def _end(self, client: Client, place: int, began: float) -> None:
        self.admission.leave(place, client.kind.name, self.now - began)
        client.served.append((self.now, self.now - began))
        self._at(self.now + 0.0002, client)

    # -- what came of it -------------------------------------------------------------------------

    def rate(self, since: float) -> float:
        served = sum(when >= since for client in self.clients for when, _ in client.served)
        return served / (self.now - since)

    def waits(self, since: float, clients: list[Client] | None = None) -> list[float]:
        chosen = self.clients if clients is None else clients
        return sorted(took for client in chosen for when, took in client.served if when >= since)

    def limits_since(self, since: float) -> list[int]:
        return [limit for when, limit in self.limits if when >= since]
