"""Scenarios: a text file of commands and the trace they must give, rewritten on demand.

A file is a sequence of sections with an empty line between them. It opens with prose, lines that start
with ``#``, on what it protects. A section is one or more commands, a line ``----``, and what they give::

    # A lost ACK is asked for by whoever misses it.

    cluster sites=3
    ----
    s1#1 view 1.0 at slot 1: ring s1#1 s2#2 s3#3, electorate s1#1 s2#2 s3#3, external -, learners -
    ...

    drop s1 s2 Ack
    submit s3 hello
    run 20ms
    ----
    ...

    finish
    ----
    ...

==========================================  ================================================================
cluster sites=3 [born=no] [setting=value]   founders s1 … sN and their birth; time 0 is when they rest
cluster … clocks=yes                        they also have wall clocks, which are right
submit s1 hello [more …] [qos=total]        one submission; a refusal is part of the trace; ``x*5000`` repeats
backlog s1 5000                             its application has not taken so many bytes
caller c1 [at=s2] [setting=value]           a process outside the group; it asks s2 first (else s1), or anyone
call c1 hello [more …] [handler=1]          requests; also qos=, implicit=yes, acknowledged=no, view=1.0
request s1 hello [handler=1] [group=yes]    a member's request
hang up c1                                  the caller crashes
run 50ms                                    also us and s
until s2 sends Ack | is STATE               run until it has just happened, 10 s at most
until s2 views 2.0 | delivers hello         the same for what the application is told
start s4, crash s2, restart s2              a start joins (as a founder would after its birth)
wipe s2, backup s2, rollback s2             the disk of a dead process: emptied, copied, put back
fail s2, sync 5ms                           its next sync fails; how long syncs take from now on
pause s2, resume s2                         as by SIGSTOP and SIGCONT
cut s1 s2, isolate s1, mend                 one way; both ways with all; everything whole again
drop s1 s2 Ack [count=1]                    lose the next packets of a type on a link; ``*`` is any
duplicate s1 s2 Ack [count=1]               send them twice
leave s3, retire s3, remove s3 [at=s1]      ordered membership changes
lock s1 NAME [lease=50ms], release s1 NAME  a handler's, if NAME is a number; ``until s2 locks NAME``
clock s1 -5s                                its wall clock is wrong by so much from now on
fork s3                                     an operator gives up the majority (R9)
show views | states | digests | log         what every live site has; also locks
show sent                                   how many packets of each type were sent since the last time
trace [+|-]TOPIC …                          which of the narrator's topics, ``nack`` and ``network``, are told
finish                                      heal, wait ten detection times, let all checkers judge
==========================================  ================================================================

Latency is fixed, nothing is lost or reordered unless a command says so, and what the engine draws comes from
a fixed seed: the same text gives the same trace. A violation is never part of a trace: it raises.
"""

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from ordering.caller import CallRequested
from ordering.config import MS
from ordering.errors import OrderingError
from ordering.events import (
    BacklogReported,
)
from ordering.qos import parse_qos
from ordering.simulator.process import Process
from ordering.simulator.stage import (
    TOPICS,
    US,
    ScenarioError,
    ScenarioViolation,
    Stage,
    kind_name,
    make_config,
    name_of,
)
from ordering.state import State
from ordering.views import LockName, ViewId

SEPARATOR: Final = "----"


class Section(msgspec.Struct):
    """Prose and commands as written, and what they are expected to give (none for prose alone)."""

    line: int
    prose: list[str]
    commands: list[str]
    expected: list[str] | None

    def __str__(self) -> str:
        lines = [*self.prose, *self.commands]
        if self.expected is not None:
            lines += [SEPARATOR, *self.expected]
        return "\n".join(lines)


def parse(text: str) -> list[Section]:
    """Cut a file into sections."""
    sections: list[Section] = []
    chunk: list[str] = []
    for number, line in enumerate([*text.splitlines(), ""], start=1):
        if line.strip():
            chunk.append(line.rstrip())
        elif chunk:
            sections.append(_section(number - len(chunk), chunk))
            chunk = []
    if not sections or not sections[0].prose:
        raise ScenarioError("line 1: a scenario opens with '# ' and what it protects")
    if sections[-1].commands[-1:] != ["finish"]:
        raise ScenarioError("the last section must be 'finish': it lets the checkers judge")
    return sections


def _section(line: int, chunk: list[str]) -> Section:
    if SEPARATOR not in chunk:
        if not all(text.startswith("#") for text in chunk):
            raise ScenarioError(f"line {line}: commands must be followed by a line {SEPARATOR}")
        return Section(line, chunk, [], None)
    end = chunk.index(SEPARATOR)
    prose = [text for text in chunk[:end] if text.startswith("#")]
    return Section(line, prose, chunk[len(prose) : end], chunk[end + 1 :])


def play(text: str) -> str:
    """Run a scenario and return its text with what it really gave."""
    sections = parse(text)
    script = Script()
    for section in sections:
        if section.expected is None:
            continue
        try:
            given = [line for command in section.commands for line in script.obey(command)]
        except (ScenarioError, ScenarioViolation, OrderingError) as error:
            told = "\n".join(script.lines)
            error.add_note(f"in the section of line {section.line}: {section.commands}\n{told}")
            raise
        section.expected = given or ["ok"]
    return "\n\n".join(map(str, sections)) + "\n"


class Script:
    """Obeys one command after the other."""

    def __init__(self) -> None:
        self._stage: Stage | None = None
        self._sent_before: dict[str, int] = {}
        self._verbs: dict[str, Callable[[list[str], dict[str, str]], None]] = {
            "cluster": self._cluster,
            "submit": self._submit,
            "caller": self._caller,
            "call": self._call,
            "request": self._request,
            "hang": lambda words, _: self._each(words[1:], lambda a: self.stage.cluster.callers[a].crash()),
            "backlog": self._backlog,
            "run": self._run,
            "until": self._until,
            "start": lambda words, _: self._each(words, lambda a: self.stage.cluster.start(a, founder=True)),
            "crash": lambda words, _: self._each(words, self.stage.cluster.crash),
            "restart": lambda words, _: self._each(words, self.stage.cluster.restart),
            "wipe": lambda words, _: self._each(words, self.stage.cluster.wipe),
            "backup": lambda words, _: self._each(words, lambda a: self.stage.process(a).disk.back_up()),
            "rollback": lambda words, _: self._each(words, lambda a: self.stage.process(a).disk.roll_back()),
            "fail": lambda words, _: self._each(words, self.stage.cluster.failing_disks.add),
            "sync": self._sync,
            "pause": lambda words, _: self._each(words, self.stage.cluster.pause),
            "resume": lambda words, _: self._each(words, self.stage.cluster.resume),
            "isolate": lambda words, _: self._each(words, self.stage.isolate),
            "leave": lambda words, _: self._each(words, self.stage.leave),
            "retire": lambda words, _: self._each(words, self.stage.retire),
            "remove": self._remove,
            "lock": self._lock,
            "release": lambda words, _: self.stage.release(words[0], _lock_name(_exactly(2, words)[1])),
            "clock": self._clock,
            "fork": lambda words, _: self._each(words, self.stage.force),
            "cut": lambda words, _: self.stage.cut(*_exactly(2, words)),
            "mend": lambda words, _: self.stage.network.mend_all(),
            "drop": self._drop,
            "duplicate": self._duplicate,
            "show": self._show,
            "trace": self._trace,
            "finish": self._finish,
        }

    @property
    def stage(self) -> Stage:
        if self._stage is None:
            raise ScenarioError("no cluster yet; begin with 'cluster sites=3'")
        return self._stage

    @property
    def lines(self) -> list[str]:
        return self._stage.lines if self._stage is not None else []

    def obey(self, command: str) -> list[str]:
        """Do what a line says; returns what happened."""
        verb, *rest = command.split()
        words = [word for word in rest if "=" not in word]
        options = dict(word.split("=", 1) for word in rest if "=" in word)
        if verb not in self._verbs:
            raise ScenarioError(f"{verb!r} is not a command; use one of {', '.join(self._verbs)}")
        self._verbs[verb](words, options)
        self.stage.check()
        given = list(self.stage.lines)
        self.stage.lines.clear()
        return given

    def _each(self, words: list[str], act: Callable[[str], object]) -> None:
        for address in words:
            act(address)

    def _cluster(self, words: list[str], options: dict[str, str]) -> None:
        sites = int(options.pop("sites", "3"))
        seed = int(options.pop("seed", "1"))
        born = options.pop("born", "yes") == "yes"
        clocks = options.pop("clocks", "no") == "yes"
        settings: dict[str, int | str] = {
            name: {"yes": 1, "no": 0}.get(value, int(value) if value.isdigit() else value)
            for name, value in options.items()
        }
        self._stage = stage = Stage(make_config(sites, settings), seed)
        stage.cluster.wall_errors = {} if clocks else None
        if born:
            stage.bear()
            self._show(["views"], {})

    def _submit(self, words: list[str], options: dict[str, str]) -> None:
        address, *texts = words
        messages = [text * int(count or 1) for text, _, count in (word.partition("*") for word in texts)]
        self.stage.submit(address, *messages, qos=parse_qos(options.get("qos", "majority")))

    def _caller(self, words: list[str], options: dict[str, str]) -> None:
        (address,) = _exactly(1, words)
        contacts = options.pop("at", "s1").split(",")
        self.stage.caller(address, *contacts, **{name: int(value) for name, value in options.items()})

    def _call(self, words: list[str], options: dict[str, str]) -> None:
        address, *messages = words
        view = options.get("view", "")
        self.stage.call(
            address,
            CallRequested(
                tuple(message.encode() for message in messages),
                parse_qos(options.get("qos", "majority")),
                handler=int(options.get("handler", "0")),
                implicit=options.get("implicit") == "yes",
                view=ViewId(*map(int, view.split("."))) if view else None,
                acknowledged=options.get("acknowledged") != "no",
            ),
        )

    def _request(self, words: list[str], options: dict[str, str]) -> None:
        address, *messages = words
        self.stage.cluster.request(
            self.stage.process(address),
            tuple(message.encode() for message in messages),
            parse_qos(options.get("qos", "majority")),
            handler=int(options.get("handler", "1")),
            to_group=options.get("group") == "yes",
        )

    def _backlog(self, words: list[str], options: dict[str, str]) -> None:
        address, size = _exactly(2, words)
        self.stage.cluster.handle(self.stage.process(address), BacklogReported(int(size)))

    def _run(self, words: list[str], options: dict[str, str]) -> None:
        (text,) = _exactly(1, words)
        self.stage.run(_duration(text))

    def _sync(self, words: list[str], options: dict[str, str]) -> None:
        (text,) = _exactly(1, words)
        self.stage.cluster.sync_us = (_duration(text) // US,)

    def _until(self, words: list[str], options: dict[str, str]) -> None:
        address, verb, *what = words
        stage = self.stage
        process = stage.process(address)
        wanted = " ".join(what)
        is_so: Callable[[], bool]
        match verb:
            case "sends":
                key = (address, kind_name(wanted))
                before = stage.network.counts.get(key, 0)
                is_so = lambda: stage.network.counts.get(key, 0) > before  # noqa: E731
            case "is":
                state = State(wanted)
                is_so = lambda: process.engine.state is state  # noqa: E731
            case "views":
                is_so = lambda: process.view is not None and str(process.view.id) == wanted  # noqa: E731
            case "delivers":
                key_of_message = (process.member.site, wanted)
                is_so = lambda: key_of_message in stage.journal.delivered_at  # noqa: E731
            case "locks":
                is_so = lambda: _lock_name(wanted) in process.engine.locks.held  # noqa: E731
            case _:
                raise ScenarioError(f"until {address} {verb!r}: use sends, is, views, delivers or locks")
        stage.until(is_so, f"{address} {verb} {wanted}")

    def _remove(self, words: list[str], options: dict[str, str]) -> None:
        (address,) = _exactly(1, words)
        self.stage.remove(address, options.get("at", self.stage.addresses[0]))

    def _lock(self, words: list[str], options: dict[str, str]) -> None:
        address, name = _exactly(2, words)
        self.stage.lock(address, _lock_name(name), _duration(options.get("lease", "0ms")) // MS)

    def _clock(self, words: list[str], options: dict[str, str]) -> None:
        address, error = _exactly(2, words)
        sign = -1 if error.startswith("-") else 1
        self.stage.set_clock(address, sign * _duration(error.lstrip("+-")))

    def _drop(self, words: list[str], options: dict[str, str]) -> None:
        source, to, kind = _exactly(3, words)
        self.stage.drop(source, to, kind, int(options.get("count", "1")))

    def _duplicate(self, words: list[str], options: dict[str, str]) -> None:
        source, to, kind = _exactly(3, words)
        self.stage.duplicate(source, to, kind, int(options.get("count", "1")))

    def _trace(self, words: list[str], options: dict[str, str]) -> None:
        for word in words:
            topic = word.lstrip("+-")
            if topic not in TOPICS:
                raise ScenarioError(f"trace {word!r}: use + or - with one of {', '.join(sorted(TOPICS))}")
            if word.startswith("-"):
                self.stage.topics -= {topic}
            else:
                self.stage.topics |= {topic}

    def _show(self, words: list[str], options: dict[str, str]) -> None:
        shows: dict[str, Callable[[Process], str]] = {
            "views": _view_of,
            "states": _state_of,
            "digests": _digest_of,
            "log": self._log_of,
            "locks": _locks_of,
        }
        for what in words:
            if what == "sent":
                self.stage.lines.append(self._sent())
                continue
            if what not in shows:
                raise ScenarioError(f"show {what!r}: use one of {', '.join(shows)} or sent")
            for process in sorted(self.stage.cluster.live(), key=lambda p: p.address):
                self.stage.lines.append(f"{name_of(process)} {shows[what](process)}")

    def _sent(self) -> str:
        sums: dict[str, int] = {}
        for (_, kind), count in self.stage.network.counts.items():
            sums[kind] = sums.get(kind, 0) + count
        before, self._sent_before = self._sent_before, sums
        new = {kind: count - before.get(kind, 0) for kind, count in sorted(sums.items())}
        return "sent: " + (", ".join(f"{n} {kind}" for kind, n in new.items() if n) or "nothing")

    def _log_of(self, process: Process) -> str:
        told = self.stage.journal.delivered.get(process.member.site, [])
        return " ".join(f"{ts or '-'}:{text}" for ts, text in told) or "nothing"

    def _finish(self, words: list[str], options: dict[str, str]) -> None:
        """Only the outcome is told: how long the ring takes to settle is no part of the claim."""
        self.stage.finish()
        self.stage.lines.clear()
        self._show(["digests"], {})


def _view_of(process: Process) -> str:
    view = process.view
    if view is None:
        return f"no view, {process.engine.state.value}"
    names = {member.site: f"{member.address}#{member.site}" for member in view.members}

    def listed(sites: Iterable[int]) -> str:
        return " ".join(names.get(site, f"#{site}") for site in sites) or "-"  # type: ignore[call-overload]

    return (
        f"view {view.id} at slot {process.view_ts}: ring {listed(view.ring)},"
        f" electorate {listed(view.electorate)}, external {listed(view.external)},"
        f" learners {listed(view.learners)}"
    )


def _locks_of(process: Process) -> str:
    """Who has which, and who waits; locks of the same story together."""
    view = process.view
    if view is None:
        return "no view"
    names = {member.site: f"{member.address}#{member.site}" for member in view.members}
    told: dict[str, list[str]] = {}
    for lock in view.locks.locks:
        waiting = "".join(f", then {names[claim.owner.site]}" for claim in lock.queue)
        owner = names.get(lock.holder.owner.site, "nobody")
        asked = "" if lock.holder.number else " unasked"
        told.setdefault(f"of {owner}{asked}, fence {lock.fence}{waiting}", []).append(str(lock.name))
    return "; ".join(f"{' '.join(same)} {story}" for story, same in told.items())


def _lock_name(word: str) -> LockName:
    return int(word) if word.isdigit() else word


def _state_of(process: Process) -> str:
    site = process.engine.site
    paused = ", paused" if process.paused else ""
    return (
        f"{site.state.value}, epoch {site.epoch}, holds {site.queue.frontier},"
        f" majority {site.stability.majority}, stable {site.stability.stable}{paused}"
    )


def _digest_of(process: Process) -> str:
    view = process.view.id if process.view is not None else "-"
    return f"view {view}, applied {process.replica.ts}, digest {process.replica.digest.hex()[:8]}"


def _duration(text: str) -> int:
    for unit, ns in (("ms", MS), ("us", US), ("s", 1000 * MS)):
        digits = text.removesuffix(unit)
        if digits != text and digits.isdigit():
            return int(digits) * ns
    raise ScenarioError(f"{text!r} is not a duration; write 50ms, 500us or 2s")


def _exactly(count: int, words: list[str]) -> list[str]:
    if len(words) != count:
        raise ScenarioError(f"{count} words are wanted, not {words}")
    return words
