"""Which classes a machine's state may be made of: nothing else is ever made from the bytes of a snapshot."""

import sys
from collections.abc import Iterator
from typing import Any, Final, get_args, get_type_hints

from rsm.errors import MachineError
from rsm.values import Values

_KNOWN: Final[dict[type, Values]] = {}


def values_of(machine: type, listed: tuple[type, ...]) -> Values:
    """For the classes that ``listed`` names, that annotations of the machine name, and that its module has,
    as far as they can be part of a state. Of those that were listed all must."""
    known = _KNOWN.get(machine)
    if known is None:
        known = _KNOWN[machine] = _values(machine, listed)
    return known


def _values(machine: type, listed: tuple[type, ...]) -> Values:
    found: dict[type, None] = dict.fromkeys(listed)
    for candidate in (*_of_annotations(machine), *_of_module(machine)):
        if candidate not in found and _fits(candidate):
            found[candidate] = None
    try:
        return Values(found)
    except ValueError as error:
        raise MachineError(f"{machine.__name__}.state_types: {error}") from None


def _fits(candidate: type) -> bool:
    try:
        Values([candidate])
    except ValueError:
        return False
    return True


def _of_module(machine: type) -> Iterator[type]:
    for each in list(vars(sys.modules[machine.__module__]).values()):
        if isinstance(each, type) and each.__module__ == machine.__module__ and each is not machine:
            yield each


def _of_annotations(machine: type) -> Iterator[type]:
    """Also those within others: the elements of a list, the fields of a dataclass."""
    seen: dict[int, Any] = {}
    ahead = [machine, *(each for each in vars(machine).values() if callable(each))]
    while ahead:
        subject = ahead.pop()
        try:
            hints = list(get_type_hints(subject).values())
        except (NameError, TypeError, AttributeError):
            continue
        while hints:
            hint = hints.pop()
            if id(hint) in seen:
                continue
            seen[id(hint)] = hint
            hints += get_args(hint)
            if isinstance(hint, type) and hint.__module__ not in {"builtins", "typing", "types"}:
                ahead.append(hint)
                yield hint
