"""The bytes of a state: what the writer writes and the reader reads.

::

    magic "RSMV" and version    5 bytes
    TYPES                       names of the allowed classes, sorted
    NAMES                       the attributes of the machine
    items                       their values
    END                         CRC-32C of everything before

Everything after the magic is *tokens*: one byte what it is, four bytes (big-endian) a number. The number is a
count, a length of bytes that follow (at most ``PAYLOAD_MAX``), or an index.

*Items* are what a container holds, written as tokens until there are as many as it has::

    RUN      n bytes    MessagePack array of leaves: many items by one call in C
    ROWS     n bytes    MessagePack array: index of a layout, then the attributes of objects that have it
    REF      number     a container or object that came before, by its place in the order of appearance
    others              one item, with its own items behind it

A *leaf* is None, a bool, a number, a text, bytes, or an extension type below: dates, enums, and tuples and
frozen objects of few leaves. Dicts alternate up to ``RUN_ITEMS`` keys and as many values. A *layout* is a
class and the names of the attributes an object of it has.

Texts and bytes too long for a run are cut into PIECEs, the last one empty.
"""

from collections import Counter, OrderedDict, deque
from enum import IntEnum
from struct import Struct as Layout
from typing import Final

MAGIC: Final = b"RSMV\1"
TOKEN: Final = Layout(">BI")
NUMBER_MAX: Final = (1 << 32) - 1

CHUNK_BYTES: Final = 1 << 16
SEAM_BYTES: Final = 1 << 10  # what is written together, at least
RUN_ITEMS: Final = 1024
STEP_ITEMS: Final = 2048  # values looked at before others may have a turn
LATER_CHARS: Final = 32  # of a leaf: from here on a reference to it takes less than its bytes
RUN_CHARS: Final = 1 << 14  # of texts and bytes in one run; UTF-8 may take four bytes of each
LEAF_ITEMS: Final = 64  # of a tuple that is a leaf
LEAF_BYTES: Final = 1 << 12
LEAF_DEPTH: Final = 16
VALUE_DEPTH_MAX: Final = 500  # of tuples in tuples: hashing them recurses in C
ROW_FIELDS: Final = 4 * RUN_ITEMS  # in one ROWS
PAYLOAD_MAX: Final = 1 << 20
TYPES_MAX: Final = 10_000


class NotEncodable(ValueError):
    """A state holds something that cannot be saved."""


class NotDecodable(ValueError):
    """These bytes are not a saved state, or not one of these classes."""


class Op(IntEnum):
    """Tokens. Those of containers and objects that have an identity stand below ``TUPLE``."""

    LIST = 1
    DICT = 2
    SET = 3
    DEQUE = 4
    ORDERED = 5
    DEFAULT = 6
    COUNTER = 7
    SORTED_DICT = 8
    SORTED_LIST = 9
    SORTED_SET = 10
    BYTEARRAY = 11
    OBJECT = 12
    TUPLE = 32
    FROZENSET = 33
    NAMED = 34
    VALUE = 35
    BLOB = 36
    PIECE = 48
    LAYOUT = 49
    RUN = 50
    ROWS = 51
    REF = 52
    TYPES = 53
    NAMES = 54
    END = 55


class Leaf(IntEnum):
    """Extension types of MessagePack; also what a BLOB's pieces are bytes of."""

    INT = 1
    TEXT = 2
    DECIMAL = 3
    FRACTION = 4
    UUID = 5
    DATETIME = 6
    DATE = 7
    TIME = 8
    TIMEDELTA = 9
    ENUM = 10
    TUPLE = 11
    FROZENSET = 12
    NAMED = 13
    VALUE = 14
    BYTES = 15  # only in pieces


# Classes of Python a defaultdict may make its values with, by their place here.
FACTORIES: Final[tuple[type | None, ...]] = (
    None,
    bool,
    int,
    float,
    str,
    bytes,
    list,
    dict,
    set,
    tuple,
    frozenset,
    bytearray,
    deque,
    Counter,
    OrderedDict,
)
