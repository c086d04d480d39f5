"""A state becomes bytes, and bytes a state, without pickle: nothing in the bytes can name code to run.

``Values`` knows the classes of a state. What Python itself has needs no listing: None, bools, numbers (ints
of any size, Decimal, Fraction), texts, bytes, tuples, lists, dicts, sets, deques, ``collections``' dicts,
dates and times (naive, or with a fixed offset), UUIDs, and sorted containers without a key function. Listed
are dataclasses, structs, enums, named tuples, and plain classes.

*The same history gives the same bytes*, in every process. Dicts are written in their order, sets by their
elements' bytes. A set may hold values only: where an object with an identity stands in it, no order that
all processes share could be given it.

*Identity.* An object that can change is written once; every other way to it becomes a reference, so a
restored state has the same sharing, and the same cycles. Values (``values_shapes`` says which classes) are
written each time they are met: identity of an immutable is an accident of the process, and must not reach
the bytes. A structure of tuples that share their parts grows accordingly.

*What cannot be saved* raises ``NotEncodable``; what cannot be read, for whatever reason, ``NotDecodable``.
Journaled containers are written as what they stand for, and read as plain ones.
"""

from collections.abc import Iterable, Iterator, Mapping

from rsm.values_format import NotDecodable, NotEncodable
from rsm.values_reader import Reader
from rsm.values_shapes import Classes
from rsm.values_writer import Writer, is_own

__all__ = ["NotDecodable", "NotEncodable", "Values"]


class Values:
    """Saves and restores states made of Python's own types and the given classes."""

    def __init__(self, types: Iterable[type] = ()) -> None:
        self._classes = Classes(cls for cls in types if not is_own(cls))

    def dump(self, state: Mapping[str, object]) -> Iterator[bytes]:
        """The state, in chunks of at most 64 KiB.

        What is made next is decided when the next chunk is asked for: the state must not change in between.
        """
        return Writer(self._classes).write(state)

    def freeze(self, state: Mapping[str, object]) -> Iterator[bytes]:
        """The same bytes, of which only the first ask for the state: it may change once a chunk has come that
        is not empty. Until then the chunks are empty, each after a short step, for others to have a turn.

        What is remembered meanwhile are references to the state's large values, and the bytes of the small.
        """
        return Writer(self._classes).frozen(state)

    def load(self, chunks: Iterable[bytes]) -> dict[str, object]:
        """The state whose dump this is. Chunks may be cut anywhere."""
        reader = Reader(self._classes, chunks)
        try:
            return reader.read()
        except (NotDecodable, MemoryError):
            raise
        except Exception as error:
            if error is reader.source.failure:
                raise
            raise NotDecodable(f"the state is damaged: {type(error).__name__}: {error}") from error
