"""How a site becomes a member: as a joiner, or with the group.

A joiner becomes a learner (RMP §4.3, rule R7), with the NewList that names it, or behind it.

The NewList hands over the vector, a state transfer brings the state. Never as a voter: who votes must not
claim to hold what it never had.
"""

from typing import TYPE_CHECKING

from ordering.effects import RequestState
from ordering.errors import MembershipError
from ordering.packets import ChangeKind, Collected, Descent, Head, NewList
from ordering.site import Site, Timer
from ordering.state import State
from ordering.views import View, ViewId

if TYPE_CHECKING:
    from ordering.engine import Engine


def start(engine: "Engine", *, founder: bool) -> None:
    site = engine.site
    check_idle(site)
    if founder and site.member.address not in site.config.founders:
        raise MembershipError(
            f"founder: {site.member.address!r} is not among the founders"
            f" ({', '.join(site.config.founders)}); add it there, or start with founder=False to join"
        )
    if founder:
        site.state = State.FOUNDING
        engine.birth.fire()
        try_birth(engine, engine.birth.complete())
    else:
        join(engine)


def check_idle(site: Site) -> None:
    if site.state is not State.IDLE:
        raise MembershipError(
            f"started: this site is {site.state.value} already; to begin anew, make a new engine"
        )


# -- joiners ------------------------------------------------------------------------------------


def join(engine: "Engine") -> None:
    site = engine.site
    site.state = State.JOINING
    site.disarm(Timer.HELLO)
    engine.membership.want(ChangeKind.JOIN, site.member)


def begin_with_new_list(engine: "Engine", packet: NewList) -> None:
    site = engine.site
    order = packet.order
    if order.view is None or site.me in order.view.electorate:
        return
    _enter(engine, packet.head, packet.descent, order.epoch, order.ts)
    site.queue.departed.update(packet.departed)
    site.queue.start_at(order)
    engine.durability.begin(None, order.ts - 1)
    engine.delivery.start_at(order.ts)
    _ask_for_state(engine, order.ts)


def begin_at_position(engine: "Engine", packet: Collected) -> None:
    """The NewList that named us is collected: we begin where the log of the others does."""
    site = engine.site
    position = packet.position
    if site.me in position.view.electorate:
        return
    _enter(engine, packet.head, packet.descent, position.epoch, position.ts)
    site.queue.departed.update(packet.departed)
    site.queue.leap(position)
    site.queue.started_at = position.ts
    engine.durability.begin(None, position.ts)
    engine.durability.leapt(position, new_epoch=True)
    site.stability.leap(position.ts, new_epoch=True)
    engine.delivery.leap(position)
    _ask_for_state(engine, position.ts)


def _enter(engine: "Engine", head: Head, descent: Descent, epoch: int, ts: int) -> None:
    site = engine.site
    site.disarm(Timer.HELLO)
    site.chain = head.chain
    site.descent = descent
    site.epoch = epoch
    site.begin_chain(ts)
    site.clock.placed_at = site.now
    if head.epoch == epoch:  # a later epoch's statements do not count in this one (R3)
        site.stability.note(head)
    site.state = State.NOT_TOKEN_SITE


def _ask_for_state(engine: "Engine", ts: int) -> None:
    site = engine.site
    site.note_addresses()
    engine.detection.enter_epoch()
    engine.fork.start()
    engine.removal.start()
    site.out.append(RequestState(ts, site.chain, site.view.electorate))


# -- founders -----------------------------------------------------------------------------------


def try_birth(engine: "Engine", view: View | None) -> None:
    """All founders have said that they were never members: begin."""
    if view is None or engine.site.state is not State.FOUNDING:
        return
    enter_birth(engine, engine.birth.chain_of(view), view)
    if view.electorate[0] == engine.site.me:
        engine.recovery.initiate()


def enter_birth(engine: "Engine", chain: int, view: View) -> None:
    """Epoch 0: fenced from the start, nothing ordered, waiting for the decision of instance 0."""
    site = engine.site
    engine.founded = True
    site.chain = chain
    site.descent = Descent(chain, 0)
    site.epoch = 0
    site.state = State.PROMISED
    site.queue.found(View(ViewId(0, 0), view.members, view.electorate, ()))
    engine.durability.begin(site.view, 0)
    site.note_addresses()
    engine.recovery.enter_epoch()
    site.fenced = True
    engine.recovery.wait_for_others()
    engine.fork.start()
    engine.removal.start()
