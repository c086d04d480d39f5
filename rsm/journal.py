"""How an atomic command that raised is undone, at a cost that goes with what it touched.

::

    journal = Journal()
    journal.begin(machine)
    ...                         # the command runs
    journal.commit()            # forget, or
    journal.rollback()          # everything is as it was: the same objects, in the same order

**Touching.** A command reaches its state through the machine. What it reaches is touched, once, before it
can be changed:

*journaled containers* (``journal_containers``) are armed: they note what is done to them from then on, and
touch what they hand out. That is why the size of a container does not matter;

*everything else that can change* is noted by a shallow copy: the attributes of an object, the entries of a
plain container, the bytes of a bytearray. Those do not tell when they are read, so what they refer to is
touched along with them, and so on up to the next journaled container. So touching a record costs its own
size; touching a node of a graph of objects that are linked by attributes alone costs the graph.

The attributes of the machine are touched when the command begins.

**Adoption.** Plain containers become journaled by ``adopt``, which walks a state and puts twins in their
place, everywhere they are referred to. That is done between commands only, when a machine is made or
restored: a command that assigned a list and went on with the one it has in its hands would otherwise change
one that nobody looks at any more. Containers that commands add are plain until then, and noted by copy. When
those copies have cost as much as another walk would, ``begin`` adopts again.

**Refused** is what cannot be seen: objects with a part in C, functions with closures, iterators.
``NotUndoable`` says which, when they are adopted or touched.

Not state, and not undone: attributes of classes and modules; attributes set on a journaled counter.

The tables here are keyed by ``id()``; the journal holds the objects meanwhile, and no id leaves it.
"""

from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any, Final

from rsm.journal_adoption import Adoption, adopt
from rsm.journal_containers import (
    JournaledCounter,
    JournaledDefaultDict,
    JournaledDeque,
    JournaledDict,
    JournaledList,
    JournaledSet,
    NotUndoable,
    Record,
)
from rsm.journal_dicts import ArmedCounter, ArmedDefaultDict, ArmedDict
from rsm.journal_kinds import ATOMIC, PLAIN, Keeper, keeper_of
from rsm.journal_sequences import ArmedDeque, ArmedList, ArmedSet, check_list, list_ends

__all__ = ["Journal", "NotUndoable", "adopt"]

ARMED: Final[dict[type, type]] = {
    JournaledDict: ArmedDict,
    JournaledDefaultDict: ArmedDefaultDict,
    JournaledCounter: ArmedCounter,
    JournaledList: ArmedList,
    JournaledSet: ArmedSet,
    JournaledDeque: ArmedDeque,
}
AT_REST: Final = {armed: at_rest for at_rest, armed in ARMED.items()}
_DICTS: Final = (ArmedDict, ArmedDefaultDict, ArmedCounter)
_NOTHING_TO_DO: Final = ATOMIC | AT_REST.keys()

COPIED_MIN: Final = 10_000  # entries of plain containers, before adopting again is considered


class Recording:
    """One command, by the rules of ``with``."""

    __slots__ = ("journal", "machine")

    def __init__(self, journal: "Journal", machine: object) -> None:
        self.journal = journal
        self.machine = machine

    def __enter__(self) -> None:
        self.journal.begin(self.machine)

    def __exit__(self, raised: type[BaseException] | None, *_: object) -> None:
        if raised is None:
            self.journal.commit()
        else:
            self.journal.rollback()


class Journal:
    """Records one command at a time."""

    def __init__(self, ignored: Iterable[str] = ()) -> None:
        self.ignored = frozenset(ignored)  # attributes of the machine that are not its state
        self.active = False
        self.copied = 0  # entries of plain containers, since the last adoption
        self.adopted = 0  # how much there was to walk then
        self._machine: object = None
        self._log: list[tuple[Any, ...]] = []
        self._note_undo = self._log.append
        self._touch_once = self._touch
        self._armed: list[Any] = []
        self._noted: dict[int, tuple[Any, Keeper, Any]] = {}

    def recording(self, machine: object) -> Recording:
        """Commit what is done within, or roll back if it raises."""
        return Recording(self, machine)

    def adopt(self, machine: object) -> None:
        """Make the containers of a machine journaled ones; never while a command runs."""
        if self.active:
            raise RuntimeError("a command is being recorded")
        adoption = Adoption()
        adoption.machine(machine, self.ignored)
        self.adopted, self.copied = adoption.walked, 0

    def begin(self, machine: object) -> None:
        if self.active:
            raise RuntimeError("a command is being recorded already")
        if self.copied > max(self.adopted, COPIED_MIN):
            self.adopt(machine)
        self.active, self._machine = True, machine
        keeper = keeper_of(machine)
        saved = keeper.save(machine)
        self._noted[id(machine)] = (machine, keeper, saved)
        try:
            for name, value in keeper.named(saved):
                if name not in self.ignored:
                    self._touch(value)
        except NotUndoable:
            self.rollback()
            raise

    def commit(self) -> None:
        """Keep what was done. Raises NotUndoable, and keeps it, if it could not have been undone."""
        self._end(self._settle)

    def rollback(self) -> None:
        """Undo everything. Raises NotUndoable, and undoes nothing, if that is not possible."""
        self._end(self._undo)

    def presentable(self, result: Any) -> Any:
        """What an encoder written in C may be shown while a command is being recorded.

        It reads dicts past their methods, and would stumble over the marks of deleted keys.
        """
        marked = any(isinstance(each, _DICTS) and each._record.gone for each in self._armed)
        return deepcopy(result) if marked else result

    # -- touching --------------------------------------------------------------------------------

    def _touch(self, value: Any) -> Any:
        kind = type(value)
        if kind in _NOTHING_TO_DO:
            return value
        if kind in ARMED:
            self._arm(value, ARMED[kind])
        elif id(value) not in self._noted:
            self._note(value)
        return value

    def _arm(self, container: Any, armed: type) -> None:
        record = Record(self._note_undo, self._touch_once)
        container._record = record
        if armed is ArmedList:
            record.ends = list_ends(container)
        elif armed is ArmedDefaultDict:
            self._log.append((setattr, container, "default_factory", container.default_factory))
        container.__class__ = armed
        self._armed.append(container)

    def _note(self, value: Any) -> None:
        """A thing, and what can be reached from it without passing a journaled container."""
        noted = self._noted
        waiting = [value]
        while waiting:
            thing = waiting.pop()
            kind = type(thing)
            if kind in _NOTHING_TO_DO or id(thing) in noted:
                continue
            if kind in ARMED:
                self._arm(thing, ARMED[kind])
                continue
            keeper = keeper_of(thing)
            saved = keeper.save(thing)
            noted[id(thing)] = (thing, keeper, saved)
            before = len(waiting)
            waiting += keeper.inside(saved)
            if kind in PLAIN:
                self.copied += len(waiting) - before

    # -- the end ---------------------------------------------------------------------------------

    def _end(self, finish: Callable[[], None]) -> None:
        if not self.active:
            raise RuntimeError("no command is being recorded")
        try:
            for container in self._armed:
                if type(container) is ArmedList:
                    check_list(container)
        except NotUndoable:
            self._settle()
            raise
        else:
            finish()
        finally:
            for container in self._armed:
                container.__class__ = AT_REST[type(container)]
                del container._record
            self.active, self._machine = False, None
            self._armed.clear()
            self._noted.clear()
            self._log.clear()

    def _settle(self) -> None:
        for container in self._armed:
            if isinstance(container, _DICTS) and container._record.gone:
                container._settle()

    def _undo(self) -> None:
        """Objects first: where they are keys or sorted, their attributes decide their place."""
        containers = []
        for thing, keeper, saved in self._noted.values():
            if thing is self._machine and self.ignored:
                keeper.restore(thing, self._with_ignored(keeper, saved))
            elif keeper.shape is not None:
                keeper.restore(thing, saved)
            else:
                containers.append((thing, keeper, saved))
        for function, *arguments in reversed(self._log):
            function(*arguments)
        for thing, keeper, saved in containers:
            keeper.restore(thing, saved)

    def _with_ignored(self, keeper: Keeper, saved: Any) -> Any:
        """The attributes of the machine as they were, but for those that are not its state."""
        now = {
            name: value for name, value in keeper.named(keeper.save(self._machine)) if name in self.ignored
        }
        kept = {name: now.pop(name, value) for name, value in saved.items()}
        return kept | now
