"""How deep is a message nested? A recursive decoder gives up where the stack of its process ends, which is
not the same everywhere; this limit is."""

from typing import Final

NESTING_MAX: Final = 100
_OTHERS: Final = bytes(sorted({*range(256)} - {*range(0x80, 0xA0), *range(0xDC, 0xE0)}))
# First byte → bytes that follow it, for those of fixed size.
_FIXED: Final = {
    0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8,
    0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17,
}  # fmt: skip
_SIZED: Final = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
_EXT: Final = {0xC7, 0xC8, 0xC9}


def is_too_deep(data: bytes) -> bool:
    """Most messages have too few bytes that could begin a container, and are not looked at any closer."""
    return len(data.translate(None, _OTHERS)) > NESTING_MAX and _is_too_deep(data)


def _is_too_deep(data: bytes) -> bool:
    at, end = 0, len(data)
    left: list[int] = []  # elements to come in each container that is open
    while at < end:
        first = data[at]
        at += 1
        inside = 0
        if 0x80 <= first < 0x90:
            inside = 2 * (first & 15)
        elif 0x90 <= first < 0xA0:
            inside = first & 15
        elif 0xA0 <= first < 0xC0:
            at += first & 31
        elif first in _FIXED:
            at += _FIXED[first]
        elif first in _SIZED:
            width = _SIZED[first]
            at += width + int.from_bytes(data[at : at + width]) + (first in _EXT)
        elif first in {0xDC, 0xDD, 0xDE, 0xDF}:
            width = 2 if first in {0xDC, 0xDE} else 4
            inside = int.from_bytes(data[at : at + width]) * (2 if first >= 0xDE else 1)
            at += width
        if inside:
            left.append(inside)
            if len(left) > NESTING_MAX:
                return True
            continue
        while left:
            left[-1] -= 1
            if left[-1]:
                break
            left.pop()
        if not left:
            return False
    return False
