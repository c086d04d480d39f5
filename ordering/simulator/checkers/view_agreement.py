"""View agreement and the single primary chain."""

from bisect import insort
from itertools import pairwise
from typing import TYPE_CHECKING

from ordering.effects import Deliver, Effect, InstallView
from ordering.qos import Level
from ordering.simulator.checkers.base import Checker
from ordering.views import View, ViewId

if TYPE_CHECKING:
    from ordering.simulator.process import Process


class ViewAgreement(Checker):
    """There is one group, and at every moment of its history one membership (R1, R3, R5, R9).

    1. Of one chain, the view at a slot is the same at all processes, and view ids grow with slots.
    2. At most one chain is ever born, that is, installs an epoch from 1 on, and only in it and its
       forks is anything delivered at MAJORITY. A process moves only to a fork of its chain.
    3. Ring and electorate are members; the ring is never empty.
    4. From one view to the next at most one voter comes and at most one goes; the views that open
       an epoch, which failures bring about, change no voter at all. A fork keeps some voters.
    """

    name = "view_agreement"

    def __init__(self) -> None:
        super().__init__()
        self._views: dict[tuple[int, int], View] = {}
        self._ids: dict[int, list[tuple[int, ViewId]]] = {}
        self._current: dict[int, View] = {}
        self._born: int | None = None
        self._leapt: set[int] = set()
        self._opened: dict[int, int] = {}  # the slot of the first epoch of each chain

    def on_effect(self, process: "Process", effect: Effect, now: int) -> None:
        if type(effect) is InstallView:
            self._check_same(process, effect, now)
            self._check_chain(process, effect, now)
            self._check_shape(effect.view, now)
            site = process.key
            before = self._current.get(site)
            forked = False
            if not effect.view.id.revision:
                opened = min(self._opened.get(effect.chain, effect.ts), effect.ts)
                self._opened[effect.chain] = opened  # a joiner may be told of a later epoch first
                forked = opened == effect.ts
            if before is not None and site not in self._leapt:
                self._check_electorate(before, effect.view, now, forked=forked)
            self._current[site] = effect.view
            self._leapt.discard(site)
        elif type(effect) is Deliver and process.key not in self._current:
            for delivery in effect.deliveries:
                if delivery.reached >= Level.MAJORITY:
                    self.fail(now, f"site {process.member.site} delivered at MAJORITY outside of any view")

    def on_restored(self, process: "Process", donor: "Process", now: int) -> None:
        """The views between its last one and the state it takes over are not told."""
        if process.engine.transfer.wanted is not None:
            self._leapt.add(process.key)

    def _check_same(self, process: "Process", install: InstallView, now: int) -> None:
        view = install.view
        key = (install.chain, install.ts)
        known = self._views.get(key)
        if known is not None:
            if known != view:
                self.fail(
                    now,
                    f"slot {install.ts}: site {process.member.site} installed {view},"
                    f" another process {known}",
                )
            return
        self._views[key] = view
        ids = self._ids.setdefault(install.chain, [])
        insort(ids, (install.ts, view.id))
        index = ids.index((install.ts, view.id))
        for lower, upper in pairwise(ids[max(index - 1, 0) : index + 2]):
            if lower[1] >= upper[1]:
                self.fail(
                    now, f"view {lower[1]} at slot {lower[0]} is not below {upper[1]} at slot {upper[0]}"
                )

    def _check_chain(self, process: "Process", install: InstallView, now: int) -> None:
        if install.view.id.epoch < 1:
            return
        descent = process.engine.site.descent
        if self._born is None:
            self._born = descent.root
        if self._born != descent.root or (descent.depth == 0 and install.chain != self._born):
            self.fail(
                now,
                f"site {process.member.site} installed view {install.view.id} of chain {install.chain:x},"
                f" {descent.depth} forks from {descent.root:x}, although chain {self._born:x} was born",
            )

    def _check_shape(self, view: View, now: int) -> None:
        members = {member.site for member in view.members}
        if not members.issuperset(view.ring) or not members.issuperset(view.electorate):
            self.fail(
                now, f"view {view.id}: ring {view.ring} or electorate {view.electorate} not in {members}"
            )
        if not view.ring:
            self.fail(now, f"view {view.id} has an empty ring")

    def _check_electorate(self, before: View, after: View, now: int, *, forked: bool) -> None:
        came = set(after.electorate) - set(before.electorate)
        went = set(before.electorate) - set(after.electorate)
        most = 1 if after.id.revision else 0
        if len(came) > most or (len(went) > most and not forked):
            self.fail(
                now,
                f"from view {before.id} to {after.id} voters {sorted(came)} came and {sorted(went)} went,"
                f" at most {most} may",
            )
