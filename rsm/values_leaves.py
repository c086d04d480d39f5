"""Values that are written in one piece: numbers, dates, identifiers.

Each is a code and bytes. ``atom_bytes`` and ``ATOMS`` are each other's inverse.
"""

from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final
from uuid import UUID

import msgspec

from rsm.values_format import Leaf, NotDecodable, NotEncodable

_encode: Final = msgspec.msgpack.Encoder().encode
_numbers: Final = msgspec.msgpack.Decoder(list[int | None]).decode
_MICROSECOND: Final = timedelta(microseconds=1)


def int_bytes(value: int) -> bytes:
    return value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)


def int_from(data: bytes) -> int:
    return int.from_bytes(data, "big", signed=True)


def _fraction_bytes(value: Fraction) -> bytes:
    top = int_bytes(value.numerator)
    return len(top).to_bytes(8, "big") + top + int_bytes(value.denominator)


def _fraction_from(data: bytes) -> Fraction:
    end = 8 + int.from_bytes(data[:8], "big")
    if not 8 < end < len(data):
        raise NotDecodable("a fraction is cut short")
    return Fraction(int_from(data[8:end]), int_from(data[end:]))


def _offset(zone: object) -> int | None:
    """Microseconds east of Greenwich; None for no zone."""
    if zone is None:
        return None
    if type(zone) is timezone:
        offset, *name = zone.__getinitargs__()  # type: ignore[attr-defined]
        if not name:
            return int(offset // _MICROSECOND)
    raise NotEncodable(
        f"a time in zone {zone} cannot be saved: the rules of named zones differ between machines; use UTC"
    )


def _zone(offset: int | None) -> timezone | None:
    return None if offset is None else timezone(offset * _MICROSECOND)


def _datetime_bytes(value: datetime) -> bytes:
    day = (value.year, value.month, value.day)
    clock = (value.hour, value.minute, value.second, value.microsecond)
    return _encode((*day, *clock, _offset(value.tzinfo), value.fold))


def _datetime_from(data: bytes) -> datetime:
    *parts, offset, fold = _numbers(data)
    return datetime(*parts, tzinfo=_zone(offset), fold=fold)  # type: ignore[arg-type, misc]


def _date_from(data: bytes) -> date:
    return date(*_numbers(data))  # type: ignore[arg-type]


def _time_bytes(value: time) -> bytes:
    parts = (value.hour, value.minute, value.second, value.microsecond)
    return _encode((*parts, _offset(value.tzinfo), value.fold))


def _time_from(data: bytes) -> time:
    *parts, offset, fold = _numbers(data)
    return time(*parts, tzinfo=_zone(offset), fold=fold)  # type: ignore[arg-type, misc]


def _timedelta_from(data: bytes) -> timedelta:
    return timedelta(*_numbers(data))  # type: ignore[arg-type]


def _date_bytes(value: date) -> bytes:
    return _encode((value.year, value.month, value.day))


def _timedelta_bytes(value: timedelta) -> bytes:
    return _encode((value.days, value.seconds, value.microseconds))


# Lone surrogates stand in texts that came from file names or JSON. They are no UTF-8, but they are Python.
def text_bytes(value: str) -> bytes:
    return value.encode("utf-8", "surrogatepass")


def _text_from(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


ATOM_BYTES: Final[dict[type, tuple[Leaf, Callable[[Any], bytes]]]] = {
    int: (Leaf.INT, int_bytes),
    Decimal: (Leaf.DECIMAL, lambda value: str(value).encode()),
    Fraction: (Leaf.FRACTION, _fraction_bytes),
    UUID: (Leaf.UUID, lambda value: bytes(value.bytes)),
    datetime: (Leaf.DATETIME, _datetime_bytes),
    date: (Leaf.DATE, _date_bytes),
    time: (Leaf.TIME, _time_bytes),
    timedelta: (Leaf.TIMEDELTA, _timedelta_bytes),
}

ATOMS: Final[dict[int, Callable[[bytes], object]]] = {
    Leaf.INT: int_from,
    Leaf.TEXT: _text_from,
    Leaf.DECIMAL: lambda data: Decimal(data.decode("ascii")),
    Leaf.FRACTION: _fraction_from,
    Leaf.UUID: lambda data: UUID(bytes=data),
    Leaf.DATETIME: _datetime_from,
    Leaf.DATE: _date_from,
    Leaf.TIME: _time_from,
    Leaf.TIMEDELTA: _timedelta_from,
    Leaf.BYTES: bytes,
}
