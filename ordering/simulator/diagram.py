"""Draws the tables of ``ordering.state``: ``docs/states.md`` is this module's output and nothing else.

python -m ordering.simulator.diagram        write docs/states.md
python -m ordering.simulator.diagram -      print it
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ordering.state import FENCED, MOVES, PACKET_TYPES, RING, Meaning, State, packet_class

PATH: Final = Path(__file__).resolve().parents[2] / "docs" / "states.md"
COMMAND: Final = "python -m ordering.simulator.diagram"

# Drawn as one box: their members have the same moves to everything outside.
_BOXES: Final = {"RING": ("in the ring", RING), "FENCED": ("fenced", FENCED)}

_SIGNS: Final = {Meaning.LEGAL: "●", Meaning.STALE: "·", Meaning.ILLEGAL: "✗"}

_INTRO: Final = f"""# States

Written by `{COMMAND}` from the tables in `ordering/state.py`. Change those and run it again.

A site's state is found after every event. One event can carry a site through several places (take the token,
order, pass it on), so the moves below are between the ends of events, not between single steps."""

_MOVES_INTRO: Final = """## Moves

Row: before the event. Column: after it. ● is a legal move; a site that makes any other stops with
`InvariantViolation`."""

_PACKETS_INTRO: Final = """## Packets

● is worked on. · is a leftover: dropped and counted. ✗ cannot come unless the host opens its socket before
it starts the engine."""


def document() -> str:
    """The whole of ``docs/states.md``."""
    drawing = "\n".join(["```mermaid", *_drawing(), "```"])
    return "\n\n".join([_INTRO, drawing, _MOVES_INTRO, _moves(), _PACKETS_INTRO, _packets()]) + "\n"


# -- the drawing ---------------------------------------------------------------------------------


def _drawing() -> Iterator[str]:
    boxes = _boxes()
    yield "stateDiagram-v2"
    for name, members in boxes.items():
        if len(members) == 1:
            yield f'    state "{members[0].value}" as {name}'
            continue
        yield f'    state "{_BOXES[name][0]}" as {name} {{'
        yield from (f'        state "{state.value}" as {state.name}' for state in members)
        yield "    }"
    yield f"    [*] --> {State.IDLE.name}"
    for name, members in boxes.items():
        for other, targets in boxes.items():
            if name != other:
                yield from _arrows(name, members, other, targets)
    for name, members in boxes.items():
        if not any(MOVES[state] for state in members):
            yield f"    {name} --> [*]"


def _boxes() -> dict[str, tuple[State, ...]]:
    """What is drawn, in the order of the states: a box with its members, or a state by itself."""
    boxed = {state: name for name, (_, members) in _BOXES.items() for state in members}
    found: dict[str, tuple[State, ...]] = {}
    for state in State:
        name = boxed.get(state, state.name)
        found[name] = (*found.get(name, ()), state)
    return found


def _arrows(name: str, members: tuple[State, ...], other: str, targets: tuple[State, ...]) -> Iterator[str]:
    """One arrow if every member may move to every target; else one for each move."""
    moves = [(state, target) for state in members for target in targets if target in MOVES[state]]
    if len(moves) == len(members) * len(targets):
        yield f"    {name} --> {other}"
    else:
        yield from (f"    {state.name} --> {target.name}" for state, target in moves)


# -- the tables ----------------------------------------------------------------------------------


def _moves() -> str:
    rows = [[state.value, *("●" if target in MOVES[state] else "" for target in State)] for state in State]
    return _table(["", *(state.value for state in State)], rows)


def _packets() -> str:
    rows = [[kind.__name__, *(_SIGNS[packet_class(state, kind)] for state in State)] for kind in PACKET_TYPES]
    return _table(["packet", *(state.value for state in State)], rows)


def _table(header: list[str], rows: list[list[str]]) -> str:
    line = ["---", *(":-:" for _ in header[1:])]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, line, *rows))


def main(arguments: list[str]) -> None:
    if arguments == ["-"]:
        print(document(), end="")
    else:
        PATH.write_text(document(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
