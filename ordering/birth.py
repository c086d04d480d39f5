"""A chain is born once (rule R9).

Each founder asks all configured founders whether they were ever a member. Only answers to its own
boot count, so an answer is younger than the asker. When all, itself included, say "never", the
founder enters epoch 0 of a chain whose id is drawn from all their boots; from there the birth is an
ordinary view change with nothing to keep: instance 0 among the founders decides epoch 1.

Why at most one chain lives: a site enters at most one epoch 0 and says "never" no more; a chain
needs a majority of the founders in its own epoch 0; and two sets of boots for the same founders
cannot both find a majority that entered. RMP lets a lone joiner found a group after some retries,
which splits the brain of every group that starts during a network fault.
"""

from ordering.config import MS
from ordering.naming import chain_id
from ordering.packets import Head, Hello, Standing
from ordering.site import Site, Timer
from ordering.views import Member, View, ViewId


class Birth:
    """One founder's view of who is there."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self._never: dict[str, Member] = {}

    def fire(self) -> None:
        """Ask everyone, again and again, until the group exists with or without us."""
        site = self.site
        site.multicast_to(site.config.founders, self._statement(Standing.NEVER, answers=0))
        site.arm(Timer.HELLO, site.config.request_ms * MS + site.jitter(site.config.request_ms))

    def answer(self, hello: Hello, standing: Standing) -> None:
        """Every question is answered, by members too; answers are not answered."""
        if not hello.answers:
            statement = self._statement(standing, answers=hello.head.boot)
            self.site.multicast_to((hello.member.address,), statement)

    def _statement(self, standing: Standing, *, answers: int) -> Hello:
        site = self.site
        head = Head(site.group, 0, site.me, site.member.boot, 0, 0, 0, 0, 0)
        return Hello(head, site.member, standing, answers)

    def on_hello(self, hello: Hello) -> View | None:
        """Collect an answer to our own boot; the complete set is the view of epoch 0."""
        site = self.site
        if hello.answers != site.member.boot or hello.standing is not Standing.NEVER:
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

    def chain_of(self, view: View) -> int:
        return chain_id(self.site.group, tuple((m.site, m.boot) for m in view.members), 0)
