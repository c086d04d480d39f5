"""`rsm actions`: how actions at several sites stand, and what an operator orders of them."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import msgspec
import typer
from rich.console import Console
from rich.markup import escape

from apps.actions import (
    Action,
    ActionLedger,
    ActionUnknown,
    Initiator,
    RequestRefused,
    SiteState,
    State,
    Unit,
)
from apps.actions.doubts import ONLY_LOOK, Doubt, Doubts, Question, Settled, ask_doubts
from apps.actions.outcomes import is_finished
from cli.action_words import doubt_line, line_of, row_of, said_of, said_of_site, told
from cli.asking import SiteFile, client_of, load_site
from cli.showing import UNKNOWN, Output, check_output, fitting_table, messages, refuse
from ordering.driver import run
from ordering.errors import OrderingError
from rsm.client import Client
from rsm.errors import AnswerFailed, AskError, CallError, ChainChanged, OutcomeUnknown, Rejected, RsmError

app = typer.Typer(
    help="Look at actions that change several databases, and order what an operator may.",
    no_args_is_help=True,
)

T = TypeVar("T")
Ledger: TypeAlias = Client[ActionLedger]

PAGE: Final = 1000
ASK_SECONDS: Final = 2.0
ABORTED: Final = 1

Id = Annotated[str, typer.Argument(metavar="ACTION", help="Its id.", show_default=False)]
SiteName = Annotated[str, typer.Argument(metavar="SITE", help="Its name, as rsm actions sites shows it.")]
Timeout = Annotated[float, typer.Option(min=0.001, help="Seconds for each question.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask whether it is meant.")]


# -- looking -------------------------------------------------------------------------------------


@app.command(name="ls")
def list_actions(
    config: SiteFile,
    state: Annotated[State | None, typer.Option(help="Only these.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = PAGE,
    output: Output = "table",
    timeout: Timeout = 5.0,
) -> None:
    """List actions by their ids: all that are not over, and the last ones that
    are.

    Exit codes: 0 done, also if there is none, 2 a wrong call, 4 no answer.

      rsm actions ls --state voting -c site-1.toml
    """
    check_output(output)

    async def work(client: Ledger) -> list[Action]:
        found: list[Action] = []
        while len(found) < limit:
            after = found[-1].id if found else ""
            page = await client.proxy.actions(state, after, min(PAGE, limit - len(found)))
            if not page:
                break
            found += page
        return found

    found = _asked(config, timeout, work)
    if output == "json":
        _say({"items": [said_of(each) for each in found]})
        return
    console = Console(highlight=False)
    titles = ["id", "state", "sites", "votes", "requested", "decided", "unfinished", "reason"]
    console.print(fitting_table(console, titles, map(row_of, found)))


@app.command()
def show(action: Id, config: SiteFile, output: Output = "table", timeout: Timeout = 5.0) -> None:
    """Show one action: its operations, the votes in the order in which they
    were ordered, and who has applied it.

    Exit codes: 0 done, 1 there is no such action, 2 a wrong call, 4 no answer.

      rsm actions show transfer-42 -c site-1.toml
    """
    check_output(output)
    found = _asked(config, timeout, lambda client: client.proxy.action(action))
    if found is None:
        refuse(f"{action}: {_NONE}", 1)
    if output == "json":
        _say(said_of(found))
    else:
        Console(highlight=False).print("\n".join(told(found)), markup=False, soft_wrap=True)


@app.command()
def watch(
    config: SiteFile,
    action: Annotated[
        str | None, typer.Argument(metavar="[ACTION]", help="Only this one, until it is over.")
    ] = None,
    since: Annotated[
        int | None, typer.Option(min=0, help="Begin behind this slot.", show_default="now")
    ] = None,
    output: Output = "table",
    timeout: Timeout = 5.0,
) -> None:
    """Follow actions as they change, a line for each change, until Ctrl-C. What
    changed several times meanwhile is shown as it is then.

    With an id it ends when that action is over: with 0 if it is applied at all
    its sites, with 1 if it was aborted, or if there is none.

      rsm actions watch transfer-42 -c site-1.toml
    """
    check_output(output)

    def tell(found: Action) -> None:
        if output == "json":
            _say(said_of(found))
        else:
            typer.echo(line_of(found))

    async def work(client: Ledger) -> int:
        while True:
            try:
                return await _follow(client, action, since, tell)
            except ChainChanged:
                messages.print("the group has begun anew; from here on it is another chain", style="yellow")

    raise typer.Exit(_asked(config, timeout, work))


async def _follow(
    client: Ledger, action: str | None, since: int | None, tell: Callable[[Action], None]
) -> int:
    begin = since
    if begin is None:
        begin = 0 if action else (await client.proxy.reading("sites")).timestamp
    if action:
        await _known(client, action)
    async for feed in client.follow(ActionLedger.changes, begin, action or ""):
        for each in feed.events:
            tell(each)
            if action and is_finished(each):
                return ABORTED if each.state is State.ABORTED else 0
    raise AssertionError("a feed has no end")


@app.command()
def sites(config: SiteFile, output: Output = "table", timeout: Timeout = 5.0) -> None:
    """Show the sites of a group: who is there, what each still has to apply,
    and what is in doubt at it.

    Exit codes: 0 all are there and nothing is in doubt, 1 not so, 2 a wrong
    call, 4 no answer.

      rsm actions sites -c site-1.toml
    """
    check_output(output)

    async def work(client: Ledger) -> list[tuple[SiteState, list[Doubt] | None]]:
        found: list[SiteState] = await client.proxy.sites()
        doubts = await asyncio.gather(*(_doubts_or_none(client, each) for each in found))
        return list(zip(found, doubts, strict=True))

    found = _asked(config, timeout, work)
    if output == "json":
        _say({"items": [said_of_site(*each) for each in found]})
    else:
        console = Console(highlight=False)
        titles = ["site", "is", "address", "unfinished", "in doubt", "incarnation", "member"]
        rows = [
            [
                escape(each.name),
                "here" if each.is_here else "[red]away[/red]",
                each.address,
                str(each.unfinished),
                "?" if doubts is None else str(len(doubts)),
                str(each.incarnation),
                f"{each.site:x}",
            ]
            for each, doubts in found
        ]
        console.print(fitting_table(console, titles, rows))
        for each, doubts in found:
            for doubt in doubts or ():
                console.print(f"in doubt at {each.name}: {doubt_line(doubt)}", markup=False, soft_wrap=True)
    well = all(each.is_here and doubts == [] for each, doubts in found)
    raise typer.Exit(0 if well else 1)


async def _doubts_or_none(client: Ledger, site: SiteState) -> list[Doubt] | None:
    """None: it does not say."""
    if not site.is_here or not site.address:
        return None
    try:
        return list((await ask_doubts(client, site.name, site.address, ASK_SECONDS)).left)
    except AskError:
        return None


# -- ordering ------------------------------------------------------------------------------------


@app.command()
def commit(action: Id, config: SiteFile, output: Output = "table", timeout: Timeout = 30.0) -> None:
    """Request the commit of an action that is open, and wait for the decision.

    Exit codes: 0 committed, 1 aborted or refused, 2 a wrong call, 4 the outcome
    is unknown.

      rsm actions commit transfer-42 -c site-1.toml
    """
    check_output(output)

    async def work(client: Ledger) -> Action:
        async with Initiator(client) as initiator:
            try:
                await initiator.ledger.commit(action)
            except Rejected as refusal:
                if refusal.message in {"away", "behind", "full", "bad_request"}:
                    raise RequestRefused(action, refusal.message, refusal.detail) from None
                raise
            async with asyncio.timeout(timeout):
                return await initiator.outcome(action)

    decided = _asked(config, timeout, work)
    _show_decided(decided, output)
    raise typer.Exit(0 if decided.state is State.COMMITTED else ABORTED)


@app.command()
def abort(
    action: Id,
    config: SiteFile,
    reason: Annotated[str, typer.Option(help="For people.")] = "aborted by an operator",
    output: Output = "table",
    timeout: Timeout = 5.0,
) -> None:
    """Abort an action that is not decided. Nothing of it happens anywhere.

    Exit codes: 0 aborted, 1 it is committed, or there is none, 2 a wrong call,
    4 the outcome is unknown.

      rsm actions abort transfer-42 -c site-1.toml
    """
    check_output(output)
    _show_decided(_asked(config, timeout, lambda client: client.proxy.abort(action, reason)), output)


@app.command()
def forget(site: SiteName, config: SiteFile, yes: Yes = False, timeout: Timeout = 5.0) -> None:
    """Wait no longer for what a site has to apply, because its database is lost.

    Actions that were committed are then over without it. A site that is away
    and has nothing else is forgotten itself, until it comes back. Exit codes:
    0 done, 1 not done, 2 a wrong call, 4 the outcome is unknown.

      rsm actions forget berlin -c site-1.toml
    """
    found = _asked(config, timeout, lambda client: _site(client, site))
    is_meant(
        f"{site} has {found.unfinished} committed actions to apply. When they are forgotten nobody asks it to"
        " any more: if its database is not lost, they are applied at the other sites and not there.",
        yes=yes,
    )

    async def work(client: Ledger) -> int:
        count = 0
        left = found.unfinished
        while True:
            now: SiteState = await client.proxy.forget(site)
            count += left - now.unfinished
            left = now.unfinished
            if not left:
                return count

    typer.echo(f"forgotten: {_asked(config, timeout, work)} actions of {site}")


@app.command()
def settle(
    site: SiteName,
    config: SiteFile,
    unit: Annotated[
        str | None, typer.Argument(metavar="[UNIT]", help="Which; none: shows what is in doubt there.")
    ] = None,
    is_commit: Annotated[bool | None, typer.Option("--commit/--abort", help="What to do with it.")] = None,
    chain: Annotated[str, typer.Option(help="In which it was prepared, if there are several.")] = "",
    yes: Yes = False,
    timeout: Timeout = 5.0,
) -> None:
    """Commit or abort a unit that is in doubt at a site: prepared there in a
    chain that is not the group's any more, so that nobody can tell how it was
    decided.

    Find out what the other sites have done with it, and do the same. [bold]If
    you do the opposite, the action is done at some sites and not at
    others[/bold]: nothing here can see that, or repair it.

    Exit codes: 0 done, 1 not done, 2 a wrong call, 4 the outcome is unknown:
    it may go on there. To say the same again is safe.

      rsm actions settle berlin transfer-42@17 --commit -c site-1.toml
    """
    doubts = _asked(config, timeout, lambda client: _doubts_at(client, site, timeout))
    if unit is None:
        for each in doubts.left:
            typer.echo(doubt_line(each))
        if not doubts.left:
            messages.print(f"nothing is in doubt at {site}", markup=False)
        return
    doubt = _chosen(doubts, site, unit, chain)
    if is_commit is None:
        refuse("--commit, --abort: say what is to be done with it")
    if isinstance(doubt, Settled):
        words = f"{unit} is {'committed' if doubt.committed else 'aborted'} at {site}"
        if doubt.committed is not is_commit:
            refuse(f"{words} since before; that cannot be changed", 1)
        typer.echo(f"settled before: {words}")
        return
    is_meant(
        f"in doubt at {site}: {doubt_line(doubt)}\n"
        f"If another site has {'aborted' if is_commit else 'committed'} it, this breaks the action in two:"
        f" done {'here and not there' if is_commit else 'there and not here'}. Nothing can repair that.",
        yes=yes,
    )
    question = Question(Unit(doubt.unit, doubt.chain), is_commit)
    _asked(config, timeout, lambda client: _doubts_at(client, site, timeout, question))
    typer.echo(f"settled: {doubt.unit} is {'committed' if is_commit else 'aborted'} at {site}")


def _chosen(doubts: Doubts, site: str, unit: str, chain: str) -> Doubt | Settled:
    both: tuple[Doubt | Settled, ...] = (*doubts.left, *doubts.settled)
    named = [each for each in both if each.unit == unit and chain in {"", f"{each.chain:x}"}]
    if not named:
        words = ", ".join(each.unit for each in doubts.left) or "nothing"
        refuse(f"{unit}: is not in doubt at {site}; there is: {words}", 1)
    if len(named) > 1:
        chains = ", ".join(f"{each.chain:x}" for each in named)
        refuse(f"--chain: {unit} was prepared in several; name one of {chains}")
    return named[0]


async def _doubts_at(client: Ledger, site: str, timeout: float, question: Question = ONLY_LOOK) -> Doubts:
    found = await _site(client, site)
    if not found.is_here or not found.address:
        refuse(f"{site}: is not there at present; start its process, which then tells what is in doubt", 1)
    try:
        return await ask_doubts(client, site, found.address, timeout, question)
    except AnswerFailed as error:
        refuse(f"{site}: {error}", 1)
    except AskError as error:
        after = (
            "" if question is ONLY_LOOK else "it may be done all the same; to repeat the command is safe: "
        )
        refuse(f"{site}: {error}; {after}see what is in doubt with: rsm actions settle {site}", UNKNOWN)


def is_meant(words: str, *, yes: bool) -> None:
    """Whoever orders what cannot be undone has read this."""
    messages.print(words, markup=False, style="yellow", soft_wrap=True)
    if not yes and not typer.confirm("go on?", default=False, err=True):
        refuse("nothing was done", 1)


def _show_decided(action: Action, output: str) -> None:
    if output == "json":
        _say(said_of(action))
    else:
        typer.echo(line_of(action))


def _say(said: Any) -> None:
    typer.echo(msgspec.json.encode(said).decode())


# -- the group -----------------------------------------------------------------------------------

_NONE: Final = "there is no such action, or it is long over; rsm actions ls shows which there are"


def _asked(config: Path, timeout: float, work: Callable[[Ledger], Coroutine[Any, Any, T]]) -> T:
    """Have the group do it, or end with why it did not."""
    site = load_site(config)
    if not (site.founders or site.contacts):
        refuse(f"{config}: founders: there are none, and no contacts; nobody can be asked")

    async def main() -> T:
        client = Client(ActionLedger, client_of(site).model_copy(update={"timeout": timeout}))
        async with client:
            return await work(client)

    try:
        return run(main())
    except Rejected as refusal:
        refuse(_refusal(refusal), 1)
    except (RequestRefused, ActionUnknown) as error:
        refuse(str(error), 1)
    except CallError as error:
        refuse(f"{type(error).__name__}: {error}; does this group run actions? see rsm status -c {config}", 1)
    except (OutcomeUnknown, TimeoutError) as error:
        words = str(error) or f"no answer within {timeout:g} s"
        refuse(f"{words}; does the group serve? `rsm status -c {config}` and `rsm doctor` tell", UNKNOWN)
    except (OrderingError, RsmError) as error:
        refuse(str(error))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _refusal(refusal: Rejected) -> str:
    detail = refusal.detail if isinstance(refusal.detail, dict) else {}
    if refusal.message == "unknown" and "site" in detail:
        return f"{detail['site']}: {_NO_SITE}"
    if refusal.message == "unknown":
        return f"{detail.get('id')}: {_NONE}"
    if refusal.message in {"decided", "exists"}:
        return f"{detail.get('id')}: is {detail.get('state')} already"
    return f"{refusal.message}: {refusal.detail}"


_NO_SITE: Final = "there is no such site; rsm actions sites shows which there are"


async def _site(client: Ledger, name: str) -> SiteState:
    found: list[SiteState] = await client.proxy.sites()
    for each in found:
        if each.name == name:
            return each
    raise Rejected("unknown", {"site": name})


async def _known(client: Ledger, action: str) -> None:
    if await client.proxy.action(action) is None:
        raise Rejected("unknown", {"id": action})
