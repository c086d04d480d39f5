"""A chain is born once (rule R9).

Each founder asks all configured founders whether they were ever a member. Only answers to its own
boot count, so an answer is younger than the asker. When all, itself included, say "never", the
founder enters epoch 0 of a chain whose id is drawn from all their boots; from there the birth is a
view change with nothing to keep: instance 0 among the founders decides epoch 1. One thing is
stricter: nothing is proposed before *all* founders have promised.

Why at most one chain lives. A site enters at most one epoch 0 and says "never" no more. A chain that
was decided was proposed, so each of its founders had entered it. Another chain of the same founders
needs the promise of everyone too, hence of a site that is in the first one, or of nobody but new
boots: then every process of the first has died. Answers may be old when they are used, which is why
collecting them is not enough. A founder that dies during the birth blocks it; when it is back under
a new boot the others try again under new boots too (UNBORN), each after a majority has promised it
that nothing was accepted: then nothing was decided, and nothing can be any more.

RMP lets a lone joiner found a group after some retries, which splits the brain of every group that
starts during a network fault.
"""

from ordering.config import MS
from ordering.naming import chain_id
from ordering.packets import Head, Hello, Standing
from ordering.site import Site, Timer
from ordering.state import State
from ordering.views import Member, View, ViewId, majority_of


class Birth:
    """One founder's view of who is there."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self._never: dict[str, Member] = {}
        self._heard: dict[str, tuple[int, Hello]] = {}  # the last answer of each founder, and when

    def fire(self) -> None:
        """Ask everyone, again and again, until the group exists with or without us."""
        site = self.site
        site.multicast_to(site.config.founders, self._statement(answers=0))
        site.arm(Timer.HELLO, site.config.request_ms * MS + site.jitter(site.config.request_ms))

    def answer(self, hello: Hello) -> None:
        """Every question is answered, by members too; answers are not answered."""
        if not hello.answers:
            self.site.multicast_to((hello.member.address,), self._statement(answers=hello.head.boot))

    def _statement(self, *, answers: int) -> Hello:
        site = self.site
        head = Head(site.group, 0, site.me, site.member.boot, 0, 0, 0, 0, 0)
        return Hello(head, site.member, self._standing(), site.chain, answers)

    def _standing(self) -> Standing:
        if self.site.state is State.FOUNDING:
            return Standing.NEVER
        return Standing.MEMBER if self.site.epoch else Standing.UNDECIDED

    def on_hello(self, hello: Hello) -> View | None:
        """Collect an answer to our own boot; the complete set is the view of epoch 0."""
        site = self.site
        if hello.answers != site.member.boot:
            return None
        self._heard[hello.member.address] = (site.now, hello)
        if hello.standing is not Standing.NEVER:
            return None
        self._never[hello.member.address] = hello.member
        return self.complete()

    def complete(self) -> View | None:
        """The view of epoch 0, once every founder has said "never"."""
        site = self.site
        self._never[site.member.address] = site.member
        members = tuple(self._never[a] for a in site.config.founders if a in self._never)
        if len(members) < len(site.config.founders):
            return None
        return View(ViewId(0, 0), members, tuple(m.site for m in members), ())

    def has_failed(self, view: View, *, nothing_accepted: bool) -> bool:
        """Whether the birth we entered cannot come about. ``nothing_accepted``: no install was, for sure."""
        if self.is_void(view):
            return True
        renewed = self.renewed(view)
        if renewed > 0 and nothing_accepted:
            return True
        # With a majority of its founders the chain itself has died, decided or not.
        return renewed > len(view.members) - majority_of(view.electorate)

    def is_void(self, view: View) -> bool:
        """Whether a founder we count on has entered another birth: then it never entered ours, so
        nothing was proposed here and nothing ever will be."""
        boots = {member.boot for member in view.members}
        return any(
            hello.member.boot in boots and hello.standing is Standing.UNDECIDED
            for _, hello in self._heard.values()
            if hello.chain != self.site.chain
        )

    def renewed(self, view: View) -> int:
        """How many founders of the birth we entered were seen to live on under another boot; -1 while
        not all of them have answered lately, or one of them is a member."""
        site = self.site
        renewed = 0
        for member in view.members:
            if member.site == site.me:
                continue
            at, hello = self._heard.get(member.address, (0, None))
            if hello is None or site.now - at > site.config.slow_ms * MS:
                return -1
            if hello.standing is Standing.MEMBER:
                return -1
            renewed += hello.member.boot != member.boot
        return renewed

    def chain_of(self, view: View) -> int:
        return chain_id(self.site.group, tuple((m.site, m.boot) for m in view.members), 0)
