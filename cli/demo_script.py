"""The story that `rsm demo --script` plays: each step is one line, with figures, or it did not hold."""

import asyncio
import time
from itertools import pairwise
from typing import Any, Final

import msgspec
from rich.console import Console

from cli.asking import ask_all
from cli.crew import GATEWAY, Crew
from cli.kv import changes
from cli.over_http import Access, Failure, Gateways, path_of
from cli.steps import DidNotHold, Step, hold, told
from rsm.status import ReplicaStatus, Standing

SCRIPT_SECONDS: Final = 240.0
REQUEST_SECONDS: Final = 30.0
WRITES: Final = 300
WORKERS: Final = 8
LOAD_SECONDS: Final = 3.0
PAUSE_MAX_SECONDS: Final = 10.0
LOOK_SECONDS: Final = 0.1
PAGE: Final = 1000


async def play(crew: Crew, console: Console) -> bool:
    """Whether every step held."""
    access = Access((crew.endpoint,), timeout=REQUEST_SECONDS)
    async with Gateways(access) as gateways:
        return await told(Story(crew, gateways).steps, console, SCRIPT_SECONDS, (Failure,))


class Story:
    """What was answered is remembered here, and must be there to the end."""

    def __init__(self, crew: Crew, gateways: Gateways) -> None:
        self.crew = crew
        self.gateways = gateways
        self.before: dict[str, str] = {}
        self.written: dict[str, str] = {}
        self.victim = ""
        self.steps: list[Step] = [
            ("start", self.start),
            ("writes", self.write),
            ("reads", self.read),
            ("compare and set", self.compare_and_set),
            ("transaction", self.transact),
            ("watch", self.watch),
            ("kill -9 of the token site under load", self.kill_token_site),
            ("restart", self.restart),
        ]
        if crew.site().mode == "durable":
            self.steps.append(("kill -9 of all replicas, and restart", self.kill_all))

    async def start(self) -> str:
        began = time.monotonic()
        await self.crew.start(*self.crew.replicas)
        await self.crew.start(GATEWAY)
        self.before = await self._everything()
        took = time.monotonic() - began
        return f"{len(self.crew.replicas)} replicas and a gateway at {self.crew.endpoint} in {took:.1f} s"

    # -- one replica like another ----------------------------------------------------------------

    async def put(self, key: str, value: str, **headers: str) -> int:
        """The revision of it."""
        answer = await self.gateways.ask("PUT", _path(key), headers=headers, body=value.encode())
        self.written[key] = value
        return int(_said(answer.content)["revision"])

    async def write(self) -> str:
        began = time.monotonic()
        left = iter(range(WRITES))

        async def worker() -> None:
            for number in left:
                await self.put(f"numbers/{number:04}", str(number * number))

        await asyncio.gather(*(worker() for _ in range(WORKERS)))
        took = time.monotonic() - began
        return f"{WRITES} keys in {took:.2f} s, {WORKERS} at a time, {WRITES / took:.0f}/s"

    async def read(self) -> str:
        began = time.monotonic()
        for number in range(0, WRITES, 3):
            answer = await self.gateways.ask("GET", _path(f"numbers/{number:04}"))
            hold(answer.text == str(number * number), f"numbers/{number:04} is {answer.text!r}")
        took = time.monotonic() - began
        each = took / len(range(0, WRITES, 3)) * 1e3
        return f"{WRITES // 3} keys, one after the other, all as written; {each:.1f} ms each"

    async def compare_and_set(self) -> str:
        first = await self.put("greeting", "hello")
        second = await self.put("greeting", "hello again", **{"If-Match": f'"{first}"'})
        try:
            await self.put("greeting", "too late", **{"If-Match": f'"{first}"'})
        except Failure as failure:
            hold(failure.problem is not None and failure.problem.status == 412, f"not 412: {failure}")
        else:
            raise DidNotHold("a write with an old revision was let through")
        now = await self.gateways.ask("GET", _path("greeting"))
        hold(now.text == "hello again", f"the greeting is {now.text!r}")
        return f"revision {first}, then {second}; who still has {first} is told 412"

    async def transact(self) -> str:
        await self.put("accounts/ann", "100")
        await self.put("accounts/bob", "0")
        move = {
            "compare": [{"key": "accounts/ann", "target": "value", "op": "=", "with": "100"}],
            "then": [
                {"op": "put", "key": "accounts/ann", "value": "60"},
                {"op": "put", "key": "accounts/bob", "value": "40"},
            ],
            "else": [{"op": "get", "key": "accounts/ann"}],
        }
        first, second = await self._txn(move), await self._txn(move)
        hold(first["succeeded"] and not second["succeeded"], f"{first}, then {second}")
        self.written |= {"accounts/ann": "60", "accounts/bob": "40"}
        return f"moved 40 from one key to another at revision {first['revision']}, and not a second time"

    async def _txn(self, body: dict[str, Any]) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        answer = await self.gateways.ask("POST", "/v1/txn", headers=headers, body=msgspec.json.encode(body))
        return _said(answer.content)

    async def watch(self) -> str:
        """A watch that begins in the past and goes on into what happens meanwhile."""
        since = await self.put("news/0", "before")
        seen: list[str] = []

        async def follow() -> None:
            async for event in changes(self.gateways, {"prefix": "news/", "since": since}):
                seen.append(event["value"])
                if len(seen) == 20:
                    return

        following = asyncio.ensure_future(follow())
        try:
            for number in range(1, 21):
                await self.put(f"news/{number}", str(number))
            async with asyncio.timeout(REQUEST_SECONDS):
                await following
        except TimeoutError:
            raise DidNotHold(f"20 changes were made, and {len(seen)} were seen") from None
        finally:
            following.cancel()
        hold(seen == [str(number) for number in range(1, 21)], f"seen: {seen}")
        return "20 changes, each seen once and in order"

    # -- failures --------------------------------------------------------------------------------

    async def kill_token_site(self) -> str:
        answers: list[float] = []
        ends = asyncio.Event()

        async def worker(number: int) -> None:
            count = 0
            while not ends.is_set():
                count += 1
                await self.put(f"load/{number}/{count:06}", str(count))
                answers.append(time.monotonic())

        working = [asyncio.ensure_future(worker(number)) for number in range(WORKERS)]
        try:
            await asyncio.sleep(LOAD_SECONDS / 3)
            self.victim = await self._token_site()
            pid = self.crew.running[self.victim].pid
            await self.crew.kill(self.victim)
            await asyncio.sleep(LOAD_SECONDS)
            ends.set()
            await asyncio.gather(*working)
        finally:
            for task in working:
                task.cancel()
        pause = max(after - before for before, after in pairwise(answers))
        hold(pause < PAUSE_MAX_SECONDS, f"nothing was answered for {pause:.1f} s")
        return (
            f"{self.victim} (pid {pid}) killed; {len(answers)} writes answered, longest pause {pause:.2f} s"
        )

    async def _token_site(self) -> str:
        names = {address: name for name, address in self.crew.addresses().items()}
        for said in (await self._statuses()).values():
            if said is not None and said.token_address in names:
                return names[said.token_address]
        raise DidNotHold("no replica knows who has the token")

    async def _statuses(self) -> dict[str, ReplicaStatus | None]:
        return await ask_all(self.crew.site(), self.crew.addresses().values())

    async def restart(self) -> str:
        began = time.monotonic()
        await self.crew.start(self.victim)
        await self._agreement()
        return f"{self.victim} is back from its disk and has caught up, {time.monotonic() - began:.1f} s"

    async def _agreement(self) -> None:
        """Returns when all replicas serve, have executed equally much, and have the same state by then."""
        while True:
            said = list((await self._statuses()).values())
            there = [each for each in said if each is not None and each.standing is Standing.SERVING]
            if len(there) == len(said) and len({each.applied for each in there}) == 1:
                digests = {each.digest for each in there}
                hold(len(digests) == 1, f"the replicas differ at slot {there[0].applied}: {digests}")
                return
            await asyncio.sleep(LOOK_SECONDS)

    async def kill_all(self) -> str:
        await self.crew.kill(*self.crew.replicas)
        began = time.monotonic()
        await self.crew.start(*self.crew.replicas)
        back = time.monotonic() - began
        there = await self._everything()
        lost = [key for key, value in self.written.items() if there.get(key) != value]
        hold(not lost, f"{len(lost)} of {len(self.written)} keys were lost, the first is {lost[:1]}")
        strange = there.keys() - self.written.keys() - self.before.keys()
        hold(
            len(strange) == 0, f"{len(strange)} keys are there that nobody has written: {sorted(strange)[:3]}"
        )
        return f"back in {back:.1f} s with all {len(there)} keys; nothing that was answered is lost"

    async def _everything(self) -> dict[str, str]:
        found: dict[str, str] = {}
        cursor = None
        while True:
            answer = await self.gateways.ask("GET", "/v1/kv", fields={"limit": PAGE, "cursor": cursor})
            said = _said(answer.content)
            found |= {each["key"]: each["value"] for each in said["items"]}
            cursor = said["cursor"]
            if cursor is None:
                return found


def _path(key: str) -> str:
    return path_of("/v1/kv", key.encode())


def _said(content: bytes) -> dict[str, Any]:
    return msgspec.json.decode(content, type=dict[str, Any])
