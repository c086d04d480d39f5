"""A checker for each claim. They see what ledgers say, what is ordered, and what disks do."""

from collections.abc import Iterator
from itertools import pairwise

from apps.actions.ledger import ActionLedger
from apps.actions.records import Unit
from apps.actions.simulation.bank import ACCOUNTS, BALANCE, Disk, Witness
from apps.actions.types import Action, Operation, State
from rsm.state_machine import GroupView


class ActionChecker(Witness):
    """``fail`` notes a violation; the run goes on."""

    name = "checker"

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.now = 0

    def fail(self, text: str) -> None:
        if len(self.violations) < 5:
            self.violations.append(f"{self.now // 1_000_000}ms {self.name}: {text}")

    def changed(self, host: str, action: Action) -> None:
        """How an action stands at a host, where that was not known yet."""

    def stepped(self, host: str, ledger: ActionLedger, view: GroupView) -> None:
        """A host's ledger has gone on. ``view``: the one in force."""

    def voted(self, site: str, unit: str, *, yes: bool) -> None:
        """A vote was executed for the first time."""

    def finish(self, end: "End") -> None:
        """The run is over."""


class End:
    """How it ended: the most advanced ledger, all disks, and the sites that were to recover."""

    def __init__(self, ledger: ActionLedger, disks: dict[str, Disk], well: list[str]) -> None:
        self.ledger = ledger
        self.disks = disks
        self.well = well
        self.actions = {action.id: action for action in _all_of(ledger)}
        self.units: dict[str, list[Action]] = {}
        for action in self.actions.values():
            if action.unit:
                self.units.setdefault(action.unit, []).append(action)


def _all_of(ledger: ActionLedger) -> Iterator[Action]:
    after = ""
    while page := ledger.actions(None, after):
        yield from page
        after = page[-1].id


class Agreement(ActionChecker):
    """Every site sees the same decision at the same slot."""

    name = "agreement"

    def __init__(self) -> None:
        super().__init__()
        self.decided: dict[tuple[str, str], tuple[State, int, str]] = {}

    def changed(self, host: str, action: Action) -> None:
        if action.state.is_decided:
            mine = (action.state, action.decided, host)
            known = self.decided.setdefault((action.id, action.unit), mine)
            if known[:2] != mine[:2]:
                before = f"{known[0]} at {known[1]} for {known[2]}"
                self.fail(f"{action.id} is {mine[0]} at {mine[1]} for {host}, {before}")


class Finality(ActionChecker):
    """What a host has seen decided it sees like that ever after, and all have voted for what is committed."""

    name = "finality"

    def __init__(self) -> None:
        super().__init__()
        self.decided: dict[tuple[str, str], tuple[State, int]] = {}

    def changed(self, host: str, action: Action) -> None:
        mine = (action.state, action.decided)
        known = self.decided.get((host, action.id))
        # A host that begins anew from an older state goes through what led to the decision once more.
        if known is not None and known != mine and action.state.is_decided:
            self.fail(f"{action.id} was {known[0]} at {known[1]}, and is {mine[0]} at {mine[1]} for {host}")
        if action.state.is_decided:
            self.decided.setdefault((host, action.id), mine)
        if action.state is State.COMMITTED:
            votes = {vote.site: vote.yes for vote in action.votes}
            lacking = [site for site in action.sites if not votes.get(site)]
            if lacking:
                self.fail(f"{action.id} is committed without a yes of {', '.join(lacking)}")


class Atomicity(ActionChecker):
    """At the end all participants of a unit have applied it, or none has."""

    name = "atomicity"

    def finish(self, end: End) -> None:
        for unit, actions in end.units.items():
            sites = dict.fromkeys(site for action in actions for site in action.sites)
            have = [site for site in sites if unit in end.disks[site].applied]
            state = actions[0].state
            if have and state is not State.COMMITTED:
                self.fail(f"{unit} is {state}, and applied at {', '.join(have)}")
            lack = [site for site in sites if site not in have and site in end.well]
            if state is State.COMMITTED and lack:
                self.fail(f"{unit} is committed, and not applied at {', '.join(lack)}")
        for site in end.well:
            for unit in end.disks[site].intents:
                self.fail(f"{site} has an intent of {unit} left")


class ExactlyOnce(ActionChecker):
    """No site applies a unit twice, and none undoes what it has applied."""

    name = "exactly-once"

    def __init__(self) -> None:
        super().__init__()
        self.done: dict[tuple[str, str], int] = {}

    def applied(self, site: str, unit: str, operations: tuple[Operation, ...]) -> None:
        times = self.done[site, unit] = self.done.get((site, unit), 0) + 1
        if times > 1:
            self.fail(f"{site} has applied {unit} {times} times")


class Money(ActionChecker):
    """None is made, none is lost, and nobody owes any."""

    name = "money"

    def finish(self, end: End) -> None:
        for site, disk in end.disks.items():
            for account, balance in disk.accounts.items():
                if balance < 0:
                    self.fail(f"{site} has {balance} in account {account}")
        if len(end.well) == len(end.disks):
            have = sum(sum(disk.accounts.values()) for disk in end.disks.values())
            should = len(end.disks) * len(ACCOUNTS) * BALANCE
            if have != should:
                self.fail(f"there are {have}, and there were {should}")


class PreparedBeforeYes(ActionChecker):
    """A vote yes that is ordered is of a site with the intent on its disk."""

    name = "prepared-before-yes"

    def __init__(self) -> None:
        super().__init__()
        self.intents: dict[tuple[str, str], None] = {}

    def durable(self, site: str, unit: str) -> None:
        self.intents[site, unit] = None

    def changed(self, host: str, action: Action) -> None:
        for vote in action.votes:  # those too that came with the request
            self.voted(vote.site, action.unit, yes=vote.yes)

    def voted(self, site: str, unit: str, *, yes: bool) -> None:
        if yes and (site, unit) not in self.intents:
            self.fail(f"{site} has voted for {unit}, of which nothing is on its disk")


class OneAtATime(ActionChecker):
    """At a site nothing is prepared while something that touches the same is under way there."""

    name = "one-at-a-time"

    def preparing(self, site: str, unit: str, others: list[str]) -> None:
        if others:
            self.fail(f"{site} prepares {unit} while it has {', '.join(others)}")


class OneOrder(ActionChecker):
    """What competes is applied in one order at every site: that of the decisions."""

    name = "one-order"

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[tuple[str, str], list[str]] = {}

    def applied(self, site: str, unit: str, operations: tuple[Operation, ...]) -> None:
        for account in dict.fromkeys(key for each in operations for key in (each.keys or ACCOUNTS)):
            self.lines.setdefault((site, account), []).append(unit)

    def finish(self, end: End) -> None:
        decided = {unit: actions[0].decided for unit, actions in end.units.items()}
        for (site, account), line in self.lines.items():
            for before, after in pairwise(line):
                if decided.get(before, 0) > decided.get(after, 0):
                    self.fail(f"{site} has applied {before} before {after} to {account}")


class NoBlocking(ActionChecker):
    """No decision waits for a site that has left the ring, or for an incarnation that is over; and no site
    lets what is requested wait for what is not."""

    name = "no-blocking"

    def waiting(self, site: str, unit: str, offers: list[str]) -> None:
        if offers:
            self.fail(f"{unit} waits at {site} for {', '.join(offers)}, which nobody has requested")

    def stepped(self, host: str, ledger: ActionLedger, view: GroupView) -> None:
        undecided = _undecided(ledger)
        if not undecided or ledger._has_more():
            return
        boots = {int(site): view.boots[site] for site in view.ring}
        here = {each.name: each.incarnation for each in ledger.sites() if boots.get(each.site) == each.boot}
        for unit in undecided:
            for name, part in unit.parts.items():
                if part.vote is None and name not in here:
                    self.fail(f"{unit.name} waits for {name}, which has left the ring of {view.timestamp}")
                elif part.vote is None and here[name] != part.incarnation:
                    self.fail(f"{unit.name} waits for {name} as it was at slot {part.incarnation}")


def _undecided(ledger: ActionLedger) -> list[Unit]:
    return [ledger._units[name] for name in ledger._placed.values()]


class NoDeadlock(ActionChecker):
    """Somebody's turn it is, always; and never that of two who compete."""

    name = "no-deadlock"

    def stepped(self, host: str, ledger: ActionLedger, view: GroupView) -> None:
        if ledger._has_more():
            return
        undecided = _undecided(ledger)
        voting = [unit for unit in undecided if unit.state is State.VOTING]
        if undecided and not voting:
            self.fail(f"{len(undecided)} units wait for each other at {host}")
        taken: dict[tuple[str, str], str] = {}
        for unit in voting:
            for site, part in unit.parts.items():
                for key in ACCOUNTS if part.keys is None else part.keys:
                    other = taken.setdefault((site, key), unit.name)
                    if other != unit.name:
                        self.fail(f"{unit.name} and {other} are voted on, and compete at {site}")


class NoOvertaking(ActionChecker):
    """What competes is committed in the order of places."""

    name = "no-overtaking"

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, None] = {}

    def stepped(self, host: str, ledger: ActionLedger, view: GroupView) -> None:
        self.ledger = ledger

    def changed(self, host: str, action: Action) -> None:
        if action.state is not State.COMMITTED or action.unit in self.seen:
            return
        self.seen[action.unit] = None
        unit = self.ledger._units[action.unit]
        for other in _undecided(self.ledger):
            if other.place < unit.place and _compete(unit, other):
                self.fail(f"{unit.name} is committed, and {other.name}, which was before it, is not decided")


def _compete(unit: Unit, other: Unit) -> bool:
    for site, part in unit.parts.items():
        theirs = other.parts.get(site)
        if theirs is None:
            continue
        if part.keys is None or theirs.keys is None or any(key in theirs.keys for key in part.keys):
            return True
    return False


class Dependencies(ActionChecker):
    """Who depends on another one commits after it or with it, or not at all."""

    name = "dependencies"

    def finish(self, end: End) -> None:
        for action in end.actions.values():
            if action.state is not State.COMMITTED:
                continue
            for each in action.depends:
                other = end.actions.get(each)
                if other is None or other.state is not State.COMMITTED or other.decided > action.decided:
                    said = "nobody knows" if other is None else f"is {other.state} at {other.decided}"
                    self.fail(f"{action.id} is committed at {action.decided}; {each} {said}")


class Liveness(ActionChecker):
    """Once faults have stopped everything is decided, and what is committed is finished, in time."""

    name = "liveness"

    def finish(self, end: End) -> None:
        for action in end.actions.values():
            if not action.state.is_decided:
                self.fail(f"{action.id} is {action.state} at the end; it waits for {action.waits_for}")
            elif action.state is State.COMMITTED:
                done = [each.site for each in action.finished if not each.error]
                lack = [site for site in action.sites if site in end.well and site not in done]
                if lack:
                    self.fail(f"{action.id} is not finished at {', '.join(lack)}")
        away = [site.name for site in end.ledger.sites() if site.name in end.well and not site.is_here]
        if away:
            self.fail(f"{', '.join(away)} is well, and has no registration")


def all_checkers() -> list[ActionChecker]:
    return [
        Agreement(),
        Finality(),
        Atomicity(),
        ExactlyOnce(),
        Money(),
        PreparedBeforeYes(),
        OneAtATime(),
        OneOrder(),
        NoBlocking(),
        NoDeadlock(),
        NoOvertaking(),
        Dependencies(),
        Liveness(),
    ]
