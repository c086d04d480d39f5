"""How many requests may be under way at a time?

With ``n`` of them under way a request takes about ``a + b n``: ``a`` without load, and ``b`` for each that
is ahead of it or shares a batch with it. So ``n / (a + b n)`` are served a second, and never ``1 / b``. Where
one takes ``slowdown`` times ``a``, all but one part in ``slowdown`` of that is reached. From there on more of
them bring nothing, and everybody waits longer.

So the limit is where the *median* request takes ``slowdown`` times what its kind takes without load. A median
is not moved by a pause of the group, nor by a few requests that are dear. The limit moves by steps, each
after some rounds of requests, and only while it is reached. It begins at ``floor`` and ends at ``ceiling``.

There is no clock here: whoever asks says what time it is.
"""

from typing import Final

LIGHT: Final = 4  # so few requests under way do not wait for each other
SAMPLES: Final = 16  # that make a kind known
WINDOW_S: Final = 0.1
ROUNDS: Final = 3  # of as many requests as the limit is: a pause makes one of them slow, and not most
SHRINK: Final = 0.9
GROW: Final = 1.05
SHRINK_MORE: Final = 0.7  # where most take twice as long as they may
GROW_MORE: Final = 1.4  # where most take less than half of that
PROBE_S: Final = 1.0
PROBE_PAUSE_S: Final = 10.0
CROWDED: Final = -1  # a place among many
_DOWN: Final = 0.97  # three steps up are one down: what is followed is the lower quarter
_UP: Final = 1.01


class _Base:
    """What a kind of request takes without load: the lower quarter of these times, followed step by step, for
    where others wait as well, nothing is quite without load."""

    __slots__ = ("count", "seconds")

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0

    @property
    def is_known(self) -> bool:
        return self.count >= SAMPLES

    def note(self, seconds: float) -> None:
        self.count += 1
        if self.count == 1 or (not self.is_known and seconds < self.seconds):
            self.seconds = seconds  # the first ones find everything cold
        elif self.is_known:
            self.seconds *= _UP if seconds > self.seconds else _DOWN


class Concurrency:
    """Counts, judges, and sets the limit. ``enter`` is followed by ``leave``."""

    def __init__(self, floor: int, ceiling: int, slowdown: float) -> None:
        self.floor = min(floor, ceiling)
        self.ceiling = ceiling
        self._slowdown = slowdown
        self._limit = float(self.floor)
        self._bases: dict[str, _Base] = {}
        self.under_way = 0
        self.per_s = 0.0  # requests that were finished while the limit was reached; 0: it never was
        self._probing_until = 0.0  # 0: not probing
        self._probed = float("-inf")
        self._light = 0  # samples without load since a probe began
        self._crowds = 1  # how often there were more than few
        self._begin(0.0)

    @property
    def limit(self) -> int:
        return min(LIGHT, self.floor) if self._probing_until else int(self._limit)

    def enter(self) -> int:
        """Its place, to be given to ``leave``. 0: there is none."""
        if self.under_way >= self.limit:
            self._was_full = True
            return 0
        self.under_way += 1
        if self.under_way <= LIGHT:
            return self._crowds
        self._crowds += 1
        return CROWDED

    def leave(self, place: int, kind: str | None, seconds: float, now: float) -> None:
        """``kind``: of those alike; None if its time says nothing, because it failed, say."""
        self.under_way -= 1
        self._finished += 1
        if kind is not None:
            self._judge(kind, seconds, is_light=place == self._crowds)
        if self._probing_until:
            self._probe(now)
        elif now - self._began >= WINDOW_S:
            if not self._was_full:  # a limit that is not reached changes nothing, so nothing is learnt of it
                self._begin(now)
            elif self._finished >= ROUNDS * self._limit:
                self._step(now)

    def refused(self, now: float) -> None:
        """Somebody was. A probe ends also where those that are let in stay for long."""
        if self._probing_until:
            self._probe(now)

    def _judge(self, kind: str, seconds: float, *, is_light: bool) -> None:
        base = self._bases.get(kind)
        if base is None:
            base = self._bases[kind] = _Base()
        if is_light:
            base.note(seconds)
            self._light += 1
        if not base.is_known:
            self._unknown += 1
        else:
            share = seconds / (self._slowdown * base.seconds)  # of what it may take
            self._judged += 1
            self._above_half += share > 0.5
            self._above += share > 1
            self._above_twice += share > 2

    def _begin(self, now: float) -> None:
        self._began = now
        self._finished = 0
        self._unknown = 0
        self._judged = 0
        self._above_half = 0
        self._above = 0
        self._above_twice = 0
        self._was_full = False

    def _step(self, now: float) -> None:
        self.per_s = self._finished / (now - self._began)
        if self._unknown > self._judged:
            self._begin_probe(now)
        elif self._judged:
            self._limit = min(max(self._limit * self._factor(), self.floor), self.ceiling)
        self._begin(now)

    def _factor(self) -> float:
        most = self._judged / 2
        if self._above > most:
            return SHRINK_MORE if self._above_twice > most else SHRINK
        return GROW if self._above_half > most else GROW_MORE

    # -- a beginning under load ------------------------------------------------------------------

    def _begin_probe(self, now: float) -> None:
        """Nobody knows what a request takes without load: hardly anybody is let in until that is known."""
        if now - self._probed >= PROBE_PAUSE_S:
            self._probed = now
            self._probing_until = now + PROBE_S
            self._light = 0

    def _probe(self, now: float) -> None:
        if self._light >= SAMPLES or now >= self._probing_until:
            self._probing_until = 0.0
            self._begin(now)
