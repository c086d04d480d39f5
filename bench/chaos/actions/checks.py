"""Whether a round of actions was good: what was begun and told, against the ledger and all databases."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from apps.actions.outcomes import is_finished
from apps.actions.types import Action, State
from bench.chaos.actions.bank import ACCOUNTS, BALANCE, Ledgers, sums
from bench.chaos.actions.history import Actions, Told
from bench.chaos.books import Checked
from bench.chaos.checks import compare_replicas
from bench.chaos.history import Ended
from bench.chaos.site import Standing

_TOLD_MAX: Final = 20


def judge_actions(
    history: Actions, actions: Sequence[Action], books: Sequence[Ledgers], standings: Sequence[Standing]
) -> tuple[list[str], Checked]:
    """Everything that is wrong, and how much was looked at."""
    ledger = {each.id: each for each in actions}
    problems = [
        *compare_replicas(standings, [(each.decided, 0, 0) for each in actions]),
        *_first(check_ledger(history, ledger)),
        *_first(check_told(history, ledger)),
        *_first(check_dependencies(history, ledger)),
        *_first(check_applied(history, ledger, books)),
        *_first(check_money(books)),
    ]
    told = Counter(each.ended for each in history.told.values())
    checked = Checked(
        operations=len(history.begun),
        acknowledged=told[Ended.OK] + told[Ended.REJECTED],
        unknown=len(history.begun) - told.total() + told[Ended.UNKNOWN],
        refused=told[Ended.REFUSED],
        executed=len(ledger),
        committed=sum(each.state is State.COMMITTED for each in actions),
        in_doubt=sum(len(each.prepared) for each in history.found),
        dependent=sum(bool(each.depends) for each in history.begun.values()),
    )
    return problems, checked


def _first(problems: Iterator[str]) -> list[str]:
    return [problem for problem, _ in zip(problems, range(_TOLD_MAX), strict=False)]


def check_ledger(history: Actions, ledger: Mapping[str, Action]) -> Iterator[str]:
    """Everything is decided, and everybody has done what was; each is what somebody has begun."""
    for action in ledger.values():
        if not action.state.is_decided:
            yield f"{action.id}: is {action.state}, and nothing is under way any more"
        elif not is_finished(action):
            done = ", ".join(each.site for each in action.finished if not each.error) or "nobody"
            yield f"{action.id}: is committed; of {', '.join(action.sites)} only {done} have finished it"
        begun = history.begun.get(action.id)
        if begun is None:
            yield f"{action.id}: nobody has begun it"
        elif action.operations and [each.site for each in begun.moves] != [
            each.site for each in action.operations
        ]:
            yield f"{action.id}: the ledger has other operations than were begun"


def check_told(history: Actions, ledger: Mapping[str, Action]) -> Iterator[str]:
    """What a caller was told is what became of it."""
    for name, told in history.told.items():
        action = ledger.get(name)
        state = "not in the ledger" if action is None else action.state.value
        if not _agrees(told, action):
            yield f"{name}: its caller was told {_words(told)}; it is {state}"


def _agrees(told: Told, action: Action | None) -> bool:
    match told.ended:
        case Ended.OK:
            return action is not None and action.state is State.COMMITTED
        case Ended.REJECTED:
            return action is not None and action.state is State.ABORTED
        case Ended.REFUSED:
            return action is None
        case _:
            return True


def _words(told: Told) -> str:
    names = {Ended.OK: "committed", Ended.REJECTED: "aborted", Ended.REFUSED: "refused"}
    return f"{names.get(told.ended, told.ended.value)}{f' ({told.why})' if told.why else ''}"


def check_dependencies(history: Actions, ledger: Mapping[str, Action]) -> Iterator[str]:
    """What is committed has what it depends on behind it, or decided in the same slot."""
    for name, begun in history.begun.items():
        action = ledger.get(name)
        if action is None or action.state is not State.COMMITTED:
            continue
        for other in begun.depends:
            found = ledger.get(other)
            if found is None or found.state is not State.COMMITTED:
                yield f"{name}: is committed, and {other}, which it depends on, is not"
            elif found.decided > action.decided:
                yield f"{name}: was committed in slot {action.decided}, before {other} in {found.decided}"


def check_applied(history: Actions, ledger: Mapping[str, Action], books: Sequence[Ledgers]) -> Iterator[str]:
    """A committed action is in the databases of all its sites, once; any other is in none of them."""
    wanted: Counter[tuple[str, str, str, int]] = Counter()
    for name, begun in history.begun.items():
        action = ledger.get(name)
        if action is not None and action.state is State.COMMITTED:
            wanted.update((each.site, name, each.account, each.amount) for each in begun.moves)
    found = Counter({(each.site, *entry): count for each in books for entry, count in each.entries.items()})
    for site, name, account, amount in sorted(wanted | found):
        entry = (site, name, account, amount)
        if wanted[entry] != found[entry]:
            state = ledger[name].state.value if name in ledger else "not in the ledger"
            yield (
                f"{name}: is {state}, so {amount} of {account} at {site} should be applied {wanted[entry]}"
                f" times; it was {found[entry]} times"
            )
    for each in books:
        for unit in each.prepared:
            yield f"{unit}: is still prepared at {each.site}"


def check_money(books: Sequence[Ledgers]) -> Iterator[str]:
    """All that was there is there, and nobody owes anything."""
    wanted = sums(books)
    for each in books:
        for account, balance in each.balances.items():
            if balance != wanted[each.site, account]:
                yield f"{account} at {each.site} has {balance}; its entries give {wanted[each.site, account]}"
            if balance < 0:
                yield f"{account} at {each.site} has {balance}, less than nothing"
    whole = sum(sum(each.balances.values()) for each in books)
    if whole != len(books) * ACCOUNTS * BALANCE:
        yield f"all sites together have {whole}; they began with {len(books) * ACCOUNTS * BALANCE}"
