"""Exhaustive exploration of small cases: every interleaving, not a sample of them.

A state is what three or four real engines are, the packets sent, and what may still happen
(submissions, crashes, timer firings). From a ring that is already born, every enabled
step is taken from every state, breadth first, until nothing new is found or a limit is reached; a
search that was cut then walks at random from the edge of what it knows. After every step all sites,
dead ones included, are compared.

What is abstracted, and why a violation found is still a real one.

*Links* are a set that only grows: whatever was ever sent may come next, and may come again. A packet
that is lost is one that never comes. So loss, delay, reordering and duplication need no steps of
their own: every case covers all patterns of them, without a bound.

*Time* is local: packets carry none. A site's clock moves a little with each packet and jumps when its
timer fires, on time or (``late``) long after; clocks of different sites do not agree. A Poll always
comes late, so that its receiver agrees to it: one that does not agree is one that never came.

*Merging.* Two states of a site that differ only in what ``REDUCED`` names (times, estimates,
counters) are one, and the first found stands for both. This may miss behaviour that only timing
tells apart; it cannot invent any, because a violation is played again from the start, without
merging, before it is called confirmed. Whatever the table does not name is compared, also what a
later version of the engine adds.

Because clocks are local, what a site does depends on its own state and the packet alone. So each
(site state, step) is worked out once by a real engine and then looked up, and most of the global
states cost no more than that. A state with the same sites as a known one, and no more packets and
firings left, can do nothing that the known one cannot, and is not searched again.
"""

import time
from collections.abc import Callable, Iterator
from random import Random
from typing import Final, NamedTuple, TypeAlias

import msgspec

from ordering.packets import (
    Packet,
)
from ordering.simulator.explored_sites import (
    Action,
    Facts,
    Outcome,
    Pair,
    advance,
    can_go_on,
    compare,
    describe,
    finish,
    judge,
    start,
)


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """A starting point and what may happen from there. ``submissions``: how many at which site."""

    name: str
    submissions: tuple[int, ...]
    crashes: int = 0
    timers: int = 0
    # Before the crash the ring runs without its timers: they would only add the false suspicions
    # that other cases are about.
    timers_only_after_crash: bool = False
    firings: tuple[bool, ...] = (False, True)  # on time, late
    joiner: bool = False
    promotion: bool = False  # start with the joiner seated as a learner that lacks the state
    # The search is about one view change: a state where all that live are in the next epoch, or one
    # of them is fenced there already, is not searched on.
    one_change: bool = False
    # Steps before the search begins, each "site what": submit, fire, late, crash, or the kind of a
    # packet it gets. Of the packets sent in them all but those of the kinds in ``keep`` are lost.
    script: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()


_BOTH_INITIATE: Final = (
    "s1 late", "s2 late", "s2 Poll", "s1 PollReply", "s1 Poll", "s2 PollReply",
)  # fmt: skip
_ORDERED_AT_ONE: Final = ("s1 submit", "s3 Data", "s1 Ack")


def _death_of(victim: str, who: str) -> Scenario:
    """Dead before the data or the order has reached everyone; the others change the view."""
    return Scenario(
        name=f"death of {who}", submissions=(1, 0, 0), crashes=1, timers=2, firings=(True,), one_change=True,
        script=(*_ORDERED_AT_ONE, f"{victim} crash"), keep=("Data", "Ack"),
    )  # fmt: skip


CASES: Final[dict[str, tuple[Scenario, ...]]] = {
    "order": (
        Scenario(name="one from each of two", submissions=(1, 1, 0)),
        Scenario(name="one from each site", submissions=(1, 1, 1)),
        Scenario(name="two from one, one from another", submissions=(2, 1, 0)),
    ),
    "loss": (
        Scenario(name="one repair", submissions=(1, 0, 0), timers=1, firings=(False,)),
        Scenario(name="two repairs", submissions=(1, 0, 0), timers=2, firings=(False,)),
        Scenario(name="two repairs, two messages", submissions=(1, 1, 0), timers=2, firings=(False,)),
    ),
    "crash": (
        _death_of("s3", "the token site that ordered"),
        _death_of("s1", "the sender, which has the token now"),
        _death_of("s2", "a bystander"),
        Scenario(
            name="one message", submissions=(1, 0, 0), crashes=1, timers=2,
            timers_only_after_crash=True, one_change=True,
        ),
        Scenario(
            name="two messages", submissions=(1, 1, 0), crashes=1, timers=3,
            timers_only_after_crash=True, one_change=True,
        ),
    ),
    "duel": (
        Scenario(
            name="two initiators, one knows more", submissions=(1, 0, 0), timers=2, firings=(True,),
            one_change=True, script=(*_ORDERED_AT_ONE, *_BOTH_INITIATE), keep=("RecoveryStart",),
        ),
        Scenario(
            name="two initiators", submissions=(0, 0, 0), timers=2, firings=(True,),
            one_change=True, script=_BOTH_INITIATE, keep=("RecoveryStart",),
        ),
        Scenario(name="from suspicion on", submissions=(1, 0, 0), timers=3, one_change=True),
    ),
    "join": (
        Scenario(name="seat", submissions=(0, 0, 0, 0), timers=1, joiner=True),
        Scenario(name="promotion", submissions=(0, 0, 0, 0), timers=1, joiner=True, promotion=True),
        Scenario(
            name="promotion and crash", submissions=(0, 0, 0, 0), crashes=1, timers=4,
            joiner=True, promotion=True,
        ),
    ),
}  # fmt: skip


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Where a search is cut. ``walk_share`` percent of the time is kept for walks if it is."""

    states: int = 200_000
    depth: int = 1000
    seconds: float = 60.0
    walk_share: int = 30
    leaves: int = 50


class Violation(msgspec.Struct, frozen=True):
    """What broke, and the steps that lead there. ``confirmed``: played again, it broke again."""

    problems: tuple[str, ...]
    steps: tuple[str, ...]
    confirmed: bool


class Report(msgspec.Struct, kw_only=True):
    """What a search came to."""

    scenario: Scenario
    distinct: int = 0
    expanded: int = 0
    transitions: int = 0
    site_states: int = 0
    depth: int = 0
    complete_depth: int = 0  # every state up to this many steps was expanded
    walks: int = 0
    leaves: int = 0  # states from which the run was played to its end
    cut_by: str = ""
    seconds: float = 0.0
    violations: list[Violation] = msgspec.field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        return not self.cut_by


# -- the search --------------------------------------------------------------------------------------

Label: TypeAlias = tuple[str, int, int]  # kind, site, packet or lateness
Step: TypeAlias = tuple[int, int, tuple[str, ...]]  # site state, packets sent, problems


class World(NamedTuple):
    """A global state: numbers of site states, who is dead, the packets sent, what may still happen.

    ``sent`` is a set of packet numbers, kept as the bits of an integer."""

    sites: tuple[int, ...]
    dead: tuple[bool, ...]
    submissions: tuple[int, ...]
    crashes: int
    sent: int
    timers: int


class Explorer:
    """Searches one scenario."""

    def __init__(self, scenario: Scenario, limits: Limits) -> None:
        self.scenario = scenario
        self.limits = limits
        self.report = Report(scenario=scenario)
        self.addresses = tuple(f"s{i + 1}" for i in range(len(scenario.submissions)))
        self.facts: list[Facts] = []
        self._numbers: dict[str, int] = {}
        self.packets: list[tuple[int, Packet]] = []
        self._packet_numbers: dict[tuple[int, Packet], int] = {}
        self._inbox = [0] * len(self.addresses)  # all packets to a site, as bits
        self._useless: list[int] = []  # by site state: the packets it would not react to, as bits
        self._steps: dict[tuple[int, str, int], Step | None] = {}
        self._pairs: dict[tuple[int, int], Pair] = {}
        self._known: dict[tuple[object, ...], list[tuple[int, int]]] = {}
        self._worlds: list[World] = []
        self._parents: list[tuple[int, Label | None]] = []
        self._depths: list[int] = []
        self._broken: set[tuple[str, ...]] = set()
        self.prefix: list[Label] = []
        self.origin = start(len(self.addresses), joiner=scenario.joiner, seated=scenario.promotion)

    def run(self, on_progress: Callable[[Report], None] | None = None) -> Report:
        """Search until all is seen, a limit is reached, or something broke."""
        begun = time.monotonic()
        limits = self.limits
        self._add(self._play_script(self._first_world()), -1, None)
        done = 0
        while done < len(self._worlds) and not self.report.violations:
            self.report.seconds = time.monotonic() - begun
            if len(self._worlds) >= limits.states:
                self.report.cut_by = "states"
            elif self.report.seconds > limits.seconds * (100 - limits.walk_share) / 100:
                self.report.cut_by = "seconds"
            elif self._depths[done] >= limits.depth:
                self.report.cut_by = "depth"
            if self.report.cut_by:
                break
            self._expand(done)
            self.report.expanded += 1
            done += 1
            if on_progress is not None and done % 500 == 0:
                self.report.complete_depth = self._depths[done - 1] - 1
                on_progress(self.report)
        self.report.complete_depth = self._depths[done] - 1 if done < len(self._worlds) else self.report.depth
        if self.report.cut_by and not self.report.violations:
            self._walk(begun, on_progress)
        self._play_to_the_end()
        self.report.seconds = time.monotonic() - begun
        self.report.site_states = len(self.facts)
        return self.report

    def _first_world(self) -> World:
        scenario = self.scenario
        sites = tuple(self._number(outcome) for outcome in self.origin)
        sent = 0
        for outcome in self.origin:
            sent |= self._send(outcome.sends)
        alive = (False,) * len(sites)
        return World(sites, alive, scenario.submissions, scenario.crashes, sent, scenario.timers)

    def _play_script(self, world: World) -> World:
        for line in self.scenario.script:
            address, what = line.split()
            site = self.addresses.index(address)
            label = self._scripted(world, site, what)
            self.prefix.append(label)
            if what == "crash":
                world = self._crash(world, site)
                continue
            _, world, problems = next(self._move(world, label))
            assert not problems, problems
        if not self.prefix:
            return world
        kept = sum(
            1 << n for n in _bits(world.sent) if type(self.packets[n][1]).__name__ in self.scenario.keep
        )
        return world._replace(sent=kept, timers=self.scenario.timers)

    def _scripted(self, world: World, site: int, what: str) -> Label:
        if what in ("submit", "crash"):
            return (what, site, 0)
        if what in ("fire", "late"):
            return ("fire", site, 1 if what == "late" else 0)
        waiting = _bits(world.sent & self._inbox[site])
        return ("deliver", site, next(n for n in waiting if type(self.packets[n][1]).__name__ == what))

    def _number(self, outcome: Outcome) -> int:
        number = self._numbers.get(outcome.fingerprint)
        if number is None:
            number = self._numbers[outcome.fingerprint] = len(self.facts)
            self.facts.append(outcome.facts)
            self._useless.append(0)
        return number

    def _send(self, sends: tuple[tuple[str, Packet], ...]) -> int:
        bits = 0
        for address, packet in sends:
            key = (self.addresses.index(address), packet)
            number = self._packet_numbers.get(key)
            if number is None:
                number = self._packet_numbers[key] = len(self.packets)
                self.packets.append(key)
                self._inbox[key[0]] |= 1 << number
            bits |= 1 << number
        return bits

    def _add(self, world: World, parent: int, label: Label | None) -> int | None:
        """Number a state; None if a known one can do all that it can."""
        others = self._known.setdefault(world[:4], [])
        for sent, timers in others:
            if world.timers <= timers and not world.sent & ~sent:
                return None
        others.append((world.sent, world.timers))
        number = len(self._worlds)
        self._worlds.append(world)
        self._parents.append((parent, label))
        depth = self._depths[parent] + 1 if parent >= 0 else 0
        self._depths.append(depth)
        self.report.depth = max(self.report.depth, depth)
        self.report.distinct = len(self._worlds)
        return number

    def _expand(self, number: int) -> None:
        """Take every step from a state, unless the scenario ends with it."""
        if self.scenario.one_change and self._is_over(self._worlds[number]):
            return
        for label, world, done in self.successors(self._worlds[number]):
            self.report.transitions += 1
            judged = self._judge(world) if self._add(world, number, label) is not None else ()
            problems = tuple(dict.fromkeys((*done, *judged)))
            if problems and problems not in self._broken:
                self._broken.add(problems)
                self._report(problems, number, label)

    # -- steps -----------------------------------------------------------------------------------

    def successors(self, world: World) -> Iterator[tuple[Label, World, tuple[str, ...]]]:
        may_fire = world.timers and (any(world.dead) or not self.scenario.timers_only_after_crash)
        for site, number in enumerate(world.sites):
            facts = self.facts[number]
            if world.dead[site] or facts.engine_gone:
                continue
            for packet in _bits(world.sent & self._inbox[site] & ~self._useless[number]):
                yield from self._move(world, ("deliver", site, packet))
            if world.submissions[site]:
                yield from self._move(world, ("submit", site, 0))
            if may_fire and facts.armed:
                for late in self.scenario.firings:
                    yield from self._move(world, ("fire", site, int(late)))
            if self._can_transfer(world, facts):
                yield from self._move(world, ("transfer", site, 0))
            if world.crashes:
                yield ("crash", site, 0), self._crash(world, site), ()

    def _is_over(self, world: World) -> bool:
        first = self.origin[0].facts.epoch
        live = [self.facts[n] for n, dead in zip(world.sites, world.dead, strict=True) if not dead]
        return all(f.epoch > first for f in live) or any(f.epoch > first and f.fenced for f in live)

    def _can_transfer(self, world: World, facts: Facts) -> bool:
        request = facts.log.request
        if request is None:
            return False
        donors = [self.facts[n] for n, dead in zip(world.sites, world.dead, strict=True) if not dead]
        return any(d.me in request.donors and d.log.view_ts >= request.ts for d in donors)

    def _move(self, world: World, label: Label) -> Iterator[tuple[Label, World, tuple[str, ...]]]:
        """The step of one site, unless it changes nothing."""
        kind, site, argument = label
        number = world.sites[site]
        step = self._step(number, kind, argument)
        if step is None:
            return
        after, sends, problems = step
        submissions, timers = world.submissions, world.timers
        match kind:
            case "deliver" if after == number and not problems:
                if not sends:
                    self._useless[number] |= 1 << argument
                if not sends & ~world.sent:
                    return
            case "submit":
                submissions = _less_one(submissions, site)
            case "fire":
                timers -= 1
            case _:
                pass
        sites = (*world.sites[:site], after, *world.sites[site + 1 :])
        sent = world.sent | sends
        yield label, World(sites, world.dead, submissions, world.crashes, sent, timers), problems

    def _step(self, number: int, kind: str, argument: int) -> Step | None:
        """What a site does: worked out by its engine once, then looked up."""
        key = (number, kind, argument)
        if key in self._steps:
            return self._steps[key]
        outcome = advance(self.facts[number].blob, self._action(kind, argument))
        step = None
        if outcome is not None:
            step = (self._number(outcome), self._send(outcome.sends), outcome.problems)
        self._steps[key] = step
        return step

    def _action(self, kind: str, argument: int) -> Action:
        if kind == "deliver":
            return kind, self.packets[argument][1]
        return kind, bool(argument)

    def _crash(self, world: World, site: int) -> World:
        submissions = (*world.submissions[:site], 0, *world.submissions[site + 1 :])
        dead = (*world.dead[:site], True, *world.dead[site + 1 :])
        return World(world.sites, dead, submissions, world.crashes - 1, world.sent, world.timers)

    # -- judging ---------------------------------------------------------------------------------

    def _judge(self, world: World) -> tuple[str, ...]:
        sites = [self.facts[number] for number in world.sites]
        numbers = {id(self.facts[number]): number for number in world.sites}

        def pair(one: Facts, other: Facts) -> Pair:
            key = (numbers[id(one)], numbers[id(other)])
            found = self._pairs.get(key)
            if found is None:
                found = self._pairs[key] = compare(one, other)
            return found

        return judge(sites, [site for site, dead in enumerate(world.dead) if dead], pair)

    def _report(self, problems: tuple[str, ...], parent: int, last: Label) -> None:
        labels = [*self._labels(parent), last]
        steps = tuple(self._tell(label) for label in labels)
        self.report.violations.append(Violation(problems, steps, self._confirm(labels)))

    def _labels(self, number: int) -> list[Label]:
        """The steps from the start to a state."""
        labels = []
        while number > 0:
            number, label = self._parents[number]
            assert label is not None
            labels.append(label)
        return self.prefix + labels[::-1]

    def _confirm(self, labels: list[Label]) -> bool:
        """Play the steps with engines of their own, nothing merged: does it break again?"""
        sites = [outcome.facts for outcome in self.origin]
        flying = {(self.addresses.index(to), packet) for o in self.origin for to, packet in o.sends}
        for kind, site, argument in labels:
            if kind == "crash":
                continue
            if kind == "deliver" and self.packets[argument] not in flying:
                return False
            outcome = advance(sites[site].blob, self._action(kind, argument))
            if outcome is None:
                return False
            sites[site] = outcome.facts
            flying |= {(self.addresses.index(to), packet) for to, packet in outcome.sends}
            if outcome.problems:
                return True
        dead = [site for kind, site, _ in labels if kind == "crash"]
        return bool(judge(sites, dead, compare))

    def _tell(self, label: Label) -> str:
        kind, site, argument = label
        name = self.addresses[site]
        match kind:
            case "deliver":
                return f"{name} gets {describe(self.packets[argument][1])}"
            case "fire":
                return f"{name}: timer fires{' late' if argument else ''}"
            case "submit":
                return f"{name}: submits a message"
            case "transfer":
                return f"{name}: gets the state"
            case _:
                return f"{name} crashes"

    # -- beyond the limit ------------------------------------------------------------------------

    def _walk(self, begun: float, on_progress: Callable[[Report], None] | None) -> None:
        """The search was cut: go deep from the edge of what is known, at random, to what is left."""
        rng = Random(len(self._worlds))
        edge = len(self._worlds)
        most = self.limits.states * 2
        while not self.report.violations and len(self._worlds) < most:
            self.report.seconds = time.monotonic() - begun
            if self.report.seconds > self.limits.seconds:
                return
            self._walk_from(rng.randrange(edge), rng)
            self.report.walks += 1
            if on_progress is not None and self.report.walks % 20 == 0:
                on_progress(self.report)

    def _walk_from(self, number: int, rng: Random) -> None:
        """Prefer what is new; end where nothing is."""
        while not self.report.violations:
            first_new = len(self._worlds)
            self._expand(number)
            if len(self._worlds) == first_new:
                return
            number = rng.randrange(first_new, len(self._worlds))

    def _play_to_the_end(self) -> None:
        """Bounded liveness, sampled: lose all that flies, let time run, and all must be delivered."""
        if self.report.violations or not self.limits.leaves:
            return
        stride = max(len(self._worlds) // self.limits.leaves, 1)
        for number in range(len(self._worlds) - 1, -1, -stride):
            world = self._worlds[number]
            live = [self.facts[n] for n, dead in zip(world.sites, world.dead, strict=True) if not dead]
            if not can_go_on(live):
                continue
            self.report.leaves += 1
            problems = finish(live)
            if problems:
                steps = (
                    *map(self._tell, self._labels(number)),
                    "and then all that flies is lost and time runs",
                )
                self.report.violations.append(Violation(problems, steps, confirmed=True))
                return


def _bits(number: int) -> Iterator[int]:
    while number:
        bit = number.bit_length() - 1
        number ^= 1 << bit
        yield bit


def _less_one(counts: tuple[int, ...], site: int) -> tuple[int, ...]:
    return (*counts[:site], counts[site] - 1, *counts[site + 1 :])


def explore_scenario(
    scenario: Scenario, limits: Limits | None = None, on_progress: Callable[[Report], None] | None = None
) -> Report:
    """Search one scenario."""
    return Explorer(scenario, limits or Limits()).run(on_progress)
