"""What can be said of many values at once, at the speed of C."""

import sys
from collections.abc import Sequence
from itertools import chain, islice
from sys import getrefcount
from typing import Any, Final

from msgspec.msgpack import Ext

from rsm.values_shapes import Shape

SIZED: Final = frozenset({str, bytes})


def _alone() -> int:
    """The references to an object that stands in a container, once, and in a batch. Where threads may hold
    some that are not counted, no object counts as alone."""
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return 0
    container = {0: object()}
    batch = list(islice(container.values(), 1))
    return max(map(getrefcount, batch))


ALONE: Final = _alone()


def encodes(leaves: list[Any], kinds: set[type]) -> bool:
    """Whether that is certain without trying: texts may hold what is no UTF-8, numbers be too large."""
    if int in kinds:
        return False
    return str not in kinds or (kinds == {str} and all(map(str.isascii, leaves)))


def columns(batch: list[Any], shape: Shape) -> tuple[tuple[str, ...], list[Any]]:
    """The attributes the objects have in common, and their values, object by object; none if they differ."""
    if shape.getter is not None and not shape.has_dict:
        try:
            return tuple(shape.slots), list(chain.from_iterable(map(shape.getter, batch)))
        except AttributeError:
            return (), []
    if shape.slots:
        return (), []
    attributes = [thing.__dict__ for thing in batch]
    names = tuple(attributes[0])
    if any(tuple(other) != names for other in attributes):
        return (), []
    return names, list(chain.from_iterable([each.values() for each in attributes]))


def chars_of(batch: Sequence[Any], kinds: set[type]) -> int:
    """The bulk of a batch."""
    if kinds <= SIZED:
        return sum(map(len, batch))
    return sum(map(weight, batch))


def weight(leaf: Any) -> int:
    kind = type(leaf)
    if kind is str or kind is bytes:
        return len(leaf)
    return len(leaf.data) if kind is Ext else 0
