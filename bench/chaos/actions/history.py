"""What was asked for, and what its callers were told, as lines of JSON (``bench.chaos.history``)."""

from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

import msgspec

from bench.chaos.actions.bank import Move
from bench.chaos.history import Ended, lines_of


class Begun(msgspec.Struct, frozen=True, array_like=True, tag="begun"):
    """Before anything of it goes out."""

    action: str
    moves: list[Move]
    depends: list[str]


class Told(msgspec.Struct, frozen=True, array_like=True, tag="told"):
    """OK: committed; REJECTED: aborted; REFUSED: nobody will ever hear of it."""

    action: str
    ended: Ended
    why: str = ""


class Found(msgspec.Struct, frozen=True, array_like=True, tag="found"):
    """A site that is back has these prepared."""

    site: str
    prepared: list[str]


Line: TypeAlias = Begun | Told | Found
_DECODER = msgspec.json.Decoder(Line)


class Actions(msgspec.Struct):
    """All that were begun in a round."""

    begun: dict[str, Begun]
    told: dict[str, Told]
    found: list[Found]


def read_actions(paths: Iterable[Path]) -> Actions:
    history = Actions({}, {}, [])
    for path in paths:
        for line in lines_of(path, _DECODER):
            match line:
                case Begun():
                    history.begun[line.action] = line
                case Told():
                    history.told[line.action] = line
                case Found():
                    history.found.append(line)
    return history
