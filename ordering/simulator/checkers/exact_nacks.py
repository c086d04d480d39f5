"""Only what is missing is asked for."""

from typing import TYPE_CHECKING

from ordering.effects import Effect, Multicast
from ordering.packets import Nack
from ordering.simulator.checkers.base import Checker

if TYPE_CHECKING:
    from ordering.simulator.process import Process


class ExactNacks(Checker):
    """A NACK asks for no byte of a large message that its sender has: what one lost piece costs does not
    depend on the size of the message (R16)."""

    name = "exact_nacks"

    def on_effect(self, process: "Process", effect: Effect, now: int) -> None:
        if type(effect) is not Multicast or type(effect.packet) is not Nack:
            return
        assemblies = process.engine.site.assemblies
        for span in effect.packet.spans:
            for (source, _, ordered), messages in assemblies.lanes.items():
                if (source, ordered) != (span.source, span.ordered) or span.seq not in messages:
                    continue
                for start, end in messages[span.seq].ranges:
                    if start < span.end and span.first < end:
                        self.fail(
                            now,
                            f"site {process.member.site} asks for bytes {span.first}..{span.end} of message"
                            f" {source}:{span.seq} and has {start}..{end}",
                        )
