"""Planted bugs of actions: each removes a guard of the shipped code, or of the database that is made up, and
a checker must notice (``ordering/simulator/mutants.py``)."""

from apps.actions.simulation.run import HALTED, ActionsPlan, run_actions
from ordering.simulator.mutants import Mutant

_LEDGER = "apps.actions.ledger:ActionLedger"
_CORE = "apps.actions.site:SiteCore"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "who has left the ring still counts",
        "a decision waits for a site that is dead",
        f"{_LEDGER}.on_view",
        "if seat.is_here and (begun_anew or self._ring.get(seat.site) != seat.boot):",
        "if False:",
    ),
    Mutant(
        "a fast restart is not noticed",
        "a decision waits for a process that is not there any more",
        f"{_LEDGER}.on_view",
        "self._ring.get(seat.site) != seat.boot):",
        "seat.site not in self._ring):",
        durable=True,
    ),
    Mutant(
        "a new incarnation keeps what was not voted for",
        "a decision waits for a vote that nobody will give",
        f"{_LEDGER}.register",
        'self._end_registration(seat, f"{name} was registered anew")',
        "pass",
    ),
    Mutant(
        "decided before a majority holds the vote",
        "a decision that a view change takes back (R2)",
        "ordering.stability:Stability.held_by_majority",
        "return claims[len(electorate) - majority_of(electorate)]",
        "return claims[-1]",
    ),
    Mutant(
        "committed with a vote missing",
        "a participant that cannot is committed all the same",
        f"{_LEDGER}.vote",
        "elif not voted.missing:",
        "elif voted.missing <= 1:",
    ),
    Mutant(
        "a late abort counts",
        "a decision is changed when some have carried it out",
        f"{_LEDGER}.abort",
        "if entry.state is State.COMMITTED:",
        "if False:",
        also=(
            (f"{_LEDGER}.abort", "if not entry.state.is_decided:", "if entry.state is not State.ABORTED:"),
            (f"{_LEDGER}._decide", "assert not unit.state.is_decided", "pass"),
            (f"{_LEDGER}._settle", "self._deadlines.remove(", "self._deadlines.discard("),
            (f"{_LEDGER}._decide", "del self._placed[unit.place]", "self._placed.pop(unit.place, None)"),
        ),
    ),
    Mutant(
        "competing requests are voted on at once",
        "two that need the same are promised it both",
        f"{_LEDGER}._begin_if_first",
        "if not self._queues[name].is_first(unit.place, part.keys):",
        "if False:",
    ),
    Mutant(
        "a site prepares before it has applied what competes",
        "what is promised depends on what is not there yet",
        f"{_CORE}._pursue",
        "local.keys):\n                local.stage = Stage.PREPARING",
        "local.keys) or True:\n                local.stage = Stage.PREPARING",
    ),
    Mutant(
        "a dependency is ignored",
        "what was read never was",
        f"{_LEDGER}._placed_unit",
        "unit.awaits = tuple(awaits)",
        "unit.awaits = ()",
    ),
    Mutant(
        "it votes before it has prepared",
        "a vote that a crash makes a lie",
        f"{_CORE}._pursue",
        "self._out.append(Prepare(local.unit, local.operations))",
        'self._out += [Prepare(local.unit, local.operations)]; self._vote(local, "")',
    ),
    Mutant(
        "what is in doubt is presumed aborted",
        "a site that comes back undoes what it has voted for",
        f"{_CORE}._complete",
        "if local.unit not in listed and not is_offer:",
        "if local.unit not in listed or listed[local.unit].task is Task.HOLD:",
    ),
    Mutant(
        "an abort is forgotten while it prepares",
        "an intent that nobody ever undoes",
        f"{_CORE}.prepared",
        "if local.wanted is Task.PREPARE:",
        "if True:",
    ),
    Mutant(
        "a commit that failed is not tried again",
        "committed, and never applied somewhere",
        f"{_CORE}._failed",
        "self._out.append(RetryLater(local.unit))",
        "pass",
    ),
    Mutant(
        "sites are not told of aborts",
        "an intent that nobody ever undoes",
        f"{_LEDGER}._decide",
        "if asked:",
        "if False:",
    ),
    Mutant(
        "deadlines pass",
        "a prepare that hangs, or a dependency that never comes, blocks for ever",
        f"{_LEDGER}.on_alarm",
        "if deadline_ns > self.context.time_ns:",
        "if True:",
    ),
    Mutant(
        "an early vote counts behind what competes",
        "a site is promised that has let go of it for others",
        f"{_LEDGER}._counting",
        "if self._seats[name].asked.latest(keys) > vote.heard:",
        "if False:",
    ),
    Mutant(
        "an early vote counts before what competes",
        "somebody who was first is overtaken, and both are promised the same",
        f"{_LEDGER}._counting",
        "if vote is None or any(True for _ in self._queues[name].competing(keys)):",
        "if vote is None:",
    ),
    Mutant(
        "an early vote outlives its registration",
        "a site has undone what it had prepared in another life",
        "apps.actions.records:Seat.has_cast",
        "and (vote.chain, vote.incarnation) == (chain, self.incarnation)",
        "",
    ),
    Mutant(
        "an early vote that is withdrawn counts",
        "a site has undone what nobody had requested for long",
        "apps.actions.records:Seat.has_cast",
        "and vote.heard >= self.withdrawn",
        "",
    ),
    Mutant(
        "a site lets go of an offer by itself",
        "its vote is still in somebody's hand",
        f"{_CORE}.hear",
        "if self._is_complete:",
        "self._let_go_of_offers(page.position - 50)\n    if self._is_complete:",
    ),
    Mutant(
        "early votes decide before dependents have their places",
        "what was read never was",
        f"{_LEDGER}._request",
        "early = self._placed_unit(members, unit)",
        "self._decide_early(self._placed_unit(members, unit), votes)",
    ),
    Mutant(
        "an offer does not make way",
        "what is prepared for nobody holds up what the ledger asks for",
        f"{_CORE}._queue_up",
        "if duty.task is Task.PREPARE and self._offers:",
        "if False:",
    ),
    Mutant(
        "an offer is answered before it is prepared",
        "a vote that a crash makes a lie",
        f"{_CORE}._prepare_offer",
        "self._out.append(Prepare(local.unit, local.operations))",
        'self._out += [Prepare(local.unit, local.operations)]; self._tell_ready(local, "")',
    ),
    Mutant(
        "a commit is applied once more after a crash",
        "the mark is not looked at",
        "apps.actions.simulation.bank:Bank._is_applied",
        "return unit in self.disk.applied",
        "return False",
    ),
)


def play_planted(mutant: Mutant, seed: int) -> list[str]:
    """What the checkers of actions say. The ring's do not count here, nor does a site that stops on an
    invariant of its own."""
    report = run_actions(ActionsPlan(seed=seed, sites=mutant.sites, durable=mutant.durable), stop_broken=True)
    own = [each.split(" ", 1) for each in report.violations]
    return [" ".join(each) for each in own if each[0].endswith("ms") and not each[1].startswith(HALTED)]
