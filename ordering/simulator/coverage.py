"""Which packets met which states: the table of ``ordering.state`` against what runs have seen."""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from ordering.state import PACKET_TYPES, Meaning, State, packet_class

LEGAL_PERCENT_MIN: Final = 95.0

Pairs = Mapping[tuple[str, str], int]


class Cell(msgspec.Struct, frozen=True):
    """One pair: a packet type that arrived, or did not, in a state."""

    state: str
    packet: str
    meaning: Meaning
    seen: int


class Coverage(msgspec.Struct, frozen=True):
    """The whole table. ``unclassified`` holds pairs that were seen and are not in it."""

    cells: tuple[Cell, ...]
    unclassified: tuple[tuple[str, str, int], ...]

    @property
    def legal(self) -> tuple[Cell, ...]:
        return tuple(cell for cell in self.cells if cell.meaning is Meaning.LEGAL)

    @property
    def unseen(self) -> tuple[Cell, ...]:
        """Legal pairs that no run has met."""
        return tuple(cell for cell in self.legal if not cell.seen)

    @property
    def percent(self) -> float:
        legal = self.legal
        return 100 * (len(legal) - len(self.unseen)) / len(legal) if legal else 100.0

    @property
    def violations(self) -> tuple[str, ...]:
        """Pairs that must not be: impossible by the table, or missing from it."""
        return (
            *(
                f"illegal: {cell.packet} while {cell.state}, seen {cell.seen} times"
                for cell in self.cells
                if cell.meaning is Meaning.ILLEGAL and cell.seen
            ),
            *(
                f"unclassified: {packet} while {state}, seen {seen} times"
                for state, packet, seen in self.unclassified
            ),
        )

    @property
    def is_enough(self) -> bool:
        return self.percent >= LEGAL_PERCENT_MIN and not self.violations

    def rows(self) -> Iterator[tuple[str, tuple[Cell, ...]]]:
        """The table by packet: (packet, its cells in the order of the states)."""
        for kind in PACKET_TYPES:
            yield kind.__name__, tuple(cell for cell in self.cells if cell.packet == kind.__name__)


def cover(pairs: Pairs) -> Coverage:
    """Set what was seen against the table."""
    known = {(state.value, kind.__name__) for state in State for kind in PACKET_TYPES}
    cells = tuple(
        Cell(
            state.value, kind.__name__, packet_class(state, kind), pairs.get((state.value, kind.__name__), 0)
        )
        for state in State
        for kind in PACKET_TYPES
    )
    unclassified = tuple((*pair, seen) for pair, seen in sorted(pairs.items()) if pair not in known)
    return Coverage(cells, unclassified)
