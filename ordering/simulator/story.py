"""One short story, played by the real engine: a token site dies, the ring goes on, the site comes back.

The story only decides when to submit, to kill and to restart. What is told in between are the lines of a
narrator, so every one of them is an event or an effect of an engine.
"""

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from ordering.config import MS, Config
from ordering.errors import InvariantViolation
from ordering.qos import MAJORITY
from ordering.simulator.checkers import make_checkers
from ordering.simulator.checkers.base import Checker
from ordering.simulator.cluster import Cluster
from ordering.simulator.narrator import Line, Narrator, Topic
from ordering.simulator.process import Process
from ordering.state import State

SITES: Final = ("s1", "s2", "s3")
STEP: Final = MS
PATIENCE: Final = 10_000 * MS

ALL: Final = frozenset(Topic)
CALM: Final = ALL - {Topic.TOKEN}


class Chapter(msgspec.Struct, frozen=True):
    """A heading, and what to look for below it."""

    title: str
    text: str


class Standing(msgspec.Struct, frozen=True):
    """Where one replica is at the end."""

    site: str
    view: str
    applied: int
    digest: str


class Finale(msgspec.Struct, frozen=True):
    """How it ended. ``violations`` is empty if every checker is content and the story came to its end."""

    standings: tuple[Standing, ...]
    messages: int
    violations: tuple[str, ...]

    @property
    def is_happy(self) -> bool:
        digests = {(standing.applied, standing.digest) for standing in self.standings}
        return not self.violations and len(self.standings) == len(SITES) and len(digests) == 1


Scene = Chapter | Line | Finale


class StuckStory(Exception):
    """The group did not get where the story wanted it within its patience."""


class Story:
    """Plays once. ``scenes`` yields everything in the order in which it happens."""

    def __init__(self, seed: int = 1) -> None:
        self._lines: list[Line] = []
        self._topics = CALM
        self._sent = 0
        self._checkers: list[Checker] = [*make_checkers(), Narrator(self._hear)]
        config = Config(group="demo", founders=SITES, contacts=SITES)
        self._cluster = Cluster(config, seed, self._checkers)

    def scenes(self) -> Iterator[Scene]:
        broken: list[str] = []
        try:
            yield from self._birth()
            yield from self._orders()
            yield from self._kill()
            yield from self._go_on()
            yield from self._return()
            yield from self._finish()
        except (InvariantViolation, StuckStory) as error:
            yield from self._drain()
            broken.append(f"{type(error).__name__}: {error}")
        yield Finale(
            self._standings(), self._sent, (*broken, *(v for c in self._checkers for v in c.violations))
        )

    # -- chapters --------------------------------------------------------------------------------

    def _birth(self) -> Iterator[Scene]:
        yield Chapter(
            "Birth",
            "Three founders find each other. One asks for promises and proposes the first view; all accept.",
        )
        for address in SITES:
            self._cluster.start(address, founder=True)
        yield from self._until("all have a view", lambda: all(p.view is not None for p in self._live()))
        yield from self._run(50)

    def _orders(self) -> Iterator[Scene]:
        yield Chapter(
            "Ordering",
            "Each site submits. Who has the token gives timestamps and passes the token on; a message is"
            " delivered once a majority holds it. All sites deliver the same messages in the same order.",
        )
        self._topics = ALL
        for address in SITES:
            self._submit(address)
        yield from self._until_applied()
        yield from self._run(20)

    def _kill(self) -> Iterator[Scene]:
        yield Chapter(
            "The token site dies",
            "The site that holds the token is killed, and with it the token. The others submit, get no order,"
            " suspect it, agree in a poll, and decide a new ring. The dead site stays a voter (external):"
            " majorities are still counted out of three.",
        )
        self._topics = CALM
        yield from self._until("a site rests with the token", lambda: self._token_site() is not None)
        victim = self._token_site()
        assert victim is not None
        self._victim = victim.address
        self._cluster.crash(victim.address)
        for process in self._live():
            self._submit(process.address)
        yield from self._until("a ring without the dead site", lambda: self._ring_size() == 2)
        yield from self._until_applied()

    def _go_on(self) -> Iterator[Scene]:
        yield Chapter(
            "Writes go on", "Two of three are a majority: nothing else changes for the application."
        )
        for process in self._live():
            self._submit(process.address)
        yield from self._until_applied()
        yield from self._run(50)

    def _return(self) -> Iterator[Scene]:
        yield Chapter(
            "The site comes back",
            "It lost its memory, so it comes as a new site: a learner, which takes the place of the old one."
            " It gets the state from a voter, and an ordered change promotes it to a voter.",
        )
        self._cluster.restart(self._victim)
        joiner = self._cluster.processes[self._victim]
        yield from self._until("the joiner has the state", lambda: joiner.has_state)
        yield from self._until("the joiner is a voter", lambda: self._is_voter_everywhere(joiner))
        for address in SITES:
            self._submit(address)
        yield from self._until_applied()

    def _finish(self) -> Iterator[Scene]:
        now = self._cluster.clock.now
        for checker in self._checkers:
            checker.on_healed(self._cluster, now)
        self._lines.clear()
        yield from self._run(500)
        for checker in self._checkers:
            checker.finish(self._cluster, self._cluster.clock.now)
        self._lines.clear()

    # -- driving ---------------------------------------------------------------------------------

    def _hear(self, line: Line) -> None:
        if line.topic in self._topics:
            self._lines.append(line)

    def _drain(self) -> Iterator[Line]:
        lines, self._lines[:] = list(self._lines), []
        yield from lines

    def _run(self, milliseconds: int) -> Iterator[Scene]:
        clock = self._cluster.clock
        clock.run_until(clock.now + milliseconds * MS)
        yield from self._drain()

    def _until(self, what: str, is_so: Callable[[], bool]) -> Iterator[Scene]:
        clock = self._cluster.clock
        end = clock.now + PATIENCE
        while not is_so():
            if clock.now >= end:
                raise StuckStory(f"waited {PATIENCE // MS} virtual ms until {what}")
            clock.run_until(clock.now + STEP)
            yield from self._drain()
        yield from self._drain()

    def _until_applied(self) -> Iterator[Scene]:
        """Until every live replica has applied everything, and the ring is at rest."""
        yield from self._until("all messages are applied", self._is_level)

    def _is_level(self) -> bool:
        sites = [process.engine.site for process in self._live()]
        ends = {(process.replica.ts, process.replica.digest) for process in self._live()}
        waiting = any(process.engine.submission.outbox for process in self._live())
        return (
            len(ends) == 1
            and not waiting
            and all(s.stability.majority >= s.queue.last_real_ts for s in sites)
        )

    def _submit(self, address: str) -> None:
        self._sent += 1
        message = b"write %d" % self._sent
        refusal = self._cluster.submit(self._cluster.processes[address], (message,), MAJORITY)
        if refusal is not None:
            raise StuckStory(f"{address} refused {message!r}: {refusal}")

    # -- looking ---------------------------------------------------------------------------------

    def _live(self) -> list[Process]:
        return self._cluster.live()

    def _token_site(self) -> Process | None:
        return next((p for p in self._live() if p.engine.state is State.TOKEN_SITE), None)

    def _ring_size(self) -> int:
        return min(len(p.view.ring) if p.view is not None else 0 for p in self._live())

    def _is_voter_everywhere(self, joiner: Process) -> bool:
        return all(p.view is not None and joiner.member.site in p.view.electorate for p in self._live())

    def _standings(self) -> tuple[Standing, ...]:
        return tuple(
            Standing(
                site=f"{process.address}#{process.member.site}",
                view=str(process.view.id) if process.view is not None else "-",
                applied=process.replica.ts,
                digest=process.replica.digest.hex(),
            )
            for process in self._live()
        )
