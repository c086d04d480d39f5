"""What a person subclasses.

::

    class Counter(StateMachine):
        def __init__(self) -> None:
            self.value = 0

        @command
        def add(self, n: int) -> int:
            self.value += n
            return self.value

        @query
        def get(self) -> int:
            return self.value

A machine is an ordinary class: its methods can be called directly, in a test say. Replicated, every replica
executes every command in one order, so a command must depend on nothing but the state, its arguments and
``self.context``: no clock, no randomness of its own, no input or output, no iteration over a set that decides
anything.
"""

from collections.abc import Callable, Iterable
from random import Random
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Concatenate,
    Final,
    Generic,
    NamedTuple,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    cast,
    overload,
)

import msgspec

from ordering.views import SiteId, View
from rsm.errors import MachineError
from rsm.figures import Figure
from rsm.recorded_history import RecordedHistory
from rsm.state_types import values_of

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M")
M_contra = TypeVar("M_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)

_MARK: Final = "_rsm_mark"
_DETACHED: Final = "_rsm_detached"
FIRST_VERSION: Final = 1


class Mark(NamedTuple):
    """What a decorator says of a method."""

    is_command: bool
    atomic: bool = False
    since: int = FIRST_VERSION


class Since(msgspec.Struct, frozen=True):
    """``x: Annotated[int, Since(2)] = 0``: an argument that came with version 2. Until the group runs that
    version everybody goes by the default, whatever was sent."""

    version: int


class Marked(Generic[M_contra, P, R_co]):
    """A command or query, as type checkers see it; it is the function itself. On a machine it is a plain
    method. A proxy has one of the same arguments that must be awaited (``rsm.mypy_plugin``), and
    ``Proxy.call`` takes it by the class: ``call(Counter.add, 1)``."""

    if TYPE_CHECKING:
        __name__: str

        def __call__(self, machine: M_contra, /, *args: P.args, **kwargs: P.kwargs) -> R_co: ...

        @overload
        def __get__(self, machine: None, owner: Any = None, /) -> Self: ...

        @overload
        def __get__(self, machine: M_contra, owner: Any = None, /) -> Callable[P, R_co]: ...

        def __get__(self, machine: Any, owner: Any = None, /) -> Any: ...


class Command(Marked[M_contra, P, R_co]):
    pass


class Query(Marked[M_contra, P, R_co]):
    pass


class CommandMaker(Protocol):
    """What ``@command(...)`` is."""

    def __call__(self, method: Callable[Concatenate[M, P], R], /) -> Command[M, P, R]: ...


@overload
def command(method: Callable[Concatenate[M, P], R], /) -> Command[M, P, R]: ...


@overload
def command(*, atomic: bool = False, since: int = FIRST_VERSION) -> CommandMaker: ...


def command(
    method: Callable[..., Any] | None = None, /, *, atomic: bool = False, since: int = FIRST_VERSION
) -> Any:
    """A method that may change the state. ``atomic``: if it raises, it has changed nothing. ``since``: the
    version of the machine that brought it."""
    mark = Mark(is_command=True, atomic=atomic, since=since)
    if since < FIRST_VERSION:
        raise MachineError(f"since: {since} must be at least {FIRST_VERSION}")
    return _marked(method, mark) if method is not None else lambda function: _marked(function, mark)


def query(method: Callable[Concatenate[M, P], R], /) -> Query[M, P, R]:
    """A method that only reads. It is not replicated: one replica answers."""
    return cast(Query[M, P, R], _marked(method, Mark(is_command=False)))


def _marked(method: Callable[P, R], mark: Mark) -> Callable[P, R]:
    if not hasattr(method, "__dict__"):
        raise MachineError(f"{method!r}: decorate a plain function of the class")
    vars(method)[_MARK] = mark
    return method


def mark_of(function: object) -> Mark | None:
    mark = getattr(function, _MARK, None)
    return mark if isinstance(mark, Mark) else None


def detached(method: Callable[P, R], /) -> Callable[P, R]:
    """Says of a ``snapshot`` that it can be read while commands run.

    ::

        @detached
        def snapshot(self) -> Iterator[bytes]:
            entries = list(self.entries.items())    # a copy: commands wait until the first chunk
            for at in range(0, len(entries), 1000):
                yield encode(entries[at : at + 1000])

    Once it has given a chunk that is not empty, what it still gives must depend on nothing that a command may
    change; it may then be read in another thread. Until then commands wait, and an empty chunk lets the
    event loop turn, which should happen every millisecond. Without this mark commands wait until the snapshot
    is read to its end, and all of it is kept in memory.
    """
    vars(method)[_DETACHED] = True
    return method


def is_detached(machine: "StateMachine") -> bool:
    return getattr(type(machine).snapshot, _DETACHED, False) is True


class GroupView(msgspec.Struct, frozen=True):
    """The group from one slot on: ``ring`` gets the token, ``electorate`` votes, ``learners`` will. ``boots``
    tells processes apart that were the same site, by 32 hexadecimal digits: they are longer than an integer
    of MessagePack may be. It is empty in a state that an older release has saved."""

    timestamp: int
    chain: int
    epoch: int
    revision: int
    ring: tuple[SiteId, ...]
    electorate: tuple[SiteId, ...]
    learners: tuple[SiteId, ...]
    addresses: dict[SiteId, str]
    boots: dict[SiteId, str] = {}

    @classmethod
    def of(cls, ts: int, chain: int, view: View) -> "GroupView":
        return cls(
            ts,
            chain,
            view.id.epoch,
            view.id.revision,
            view.ring,
            view.electorate,
            view.learners,
            {member.site: member.address for member in view.members},
            {member.site: f"{member.boot:032x}" for member in view.members},
        )


class Context:
    """Where in the order a command is, the same at every replica.

    ``timestamp`` grows with every command and is never used again. ``time_ns`` is the group's time in
    nanoseconds since 1970: it never goes back, and is as right as the clocks of the sites. In a query both
    are those of the last slot that the state contains. ``session`` is the caller's, 0 outside of commands.
    """

    def __init__(self) -> None:
        self.timestamp = 0
        self.time_ns = 0
        self.session = 0
        self.view: GroupView | None = None
        self._chance: Random | None = None
        self._drawn_at = 0

    @property
    def random(self) -> Random:
        """Chance that is the same everywhere, and another for every command."""
        if self._chance is None or self._drawn_at != self.timestamp:
            chain = self.view.chain if self.view is not None else 0
            self._chance, self._drawn_at = Random(f"{chain} {self.timestamp}"), self.timestamp
        return self._chance


class StateMachine:
    """Subclass it; the state is what the instance's attributes hold.

    ``version`` is the newest version of the commands that this class can run (``docs/framework.md``).
    """

    __slots__ = ("_context",)

    version: ClassVar[int] = FIRST_VERSION
    # Classes of objects in the state that neither annotations name nor the machine's module has.
    state_types: ClassVar[tuple[type, ...]] = ()

    @property
    def context(self) -> Context:
        try:
            return self._context
        except AttributeError:
            raise MachineError(
                f"{type(self).__name__}.context: no command is under way; to call commands directly, set"
                " machine.context = Context() first"
            ) from None

    @context.setter
    def context(self, context: Context) -> None:
        self._context = context

    # -- to override -----------------------------------------------------------------------------

    def apply(self, data: bytes) -> bytes:
        """The raw route: bytes in, bytes out, instead of typed commands or beside them."""
        raise NotImplementedError(f"{type(self).__name__} takes no raw commands; override apply")

    def on_view(self, view: GroupView) -> None:
        """Ring or electorate have changed, in order with the commands."""

    def alarm(self) -> int | None:
        """When, in the group's time (``context.time_ns``), time alone is to change the state; None: never.
        It is asked after each command, alarm and view, and holds until it is asked again."""
        return None

    def on_alarm(self) -> None:
        """The time of ``alarm`` has come, in order with the commands: before the first message whose slot is
        not earlier. An idle group orders such a slot by itself. It should do a bounded amount of work; if
        ``alarm`` is still not later than now, it is called again at the next message."""

    def figures(self) -> Iterable[Figure]:
        """For metrics (``rsm.figures``)."""
        return ()

    def recorded_history(self) -> RecordedHistory | None:
        """What happened to its keys, if it keeps that and it is to be recorded (``change_records``): the same
        object as long as the state is the same."""
        return None

    @detached
    def snapshot(self) -> Iterable[bytes]:
        """The state as bytes, in chunks. It must not depend on the process: no order of a set, no address.
        Chunks may be empty. See ``detached``."""
        return values_of(type(self), self.state_types).freeze(vars(self))

    def restore(self, chunks: Iterable[bytes]) -> None:
        """The opposite, on a new instance, perhaps in another thread. Chunks may be cut elsewhere; those of a
        large state are best taken as they come, for between them others have a turn."""
        state = values_of(type(self), self.state_types).load(chunks)
        vars(self).clear()
        vars(self).update(state)
