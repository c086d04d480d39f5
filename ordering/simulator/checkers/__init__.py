"""What must hold, one claim per file. Checkers see everything and touch nothing.

A checker judges by what a process tells its host (effects) and by what was submitted. Only where
the claim is about what processes *have* (resilience, single_token, bounds, hold_statements, …) does it
look into engines. ``history`` keeps, for several checkers, what is final where; ``survivors`` says
who must have everything at the end.

==================  ===============================================================================
order               total_order, causal_order, source_order, integrity, single_token
membership          virtual_synchrony, view_agreement, hold_statements, voters_have_state
nothing is lost     resilience, agreement, digest, promises
locks and time      lock_exclusion, handler_locks, slot_time
work gets done      liveness, lock_liveness, bounds, nack_rate, exact_nacks, send_window
calls               call_integrity, caller_order, call_resilience, one_reply, call_liveness
==================  ===============================================================================
"""

from ordering.simulator.checkers.agreement import Agreement
from ordering.simulator.checkers.base import Checker
from ordering.simulator.checkers.bounds import Bounds
from ordering.simulator.checkers.call_integrity import CallIntegrity
from ordering.simulator.checkers.call_liveness import CallLiveness
from ordering.simulator.checkers.call_resilience import CallResilience
from ordering.simulator.checkers.caller_order import CallerOrder
from ordering.simulator.checkers.causal_order import CausalOrder
from ordering.simulator.checkers.digest import Digest
from ordering.simulator.checkers.exact_nacks import ExactNacks
from ordering.simulator.checkers.handler_locks import HandlerLocks
from ordering.simulator.checkers.history import History, OrderChecker
from ordering.simulator.checkers.hold_statements import HoldStatements
from ordering.simulator.checkers.integrity import Integrity
from ordering.simulator.checkers.liveness import Liveness
from ordering.simulator.checkers.lock_exclusion import LockExclusion
from ordering.simulator.checkers.lock_liveness import LockLiveness
from ordering.simulator.checkers.nack_rate import NackRate
from ordering.simulator.checkers.one_reply import OneReply
from ordering.simulator.checkers.promises import Promises
from ordering.simulator.checkers.resilience import Resilience
from ordering.simulator.checkers.send_window import SendWindow
from ordering.simulator.checkers.single_token import SingleToken
from ordering.simulator.checkers.slot_time import SlotTime
from ordering.simulator.checkers.source_order import SourceOrder
from ordering.simulator.checkers.total_order import TotalOrder
from ordering.simulator.checkers.view_agreement import ViewAgreement
from ordering.simulator.checkers.virtual_synchrony import VirtualSynchrony
from ordering.simulator.checkers.voters_have_state import VotersHaveState

ALL_CHECKERS: tuple[type[Checker], ...] = (
    TotalOrder,
    CausalOrder,
    SourceOrder,
    Integrity,
    Agreement,
    VirtualSynchrony,
    ViewAgreement,
    Resilience,
    Digest,
    SingleToken,
    Bounds,
    NackRate,
    Liveness,
    HoldStatements,
    VotersHaveState,
    Promises,
    LockExclusion,
    HandlerLocks,
    SlotTime,
    LockLiveness,
    CallIntegrity,
    CallResilience,
    CallerOrder,
    OneReply,
    CallLiveness,
    ExactNacks,
    SendWindow,
)


def make_checkers() -> list[Checker]:
    """One of each for one run; those that follow the order share their bookkeeping."""
    history = History()
    return [kind(history) if issubclass(kind, OrderChecker) else kind() for kind in ALL_CHECKERS]


__all__ = ["ALL_CHECKERS", "Checker", "make_checkers"]
