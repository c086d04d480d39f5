"""The interface of a checker."""

from typing import TYPE_CHECKING

from ordering.caller import CallerEffect, CallRequested
from ordering.effects import Effect
from ordering.events import SubmitRequested
from ordering.qos import Qos
from ordering.views import Member

if TYPE_CHECKING:
    from ordering.simulator.cluster import Cluster
    from ordering.simulator.process import Process


class Checker:
    """Watches a run. ``fail`` records a violation; the run goes on, so that one seed shows all."""

    name = "checker"

    def __init__(self) -> None:
        self.violations: list[str] = []

    def fail(self, now: int, text: str) -> None:
        if len(self.violations) < 20:
            self.violations.append(f"{now / 1e9:.6f}s {self.name}: {text}")

    def on_start(self, process: "Process", now: int) -> None:
        """A process begins, for the first time or from its disk."""

    def on_submit(
        self, process: "Process", first_seq: int, messages: tuple[bytes, ...], qos: Qos, now: int
    ) -> None:
        """The engine accepted messages (sequence numbers of the ordered or of the unordered lane)."""

    def on_effect(self, process: "Process", effect: Effect, now: int) -> None:
        """The engine asked its host for something."""

    def on_called(
        self, caller: Member, first_number: int, request: CallRequested | SubmitRequested, now: int
    ) -> None:
        """A process outside the group, or a member, made requests."""

    def on_caller_effect(self, caller: Member, effect: CallerEffect, now: int) -> None:
        """A caller asked its host for something."""

    def on_applied(self, process: "Process", ts: int, digest: bytes, now: int) -> None:
        """A replica applied the message at ``ts`` and its state has this digest."""

    def on_restored(self, process: "Process", donor: "Process", now: int) -> None:
        """A learner took over the state of ``donor`` (up to ``process.replica.ts``)."""

    def on_settled(self, process: "Process", now: int) -> None:
        """The engine handled one event to its end."""

    def on_crash(self, process: "Process", now: int) -> None:
        """The process is gone, with its memory."""

    def on_healed(self, cluster: "Cluster", now: int) -> None:
        """No fault from here on; a majority can talk."""

    def finish(self, cluster: "Cluster", now: int) -> None:
        """The run is over."""
